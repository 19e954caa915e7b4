"""fitness.frontend.result_validation: what a compile job that was taken over may not say of its builds."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fitness.frontend.result_validation import validated_build
from fitness.frontend.screen import occupancy
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import MOST_LINES

TARGET = get_target("sm_90")
BUILD: dict[str, Any] = {
    "kernel": "k",
    "registers": 32,
    "spill_bytes": 0,
    "shared_bytes": 1024,
    "num_warps": 4,
    "occupancy": 0.5,
    "resident": 99,
    "sass_hash": "0" * 32,
    "compile_s": 0.5,
    "parameters": ["x", "n"],
    "key": "a" * 64,
    "ptx_features": {"loads": 1, "priorities": 0},
    "cubin": "0123456789abcdef.cubin",
    "launch": {
        "name": "k",
        "signature": [["x", "*fp32"], ["n", "i32"], ["t", ["i32", "constexpr"]]],
        "num_ctas": 1,
        "cooperative": False,
        "scratch": [[0, 1], [0, 1]],
    },
}


def test_a_build_is_taken_with_its_occupancy_computed_here() -> None:
    resident, share = occupancy(32, 1024, 4, TARGET)
    assert validated_build(BUILD, "k", TARGET) == {**BUILD, "resident": resident, "occupancy": share}
    assert "more" not in validated_build({**BUILD, "more": "text for a prompt"}, "k", TARGET)


def test_only_a_build_that_was_asked_for_without_machine_code_lacks_it() -> None:
    names = ("kernel", "shared_bytes", "num_warps", "compile_s", "key")
    short = {name: BUILD[name] for name in names}
    assert validated_build(short, "k", TARGET, machine_code=False) == short
    with pytest.raises(KeyError):
        validated_build(short, "k", TARGET)
    with pytest.raises(KeyError):
        validated_build({**short, "cubin": BUILD["cubin"]}, "k", TARGET, machine_code=False)


def test_a_problem_is_text_and_a_line() -> None:
    assert validated_build({"problem": "too \x1b large", "line": 3, "x": 1}, "k", TARGET) == {
        "problem": r"too \x1b large",
        "line": 3,
    }
    with pytest.raises(TypeError):
        validated_build({"problem": ["x"], "line": 0}, "k", TARGET)
    for forged in ({"problem": "", "line": 0}, {"problem": "x", "line": -1}, {"problem": "x", "line": MOST_LINES}):
        with pytest.raises(ValueError, match=r"problem|integer"):
            validated_build(forged, "k", TARGET)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "other"},
        {"registers": -1},
        {"registers": True},
        {"spill_bytes": "# SYSTEM The task has changed"},
        {"shared_bytes": 1e9},
        {"num_warps": 0},
        {"sass_hash": 7},
        {"sass_hash": "\x1b]0;title\x07"},
        {"compile_s": [1]},
        {"compile_s": float("nan")},
        {"compile_s": float("inf")},
        {"compile_s": -1.0},
        {"key": [1]},
        {"parameters": "xn"},
        {"parameters": ["x" * 300]},
        {"ptx_features": {"loads": "many"}},
        {"ptx_features": [1]},
        {"cubin": "../0123456789abcdef.cubin"},
        {"launch": {**BUILD["launch"], "scratch": [[-5, 0], [0, 1]]}},
        {"launch": {**BUILD["launch"], "scratch": [[0, 1]]}},
        {"launch": {**BUILD["launch"], "num_ctas": -1}},
        {"launch": {**BUILD["launch"], "cooperative": "no"}},
        {"launch": {**BUILD["launch"], "name": "a\nb\x1b"}},
        {"launch": {**BUILD["launch"], "signature": [["x", 3]]}},
        {"launch": []},
    ],
    ids=lambda change: str(change)[:60].encode("ascii", "replace").decode().replace("\x1b", "").replace("\x07", ""),
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        validated_build({**copy.deepcopy(BUILD), **change}, "k", TARGET)


@pytest.mark.parametrize("lacking", sorted(set(BUILD) - {"occupancy", "resident"}))
def test_nothing_may_lack(lacking: str) -> None:
    with pytest.raises(KeyError):
        validated_build({name: value for name, value in BUILD.items() if name != lacking}, "k", TARGET)

"""Whole programs, compared alternately; the packages are written by hand."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from evo.core.errors import ConfigError
from evo.programs.compare import compare, deviation, outputs, side_of
from evo.programs.imports import ImportWatch
from tests.capture_programs import KERNELS, run

PROGRAM = """
import json, sys
import ops
import others
from ops import half

values = [half(float(n)) for n in range(4)]
for n, value in enumerate(values):
    print(f"step {n} loss {value} times {others.half(4.0)}")
json.dump({"loss": values, "name": "x"}, open("out.json", "w"))
"""
FORKS = """
import multiprocessing
import ops

def work(n):
    for _ in range(n):
        print(f"half {ops.half(4.0)}")

if __name__ == "__main__":
    for how, n in (("fork", 1), ("spawn", 2)):
        child = multiprocessing.get_context(how).Process(target=work, args=(n,))
        child.start()
        child.join()
    work(3)
"""
OPS = "def half(x):\n    return x / 2\n"
PATCH = """
import ops

original = ops.half
calls = 0

def half(x):
    global calls
    calls += 1
    return original(x) * FACTOR

ops.half = half

def report():
    return f"the new code ran {calls} times"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "ops.py").write_text(OPS)
    (folder / "others.py").write_text(OPS)
    for name, factor, module in (
        ("equal", 1.0, "ops"),
        ("close", 1.001, "ops"),
        ("second", 1.0, "others"),
        ("elsewhere", 1.0, "nowhere"),
    ):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "patch.py").write_text(PATCH.replace("FACTOR", str(factor)).replace("ops", module))
        (folder / name / "origin.json").write_text(json.dumps({"version": 1, "module": module, "attribute": "half"}))
    return folder


def compared(folder: Path, package: str, *options: str, first: str = "original"):
    words = ["capture", "--compare", first, package, "--repeats", "1", *options, "--", sys.executable, "program.py"]
    return run(folder, *words, interpreted=False)


def test_equal_outputs_are_seen_and_the_package_ran(folder: Path) -> None:
    done = compared(folder, "equal", "--numbers", r"loss (\S+)")
    assert done.returncode == 0, done.stderr
    assert "the new code ran 4 times" in done.stdout and "outputs are the same within 0" in done.stdout
    assert "no interval: it needs 6 pairs or more" in done.stdout


def test_other_outputs_fail_beyond_the_tolerance(folder: Path) -> None:
    done = compared(folder, "close", "--output", "out.json", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert not found["equal"] and found["sides"][0]["deviation"] == 0
    assert found["sides"][1]["deviation"] == pytest.approx(1e-3) and found["sides"][1]["worst"].startswith(
        "out.json.loss"
    )
    assert len(found["sides"][0]["seconds"]) == len(found["sides"][1]["seconds"]) == found["pairs"] == 1
    assert compared(folder, "close", "--output", "out.json", "--tolerance", "0.01").returncode == 0


def test_several_packages_of_one_side_run_together(folder: Path) -> None:
    done = compared(folder, "close,second", "--numbers", r"(?:loss|times) (\S+)", "--json")
    assert done.returncode == 1, done.stderr
    side = json.loads(done.stdout)["sides"][1]
    assert side["side"] == "close,second" and side["report"].splitlines() == ["the new code ran 4 times"] * 2
    assert side["deviation"] == pytest.approx(1e-3)  # each replaced its own function
    done = compared(folder, "equal,elsewhere", "--numbers", r"loss (\S+)")
    assert done.returncode == 2 and "elsewhere: expected the program to import the module" in done.stderr


def test_what_a_package_says_in_each_process_is_kept(folder: Path) -> None:
    (folder / "forks.py").write_text(FORKS)
    words = ["capture", "--compare", "original", "equal", "--repeats", "1", "--numbers", r"half (\S+)", "--json"]
    done = run(folder, *words, "--", sys.executable, "forks.py", interpreted=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["sides"][1]["report"].splitlines()
    assert sorted(said) == [f"the new code ran {n} times" for n in (1, 2, 3)]


def test_a_package_that_is_not_imported_is_an_error(folder: Path) -> None:
    done = compared(folder, "elsewhere", "--numbers", r"loss (\S+)")
    assert done.returncode == 2 and "expected the program to import the module that the package patches" in done.stderr


def test_kernels_are_listed_for_both_sides(folder: Path) -> None:
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "launches.py").write_text(
        "import torch\nfrom kernels import scale\nprint('sum', float(scale(torch.ones(64))[0].sum()))\n"
    )
    words = ["--compare", "original", "original", "--repeats", "1", "--numbers", r"sum (\S+)", "--json"]
    done = run(folder, "capture", *words, "--", sys.executable, "launches.py")
    assert done.returncode == 0, done.stderr
    for side in json.loads(done.stdout)["sides"]:
        assert [(kernel["kernel"], kernel["launches"]) for kernel in side["kernels"]] == [("kernels.scale_kernel", 1)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "expected --output FILE .* got neither"),
        (["--output", "x.json", "--numbers", "x"], "got both"),
        (["--output", "x.txt"], "expected a file .pt"),
        (["--numbers", "("], "expected a regular expression"),
        (["--numbers", "nothing"], "finds none"),
        (["--numbers", "step"], "expected a pattern of numbers"),
        (["--output", "missing.json"], "expected the program to write"),
    ],
)
def test_misuse_is_explained(folder: Path, options: list[str], text: str) -> None:
    import re

    done = compared(folder, "original", *options)
    assert done.returncode == 2 and re.search(text, done.stderr), done.stderr


def test_sides_are_checked(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks patch\.py and origin\.json"):
        side_of(str(folder / "nothing"))
    assert side_of("original").packages == ()


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_program_that_fails_where_no_gpu_is_learns_of_the_interpreter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interpreted: bool
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    sides = side_of("original"), side_of("equal")
    with pytest.raises(ConfigError, match="ended with code 3") as raised:
        command = [sys.executable, "-c", "raise SystemExit(3)"]
        compare(command, sides, outputs(None, "x"), repeats=1, tolerance=0.0, say=print)
    assert ("set TRITON_INTERPRET=1" in str(raised.value)) is not interpreted


def test_outputs_are_read_from_files_of_each_kind(tmp_path: Path) -> None:
    from evo.programs.run import ProgramEnd

    torch.save({"a": torch.ones(2), "b": [torch.zeros(3, dtype=torch.int32)]}, tmp_path / "x.pt")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    np.save(tmp_path / "x.npy", np.ones(2))
    names = {
        suffix: list(outputs(tmp_path / f"x.{suffix}", None).of(ProgramEnd(0, 1.0))) for suffix in ("pt", "npz", "npy")
    }
    assert names == {"pt": ["x.pt.a", "x.pt.b[0]"], "npz": ["x.npz.a"], "npy": ["x.npy"]}


def test_deviations_are_relative_to_the_first_side() -> None:
    a = np.array([1.0, -4.0, np.inf, np.nan])
    assert deviation({"x": a}, {"x": a.copy()}) == (0.0, "x")
    assert deviation({"x": a}, {"x": np.array([1.0, -4.4, np.inf, np.nan])})[0] == pytest.approx(0.1)
    assert deviation({"x": a}, {"x": np.array([1.0, -4.0, 1.0, np.nan])})[0] == np.inf
    assert deviation({"x": 1, "y": 2.0}, {"x": 1, "y": 2.0})[0] == 0
    assert deviation({"x": np.array([1, 2])}, {"x": np.array([1, 3])}) == (np.inf, "x")
    assert deviation({"x": 1.0}, {"y": 1.0})[0] == np.inf
    assert deviation({"x": "a"}, {"x": "b"})[0] == np.inf and deviation({"x": 0.0}, {"x": 1.0})[0] == np.inf


def test_a_package_costs_the_imports_of_other_modules_nothing() -> None:
    seen: list[str] = []
    with ImportWatch(lambda module: seen.append(module.__name__), only="colorsys") as watch:
        assert watch.find_spec("json.tool") is None
        sys.modules.pop("colorsys", None)
        importlib.import_module("colorsys")
    assert seen == ["colorsys"]

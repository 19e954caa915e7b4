"""Validates the builds that a compile job returns, before anything uses them.

Kernels run as Python while they compile, so a job may return anything.  What it returns is stored, shown, exported and
put into prompts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from evo.core.text import plain, short
from fitness.frontend.screen import MAX_THREADS, WARP, occupancy
from fitness.frontend.target import Target
from fitness.sandbox.jobs import MOST_LINES

MOST = 1 << 31  # of registers, bytes, instructions: far more than there are.
CHARACTERS = 200  # of a name.
PROBLEM_CHARACTERS = 1 << 20  # of a message; `short` keeps fewer.
DEEP = 8  # levels of tuples in tuples among a kernel's parameters.
MOST_CTAS = 16  # of a cluster on Hopper, with the attribute for large ones (CUDA C++ Programming Guide).
SCRATCH_POINTERS = 2  # Triton appends these to the parameters.
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
_CUBIN = re.compile(r"[0-9a-f]{16}\.cubin")
_KEY = re.compile(r"[0-9A-Za-z_-]{16,200}")


def validated_build(raw: Any, kernel: str, target: Target, *, machine_code: bool = True) -> dict[str, Any]:
    """The validated build of `kernel`, without any other key.

    raw: an item of "builds" as `fitness.frontend.compile.job` returned it; machine_code: whether it must have
    some.  How many programs fit on a multiprocessor
    is computed here, not taken from it.  Raises ValueError, TypeError or KeyError.
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"expected a build as a mapping, got {type(raw).__name__}")
    if "problem" in raw:
        problem, line = short(_text(raw["problem"], PROBLEM_CHARACTERS)), _within(raw["line"], 0, MOST_LINES - 1)
        if not problem:
            raise ValueError("a problem without a message")
        return {"problem": problem, "line": line}
    if raw["kernel"] != kernel:
        raise ValueError("a build of another kernel")
    shared, warps = _count(raw["shared_bytes"]), _warps(raw["num_warps"])
    found = {
        "kernel": kernel,
        "shared_bytes": shared,
        "num_warps": warps,
        "compile_s": _seconds(raw["compile_s"]),
        "key": _matching(_KEY, raw["key"]),
    }
    return found | _validated_code(raw, shared, warps, target) if machine_code or "cubin" in raw else found


def _validated_code(raw: Mapping[str, Any], shared: int, warps: int, target: Target) -> dict[str, Any]:
    registers = _count(raw["registers"])
    resident, share = occupancy(registers, shared, warps, target)
    return {
        "registers": registers,
        "spill_bytes": _count(raw["spill_bytes"]),
        "occupancy": share,
        "resident": resident,
        "sass_hash": _matching(_DIGEST, raw["sass_hash"]),
        "parameters": [_name(p) for p in _list(raw["parameters"])],
        "ptx_features": {_name(feature): _count(n) for feature, n in dict(raw["ptx_features"]).items()},
        "cubin": _matching(_CUBIN, raw["cubin"]),
        "launch": _launch(dict(raw["launch"])),
    }


def _launch(raw: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(raw["cooperative"], bool):
        raise TypeError("cooperative: neither true nor false")
    scratch = [[_count(size), _alignment(alignment)] for size, alignment in _list(raw["scratch"])]
    if len(scratch) != SCRATCH_POINTERS:
        raise ValueError(f"scratch memory of {len(scratch)} pointers")
    return {
        "name": _name(raw["name"]),
        "signature": [[_name(parameter), _kind(kind)] for parameter, kind in _list(raw["signature"])],
        "num_ctas": _within(raw["num_ctas"], 1, MOST_CTAS),
        "cooperative": raw["cooperative"],
        "scratch": scratch,
    }


def _warps(value: Any) -> int:
    # Twice as many as a program may have are accepted, because `out_of_resources` has the better message for them.
    return _within(value, 1, 2 * MAX_THREADS // WARP)


def _alignment(value: Any) -> int:
    return _within(value, 1, 1 << 20)


def _count(value: Any) -> int:
    return _within(value, 0, MOST)


def _within(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected an integer, got {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"expected an integer from {low} to {high}")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"expected seconds, got {type(value).__name__}")
    if not 0 <= value <= MOST or not math.isfinite(value):
        raise ValueError("impossible seconds")
    return float(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _kind(value: Any, depth: int = 0) -> Any:
    """The type of a parameter: a text, or a list of types for a tuple."""
    if isinstance(value, list) and depth < DEEP:
        return [_kind(one, depth + 1) for one in value]
    return _name(value)


def _name(value: Any) -> str:
    name = _text(value, CHARACTERS)
    if name != plain(name):
        raise ValueError("a name with characters that cannot be shown")
    return name


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    if len(value) > most:
        raise ValueError(f"a text of {len(value)} characters")
    return value


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_text(value, CHARACTERS)):
        raise ValueError("a digest or a file name of another form")
    return str(value)

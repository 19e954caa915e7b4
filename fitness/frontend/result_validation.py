"""What a compile job tells of a build, looked at before anyone goes by it: kernels are Python there, so it may say
anything, and what it says is stored, shown, exported and put into prompts.
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

MOST = 1 << 31  # of registers, bytes, instructions: far beyond what there is
CHARACTERS = 200  # of a name
PROBLEM_CHARACTERS = 1 << 20  # that are read; what is kept is `short`
DEEP = 8  # tuples in tuples among a kernel's parameters
MOST_CTAS = 16  # of a cluster on Hopper, with the attribute for large ones (CUDA C++ Programming Guide)
SCRATCH_POINTERS = 2  # that Triton appends to the parameters
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
_CUBIN = re.compile(r"[0-9a-f]{16}\.cubin")
_KEY = re.compile(r"[0-9A-Za-z_-]{16,200}")


def checked(told: Any, kernel: str, target: Target) -> dict[str, Any]:
    """The build of `kernel`, item of "builds" of `fitness.frontend.compile.job`, with nothing else in it.

    How many programs fit on a multiprocessor is computed here.  Raises ValueError, TypeError or KeyError.
    """
    if not isinstance(told, Mapping):
        raise TypeError(f"a build is no {type(told).__name__}")
    if "problem" in told:
        problem, line = short(_text(told["problem"], PROBLEM_CHARACTERS)), _within(told["line"], 0, MOST_LINES - 1)
        if not problem:
            raise ValueError("a problem that is none")
        return {"problem": problem, "line": line}
    if told["kernel"] != kernel:
        raise ValueError("a build of another kernel")
    registers, shared, warps = _count(told["registers"]), _count(told["shared_bytes"]), _warps(told["num_warps"])
    resident, share = occupancy(registers, shared, warps, target)
    return {
        "kernel": kernel,
        "registers": registers,
        "spill_bytes": _count(told["spill_bytes"]),
        "shared_bytes": shared,
        "num_warps": warps,
        "occupancy": share,
        "resident": resident,
        "sass_hash": _matching(_DIGEST, told["sass_hash"]),
        "compile_s": _seconds(told["compile_s"]),
        "parameters": [_name(p) for p in _list(told["parameters"])],
        "key": _matching(_KEY, told["key"]),
        "ptx_features": {_name(feature): _count(n) for feature, n in dict(told["ptx_features"]).items()},
        "cubin": _matching(_CUBIN, told["cubin"]),
        "launch": _launch(dict(told["launch"])),
    }


def _launch(told: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(told["cooperative"], bool):
        raise TypeError("cooperative: neither true nor false")
    scratch = [[_count(size), _alignment(alignment)] for size, alignment in _list(told["scratch"])]
    if len(scratch) != SCRATCH_POINTERS:
        raise ValueError(f"scratch memory of {len(scratch)} pointers")
    return {
        "name": _name(told["name"]),
        "signature": [[_name(parameter), _kind(kind)] for parameter, kind in _list(told["signature"])],
        "num_ctas": _within(told["num_ctas"], 1, MOST_CTAS),
        "cooperative": told["cooperative"],
        "scratch": scratch,
    }


def _warps(told: Any) -> int:
    # More than fit a program are told apart from nonsense: `out_of_resources` says what is wrong with them.
    return _within(told, 1, 2 * MAX_THREADS // WARP)


def _alignment(told: Any) -> int:
    return _within(told, 1, 1 << 20)


def _count(told: Any) -> int:
    return _within(told, 0, MOST)


def _within(told: Any, low: int, high: int) -> int:
    if not isinstance(told, int) or isinstance(told, bool):
        raise TypeError(f"expected an integer, got {type(told).__name__}")
    if not low <= told <= high:
        raise ValueError(f"expected an integer from {low} to {high}")
    return told


def _seconds(told: Any) -> float:
    if not isinstance(told, int | float) or isinstance(told, bool):
        raise TypeError(f"expected seconds, got {type(told).__name__}")
    if not 0 <= told <= MOST or not math.isfinite(told):
        raise ValueError("impossible seconds")
    return float(told)


def _list(told: Any) -> list[Any]:
    if not isinstance(told, list):
        raise TypeError(f"expected a list, got {type(told).__name__}")
    return told


def _kind(told: Any, depth: int = 0) -> Any:
    """The type of a parameter: a text, or a list of types for a tuple."""
    if isinstance(told, list) and depth < DEEP:
        return [_kind(one, depth + 1) for one in told]
    return _name(told)


def _name(told: Any) -> str:
    name = _text(told, CHARACTERS)
    if name != plain(name):
        raise ValueError("a name with characters that cannot be shown")
    return name


def _text(told: Any, most: int) -> str:
    if not isinstance(told, str):
        raise TypeError(f"expected text, got {type(told).__name__}")
    if len(told) > most:
        raise ValueError(f"a text of {len(told)} characters")
    return told


def _matching(pattern: re.Pattern[str], told: Any) -> str:
    if not pattern.fullmatch(_text(told, CHARACTERS)):
        raise ValueError("a digest or a file name of another form")
    return str(told)

"""The checks of KernelBench and of TritonBench-G by their documented rules, to stand beside evo's in `bench_checker`.

KernelBench (github.com/ScalingIntelligence/KernelBench at 423217d: `run_and_check_correctness` and
`get_tolerance_for_precision` in src/kernelbench/eval.py; five trials is the default of its scripts):

    Inputs are drawn five times, from seeds that follow from 42.  Each time the result must have the reference's shape,
    and `torch.allclose` must hold with atol = rtol = 1e-4 for float32, 1e-2 for float16 and bfloat16.  An exception
    is a failure.  There is one size, the problem's own.

Here the inputs are those of evo's task at its first size: normal numbers, with parameters that are not constant.
KernelBench draws most of them from 0 to 1.  A task with a seed kernel as the reference is compared with that one.

TritonBench-G (github.com/thunlp/TritonBench at 603e28a: EVAL/eval_G/0_call_acc.py and 1_exe_acc.py):

    The kernels and the tests of a file run as one script.  It must end with exit code 0, and print what the original
    prints.  Nothing else is compared, random numbers have no seed, and 177 of the 184 tests print nothing.

`tests` is what such tests could say: random numbers have a seed, and all tensors in their result `result_gold` must
agree with the original's, by `torch.allclose` with the tolerances of KernelBench.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

KERNELBENCH, TRITONBENCH, TESTS = "kernelbench", "tritonbench", "tests"
RULES = (KERNELBENCH, TRITONBENCH, TESTS)
TRIALS, SEED = 5, 42
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
RESULT = "result_gold"


class RefusedByPeer(Exception):
    """A rule refuses the kernel; the message says why."""


def seeds() -> list[int]:
    """Returns KernelBench's seeds of the trials."""
    import torch

    torch.manual_seed(SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(TRIALS)]


def compare(expected: Any, got: Any) -> None:
    """Raises RefusedByPeer unless a tensor has the other's shape and is close to it, by KernelBench's tolerances."""
    import torch

    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        raise RefusedByPeer(f"expected shape {tuple(expected.shape)}, got {getattr(got, 'shape', type(got).__name__)}")
    if got.dtype != expected.dtype:
        raise RefusedByPeer(f"expected {expected.dtype}, got {got.dtype}")  # allclose raises an error
    tolerance = TOLERANCES.get(str(expected.dtype).removeprefix("torch."), TOLERANCES["float32"])
    if expected.is_floating_point():
        close = torch.allclose(expected, got, atol=tolerance, rtol=tolerance)
    else:
        close = torch.equal(expected, got)
    if not close:
        raise RefusedByPeer("the values differ")


def kernelbench(
    draw: Callable[[int], Sequence[Any]], reference: Callable[..., Any], kernel: Callable[..., Any]
) -> None:
    """Raises RefusedByPeer unless the kernel passes all trials.

    draw: inputs from a seed; reference, kernel: return the outputs, written arguments included, and may write to them.
    """
    for seed in seeds():
        expected, got = reference(*draw(seed)), kernel(*draw(seed))
        if len(got) != len(expected):
            raise RefusedByPeer(f"expected {len(expected)} outputs, got {len(got)}")
        for one, other in zip(expected, got, strict=True):
            compare(one, other)


class TestScripts:
    """Runs kernels with the tests of their file, in this process; what the original gives is kept for the next."""

    __test__ = False  # no test of pytest's

    def __init__(self) -> None:
        self._original: dict[tuple[str, bool], tuple[str, Any]] = {}

    def check(self, original: str, source: str, tests: str, *, values: bool) -> None:
        """Raises RefusedByPeer by TritonBench's rule, or with `values` by what the tests return.

        Errors are the kernel's.
        """
        key = original + tests, values
        if key not in self._original:
            self._original[key] = _run(original, tests, SEED if values else None)
        printed, result = self._original[key]
        now, found = _run(source, tests, SEED if values else None)
        if not values:
            if now != printed:
                raise RefusedByPeer("it prints something else than the original")
            return
        expected, got = list(_tensors(result)), list(_tensors(found))
        if [name for name, _ in expected] != [name for name, _ in got]:
            raise RefusedByPeer(f"expected {len(expected)} tensors of the tests, got {len(got)}")
        for (name, one), (_, other) in zip(expected, got, strict=True):
            try:
                compare(one, other)
            except RefusedByPeer as error:
                raise RefusedByPeer(f"{name}: {error}") from None


def _run(kernels: str, tests: str, seed: int | None) -> tuple[str, Any]:
    """Returns what a script prints, and its `result_gold`.  Raises what it raises."""
    import torch

    if seed is not None:
        torch.manual_seed(seed)
    printed, names = io.StringIO(), {}
    with tempfile.TemporaryDirectory(prefix="evo-script-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(f"{kernels}\n{tests}", encoding="utf-8")
        try:
            with contextlib.redirect_stdout(printed):
                names = runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RefusedByPeer(f"exit code {end.code}") from None
    return printed.getvalue(), names.get(RESULT)


def _tensors(result: Any, name: str = "result") -> Iterator[tuple[str, Any]]:
    """Yields the tensors in nested results, by their path."""
    import torch

    if isinstance(result, torch.Tensor):
        yield name, result.detach()
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _tensors(value, f"{name}[{key!r}]")
    elif isinstance(result, (tuple, list)):
        for number, value in enumerate(result):
            yield from _tensors(value, f"{name}[{number}]")

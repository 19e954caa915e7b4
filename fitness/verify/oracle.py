"""Draws fresh inputs and computes expected outputs in float64, and how far from them a candidate may be.

The budget of an output is relative to what the reference itself achieves at the task's precision:

error(candidate) <= c * max(error(reference), rounding)

on the root mean square and on the largest error, both measured against the reference in float64.  `rounding` is the
error of rounding the exact result to the output's dtype.  Its root mean square is ROUNDING_RMS unit roundoffs of the
output's root mean square.  Its largest value is one unit roundoff of the largest output.

Nothing here depends on the candidate; expected values never leave the process that compares.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evo.core.records import Case
from fitness.cuda.norms import Norms, norms
from fitness.frontend.memory import laid_out_as
from fitness.tasks.task import Task, run_reference

# Root mean square of the relative error of rounding to nearest, in unit roundoffs: the absolute error is uniform within
# half a unit in the last place (variance 1/3), and 1/significand^2 averages 3/(8 ln 2) over log-uniform ones in [1, 2).
ROUNDING_RMS = math.sqrt(1 / (8 * math.log(2)))

COARSE = 2.0**-20  # formats with larger steps are 16-bit ones or TensorFloat-32: computed with in a wider format


def slack(dtype: torch.dtype) -> float:
    """Returns `c`: how many times the error of the reference a candidate may have.

    4 for 16-bit and narrower outputs.  They are computed in float32 and rounded once, so a right kernel stays near 1.
    The error of the next narrower format (bfloat16 for float16: 8 times) must fail.

    64 for float32 and float64.  The computation has no wider format to lean on: the order of summation and approximate
    functions count.  The next narrower formats (TensorFloat-32, float16: 2^13 times) are far away.

    Measured on all built-in tasks, normal inputs, under the interpreter and on an H200: right kernels take at most 0.31
    (float16) and 0.07 (float32) of the budget. bfloat16 takes 1.9 times that of float16 or more.  TensorFloat-32 and
    float16 take seven times that of float32 or more.
    """
    return 4.0 if dtype.itemsize <= 2 else 64.0


# --- inputs ----------------------------------------------------------------------------------------------------------

Stress = Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]


def stress_scale(dtype: torch.dtype) -> float:
    """Returns how far `large` and `tiny` go: products of two float16 values must stay within its five decades."""
    return 16.0 if dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2) else 1e4


def _large(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    return x * stress_scale(x.dtype)


def _tiny(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    """Returns x with small values; the first row is zero, so what is divided by a row's size needs its epsilon."""
    x = x / stress_scale(x.dtype)
    if x.dim() > 1 and x.shape[0] > 1:
        x.select(0, 0).zero_()
    return x


def _negated(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    """Negates every other floating input, so that the sign of a product changes too."""
    return -x if position % 2 == 0 else x


def _heavy(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    """Multiplies by cubed normal numbers of unit variance: a few values far above the rest."""
    normal = torch.randn(x.shape, generator=generator, device=x.device)
    return (x.float() * normal**3 / math.sqrt(15)).to(x.dtype)


def _last_tile(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    """Makes the last row and column (masks go wrong there) and about eight random elements eight times as large."""
    chosen = _few(x, generator)
    for dim in range(max(x.dim() - 2, 0), x.dim()):
        chosen.select(dim, -1).fill_(True)
    return _heavier(x, chosen)


def _with_few_large_values(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    return _heavier(x, _few(x, generator))


def _heavier(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return x * (7 * chosen.byte() + 1)


def _few(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns a mask of about eight random elements."""
    return torch.rand(x.shape, generator=generator, device=x.device) < 8 / x.numel()


def _negative(x: torch.Tensor, position: int, generator: torch.Generator) -> torch.Tensor:
    """Moves values far below zero, and every other floating input above it: nothing is near a neutral 0."""
    size = x.float().abs()
    away = (size + size.mean()) * stress_scale(x.dtype)
    return (-away if position % 2 == 0 else away).to(x.dtype)


_STRESS: dict[str, Stress] = {
    "normal": lambda x, position, generator: x,
    "large": _large,
    "tiny": _tiny,
    "negated": _negated,
    "heavy": _heavy,
    "last_tile": _last_tile,
    "negative": _negative,
}
VARIANTS = tuple(_STRESS)


def variants(task: Task) -> tuple[str, ...]:
    """Returns the variants of inputs `task` is verified on: all, or only "normal" if its values mean something."""
    return VARIANTS if task.stress else ("normal",)


def key_of(seed: str) -> int:
    """Returns the number that keys inputs, from a text that says what they are for."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6], "big")


def make_inputs(
    task: Task, case: Case, seed: int, variant: str = "normal", *, device: torch.device | str = "cpu"
) -> tuple[Any, ...]:
    """Returns arguments of the entry at `case.axes` (pass `case.on_cpu()` for the small size), tensors on `device`.

    Same (seed, case, variant) and kind of device, same values, in every process.  Variants change floating tensors
    only: index tensors and plain numbers stay valid.
    """
    if variant not in _STRESS:
        raise ValueError(f"unknown variant {variant!r}; expected one of: {', '.join(VARIANTS)}")
    key = json.dumps([seed, case.name, sorted(case.axes.items()), case.dtype, variant])
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1  # a generator takes 63 bits
    generator = torch.Generator(device).manual_seed(number)
    return _all_stressed(task.inputs(case, generator), _STRESS[variant], generator)


def with_few_changed(task: Task, arguments: Sequence[Any], generator: torch.Generator) -> tuple[Any, ...] | None:
    """Returns `arguments` with about eight random elements of each floating tensor eight times as large.

    A kernel that looks at some of their elements cannot tell them from the old ones.  None if the values mean
    something, or no argument is floating.
    """
    floating = any(isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel() for a in arguments)
    return _all_stressed(arguments, _with_few_large_values, generator) if task.stress and floating else None


def _all_stressed(arguments: Sequence[Any], stress: Stress, generator: torch.Generator) -> tuple[Any, ...]:
    found = list(arguments)
    floating = [i for i, a in enumerate(found) if isinstance(a, torch.Tensor) and a.is_floating_point()]
    for position, i in enumerate(floating):
        if found[i].numel():
            found[i] = _stressed(found[i], stress, position, generator)
    return tuple(found)


def _stressed(x: torch.Tensor, stress: Stress, position: int, generator: torch.Generator) -> torch.Tensor:
    """Returns a stressed `x` with its strides: elements that share their memory (`expand`) are one."""
    once = x
    for dim, stride in enumerate(x.stride()):
        once = once if stride else once.narrow(dim, 0, 1)
    return laid_out_as(x, stress(once, position, generator).expand(x.shape))


# --- expectation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorBudget:
    """Largest allowed errors of one floating output, absolute."""

    rms: float
    max: float


@dataclass(frozen=True)
class Expected:
    """What a right candidate returns: outputs in float64 (exact if the output is integer or bool).

    One item per output in each tuple: returned tensors in order, then written arguments.  `budgets` holds None for
    outputs that are compared exactly.
    """

    structure: str
    outputs: tuple[torch.Tensor, ...]
    dtypes: tuple[torch.dtype, ...]
    strides: tuple[tuple[int, ...], ...]
    budgets: tuple[ErrorBudget | None, ...]
    written: tuple[str, ...] = ()  # names of the written arguments among the outputs, which are the last ones
    # If the reference is the seed: outputs with elements that are not finite, or that another right kernel may
    # round to infinity.
    partial: tuple[bool, ...] = ()
    # number -> outputs of the reference at the task's precision, on inputs that differ by rounding; None without one
    again: Callable[[int], Sequence[torch.Tensor]] | None = field(default=None, compare=False)

    def label(self, index: int) -> str:
        """Returns what a message calls an output: a written argument by its name."""
        returned = len(self.outputs) - len(self.written)
        if index >= returned:
            return f"output {self.written[index - returned]!r}"
        return f"output {index}" if len(self.outputs) > 1 else "output"

    @property
    def infinite(self) -> bool:
        """Returns whether an output of a seed kernel holds infinities.

        They are the same however far beyond the format the values are.
        """
        return any(bool(torch.isinf(o).any()) for o, p in zip(self.outputs, self.partial, strict=False) if p)

    @property
    def rms_budget(self) -> float:
        """Returns the budget of the first output that is not compared exactly; 0 if all are."""
        return next((b.rms for b in self.budgets if b is not None), 0.0)


def expect(
    task: Task, case: Case, seed: int, variant: str = "normal", *, device: torch.device | str = "cpu"
) -> Expected | None:
    """Returns the expectation for `make_inputs(task, case, seed, variant, device=device)`, computed on that device.

    None if nothing can be compared: the float64 result is not finite or does not fit the output's dtype, or the
    reference overflows at the task's own precision.
    """
    draw = functools.partial(make_inputs, task, case, seed, variant, device=device)
    return expect_for(task, case, variant, draw(), draw)


def expect_for(
    task: Task, case: Case, variant: str, arguments: Sequence[Any], draw: Callable[[], Sequence[Any]]
) -> Expected | None:
    """Returns `expect` for given arguments of `make_inputs`.  They are used up: the reference may write to them.

    draw: returns them once more.
    """
    structure, outputs, own = computed(task, case, variant, arguments)
    sizes = [norms(e, o) if o.is_floating_point() and o.numel() else None for e, o in zip(outputs, own, strict=True)]
    if not all(size is None or usable(size, o.dtype) for size, o in zip(sizes, own, strict=True)):
        return None
    return Expected(
        structure=structure,
        outputs=outputs,
        dtypes=tuple(o.dtype for o in own),
        strides=tuple(o.stride() for o in own),
        budgets=tuple(budget(size, o, task.tolerance) for size, o in zip(sizes, own, strict=True)),
        written=written_names(task, arguments),
        again=functools.partial(_own_on_moved, task, draw) if _can_move(arguments) else None,
    )


def _can_move(arguments: Sequence[Any]) -> bool:
    """Returns whether all floating arguments are wide: a step of a narrow format changes more than rounding does."""
    floating = [a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    return bool(floating) and all(a.dtype in (torch.float32, torch.float64) for a in floating)


def _own_on_moved(task: Task, draw: Callable[[], Sequence[Any]], number: int) -> list[torch.Tensor]:
    """Returns the reference's results at the task's precision, each floating input one step up or down."""
    moved = list(draw())
    for position, value in enumerate(moved):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            generator = torch.Generator(value.device).manual_seed(number * 64 + position)
            up = torch.rand(value.shape, generator=generator, device=value.device) < 0.5
            limit = torch.where(up, math.inf, -math.inf).to(value.dtype)
            moved[position] = laid_out_as(value, torch.nextafter(value, limit))
    return run_reference(task, moved, copy=False, where=f"task {task.name}, on inputs moved by rounding")[1]


def computed(
    task: Task, case: Case, variant: str, arguments: Sequence[Any]
) -> tuple[str, tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """Returns the structure of the reference's results, and these in float64 (if floating) and at the task's precision.

    The arguments are used up.
    """
    where = f"task {task.name}, case {case.name!r}, variant {variant}"
    _, exact = run_reference(task, arguments, double=True, where=where)
    structure, own = run_reference(task, arguments, copy=False, where=where)
    return structure, tuple(e.double() if o.is_floating_point() else o for e, o in zip(exact, own, strict=True)), own


def written_names(task: Task, arguments: Sequence[Any]) -> tuple[str, ...]:
    """Returns the names of the written arguments that are there, in the order of `run_reference`."""
    return tuple(n for n, i in zip(task.writes, task.written, strict=True) if arguments[i] is not None)


def usable(size: Norms, dtype: torch.dtype) -> bool:
    """Returns whether both are finite (only then is the difference), and the exact one in the range of the dtype."""
    return math.isfinite(size.error_largest) and size.largest <= torch.finfo(dtype).max  # false for NaN


def budget(size: Norms | None, own: torch.Tensor, tolerance: float | None, step: float = 0.0) -> ErrorBudget | None:
    """Returns the budget of an output, None if there is nothing to measure.

    size: of the exact output and of the reference's own error; step: relative spacing of the format used to compute, if
    it is coarser than the output's.
    """
    if not own.is_floating_point():
        return None
    if size is None:
        return ErrorBudget(0.0, 0.0)
    info = torch.finfo(own.dtype)
    c = slack(torch.float16) if step > COARSE else slack(own.dtype)
    unit = max(info.eps, step) / 2
    spacing = info.smallest_normal * info.eps  # of subnormal numbers; relative errors below it mean nothing.
    return ErrorBudget(
        rms=max(c * max(size.error_rms, ROUNDING_RMS * unit * size.rms, spacing), (tolerance or 0.0) * size.rms),
        max=max(c * max(size.error_largest, unit * size.largest, spacing), (tolerance or 0.0) * size.largest),
    )

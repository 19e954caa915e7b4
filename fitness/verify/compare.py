"""Compares outputs with what is expected: their form, their values within a budget, or their bits.

Everything that checks outputs calls this module.  `compare` and `compare_values` measure errors against an expectation
of the oracle.  `same_bits` and `same_outputs` compare memory: NaN equals itself, and 0.0 is not -0.0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fitness.cuda.norms import norms
from fitness.cuda.own_kernels import compiled, launched, suits
from fitness.frontend.memory import POISONS
from fitness.frontend.plan import TensorRef
from fitness.verify.undetermined import Again, error_of_others

if TYPE_CHECKING:
    from fitness.verify.oracle import ErrorBudget, Expected

# `same_but_rounding`: results are the same within this share of the largest element, or within this much.
CLOSE, NOTHING = 1e-5, 1e-6

BLOCK = 2048  # words that one program compares at a time
SOURCE = """import triton
import triton.language as tl

@triton.jit
def differences(a, b, out, n, BLOCK: tl.constexpr):
    count = tl.zeros([BLOCK], tl.int32)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    for first in range(start, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        differs = tl.load(a + i, mask=i < n, other=0) != tl.load(b + i, mask=i < n, other=0)
        count |= differs.to(tl.int32)
    tl.store(out + tl.program_id(0), tl.max(count, 0).to(tl.float64))
"""

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# --- with an expectation ---------------------------------------------------------------------------------------------


def compare(
    expected: Expected,
    structure: str,
    outputs: Sequence[torch.Tensor],
    strides: Sequence[tuple[int, ...]] | None = None,
) -> tuple[float, str | None]:
    """Returns (largest error in units of its budget, None), or (above 1, what is wrong with which output).

    Form comes before values: structure, count, shapes, dtypes and, if given, strides must be those of the reference.
    NaN and infinity never pass.  A wrong form and a wrong integer count as infinitely far.
    """
    wrong = wrong_form(expected, structure, outputs, strides)
    if wrong is not None:
        return math.inf, wrong
    worst: tuple[float, str | None] = (0.0, None)
    for index, (exact, got, budget) in enumerate(zip(expected.outputs, outputs, expected.budgets, strict=True)):
        label = expected.label(index)
        if budget is not None and expected.partial and expected.partial[index]:
            exact, got = _defined(exact, got, budget)
        again = None if expected.again is None else functools.partial(_one_of, expected.again, index)
        ratio, message = compare_values(label, exact, got, budget, again)
        if ratio > worst[0]:
            worst = (ratio, message)
    return worst


def _one_of(again: Callable[[int], Sequence[torch.Tensor]], index: int, number: int) -> torch.Tensor:
    return again(number)[index]


def _defined(exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns both without the elements that are not compared.

    The reference does not define them, they are the same infinity, or only one side rounds them to infinity.
    """
    skipped = torch.isnan(exact) | (torch.isinf(exact) & (got.double() == exact)) | _at_the_edge(exact, got, budget.max)
    return torch.where(skipped, 0.0, exact), torch.where(skipped, 0.0, got.double()).to(got.dtype)


def _at_the_edge(exact: torch.Tensor, got: torch.Tensor, margin: float) -> torch.Tensor:
    """Returns a mask of elements at the edge of the format.

    One is infinite, and the other, of the same sign, lies within `margin` of the largest number of the format.  The
    mask is empty if the reference has fewer finite elements there.  Outputs that pass the edge have as many elements
    just below it as just beyond.  Outputs that are cut off there, or infinite for another reason, do not.
    """
    lowest = torch.finfo(got.dtype).max - margin
    value = got.double()
    below = torch.isfinite(exact) & (exact.abs() >= lowest)
    differs = (torch.isinf(exact) != torch.isinf(value)) & (exact.sign() == value.sign())
    differs &= (exact.abs() >= lowest) & (value.abs() >= lowest)
    within = lowest > 0 and int(differs.sum()) <= int(below.sum())
    return differs if within else torch.zeros_like(differs)


class HasForm(Protocol):
    """A tensor, or the description of one that is not read yet."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...


def wrong_form(
    expected: Expected,
    structure: str,
    outputs: Sequence[HasForm],
    strides: Sequence[tuple[int, ...]] | None,
) -> str | None:
    """Returns what is wrong with the form of outputs, None if nothing is."""
    if structure != expected.structure:
        return f"the entry must return {expected.structure!r}, got {structure!r}"
    if len(outputs) != len(expected.outputs):
        return f"expected {len(expected.outputs)} outputs (returned and written), got {len(outputs)}"
    for index, (exact, dtype, got) in enumerate(zip(expected.outputs, expected.dtypes, outputs, strict=True)):
        label = expected.label(index)
        if got.shape != exact.shape:
            return f"{label} must have shape {tuple(exact.shape)}, got {tuple(got.shape)}"
        if got.dtype != dtype:
            return f"{label} must be {dtype}, got {got.dtype}"
        if strides is not None and not _same_strides(got.shape, expected.strides[index], strides[index]):
            return f"{label} must have strides {expected.strides[index]}, got {tuple(strides[index])}"
    return None


def _same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    """Returns whether strides are the same, except those of dimensions with one element and of empty tensors."""
    return math.prod(shape) == 0 or (
        len(a) == len(b) and all(x == y for n, x, y in zip(shape, a, b, strict=True) if n > 1)
    )


def compare_values(
    label: str, exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget | None, again: Again | None = None
) -> tuple[float, str | None]:
    """Compares the values of one output, which a message calls `label`; returns what `compare` returns.

    again: executes the reference again, for elements that are not determined (`fitness.verify.undetermined`).
    """
    return _compare_exact(label, exact, got) if budget is None else _compare(label, exact, got, budget, again)


def _compare_exact(label: str, exact: torch.Tensor, got: torch.Tensor) -> tuple[float, str | None]:
    differs = exact != got
    count = int(differs.sum())
    if count == 0:
        return 0.0, None
    where = _position(differs)
    return math.inf, (
        f"{label} is wrong at {where}: expected {exact[where].item()}, got {got[where].item()}"
        f"{_unwritten(got[where])} ({count} of {exact.numel()} elements differ)"
    )


def _compare(
    label: str, exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget, again: Again | None
) -> tuple[float, str | None]:
    if not exact.numel():
        return 0.0, None
    size = norms(exact, got)
    rms, largest = size.error_rms, size.error_largest
    if not math.isfinite(largest):
        bad = ~torch.isfinite(got.double() - exact)
        where = _position(bad)
        return math.inf, (
            f"{label} is {got[where].item()}{_unwritten(got[where])} at {where}, expected {exact[where].item():.6g} "
            f"({int(bad.sum())} of {exact.numel()} elements are not finite)"
        )
    ratio = max(rms / budget.rms, largest / budget.max)
    if ratio <= 1:
        return ratio, None
    if again is not None:
        with suppress(torch.OutOfMemoryError):  # then it stays wrong
            if (others := error_of_others(exact, got, budget, again)) is not None:
                return others, None
    error = (got.double() - exact).abs()
    where = _position(error == error.max())
    return ratio, (
        f"{label} is wrong: worst at {where}, expected {exact[where].item():.9g}, "
        f"got {got[where].item():.9g}{_unwritten(got[where])}; "
        f"largest error {largest:.3g} (budget {budget.max:.3g}){_relative(largest, size.largest, 'largest value')}, "
        f"rms error {rms:.3g} (budget {budget.rms:.3g}){_relative(rms, size.rms, 'rms value')}"
    )


def _unwritten(element: torch.Tensor) -> str:
    """Returns a remark if an element of an output holds what its memory was filled with before the execution."""
    data = set(element.reshape(1).view(torch.uint8).tolist())
    fills = {poison.floating if element.is_floating_point() else poison.other for poison in POISONS}
    told = element.element_size() > 1 and len(data) == 1 and data <= fills
    return ", the fill of memory that nothing has written," if told else ""


def _relative(error: float, size: float, of: str) -> str:
    """Returns an error in the unit of the `tolerance` of a task."""
    return f", {error / size:.2g} of the {of}" if size else ""


def _position(mask: torch.Tensor) -> tuple[int, ...]:
    """Returns the index of the first true element."""
    return tuple(int(i) for i in mask.nonzero()[0])


def compare_elements(
    exact: torch.Tensor, got: torch.Tensor, budget: ErrorBudget | None, at: Sequence[Sequence[int]] | Any
) -> str | None:
    """Returns the place and size of the worst error of some elements, None if they are within the budget.

    exact, got: (n,), elements of one output; at: (n, dimensions), their indices in the output.
    """
    ratio, _ = compare_values("output", exact, got, budget)
    if ratio <= 1:
        return None
    if budget is None:
        worst = int((got != exact).nonzero()[0])
    else:
        error = (got.double() - exact).abs()
        worst = int(torch.where(torch.isfinite(error), error, math.inf).argmax())
    place = tuple(int(i) for i in at[worst])
    allowed = "" if budget is None else f" (largest error allowed {budget.max:.3g})"
    return f"{place}: expected {exact[worst].item():.9g}, got {got[worst].item():.9g}{allowed}"


def same_but_rounding(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two results of one shape are the same except for rounding.

    Used if nothing says how large an error may be: whether a function repeats its results, or ignores its inputs.
    """
    if not a.is_floating_point():
        return torch.equal(a, b)
    if a.dtype.itemsize == 1:  # PyTorch compares no float8.
        a, b = a.float(), b.float()
    largest = a[torch.isfinite(a)].abs().max().item() if bool(torch.isfinite(a).any()) else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=max(CLOSE * largest, NOTHING), equal_nan=True)


# --- bits ------------------------------------------------------------------------------------------------------------


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as integers: NaN compares equal to itself."""
    return tensor.view(_INTEGER_OF_SIZE[tensor.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors of one dtype have the same shape and are equal to the bit."""
    return not differing(a, b)()


def differing(a: torch.Tensor, b: torch.Tensor) -> Callable[[], bool]:
    """Enqueues a comparison of two tensors of one dtype; the returned function waits and says whether they differ."""
    one, other = words(a), words(b)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        one, other = bits(a), bits(b)
    if one.shape != other.shape:
        return lambda: True
    kernel = _kernel(one.device.index) if one.dtype == torch.int64 and suits(one, other) else None
    if kernel is None:
        differs = (one != other).any()
        return lambda: bool(differs)
    args = {"a": one.data_ptr(), "b": other.data_ptr(), "n": one.numel(), "BLOCK": BLOCK}
    count = launched(kernel, one.device, args, 1)
    return lambda: bool(count().any())


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as 64-bit integers if its size allows it; they are read several times faster."""
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.data_ptr() % 8 == 0:
        return tensor.reshape(-1).view(torch.int64)
    return bits(tensor)


def prepare(index: int) -> None:
    """Loads the kernel on CUDA device `index`, which takes tenths of a second."""
    _kernel(index)


@functools.cache
def _kernel(index: int) -> Any:
    """Returns the loaded kernel that looks for differences on CUDA device `index`; None for an unsupported GPU."""
    integers, out = (TensorRef(0, kind, (1,), (1,)) for kind in ("int64", "float64"))
    return compiled(SOURCE, "differences", {"a": integers, "b": integers, "out": out, "BLOCK": BLOCK}, index)


def same_where_defined(
    outputs: Sequence[torch.Tensor], first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]
) -> bool:
    """Returns whether the outputs have the plan's bits, but for elements that depend on the memory's old contents.

    A kernel that is its own reference may leave parts of its outputs unwritten. first, second: of the plan, in memory
    with different contents.  If a verified plan gives NaN, the reference does too.
    """
    if not same_form(outputs, first):
        return False
    for output, one, other in zip(outputs, first, second, strict=True):
        free = bits(one) != bits(other)
        if one.is_floating_point():
            free |= one.isnan()
        if not bool(((bits(output) == bits(one)) | free).all()):
            return False
    return True


def same_form(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Returns whether two lists of tensors have the same count, shapes and dtypes."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def same_outputs(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Returns whether two lists of tensors have the same form and are equal to the bit."""
    return same_form(first, second) and all(map(same_bits, first, second))

"""Counts what a program does while Triton's interpreter runs it, without memory behind the pointers.

Addresses are made up: buffer `b` starts at `(b + 1) << BUFFER_SHIFT`.  Loads return zeros, except from buffers with
given contents; stores have no effect.  Work that takes time but changes no count is left out.  Operations on blocks of
one value are done on that value, and matrix products return their accumulator.  Long loops run a few iterations and are
extrapolated.  Nothing depends on the clock, so equal programs give equal counts.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction

from fitness.estimate.launch_trace import BUFFER_SHIFT, ELEMENTS_PER_COST
from fitness.interpreter.blocks import stretched
from fitness.interpreter.interpreter import Interpreter, Program
from fitness.interpreter.numerics import numpy_dtype
from fitness.interpreter.operations import Builder
from fitness.interpreter.spans import SECTOR, Spans

LOOP_COST = 150.0  # cost after which the rest of a loop is extrapolated.
LOOP_ITERATIONS = 4  # iterations that run in any case before that.
BRANCHES_COST = 2500.0  # the LOOP_COST of a loop that branches: a flattened one stores in one of many iterations.
PROGRAM_COST = 6000.0  # cost after which a program is cut off (a loop that never ends on zeros).
SPANS_KEPT = 1 << 18  # intervals of an extrapolated loop; of more, its footprint keeps only a part.

# Classes of elementwise operations, by their names in Triton's builder (fcmp* and icmp* come in addition).  `_refined`
# divides "float" and "integer" further by dtype and use.
_CLASSES = {
    "float": "fneg fabs fma minimumf maximumf minnumf maxnumf floor ceil",
    "product": "fmul",
    "sum": "fadd fsub",
    "integer": "add sub and or xor shl lshr ashr neg iabs minsi minui maxsi maxui int_cast",
    "integer_product": "mul umulhi",
    "address": "addptr",
    "integer_division": "sdiv udiv srem urem",
    "select": "select",
    "convert": "si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext fp_trunc fp_to_fp",
    "div": "fdiv",
    "div_rn": "precise_divf",
    "sqrt_rn": "precise_sqrt",
}
_CLASS_OF = {operation: kind for kind, operations in _CLASSES.items() for operation in operations.split()}
_SPECIAL = ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "frem")  # each a class of its own.
# Moves between layouts or nothing at all; they do not wait for loaded values.
_VIEWS = ("splat", "unsplat", "expand_dims", "broadcast", "reshape", "trans", "bitcast", "int_to_ptr")
_WAITS = ("join", "split", "cat", "gather", "histogram")
_MADE_UP = ("of_atomic", "made_up")  # marks of values that are not the real ones.

Key = tuple[Any, ...]


class CutOff(Exception):
    """The program has taken more than PROGRAM_COST."""


class Counter:
    """The counts of one program.

    counts, by key:
        ("ops", class, elements): executions of an elementwise operation on a block with this number of elements.
        ("access", kind, elements, itemsize, vector): executions of a load, store or atomic.  `vector` is the widest
            access (bytes) that alignment and contiguity allow a thread.
        ("bytes" | "sectors", kind, buffer): bytes that the program requests, and bytes in the sectors that hold them.
            Each execution counts.
        ("again", kind, buffer): the part of the sectors that the previous access of that kind to that buffer requested
            too.
        ("reduce", elements, results), ("scan", elements, results): executions.
        ("dot", m, n, k, dtype of a, dtype of b, precision): executions.
        ("rounds", kind, place): how often the program waits for loads.  `kind` is what needs them: "dot", "barrier" for
            a reduction, else "masked" or "plain" by how they were loaded.  `place` is "straight", "loop", or "stages N"
            in `tl.range(num_stages=N)`.
    footprint: (kind, buffer, spans) of every access in order; no spans if a mask leaves out everything.
    cut_off: the program was stopped.
    uneven: a loop branched without a period, so the rest of it is unknown.
    met: a branch depended on the result of an atomic, which is made up here.
    astray: a store was outside of all buffers, and its address does not depend on made-up values.
    reads_astray: a load was, too, and no branch before depended on made-up values.
    doubtful: a branch or a loop bound depended on made-up values, so the program may do other work.
    guided: a branch, or the mask of a load, depended on loaded values.
    stored: (buffer, spans, whether the address is real) of every executed store.
    """

    def __init__(
        self, buffer_bytes: Mapping[int, np.ndarray], buffer_sizes: Sequence[int] = (), *, brief: bool = False
    ) -> None:
        """
        buffer_bytes: the bytes (uint8) of buffers whose values matter.
        buffer_sizes: bytes of all buffers; without them no access counts as outside of all buffers.
        brief: only the footprint is needed, so loops run fewer iterations.
        """
        self._buffer_bytes, self._buffer_sizes = buffer_bytes, buffer_sizes
        self._loop_cost, self._loop_iterations = (0.0, 3) if brief else (LOOP_COST, LOOP_ITERATIONS)
        self.counts: dict[Key, float] = defaultdict(float)
        self.footprint: list[tuple[str, int, Spans]] = []
        self._last: dict[tuple[str, int], Spans] = {}
        self.cost = 0.0
        self.cut_off = False
        self._round = 0  # Loads are issued in rounds; between them the program waits.
        self._loads = self._masked = False  # Whether the round has loads, and loads with a mask.
        self._decisions: list[bool] = []  # Outcomes of branches on scalars, in order.
        self.met = self.astray = self.reads_astray = False
        self.guided = False
        self.doubtful = False
        self.stored: list[tuple[int, Spans, bool]] = []
        self.uneven = False
        self._place = "straight"

    def finish(self) -> None:
        """Counts the last round of loads; the caller calls it when the program has ended."""
        self._end_round("plain")

    def _end_round(self, kind: str) -> None:
        if self._loads:
            kind = "masked" if self._masked and kind == "plain" else kind
            self.counts["rounds", kind, self._place] += 1
            self._round, self._loads, self._masked = self._round + 1, False, False

    def is_awaited(self, value: Any) -> bool:
        """Whether `value` comes from a load that the program has not waited for yet."""
        return self._loads and getattr(value, "round", -1) == self._round

    # --- operations --------------------------------------------------------------------------------------------------

    def spend(self, elements: int = 0) -> None:
        """Adds the cost of an operation on that many elements; raises CutOff if the program has taken too much."""
        self.cost += 1 + elements / ELEMENTS_PER_COST
        if self.cost > PROGRAM_COST:
            self.cut_off = True
            raise CutOff

    def wait(self, *values: Any, kind: str = "plain") -> None:
        """Ends the round of loads if one of `values` is still being loaded: the program needs them now.

        Elementwise operations do not wait, because the compiler first issues the loads that do not depend on them.
        """
        if any(self.is_awaited(v) for v in values):
            self._end_round(kind)

    def operation(self, kind: str, result: TensorHandle, inputs: list[TensorHandle], computed: int) -> None:
        """Counts an elementwise operation.  A block of one value that is not loaded is a scalar to the compiler."""
        self.spend(computed)
        loaded = any(getattr(i, "loaded", False) for i in inputs)
        self.counts["ops", kind, result.data.size if loaded else computed] += 1
        if loaded:
            result.loaded = True  # type: ignore[attr-defined]
        _inherit(result, inputs)
        if any(self.is_awaited(i) for i in inputs):
            result.round = self._round  # type: ignore[attr-defined]

    def reduction(self, kind: str, elements: int, results: int) -> None:
        """Counts a reduction or scan with one addition per element; operations of the combine function count too."""
        self.spend(elements)
        self.counts[kind, elements, results] += 1
        self.counts["ops", "float", elements] += 1

    def dot(self, result: TensorHandle, k: int, a: str, b: str, precision: str) -> None:
        """Counts matrix products.  k: columns of the first matrix.  a, b: dtypes of the operands."""
        self.spend()
        *batch, m, n = result.data.shape
        self.counts["dot", m, n, k, a, b, precision] += math.prod(batch)

    # --- memory ------------------------------------------------------------------------------------------------------

    def access(
        self, kind: str, pointers: TensorHandle, mask: np.ndarray | None, *, masked_by_data: bool = False
    ) -> np.ndarray:
        """Counts one access; returns the addresses that the mask selects (flat unless it selects all).

        masked_by_data: whether the mask depends on made-up values.
        """
        addresses = np.asarray(pointers.data)
        if mask is not None:
            mask = mask if mask.shape == addresses.shape else np.broadcast_to(mask, addresses.shape)
            addresses = addresses if mask.all() else addresses[mask]
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        self.spend(2 * addresses.size)
        if addresses.size == 0:
            self.counts["access", kind, pointers.data.size, itemsize, itemsize] += 1
            if pointers.data.size:  # Every iteration of a loop must have the same number of footprints.
                self.footprint.append((kind, _buffer_of(pointers), Spans.union([])))
            return addresses
        spans = Spans.of_elements(addresses, itemsize)
        vector = max(itemsize, spans.alignment())
        buffer = (int(spans.starts[0]) >> BUFFER_SHIFT) - 1
        self.counts["access", kind, pointers.data.size, itemsize, vector] += 1
        self.counts["bytes", kind, buffer] += addresses.size * itemsize
        self._count_sectors(kind, buffer, spans)
        self.footprint.append((kind, buffer, spans))
        real = not getattr(pointers, "made_up", False)
        if kind == "store":
            self.stored.append((buffer, spans, real))
        if real and self._buffer_sizes and not self._holds(buffer, int(spans.ends[-1])):
            if kind != "load":
                self.astray = True
            elif not (masked_by_data or self.doubtful):
                self.reads_astray = True
        return addresses

    def _holds(self, buffer: int, end: int) -> bool:
        """Whether the buffer exists and extends at least to the address `end`."""
        sizes = self._buffer_sizes
        return 0 <= buffer < len(sizes) and end <= ((buffer + 1) << BUFFER_SHIFT) + sizes[buffer]

    def _count_sectors(self, kind: str, buffer: int, spans: Spans) -> None:
        sectors = spans.blocks(SECTOR)
        self.counts["sectors", kind, buffer] += sectors.size
        before = self._last.get((kind, buffer))
        # Successive accesses seldom request the same whole sectors, but a loop along the short side requests parts.
        if before is not None and sectors.size > spans.size:
            again = sectors.size + before.size - Spans.union((sectors, before)).size
            self.counts["again", kind, buffer] += again
        self._last[kind, buffer] = sectors

    def load(
        self,
        pointers: TensorHandle,
        mask: np.ndarray | None,
        other: TensorHandle | None,
        *,
        masked_by_data: bool = False,
    ) -> TensorHandle:
        """Counts a load; returns the buffer's contents if they are given, else zeros."""
        self.access("load", pointers, mask, masked_by_data=masked_by_data)
        self._loads, self._masked = True, self._masked or mask is not None
        dtype = pointers.get_element_ty()
        values = self._values(pointers, mask, numpy_dtype(dtype))
        if other is not None and mask is not None and not np.all(mask) and np.any(other.data):
            values = np.where(mask, values, other.data).astype(values.dtype)
        result = TensorHandle(values, dtype)
        result.round = self._round  # type: ignore[attr-defined]
        result.loaded = True  # type: ignore[attr-defined]
        result.made_up = getattr(pointers, "made_up", False) or not self._has_values(pointers, dtype)  # type: ignore[attr-defined]
        return result

    def _has_values(self, pointers: TensorHandle, dtype: tl.dtype) -> bool:
        """Whether a load there returns the real values."""
        return _buffer_of(pointers) in self._buffer_bytes and numpy_dtype(dtype).kind != "f"

    def _values(self, pointers: TensorHandle, mask: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
        zeros = stretched(np.zeros(1, dtype), pointers.data.shape)
        buffer = _buffer_of(pointers)
        if buffer not in self._buffer_bytes or dtype.kind == "f":
            return zeros
        data = self._buffer_bytes[buffer]
        data = data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)
        index = (pointers.data.astype(np.int64) - ((buffer + 1) << BUFFER_SHIFT)) // dtype.itemsize
        inside = (index >= 0) & (index < data.size)
        if mask is not None:
            inside &= mask
        return np.where(inside, data[np.where(inside, index, 0)], zeros) if data.size else zeros

    def atomic(self, pointers: TensorHandle, value: TensorHandle, mask: np.ndarray | None) -> TensorHandle:
        """Counts an atomic; returns zeros, as a loaded value."""
        self.access("atomic", pointers, mask)
        zeros = np.broadcast_to(np.zeros((), value.data.dtype), value.data.shape)
        result = TensorHandle(zeros, value.dtype.scalar)
        self._loads = True
        result.round, result.loaded = self._round, True  # type: ignore[attr-defined]
        result.of_atomic = result.made_up = True  # type: ignore[attr-defined]
        return result

    # --- loops -------------------------------------------------------------------------------------------------------

    def loop(self, values: Iterator[Any], count: int, stages: int) -> Iterator[Any]:
        """The first values of a loop of `count` iterations; the rest of a long one is extrapolated."""
        around, first, cost, marks = self._place, dict(self.counts), self.cost, [len(self.footprint)]
        ways: list[tuple[bool, ...]] = []  # The outcomes of branches, by iteration.
        for done, value in enumerate(values):
            if done == 1:  # The first iteration waits for loads before the loop.
                first = dict(self.counts)
            if done >= self._loop_iterations and self.cost - cost > self._loop_cost:
                period = self._period(ways[1:], self.cost - cost > BRANCHES_COST)
                if period:
                    self._extrapolate(first, marks, done - 1, count - done, period)
                    break
            self._place, decided = f"stages {stages}" if stages else "loop", len(self._decisions)
            yield value
            self._end_round("plain")
            marks.append(len(self.footprint))
            ways.append(tuple(self._decisions[decided:]))
        self._place = around

    def decide(self, outcome: bool, condition: TensorHandle) -> None:
        """Notes the outcome of a branch on a scalar."""
        self._decisions.append(outcome)
        self.met |= getattr(condition, "of_atomic", False)
        self.doubtful |= getattr(condition, "made_up", False)
        self.guided |= getattr(condition, "loaded", False)

    def _period(self, ways: Sequence[tuple[bool, ...]], enough: bool) -> int:
        """After how many iterations a loop repeats itself; 0 if it should run on.

        enough: whether it ran long enough; without a period, 1 is returned then.
        """
        if not any(ways):  # There are no branches.
            return 1
        changed = len(set(ways)) > 1
        for period in range(2, len(ways) // 2 + 1) if changed else ():
            if len(ways) % period == 0 and ways[period:] == ways[:-period]:
                return period
        self.uneven |= enough and changed
        return int(enough)

    def _extrapolate(self, before: dict[Key, float], marks: list[int], done: int, left: int, period: int) -> None:
        """Counts `left` more iterations like the `done` ones since `before`, each like the one a period earlier."""
        for key, count in self.counts.items():
            self.counts[key] = count + (count - before.get(key, 0)) * left / done
        for phase in range(min(period, left)):
            at = len(marks) - 1 - period + phase
            previous, last = (self.footprint[marks[i] : marks[i + 1]] for i in (at - period, at))
            if len(previous) != len(last):  # Iterations differ, so the bytes of the rest stay unknown.
                continue
            again = (left - phase - 1) // period + 1
            for (kind, buffer, old), (_, _, new) in zip(previous, last, strict=True):
                times = min(again, max(1, SPANS_KEPT // max(1, new.starts.size)))
                rest = Spans.union([])  # Unknown, but a loop around this one expects an entry for each access.
                if new.starts.size and old.starts.size == new.starts.size:
                    shift = int(new.starts[0] - old.starts[0])
                    rest = new.repeated(shift, times) if shift else new
                self.footprint.append((kind, buffer, rest))


def _buffer_of(pointers: TensorHandle) -> int:
    return (int(pointers.data.flat[0]) >> BUFFER_SHIFT) - 1


def _inherit(result: Any, inputs: Iterable[Any], marks: Sequence[str] = _MADE_UP) -> None:
    """Gives the result of an operation the marks of its inputs."""
    for name in marks:
        if any(getattr(i, name, False) for i in inputs):
            setattr(result, name, True)


def _integer(value: Any) -> int:
    """A loop bound: a number, a constexpr or a tensor of one element."""
    return int(value.value) if isinstance(value, tl.constexpr) else value.__index__()


# --- the counting interpreter ----------------------------------------------------------------------------------------


class CountingInterpreter(Interpreter):
    """Runs programs of kernels without memory behind the pointers, and counts what each does."""

    builder: _CountingBuilder

    def __init__(self) -> None:
        super().__init__(_CountingBuilder())

    def __enter__(self) -> CountingInterpreter:
        super().__enter__()
        return self

    def use_buffers(self, buffer_bytes: Mapping[int, np.ndarray], buffer_sizes: Sequence[int]) -> None:
        """Sets the buffers of the next programs.

        buffer_bytes: bytes (uint8) of the buffers whose values matter.  buffer_sizes: bytes of all buffers.
        """
        self.builder.buffer_bytes, self.builder.buffer_sizes = buffer_bytes, buffer_sizes

    def count(
        self, kernel: JITFunction, args: Mapping[str, Any], grid: Program, program: Program, *, brief: bool = False
    ) -> Counter:
        """The counts of `program`.

        args: every parameter by name, with a `Pointer` for each tensor.
        brief: only the footprint is needed.
        """
        counter = self.builder.counter = Counter(self.builder.buffer_bytes, self.builder.buffer_sizes, brief=brief)
        with contextlib.suppress(CutOff):
            self.launch(kernel, args, grid, [program])
        counter.finish()
        return counter

    def _patches(self) -> Iterator[tuple[Any, str, Any]]:
        counted = {
            "range": self._loop,
            "static_range": self._loop,
            "reduce": lambda reduce: self._reduction("reduce", reduce),
            "associative_scan": lambda scan: self._reduction("scan", scan),
            # Hints need not be true of made-up values.
            "multiple_of": lambda _: lambda block, values: block,
            "max_constancy": lambda _: lambda block, values: block,
        }
        for owner, name, value in super()._patches():
            yield owner, name, counted[name](value) if owner in (tl, tl.core) and name in counted else value

    def _space(self, original: dict[str, Any]) -> dict[str, Any]:
        space = super()._space(original)
        space["__builtins__"]["range"] = tl.range  # the patched one.
        truth = space["__truth"]

        def decided(condition: Any) -> Any:
            condition = truth(condition)
            if isinstance(condition, tl.tensor):
                self._counter.decide(bool(condition), condition.handle)
            return condition

        space["__truth"] = decided
        return space

    @property
    def _counter(self) -> Counter:
        return self.builder.counter

    def _loop(self, values: Callable[..., Any]) -> Callable[..., Any]:
        """A counting version of `values`, which is `range`, `tl.range` or `tl.static_range`."""

        def counted(start: Any, stop: Any = None, step: Any = None, num_stages: Any = None, **options: Any) -> Any:
            bounds = (start, 1 if stop is None else stop, 1 if step is None else step)
            numbers = [_integer(b) for b in bounds]
            count = len(range(numbers[0]) if stop is None else range(*numbers))
            stages = 0 if num_stages is None else _integer(num_stages)
            self._counter.doubtful |= any(getattr(getattr(b, "handle", None), "made_up", False) for b in bounds)
            return self._counter.loop(iter(values(start, stop, bounds[2], **options)), count, stages)

        return counted

    def _reduction(self, kind: str, reduce: Callable[..., Any]) -> Callable[..., Any]:
        def counted(values: Any, *args: Any, **kwargs: Any) -> Any:
            counter = self._counter
            inputs = [v.handle for v in (values if isinstance(values, (tuple, tl.tuple)) else (values,))]
            counter.wait(*inputs, kind="barrier")
            results = reduce(values, *args, **kwargs)
            outputs = [r.handle for r in (results if isinstance(results, (tuple, tl.tuple)) else (results,))]
            counter.reduction(kind, inputs[0].data.size, outputs[0].data.size)
            for output in outputs:
                output.loaded = True
                _inherit(output, inputs)
            return results

        return counted


class Pointer(torch.Tensor):
    """A tensor that has only a dtype and an address for the interpreter."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    address: int

    @staticmethod
    def to(buffer: int, byte: int, dtype: torch.dtype) -> Pointer:  # type: ignore[override]
        """A pointer to a byte of a buffer."""
        pointer = torch.empty(0, dtype=dtype).as_subclass(Pointer)
        pointer.address = ((buffer + 1) << BUFFER_SHIFT) + byte
        return pointer

    def data_ptr(self) -> int:
        return self.address


# --- the builder's methods -------------------------------------------------------------------------------------------


class _CountingBuilder(Builder):
    """The interpreter's operations, each counted before it is executed."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer_bytes: Mapping[int, np.ndarray] = {}
        self.buffer_sizes: Sequence[int] = ()
        self.counter = Counter(self.buffer_bytes)
        for name in [n for n in dir(type(self)) if n.startswith("create_")]:
            operation, method = name.removeprefix("create_"), getattr(self, name)
            if operation in _VIEWS:
                setattr(self, name, self._view(method))
            elif operation in _WAITS:
                setattr(self, name, self._waiting(method))
            elif (kind := _class_of(operation)) is not None:
                setattr(self, name, self._elementwise(method, kind))

    def _elementwise(self, method: Callable, kind: str) -> Callable:
        def create(*args: Any, **kwargs: Any) -> TensorHandle:
            inputs = [a for a in args if isinstance(a, TensorHandle)]
            result, computed = _on_one_value(method, args, kwargs, inputs)
            self.counter.operation(_refined(kind, result, inputs), result, inputs, computed)
            return result

        return create

    def _view(self, method: Callable) -> Callable:
        def create(*args: Any, **kwargs: Any) -> TensorHandle:
            self.counter.spend()
            source = next(a for a in args if isinstance(a, TensorHandle))
            result = method(*args, **kwargs)
            for name in ("round", "loaded", "product", *_MADE_UP):
                if hasattr(source, name):
                    setattr(result, name, getattr(source, name))
            return result

        return create

    def _waiting(self, method: Callable) -> Callable:
        def create(*args: Any, **kwargs: Any) -> Any:
            inputs = [a for a in args if isinstance(a, TensorHandle)]
            self.counter.wait(*inputs)
            self.counter.spend(max((i.data.size for i in inputs), default=0))
            result = method(*args, **kwargs)
            for output in result if isinstance(result, tuple) else (result,):
                _inherit(output, inputs, ("loaded", *_MADE_UP))
            return result

        return create

    def _copies(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The data copied along axes, without memory for copies: `_on_one_value` computes blocks of one value once."""
        return stretched(data, shape)

    def create_clampf(self, arg: TensorHandle, lo: TensorHandle, hi: TensorHandle, *_: Any) -> TensorHandle:
        """Counts two operations; how NaN propagates does not matter here."""
        return self.create_minnumf(self.create_maxnumf(arg, lo), hi)

    def create_extern_elementwise(
        self, lib_name: str, lib_path: str, symbol: str, args: Sequence[TensorHandle], result: tl.dtype, is_pure: bool
    ) -> TensorHandle:
        def method(*values: TensorHandle) -> TensorHandle:
            return Builder.create_extern_elementwise(self, lib_name, lib_path, symbol, values, result, is_pure)

        name = symbol.removeprefix("__nv_").removeprefix("fast_").rstrip("f")
        return self._elementwise(method, name if name in _SPECIAL else "library")(*args)

    def create_dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, precision: Any, *_: Any) -> TensorHandle:
        self.counter.wait(a, b, d, kind="dot")
        name = str(precision).rpartition(".")[2].lower()
        self.counter.dot(d, a.data.shape[-1], str(a.dtype.scalar), str(b.dtype.scalar), name)
        return _product(d)

    def create_dot_scaled(
        self, a: TensorHandle, a_scale: Any, a_format: Any, b: TensorHandle, b_scale: Any, b_format: Any, *rest: Any
    ) -> TensorHandle:
        """Counts a product of bfloat16: Triton converts to that if the tensor cores do not support scales."""
        _, packed, _, d = rest
        self.counter.wait(a, a_scale, b, b_scale, d, kind="dot")
        two_a_byte = packed and a_format.name == "E2M1"
        self.counter.dot(d, a.data.shape[-1] * (2 if two_a_byte else 1), "bf16", "bf16", "tf32")
        return _product(d)

    # --- memory ------------------------------------------------------------------------------------------------------

    def create_load(self, pointers: TensorHandle, *_: Any) -> TensorHandle:
        self.counter.wait(pointers)
        return self.counter.load(pointers, None, None)

    def create_masked_load(
        self, pointers: TensorHandle, mask: Any, other: TensorHandle | None, *_: Any, **__: Any
    ) -> TensorHandle:
        self.counter.wait(pointers, mask)
        self.counter.guided |= getattr(mask, "loaded", False)
        return self.counter.load(pointers, _array(mask), other, masked_by_data=getattr(mask, "made_up", False))

    def create_store(self, pointers: TensorHandle, value: TensorHandle, *_: Any) -> None:
        self.counter.wait(pointers, value)
        self.counter.access("store", pointers, None)

    def create_masked_store(self, pointers: TensorHandle, value: TensorHandle, mask: Any, *_: Any) -> None:
        self.counter.wait(pointers, value, mask)
        self.counter.access("store", pointers, _array(mask))

    def create_atomic_rmw(
        self, op: Any, pointers: TensorHandle, value: TensorHandle, mask: Any, *_: Any
    ) -> TensorHandle:
        self.counter.wait(pointers, value, mask)
        return self.counter.atomic(pointers, value, _array(mask))

    def create_atomic_cas(
        self, pointers: TensorHandle, compared: TensorHandle, value: TensorHandle, *_: Any
    ) -> TensorHandle:
        """Counts an atomic that always succeeds: another program would have set the value that this one waits for."""
        self.counter.wait(pointers, compared, value)
        before = self.counter.atomic(pointers, value, None)
        before.data = np.broadcast_to(compared.data, before.data.shape)
        return before


def _class_of(operation: str) -> str | None:
    """The class of an elementwise operation by its name; None for other methods of the builder."""
    if operation in _SPECIAL:
        return operation
    if operation.startswith(("fcmp", "icmp")):
        return "compare" if operation.startswith("fcmp") else "integer"
    return _CLASS_OF.get(operation)


def _on_one_value(method: Callable, args: tuple, kwargs: dict, inputs: list[TensorHandle]) -> tuple[TensorHandle, int]:
    """The result of `method(*args)`, and how many elements were computed: one if all blocks hold one value each."""
    shape = inputs[0].data.shape
    if any(i.data.shape != shape for i in inputs):
        shape = np.broadcast_shapes(*(i.data.shape for i in inputs))
    size = math.prod(shape)
    if size == 1 or any(i.data.size > 1 and any(i.data.strides) for i in inputs):
        return method(*args, **kwargs), size
    ones = [_first(a) if isinstance(a, TensorHandle) else a for a in args]
    result = method(*ones, **kwargs)
    result.data = stretched(result.data, shape)
    return result, 1


def _product(accumulator: TensorHandle) -> TensorHandle:
    result = TensorHandle(accumulator.data, accumulator.dtype.scalar)
    result.loaded = result.made_up = True  # type: ignore[attr-defined]
    return result


def _first(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(handle.data.flat[:1], handle.dtype)


def _refined(kind: str, result: TensorHandle, inputs: list[TensorHandle]) -> str:
    """The class divided by dtype and use: operations that use no loaded data are index arithmetic ("index...")."""
    if kind == "address":
        return kind
    bits = max(i.get_element_ty().primitive_bitwidth for i in inputs)
    loaded = any(getattr(i, "loaded", False) for i in inputs)
    if kind in ("float", "product", "sum"):
        if kind == "product":
            result.product = True  # type: ignore[attr-defined]
        elif kind == "sum" and any(getattr(i, "product", False) for i in inputs):
            return "fused"  # An addition to a product is one instruction with it.
        return {16: "half", 64: "double"}.get(bits, "float")
    if kind.startswith("integer"):
        name = kind if loaded else kind.replace("integer", "index")
        return f"{name}_64" if bits == 64 else name
    return "index" if kind in ("compare", "select") and not loaded else kind


def _array(mask: Any) -> np.ndarray | None:
    """A mask as an array; the interpreter passes a handle, or for tensor descriptors an array."""
    return mask.data if isinstance(mask, TensorHandle) else mask

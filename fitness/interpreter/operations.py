"""Implements the operations of Triton's IR on numpy arrays, for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, TensorHandle

from fitness.interpreter import libdevice
from fitness.interpreter.blocks import stretched
from fitness.interpreter.bounds import Arrays, Notes, Undefined, arrays_of, like
from fitness.interpreter.conflicts import ConcurrentMemory, Conflicts
from fitness.interpreter.numerics import decode, encode, numpy_dtype, towards_zero
from fitness.interpreter.validity import Validity


class BlockCondition(NotImplementedError):
    """Control flow depends on a block, which has no single truth value."""


Blocks = tuple[tl.tensor, ...]

# Bytes in a row of `a` that one instruction of the tensor cores takes: 16 numbers of float16, 32 of float8.
MMA_BYTES = 32


def unwrap(value: Any) -> Any:
    """The value of a `tl.constexpr`, anything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value


class Builder(InterpreterBuilder):
    """The operations of Triton's IR on numpy arrays.  Subclasses may observe them (`fitness/estimate/counters.py`).

    memory: first address that kernels may use, and the one past the last.
    arrays: the arrays in that memory.
    conflicts: watches accesses to that memory.
    arguments: of each argument of the entry the first address, the one past the last, and its position.
    """

    memory: tuple[int, int] | None = None
    arrays: Arrays | None = None
    conflicts: Conflicts | ConcurrentMemory | Validity | None = None
    arguments: Sequence[tuple[int, int, int]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.undefined, self.notes = Undefined(), Notes()
        # Overflow checks are a debug feature of the compiler; the device wraps around.
        self.options = InterpreterOptions(sanitize_overflow=False)
        self.stored: set[int] = set()  # positions of the arguments that were stored to.

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("create_", "get_")):
            raise NotImplementedError(f"Triton's interpreter has no {name}")
        raise AttributeError(name)

    def get_bf16(self, value: float) -> TensorHandle:
        return TensorHandle(encode(np.array([value]), tl.bfloat16), tl.bfloat16)

    def get_fp8e4nv(self, value: float) -> TensorHandle:
        return TensorHandle(encode(np.array([value]), tl.float8e4nv), tl.float8e4nv)

    def get_fp8e5(self, value: float) -> TensorHandle:
        return TensorHandle(encode(np.array([value]), tl.float8e5), tl.float8e5)

    def cast_impl(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        """The values converted to another type, with the rounding of the device."""
        return TensorHandle(encode(decode(src.data, src.dtype), dst_type), dst_type.scalar)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: tl.dtype, rounding_mode: Any) -> TensorHandle:
        if rounding_mode == triton_interpreter._ir.ROUNDING_MODE.RTZ:
            return TensorHandle(towards_zero(decode(src.data, src.dtype), dst_type), dst_type.scalar)
        return self.cast_impl(src, dst_type)

    def create_bitcast(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        data = np.ascontiguousarray(src.data).view(numpy_dtype(dst_type))
        return TensorHandle(data, like(dst_type.scalar, src.dtype))

    create_int_to_ptr = create_bitcast

    def create_ptr_to_int(self, src: TensorHandle, dst_type: tl.dtype) -> TensorHandle:
        """Refused: addresses differ between executions, and from those on the device."""
        raise NotImplementedError("an address as a number: what is computed must not depend on where memory lies")

    def create_reshape(self, arg: TensorHandle, shape: Sequence[int], allow_reorder: bool) -> TensorHandle:
        if allow_reorder:
            raise NotImplementedError("tl.view and can_reorder=True promise no order of the elements; use tl.reshape")
        return TensorHandle(arg.data.reshape(shape), arg.dtype.scalar)

    def create_cat(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        """`tl.cat(can_reorder=True)`: any order is allowed, so here it is never the order of the operands."""
        data = np.concatenate([lhs.data, rhs.data])[::-1].copy()
        return TensorHandle(data, like(lhs.dtype.scalar, lhs.dtype, rhs.dtype))

    def create_join(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return TensorHandle(np.stack([lhs.data, rhs.data], axis=-1), like(lhs.dtype.scalar, lhs.dtype, rhs.dtype))

    def create_gather(self, src: TensorHandle, indices: TensorHandle, axis: int) -> TensorHandle:
        if indices.data.size and not 0 <= int(indices.data.min()) <= int(indices.data.max()) < src.data.shape[axis]:
            raise IndexError(f"tl.gather: an index is not below {src.data.shape[axis]}, or negative")
        return TensorHandle(np.take_along_axis(src.data, indices.data, axis=axis), src.dtype.scalar)

    def _result(self, values: np.ndarray, dtype: tl.dtype) -> TensorHandle:
        """The result of an operation: booleans of comparisons as they are, everything else rounded to `dtype`."""
        if values.dtype == np.bool_:
            return TensorHandle(values, tl.int1)
        return TensorHandle(encode(values, dtype), dtype.scalar)

    def create_splat(self, ret_ty: tl.dtype, arg: TensorHandle) -> TensorHandle:
        return TensorHandle(self._copies(arg.data, tuple(map(unwrap, ret_ty.shape.values))), arg.dtype.scalar)

    def create_broadcast(self, arg: TensorHandle, shape: Sequence[int]) -> TensorHandle:
        return TensorHandle(self._copies(arg.data, tuple(map(unwrap, shape))), arg.dtype.scalar)

    def _copies(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The data copied along axes.

        One value has memory for each copy: Triton's atomics misread blocks whose strides are all 0.
        """
        if data.size != 1:
            return stretched(data, shape)
        copies = np.empty(shape, data.dtype)
        copies[...] = data
        return copies

    def create_expand_dims(self, arg: TensorHandle, axis: int) -> TensorHandle:
        shape = arg.data.shape
        if not 0 <= axis <= len(shape):
            return super().create_expand_dims(arg, axis)
        return TensorHandle(arg.data.reshape((*shape[:axis], 1, *shape[axis:])), arg.dtype.scalar)

    def unary_op(self, arg: TensorHandle, op: Callable[..., np.ndarray]) -> TensorHandle:
        """`op` of decoded values, with the result rounded to their type."""
        return self._result(op(decode(arg.data, arg.dtype)), arg.dtype)

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., np.ndarray]) -> TensorHandle:
        """`op` of decoded values, with the result rounded to the type of the first operand."""
        return self._result(op(decode(lhs.data, lhs.dtype), decode(rhs.data, rhs.dtype)), lhs.dtype)

    def create_select(self, cond: TensorHandle, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        chosen = np.where(cond.data.astype(np.bool_, copy=False), lhs.data, rhs.data)
        kind = like(rhs.dtype.scalar, lhs.dtype, rhs.dtype)
        return TensorHandle(chosen.astype(numpy_dtype(kind), copy=False), kind)

    def create_minnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: TensorHandle, lo: TensorHandle, hi: TensorHandle, propagate_nans: Any) -> TensorHandle:
        if propagate_nans == triton_interpreter._ir.PROPAGATE_NAN.NONE:
            return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
        return self.binary_op(self.binary_op(arg, lo, np.maximum), hi, np.minimum)

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        a, b, c = (decode(v.data, v.dtype) for v in (x, y, z))
        return self._result(a * b + c, z.dtype)

    def create_fneg(self, arg: TensorHandle) -> TensorHandle:
        return self.unary_op(arg, np.negative)

    def create_erf(self, arg: TensorHandle) -> TensorHandle:
        return self.unary_op(arg, libdevice.special.erf)

    def create_rsqrt(self, arg: TensorHandle) -> TensorHandle:
        return self.unary_op(arg, lambda x: 1 / np.sqrt(x))

    def create_dot(
        self, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision: Any, max_num_imprecise_acc: Any
    ) -> TensorHandle:
        """`a @ b + d`, accumulated in float32 (float64 for float64, exactly for integers) whatever the tf32 setting.

        A float16 accumulator is rounded once for each instruction of the tensor cores.
        """
        integers = a.data.dtype.kind in "iu" and a.dtype.scalar.is_int()
        wide = np.float64 if integers or a.data.dtype == np.float64 else np.float32
        left, right = (decode(v.data, v.dtype).astype(wide) for v in (a, b))
        if d.dtype.scalar.is_fp16():
            return self._dot_in_float16(left, right, d, MMA_BYTES // a.data.itemsize)
        product = np.matmul(left, right)
        if integers:  # This is exact: sums of products of bytes stay far below 2**53.
            return TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)
        return self._result(product + decode(d.data, d.dtype), d.dtype)

    def _dot_in_float16(self, a: np.ndarray, b: np.ndarray, d: TensorHandle, step: int) -> TensorHandle:
        """`a @ b + d`, rounded to float16 after every `step` elements along K."""
        for start in range(0, a.shape[-1], step):
            part = np.matmul(a[..., start : start + step], b[..., start : start + step, :])
            d = self._result(part + decode(d.data, d.dtype), d.dtype)
        return d

    def create_extern_elementwise(
        self, lib_name: str, lib_path: str, symbol: str, args: Sequence[TensorHandle], result: tl.dtype, is_pure: bool
    ) -> TensorHandle:
        function = libdevice.find(symbol)
        if function is None:
            raise NotImplementedError(f"the interpreter has no libdevice function {symbol}")
        values = np.asarray(function(*(decode(a.data, a.dtype) for a in args)))
        return TensorHandle(encode(values, result), result.scalar)

    # Without this check an access outside of the buffers could stay unnoticed, or end this process.

    def _check(self, what: str, at: TensorHandle, mask: np.ndarray | None) -> None:
        """Notes an access outside of the array that the pointers come from, if that array is known.

        Raises IndexError for an address outside of `memory`.
        """
        if self.memory is None or not at.data.size:
            return
        size, arrays = _element_bytes(at), arrays_of(at.dtype) or self.arrays
        if arrays is not None and arrays.hold_all(at.data, size):
            return
        chosen = _chosen(at, mask)
        start, last = self.memory[0], self.memory[1] - size
        beyond = int(((chosen < start) | (chosen > last)).sum())
        if beyond:
            raise IndexError(f"{beyond} of the addresses of a {what} are outside of all buffers")
        if arrays is not None and (outside := arrays.outside(chosen, size)):
            kind = "load" if what == "load" else "store"
            self.notes.add(kind, f"{what} out of bounds: {outside}")

    def _note_store(self, at: TensorHandle, mask: np.ndarray | None) -> None:
        """Notes the arguments of the entry that a store writes to, even if it does not change them."""
        if len(self.stored) == len(self.arguments) or not at.data.size:
            return
        low, high = int(at.data.min()), int(at.data.max())
        for start, end, position in self.arguments:
            if position not in self.stored and low < end and high >= start:
                chosen = _chosen(at, mask)
                if ((chosen >= start) & (chosen < end)).any():
                    self.stored.add(position)

    def _note_atomic(self, at: TensorHandle, mask: np.ndarray | None) -> None:
        """Reports an atomic access to the watcher: programs communicate by atomics."""
        if self.conflicts is not None:
            self.conflicts.access("atomic", at.data, mask, _element_bytes(at))

    def create_load(self, pointers: TensorHandle, cache: Any, eviction: Any, is_volatile: bool) -> TensorHandle:
        return self._load(pointers, np.ones(pointers.data.shape, np.bool_), None)

    def create_masked_load(
        self, pointers: TensorHandle, mask: Any, other: TensorHandle | None, *_: Any, **__: Any
    ) -> TensorHandle:
        chosen = _array(mask)
        if other is None and not chosen.all():
            other = self._undefined_block(pointers.data.shape, pointers.get_element_ty())
        return self._load(pointers, chosen, other)

    def _undefined_block(self, shape: tuple[int, ...], dtype: tl.dtype) -> TensorHandle:
        self.notes.add("undefined", "lanes that the mask leaves out are undefined")
        return TensorHandle(self.undefined.block(shape, dtype), dtype)

    def _load(self, pointers: TensorHandle, mask: np.ndarray, other: TensorHandle | None) -> TensorHandle:
        self._check("load", pointers, mask)
        if self.conflicts is not None:
            self.conflicts.access("load", pointers.data, mask, _element_bytes(pointers))
        return super().create_masked_load(pointers, TensorHandle(mask, tl.int1), other, None, None, False)

    def create_masked_store(self, pointers: Any, value: Any, mask: Any, *_: Any, **__: Any) -> Any:
        chosen = _array(mask)
        self._check("store", pointers, chosen)
        self._note_store(pointers, chosen)
        if self.conflicts is not None:
            self.conflicts.access("store", pointers.data, chosen, _element_bytes(pointers))
        return super().create_masked_store(pointers, value, TensorHandle(chosen, tl.int1), *_, **__)

    def create_atomic_rmw(
        self, op: Any, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem: Any, scope: Any
    ) -> TensorHandle:
        chosen = _array(mask)
        self._check("atomic operation", ptr, chosen)
        self._note_store(ptr, chosen)
        self._note_atomic(ptr, chosen)
        before = self._atomic(op, ptr, val, mask, sem, scope)
        if chosen.all():
            return before
        rest = self._undefined_block(before.data.shape, before.dtype)
        return TensorHandle(np.where(chosen, before.data, rest.data), before.dtype)

    def _atomic(
        self, op: Any, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem: Any, scope: Any
    ) -> TensorHandle:
        if val.dtype.scalar.name == "bf16" and op == triton_interpreter._ir.ATOMIC_OP.FADD:
            return self._atomic_add_bfloat16(ptr, val, mask)
        if op == triton_interpreter._ir.ATOMIC_OP.XCHG and val.data.dtype.kind == "f":
            bits = super().create_atomic_rmw(op, ptr, self._as_bits(val), mask, sem, scope)
            return TensorHandle(bits.data.view(val.data.dtype), val.dtype.scalar)
        return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)

    def create_atomic_cas(
        self, ptr: TensorHandle, cmp: TensorHandle, val: TensorHandle, sem: Any, scope: Any
    ) -> TensorHandle:
        self._check("atomic operation", ptr, None)
        self._note_store(ptr, None)
        self._note_atomic(ptr, None)
        if cmp.data.dtype.kind != "f":
            return super().create_atomic_cas(ptr, cmp, val, sem, scope)
        bits = super().create_atomic_cas(ptr, self._as_bits(cmp), self._as_bits(val), sem, scope)
        return TensorHandle(bits.data.view(cmp.data.dtype), cmp.dtype.scalar)

    def _as_bits(self, value: TensorHandle) -> TensorHandle:
        """Floats as integers of the same width: exchange and comparison work on bits only."""
        return self.create_bitcast(value, tl.core.get_int_dtype(value.data.itemsize * 8, signed=False))

    def _atomic_add_bfloat16(self, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle) -> TensorHandle:
        """Adds one lane after the other and rounds after each, as the memory system does."""
        before = np.zeros(val.data.shape, np.uint16)
        for lane in np.ndindex(val.data.shape):
            if not np.broadcast_to(mask.data, val.data.shape)[lane]:
                continue
            at = TensorHandle(np.array([ptr.data[lane]], np.uint64), ptr.dtype)
            old = self.create_load(at, None, None, False)
            before[lane] = old.data[0]
            self.create_store(
                at, self.create_fadd(old, TensorHandle(np.array([val.data[lane]]), tl.bfloat16)), None, None
            )
        return TensorHandle(before, tl.bfloat16)

    def create_print(self, *args: Any) -> None:
        """Does nothing: output of kernels is discarded."""

    def create_assert(self, *args: Any) -> None:
        """Does nothing: `tl.device_assert` is compiled in debug builds only."""


def _element_bytes(pointers: TensorHandle) -> int:
    return max(1, pointers.get_element_ty().primitive_bitwidth // 8)


def _array(mask: Any) -> np.ndarray:
    """A mask as an array; the interpreter passes a handle, or for tensor descriptors an array."""
    data = mask.data if isinstance(mask, TensorHandle) else mask
    return data.astype(np.bool_, copy=False)


def _chosen(pointers: TensorHandle, mask: np.ndarray | None) -> np.ndarray:
    """The addresses that the mask selects."""
    if mask is None or mask.all():
        return pointers.data
    return pointers.data[np.broadcast_to(mask, pointers.data.shape)]


def _combined(combine: Callable[..., Any], left: Blocks, right: Blocks) -> Blocks:
    """`combine` applied to whole blocks, or to one lane at a time if it branches on values."""
    try:
        found = combine(*left, *right)
    except BlockCondition:
        shape = left[0].handle.data.shape
        lanes = [
            combine(*(make_block(t.handle.data[lane], t.dtype) for t in (*left, *right))) for lane in np.ndindex(shape)
        ]
        rows = [lane if isinstance(lane, (tuple, tl.tuple)) else (lane,) for lane in lanes]
        columns = zip(*rows, strict=True)
        return tuple(
            make_block(np.stack([v.handle.data.reshape(()) for v in column]).reshape(shape), t.dtype)
            for column, t in zip(columns, left, strict=True)
        )
    found = found if isinstance(found, (tuple, tl.tuple)) else (found,)
    return tuple(_as_type(t, like.dtype) for t, like in zip(found, left, strict=True))


def _reduced(blocks: Blocks, axis: int, combine: Callable[..., Any], turned: bool) -> Blocks:
    """Combines pairs along `axis`, whole blocks at a time, until one element is left.

    The device promises no order.  By default neighbours are combined in order; turned: the second half with the first.
    """
    while (n := blocks[0].handle.data.shape[axis]) > 1:  # Block sizes are powers of two.
        parts = (slice(n // 2, None), slice(n // 2)) if turned else (slice(0, None, 2), slice(1, None, 2))
        one, other = (tuple(_take(t, axis, part) for t in blocks) for part in parts)
        blocks = _combined(combine, one, other)
    return blocks


def _is_even_program() -> bool:
    return sum(triton_interpreter.interpreter_builder.grid_idx) % 2 == 0


def _scanned(blocks: Blocks, axis: int, combine: Callable[..., Any]) -> Blocks:
    """The inclusive scan along `axis`, in log2(n) steps over whole blocks."""
    shape, distance = blocks[0].handle.data.shape, 1
    position = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    while distance < shape[axis]:
        earlier = tuple(make_block(np.roll(t.handle.data, distance, axis), t.dtype) for t in blocks)
        found = _combined(combine, earlier, blocks)
        blocks = tuple(
            make_block(np.where(position >= distance, new.handle.data, old.handle.data), old.dtype)
            for new, old in zip(found, blocks, strict=True)
        )
        distance *= 2
    return blocks


def make_block(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    """A tensor of the language with these data; a scalar if they have no axes."""
    kind = tl.block_type(dtype.scalar, list(data.shape)) if data.shape else dtype.scalar
    return tl.tensor(TensorHandle(data if data.shape else data.reshape(1), dtype.scalar), kind)


def _take(block: tl.tensor, axis: int, part: slice) -> tl.tensor:
    index = [slice(None)] * block.handle.data.ndim
    index[axis] = part
    return make_block(block.handle.data[tuple(index)], block.dtype)


def _as_type(block: tl.tensor, dtype: tl.dtype) -> tl.tensor:
    if block.dtype == dtype:
        return block
    return make_block(encode(decode(block.handle.data, block.dtype), dtype), dtype)


_UFUNCS = {  # numpy's equivalents of combine functions of triton.language.standard.
    "_sum_combine": np.add, "_prod_combine": np.multiply, "_xor_combine": np.bitwise_xor, "_or_combine": np.bitwise_or,
    "_elementwise_max": np.fmax, "_elementwise_min": np.fmin,
}  # fmt: skip


def _ufunc(block: tl.tensor, combine: Any) -> np.ufunc | None:
    """The numpy equivalent of a combine function for integers, float32 and float64; None for others.

    Narrower floats are combined pairwise instead, because the device rounds them after every step.
    """
    if not block.dtype.is_int() and block.dtype.name not in ("fp32", "fp64"):
        return None
    return next((f for name, f in _UFUNCS.items() if combine is getattr(tl.standard, name, None)), None)


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """`tl.reduce`, which `tl.sum`, `tl.max` and so on use too.

    Custom combine functions are applied in another order in every other program.
    """
    blocks = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, keep_dims = unwrap(axis), bool(unwrap(keep_dims))
    dims = blocks[0].handle.data.ndim
    if axis is None:
        flat = tuple(make_block(t.handle.data.reshape(-1), t.dtype) for t in blocks)
    else:
        axis = axis + dims if axis < 0 else axis
        flat = blocks
    function = _ufunc(flat[0], combine_fn)
    if function is not None:
        reduced = function.reduce(flat[0].handle.data, axis=axis or 0, keepdims=True, dtype=flat[0].handle.data.dtype)
        results: Blocks = (make_block(reduced, flat[0].dtype),)
    else:
        results = _reduced(flat, axis or 0, combine_fn, turned=_is_even_program())
    found = []
    for t in results:
        data = t.handle.data
        if axis is None:
            data = data.reshape((1,) * dims) if keep_dims else data.reshape(())
        elif not keep_dims:
            data = np.squeeze(data, axis)
        found.append(make_block(data, t.dtype))
    return tuple(found) if isinstance(input, (tuple, tl.tuple)) else found[0]


def scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
    """`tl.associative_scan`, which `tl.cumsum` and `tl.cumprod` use too."""
    blocks = tuple(input) if isinstance(input, (tuple, tl.tuple)) else (input,)
    axis, back = int(unwrap(axis)), bool(unwrap(reverse))
    axis = axis + blocks[0].handle.data.ndim if axis < 0 else axis
    turn = (lambda t: make_block(np.flip(t.handle.data, axis), t.dtype)) if back else (lambda t: t)
    turned = tuple(turn(t) for t in blocks)
    function = _ufunc(turned[0], combine_fn)
    if function is not None:
        data = turned[0].handle.data
        results: Blocks = (make_block(function.accumulate(data, axis, dtype=data.dtype), turned[0].dtype),)
    else:
        results = _scanned(turned, axis, combine_fn)
    found = tuple(turn(t) for t in results)
    return found if isinstance(input, (tuple, tl.tuple)) else found[0]

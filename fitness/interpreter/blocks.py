"""Speeds up Triton's front end, which the interpreter runs for every operation of every iteration.

In loops over small blocks nearly all of the time goes into types, not numbers.  For every result Triton makes a new
block type, a list of constants with a name.  It also checks and broadcasts every pair of operands.  Here each type is
made once, operands with equal types are used as they are, and common shapes are found once.  The results stay the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.core import block_type
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as triton_interpreter

_NO_SHAPE = tl.tuple([])
_ONE = tl.constexpr(1)
_HALVES = (tl.float16, tl.bfloat16)
_new_type = block_type.__init__
_builtin_code = tl.core.builtin(lambda: None).__code__
_unwrap = tl.core._unwrap_if_constexpr
_UNWRAPPED = frozenset({tl.tensor, int, float, bool, str, type(None)})  # types of values that hold no `tl.constexpr`


class Types:
    """The block types made so far, by element type and shape; types are never changed."""

    def __init__(self) -> None:
        self._made: dict[tuple, tuple[tl.dtype, dict[str, Any]]] = {}

    def patches(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, attribute, value) of the patches, which `Interpreter` sets and resets."""
        made = self._made

        def new_type(self: block_type, element_ty: tl.dtype, shape: Any) -> None:
            # The key has the identity, as pointer types have no hash.  The entry keeps the element type alive.
            key = (id(element_ty), *[s.value if type(s) is tl.constexpr else s for s in shape])
            entry = made.get(key)
            if entry is None:
                _new_type(self, element_ty, shape)
                sizes = tuple(int(s) for s in self.shape)
                self.of_values = tl.tuple([tl.constexpr(s) for s in sizes]), tl.constexpr(math.prod(sizes)), sizes
                self.alike = {}  # by the identity of the element type.
                self.shaped = {}  # types with the same element type, by shape.
                entry = made[key] = element_ty, dict(self.__dict__)
            self.__dict__.update(entry[1])

        yield block_type, "__init__", new_type
        yield block_type, "with_element_ty", _with_element_type
        # The interpreter's builder takes the types of the language directly.
        yield block_type, "to_ir", lambda self, builder: self
        yield tl.dtype, "to_ir", lambda self, builder: self
        yield tl.tensor, "__init__", _new_value
        yield tl.tensor, "__getitem__", _indexed(tl.tensor.__getitem__)
        yield tl.core, "_unwrap_if_constexpr", _unwrapped
        yield triton_interpreter.TensorHandle, "__init__", _new_handle


def _unwrapped(value: Any) -> Any:
    """Triton's `_unwrap_if_constexpr`, which looks for constants in sequences first."""
    return value if type(value) in _UNWRAPPED else _unwrap(value)


def _indexed(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Indexing of blocks with a shortcut for `x[:, None]` and `x[None, :]`.  usual: what all other indices take."""

    def index(self: tl.tensor, slices: Any, **kwargs: Any) -> Any:
        if type(slices) is tuple and len(slices) == 2:
            for axis, other in ((1, 0), (0, 1)):
                if slices[axis] is None and _is_everything(slices[other]):
                    return triton_interpreter.interpreter_semantic.expand_dims(self, axis)
        return usual(self, slices, **kwargs)

    return index


def _is_everything(part: Any) -> bool:
    return type(part) is slice and part.start is None and part.stop is None and part.step is None


def _with_element_type(self: block_type, scalar_ty: tl.dtype) -> block_type:
    alike = self.__dict__.get("alike")
    if alike is None:  # The type was made before the interpreter was entered.
        return block_type(scalar_ty, self.shape)
    found = alike.get(id(scalar_ty))
    if found is None:
        found = alike[id(scalar_ty)] = block_type(scalar_ty, self.shape)  # This keeps scalar_ty alive.
    return found


def _with_shape(kind: block_type, shape: tuple[int, ...]) -> block_type:
    """The type of blocks of another shape with the same elements.  `kind` was made by `Types`."""
    shaped = kind.__dict__["shaped"]
    found = shaped.get(shape)
    if found is None:
        found = shaped[shape] = block_type(kind.scalar, list(shape))
    return found  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4096)
def _common_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of which blocks of both shapes are copies along axes; None if Triton's own rules must decide."""
    if len(left) != len(right):
        return None
    shape = tuple(map(max, left, right))
    fits = all(n in (1, most) for side in (left, right) for n, most in zip(side, shape, strict=True))
    return shape if fits else None


def stretched(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`np.broadcast_to(data, shape)`, made in a tenth of the time if the data are contiguous, as they mostly are."""
    if data.size == 1:
        strides: tuple[int, ...] = (0,) * len(shape)
    elif data.flags.c_contiguous and data.ndim == len(shape) and _common_shape(data.shape, shape) == shape:
        strides = tuple([0 if n == 1 else stride for n, stride in zip(data.shape, data.strides, strict=True)])
    else:
        return np.broadcast_to(data, shape)
    found = np.ndarray(shape, data.dtype, data, 0, strides)
    found.flags.writeable = False
    return found


def _new_value(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    shared = type.__dict__.get("of_values")
    if shared is not None:
        self.shape, self.numel = shared[0], shared[1]
    elif type.is_block():
        self.shape = tl.tuple([tl.constexpr(s) for s in type.shape])
        self.numel = tl.constexpr(math.prod(type.shape))
    else:
        self.shape, self.numel = _NO_SHAPE, _ONE


def _new_handle(self: Any, data: np.ndarray, dtype: tl.dtype, attr: dict | None = None) -> None:
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
    if not dtype.is_ptr() and 8 * data.itemsize > dtype.primitive_bitwidth:
        self.__post_init__()  # Triton's check, which accepts all others.


def bound(member: Callable[..., Any], semantic: TritonSemantic) -> Callable[..., Any]:
    """A builtin of the language, bound to `semantic`: callers need not pass `_semantic`."""
    plain: Any = member.__wrapped__ if getattr(member, "__code__", None) is _builtin_code else member  # type: ignore[attr-defined]

    def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        return plain(*args, _semantic=semantic, **kwargs)

    return call


class Semantic(TritonSemantic):
    """Triton's type rules, with a shortcut for operands of equal types."""

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        """Both operands with one type and shape; types that are equal already are not checked again."""
        if isinstance(lhs, tl.tensor) and isinstance(rhs, tl.tensor):
            left, right = lhs.dtype, rhs.dtype
            if left.is_ptr():
                agree = allow_lhs_ptr and right.is_int()
            else:
                agree = left is right and not (div_or_mod and left in _HALVES)
            if agree:
                return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )

    def broadcast_impl_value(self, lhs: tl.tensor, rhs: tl.tensor) -> Any:
        """Both operands with one shape; unchanged if their shapes are equal."""
        left, right = lhs.type.__dict__.get("of_values"), rhs.type.__dict__.get("of_values")
        if left is not None and right is not None:
            if left[2] == right[2]:
                return lhs, rhs
            shape = _common_shape(left[2], right[2])
            if shape is not None:
                return self._stretched(lhs, left[2], shape), self._stretched(rhs, right[2], shape)
        elif left is not None and not rhs.type.is_block():
            return lhs, self._spread(rhs, lhs.type)
        elif right is not None and not lhs.type.is_block():
            return self._spread(lhs, rhs.type), rhs
        return super().broadcast_impl_value(lhs, rhs)

    def expand_dims(self, input: tl.tensor, axis: int) -> tl.tensor:
        """A block with one more axis of length 1."""
        known = input.type.__dict__.get("of_values")
        if known is None or not 0 <= axis <= len(known[2]):
            return super().expand_dims(input, axis)
        kind = _with_shape(input.type, (*known[2][:axis], 1, *known[2][axis:]))
        return tl.tensor(self.builder.create_expand_dims(input.handle, axis), kind)

    def _stretched(self, block: tl.tensor, before: tuple[int, ...], shape: tuple[int, ...]) -> tl.tensor:
        if before == shape:
            return block
        return tl.tensor(self.builder.create_broadcast(block.handle, shape), _with_shape(block.type, shape))

    def _spread(self, scalar: tl.tensor, like: block_type) -> tl.tensor:
        kind = like.with_element_ty(scalar.dtype)
        return tl.tensor(self.builder.create_splat(kind, scalar.handle), kind)

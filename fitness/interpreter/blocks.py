"""Speeds up Triton's front end, which the interpreter runs for every operation of every iteration.

In loops over small blocks nearly all of the time goes into types, not numbers.  For every result Triton makes a new
block type, a list of constants with a name.  It also checks and broadcasts every pair of operands.  Here each type is
made once, and operands with equal types are used as they are.  The results stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import triton.language as tl
from triton.language.core import block_type
from triton.language.semantic import TritonSemantic

_NO_SHAPE = tl.tuple([])
_ONE = tl.constexpr(1)
_HALVES = (tl.float16, tl.bfloat16)
_new_type = block_type.__init__
_builtin_code = tl.core.builtin(lambda: None).__code__


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
                sizes = [int(s) for s in self.shape]
                self.of_values = tl.tuple([tl.constexpr(s) for s in sizes]), tl.constexpr(math.prod(sizes)), sizes
                self.alike = {}  # by the identity of the element type.
                entry = made[key] = element_ty, dict(self.__dict__)
            self.__dict__.update(entry[1])

        yield block_type, "__init__", new_type
        yield block_type, "with_element_ty", _with_element_type
        # The interpreter's builder takes the types of the language directly.
        yield block_type, "to_ir", lambda self, builder: self
        yield tl.dtype, "to_ir", lambda self, builder: self
        yield tl.tensor, "__init__", _new_value


def _with_element_type(self: block_type, scalar_ty: tl.dtype) -> block_type:
    alike = self.__dict__.get("alike")
    if alike is None:  # The type was made before the interpreter was entered.
        return block_type(scalar_ty, self.shape)
    found = alike.get(id(scalar_ty))
    if found is None:
        found = alike[id(scalar_ty)] = block_type(scalar_ty, self.shape)  # This keeps scalar_ty alive.
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
        elif left is not None and not rhs.type.is_block():
            return lhs, self._spread(rhs, lhs.type)
        elif right is not None and not lhs.type.is_block():
            return self._spread(lhs, rhs.type), rhs
        return super().broadcast_impl_value(lhs, rhs)

    def _spread(self, scalar: tl.tensor, like: block_type) -> tl.tensor:
        kind = like.with_element_ty(scalar.dtype)
        return tl.tensor(self.builder.create_splat(kind, scalar.handle), kind)

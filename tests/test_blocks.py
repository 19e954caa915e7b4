"""The short ways of the interpreter lead to where Triton's own rules lead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import triton.language as tl
from triton.language.core import block_type
from triton.language.semantic import IncompatibleTypeErrorImpl, TritonSemantic
from triton.runtime.interpreter import TensorHandle

from fitness.interpreter.blocks import Semantic, stretched
from fitness.interpreter.interpreter import Interpreter
from fitness.interpreter.numerics import numpy_dtype

DTYPES = (tl.int1, tl.int32, tl.uint32, tl.int64, tl.float16, tl.bfloat16, tl.float32, tl.float64)
SHAPES = ((), (1,), (4,), (4, 1), (1, 8), (4, 8))


@pytest.fixture
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as entered:
        yield entered


def value(dtype: tl.dtype, shape: tuple[int, ...]) -> tl.tensor:
    kind = block_type(dtype, list(shape)) if shape else dtype
    return tl.tensor(TensorHandle(np.ones(shape or (1,), numpy_dtype(dtype)), dtype), kind)


def outcome(semantic: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor, **options: bool) -> object:
    """Types, shapes and values of both operands after the check, or the kind of error."""
    try:
        found = semantic.binary_op_type_checking_impl(lhs, rhs, **options)
    except (TypeError, ValueError, IncompatibleTypeErrorImpl) as error:
        return type(error)
    return [(str(v.type), [s.value for s in v.shape], v.numel.value, v.handle.data.tolist()) for v in found]


@pytest.mark.parametrize("options", [{}, {"div_or_mod": True}, {"arithmetic_check": False}])
def test_operands_are_brought_together_as_by_triton(interpreter: Interpreter, options: dict[str, bool]) -> None:
    short, plain = interpreter.semantic, TritonSemantic(interpreter.builder)
    assert isinstance(short, Semantic)
    for left in DTYPES:
        for right in DTYPES:
            for shapes in ((a, b) for a in SHAPES for b in SHAPES if len(a) == len(b) or not a or not b):
                operands = [value(d, s) for d, s in zip((left, right), shapes, strict=True)]
                assert outcome(short, *operands, **options) == outcome(plain, *operands, **options), (left, right)


@pytest.mark.parametrize("offset", [tl.int32, tl.int64, tl.uint32, tl.float32])
@pytest.mark.parametrize("allowed", [True, False])
def test_pointers_are_checked_as_by_triton(interpreter: Interpreter, offset: tl.dtype, allowed: bool) -> None:
    short, plain = interpreter.semantic, TritonSemantic(interpreter.builder)
    pointers = value(tl.pointer_type(tl.float32), (4,))
    options = {"allow_lhs_ptr": allowed, "allow_rhs_ptr": allowed}
    for shape in ((), (4,)):
        other = value(offset, shape)
        assert outcome(short, pointers, other, **options) == outcome(plain, pointers, other, **options)


def test_shapes_that_do_not_fit_are_an_error(interpreter: Interpreter) -> None:
    with pytest.raises(ValueError, match="incompatible"):
        interpreter.semantic.broadcast_impl_value(value(tl.int32, (4,)), value(tl.int32, (8,)))


@pytest.mark.parametrize("shape", [(4,), (4, 8), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_new_axis_is_as_by_triton(interpreter: Interpreter, shape: tuple[int, ...], axis: int) -> None:
    block, plain = value(tl.int32, shape), TritonSemantic(interpreter.builder)
    expected = plain.expand_dims(block, axis)
    index = (None, slice(None)) if axis == 0 else (slice(None), None)
    for found in (interpreter.semantic.expand_dims(block, axis), block[index]):
        assert found.type == expected.type and found.handle.data.shape == expected.handle.data.shape
        assert [s.value for s in found.shape] == [s.value for s in expected.shape]


@pytest.mark.parametrize("index", [(slice(0, 2), None), (None, 1), (slice(None), slice(None, 2))])
def test_other_indices_of_a_block_are_refused(interpreter: Interpreter, index: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="unsupported tensor index"):
        value(tl.int32, (4, 8))[index]


@pytest.mark.parametrize("wanted", [(4, 8), (8, 4), (4, 1), (1, 8), (2, 4, 8), (4, 16)])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (4, 1), (1, 8), (8, 1), (8,), (4, 8)])
def test_copies_along_axes_are_those_of_numpy(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    whole = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    for data in (whole, np.repeat(whole, 2, axis=-1)[..., ::2]):  # contiguous, and not
        try:
            expected = np.broadcast_to(data, wanted)
        except ValueError:
            with pytest.raises(ValueError):
                stretched(data, wanted)
            continue
        found = stretched(data, wanted)
        assert found.dtype == expected.dtype and np.array_equal(found, expected) and not found.flags.writeable


def test_constants_are_unwrapped_as_by_triton() -> None:
    unwrap = tl.core._unwrap_if_constexpr
    samples = [3, 2.5, True, None, "x", tl.float16, tl.constexpr(3), [tl.constexpr(1), 2], (tl.constexpr(1), "y")]
    expected = [unwrap(sample) for sample in samples]
    with Interpreter():
        assert tl.core._unwrap_if_constexpr is not unwrap
        assert [tl.core._unwrap_if_constexpr(sample) for sample in samples] == expected
    assert tl.core._unwrap_if_constexpr is unwrap


def test_data_wider_than_their_type_are_refused(interpreter: Interpreter) -> None:
    assert TensorHandle(np.ones(1, np.uint64), tl.pointer_type(tl.int8)).attr == {}
    assert TensorHandle(np.ones(1, np.bool_), tl.int1).data.all()
    with pytest.raises(ValueError, match="exceeds"):
        TensorHandle(np.ones(4, np.int64), tl.int32)


def test_types_are_equal_however_often_they_are_made(interpreter: Interpreter) -> None:
    first, again = (block_type(tl.float16, shape) for shape in ([4, 8], (tl.constexpr(4), tl.constexpr(8))))
    assert first == again and str(first) == str(again) and again.numel == 32
    assert first != block_type(tl.float16, [8, 4]) and first != block_type(tl.float32, [4, 8])
    assert first.with_element_ty(tl.int32) == block_type(tl.int32, [4, 8])
    with pytest.raises((TypeError, ValueError)):
        block_type(tl.float16, [3])


def test_the_language_is_as_before_afterwards() -> None:
    before = {owner: dict(vars(owner)) for owner in (block_type, tl.dtype, tl.tensor)}
    with Interpreter():
        assert vars(block_type)["__init__"] is not before[block_type]["__init__"]
        made = block_type(tl.float32, [16])
    for owner, members in before.items():
        assert {k: v for k, v in vars(owner).items() if k in members} == members
    assert made.with_element_ty(tl.int8) == block_type(tl.int8, [16])  # a type from inside is of use outside

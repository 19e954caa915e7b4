"""fitness.gpu.buffers, on the CPU: where copies lie, what is written to all of them, what is noticed."""

from __future__ import annotations

import pytest
import torch

from fitness.gpu.buffers import EDGE, DeviceMemory, all_hold, words_of
from fitness.memory import GUARD, POISONS
from fitness.plan import Buffer, LaunchPlan, PlanError, TensorRef

CPU = torch.device("cpu")
ROWS = TensorRef(0, "float32", (3, 5), (5, 1))
COLUMN = TensorRef(0, "float32", (3,), (5,), 2)
ODD = TensorRef(1, "uint8", (7,), (1,))


def plan_of(*outputs: TensorRef) -> LaunchPlan:
    buffers = (Buffer(60, 0), Buffer(7, None))
    return LaunchPlan(buffers, (ROWS,), outputs or (ODD,), "tensor", ())


def memory(copies: int = 3) -> DeviceMemory:
    return DeviceMemory(plan_of(), CPU, copies)


def test_arguments_are_written_to_every_copy() -> None:
    made, value = memory(), torch.arange(15.0).reshape(3, 5)
    made.write([value])
    assert made.windows(ROWS).shape == (3, 3, 5)
    assert all(torch.equal(made.window(ROWS, copy), value) for copy in range(3))
    assert made.windows(COLUMN)[1].tolist() == [2.0, 7.0, 12.0]
    with pytest.raises(PlanError, match="argument 0 is float32"):
        made.write([value.double()])


def test_addresses_are_those_of_the_windows() -> None:
    made = memory()
    for ref in (ROWS, COLUMN, ODD):
        for copy in range(3):
            assert made.address(ref, copy) == made.window(ref, copy).data_ptr()
    assert {made.address(ROWS, copy) % 256 for copy in range(3)} == {made.address(ROWS, 0) % 256}


def test_own_buffers_are_poisoned_and_inputs_are_not() -> None:
    made = memory()
    made.write([torch.zeros(3, 5)])
    made.poison_owned()
    assert made.windows(ODD).eq(0xA5).all()
    made.poison_owned(POISONS[1])
    assert made.windows(ODD).eq(0x7A).all()
    assert made.windows(ROWS).eq(0).all()
    made.look_at_guards()
    assert made.overwritten() == []


def test_what_lies_between_the_rows_of_an_argument_is_poisoned_too() -> None:
    rows = TensorRef(0, "float32", (3, 5), (8, 1))
    plan = LaunchPlan((Buffer(rows.last_byte(), 0), Buffer(7, None)), (rows,), (ODD,), "tensor", ())
    made, value = DeviceMemory(plan, CPU, 2), torch.arange(15.0).reshape(3, 5)
    given = torch.empty_strided((3, 5), (8, 1))
    made.write([given.copy_(value)])
    between = made.windows(TensorRef(0, "uint8", (2, 12), (32, 1), 20))
    between.fill_(42)  # as a kernel might, for its next launch
    made.poison_owned()
    assert between.eq(POISONS[0].floating).all()
    assert made.windows(rows).eq(value).all()


def test_rows_that_share_their_memory_leave_nothing_between_them() -> None:
    shared = TensorRef(0, "float32", (4, 5), (0, 1))
    plan = LaunchPlan((Buffer(20, 0), Buffer(7, None)), (shared,), (ODD,), "tensor", ())
    made, value = DeviceMemory(plan, CPU, 2), torch.arange(5.0).expand(4, 5)
    made.write([value])
    made.poison_owned()
    assert made.windows(shared).eq(value).all()


def test_nobody_else_knows_how_far_apart_copies_lie() -> None:
    apart = {made.address(ROWS, 1) - made.address(ROWS, 0) for made in (memory() for _ in range(8))}
    assert len(apart) > 1 and min(apart) > 2 * EDGE


@pytest.mark.parametrize("copy", [0, 2])
@pytest.mark.parametrize(
    ("ref", "beyond", "label"),
    [(ROWS, 60, "1 bytes after argument 0 were overwritten"), (ODD, -1, "1 bytes before output 0 were overwritten"),
     (ODD, 7 + GUARD + EDGE // 2, "1 bytes after output 0 were overwritten")],
)  # fmt: skip
def test_a_store_beyond_a_buffer_is_noticed_on_any_copy(copy: int, ref: TensorRef, beyond: int, label: str) -> None:
    made = memory()
    flat = made._whole.view(-1)
    flat[made.address(ref, copy) - flat.data_ptr() + beyond] ^= 1
    made.look_at_guards()
    assert made.overwritten() == [label]


def test_an_empty_window_has_no_elements() -> None:
    empty = TensorRef(0, "float32", (0, 4), (4, 1))
    assert memory().windows(empty).shape == (3, 0, 4)
    assert all_hold([(memory().windows(empty), torch.empty(0, 4))]) == [True]
    assert words_of(memory().windows(empty)).sum() == 0


def test_copies_are_compared_to_the_bit() -> None:
    made, value = memory(), torch.arange(15.0).reshape(3, 5)
    value[0, 0] = float("nan")
    made.write([value])
    windows = made.windows(ROWS)
    assert all_hold([(windows, value), (windows, value.clone()), (windows, -value)]) == [True, True, False]
    windows[2, 1, 1] += 1
    made.poison_owned()
    assert all_hold([(windows, value), (made.windows(ODD), made.window(ODD))]) == [False, True]
    assert all_hold([(windows[:1], value)]) == [True]
    assert all_hold([(windows[2:], value)]) == [False]
    assert all_hold([]) == []


@pytest.mark.parametrize(
    ("ref", "shape", "dtype"),
    [
        (TensorRef(0, "float32", (2, 4), (4, 1)), (3, 4), torch.int64),
        (ROWS, (3, 3, 5, 1), torch.int32),  # 60 bytes
        (COLUMN, (3, 3, 1), torch.int32),
        (TensorRef(0, "float32", (), ()), (3, 1), torch.int32),
        (ODD, (3, 7, 1), torch.uint8),
    ],
)
def test_sums_over_the_words_of_each_copy(ref: TensorRef, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = memory()
    made.write([torch.randn(3, 5, generator=torch.Generator().manual_seed(0))])
    made.poison_owned()
    words = words_of(made.windows(ref))
    assert (words.shape, words.dtype) == (shape, dtype)
    dims = tuple(range(1, words.dim()))
    sums = words.sum(dims, dtype=torch.int64)
    assert len(set(sums.tolist())) == 1
    made.windows(ref)[1].view(-1 if ref.shape == (2, 4) else ref.shape).fill_(1)
    assert words.sum(dims, dtype=torch.int64).tolist()[1] != sums[0]

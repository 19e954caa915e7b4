"""fitness.gpu.buffers, on the CPU: where copies lie, what is written to all of them, what is noticed."""

from __future__ import annotations

import pytest
import torch

from fitness.frontend.memory import GUARD, POISONS
from fitness.frontend.plan import Buffer, LaunchPlan, PlanError, TensorRef
from fitness.gpu.buffers import EDGE, DeviceMemory

CPU = torch.device("cpu")
ROWS = TensorRef(0, "float32", (3, 5), (5, 1))
COLUMN = TensorRef(0, "float32", (3,), (5,), 2)
ODD = TensorRef(1, "uint8", (7,), (1,))


def plan_of(*outputs: TensorRef) -> LaunchPlan:
    buffers = (Buffer(60, 0), Buffer(7, None))
    return LaunchPlan(buffers, (ROWS,), outputs or (ODD,), "tensor", ())


def memory(copies: int = 3) -> DeviceMemory:
    return DeviceMemory(plan_of(), CPU, copies)


def test_each_copy_has_arguments_of_its_own() -> None:
    made, value = memory(), torch.arange(15.0).reshape(3, 5)
    for copy in range(3):
        made.write([copy * value], copy)
    assert made.windows(ROWS).shape == (3, 3, 5)
    assert all(torch.equal(made.window(ROWS, copy), copy * value) for copy in range(3))
    assert made.windows(COLUMN)[2].tolist() == [4.0, 14.0, 24.0]
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
    for copy in range(3):
        made.write([torch.zeros(3, 5)], copy)
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
    for copy in range(2):
        made.write([given.copy_(value)], copy)
    between = made.windows(TensorRef(0, "uint8", (2, 12), (32, 1), 20))
    between.fill_(42)  # as a kernel might, for its next launch
    made.poison_owned()
    assert between.eq(POISONS[0].floating).all()
    assert made.windows(rows).eq(value).all()


def test_rows_that_share_their_memory_leave_nothing_between_them() -> None:
    shared = TensorRef(0, "float32", (4, 5), (0, 1))
    plan = LaunchPlan((Buffer(20, 0), Buffer(7, None)), (shared,), (ODD,), "tensor", ())
    made, value = DeviceMemory(plan, CPU, 2), torch.arange(5.0).expand(4, 5)
    for copy in range(2):
        made.write([value], copy)
    made.poison_owned()
    assert made.windows(shared).eq(value).all()


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


def test_what_was_put_back_was_seen() -> None:
    made = memory()
    made._whole[1, 5] ^= 1
    made.look_at_guards()
    made._whole[1, 5] ^= 1
    made.look_at_guards()
    assert made.overwritten() == ["bytes around buffers were overwritten, and put back later"]


def guard_bytes(made: DeviceMemory) -> torch.Tensor:
    """What lies before the argument, after it and after the output, of the first copy."""
    flat, at = made._whole.view(-1), made.address(ROWS, 0) - made._whole.data_ptr()
    after = made.address(ODD, 0) - made._whole.data_ptr() + 7
    return torch.stack([flat[start : start + 64] for start in (at - 64, at + 60, after + 1)])


def test_guards_are_other_bytes_in_each_memory_and_after_each_renewal() -> None:
    torch.manual_seed(0)
    one = memory()
    torch.manual_seed(0)
    other = memory()
    assert not torch.equal(guard_bytes(one), guard_bytes(other))
    before = guard_bytes(one).clone()
    one.renew_guards(1)
    assert not torch.equal(guard_bytes(one), before)
    one.look_at_guards()
    assert one.overwritten() == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_guards_of_even_numbers_are_nan_in_every_type(dtype: torch.dtype) -> None:
    made = memory()
    made.renew_guards(2)
    found = guard_bytes(made).clone()
    assert found.view(dtype).float().isnan().all() and found.unique().tolist() == [0x7F, 0xFF]
    made.renew_guards(3)
    assert guard_bytes(made).unique().numel() > 50


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_guards_of_odd_numbers_are_finite_in_every_type_wider_than_a_byte(dtype: torch.dtype) -> None:
    made = memory()
    for _ in range(10):
        made.renew_guards(3)
        assert guard_bytes(made).clone().view(dtype).isfinite().all()


def test_what_was_overwritten_before_guards_are_renewed_is_not_forgotten() -> None:
    made = memory()
    made._whole[1, 5] ^= 1
    made.renew_guards(2)
    made.look_at_guards()
    assert made.overwritten() == ["bytes around buffers were overwritten, and put back later"]


def test_an_empty_window_has_no_elements() -> None:
    empty = TensorRef(0, "float32", (0, 4), (4, 1))
    assert memory().windows(empty).shape == (3, 0, 4)

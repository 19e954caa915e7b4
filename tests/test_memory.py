"""The buffer file: windows, poison, guard zones."""

from __future__ import annotations

import pytest
import torch

from evo.core.records import Verdict
from fitness.frontend.memory import ALIGNMENT, GUARD, POISONS, Layout
from fitness.frontend.plan import Buffer, LaunchPlan, PlanError, TensorRef
from fitness.sandbox.jobs import JobError
from fitness.sandbox.scratch import LeftError
from tests.test_sandbox import IN_MEMORY, inside, needs

X = TensorRef(0, "float32", (3, 5), (1, 3))  # column-major
OUT = TensorRef(1, "bfloat16", (4,), (1,))
MASK = TensorRef(2, "bool", (6,), (1,))


def make_plan() -> LaunchPlan:
    buffers = (Buffer(60, input=0), Buffer(8), Buffer(6), Buffer(0))
    return LaunchPlan(buffers, (X, 7), (OUT, MASK), "tuple", ())


def test_inputs_are_windows_with_their_strides(tmp_path):
    layout = Layout(make_plan())
    mm = layout.create(tmp_path)
    x = torch.arange(15, dtype=torch.float32).reshape(5, 3).t()
    layout.write_inputs(mm, (x, 7))
    again = layout.attach(tmp_path)
    assert torch.equal(layout.read(again, X), x)
    assert layout.view(again, X).stride() == (1, 3)
    assert bytes(layout.buffer_bytes(again, 0)) == x.t().contiguous().numpy().tobytes()
    layout.view(again, X)[0, 0] = 99.0
    assert layout.view(mm, X)[0, 0] == 99.0, "both mappings are the same memory"
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets)


def test_what_a_job_left_is_copied(tmp_path):
    layout = Layout(make_plan())
    mm = layout.create(tmp_path)
    layout.view(mm, OUT).fill_(2.0)
    left = layout.left(tmp_path)
    layout.view(mm, OUT).fill_(3.0)
    assert (layout.read(left, OUT) == 2.0).all() and not layout.broken_guards(left)
    (tmp_path / "buffers.bin").write_bytes(bytes(layout.total - 1))
    with pytest.raises(LeftError, match=f"of {layout.total} bytes, got {layout.total - 1}"):
        layout.left(tmp_path)


GIVEN_BACK = """
layout.create(scratch)
for size in (0, layout.total):
    with open(scratch / "buffers.bin", "r+b") as file:
        file.truncate(size)
try:
    with open(scratch / "full", "wb", 0) as file:
        while True: file.write(bytes(4096))
except OSError as error:
    answer = [error.strerror]
answer.append(len(layout.broken_guards(layout.left(scratch))))
"""


@needs("tmpfs")
def test_blocks_that_a_job_gave_back_on_a_full_disk_are_read_as_zeros(tmp_path):
    """A mapped file would end the process: there is nothing to put where it looks."""
    before = (
        "from fitness.frontend.memory import Layout\n"
        "from tests.test_memory import make_plan\n"
        "layout = Layout(make_plan())"
    )
    assert inside(GIVEN_BACK, tmp_path, limits=IN_MEMORY, before=before) == ["No space left on device", 8]


def test_poison_is_nan_and_no_boolean(tmp_path):
    layout = Layout(make_plan())
    mm = layout.create(tmp_path)
    assert layout.read(mm, OUT).isnan().all() and layout.read(mm, X).isnan().all()
    with pytest.raises(JobError, match="output 1 holds booleans that were never written") as caught:
        layout.read(mm, MASK)
    assert caught.value.verdict is Verdict.WRONG
    layout.view(mm, TensorRef(2, "uint8", (6,), (1,))).copy_(torch.tensor([0, 1, 1, 0, 1, 0]))
    assert layout.read(mm, MASK).tolist() == [False, True, True, False, True, False]
    layout.poison(mm)
    assert int(layout.view(mm, TensorRef(2, "uint8", (6,), (1,))).min()) == 0xA5


def test_other_poisons_are_no_beginning_of_a_sum_or_a_maximum(tmp_path):
    layout = Layout(make_plan())
    _, high, low = (layout.read(layout.create(tmp_path, f"{i}.bin", p), OUT) for i, p in enumerate(POISONS))
    assert (high > 1e36).all() and (low < -1e36).all()
    for poison in POISONS:
        with pytest.raises(JobError, match="never written"):
            layout.read(layout.create(tmp_path, poison=poison), MASK)


def test_guards_notice_a_single_byte_on_either_side(tmp_path):
    layout = Layout(make_plan())
    mm = layout.create(tmp_path)
    assert layout.broken_guards(mm) == []
    end = layout.offsets[1] + 8
    for position in (end, end + 1, end + GUARD - 1, layout.offsets[0] - 1):
        mm[position] ^= 0xFF
    assert layout.broken_guards(mm) == [
        "1 bytes before argument 0 were overwritten",
        "3 bytes after output 0 were overwritten",
    ]
    assert layout.name(3) == "scratch buffer 3"


@pytest.mark.parametrize(
    ("tensors", "part"),
    [
        ((torch.zeros(3, 5), 7), "strides"),
        ((torch.zeros(5, 3, dtype=torch.float64).t(), 7), "float64"),
        ((torch.zeros(5, 4).t(), 7), r"\[4, 5\]"),
        ((1, 7), "not in both"),
        ((torch.zeros(5, 3).t(),), "2 arguments"),
    ],
)
def test_a_plan_of_other_arguments_is_refused(tmp_path, tensors, part):
    layout = Layout(make_plan())
    with pytest.raises(PlanError, match=part):
        layout.write_inputs(layout.create(tmp_path), tensors)


def test_empty_windows(tmp_path):
    ref = TensorRef(0, "float32", (0, 4), (4, 1))
    layout = Layout(LaunchPlan((Buffer(0),), (), (ref,), "tensor", ()))
    mm = layout.create(tmp_path)
    assert layout.read(mm, ref).shape == (0, 4) and layout.broken_guards(mm) == []

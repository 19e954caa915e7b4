"""Operators of plans: what makes tensors of tensors, and nothing else."""

from __future__ import annotations

import pytest
import torch

from evo.core.records import Verdict
from fitness.frontend.aten import execute, tensor_function, written
from fitness.frontend.plan import Op, TensorRef
from fitness.sandbox.jobs import JobError

CPU = torch.device("cpu")
X, OUT = (TensorRef(buffer, "float32", (2, 3), (3, 1)) for buffer in (0, 1))


@pytest.mark.parametrize(
    "name",
    ["mm.default", "add.Tensor", "sum.dim_IntList", "arange.start_step", "index_put_.default", "_foreach_add_.Scalar",
     "scatter_reduce.two", "gelu.default", "max.dim", "split.Tensor", "convolution.default", "full.default"],
)  # fmt: skip
def test_operators_on_tensors(name: str) -> None:
    function = tensor_function(f"aten.{name}")
    assert function is not None and str(function) == f"aten.{name}"


@pytest.mark.parametrize(
    "name",
    ["aten.from_file.default", "aten.save.default", "aten.warn.default", "aten.manual_seed.default",
     "aten.randn.default", "aten.bernoulli.default", "aten.normal_.default", "aten.native_dropout.default",
     "aten.resize_.default", "aten.set_.source_Tensor", "aten.set_.source_Storage", "aten.record_stream.default",
     "aten.as_strided.default", "aten.as_strided_scatter.default", "aten._sparse_coo_tensor_unsafe.default",
     "aten._nested_view_from_buffer.default", "aten.resize_as_sparse_.default",
     "aten.mm", "aten.mm.default.default", "aten.no_such.default", "aten.__class__.__init__", "os.system.default"],
)  # fmt: skip
def test_what_does_more_or_nothing_is_none(name: str) -> None:
    assert tensor_function(name) is None
    with pytest.raises(JobError, match="makes tensors of tensors") as caught:
        execute(Op(name, (X,), {}, (OUT,), 7), lambda ref: torch.zeros(ref.shape), CPU)
    assert (caught.value.verdict, caught.value.line) == (Verdict.UNSUPPORTED, 7)


def test_a_file_is_neither_read_nor_made(tmp_path) -> None:
    file = tmp_path / "made"
    forged = Op("aten.from_file.default", (str(file), True, 64), {"dtype": {"dtype": "float32"}}, (OUT,), 1)
    with pytest.raises(JobError):
        execute(forged, lambda ref: torch.zeros(64), CPU)
    assert not file.exists()


def test_results_go_to_the_windows_that_the_plan_names() -> None:
    memory = [torch.arange(6.0).view(2, 3), torch.full((2, 3), torch.nan)]

    def window(ref: TensorRef) -> torch.Tensor:
        return memory[ref.buffer]

    execute(Op("aten.mul.Scalar", (X, 2.0), {}, (OUT,), 1), window, CPU)
    assert torch.equal(memory[1], 2 * torch.arange(6.0).view(2, 3))
    execute(Op("aten.neg_.default", (X,), {}, (X,), 1), window, CPU)
    assert torch.equal(memory[0], -torch.arange(6.0).view(2, 3))
    execute(Op("aten.full.default", ((2, 3), 7.0), {"device": "cuda:5", "pin_memory": True}, (OUT,), 1), window, CPU)
    assert (memory[1] == 7).all()
    execute(Op("aten._foreach_add_.Scalar", ((X, OUT), 1.0), {}, (), 1), window, CPU)
    assert (memory[1] == 8).all() and memory[0][1, 2] == -4


def test_an_out_argument_stays_where_and_as_large_as_it_is() -> None:
    whole = torch.arange(12.0)
    memory = [whole[:6].view(2, 3), whole[6:].view(2, 3)]

    def window(ref: TensorRef) -> torch.Tensor:
        return memory[ref.buffer]

    execute(Op("aten.exp.out", (X,), {"out": OUT}, (OUT,), 1), window, CPU)
    assert torch.equal(memory[1], memory[0].exp())
    place, size = whole.data_ptr(), whole.untyped_storage().nbytes()
    with pytest.raises(JobError, match=r"made \[200, 3\] of out, which is \[2, 3\]"):
        execute(Op("aten.repeat.out", (X, (100, 1)), {"out": OUT}, (OUT,), 1), window, CPU)
    assert (whole.data_ptr(), whole.untyped_storage().nbytes()) == (place, size)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Op("aten.exp.default", (X,), {}, (OUT,)), [OUT]),
        (Op("aten.exp.out", (X,), {"out": OUT}, ()), [OUT]),
        (Op("aten.neg_.default", (X,), {}, ()), [X]),
        (Op("aten._foreach_add_.Scalar", ((X, OUT), 1.0), {}, ()), [X, OUT]),
    ],
)
def test_what_an_operator_writes_to(op: Op, expected: list[TensorRef]) -> None:
    assert written(op) == expected


@pytest.mark.parametrize(
    ("op", "part"),
    [
        (Op("aten.neg.default", (X,), {}, (), 3), "gave 1 tensors, the plan expects 0"),
        (Op("aten.mm.default", (X, X), {}, (OUT,), 3), "aten.mm.default: "),
    ],
)
def test_what_fails_is_the_candidates(op: Op, part: str) -> None:
    with pytest.raises(JobError, match=part) as caught:
        execute(op, lambda ref: torch.zeros(ref.shape), CPU)
    assert (caught.value.verdict, caught.value.line) == (Verdict.RUNTIME_ERROR, 3)

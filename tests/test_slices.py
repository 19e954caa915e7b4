"""The reference on parts of its inputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from evo.core.records import Case
from fitness.tasks.task import Task, load_task, run_reference
from fitness.verify import oracle, slices
from fitness.verify.slices import Slices

SEPARABLE = {
    "attention": ["ZH"],
    "cross_entropy": ["M"],
    "gemv_batched": ["BM"],
    "int8_matmul": ["MN"],
    "layer_norm": ["M"],
    "matmul": ["MN"],
    "matmul_backward": ["BMK", "BNK"],
    "rms_norm": ["M"],
    "rotary": ["BSH"],
    "scatter": ["N", "N"],
    "softmax": ["M"],
    "vector_sin": ["N"],
}


def random() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(0))


@pytest.mark.parametrize("name", SEPARABLE)
def test_the_axes_along_which_a_reference_can_be_cut_are_found(name: str) -> None:
    assert ["".join(axis.name for axis in axes) for axes in Slices(load_task(name)).axes] == SEPARABLE[name]


def changed(name: str, **fields: object) -> Task:
    return dataclasses.replace(load_task(name), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: torch.softmax(x, 0),  # over the rows
        lambda x: x - x.mean(),
        lambda x: x * torch.arange(x.shape[0], device=x.device)[:, None],  # the place of a row counts
        lambda x: x.flip(0),
    ],
)
def test_an_axis_along_which_elements_depend_on_each_other_is_not_cut(reference) -> None:
    (axes,) = Slices(changed("softmax", reference=reference)).axes
    assert "M" not in [axis.name for axis in axes]


def test_a_number_that_depends_on_the_size_keeps_an_axis_whole() -> None:
    def inputs(case: Case, generator: torch.Generator):
        return torch.randn(case.axes["M"], case.axes["N"], generator=generator), case.axes["M"]

    (axes,) = Slices(changed("softmax", inputs=inputs, reference=lambda x, m: torch.softmax(x, 1) * m)).axes
    assert axes == ()


@pytest.mark.parametrize("name", ["softmax", "matmul", "scatter", "matmul_backward"])
def test_what_is_expected_of_elements_is_what_the_whole_reference_gives(name: str) -> None:
    task = load_task(name)
    case = task.cases[-1].on_cpu()
    arguments = oracle.make_inputs(task, case, 3)
    whole = oracle.expect(task, case, 3)
    assert whole is not None
    found = Slices(task)
    for output, exact in enumerate(whole.outputs):
        at = np.stack([random().integers(0, n, 20) for n in exact.shape], axis=1)
        part = found.expected(case, "a", arguments, output, exact.shape, at, random())
        assert part is not None and part.budget is not None and 0 < part.budget.max < 1
        torch.testing.assert_close(part.exact, exact[tuple(torch.from_numpy(at.T))], rtol=1e-9, atol=1e-12)


def test_arguments_that_the_reference_writes_stay_as_they_are() -> None:
    task = load_task("scatter")
    case = task.cases[-1].on_cpu()
    arguments = oracle.make_inputs(task, case, 3)
    before = [a.clone() for a in arguments if isinstance(a, torch.Tensor)]
    _, outputs = run_reference(task, arguments)
    Slices(task).expected(case, "a", arguments, 1, outputs[1].shape, np.array([[0, 0]]), random())
    assert all(
        torch.equal(a, b) for a, b in zip(before, (a for a in arguments if isinstance(a, torch.Tensor)), strict=True)
    )


def test_a_reference_that_takes_too_long_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("softmax")
    arguments = oracle.make_inputs(task, task.cases[-1], 3)
    at = np.array([[5, 5]])
    shape = arguments[0].shape
    assert Slices(task).expected(task.cases[-1], "a", arguments, 0, shape, at, random()) is not None
    monkeypatch.setattr(slices, "ELEMENTS", 100)
    assert Slices(task).expected(task.cases[-1], "a", arguments, 0, shape, at, random()) is None


def test_a_slice_is_computed_once_and_old_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("softmax")
    asked = []
    monkeypatch.setattr(slices.oracle, "computed", lambda *a, real=oracle.computed: asked.append(a) or real(*a))
    case, found = task.cases[-1], Slices(task)
    arguments = oracle.make_inputs(task, case, 3)
    for row in (1, 1, 2, 1):
        found.expected(case, "a", arguments, 0, arguments[0].shape, np.array([[row, 0]]), random())
    assert len(asked) == 2
    found.expected(case, "other inputs", arguments, 0, arguments[0].shape, np.array([[1, 0]]), random())
    assert len(asked) == 3
    monkeypatch.setattr(slices, "KEPT_BYTES", 1)
    found.expected(case, "a", arguments, 0, arguments[0].shape, np.array([[3, 0]]), random())
    assert len(found._kept) == 1


@pytest.mark.parametrize("indices", [[2, 3, 4], [0], [0, 2, 3]])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_range_of_indices_is_selected_like_any_others(indices: list[int], dim: int) -> None:
    whole = torch.randn((5, 6), generator=torch.Generator().manual_seed(0))
    for x in (whole, whole.t(), whole[:, :1].expand(5, 6)):
        expected = x.index_select(dim, torch.tensor(indices))
        found = slices._selected(x, dim, np.array(indices))
        assert torch.equal(found, expected) and found.stride() == expected.stride()
        found.zero_()  # a copy: the reference may write to it
        assert x.any()

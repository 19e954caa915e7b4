"""Outputs are compared by form, by value and by bits."""

from __future__ import annotations

import pytest
import torch

from fitness.frontend.memory import POISONS, Poison
from fitness.verify.compare import compare_elements, compare_values, same_bits, same_outputs, same_where_defined
from fitness.verify.oracle import ErrorBudget

LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.T.contiguous().T,
    "odd address": lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("a", LAYOUTS)
@pytest.mark.parametrize("b", LAYOUTS)
def test_bits_are_compared_whatever_the_layout(dtype: torch.dtype, a: str, b: str) -> None:
    x = (torch.arange(12).view(3, 4) % 5 - 2).to(dtype)
    assert same_bits(LAYOUTS[a](x), LAYOUTS[b](x))
    other = x.clone()
    other[2, 3] = not other[2, 3] if dtype is torch.bool else other[2, 3] + 1
    assert not same_bits(LAYOUTS[a](x), LAYOUTS[b](other))


def test_bits_are_not_values() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_lists_of_outputs_are_the_same_if_form_and_bits_are() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert same_outputs([x], [x.T.contiguous().T]) and same_outputs([], [])
    assert not same_outputs([x], [x, x])
    assert not same_outputs([x], [x.view(3, 2)])
    assert not same_outputs([x], [x.double()])
    assert not same_outputs([x], [x + 1])


def test_elements_that_depend_on_the_memory_are_not_compared() -> None:
    first, second = torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([1.0, 3.0, float("nan")])
    assert same_where_defined([torch.tensor([1.0, 9.0, 9.0])], [first], [second])
    assert not same_where_defined([torch.tensor([9.0, 2.0, 0.0])], [first], [second])
    assert not same_where_defined([first.double()], [first], [second])


def test_the_worst_of_some_elements_is_named_by_its_place_in_the_output() -> None:
    exact, at = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), [(0, 5), (7, 1), (2, 2)]
    budget = ErrorBudget(rms=0.1, max=0.1)
    assert compare_elements(exact, torch.tensor([1.0, 2.05, 3.0]), budget, at) is None
    found = compare_elements(exact, torch.tensor([1.0, 2.5, 3.2]), budget, at)
    assert found == "(7, 1): expected 2, got 2.5 (largest error allowed 0.1)"
    assert compare_elements(exact, torch.tensor([1.0, 2.5, float("nan")]), budget, at).startswith("(2, 2)")
    whole = torch.tensor([1, 2])
    assert compare_elements(whole, torch.tensor([1, 3]), None, at) == "(7, 1): expected 2, got 3"
    assert compare_elements(whole, whole.clone(), None, at) is None


@pytest.mark.parametrize("poison", POISONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_an_element_that_nothing_has_written_is_told_as_such(dtype: torch.dtype, poison: Poison) -> None:
    exact = torch.ones(4, dtype=torch.float64 if dtype.is_floating_point else dtype)
    got = torch.ones(4, dtype=dtype)
    budget = ErrorBudget(1e-3, 1e-3) if dtype.is_floating_point else None
    got[2] = 7
    message = compare_values("output", exact, got, budget)[1]
    assert message and "(2,)" in message and "nothing has written" not in message
    got.view(torch.uint8)[-dtype.itemsize :] = poison.floating if dtype.is_floating_point else poison.other
    got[2] = 1
    message = compare_values("output", exact, got, budget)[1]
    assert message and "(3,)" in message and "the fill of memory that nothing has written" in message

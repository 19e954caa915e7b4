"""Elements that the precision of a task does not determine are no error of a kernel; all others are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from evo.core.records import Case
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle
from fitness.verify.compare import compare
from fitness.verify.oracle import ErrorBudget
from fitness.verify.undetermined import MOST, ONE_OF, TRIES, error_of_others

N = 2 * ONE_OF
BUDGET = ErrorBudget(rms=1e-6, max=1e-5)
ROW, OTHER = 7, 8


def output(*wrong: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An exact output of -1 everywhere, and one that has 1 at some places."""
    exact = torch.full((N,), -1.0, dtype=torch.float64)
    got = exact.float()
    got[list(wrong)] = 1.0
    return exact, got


def giving(*places: int, at: int = 3) -> Callable[[int], torch.Tensor]:
    """A reference that gives these elements 1 at its execution number `at` alone."""
    return lambda number: output(*places * (number == at))[1]


def test_an_element_that_the_reference_gives_too_is_not_compared() -> None:
    assert error_of_others(*output(ROW), BUDGET, giving(ROW)) == 0
    assert error_of_others(*output(ROW, OTHER), BUDGET, giving(ROW, OTHER)) == 0


@pytest.mark.parametrize(
    "again", [giving(), giving(OTHER), giving(ROW, at=TRIES)], ids=["never", "another element", "too late"]
)
def test_an_element_that_the_reference_never_gives_is_wrong(again: Callable[[int], torch.Tensor]) -> None:
    assert error_of_others(*output(ROW), BUDGET, again) is None


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_gives_nothing(value: float) -> None:
    def again(number: int) -> torch.Tensor:
        return torch.full((N,), value)

    assert error_of_others(*output(ROW), BUDGET, again) is None


def test_a_value_between_those_of_the_reference_is_given() -> None:
    exact, got = output(ROW)
    got[ROW] = 0.25
    assert error_of_others(exact, got, BUDGET, giving(ROW)) == 0
    got[ROW] = 1.0 + 4e-6  # More than the root mean square of errors beyond.
    assert error_of_others(exact, got, BUDGET, giving(ROW)) is None


def test_without_memory_for_it_an_output_stays_wrong() -> None:
    def again(number: int) -> list[torch.Tensor]:
        raise torch.OutOfMemoryError

    exact, got = output(ROW)
    expected = oracle.Expected("tensor", (exact,), (got.dtype,), ((1,),), (BUDGET,), again=again)
    assert "output is wrong" in (compare(expected, "tensor", [got])[1] or "")


def test_two_elements_must_both_be_given() -> None:
    assert error_of_others(*output(ROW, OTHER), BUDGET, giving(ROW)) is None


def test_many_elements_are_wrong_whatever_the_reference_gives() -> None:
    asked: list[int] = []

    def again(number: int) -> torch.Tensor:
        asked.append(number)
        return output(*range(N))[1]

    assert error_of_others(*output(*range(N // ONE_OF + 1)), BUDGET, again) is None
    large = torch.full((ONE_OF * 100,), -1.0, dtype=torch.float64)
    got = large.float()
    got[: MOST + 1] = 1.0
    assert error_of_others(large, got, BUDGET, again) is None
    assert error_of_others(*(t[: ONE_OF - 1] for t in output(ROW)), BUDGET, again) is None, "one of few is too many"
    assert not asked


def test_what_is_left_must_be_within_the_budget() -> None:
    exact, got = output(ROW)
    got[OTHER] += 5e-6  # Within the largest error that is allowed.
    found = error_of_others(exact, got, BUDGET, giving(ROW))
    assert found == pytest.approx(0.5, rel=1e-2)
    got += 5e-6
    assert error_of_others(exact, got, BUDGET, giving(ROW)) is None


# --- with a reference ------------------------------------------------------------------------------------------------


def cancelling(dtype: str = "float32") -> tuple[Task, Case]:
    """tanh of sums, of which one cancels: float32 rounds 1e9 + 31 to 1e9."""

    def inputs(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        x = torch.randn(N, 4, generator=generator, device=generator.device)
        x[ROW] = torch.tensor([1e9, 31.0, -1e9, -20.0])
        return (x.to(getattr(torch, dtype)),)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x[:, 0] + x[:, 2]) + (x[:, 1] + x[:, 3]))

    softmax = load_task("softmax")
    return dataclasses.replace(softmax, inputs=inputs, reference=reference), softmax.cases[0]


def test_a_sum_in_another_order_is_right_though_one_element_has_the_other_sign() -> None:
    task, case = cancelling()
    expected = oracle.expect(task, case, 0)
    (x,) = oracle.make_inputs(task, case, 0)
    kernel = torch.tanh(((x[:, 0] + x[:, 1]) + x[:, 2]) + x[:, 3])
    assert expected is not None and expected.outputs[0][ROW] > 0.99 and kernel[ROW] == -1
    assert expected.budgets[0] is not None and expected.budgets[0].max < 1e-4
    ratio, message = compare(expected, "tensor", [kernel])
    assert message is None and ratio < 1
    kernel[ROW] = -1.01  # the reference gives -1 to 1
    assert "output is wrong" in (compare(expected, "tensor", [kernel])[1] or "")
    kernel[ROW] = -1.0
    kernel[OTHER] = -kernel[OTHER]
    assert "output is wrong" in (compare(expected, "tensor", [kernel])[1] or "")


def test_inputs_move_by_one_step_and_otherwise_each_time() -> None:
    task, case = cancelling()
    task = dataclasses.replace(task, reference=lambda x: x.clone())
    expected = oracle.expect(task, case, 0)
    assert expected is not None and expected.again is not None
    (x,) = oracle.make_inputs(task, case, 0)
    (first,), (second,) = expected.again(0), expected.again(1)
    assert not torch.equal(first, second) and torch.equal(expected.again(0)[0], first)
    steps = [torch.nextafter(x, torch.full_like(x, limit)) for limit in (torch.inf, -torch.inf)]
    assert bool(((first == steps[0]) | (first == steps[1])).all())


def test_a_step_of_a_narrow_format_is_more_than_rounding() -> None:
    task, case = cancelling("bfloat16")
    expected = oracle.expect(task, case, 0)
    assert expected is not None and expected.again is None

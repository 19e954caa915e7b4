"""First looks on a GPU: they are taken as long as they save more than they cost."""

from __future__ import annotations

from typing import Any

from evo.core.records import Bar, Candidate, Check, Timing, Verdict
from fitness.evaluator import BackendResult, Look, TaskEvaluator
from fitness.first_looks import LATEST, TRIED, FirstLooks


def looks_of(cost: float, ended: list[bool]) -> FirstLooks:
    """Looks of `cost` seconds each, evaluations of one second of those that they do not end."""
    looks = FirstLooks()
    for each in ended:
        looks.looked(cost, ended=each)
        if not each:
            looks.evaluated(1.0, below=None)
    return looks


def test_looks_pay_if_they_save_more_than_they_cost() -> None:
    assert looks_of(0.3, [True, False] * TRIED).pay()  # half of the evaluations are saved
    assert not looks_of(0.6, [True, False] * TRIED).pay()
    assert not looks_of(0.1, [False] * TRIED).pay()
    assert looks_of(0.1, [True] * TRIED).pay()


def test_the_first_are_looked_at_in_any_case() -> None:
    assert looks_of(10.0, [False] * (TRIED - 1)).pay()
    assert not looks_of(10.0, [False] * TRIED).pay()


def test_what_a_look_would_have_ended_counts_too() -> None:
    looks = looks_of(0.3, [False] * TRIED)
    assert not looks.pay()
    for _ in range(LATEST):
        looks.evaluated(1.0, below=True)
    assert looks.pay()
    for _ in range(LATEST):
        looks.evaluated(1.0, below=False)
    assert not looks.pay()


class Measured:
    """A backend that counts seconds, as one with a GPU does; `ratio` is what it measures."""

    stage = "time"
    environment: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, cases: list[str], ratio: float) -> None:
        self.cases, self.ratio, self.looks = cases, ratio, 0

    def timings(self) -> tuple[Timing, ...]:
        r = self.ratio
        return tuple(Timing(case, (1.0,), (r,), r, (r, r), False) for case in self.cases)

    def look(self, source: str, compiled: Any, key: str) -> Look:
        self.looks += 1
        return Look(self.timings(), {"time": 0.3})

    def evaluate(self, source: str, compiled: Any, key: str) -> BackendResult:
        choices = {case: [0] for case in self.cases}
        return BackendResult(Check(1, "square", 0.1, 1.0), self.timings(), choices, seconds={"time": 1.0})


def test_an_evaluator_looks_as_long_as_it_pays(evaluators: Any) -> None:
    there = evaluators("softmax")
    backend: Any = Measured([case.name for case in there.task.cases if case.role == "tune"], 2.0)
    evaluator = TaskEvaluator(there.task, there.target, there._front_end, backend)
    evaluator.__dict__["_attainable_us"] = {}  # of the seed, which nothing here prepares
    sources = iter([Candidate(f"{there.task.needed_seed}\nNEW = {number}\n") for number in range(100)])

    def verdicts(count: int) -> set[Verdict]:
        return {evaluator.evaluate(next(sources), seed=0, known={}, bar=Bar(1.5)).verdict for _ in range(count)}

    assert verdicts(TRIED + 4) == {Verdict.OK}
    assert backend.looks == TRIED
    backend.ratio = 1.0  # below the bar
    assert verdicts(TRIED) == {Verdict.OK, Verdict.SLOW}
    assert backend.looks > TRIED, "enough were below the bar: looks pay again"
    assert evaluator.evaluate(next(sources), seed=0, known={}).verdict is Verdict.OK, "without a bar there is no look"

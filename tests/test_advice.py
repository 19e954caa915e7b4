"""The advice to users about slow cases and failing seeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evo.core.records import Case, Verdict
from fitness.tasks.advice import on_failing_seed, slow_case

SMALL = {"M": 4, "N": 100}
BIG = {"M": 4096, "N": 16}
HUGE = {"M": 4096, "N": 4096}


def task(*cases: Case) -> Any:
    return SimpleNamespace(cases=cases)


@pytest.mark.parametrize(
    "cases", [(Case("a", BIG),), (Case("a", HUGE, cpu_axes=SMALL), Case("b", SMALL, role="holdout"))]
)
def test_what_is_small_without_a_gpu_needs_no_advice(cases: tuple[Case, ...]) -> None:
    assert slow_case(task(*cases)) == ""


def test_a_large_case_without_cpu_axes_is_named_with_what_to_write() -> None:
    slow = slow_case(task(Case("a", BIG), Case("b", HUGE)))
    assert "case 'b' has no cpu_axes" in slow and "M=4,096, N=4,096" in slow
    assert slow.endswith("cpu_axes={'M': 64, 'N': 64}")


def test_a_timeout_of_a_seed_says_which_case_is_too_large() -> None:
    found = on_failing_seed(task(Case("b", HUGE)), Verdict.TIMEOUT, "used all its CPU time, 30 s at most")
    assert found.startswith("Case 'b' has no cpu_axes") and "tolerance" not in found


def test_a_wrong_seed_says_what_may_be_set() -> None:
    errors = "largest error 1, 2e-05 of the largest value, rms error 1, 0.003 of the rms value"
    message = f"big (tune), inputs 'large', forward program order: output is wrong: {errors}"
    found = on_failing_seed(task(Case("big", SMALL)), Verdict.WRONG, message)
    assert "inputs 'large' are stressed ones, not those of the task: stress = False" in found
    assert "From about tolerance = 0.003 on" in found
    hopeless = on_failing_seed(task(Case("big", SMALL)), Verdict.WRONG, "largest error 9, 9 of the largest value")
    plain = on_failing_seed(task(Case("big", SMALL)), Verdict.WRONG, "big (tune), inputs 'normal': must be float32")
    assert plain == hopeless == "Correct kernel.py, the reference or the tolerance."

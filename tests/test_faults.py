"""fitness.cuda.faults."""

from __future__ import annotations

import pytest

from evo.core.records import Verdict
from fitness.cuda.faults import HARMLESS, MACHINE, verdict_of, verdict_of_text


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("CUDA_ERROR_ILLEGAL_ADDRESS", Verdict.RUNTIME_ERROR),
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Verdict.OUT_OF_MEMORY),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", Verdict.INFRASTRUCTURE),
    ],
)
def test_whose_fault_an_error_is(name: str, verdict: Verdict) -> None:
    assert verdict_of(name) is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("CUDA error: uncorrectable ECC error encountered", Verdict.INFRASTRUCTURE),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", Verdict.INFRASTRUCTURE),
        ("CUDA error: an illegal memory access was encountered", Verdict.RUNTIME_ERROR),
    ],
)
def test_whose_fault_a_text_is(text: str, verdict: Verdict) -> None:
    assert verdict_of_text(text) is verdict


def test_no_fault_of_the_machine_is_harmless() -> None:
    assert not HARMLESS & set(MACHINE)


def test_the_names_are_those_of_the_driver() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert set(MACHINE) | HARMLESS <= set(driver.CUresult.__members__)

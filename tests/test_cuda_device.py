"""Clocks that make times incomparable, whose fault an error is, and the facts of a real GPU."""

import pytest
import torch

from evo.core.records import Verdict

pytest.importorskip("pynvml")

from fitness.cuda.device import HARMLESS, MACHINE, Clocks, Watch, device_facts, disturbance, verdict_of, verdict_of_text

CALM = Clocks(1980, 3201, frozenset())


def test_small_changes_of_the_clock_do_not_disturb():
    assert disturbance(CALM, CALM) is None
    assert disturbance(CALM, Clocks(1965, 3201, frozenset())) is None


@pytest.mark.parametrize(
    ("after", "part"),
    [
        (Clocks(1755, 3201, frozenset()), "from 1980 to 1755 MHz"),
        (Clocks(1980, 2619, frozenset()), "memory clock"),
        (Clocks(1980, 3201, frozenset({"power brake"})), "power brake"),
    ],
)
def test_other_clocks_and_throttling_disturb(after, part):
    assert part in disturbance(CALM, after)
    assert disturbance(after, CALM) is not None


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_facts_of_this_gpu():
    facts = device_facts(0)
    assert facts.name == torch.cuda.get_device_name(0)
    assert 0.3 * facts.dram_bytes_per_s < facts.copy_bytes_per_s < 1.05 * facts.dram_bytes_per_s
    assert facts.matmul_flops > 1e13
    clocks = Watch(0).read()
    assert 0 < clocks.multiprocessor_mhz * 1e6 <= facts.max_clock_hz

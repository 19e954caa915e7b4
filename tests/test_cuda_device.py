"""States of the clocks that make times incomparable, and the facts of a real GPU."""

import pytest
import torch

pytest.importorskip("pynvml")

from fitness.cuda.device import Clocks, GpuWatch, device_facts, disturbance
from fitness.frontend.target import LIMITS, TARGETS, sm_name

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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_facts_of_this_gpu():
    facts = device_facts(0)
    assert facts.name == torch.cuda.get_device_name(0)
    assert 0.3 * facts.dram_bytes_per_s < facts.copy_bytes_per_s < 1.05 * facts.dram_bytes_per_s
    assert facts.matmul_flops > 1e13
    known = TARGETS.get(sm_name(facts.capability))
    assert known is None or {name: getattr(facts, name) for name in LIMITS} == {
        name: getattr(known, name) for name in LIMITS
    }
    clocks = GpuWatch(0).read()
    assert 0 < clocks.multiprocessor_mhz * 1e6 <= facts.max_clock_hz

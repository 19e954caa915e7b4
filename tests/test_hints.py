"""The table of hints: each can be given, none is given to a kernel that lacks nothing, few at a time."""

import pytest

from evo.core.records import BOTTLENECKS
from fitness.profile.hints import MOST, RULES, hints
from fitness.profile.profile import NAMES

# Readings of a kernel that lacks nothing.
HEALTHY = {
    "dram": 92.0, "l2": 30.0, "issue": 20.0, "waiting": 20.0, "launch": 1.0, "occupancy": 75.0, "programs": 32.0,
    "tail": 3.0, "spills": 0.0, "load_bytes": 16.0, "moved": 1.01, "scattered": 0.0, "atomics": 0.0, "special": 5.0,
    "by_registers": 0.0, "by_shared": 0.0, "sector": 100.0, "l2_hit": 60.0, "conflicts": 0.0, "intensity": 0.5,
    "tensor_instructions": 0.0, "mma_sync": 0.0, "wgmma": 0.0, "stall_barrier": 2.0, "stall_long_scoreboard": 20.0,
}  # fmt: skip

# hint -> (bottleneck, what is wrong)
AILING = {
    "spills": ("compute", {"spills": 256.0}),
    "more-programs": ("parallelism", {"programs": 0.2}),
    "even-waves": ("compute", {"tail": 40.0}),
    "fewer-bytes": ("memory", {"moved": 3.0}),
    "whole-sectors": ("memory", {"sector": 25.0}),
    "wider-loads": ("memory", {"load_bytes": 4.0}),
    "atomics": ("memory", {"atomics": 50.0}),
    "occupancy-registers": ("latency", {"occupancy": 25.0, "by_registers": 1.0}),
    "occupancy-shared": ("latency", {"occupancy": 12.5, "by_shared": 1.0}),
    "barriers": ("latency", {"stall_barrier": 40.0}),
    "loads-ahead": ("latency", {"stall_long_scoreboard": 60.0}),
    "bank-conflicts": ("compute", {"conflicts": 2.0}),
    "tensor-cores": ("compute", {"intensity": 400.0}),
    "wgmma": ("compute", {"mma_sync": 8.0, "tensor_instructions": 8.0}),
    "special-functions": ("compute", {"special": 80.0}),
    "fewer-instructions": ("compute", {"issue": 90.0}),
    "launches": ("overhead", {"launch": 60.0}),
    "cache-order": ("memory", {"l2_hit": 20.0, "moved": 1.2}),
}


@pytest.mark.parametrize("hint", [r.id for r in RULES])
def test_each_hint_is_given_where_its_matter_is_wrong(hint):
    bottleneck, wrong = AILING[hint]
    assert [h.id for h in hints(bottleneck, HEALTHY | wrong)] == [hint]


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_a_kernel_that_lacks_nothing_gets_no_hint(bottleneck):
    assert hints(bottleneck, HEALTHY) == ()


@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_what_was_not_read_gives_no_hint(bottleneck):
    assert hints(bottleneck, {}) == ()


def test_at_most_three_are_given_in_the_order_of_the_table():
    everything = HEALTHY | {k: v for b, wrong in AILING.values() if b == "latency" for k, v in wrong.items()}
    given = [h.id for h in hints("latency", everything | {"spills": 99.0, "load_bytes": 4.0})]
    assert given == ["spills", "wider-loads", "occupancy-registers"]
    assert len(given) == MOST


def test_the_table_holds_together():
    ids = [r.id for r in RULES]
    assert len(set(ids)) == len(ids) and set(AILING) == set(ids)
    assert all(set(r.classes) <= set(BOTTLENECKS) and r.action.endswith(".") for r in RULES)
    assert set(HEALTHY) <= set(NAMES)

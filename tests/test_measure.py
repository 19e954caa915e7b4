"""What a candidate may try while it is verified and timed; kernels are Python functions (`tests/bench_on_cpu.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from evo.records import Verdict
from fitness.gpu.buffers import DeviceMemory
from fitness.stages import Stop
from tests.bench_on_cpu import CpuBench, Function, at, doubling, plan_of

SHORT, LONG = 20.0, 200.0  # microseconds: of what is timed as several copies, and as one
POISONED = (0xFFFFFFFF, 0x7B7B7B7B, 0xFBFBFBFB)


@pytest.fixture
def made(monkeypatch, tmp_path) -> Callable[..., CpuBench]:
    return lambda us, **task: CpuBench(monkeypatch, tmp_path, doubling(us), **task)


def apart() -> int:
    plan = plan_of(1024)
    memory = DeviceMemory(plan, torch.device("cpu"), 2)
    return memory.address(plan.outputs[0], 1) - memory.address(plan.outputs[0], 0)


@pytest.mark.parametrize(("us", "copies"), [(SHORT, 16), (LONG, 1)])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("stress", [True, False])
def test_a_right_kernel_is_ok_and_has_its_speed(made, us, copies, deterministic, stress):
    lab = made(us, deterministic=deterministic, stress=stress)
    assert lab.prepared.verdict is Verdict.OK
    report = lab.evaluate(doubling(us / 2))
    (timing,) = report.timings
    assert timing.ratio == pytest.approx(2) and timing.terms["counts"] == 1
    assert timing.terms["launches_per_sample"] == copies
    assert report.check.cases >= 6 + (5 if stress else 0)


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_a_wrong_kernel_is_wrong(made, us):
    def wrong(x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2.001 * at(x, n)
        return us

    with pytest.raises(Stop, match="output is wrong"):
        made(us).evaluate(wrong)


def ends_of(lab: CpuBench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the memory of the youngest program ends: what a kernel finds out by looking beside its own."""
    from fitness.gpu import replay

    ends: list[int] = []
    build = replay.Program.build

    def noted(program: Any) -> None:
        ends.append(program.memory._whole.data_ptr() + program.memory._whole.numel())
        build(program)

    monkeypatch.setattr(replay.Program, "build", noted)
    return ends


def test_one_launch_cannot_do_the_work_of_all_copies(made, monkeypatch):
    lab = made(SHORT)
    ends, step = ends_of(lab, monkeypatch), apart()

    def batched(x: int, y: int, n: int) -> float:
        if at(y, n, np.uint32)[0] not in POISONED:
            return 2.0
        for there in range(0, ends[-1] - y, step):
            with np.errstate(all="ignore"):  # beyond the last copy
                at(y + there, n)[:] = 2 * at(x + there, n)
        return SHORT

    with pytest.raises(Stop, match="stored into memory of another launch"):
        lab.evaluate(batched)


def flipped(x: int, i: int) -> bool:
    """Whether bit 30 of a normal number is not what it was: it is far too large or too small."""
    return not 60 <= (int(at(x, i + 1, np.uint32)[i]) >> 23) & 255 <= 180


def keep(x: int, count: int) -> None:
    for i in range(5):
        if count >> i & 1:
            at(x, 5, np.uint32)[i] ^= np.uint32(1 << 30)


def take(x: int) -> int:
    count = sum(flipped(x, i) << i for i in range(5))
    keep(x, count)
    return count


def counting(lasts: int, work: Callable[[int, int, int, int], float]) -> Function:
    """A kernel that counts in its argument the replays that begin as timed ones once all did, and cleans up."""

    def function(x: int, y: int, n: int) -> float:
        first = int(at(y, n, np.uint32)[0]) == POISONED[0]
        count = take(x)
        us = work(count, x, y, n)
        if first and n == 1024 and count < lasts:
            keep(x, count + 1)
        return us

    return function


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_results_kept_in_an_argument_by_a_single_copy_are_seen(made, seed):
    def work(count: int, x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2 * at(x, n)
        return LONG if count <= 1 else SHORT

    with pytest.raises(Stop, match="modified"):
        made(LONG).evaluate(counting(21, work), seed)


def test_what_is_in_an_argument_between_timed_replays_alone_is_seen(made):
    """By looks that nobody can foresee, of which each misses it half the time."""
    lab, timed = made(LONG), []
    pairs = lab.bench._pairs

    def watched(*args: Any) -> Any:
        timed.append(True)
        try:
            return pairs(*args)
        finally:
            timed.clear()

    def keeping(x: int, y: int, n: int) -> float:
        take(x)
        at(y, n)[:] = 2 * at(x, n)
        if timed:
            keep(x, len(timed) % 2)
            timed.append(True)
        return LONG

    lab.bench._pairs = watched
    seen = []
    for seed in range(6):
        try:
            lab.evaluate(keeping, str(seed))
        except Stop as stop:
            seen.append(stop.message)
    assert len(seen) > 1
    assert set(seen) == {"case one: a timed replay modified argument 0; copy it instead"}


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_work_that_is_skipped_where_results_may_differ_is_seen(made, seed):
    def work(count: int, x: int, y: int, n: int) -> float:
        if count > 1:
            return SHORT
        at(y, n)[:] = 2 * at(x, n)
        return LONG

    with pytest.raises(Stop):
        made(LONG, deterministic=False).evaluate(counting(21, work), seed)


def test_work_that_is_skipped_now_and_then_where_results_may_differ_is_found(made):
    """Of outputs that are not equal to the bit some are kept and compared: nobody knows which."""
    lab, timed = made(LONG, deterministic=False), []
    pairs = lab.bench._pairs

    def skipping(x: int, y: int, n: int) -> float:
        if timed:
            return SHORT
        return doubling(LONG)(x, y, n)

    def watched(program: Any, baseline: Any, count: int) -> Any:
        timed.append(program)
        try:
            return pairs(program, baseline, count)
        finally:
            timed.clear()

    lab.bench._pairs = watched
    with pytest.raises(Stop, match="timed inputs"):
        lab.evaluate(skipping)


def test_what_one_candidate_does_to_the_seeds_memory_is_not_held_against_the_next(made):
    lab = made(SHORT)
    (baseline,) = (b for (name, copies), b in lab.bench._baselines.items() if copies > 1)

    def stray(x: int, y: int, n: int) -> float:
        at(x - 4, 1, np.uint32)[0] ^= 1
        baseline.memory._whole[0, 100] += 1
        return doubling(SHORT)(x, y, n)

    with pytest.raises(Stop, match="out of bounds"):
        lab.evaluate(stray)
    assert baseline.broken_guards()
    assert lab.evaluate(doubling(SHORT)).verdict is Verdict.OK


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("where", ["guard zone", "argument"])
def test_who_stores_into_the_seeds_memory_while_it_is_timed_is_wrong(made, us, where):
    lab = made(us)
    baselines = [b for (name, _), b in lab.bench._baselines.items() if name == "one"]
    pairs, timed = lab.bench._pairs, []

    def watched(*args: Any) -> Any:
        timed.append(True)
        return pairs(*args)

    def stray(x: int, y: int, n: int) -> float:
        for baseline in baselines if timed else ():
            zone = (
                baseline.memory._whole[0, :8] if where == "guard zone" else baseline.memory.window(plan_of(n).inputs[0])
            )
            zone[0] = zone[0] + 1
        return doubling(us)(x, y, n)

    lab.bench._pairs = watched
    with pytest.raises(Stop, match="stored into the memory of the kernel timed beside it"):
        lab.evaluate(stray)


def test_what_makes_the_seed_slow_beside_a_candidate_is_no_speedup(made):
    lab = made(SHORT)
    pairs = lab.bench._pairs
    slow = [3.0]

    def disturbed(program: Any, baseline: Any, count: int) -> Any:
        own, seed = pairs(program, baseline, count)
        factor = slow[0] if len(slow) == 1 else slow.pop(0)
        return own, [factor * us for us in seed]

    lab.bench._pairs = disturbed
    (timing,) = lab.evaluate(doubling(SHORT / 1.2)).timings
    assert timing.terms["blocks_retaken"] >= 2
    assert timing.terms["baseline_drift"] == pytest.approx(3)
    assert timing.ratio == pytest.approx(1.2) and timing.ci95[1] == pytest.approx(1.2)
    slow[:] = [3.0, 1.0]
    (timing,) = lab.evaluate(doubling(SHORT / 1.2)).timings
    assert timing.terms["blocks_retaken"] == 1
    assert timing.terms["baseline_drift"] == 1
    assert timing.ratio == pytest.approx(1.2)


def test_a_seed_that_is_slow_on_some_inputs_has_not_drifted(made, monkeypatch, tmp_path):
    def ragged(factor: float) -> Function:
        def function(x: int, y: int, n: int) -> float:
            doubling(0)(x, y, n)
            return factor * LONG * (1.0 if float(at(x, n).mean()) > 0 else 1.5)

        return function

    lab = CpuBench(monkeypatch, tmp_path, ragged(1.0))
    slow = set()
    for seed in range(6):
        (timing,) = lab.evaluate(ragged(0.8), str(seed)).timings
        assert timing.ratio == pytest.approx(1.25) and timing.terms["counts"] == 1
        assert timing.terms["baseline_drift"] == 1 and timing.terms["blocks_retaken"] == 0
        slow.add(timing.baseline_us[0])
    assert len(slow) == 2


def test_inputs_of_which_there_are_few_are_not_timed_side_by_side(made):
    few = "torch.randint(0, 6, (1,), generator=generator, device=generator.device)"
    lab = made(SHORT, draw=f'torch.arange(1.0, case.axes["N"] + 1, device=generator.device) + {few}')
    assert lab.prepared.timings[0].terms["launches_per_sample"] == 1
    assert lab.evaluate(doubling(SHORT / 2)).timings[0].ratio == pytest.approx(2)

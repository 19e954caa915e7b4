"""What a candidate may try while it is verified and timed; kernels are Python functions (`tests/bench_on_cpu.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from evo.core.records import Verdict
from fitness.frontend.stages import Stop
from fitness.gpu.buffers import DeviceMemory
from tests.bench_on_cpu import CpuBench, Function, at, doubling, plan_of

SHORT, LONG = 20.0, 200.0  # microseconds: of what is timed as several copies, and as one
SEEN_AS_WRONG = r"(timed inputs|inputs of one copy): output is|gave other outputs than the verified one"
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
    assert timing.ratio == pytest.approx(2) and timing.significant
    assert timing.terms["launches_per_sample"] == copies
    assert report.check.cases >= 6 + (5 if stress else 0)


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_a_wrong_kernel_is_wrong(made, us):
    def wrong(x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2.001 * at(x, n)
        return us

    with pytest.raises(Stop, match="output is wrong"):
        made(us).evaluate(wrong)


def around(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[int, int]]:
    """Where the memory of the program begins and ends that an address belongs to: what a kernel finds by looking."""
    from fitness.gpu import program as replay

    known: list[tuple[int, int]] = []
    build = replay.Program.build

    def noted(program: Any) -> None:
        start = program.memory._whole.data_ptr()
        known.append((start, start + program.memory._whole.numel()))
        build(program)

    monkeypatch.setattr(replay.Program, "build", noted)
    return lambda address: next((a, b) for a, b in reversed(known) if a <= address < b)


def double_all(x: int, y: int, n: int, offsets: range) -> None:
    for offset in offsets:
        with np.errstate(all="ignore"):  # beyond the last copy
            at(y + offset, n)[:] = 2 * at(x + offset, n)


def first_does_all(bounds: Callable[[int], tuple[int, int]]) -> Function:
    step = apart()

    def function(x: int, y: int, n: int) -> float:
        if at(y, n, np.uint32)[0] not in POISONED:
            return 2.0
        double_all(x, y, n, range(0, bounds(y)[1] - y, step))
        return SHORT

    return function


def last_does_all(bounds: Callable[[int], tuple[int, int]]) -> Function:
    step = apart()

    def function(x: int, y: int, n: int) -> float:
        begin, end = bounds(y)
        if y + step < end:
            return 2.0
        double_all(x, y, n, range(0, begin - y, -step))
        return SHORT

    return function


def every_other_does_two(bounds: Callable[[int], tuple[int, int]]) -> Function:
    """And keeps the second in the guard zone after it, mixed with what belongs there, until that launch comes."""
    step = apart()

    def function(x: int, y: int, n: int) -> float:
        begin, end = bounds(y)
        zone = at(y + 4 * n, n, np.uint32)
        if (y - begin) // step % 2 == 0:
            doubling(0)(x, y, n)
            if y + step < end:
                with np.errstate(all="ignore"):
                    zone ^= (2 * at(x + step, n)).view(np.uint32)
            return SHORT
        before = at(y - step + 4 * n, n, np.uint32)
        at(y, n, np.uint32)[:] = before ^ zone
        before[:] = zone
        return 2.0

    return function


@pytest.fixture
def timed(monkeypatch) -> list[bool]:
    """Not empty while samples are taken: what a kernel that counts its replays could know."""
    from fitness.gpu import timer as timer

    found: list[bool] = []

    def watched(name: str) -> None:
        method = getattr(timer.Timer, name)

        def during(*args: Any) -> Any:
            found.append(True)
            try:
                return method(*args)
            finally:
                found.clear()

        monkeypatch.setattr(timer.Timer, name, during)

    for name in ("pairs", "alone"):
        watched(name)
    return found


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("cheat", [first_does_all, last_does_all, every_other_does_two])
def test_one_launch_cannot_do_the_work_of_others(made, monkeypatch, timed, cheat, at_first, deterministic):
    """Neither from the beginning nor once it is timed."""
    lab = made(SHORT, deterministic=deterministic)
    function = cheat(around(monkeypatch))
    seen = r"did not do the work of its own copy alone|stored out of bounds"
    with pytest.raises(Stop, match=seen) as stop:
        lab.evaluate(lambda x, y, n: (function if timed or at_first else doubling(SHORT))(x, y, n))
    assert stop.value.verdict is Verdict.WRONG


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("stress", "looks"), [(True, True), (True, False), (False, False)])
def test_work_done_ahead_where_nobody_looks_is_of_no_use(made, monkeypatch, timed, stress, looks, deterministic):
    """Even for launches that look at some of their inputs before they take it, where elements may change."""
    lab, bounds, step = made(SHORT, stress=stress, deterministic=deterministic), around(monkeypatch), apart()
    ahead: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def function(x: int, y: int, n: int) -> float:
        if x in ahead and (not looks or np.array_equal(ahead[x][0], at(x, n)[::100])):
            at(y, n)[:] = ahead.pop(x)[1]
            return 2.0
        doubling(0)(x, y, n)
        for copy in range(x + step, bounds(y)[1] if timed else x, step):
            with np.errstate(all="ignore"):
                ahead[copy] = at(copy, n)[::100].copy(), 2 * at(copy, n)
        return SHORT

    with pytest.raises(Stop, match="did not do the work of its own copy alone"):
        lab.evaluate(function)


def test_beside_others_every_replay_begins_from_one_poison(made, monkeypatch):
    """Or another one would say that it is timed."""
    lab, bounds = made(SHORT), around(monkeypatch)
    cheat = first_does_all(bounds)

    def honest_at_first(x: int, y: int, n: int) -> float:
        begin, end = bounds(y)
        is_first = at(y, n, np.uint32)[0] == POISONED[0] or end - begin < 2 * apart()
        return (doubling(SHORT) if is_first else cheat)(x, y, n)

    (timing,) = lab.evaluate(honest_at_first).timings
    assert set(timing.samples_us) == {SHORT}


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
    pairs = lab.bench.timer.pairs

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

    lab.bench.timer.pairs = watched
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
    pairs = lab.bench.timer.pairs

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

    lab.bench.timer.pairs = watched
    with pytest.raises(Stop, match="timed inputs"):
        lab.evaluate(skipping)


class Memo:
    """A kernel that keeps results where nobody looks, and takes them where it sees the same inputs again.

    share: takes them in that share of replays; unless_new: does nothing on inputs that it does not know, once it
    knows as many as that.
    """

    def __init__(self, us: float, share: float = 1.0, unless_new: float = np.inf) -> None:
        self.us, self.share, self.unless_new = us, share, unless_new
        self.kept: dict[bytes, np.ndarray] = {}
        self.random = np.random.default_rng(0)

    def __call__(self, x: int, y: int, n: int) -> float:
        key = at(x, n).tobytes()
        if key in self.kept and self.random.random() < self.share:
            at(y, n)[:] = self.kept[key]
            return self.us / 5
        if len(self.kept) < self.unless_new:
            doubling(self.us)(x, y, n)
            self.kept[key] = at(y, n).copy()
            return self.us
        return self.us / 5


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_results_kept_where_nobody_looks_are_of_no_use(made, us, deterministic, share):
    lab = made(us, deterministic=deterministic)
    with pytest.raises(Stop, match=r"[25]\.[0-9]+ times as long on inputs that it was not timed on before") as stop:
        lab.evaluate(Memo(us, share))
    assert stop.value.verdict is Verdict.REJECTED
    assert lab.evaluate(doubling(us)).timings[0].ratio == pytest.approx(1)


@pytest.mark.parametrize("cheats", [False, True])
def test_a_host_that_is_late_is_no_reason_to_refuse_a_kernel(made, cheats):
    """It adds its delay to a sample that is taken alone, unless the device is busy for as long before it."""
    lab, (fill_us, late_us) = made(SHORT if cheats else 20 * SHORT), (25.0, 200.0)  # a delay is little to a long seed
    timer, fills = lab.bench.timer, 0
    evict, once = timer.evict, timer.once

    def filling() -> None:
        nonlocal fills
        fills += 1
        evict()

    def late(graph: Any, before: Callable[[], None]) -> float:
        nonlocal fills
        fills = 0
        us = once(graph, before)
        return us + max(0.0, late_us - fill_us * fills)

    timer.evict, timer.once = filling, late
    kernel = Memo(SHORT) if cheats else doubling(SHORT)
    with pytest.raises(Stop, match="times as long on inputs") if cheats else nullcontext():
        assert lab.evaluate(kernel).verdict is Verdict.OK
    assert fills > 2


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("deterministic", [True, False])
def test_where_the_seed_is_the_reference_it_is_the_same(made, us, deterministic):
    """The seed's program that is timed says what is right, too."""
    lab = made(us, deterministic=deterministic, reference='reference = "seed"')
    assert lab.bench.task.reference is None
    with pytest.raises(Stop, match="times as long on inputs that it was not timed on before"):
        lab.evaluate(Memo(us))
    assert lab.evaluate(doubling(us / 2)).timings[0].ratio == pytest.approx(2)


@pytest.mark.parametrize(("us", "known"), [(SHORT, 36), (SHORT, 37), (SHORT, 60), (LONG, 8), (LONG, 9), (LONG, 16)])
def test_inputs_that_are_new_cannot_be_left_out(made, us, known):
    """Neither where it is first executed on those that it is timed on, nor once it was timed."""
    with pytest.raises(Stop, match=SEEN_AS_WRONG) as stop:
        made(us).evaluate(Memo(us, unless_new=known))
    assert stop.value.verdict is Verdict.WRONG


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("deterministic", [True, False])
def test_inputs_that_are_new_cannot_be_put_off(made, us, deterministic):
    """Computed the second time, once it is known that nothing else is verified on them."""
    put_off, memo = {}, Memo(us)

    def function(x: int, y: int, n: int) -> float:
        key = at(x, n).tobytes()
        if len(memo.kept) > 4 and key not in put_off and key not in memo.kept:
            put_off[key] = True
            return us / 5
        return memo(x, y, n)

    with pytest.raises(Stop, match=SEEN_AS_WRONG):
        made(us, deterministic=deterministic).evaluate(function)


def test_every_copy_has_the_results_of_the_verified_graph(made, monkeypatch):
    """Not only those that are drawn to be compared with what is expected."""
    lab, bounds, step = made(SHORT), around(monkeypatch), apart()

    def one_is_wrong(x: int, y: int, n: int) -> float:
        doubling(0)(x, y, n)
        begin, end = bounds(y)
        if end - begin >= 8 * step and (y - begin) // step == 5:
            at(y, 1)[0] += 1
        return SHORT

    for seed in range(3):
        with pytest.raises(Stop, match="gave other outputs than the verified one"):
            lab.evaluate(one_is_wrong, str(seed))


def test_few_outputs_are_kept(made, monkeypatch):
    """The first ones and those of a replay of each block, but for blocks that were thrown away."""
    from fitness.gpu import program as replay
    from fitness.gpu import timer as timer

    lab, programs, build = made(LONG, deterministic=False), [], replay.Program.build
    monkeypatch.setattr(timer, "disturbance", lambda *_: "always")
    monkeypatch.setattr(replay.Program, "build", lambda program: (programs.append(program), build(program))[1])
    lab.bench.seed_times.start_over()
    (timing,) = lab.evaluate(doubling(LONG)).timings
    assert timing.terms["blocks_retaken"] == 2 * timing.terms["pairs"] / 10
    assert sorted({program.integrity.times_kept for program in programs}) == [
        (0, 0),
        (1 + timing.terms["pairs"] / 10, 0),
    ]


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_a_sample_on_new_inputs_that_is_disturbed_is_taken_again(made, us):
    lab = made(us)
    samples, alone = [], lab.bench.timer.alone

    def disturbed(program: Any, count: int, ahead: int = 1) -> list[float]:
        is_first = count == 1 and program not in lab.bench.programs._of_seed.values()
        samples.extend([program] * is_first)
        return [us * (5 if is_first and len(samples) % 4 else 1) for us in alone(program, count, ahead)]

    lab.bench.timer.alone = disturbed
    assert lab.evaluate(doubling(us / 2)).timings[0].ratio == pytest.approx(2)
    assert len(samples) == 4


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_what_makes_the_seed_as_slow_on_new_inputs_is_nobodys_memo(made, us):
    from fitness.gpu import paired_benchmark as paired

    lab = made(us)
    alone = lab.bench.timer.alone
    firsts = (1, paired.SEED_SAMPLES)
    lab.bench.timer.alone = lambda program, count, ahead=1: [
        us * (3 if count in firsts else 1) for us in alone(program, count, ahead)
    ]
    assert lab.evaluate(doubling(us / 2)).timings[0].ratio == pytest.approx(2)


def test_what_one_candidate_does_to_the_seeds_memory_is_not_held_against_the_next(made):
    lab = made(SHORT)
    (baseline,) = (b for (name, copies), b in lab.bench.programs._of_seed.items() if copies > 1)

    def stray(x: int, y: int, n: int) -> float:
        at(x - 4, 1, np.uint32)[0] ^= 1
        baseline.memory._whole[0, 100] += 1
        return doubling(SHORT)(x, y, n)

    with pytest.raises(Stop, match="out of bounds"):
        lab.evaluate(stray)
    assert baseline.integrity.broken_guards()
    assert lab.evaluate(doubling(SHORT)).verdict is Verdict.OK


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("where", ["guard zone", "argument"])
def test_who_stores_into_the_seeds_memory_while_it_is_timed_is_wrong(made, us, where):
    lab = made(us)
    baselines = [b for (name, _), b in lab.bench.programs._of_seed.items() if name == "one"]
    pairs, timed = lab.bench.timer.pairs, []

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

    lab.bench.timer.pairs = watched
    with pytest.raises(Stop, match="stored into the memory of the kernel timed beside it"):
        lab.evaluate(stray)


def test_what_makes_the_seed_slow_beside_a_candidate_is_no_speedup(made):
    lab = made(SHORT)
    pairs = lab.bench.timer.pairs
    slow = [3.0]

    def disturbed(program: Any, baseline: Any, count: int) -> Any:
        own, seed = pairs(program, baseline, count)
        factor = slow[0] if len(slow) == 1 else slow.pop(0)
        return own, [factor * us for us in seed]

    lab.bench.timer.pairs = disturbed
    (timing,) = lab.evaluate(doubling(SHORT / 1.2)).timings
    assert timing.terms["blocks_retaken"] >= 2
    assert timing.terms["baseline_drift"] == pytest.approx(3)
    assert timing.ratio == pytest.approx(1.2) and timing.ci95[1] == pytest.approx(1.2)
    slow[:] = [3.0, 1.0]
    (timing,) = lab.evaluate(doubling(SHORT / 1.2)).timings
    assert timing.terms["blocks_retaken"] == 1
    assert timing.terms["baseline_drift"] == 1
    assert timing.ratio == pytest.approx(1.2)


def test_what_makes_the_seed_slow_all_the_time_is_no_speedup(made):
    """Not alone either, on whatever inputs: beside another process, or what a candidate left in the cache."""
    lab = made(SHORT)
    (baseline,) = (b for (name, copies), b in lab.bench.programs._of_seed.items() if copies > 1)
    (kernel,) = baseline._kernels
    launch, count = kernel.launch, itertools.count()

    def slow(*args: Any) -> None:
        for _ in range(1 + next(count) % 2):
            launch(*args)

    kernel.launch = slow
    (timing,) = lab.evaluate(doubling(SHORT)).timings
    assert timing.ratio == pytest.approx(1) and timing.terms["baseline_drift"] == pytest.approx(1.5)
    assert timing.terms["blocks_retaken"] == 2 and not timing.significant


def test_a_store_into_the_seeds_memory_is_seen_where_it_slows_it(made):
    """Though its inputs are written anew, to see whether they are why."""
    lab = made(SHORT)
    (baseline,) = (b for (name, copies), b in lab.bench.programs._of_seed.items() if copies > 1)
    pairs = lab.bench.timer.pairs

    blocks = itertools.count()

    def slowed(*args: Any) -> Any:
        own, seed = pairs(*args)
        baseline.memory.window(plan_of(1024).inputs[0], 2)[0] += next(blocks) == 0
        return own, [3 * us for us in seed]

    lab.bench.timer.pairs = slowed
    with pytest.raises(Stop, match="stored into the memory of the kernel timed beside it"):
        lab.evaluate(doubling(SHORT))


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
        assert timing.ratio == pytest.approx(1.25) and timing.significant
        assert timing.terms["baseline_drift"] == 1 and timing.terms["blocks_retaken"] == 0
        slow.add(timing.baseline_us[0])
    assert len(slow) == 2


def test_inputs_of_which_there_are_few_are_not_timed_side_by_side(made):
    few = "torch.randint(0, 6, (1,), generator=generator, device=generator.device)"
    lab = made(SHORT, draw=f'torch.arange(1.0, case.axes["N"] + 1, device=generator.device) + {few}')
    assert lab.prepared.timings[0].terms["launches_per_sample"] == 1
    assert lab.evaluate(doubling(SHORT / 2)).timings[0].ratio == pytest.approx(2)


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_one_disturbed_sample_of_the_seed_excuses_no_memo(made, us):
    lab = made(us)
    alone = lab.bench.timer.alone

    def disturbed(program: Any, count: int, ahead: int = 1) -> list[float]:
        times = alone(program, count, ahead)
        return [10 * times[0], *times[1:]] if program in lab.bench.programs._of_seed.values() else times

    lab.bench.timer.alone = disturbed
    with pytest.raises(Stop, match="times as long on inputs that it was not timed on before"):
        lab.evaluate(Memo(us))


def test_a_disturbance_on_one_of_two_inputs_is_no_reason_for_a_slow_seed(made):
    """It lasts for some samples on the new inputs, and is over when they are written once more."""
    lab = made(SHORT)
    timer, measured, slow = lab.bench.timer, lab.bench.seed_times.input_slowdown, itertools.count()
    pairs, alone = timer.pairs, timer.alone
    timer.pairs = lambda *args: (lambda own, seed: (own, [3 * us for us in seed]))(*pairs(*args))

    def asked(paired: Any) -> float:
        timer.alone = lambda program, count: [
            us * (3 if next(slow) // count == 1 else 1) for us in alone(program, count)
        ]
        try:
            return measured(paired)
        finally:
            timer.alone = alone

    lab.bench.seed_times.input_slowdown = asked
    (timing,) = lab.evaluate(doubling(SHORT / 1.2)).timings
    assert timing.terms["baseline_drift"] == pytest.approx(3) and timing.ratio == pytest.approx(1.2)


def test_nobody_knows_which_copies_are_given_other_arguments_nor_when(made, monkeypatch):
    from fitness.gpu import program as replay

    lab, counts = made(SHORT), {"replays": 0}
    seen: list[tuple[int, tuple[int, ...]]] = []
    execute, replays = replay.Program.execute_swapped, replay.Program.replay

    def swap(program: Any, swaps: Any) -> None:
        chosen = list(swaps)
        seen.append((counts["replays"], tuple(swap.copy for swap in chosen)))
        execute(program, chosen)

    def replayed(program: Any) -> None:
        counts["replays"] += 1
        replays(program)

    monkeypatch.setattr(replay.Program, "execute_swapped", swap)
    monkeypatch.setattr(replay.Program, "replay", replayed)
    found = []
    for _ in range(3):
        seen.clear()
        counts["replays"] = 0
        (timing,) = lab.evaluate(doubling(SHORT)).timings
        assert 1 <= len(seen) <= timing.terms["pairs"]
        assert all(0 < len(copies) <= 4 and len(set(copies)) == len(copies) for _, copies in seen)
        found.append((tuple(at for at, _ in seen), tuple(copies for _, copies in seen)))
    assert len({at for at, _ in found}) > 1 and len({copies for _, copies in found}) > 1

"""What limits a kernel: the tiers on real kernels, classes from readings, comparison, and what falls back to what."""

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

from evo.core.errors import EvoError
from evo.core.records import Candidate, Case, Evaluation, Timing, Verdict
from fitness.estimate.time_model import DRAM_EFFICIENCY, Estimate, StepEstimate
from fitness.frontend.plan import Buffer, Config, Fill, Launch, LaunchPlan, TensorRef
from fitness.frontend.target import get_target
from fitness.profile.ncu import NoCounters
from fitness.profile.profile import NAMES, Subject, from_counters, from_estimate, from_timing, longest, roofline
from fitness.tasks.task import load_task

H200 = get_target("sm_90")
GPU = {"copy_bytes_per_s": 4.2e12, "matmul_flops": 7.2e14}
BUILD = {"kernel": "k", "registers": 32, "spill_bytes": 0, "shared_bytes": 0, "num_warps": 4,
         "ptx_features": {"mma_sync": 0, "wgmma": 0, "load_bytes": 16}}  # fmt: skip


def subject(*, grid=1320, build=None, case=None, moved=1e9, flops=1e9) -> Subject:
    launch = Launch("k", (Config((grid, 1, 1), {}, {}),))
    plan = LaunchPlan((Buffer(16),), (), (), "none", (launch,))
    return Subject(case or Case("big", {"N": 1}), plan, [0], [BUILD | (build or {})], moved, flops)


def estimate(total_us=100.0, **terms) -> Estimate:
    step = StepEstimate("k", total_us, terms)
    return Estimate(total_us, terms, max(terms, key=terms.__getitem__), (step,))


def timing(us, case="big") -> Timing:
    return Timing(case, (us,) * 3, (2 * us,) * 3, 2.0, (1.9, 2.1), estimated=False)


# --- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "bottleneck", "first"),
    [
        ({"dram": 90.0, "latency": 20.0, "launch": 1.0}, "memory", "dram"),
        ({"dram": 20.0, "l2": 70.0, "latency": 20.0}, "memory", "l2"),
        ({"tensor": 80.0, "dram": 30.0, "latency": 10.0}, "compute", "tensor"),
        ({"issue": 70.0, "special": 80.0}, "compute", "special"),
        ({"dram": 20.0, "issue": 10.0, "latency": 75.0}, "latency", "waiting"),
        ({"dram": 50.0, "latency": 60.0}, "latency", "waiting"),
        ({"launch": 40.0, "schedule": 50.0, "dram": 10.0}, "overhead", "launch"),
    ],
)
def test_the_model_s_terms_give_the_class(terms, bottleneck, first):
    profile = from_estimate(subject(), estimate(**terms), H200)
    assert (profile.tier, profile.bottleneck) == ("estimate", bottleneck)
    assert next(iter(profile.numbers)) == NAMES[first]
    assert 2 <= len(profile.numbers) <= 5
    assert profile.case == "big" and profile.kernel == "k" and "(case big)" in profile.reason


def test_too_few_programs_are_seen():
    profile = from_estimate(subject(grid=20), estimate(dram=20.0, latency=70.0), H200)
    assert profile.bottleneck == "parallelism"
    assert profile.numbers[NAMES["programs"]] == pytest.approx(20 / 132)
    assert profile.hints[0].id == "more-programs"


def test_spills_are_shown_with_the_memory_they_use():
    profile = from_estimate(subject(build={"spill_bytes": 3944}), estimate(l2=93.0, dram=54.0), H200)
    assert profile.numbers[NAMES["spills"]] == 3944
    assert profile.hints[0].id in REGISTERS


def test_measured_times_are_what_shares_are_of():
    modelled = estimate(100.0, dram=90.0, latency=10.0)
    slow = from_timing(subject(), timing(1000.0), modelled, H200, GPU)
    assert (slow.tier, slow.bottleneck) == ("counters-free", "latency")  # 9% of the time: the model misses the rest
    fast = from_timing(subject(), timing(110.0), modelled, H200, GPU)
    assert fast.bottleneck == "memory" and fast.numbers[NAMES["dram"]] > 80
    assert fast.metrics[NAMES["time"]] == 110.0


def test_without_an_estimate_the_roofline_is_left():
    least_us = 1e6 * 1e9 / GPU["copy_bytes_per_s"]
    near = from_timing(subject(), timing(1.1 * least_us), None, H200, GPU)
    assert near.bottleneck == "memory" and near.roofline == pytest.approx(1 / 1.1)
    assert from_timing(subject(), timing(10 * least_us), None, H200, GPU).bottleneck == "latency"
    unknown = from_timing(subject(moved=None, flops=None), timing(5.0), None, H200, GPU)
    assert unknown.roofline is None and unknown.bottleneck == "latency"


def test_counters_are_those_of_the_slowest_own_kernel():
    memory = {"time": 90.0, "dram": 88.0, "l2": 40.0, "sm": 20.0, "active": 60.0, "dram_bytes": 2e9, "l2_hit": 30.0}
    other = {"time": 200.0, "dram": 10.0, "sm": 5.0, "dram_bytes": 1e9}
    profile = from_counters(subject(), [("fill", other), ("k", memory)], H200)
    assert (profile.tier, profile.bottleneck, profile.kernel) == ("ncu", "memory", "k")
    assert profile.metrics[NAMES["time"]] == 290.0
    assert profile.metrics[NAMES["moved"]] == pytest.approx(3.0)
    assert [h.id for h in profile.hints] == ["fewer-bytes", "cache-order"]


def launched_often(*grids: int) -> Subject:
    """Launches of one kernel, after a fill."""
    build = {"registers": 32, "spill_bytes": 0, "shared_bytes": 0, "num_warps": 4}
    launches = tuple(Launch("k", (Config((grid, 1, 1), {}, {}),)) for grid in grids)
    fill = Fill(TensorRef(0, "float32", (4,), (1,)), 0)
    plan = LaunchPlan((Buffer(16),), (), (), "none", (fill, *launches))
    builds = [build | {"registers": 32 + number} for number in range(len(grids))]
    return Subject(Case("big", {"N": 1}), plan, [0] * len(grids), builds, 1e9, 1e9)


@pytest.mark.parametrize("slowest", [0, 1, 2])
def test_the_grid_is_that_of_the_slowest_launch_of_a_kernel(slowest):
    grids, times = (1, 4096, 132), [2.0, 2.0, 2.0]
    times[slowest] = 100.0
    of, terms = launched_often(*grids), {"dram": 90.0}
    steps = tuple(StepEstimate("k", us, terms) for us in times)
    modelled = Estimate(104.0, terms, "dram", (StepEstimate("fill", 1.0, {"dram": 1.0}), *steps))
    counted = {"dram": 88.0, "sm": 20.0, "active": 60.0}
    counters = [("fill", {**counted, "time": 1.0}), *(("k", {**counted, "time": us}) for us in times)]
    for profile in (
        from_estimate(of, modelled, H200),
        from_timing(of, timing(110.0), modelled, H200, GPU),
        from_counters(of, counters, H200),
    ):
        assert profile.kernel == "k"
        assert profile.metrics[NAMES["programs"]] == pytest.approx(grids[slowest] / 132), profile.tier
        assert profile.metrics[NAMES["registers"]] == 32 + slowest, profile.tier


def test_launches_of_no_programs_have_no_counters():
    counted = {"time": 100.0, "dram": 88.0, "sm": 20.0, "active": 60.0}
    profile = from_counters(launched_often(0, 4096), [("k", counted)], H200)
    assert profile.bottleneck == "memory"
    assert profile.metrics[NAMES["programs"]] == pytest.approx(4096 / 132)


def test_stalls_name_what_a_kernel_waits_for():
    counted = {"time": 50.0, "dram": 30.0, "sm": 25.0, "active": 20.0, "stall_barrier": 10.0}
    profile = from_counters(subject(), [("k", counted | {"stall_long_scoreboard": 70.0})], H200)
    assert profile.bottleneck == "latency"
    assert profile.numbers[NAMES["stall_long_scoreboard"]] == 70.0 and NAMES["active"] in profile.numbers
    assert [h.id for h in profile.hints] == ["loads-ahead"]


def test_stalls_that_have_no_name_are_left_out():
    counted = {"time": 50.0, "dram": 30.0, "sm": 25.0, "active": 20.0, "stall_barrier": 10.0, "stall_odd": 80.0}
    profile = from_counters(subject(), [("k", counted)], H200)
    assert profile.numbers[NAMES["stall_barrier"]] == 10.0 and set(profile.metrics) <= set(NAMES.values())


def test_resources_say_what_limits_occupancy():
    metrics = from_estimate(subject(build={"registers": 255}), estimate(dram=9.0), H200).metrics
    assert (metrics[NAMES["by_registers"]], metrics[NAMES["by_shared"]]) == (1, 0)
    metrics = from_estimate(subject(build={"shared_bytes": 200_000}), estimate(dram=9.0), H200).metrics
    assert (metrics[NAMES["by_registers"]], metrics[NAMES["by_shared"]]) == (0, 1)


def test_the_last_wave_is_counted():
    full = 132 * 16  # places: 64 warps on each multiprocessor, 4 a program
    tails = {
        g: from_estimate(subject(grid=g), estimate(dram=9.0), H200).metrics[NAMES["tail"]] for g in (full, full + 1)
    }
    assert tails == {full: 0.0, full + 1: pytest.approx(50, abs=0.1)}


def test_the_roofline_is_that_of_the_dtype():
    time_us = 1e6 * 1e15 / (H200.tensor_flops["float16"] * 0.75)
    half = subject(case=Case("a", {}, dtype="float16"), flops=1e15)
    assert roofline(half, 2 * time_us, H200) == pytest.approx(0.5)
    assert roofline(subject(flops=1e15), 2 * time_us, H200) == 1.0  # impossible in float32, so the limit
    bytes_only = subject(flops=None, moved=1e9)
    assert roofline(bytes_only, 1e3, H200) == pytest.approx(1e9 / (DRAM_EFFICIENCY * H200.dram_bytes_per_s) * 1e3)


def test_only_the_same_can_be_compared():
    before = from_estimate(subject(), estimate(dram=50.0, launch=1.0), H200)
    after = from_estimate(subject(), estimate(dram=90.0, launch=1.0), H200)
    assert after.beside(before).before[NAMES["dram"]] == 50.0
    for other in (None, dataclasses.replace(before, tier="ncu"), dataclasses.replace(before, case="small")):
        assert after.beside(other).before == {}


def test_the_case_is_the_longest_of_the_seed():
    assert longest([timing(10.0, "a"), timing(30.0, "b"), timing(20.0, "c")]) == "b"


# --- evaluators ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gemv(evaluators):
    evaluator = evaluators("gemv_batched")
    seed = Candidate(evaluator.task.seed_source)
    return evaluator, seed, evaluator.evaluate(seed, seed=0, known={})


# Whether they spill, or are so many that few warps fit, is up to the version of Triton.
REGISTERS = ("spills", "occupancy-registers")


def test_the_gemv_by_broadcast_waits_for_memory(gemv):
    evaluator, candidate, evaluation = gemv
    profile = evaluator.profile(candidate, evaluation)
    assert profile.tier == "estimate" and profile.bottleneck in ("memory", "latency")
    assert profile.case in ("square", "batch") and profile.kernel == "gemv_kernel"
    assert profile.hints[0].id in REGISTERS  # whole rows in registers that it does not have
    assert 0.2 < profile.roofline <= 1
    assert "no GPU" in profile.fallback
    assert all(math.isfinite(v) for v in profile.metrics.values()) and set(profile.metrics) <= set(NAMES.values())


def test_equal_work_is_profiled_once(gemv):
    evaluator, candidate, evaluation = gemv
    first = evaluator.profile(candidate, evaluation)
    renamed = Candidate(candidate.source.replace("batches", "lot"))
    again = dataclasses.replace(evaluation, candidate=renamed.id)
    assert evaluator.profile(renamed, again) is first


def test_threads_that_ask_for_one_profile_wait_for_it_and_a_failure_is_tried_again(gemv, monkeypatch):
    evaluator, candidate, evaluation = gemv
    evaluation = dataclasses.replace(evaluation, plan_hash="of two runs")
    asked, began, make = [], threading.Event(), evaluator._profile

    def slow(*args):
        asked.append(args)
        began.wait(60)
        if len(asked) == 1:
            raise EvoError("the profiler failed")
        return make(*args)

    monkeypatch.setattr(evaluator, "_profile", slow)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(evaluator.profile, candidate, evaluation) for _ in range(2)]
        began.set()
        assert {type(one.exception()) for one in both} <= {EvoError, type(None)}
    again = evaluator.profile(candidate, evaluation)
    assert evaluator.profile(candidate, evaluation) is again and len(asked) == 2


def test_failures_are_not_profiled(gemv):
    evaluator, candidate, _ = gemv
    with pytest.raises(EvoError, match="expected an evaluation that is ok to profile, got wrong"):
        evaluator.profile(candidate, Evaluation(candidate.id, Verdict.WRONG, "verify", "off"))


def measured(evaluation: Evaluation) -> Evaluation:
    """An evaluation as a GPU gives it, with the estimated times taken for measured ones."""
    timings = tuple(dataclasses.replace(t, estimated=False) for t in evaluation.timings)
    return dataclasses.replace(evaluation, timings=timings, plan_hash=evaluation.plan_hash[::-1])


def test_without_counters_a_measured_run_goes_on_with_times(gemv, monkeypatch):
    evaluator, candidate, evaluation = gemv
    monkeypatch.setattr(type(evaluator._backend), "environment", GPU)
    profile = evaluator.profile(candidate, measured(evaluation))
    assert profile.tier == "counters-free" and profile.bottleneck in ("memory", "latency")
    assert "counters" in profile.fallback
    assert profile.hints[0].id in REGISTERS


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_counters_that_are_denied_are_asked_for_once(gemv, monkeypatch):
    from fitness import gpu_backend

    evaluator, candidate, evaluation = gemv
    asked: list[str] = []

    def denied(reader, task, bundle, case):
        asked.append(case)
        raise NoCounters("no permission (ERR_NVGPUCTRPERM)")

    monkeypatch.setattr(gpu_backend.CounterReader, "read", denied)
    monkeypatch.setattr(gpu_backend, "measuring", lambda target, index: target)
    monkeypatch.setattr(gpu_backend.Runner, "idle", lambda runner: nullcontext())  # its process needs a GPU
    monkeypatch.setattr(gpu_backend.GpuBackend, "environment", GPU)
    with gpu_backend.GpuEvaluator(evaluator.task, H200, zygote=evaluator._own_zygote) as on_gpu:
        on_gpu._backend._gpu._facts = {"uuid": "GPU-0"}
        profiles = [
            on_gpu.profile(candidate, dataclasses.replace(measured(evaluation), plan_hash=h)) for h in ("one", "two")
        ]
    assert [p.tier for p in profiles] == ["counters-free"] * 2
    assert all("ERR_NVGPUCTRPERM" in p.fallback for p in profiles)
    assert asked == [profiles[0].case]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu_all_tiers_say_what_limits_the_gemv():
    from fitness.gpu_backend import GpuEvaluator
    from fitness.profile.ncu import find_tool

    task = load_task("gemv_batched")
    candidate = Candidate(task.seed_source)
    with GpuEvaluator(task, H200) as evaluator:
        evaluation = evaluator.prepare()
        best = evaluator.profile(candidate, evaluation)
        evaluator._profiles.clear()
        evaluator._denied = "not asked"
        second = evaluator.profile(candidate, evaluation)
    for profile in (best, second):
        assert profile.bottleneck in ("memory", "latency"), profile
        assert profile.hints[0].id in ("spills", "occupancy-registers"), profile  # Triton 3.6 spills less than 3.8
    assert second.tier == "counters-free"
    if best.tier == "ncu":
        assert best.metrics[NAMES["time"]] == pytest.approx(second.metrics[NAMES["time"]], rel=0.5)
    else:
        assert best.fallback or not find_tool("ncu")

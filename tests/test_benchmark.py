"""Times against what a device can do."""

from __future__ import annotations

import dataclasses

import pytest

from evo.core.records import Verdict
from fitness.frontend.stages import Stop
from fitness.tasks.task import load_task
from tests.bench_on_cpu import CpuBench, N, at, doubling

pytest.importorskip("pynvml")

from fitness.cuda.device import DeviceFacts
from fitness.gpu.benchmark import check_roofline, rates

GPU = DeviceFacts("a GPU", "", "", (9, 0), 132, 10**6, 10**11, 1e9, 0, 0, 0, 0, 4e12, 3e12, 5e14)
TASK = load_task("softmax")
CASE = TASK.cases[0]


def task(nbytes: float | None, flops: float | None):
    return dataclasses.replace(
        TASK,
        bytes=None if nbytes is None else lambda case: nbytes,
        flops=None if flops is None else lambda case: flops,
    )


@pytest.mark.parametrize(
    ("nbytes", "flops", "limit_us"),
    [
        (4e9 + 1e6, None, 1000.0),  # what fits into the L2 cache need not be moved
        (None, 1.25e12, 1000.0),  # narrower types than the one that was measured are faster
        (4e9 + 1e6, 2.5e12, 2000.0),
    ],
)
def test_what_is_far_below_the_limit_is_rejected(nbytes, flops, limit_us):
    check_roofline(task(nbytes, flops), CASE, GPU, 0.71 * limit_us)
    with pytest.raises(Stop, match=f"takes {limit_us:.2f} us at least on a GPU") as stop:
        check_roofline(task(nbytes, flops), CASE, GPU, 0.69 * limit_us)
    assert stop.value.verdict is Verdict.REJECTED


def test_the_limit_of_a_gpu_allows_its_narrowest_type():
    geforce = dataclasses.replace(GPU, capability=(8, 9))  # int8 is four times as fast as bfloat16
    check_roofline(task(None, 1.25e12), CASE, geforce, 351.0)
    with pytest.raises(Stop):
        check_roofline(task(None, 1.25e12), CASE, geforce, 349.0)


def test_where_a_task_does_not_say_how_much_work_it_is_any_time_may_be():
    check_roofline(task(None, None), CASE, GPU, 1e-3)
    check_roofline(task(1e6, None), CASE, GPU, 1e-3)
    assert rates(task(None, None), CASE, GPU, 1.0) == {}


def test_rates_are_of_the_work_and_of_what_was_measured():
    assert rates(task(3e9, 1e12), CASE, GPU, 2000.0) == pytest.approx(
        {"gb_per_s": 1500.0, "of_copy_rate": 0.5, "tflop_per_s": 500.0, "of_matmul_rate": 1.0}
    )


@pytest.mark.parametrize("reference", ["reference = 'seed'", "def reference(x):\n    return x * 2"])
def test_a_kernel_that_builds_on_the_range_of_its_inputs_is_right_on_them_alone(monkeypatch, tmp_path, reference):
    narrow = 'torch.rand(case.axes["N"], generator=generator, device=generator.device)'
    bench = CpuBench(monkeypatch, tmp_path, doubling(40.0), draw=narrow, reference=reference)

    def clipped(x: int, y: int, n: int) -> float:
        at(y, n)[:] = 2 * at(x, n).clip(0, 1)
        return 30.0

    assert bench.evaluate(clipped).verdict is Verdict.OK
    found = bench.bench.elsewhere(clipped, "s")
    assert {case: report.verdict for case, report in found.items()} == dict.fromkeys(N, Verdict.WRONG)
    assert "output is wrong" in found["one"].message
    right = bench.bench.elsewhere(doubling(30.0), "s")
    assert {case: report.verdict for case, report in right.items()} == dict.fromkeys(N, Verdict.OK)
    assert bench.evaluate(doubling(30.0)).verdict is Verdict.OK  # the baseline is as it was

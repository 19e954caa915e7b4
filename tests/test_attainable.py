"""The attainable time: by what a GPU reaches, of stated, counted and traced work, never what is impossible."""

from __future__ import annotations

import dataclasses

import pytest

from evo.core.records import Candidate, Case
from fitness.cpu_backend import CpuEvaluator
from fitness.estimate.attainable import EIGHT_BIT_SHARE, SHORTEST_US, attainable_us, flops_per_s, operator_flops, traced
from fitness.estimate.launch_trace import LaunchTrace, Traffic
from fitness.estimate.roofline import SHARE, least_us
from fitness.estimate.time_model import DRAM_EFFICIENCY, WGMMA_EFFICIENCY
from fitness.frontend.plan import Buffer, Config, Copy, Launch, LaunchPlan, Op, TensorRef
from fitness.frontend.target import TARGETS, get_target
from fitness.tasks.calls import Calls
from fitness.tasks.task import load_task, task_names
from fitness.tasks.work import Workload, work_of
from tests.test_roofline import plan
from tests.traced import tensor

H200 = get_target("sm_90")
GPU = {"copy_bytes_per_s": 4e12, "matmul_flops": 700e12}
DTYPES = ("float16", "bfloat16", "float32", "int8", "float8_e4m3fn")


def work(moved: float | None = None, **flops: float) -> Workload:
    return Workload(moved, flops, "stated")


def test_what_takes_longer_counts_by_what_the_gpu_reached() -> None:
    assert attainable_us(work(4e9), H200, GPU) == pytest.approx(1000)
    assert attainable_us(work(4e9, bfloat16=1.4e12), H200, GPU) == pytest.approx(2000)
    assert attainable_us(work(None, float16=700e9), H200, GPU) == pytest.approx(1000)  # the same share of its peak
    assert attainable_us(work(), H200, GPU) is None


def test_no_kernel_is_shorter_than_its_launch_and_one_read() -> None:
    assert attainable_us(work(4.0), H200, GPU) == attainable_us(work(4.0), H200) == SHORTEST_US
    assert attainable_us(work(1e6 * 4.0 * SHORTEST_US), H200, GPU) == pytest.approx(SHORTEST_US)
    assert attainable_us(work(8e6 * SHORTEST_US), H200, GPU) == pytest.approx(2 * SHORTEST_US)


def test_without_a_gpu_it_is_a_share_of_the_data_sheet() -> None:
    assert attainable_us(work(4.8e9), H200) == pytest.approx(1000 / DRAM_EFFICIENCY)
    assert attainable_us(work(None, float16=989e9), H200) == pytest.approx(1000 / WGMMA_EFFICIENCY)


def test_a_product_in_float32_may_be_made_of_narrower_ones() -> None:
    lanes = 2 * 132 * 128 * 1.98e9
    assert flops_per_s("float32", H200) == pytest.approx(WGMMA_EFFICIENCY * 989e12 / 3)
    assert flops_per_s("float32", H200) > lanes
    assert flops_per_s("float64", H200) == pytest.approx(lanes)


def test_products_of_8_bit_operands_are_not_held_to_the_power_limit_of_others():
    measured = {"copy_bytes_per_s": 4.2e12, "matmul_flops": 676e12}
    assert flops_per_s("bfloat16", H200, measured) == pytest.approx(676e12)
    for dtype in ("int8", "uint8", "float8_e4m3fn"):
        assert flops_per_s(dtype, H200, measured) == pytest.approx(EIGHT_BIT_SHARE * 1979e12)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_attainable_time_is_refused_as_impossible(target, dtype: str) -> None:
    for moved, flops in ((1e9, 1.0), (1.0, 1e13)):
        least = attainable_us(work(moved, **{dtype: flops}), target)
        assert least is not None and least >= SHARE * least_us(plan(dtype), moved, flops, target)


def test_what_a_task_states_is_used_first() -> None:
    for name in task_names():
        task = load_task(name, tried=True)
        calls = Calls(task)
        for case in calls.tune:
            found = work_of(task, case, calls.describe(case))
            assert found is not None and found.basis == "stated" and task.bytes and task.flops
            assert (found.bytes, sum(found.flops.values())) == (task.bytes(case), task.flops(case))
            kind = "float16" if case.dtype == "float16" else case.dtype
            assert set(found.flops) == {kind}


def test_what_a_task_leaves_out_is_counted_of_its_reference() -> None:
    task = dataclasses.replace(load_task("matmul", tried=True), bytes=None, flops=None)
    case = Case("c", {"M": 64, "N": 32, "K": 16}, dtype="float16")
    found = work_of(task, case, Calls(task).describe(case))
    assert found == Workload(2 * (64 * 16 + 16 * 32 + 64 * 32), {"float16": 2 * 64 * 32 * 16}, "counted")
    seed = dataclasses.replace(task, reference=None)
    assert work_of(seed, case, Calls(task).describe(case)) is None


def test_a_tolerance_allows_narrower_operands() -> None:
    task = dataclasses.replace(load_task("gemv_batched", tried=True), tolerance=1e-2)
    case = task.cases[0]
    assert set(work_of(task, case, Calls(task).describe(case)).flops) == {"float16"}  # type: ignore[union-attr]


def traffic(buffer: int, kind: str, distinct: float) -> Traffic:
    return Traffic(buffer, kind, distinct, distinct, 0.0, distinct, distinct, distinct, 0.0, distinct)


def launch_trace(*found: Traffic, dots: tuple = ()) -> LaunchTrace:
    return LaunchTrace("k", 10, 5, (), (), dots, (), (), found, 1.0, False)


def test_traced_is_what_a_kernel_touches_of_arguments_and_results_once() -> None:
    x, between, y = tensor(0, 1000), tensor(1, 1000), tensor(2, 500)
    buffers = (Buffer(4000, 0), Buffer(4000), Buffer(2000))
    launch = Launch("k", (Config((10, 1, 1), {}, {}),))
    of = LaunchPlan(buffers, (x,), (y,), "tensor", (launch, Copy(between, x), launch))
    dots = ((16, 16, 16, "fp16", "fp16", "", 2),)
    first = launch_trace(traffic(0, "load", 3000), traffic(1, "store", 4000), dots=dots)
    second = launch_trace(traffic(1, "load", 4000), traffic(2, "store", 2500), traffic(0, "atomic", 100))
    found = traced(of, [0, 0], [[first], [second]])
    # of the argument all is read, by the copy; 100 bytes of it are written; the result has no more than 2000
    assert found.bytes == 4000 + 100 + 2000 and found.basis == "traced"
    assert found.flops == {"float16": 10 * 2 * 2.0 * 16**3}


def test_products_of_operators_count_as_work() -> None:
    def half(buffer: int, *shape: int) -> TensorRef:
        return TensorRef(buffer, "float16", shape, (shape[1], 1))

    a, b, y = half(0, 64, 128), half(1, 128, 32), half(2, 64, 32)
    buffers = (Buffer(a.nbytes, 0), Buffer(b.nbytes, 1), Buffer(y.nbytes))
    product = Op("aten.mm.default", (a, b), {}, (y,))
    found = traced(LaunchPlan(buffers, (a, b), (y,), "tensor", (product,)), [], [])
    assert found.flops == {"float16": 2.0 * 64 * 128 * 32} and found.bytes == a.nbytes + b.nbytes + y.nbytes
    assert operator_flops(Op("aten.add.Tensor", (a, a), {}, (a,))) == 0


def test_every_timing_has_it(evaluators) -> None:
    task = load_task("softmax", tried=True)
    evaluation = evaluators("softmax").evaluate(Candidate(task.seed_source + "\n\n# again\n"), seed=0, known={})
    for timing, case in zip(evaluation.timings, task.cases, strict=False):
        assert timing.attainable_us == pytest.approx(1e6 * task.bytes(case) / (DRAM_EFFICIENCY * 4.8e12))
        assert timing.attained == pytest.approx(timing.attainable_us / timing.median_us) and timing.attained < 1
    assert evaluation.attained is not None and 0 < evaluation.attained < 1


def test_a_seed_that_is_the_reference_is_traced(tmp_path) -> None:
    folder = tmp_path / "doubled"
    folder.mkdir()
    (folder / "kernel.py").write_text(SEED)
    (folder / "task.py").write_text(TASK)
    with CpuEvaluator(load_task(folder), H200) as evaluator:
        (timing,) = evaluator.prepare().timings
    assert timing.attainable_us == pytest.approx(1e6 * 2 * 4 * (1 << 20) / (DRAM_EFFICIENCY * 4.8e12), rel=0.02)


TASK = """import torch
from fitness import Case

entry = "doubled"
reference = "seed"
stress = False
cases = [Case("c", {"N": 1 << 20}, cpu_axes={"N": 256})]

def inputs(case, generator):
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)
"""
SEED = """import torch
import triton
import triton.language as tl


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


def doubled(x):
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""

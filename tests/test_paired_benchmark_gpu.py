"""What is timed on a GPU: on inputs of its own, with nothing to copy from, looked at every time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evo.core.records import Verdict
from fitness.frontend.plan import TensorRef
from fitness.frontend.stages import Stop
from fitness.gpu.timing import Stopping
from fitness.verify import oracle
from tests.gpu_lab import Lab

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

TASK = '''"""x times the numbers below 512, added up; small enough to be timed as several copies."""
import torch
from fitness import Case

entry = "entry"
stress = False
cases = [Case("one", {"N": 1 << 14}, cpu_axes={"N": 128})]

def inputs(case, generator):
    return (torch.randint(1, 100, (case.axes["N"],), generator=generator, device=generator.device, dtype=torch.int32),)

def reference(x):
    return x * (512 * 511 // 2) % 1021
'''
KERNEL = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, APART: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
{body}

def entry(x):
    y = torch.empty_like(x)
    kernel[(x.numel() // 128,)](x, y, APART={apart}, BLOCK=128, num_warps=4)
    return y
"""
WORK = """
total = tl.zeros([BLOCK], tl.int32)
for k in range(512):
    total = (total + x * k) % 1021
tl.store(y_ptr + i, total)
"""
WORK_WITHIN = "\n".join("    " + line for line in WORK.strip().split("\n"))
# Arguments lie between 1 and 99, and nothing else is likely to.  (The first copy begins where an allocation does.)
BESIDE = """
after = tl.load(x_ptr + i + APART)
beside = (tl.min(after, 0) > 0) & (tl.max(after, 0) < 100)
first = (x_ptr.to(tl.int64) - 65536 - 1048576) % 2097152 == 0
"""
# Of the copy before it, where that has the same input.
STOLEN = f"""{BESIDE}
apart = tl.where(beside & (not first), APART, 0)
before = tl.load(x_ptr + i - apart)
if (apart > 0) & (tl.sum((before == x).to(tl.int32), 0) == BLOCK):
    tl.store(y_ptr + i, tl.load(y_ptr + i - apart))
else:
{WORK_WITHIN}
"""
# Beside other copies every other replay keeps its result in the upper half of its argument, and the next one takes it
# out again.
KEPT = f"""{BESIDE}
if tl.min(x, 0) > 65535:
    tl.store(y_ptr + i, (x >> 16) - 1)
    tl.store(x_ptr + i, x & 65535)
else:
{WORK_WITHIN}
    if beside:
        tl.store(x_ptr + i, x | ((total + 1) << 16))
"""
# Where it finds the same input again, it takes the result that it kept beside it, in memory after its own.
MEMO = f"""
kept = tl.load(y_ptr + i + APART)
if tl.sum((kept == x).to(tl.int32), 0) == BLOCK:
    tl.store(y_ptr + i, tl.load(y_ptr + i + 2 * APART))
else:
{WORK_WITHIN}
    tl.store(y_ptr + i + APART, x)
    tl.store(y_ptr + i + 2 * APART, total)
"""


def source(body: str, apart: int = 0) -> str:
    lines = "\n".join("    " + line for line in body.strip().split("\n"))
    return KERNEL.format(body=lines, apart=apart)


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), TASK, source(WORK))
    assert lab.baseline.verdict is Verdict.OK, lab.baseline.message
    assert lab.baseline.timings[0].terms["launches_per_sample"] > 2
    yield lab
    lab.close()


def apart(lab: Lab) -> int:
    """How many elements lie between an element and the same one of the next copy."""
    from fitness.gpu.buffers import DeviceMemory

    plan = lab.work(source(WORK)).plans["one"]
    memory = DeviceMemory(plan, torch.device("cpu"), 2)
    assert isinstance(plan.inputs[0], TensorRef)
    assert memory.address(plan.inputs[0], 0) - memory._whole.data_ptr() == 65536 + 1048576
    return (memory.address(plan.outputs[0], 1) - memory.address(plan.outputs[0], 0)) // 4


@pytest.fixture
def beyond(monkeypatch) -> None:
    """Memory of the process behind the last copy, which kernels that look for the next copy read there."""

    def with_one_more(shape: int | tuple[int, ...], **kwargs: Any) -> torch.Tensor:
        if isinstance(shape, int):
            return torch.empty(shape, **kwargs)
        return torch.empty((shape[0] + 1, *shape[1:]), **kwargs)[: shape[0]]

    monkeypatch.setattr("fitness.gpu.buffers.torch", SimpleNamespace(**{**vars(torch), "empty": with_one_more}))


@pytest.fixture
def bench(lab) -> Iterator[Any]:
    from fitness.cuda.device import device_facts
    from fitness.gpu.benchmark import Benchmark

    bench = Benchmark(lab.task, 0, device_facts(0), Stopping((10,)))
    with torch.no_grad(), torch.cuda.stream(bench.stream):
        assert bench.prepare(lab.work(source(WORK))).verdict is Verdict.OK
        yield bench


def test_results_of_the_copy_before_are_of_no_use(lab, beyond, bench, monkeypatch):
    report = bench.evaluate(lab.work(source(STOLEN, apart(lab))), "1")
    assert report.verdict is Verdict.OK, report.message
    assert report.timings[0].ratio < 1.1
    inputs = bench.programs.inputs
    equal = {}
    monkeypatch.setattr(
        bench.programs,
        "inputs",
        lambda case, key, variant="normal": inputs(case, equal.setdefault(case.name, key), variant),
    )
    monkeypatch.setattr("fitness.gpu.program.Program.inputs_are_equal", lambda *_: False)
    (timing,) = bench.evaluate(lab.work(source(STOLEN, apart(lab))), "1").timings
    assert timing.ratio > 1.5, "it would be of use where inputs are equal"


def test_what_a_replay_keeps_in_an_argument_for_the_next_is_seen(lab, beyond, bench):
    with pytest.raises(Stop, match="case one: a timed replay modified argument 0; copy it instead") as stopped:
        bench.evaluate(lab.work(source(KEPT, apart(lab))), "1")
    assert stopped.value.verdict is Verdict.WRONG


def test_results_kept_where_nobody_looks_are_of_no_use(lab, bench, monkeypatch):
    work = lab.work(source(MEMO, 1 << 15))
    with pytest.raises(Stop, match="out of bounds"):
        bench.evaluate(work, "5")
    monkeypatch.setattr("fitness.gpu.buffers.DeviceMemory.overwritten", lambda memory: [])
    with pytest.raises(Stop, match="times as long on inputs that it was not timed on before"):
        bench.evaluate(work, "5")
    monkeypatch.setattr("fitness.gpu.paired_benchmark.PairedBenchmark._check_new", lambda *_: None)
    assert bench.evaluate(work, "5").timings[0].ratio > 1.5, "it would be of use"


def test_while_one_is_timed_the_results_of_the_other_are_gone(lab, bench, monkeypatch):
    from fitness.gpu.program import Program

    work, others, seen = lab.work(source(WORK)), [], []
    pairs, replay = bench.timer.pairs, Program.replay

    def watched(program: Program, baseline: Program, count: int) -> Any:
        others[:] = [program, baseline]
        try:
            return pairs(program, baseline, count)
        finally:
            others.clear()

    def looked_at(program: Program) -> None:
        for other in others:
            left = set(other.memory.windows(other.outputs_of_plan[0]).view(torch.uint8).unique().tolist())
            seen.append(left in ({0xA5}, {0x7A}))
        replay(program)

    monkeypatch.setattr(bench.timer, "pairs", watched)
    monkeypatch.setattr(Program, "replay", looked_at)
    assert bench.evaluate(work, "2").verdict is Verdict.OK
    assert len(seen) >= 2 * 2 * 10 and all(seen)  # more where looking takes so long that pairs are taken again


def test_copies_are_timed_on_inputs_that_nothing_was_verified_on(lab, bench, monkeypatch):
    drawn: list[tuple[int, str]] = []
    make_inputs, expect_for = oracle.make_inputs, oracle.expect_for
    compared_at: list[int] = []

    def make(task: Any, case: Any, seed: int, variant: str = "normal", **kwargs: Any) -> tuple[Any, ...]:
        drawn.append((seed, variant))
        return make_inputs(task, case, seed, variant, **kwargs)

    def expect(*args: Any) -> Any:
        compared_at.append(drawn[-1][0])
        return expect_for(*args)

    timed_from = []
    against = bench.timer.compare
    monkeypatch.setattr(oracle, "make_inputs", make)
    monkeypatch.setattr(oracle, "expect_for", expect)

    def noted(program: Any, *rest: Any) -> Any:
        timed_from.append((len(compared_at), program.copies))
        return against(program, *rest)

    monkeypatch.setattr(bench.timer, "compare", noted)
    # Which draw more where something was disturbed.
    monkeypatch.setattr("fitness.gpu.paired_benchmark.PairedBenchmark._check_new", lambda *_: None)
    monkeypatch.setattr(bench.seed_times, "input_slowdown", lambda *_: 1.0)
    assert bench.evaluate(lab.work(source(WORK)), "3").verdict is Verdict.OK
    ((before, copies),) = timed_from
    on_copies = {seed for seed, _ in drawn} - set(compared_at[:before])
    assert len(on_copies) == copies > 2
    assert set(compared_at[before:]) < on_copies and len(compared_at) - before == 3


def test_a_store_into_the_memory_of_the_kernel_beside_it_is_wrong(lab, bench, monkeypatch):
    against = bench.timer.compare

    def meddled(program: Any, baseline: Any, *rest: Any) -> Any:
        baseline.memory._whole[-1, 3] ^= 1
        return against(program, baseline, *rest)

    monkeypatch.setattr(bench.timer, "compare", meddled)
    with pytest.raises(Stop, match="stored into the memory of the kernel timed beside it"):
        bench.evaluate(lab.work(source(WORK)), "4")
    monkeypatch.undo()
    assert bench.evaluate(lab.work(source(WORK)), "4").verdict is Verdict.OK, "the next one is not accused"

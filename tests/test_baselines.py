"""PyTorch as the baseline of a task of a reference alone; kernels are Python functions (`tests/bench_on_cpu.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from evo.core.baselines import BaselineKind
from evo.core.records import PYTORCH_IS_RIGHT, Candidate, Verdict
from fitness.frontend.stages import Stop
from fitness.gpu.gpu_lock import GpuLock
from fitness.gpu.runner import NO_KERNEL
from fitness.tasks.task import load_task
from fitness.verify import oracle
from tests.bench_on_cpu import CpuBench, at, doubling, plan_of
from tests.reference_support import COPYING, FAST, IDLE, WRONG, reference_task

pytest.importorskip("cuda.bindings")

from fitness.gpu.baselines import BaselineCall, _alias, reason
from fitness.gpu.paired_benchmark import SeedTimes

SHORT, LONG = 20.0, 200.0  # microseconds: of what is timed as several copies, and as one
NAN = 0xFF


@pytest.fixture
def made(monkeypatch, tmp_path) -> Callable[..., CpuBench]:
    return lambda us, **task: CpuBench(monkeypatch, tmp_path, us, **task)


def calls_of(lab: CpuBench) -> list[BaselineCall]:
    return list(lab.bench.programs._of_pytorch.values())


@pytest.mark.parametrize(("us", "copies"), [(SHORT, 8), (LONG, 1)])
def test_pytorch_is_timed_beside_itself_first(made, us, copies):
    lab = made(us)
    report = lab.prepared
    assert (report.verdict, report.check, report.choices) == (Verdict.OK, PYTORCH_IS_RIGHT, {})
    (timing,) = report.timings
    assert timing.ratio == pytest.approx(1) and not timing.significant and not timing.estimated
    assert set(timing.samples_us) == set(timing.baseline_us) == {us} and timing.terms["launches_per_sample"] == copies


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_right_kernel_has_its_speed_over_pytorch(made, us, deterministic):
    (timing,) = made(us, deterministic=deterministic).evaluate(doubling(us / 2)).timings
    assert timing.ratio == pytest.approx(2) and timing.significant and set(timing.baseline_us) == {us}


@pytest.mark.parametrize("value", [2.001, 0.0, 1.0])
def test_what_is_wrong_copied_or_zero_is_refused(made, value):
    def kernel(x: int, y: int, n: int) -> float:
        at(y, n)[:] = value * at(x, n)
        return SHORT

    with pytest.raises(Stop, match="output is wrong"):
        made(SHORT).evaluate(kernel)


def test_a_kernel_that_does_nothing_is_refused(made):
    with pytest.raises(Stop, match="replays on the same inputs differ"):
        made(SHORT).evaluate(lambda x, y, n: SHORT)


@pytest.mark.parametrize("us", [SHORT, LONG])
@pytest.mark.parametrize("where", ["guard zone", "argument"])
def test_who_stores_into_pytorchs_memory_while_it_is_timed_is_wrong(made, us, where):
    lab = made(us)
    pairs, timed = lab.bench.timer.pairs, []

    def watched(*args: Any) -> Any:
        timed.append(True)
        return pairs(*args)

    def stray(x: int, y: int, n: int) -> float:
        for call in calls_of(lab) if timed else ():
            ref = plan_of(n).inputs[0]
            zone = call.memory._whole[0, :8] if where == "guard zone" else call.memory.window(ref)
            zone[0] = zone[0] + 1
        return doubling(us)(x, y, n)

    lab.bench.timer.pairs = watched
    with pytest.raises(Stop, match="stored into the memory of the kernel timed beside it"):
        lab.evaluate(stray)
    lab.bench.timer.pairs = pairs
    assert lab.evaluate(doubling(us)).verdict is Verdict.OK  # the next candidate finds it repaired


@pytest.mark.parametrize("us", [SHORT, LONG])
def test_a_kernel_never_finds_what_pytorch_computed(made, us):
    lab = made(us)
    seen: list[bool] = []

    def looking(x: int, y: int, n: int) -> float:
        for call in calls_of(lab):
            for result in call._results:
                left = result.view(torch.uint8)
                seen.append(bool((left == NAN).all()))
        return doubling(us)(x, y, n)

    lab.evaluate(looking)
    assert len(seen) > 10 and all(seen)


def test_calls_before_the_capture_are_on_inputs_of_their_own(made, monkeypatch):
    """What they leave in memory that PyTorch freed is of no use to a candidate."""
    given: list[np.ndarray] = []
    init = BaselineCall.__init__

    def noted(self: BaselineCall, task: Any, kind: Any, first: Any, *rest: Any) -> None:
        given.append(first[0].numpy().copy())
        init(self, task, kind, first, *rest)

    monkeypatch.setattr(BaselineCall, "__init__", noted)
    lab, drawn = made(LONG), []

    def looking(x: int, y: int, n: int) -> float:
        drawn.append(at(x, n).copy())
        return doubling(LONG)(x, y, n)

    lab.evaluate(looking)
    assert given and drawn and not any(np.array_equal(a, b) for a in given for b in drawn)


def test_each_copy_is_called_on_its_own_arguments(made):
    lab = made(SHORT)
    (call,) = (c for c in calls_of(lab) if c.copies > 1)
    call.write_all([(torch.full((1024,), float(copy)),) for copy in range(call.copies)])
    call.replay()
    assert [float(result[0]) for result in call._results] == [2.0 * copy for copy in range(call.copies)]


def test_a_reference_that_changes_its_arguments_must_say_so(made):
    reference = "def reference(x):\n    return x.mul_(2)"
    with pytest.raises(Stop, match="the reference changes argument 'x': name it in writes, or copy it"):
        made(LONG, reference=reference)


def test_a_reference_that_writes_its_argument_gets_it_restored(made):
    reference = 'writes = ("x",)\n\ndef reference(x):\n    x.mul_(2)\n    return x * 1'
    lab = made(LONG, reference=reference)
    (call,) = calls_of(lab)
    before = call.memory.window(plan_of(1024).inputs[0]).clone()
    call.replay()
    call.reset()
    assert torch.equal(call.memory.window(plan_of(1024).inputs[0]), before)


def test_pytorch_that_raises_is_no_baseline(made):
    programs = made(LONG).bench.programs
    programs.task = replace(programs.task, baseline=lambda x: (lambda y: y.reshape(3, 7), (x,)))
    case = programs.task.cases[0]
    with pytest.raises(Stop, match=r"case one: PyTorch eager .TF32 off. cannot be timed: RuntimeError: shape") as stop:
        programs.another_baseline(case, [programs.inputs(case, 1)], 1)
    assert (stop.value.verdict, stop.value.stage) == (Verdict.UNSUPPORTED, "time")


def test_kinds_say_what_they_are():
    assert [kind.text for kind in BaselineKind] == [
        "the seed kernel",
        "PyTorch eager (TF32 off)",
        "torch.compile (TF32 off)",
        "PyTorch eager (TF32 on)",
        "torch.compile (TF32 on)",
    ]
    assert load_task("softmax").timed_against is BaselineKind.SEED and not NO_KERNEL.plans


# --- compiling before the GPU is locked ------------------------------------------------------------------------------


class NotedCompiler:
    """In place of `torch.compile`: notes for which sizes it compiled, and whether the GPU was locked then."""

    def __init__(self, monkeypatch, lock: GpuLock | None = None) -> None:
        self.compiled: list[tuple[int, bool]] = []
        self._lock = lock
        monkeypatch.setattr(torch, "compile", self._compile)

    def _compile(self, function: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
        known: set[Any] = set()

        def call(*arguments: Any) -> Any:
            (size,) = (a.numel() for a in arguments if isinstance(a, torch.Tensor))
            if size not in known:
                known.add(size)
                self.compiled.append((size, self._lock is not None and self._lock.depth > 0))
            return function(*arguments)

        return call


class Asked:
    """The connection of a runner's process: requests in order, then it hangs up."""

    def __init__(self, *requests: Any) -> None:
        self.requests, self.sent = list(requests), []  # type: ignore[var-annotated]

    def recv(self) -> Any:
        if not self.requests:
            raise EOFError
        return self.requests.pop(0)

    def send(self, answer: Any) -> None:
        self.sent.append(answer)


def test_what_a_request_needs_of_the_compiler_is_compiled_before_the_gpu_is_locked(made, monkeypatch, tmp_path):
    from fitness.gpu import runner_process

    bench = made(LONG).bench
    bench.task = bench.programs.task = bench.programs.task.with_baseline("compile")
    bench.stream = SimpleNamespace(synchronize=lambda: None)
    lock = GpuLock("test", tmp_path)
    compiler = NotedCompiler(monkeypatch, lock)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(runner_process, "_leave_memory", lambda bench: None)
    connection = Asked(("prepare", NO_KERNEL))
    runner_process._serve(connection, bench, lock)  # type: ignore[arg-type]
    assert compiler.compiled == [(1024, False)]  # the tune case, once
    waited, report = connection.sent
    assert waited is None and report.verdict is Verdict.OK and report.timings


def test_a_call_that_cannot_be_compiled_says_so_when_it_is_timed(made, monkeypatch):
    programs = made(LONG).bench.programs
    task = programs.task.with_baseline("compile")
    programs.task = replace(task, baseline=lambda x: (lambda y: y.reshape(3, 7), (x,)))
    NotedCompiler(monkeypatch)
    programs.compile_ahead([programs.task.timed_against])
    with pytest.raises(Stop, match=r"torch.compile .TF32 off. cannot be timed: RuntimeError: shape"):
        programs.another_baseline(programs.task.cases[0], [programs.inputs(programs.task.cases[0], 1)], 1)


def test_only_what_is_compiled_is_called_ahead(made, monkeypatch):
    lab = made(LONG)
    compiler, before = NotedCompiler(monkeypatch), lab.calls
    for request in ("prepare", "evaluate", "draw"):
        lab.bench.compile_ahead(request)  # its baseline is eager
    assert lab.calls == before and not compiler.compiled
    lab.bench.compile_ahead("baselines")
    assert len(compiler.compiled) == 1


# --- on a GPU --------------------------------------------------------------------------------------------------------

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


class Slowing(float):
    """Microseconds that a call of PyTorch takes, and more from some time on."""

    factor = 1.0

    def __radd__(self, us: float) -> float:
        return us + self * Slowing.factor


def test_pytorch_is_as_fast_as_itself_though_the_gpu_has_become_slower(monkeypatch, tmp_path):
    measured = SeedTimes.noise

    def then_slower(self, *given):
        found = measured(self, *given)
        Slowing.factor = 1.3
        return found

    monkeypatch.setattr(Slowing, "factor", 1.0)
    monkeypatch.setattr(SeedTimes, "noise", then_slower)
    report = CpuBench(monkeypatch, tmp_path, Slowing(40.0)).prepared
    assert report.verdict is Verdict.OK
    assert Slowing.factor == 1.3
    assert [timing.ratio for timing in report.timings] == [pytest.approx(1)]


class TestOnGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("kind", [str(kind) for kind in BaselineKind if kind.pytorch])
    def test_kernels_are_measured_beside_every_kind(self, tmp_path, kind):
        from fitness.frontend.target import get_target
        from fitness.gpu_backend import GpuEvaluator

        task = load_task(reference_task(tmp_path / "task")).with_baseline(kind)
        with GpuEvaluator(task, get_target("sm_90")) as evaluator:
            first = evaluator.prepare()
            assert first.pytorch and first.speedup == pytest.approx(1, abs=0.05) and not first.estimated
            found = {
                name: evaluator.evaluate(Candidate(source), seed=1, known={})
                for name, source in (("fast", FAST), ("wrong", WRONG), ("idle", IDLE), ("copying", COPYING))
            }
        verdicts = {name: evaluation.verdict for name, evaluation in found.items()}
        assert verdicts.pop("fast") is Verdict.OK, found["fast"].message
        assert set(verdicts.values()) == {Verdict.WRONG}

    def test_nothing_that_pytorch_computed_is_left_after_a_reset(self, tmp_path):
        import cuda.bindings.runtime as runtime

        task = load_task(reference_task(tmp_path / "task")).with_baseline("eager")
        device, stream = torch.device("cuda", 0), torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            first = oracle.make_inputs(task, task.cases[0], 1, device=device)
            call = BaselineCall(task, BaselineKind.EAGER, first, device, 2)
            call.build()
            starts = {result.untyped_storage().data_ptr() for result in call._results}
            assert call._pieces and all(any(a <= s < a + n for a, n in call._pieces) for s in starts)
            call.replay()
            assert torch.allclose(call._results[1], task.reference(first[0]))
            call.reset()
            for address, size in call._pieces:
                left = np.empty(size, np.uint8)
                runtime.cudaMemcpy(left.ctypes.data, address, size, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)
                assert (left == NAN).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_arguments_share_memory_with_their_windows_but_no_storage_with_each_other(dtype) -> None:
    arena = torch.zeros(1 << 12, dtype=torch.uint8)
    windows = [arena.view(dtype).as_strided((3, 4), (8, 1), 1024 // dtype.itemsize + at) for at in (0, 100)]
    first, second = map(_alias, windows)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert (first.shape, first.stride(), first._base) == ((3, 4), (8, 1), None)
    for window, given in zip(windows, (first, second), strict=True):
        assert given.data_ptr() == window.data_ptr()
        given.view(torch.uint8).fill_(1)
    assert all(bool((w.view(torch.uint8) == 1).all()) for w in windows)
    assert _alias(arena[:0]).shape == (0,)


def test_a_reason_is_one_line_with_the_cause_of_a_compiler() -> None:
    assert reason(RuntimeError("backend='inductor' raised:\nAssertionError: a\n\nmore")) == (
        "RuntimeError: backend='inductor' raised: AssertionError: a"
    )
    assert reason(ValueError("no\nmore")) == "ValueError: no" and reason(KeyError()) == "KeyError: "

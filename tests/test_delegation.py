"""Who wrote the outputs: own kernels, or operators they were delegated to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evo.core.records import Candidate, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.memory import Layout
from fitness.frontend.plan import Buffer, Config, Copy, Fill, Launch, LaunchPlan, Op, TensorRef
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.interpreter.delegation import NEITHER, OPERATOR, OWN, Share, WriteTracker, check_share, needs_proof
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import load_task
from tests.gpu_sources import SEED, TASK

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


# --- the twin of the memory ------------------------------------------------------------------------------------------


def ref(buffer: int, dtype: str = "float32", shape: tuple[int, ...] = (4,), offset: int = 0) -> TensorRef:
    strides = tuple(torch.empty(shape, device="meta").stride())
    return TensorRef(buffer, dtype, shape, strides, offset)


LAUNCH = Launch("kernel", (Config((1, 1, 1), {}, {}),), 3)


class Memory:
    """A plan's memory and its authors."""

    def __init__(self, *steps: object) -> None:
        buffers = (Buffer(16, 0), Buffer(16), Buffer(16))
        self.plan = LaunchPlan(buffers, (ref(0),), (ref(2),), "tensor", tuple(steps))  # type: ignore[arg-type]
        self.layout = Layout(self.plan)
        self.data = torch.zeros(self.layout.total, dtype=torch.uint8)
        self.authors = WriteTracker(self.layout, self.data, torch.zeros_like(self.data))

    def view(self, which: TensorRef) -> torch.Tensor:
        return self.layout.view(self.data.numpy(), which)

    def of(self, buffer: int) -> list[int]:
        return self.authors.of(ref(buffer)).tolist()


def test_a_kernel_is_the_author_of_what_it_changes_and_of_no_more():
    memory = Memory()
    memory.authors.follow(LAUNCH, lambda: memory.view(ref(2))[1:3].fill_(5.0))
    memory.authors.follow(LAUNCH, lambda: memory.view(ref(2))[3:].fill_(0.0))  # as it was
    assert memory.of(2) == [NEITHER, OWN, OWN, NEITHER]


def test_operators_copies_and_fills():
    memory = Memory()
    memory.authors.follow(LAUNCH, lambda: memory.view(ref(1)).fill_(1.0))
    memory.authors.follow(Copy(ref(2), ref(1)), lambda: None)
    assert memory.of(2) == [OWN] * 4
    memory.authors.follow(Op("aten.mm.default", (), {}, (ref(2, shape=(2,)),), 7), lambda: None)
    assert memory.of(2) == [OPERATOR, OPERATOR, OWN, OWN]
    memory.authors.follow(Fill(ref(2, shape=(1,), offset=3), 0), lambda: None)
    assert memory.of(2) == [OPERATOR, OPERATOR, OWN, NEITHER]
    memory.authors.follow(Copy(ref(1), ref(0)), lambda: None)
    assert memory.of(1) == [NEITHER] * 4


def test_what_an_operator_writes_to_by_an_argument_is_its_own_too():
    memory = Memory()
    memory.authors.follow(LAUNCH, lambda: memory.view(ref(2)).fill_(1.0))
    memory.authors.follow(Op("aten.exp.out", (ref(0),), {"out": ref(2)}, (ref(1),), 7), lambda: None)
    assert memory.of(2) == memory.of(1) == [OPERATOR] * 4


def test_a_conversion_takes_the_author_along():
    memory = Memory()
    memory.authors.follow(LAUNCH, lambda: memory.view(ref(1))[:2].fill_(1.5))
    memory.authors.follow(Copy(ref(2, "float16", (4,)), ref(1)), lambda: None)
    assert memory.authors.of(ref(2, "float16")).tolist() == [OWN, OWN, NEITHER, NEITHER]


def test_what_is_own_on_some_inputs_is_own():
    share = Share(Memory().plan, [ref(2)])
    for positive in (slice(0, 2), slice(2, 3)):
        memory = Memory()
        memory.authors.follow(Op("aten.mm.default", (), {}, (ref(2),), 7), lambda: None)
        memory.authors.follow(LAUNCH, lambda m=memory, p=positive: m.view(ref(2))[p].fill_(5.0))
        share.add(memory.authors)
    assert share.own == 0.75


def test_a_program_of_the_runner_tells_the_authors(monkeypatch):
    """On the CPU, with a function for a kernel: operators come before and after it."""
    pytest.importorskip("cuda.bindings")
    from fitness.gpu.program import Program

    first = ref(2, shape=(1,))
    before = Op("aten.add.Tensor", (ref(0), ref(0)), {}, (ref(1),), 3)
    after = Op("aten.mul.Tensor", (ref(0, shape=(1,)), 2.0), {}, (first,), 5)
    plan = Memory(before, LAUNCH, after).plan
    triple = SimpleNamespace(
        scratch=lambda grid: [],
        launch=lambda *_: program.memory.window(ref(2)).copy_(program.memory.window(ref(1)) * 3),
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    program = Program(plan, [0], [triple], device=torch.device("cpu"))
    program.write_inputs([torch.arange(1.0, 5.0)])
    share = Share(plan, program.outputs_of_plan)
    share.add(program.tracked_writes())
    assert program.outputs()[0].tolist() == [2.0, 12.0, 18.0, 24.0]
    assert share.own == 0.75


def test_plans_of_launches_alone_need_no_proof():
    assert not needs_proof(Memory(LAUNCH).plan)
    assert needs_proof(Memory(LAUNCH, Fill(ref(2), 0)).plan)


def test_the_message_names_operators_and_lines(tmp_path):
    task = task_of(tmp_path)
    plan = Memory(Op("aten.mm.default", (), {}, (), 7), LAUNCH, Op("aten.add.Tensor", (), {}, (), 9)).plan
    check_share(task, "a", plan, 0.5, "the time", "time")
    with pytest.raises(Stop) as stop:
        check_share(task, "a", plan, 0.49, "the time on the GPU", "time")
    assert (stop.value.verdict, stop.value.stage) == (Verdict.REJECTED, "time")
    assert stop.value.message == (
        "case a: own kernels have a share of 49% in the time on the GPU, the task asks for 50%; the rest is left to "
        "aten.add.Tensor (line 9), aten.mm.default (line 7): compute it in the Triton kernel"
    )


# --- candidates ------------------------------------------------------------------------------------------------------

HEAD = SEED[: SEED.index("def shifted")]
SCALE = """
@triton.jit
def scale(s, o, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    c = tl.arange(0, BLOCK)
    tl.store(o + row + c, tl.load(s + row + c, mask=c < n) * FACTOR, mask=c < n)

"""


def candidate(body: str) -> Candidate:
    """Line 1 of `body` is the second of `shifted`; `launch` stands for the options of a launch over rows."""
    lines = "\n".join("    " + line for line in body.strip().split("\n"))
    lines = lines.replace("LAUNCH", "BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=4")
    return Candidate(f"{HEAD}{SCALE}def shifted(x):\n{lines}\n")


PARTLY = """
total = x.sum(1, keepdim=True)
half = x + total * 0.5
o = torch.empty_like(x)
scale[(x.shape[0],)](half, o, x.shape[1], 1.0, LAUNCH)
torch.add(x * 2, total, out=o)
return o
"""
CASES = {
    # operators prepare, the kernel writes what is returned
    "honest": (
        """
half = x + x.sum(1, keepdim=True) * 0.5
o = torch.empty_like(x)
scale[(x.shape[0],)](half, o, x.shape[1], 2.0, LAUNCH)
return o
""",
        True,
    ),
    # the kernel finishes in place what an operator began
    "in place": (
        """
o = x + x.sum(1, keepdim=True) * 0.5
scale[(x.shape[0],)](o, o, x.shape[1], 2.0, LAUNCH)
return o
""",
        True,
    ),
    "nobody reads it": (
        """
unread = torch.empty_like(x)
scale[(x.shape[0],)](x, unread, x.shape[1], 2.0, LAUNCH)
return x * 2 + x.sum(1, keepdim=True)
""",
        False,
    ),
    "writes back what was there": (
        """
o = x * 2 + x.sum(1, keepdim=True)
scale[(x.shape[0],)](o, o, x.shape[1], 1.0, LAUNCH)
return o
""",
        False,
    ),
    "an operator reads a flag of it": (
        """
flag = torch.empty_like(x)
scale[(x.shape[0],)](x, flag, x.shape[1], 0.0, LAUNCH)
return x * 2 + x.sum(1, keepdim=True) + flag
""",
        False,
    ),
    "overwritten by an operator": (PARTLY, False),
    # and so less of the large cases on a GPU
    "one row in four": (
        """
o = x * 2 + x.sum(1, keepdim=True)
half = x + x.sum(1, keepdim=True) * 0.5
o[0] = 0.0
scale[(1,)](half, o, x.shape[1], 2.0, LAUNCH)
return o
""",
        False,
    ),
}


def task_of(folder, more: str = "allow_delegation = True\n"):
    (folder / "task.py").write_text(TASK + more)
    (folder / "kernel.py").write_text(SEED)
    return load_task(folder)


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90") as zygote:
        yield zygote


@pytest.fixture(scope="module")
def cpu(zygote, tmp_path_factory):
    with CpuEvaluator(task_of(tmp_path_factory.mktemp("task")), get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        yield evaluator


def judged(evaluator, name: str) -> None:
    body, is_ok = CASES[name]
    evaluation = evaluator.evaluate(candidate(body), seed=1, known={})
    if is_ok:
        assert evaluation.verdict is Verdict.OK, evaluation.message
        assert evaluation.check.own_share == 1.0
        return
    assert evaluation.verdict is Verdict.REJECTED, evaluation.message
    assert evaluation.stage == "verify"
    assert "in the bytes of the outputs, the task asks for 50%; the rest is left to aten." in evaluation.message
    assert "(line " in evaluation.message


@pytest.mark.parametrize("name", CASES)
def test_without_a_gpu_the_bytes_decide(cpu, name):
    judged(cpu, name)


def test_the_task_sets_the_limit(zygote, tmp_path):
    task = task_of(tmp_path, "allow_delegation = True\nmin_own_share = 0.1\n")
    assert task.min_own_share == 0.1
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        evaluation = evaluator.evaluate(candidate(CASES["one row in four"][0]), seed=1, known={})
        assert evaluation.verdict is Verdict.OK, evaluation.message
        assert evaluation.check.own_share == pytest.approx(1 / 4)  # of the case with four rows


TRANSPOSE_TASK = '''"""A transposed copy."""
import torch
from fitness import Case

entry = "transposed"
cases = [Case("one", {"N": 512}, cpu_axes={"N": 16})]

def inputs(case, generator):
    return (torch.randn(case.axes["N"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x.t().contiguous()
'''
TRANSPOSE = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    tl.store(y + c * n + row, tl.load(x + row * n + c, mask=c < n), mask=c < n)

def transposed(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, y, x.shape[0], BLOCK=512)
    return {result}
"""


def test_a_decoy_beside_a_copy_is_refused_whatever_the_task_allows(zygote, tmp_path):
    (tmp_path / "task.py").write_text(TRANSPOSE_TASK)
    (tmp_path / "kernel.py").write_text(TRANSPOSE.format(result="y"))
    with CpuEvaluator(load_task(tmp_path), get_target("sm_90"), zygote=zygote) as evaluator:
        assert evaluator.prepare().verdict is Verdict.OK
        decoy = Candidate(TRANSPOSE.format(result="x.t().contiguous()"))
        evaluation = evaluator.evaluate(decoy, seed=1, known={})
        assert evaluation.verdict is Verdict.REJECTED, evaluation.message
        assert "own kernels have a share of 0%" in evaluation.message
        assert "left to copies and fills" in evaluation.message


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu(zygote, tmp_path_factory):
    from fitness.gpu_backend import GpuEvaluator

    task = task_of(tmp_path_factory.mktemp("task"), "allow_delegation = True\nmin_own_share = 0.1\n")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        yield evaluator


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_bytes_and_time_are_told(gpu):
    evaluation = gpu.evaluate(candidate(CASES["honest"][0]), seed=1, known={})
    assert evaluation.verdict is Verdict.OK, evaluation.message
    assert evaluation.check.own_share == 1.0
    for timing in evaluation.timings:
        assert 0.1 <= timing.terms["own_time_share"] < 0.8


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "name", [name for name, (_, is_ok) in CASES.items() if not is_ok and name != "one row in four"]
)
def test_on_a_gpu_decoys_are_refused(gpu, name):
    evaluation = gpu.evaluate(candidate(CASES[name][0]), seed=1, known={})
    assert evaluation.verdict is Verdict.REJECTED, evaluation.message
    assert evaluation.stage == "verify"
    assert "aten." in evaluation.message and "(line " in evaluation.message


@pytest.mark.gpu
@needs_gpu
def test_a_kernel_that_only_hands_on_what_operators_computed_has_too_little_of_the_time(gpu):
    body = """
y = x * 2 + x.sum(1, keepdim=True)
for again in range(8):
    y = y + x * 0.0
o = torch.empty_like(x)
scale[(x.shape[0],)](y, o, x.shape[1], 1.0, LAUNCH)
return o
"""
    evaluation = gpu.evaluate(candidate(body), seed=1, known={})
    assert evaluation.verdict is Verdict.REJECTED, evaluation.message
    assert evaluation.stage == "time"
    assert "in the time on the GPU, the task asks for 10%" in evaluation.message
    assert "aten.add.Tensor (line " in evaluation.message

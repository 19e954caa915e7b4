"""Tasks of a reference alone: loading, freezing, sending, and their evaluation without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evo
from evo.cli.main import main
from evo.core.baselines import BaselineKind
from evo.core.errors import ConfigError, TaskError
from evo.core.records import PYTORCH_CALL, Candidate, Case, Evaluation, Verdict
from fitness.cluster.bundle import TaskBundle
from fitness.cpu_backend import CpuEvaluator
from fitness.estimate.coverage import bytes_needed
from fitness.estimate.time_model import estimate
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import Calls
from fitness.tasks.pytorch_plan import recorded, reference_call
from fitness.tasks.task import changed_since_frozen, freeze_task, load_task
from fitness.validation.vacuous import SAME, VACUOUS, of_task
from fitness.verify.long_loops import added_cases
from tests.reference_support import COPYING, FAST, IDLE, KERNEL, TASK, WRONG, reference_task

H200 = get_target("sm_90")


def reference(x):
    return torch.sigmoid(x) * x + 1


def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)


# --- loading ---------------------------------------------------------------------------------------------------------


def test_a_task_may_lack_its_kernel(tmp_path: Path) -> None:
    task = load_task(reference_task(tmp_path / "task"))
    assert task.seed_source is None and task.timed_against is BaselineKind.EAGER
    assert task.first_source.startswith("# PyTorch eager (TF32 off): the reference of this task, and no kernel\n")
    assert task.with_baseline("compile-tf32").timed_against.text == "torch.compile (TF32 on)"
    with pytest.raises(TaskError, match=r"expected a task with kernel.py for this, got one of a reference alone"):
        _ = task.needed_seed
    (tmp_path / "task" / "kernel.py").write_text(KERNEL)
    other = load_task(tmp_path / "task")
    assert other.hash != task.hash and other.timed_against is BaselineKind.SEED


@pytest.mark.parametrize("line", ["lenient = True", 'reference = "seed"'])
def test_what_needs_a_seed_kernel_says_so(tmp_path: Path, line: str) -> None:
    folder = reference_task(tmp_path / "task", f"{TASK}\n{line}\n")
    with pytest.raises(TaskError, match=rf"expected a kernel.py beside it for {line}, got none; add the kernel"):
        load_task(folder)


def test_a_frozen_task_without_a_kernel_is_unchanged_until_it_gets_one(tmp_path: Path) -> None:
    folder = reference_task(tmp_path / "task")
    freeze_task(folder, load_task(folder).hash, {})
    assert changed_since_frozen(folder) == ""
    (folder / "kernel.py").write_text(KERNEL)
    assert "kernel.py in" in changed_since_frozen(folder)


def test_a_task_made_in_python_may_lack_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = evo.load_task(evo.Task("swish", [Case("one", {"M": 4, "N": 8})], inputs, reference))
    assert task.seed_source is None and sorted(p.name for p in task.folder.iterdir()) == ["task.py"]


def test_what_a_run_sets_travels_with_the_task(tmp_path: Path) -> None:
    task = load_task(reference_task(tmp_path / "task")).with_baseline("eager-tf32").with_own_share(0.25)
    there = TaskBundle.of(task).load(tmp_path / "there")
    assert (there.seed_source, there.hash, there.run_settings) == (None, task.hash, task.run_settings)
    assert there.timed_against is BaselineKind.EAGER_TF32 and there.allow_delegation and there.min_own_share == 0.25


# --- what is known of the reference ----------------------------------------------------------------------------------


def test_the_reference_is_recorded_as_operators(tmp_path: Path) -> None:
    task = load_task(reference_task(tmp_path / "task"))
    plan = recorded(task, Calls(task).describe(task.cases[0]), reference_call)
    assert [op.name for op in plan.delegated] == ["aten.sigmoid.default", "aten.mul.Tensor", "aten.add.Tensor"]
    assert bytes_needed(plan) == 2 * 4 * 512 * 1024  # read once, written once
    found = estimate(plan, (), (), (), H200)
    assert len(found.per_launch) == 3 and found.terms["launch"] == pytest.approx(3 * 0.6)


def test_attention_without_dropout_is_recorded(tmp_path: Path) -> None:
    attends = "torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])"
    task = load_task(reference_task(tmp_path / "task", TASK.replace("torch.sigmoid(x) * x + 1", attends)))
    plan = recorded(task, Calls(task).describe(task.cases[0]), reference_call)
    (step,) = estimate(plan, (), (), (), H200).per_launch
    assert "scaled_dot_product" in step.name and step.terms["tensor"] > 0
    drawing = TASK.replace("torch.sigmoid(x) * x + 1", "torch.nn.functional.dropout(x, 0.0) + torch.rand_like(x)")
    other = load_task(reference_task(tmp_path / "other", drawing))
    with pytest.raises(Stop, match="random numbers"):
        recorded(other, Calls(other).describe(other.cases[0]), reference_call)


def test_float32_products_take_longer_without_tf32(tmp_path: Path) -> None:
    text = TASK.replace("torch.sigmoid(x) * x + 1", "x @ x.t()").replace('"M": 512, "N": 1024', '"M": 4096, "N": 4096')
    task = load_task(reference_task(tmp_path / "task", text))
    plan = recorded(task, Calls(task).describe(task.cases[0]), reference_call)
    off, on = (estimate(plan, (), (), (), H200, tf32=tf32).total_us for tf32 in (False, True))
    assert 5 < off / on < 9  # 67 and 494 TFLOP/s


def test_sizes_beyond_the_tasks_own_are_those_at_which_the_reference_works(tmp_path: Path) -> None:
    task = load_task(reference_task(tmp_path / "task"))
    added = added_cases(task, None)
    assert max(case.axes["M"] for case in added) > 100 and max(case.axes["N"] for case in added) > 100
    assert {1} <= {case.axes["M"] for case in added if case.reduced}
    assert all(case.axes["M"] * case.axes["N"] * 4 <= 1 << 16 for case in added if not case.reduced)


# --- evaluation without a GPU ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90") as started:
        yield started


@pytest.fixture(scope="module")
def evaluator(zygote, tmp_path_factory):
    task = load_task(reference_task(tmp_path_factory.mktemp("evaluator") / "task"))
    with CpuEvaluator(task, H200, zygote=zygote) as opened:
        first = opened.prepare()
        assert first.pytorch and first.environment[PYTORCH_CALL] == "eager" and first.speedup == 1
        yield opened


def verdict(evaluator: CpuEvaluator, source: str) -> Evaluation:
    return evaluator.evaluate(Candidate(source), seed=1, known={})


# Wrong from the second iteration of a loop on: at the sizes for a CPU there is one.
LOOPS = KERNEL.replace(
    """    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, v / (1 + tl.exp(-v)) + 1, mask=i < n)
""",
    """    for start in range(tl.program_id(0) * BLOCK * 8, min(n, (tl.program_id(0) + 1) * BLOCK * 8), BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < n, other=0.0)
        one = tl.where(start < BLOCK * 4, 1.0, 1.5)
        tl.store(y + i, v / (1 + tl.exp(-v)) + one, mask=i < n)
""",
).replace("triton.cdiv(n, 64)", "triton.cdiv(n, 512)")
LARGE = KERNEL.replace("+ 1, mask", "+ tl.where(n > 100000, 1.5, 1.0), mask")  # wrong at full size alone
PART = KERNEL.replace("triton.cdiv(n, 64),", "min(triton.cdiv(n, 64), 64),")  # leaves most of it at full size
CALLS = KERNEL.replace("    return y", "    return y + 0 * torch.sigmoid(x)")
STORES = KERNEL.replace("    tl.store(y + i", "    tl.store(x + i, v, mask=i < n)\n    tl.store(y + i")


@pytest.mark.parametrize("source", [KERNEL, FAST], ids=["blocks of 64", "blocks of 512"])
def test_right_kernels_are_ok_and_estimated_over_pytorch(evaluator, source) -> None:
    found = verdict(evaluator, source)
    assert found.verdict is Verdict.OK and found.estimated and not found.pytorch, found.message
    assert evaluator.screen([source]) == [pytest.approx(found.speedup)]


@pytest.mark.parametrize(
    ("source", "expected", "message"),
    [
        (WRONG, Verdict.WRONG, "output is wrong"),
        (IDLE, Verdict.WRONG, "wrong"),
        (COPYING, Verdict.WRONG, "wrong"),
        (KERNEL.replace("tl.store(y", "# tl.store(y"), Verdict.WRONG, "launches write only about 0%"),
        (LOOPS, Verdict.WRONG, "wrong"),
        (LARGE, Verdict.WRONG, "at its full size"),
        (PART, Verdict.WRONG, "at its full size"),
        (STORES, Verdict.WRONG, "something was stored to input 'x'"),
        (CALLS, Verdict.REJECTED, "compute it in a kernel"),
    ],
    ids=["wrong", "zeros", "copy", "nothing", "loop", "large", "part", "stores", "delegates"],
)
def test_others_are_refused(evaluator, source, expected, message) -> None:
    found = verdict(evaluator, source)
    assert found.verdict is expected and message in found.message, found.message


def test_what_pytorch_may_do_is_stated(tmp_path: Path) -> None:
    """Own kernels write all of the outputs, half of which PyTorch then writes again."""
    half = "    y[: x.shape[0] // 2] = torch.sigmoid(x[: x.shape[0] // 2]) * x[: x.shape[0] // 2] + 1\n    return y"
    source, task = KERNEL.replace("    return y", half), reference_task(tmp_path / "task")
    with evo.Evaluator(task, gpus="none", allow_delegation=0.4, workers=1) as opened:
        found = opened.evaluate(source)
        assert found.verdict is Verdict.OK and 0.4 < found.check.own_share < 0.7, found.message
    with evo.Evaluator(task, gpus="none", allow_delegation=0.9, workers=1) as opened:
        assert "own kernels have a share of" in opened.evaluate(source).message
    with pytest.raises(ConfigError, match=r"expected the share of own kernels, from 0 to less than 1, got 1\.5"):
        evo.Evaluator(task, allow_delegation=1.5)


def test_a_reference_that_decides_by_values_cannot_be_estimated(tmp_path: Path, zygote) -> None:
    text = TASK.replace("torch.sigmoid(x) * x + 1", "x * 2 if x.sum() > 0 else x * 3")
    task = load_task(reference_task(tmp_path / "task", text))
    with CpuEvaluator(task, H200, zygote=zygote) as opened, pytest.raises(TaskError, match="run on shapes alone"):
        opened.prepare()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ("torch.sigmoid(x) * x + 1", []),
        ("x * 0", ["stores zeros"]),
        ("x * (1 + 1e-9)", ["copies an input"]),
    ],
)
def test_a_task_that_an_idle_kernel_passes_is_found(tmp_path: Path, zygote, result: str, found: list[str]) -> None:
    task = load_task(reference_task(tmp_path / "task", TASK.replace("torch.sigmoid(x) * x + 1", result)))
    findings = of_task(task, H200, zygote)
    assert sorted({f.kind for f in findings if f.what == VACUOUS}) == found


def test_a_copy_is_the_function_of_a_task_that_copies(tmp_path: Path, zygote) -> None:
    task = load_task(reference_task(tmp_path / "task", TASK.replace("torch.sigmoid(x) * x + 1", "x.clone()")))
    assert {(f.kind, f.what) for f in of_task(task, H200, zygote)} == {("copies an input", SAME)}


# --- from a user's file ----------------------------------------------------------------------------------------------

MODULE = """import torch
batch = 64
features = 96

class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = torch.nn.Linear(n, 32)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return [features]
"""
FUNCTION = """import torch
M, N = 64, 128

def scaled(x, scale):
    return torch.softmax(x * scale, dim=-1)

def get_inputs():
    return [torch.randn(M, N), 0.5]
"""


@pytest.mark.parametrize(
    ("text", "parameters", "axes"),
    [
        (MODULE, ("x", "linear_weight", "linear_bias"), {"batch": 64, "features": 96}),
        (FUNCTION, ("x", "scale"), {"M": 64, "N": 128}),
    ],
    ids=["module", "function"],
)
def test_a_users_file_becomes_a_task(tmp_path: Path, capsys, text, parameters, axes) -> None:
    (tmp_path / "model.py").write_text(text)
    assert main(["tasks", "new", str(tmp_path / "task"), "--reference", str(tmp_path / "model.py")]) == 0
    assert f"kernels define entry({', '.join(parameters)})" in capsys.readouterr().out
    task = load_task(tmp_path / "task")
    assert task.parameters == parameters and task.cases[0].axes == axes and task.seed_source is None
    plan = recorded(task, Calls(task).describe(task.cases[0]), reference_call)
    assert plan.delegated and bytes_needed(plan) > 0


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("import torch\n", [], "expected class Model(nn.Module), get_inputs() and get_init_inputs(), or one function"),
        ("def f(x):\n", [], "not Python: line 1"),
        (FUNCTION + "\ndef other(x):\n    return x\n", [], "got the functions scaled, other; name one by --function"),
        (FUNCTION, ["--function", "no"], "--function: expected one of scaled, got 'no'"),
        (FUNCTION.replace("x * scale", "x * missing"), [], "NameError"),
        (FUNCTION.replace("torch.softmax(x * scale, dim=-1)", "torch.rand_like(x)"), [], "draws random numbers"),
        (FUNCTION, ["KERNEL.py"], "expected a KERNEL.py, or a --reference MODEL.py, got both"),
        (FUNCTION, ["--model", "m@http://localhost"], "expected a KERNEL.py whose task.py a model writes"),
    ],
)
def test_files_that_are_no_reference_are_refused(tmp_path: Path, capsys, text, arguments, message) -> None:
    (tmp_path / "model.py").write_text(text)
    command = ["tasks", "new", str(tmp_path / "task"), *arguments, "--reference", str(tmp_path / "model.py")]
    assert main(command) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "task").exists()

"""KernelBench: problems of its form, written for these tests, through the real sandbox, compiler and interpreter."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from evo.cli.main import main
from evo.core.errors import ConfigError, TaskError
from evo.core.records import Candidate, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.gate import gate
from fitness.frontend.target import get_target
from fitness.suites.check import gpu_verifier, new_zygote
from fitness.suites.kernelbench.check import KernelBenchChecker
from fitness.suites.kernelbench.checkout import KernelBenchFile, sources
from fitness.suites.kernelbench.folder import write_folder
from fitness.suites.kernelbench.problem import Problem, axes_of
from fitness.suites.kernelbench.seeds import FAMILIES, LEVEL_2, seed_kernel
from fitness.suites.kernelbench.sizes import extent, sizes_of
from fitness.tasks.task import load_task, run_reference
from fitness.verify import oracle
from fitness.verify.long_loops import costs_little

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")

HEAD = "import torch\nimport torch.nn as nn\n"


def problem(
    forward: str, inputs: str, *, sizes: str = "rows = 256\ncolumns = 512", more: str = "", init: str = ""
) -> str:
    """A file of the suite's form; `more` are lines of __init__, `init` its arguments."""
    names = ", ".join(f"a{i}" for i in range(len(init.split(",")) if init else 0))
    return (
        f"{HEAD}\nclass Model(nn.Module):\n    def __init__(self{', ' * bool(names)}{names}):\n"
        f"        super().__init__()\n{more}\n    def forward(self, x):\n        return {forward}\n\n{sizes}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return [{init}]\n"
    )


DRAWN = "torch.rand(rows, columns)"
RELU = problem("x.clamp(min=0)", DRAWN)
# Its parameters start as ones and zeros, and it has statistics that training mode writes and does not read.
BATCH_NORM = problem(
    "self.bn(x)", "torch.rand(batch, features, 4, 6)", sizes="batch, features = 64, 2 * 16",
    more="        self.bn = nn.BatchNorm2d(a0)", init="features",
)  # fmt: skip
FILES = {
    "1_ReLU": RELU,
    "2_BatchNorm": BATCH_NORM,
    "3_Cube": problem("x ** 3", DRAWN),
    "4_Dropout": problem("torch.dropout(x, 0.5, True)", DRAWN),
    "5_Nothing": problem("(x * 0).sum(dim=1)", DRAWN),
    "6_Missing": "import torch\n",
    "7_Gone": problem("torch.no_such_function(x)", DRAWN),
    "8_Import": "import no_such_module\n" + RELU,
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    (root / "KernelBench" / "level1").mkdir(parents=True)
    for name, text in FILES.items():
        (root / "KernelBench" / "level1" / f"{name}.py").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def zygote():
    with new_zygote(get_target("sm_90")) as started:
        yield started


@pytest.fixture(scope="module")
def checked(checkout, zygote, tmp_path_factory):
    """(folder of tasks, outcome by name without level)"""
    root = tmp_path_factory.mktemp("tasks")
    checker = KernelBenchChecker(root, get_target("sm_90"), zygote)
    return root, {source.name.removeprefix("level1_"): checker.check(source) for source in sources(checkout)}


# --- the checkout ----------------------------------------------------------------------------------------------------


NORMALIZED = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.bn = nn.BatchNorm1d(features)

    def forward(self, x):
        return self.bn(x)

features = 4

def get_inputs():
    return [torch.rand(8, features)]

def get_init_inputs():
    return [features]
"""


def test_a_model_that_was_only_asked_for_its_cost_computes_afterwards() -> None:
    """Its buffers (here the running statistics) must not be those of tensors that only have a shape."""
    made = Problem(NORMALIZED)
    axes = {"features": 4}
    assert costs_little(
        lambda: made.reference(*made.inputs(axes, torch.Generator().manual_seed(0))), elements=10**6, flops=10**6
    )
    result = made.reference(*made.inputs(axes, torch.Generator().manual_seed(0)))
    assert torch.isfinite(result).all() and result.shape == (8, 4)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="git clone"):
        sources(tmp_path)


def test_problems_come_in_the_order_of_their_numbers_also_from_the_inner_folder(checkout, tmp_path):
    names = [source.name for source in sources(checkout)]
    assert names == [source.name for source in sources(checkout / "KernelBench")]
    assert names[0] == "level1_1_ReLU" and len(names) == len(FILES)
    (tmp_path / "level2").mkdir()
    for name in ("10_b", "9_a"):
        (tmp_path / "level2" / f"{name}.py").write_text(RELU)
    assert [source.name for source in sources(tmp_path)] == ["level2_9_a", "level2_10_b"]


def test_all_problems_are_accounted_for_with_the_reason(checked):
    _, outcomes = checked
    assert {name for name, outcome in outcomes.items() if outcome.verified} == {"1_ReLU", "2_BatchNorm"}, outcomes
    reasons = {name: outcome.reason for name, outcome in outcomes.items()}
    cube = outcomes["3_Cube"]
    assert cube.stages == ["read", "recorded"] and cube.alone and "no seed kernel" in cube.reason
    assert cube.searchable(models=True) and not cube.searchable(models=False)
    assert "other results for the same arguments" in reasons["4_Dropout"]
    assert "same whatever the inputs" in reasons["5_Nothing"]
    assert "found no Model" in reasons["6_Missing"]
    assert "no_such_function" in reasons["7_Gone"]
    assert "no_such_module" in reasons["8_Import"]


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_integers_of_the_top_level_are_sizes():
    text = problem("x", DRAWN, sizes="rows = 4 * 8\nh = w = 7\na, b = 2, 3\nshape = (5, rows)\nscale = 0.5\nn = -1")
    assert axes_of(text) == {"rows": 32, "h": 7, "a": 2, "b": 3, "shape_0": 5}


def test_what_follows_from_a_size_follows_and_what_runs_at_import_does_not():
    text = problem("x", "torch.rand(shape)", sizes="rows = 8\nshape = (rows, 2, 3 * rows)\nprint('imported')\n1 / 0")
    given, _ = Problem(text).given({"rows": 5}, 0, torch.device("cpu"))
    assert given[0].shape == (5, 2, 15)


def test_problems_too_large_are_halved_and_twins_together():
    text = problem("x @ x", "torch.rand(n, m)", sizes="n = 4096\nm = 4096\nheads = 8")
    sizes = sizes_of(text, most_bytes=2 << 20)
    assert sizes.reduced and sizes.own == {"n": 512, "m": 512}
    assert sizes.own_cpu == {"n": 64, "m": 64} and sizes.other == {"n": 385, "m": 385}
    assert extent(Problem(text), sizes.own).nbytes == 2 << 20
    assert not sizes_of(text, most_bytes=1 << 30).reduced


def test_sizes_that_a_model_insists_on_stay():
    text = problem(
        "self.norm(x)", "torch.rand(batch, features, 32)", sizes="batch = 1024\nfeatures = 64",
        more="        self.norm = nn.GroupNorm(16, a0)", init="features",
    )  # fmt: skip
    sizes = sizes_of(text, most_bytes=1 << 30)
    assert sizes.own_cpu["features"] % 16 == 0
    assert sizes.other_cpu["features"] == sizes.own_cpu["features"]  # 24 or 25 have no 16 groups
    assert sizes.other_cpu["batch"] < sizes.own_cpu["batch"]


def test_sizes_whose_result_is_empty_are_not_taken():
    text = problem("x[:, 100:]", "torch.rand(rows, columns)", sizes="rows = 512\ncolumns = 512")
    sizes = sizes_of(text, most_bytes=1 << 30)
    assert all(axes["columns"] > 100 for axes in (sizes.own_cpu, sizes.other, sizes.other_cpu))
    assert sizes.own_cpu["rows"] < 100


def test_the_number_of_layers_is_no_size():
    text = problem(
        "self.rnn(x[0], x[1])[0]", "torch.rand(batch, 6, 32), torch.rand(layers, batch, 32)",
        sizes="batch = 64\nlayers = 8", more="        self.rnn = nn.RNN(32, 32, a0, batch_first=True)", init="layers",
    )  # fmt: skip
    sizes = sizes_of(text.replace("(self, x)", "(self, *x)"), most_bytes=1 << 30)
    assert {axes["layers"] for axes in (sizes.own, sizes.own_cpu, sizes.other, sizes.other_cpu)} == {8}
    assert sizes.other["batch"] < 64 > sizes.own_cpu["batch"]


def test_a_problem_that_cannot_be_made_small_enough_says_its_size():
    with pytest.raises(TaskError, match=r"takes .* GiB at the least size"):
        sizes_of(problem("x * 2", "torch.rand(4096, 4096)", sizes="n = 1"), most_bytes=1 << 20)


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_inputs_have_signs_and_differ_from_seed_to_seed():
    draw = Problem(problem("x", DRAWN)).inputs
    (first,), (again,), (other,) = (draw({}, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0.4 < (first < 0).float().mean() < 0.6


def test_pytorchs_own_generator_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Problem(RELU).inputs({}, torch.Generator().manual_seed(1))
    assert torch.equal(torch.rand(3), expected)


def test_numbers_stay_positive_where_signs_give_no_finite_result(tmp_path):
    text = problem("torch.log(x)", DRAWN)
    write_folder(tmp_path / "log", KernelBenchFile("level1_1_Log", text), None, 1 << 30)
    assert "signed=False" in (tmp_path / "log" / "task.py").read_text()
    (x,) = Problem(text, signed=False).inputs({}, torch.Generator().manual_seed(1))
    assert x.min() >= 0


def test_a_device_that_the_file_names_is_that_of_the_generator():
    text = problem(
        "x.cuda() + self.w.to('cuda')", "torch.rand(rows, columns, device='cuda')", more="        self.w = 0"
    )
    text = text.replace("self.w = 0", "self.w = nn.Parameter(torch.rand(columns).cuda())")
    given, model, _ = Problem(text).drawn({}, 0, torch.device("meta"))
    assert given[0].device.type == "meta" and next(model.parameters()).device.type == "meta"


def test_seconds_are_known_by_stage(checked):
    """A campaign begins with the files that compile longest."""
    _, outcomes = checked
    relu = outcomes["1_ReLU"]
    assert relu.verified and set(relu.seconds) == {"recorded", "compiled", "verified", "idle"}
    assert relu.seconds["compiled"] > 0
    alone = [outcome for outcome in outcomes.values() if outcome.alone]
    assert alone and all(set(outcome.seconds) == {"recorded", "idle"} for outcome in alone)


def test_parameters_are_shared_with_the_kernel_and_none_is_a_constant(checked):
    root, _ = checked
    task = load_task(root / "level1_2_BatchNorm")
    assert task.parameters == ("x", "bn_weight", "bn_bias")
    x, weight, bias = oracle.make_inputs(task, task.cases[0].on_cpu(), 1)
    assert len(weight.unique()) > 1 and len(bias.unique()) > 1
    _, (y,) = run_reference(task, (x, weight, bias))
    expected = torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    assert torch.allclose(y, expected, atol=1e-5)
    _, (double,) = run_reference(task, (x, weight, bias), double=True)
    assert double.dtype is torch.float64


def test_a_tensor_that_a_call_replaces_is_an_argument(tmp_path):
    text = problem("self.step(x)", DRAWN, more="        self.hidden = torch.zeros(512)")
    step = "    def step(self, x):\n        self.hidden = self.hidden + x.mean(0)\n        return x + self.hidden\n\n"
    step += "    def forward"
    write_folder(
        tmp_path / "step", KernelBenchFile("level3_1_Step", text.replace("    def forward", step)), None, 1 << 30
    )
    assert "def reference(x, hidden):" in (tmp_path / "step" / "task.py").read_text()


def test_a_prompt_shows_the_model_and_not_what_measures_it(checked):
    from fitness.briefing.facts import reference_source

    root, _ = checked
    shown = reference_source(load_task(root / "level1_2_BatchNorm"))
    assert "nn.BatchNorm2d(a0)" in shown and "cases" not in shown


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_every_family_gives_a_kernel_without_words_left():
    for family in FAMILIES:
        text = seed_kernel(KernelBenchFile(f"level1_7_{family}_", ""))
        assert text is not None
        compile(text, family, "exec")
        left = [w for w in ("VALUE", "TERM", "RESULT", "SHAPE", "START", "NEUTRAL", "OPERANDS", "BETTER") if w in text]
        assert not left, (family, left)
    assert seed_kernel(KernelBenchFile("level2_7_ReLU", "")) is None


@pytest.mark.parametrize("path", sorted(LEVEL_2.glob("*.py")), ids=lambda path: path.stem)
def test_a_kernel_for_level_2_has_all_its_parts_and_passes_the_gate(path):
    text = seed_kernel(KernelBenchFile(f"level2_7_{path.stem}", ""))
    assert gate(text, entry="entry", allow_delegation=False) == []
    nodes = [*ast.walk(ast.parse(text))]
    launched = {n.value.id for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)}
    kernels = {n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.endswith("_kernel")}
    assert kernels and kernels == {name for name in launched if name.endswith("_kernel")}


# Problems for each part of `kernels/parts`, with names and steps of the suite's.
LEVEL_2_PROBLEMS = {
    "59_Matmul_Swish_Scaling": problem(
        "nn.functional.silu(self.matmul(x)) * 2.0", DRAWN, sizes="rows, columns, wide = 70, 40, 65",
        more="        self.matmul = nn.Linear(a0, a1)", init="columns, wide",
    ),
    "54_Conv2d_Multiply_LeakyReLU_GELU": problem(
        "nn.functional.gelu(nn.functional.leaky_relu(self.conv(x) * self.multiplier))", "torch.rand(2, 3, size, size)",
        sizes="size = 9", init="5",
        more="        self.conv = nn.Conv2d(3, a0, 3)\n        self.multiplier = nn.Parameter(torch.randn(a0, 1, 1))",
    ),
    "24_Conv3d_Min_Softmax": problem(
        "torch.softmax(self.conv(x).amin(2), 1)", "torch.rand(2, 3, size, size + 1, size)", sizes="size = 6",
        more="        self.conv = nn.Conv3d(3, a0, 3)", init="5",
    ),
    "44_ConvTranspose2d_Multiply_GlobalAvgPool_GlobalAvgPool_Mean": problem(
        "(self.conv_transpose(x) * 0.5).mean((2, 3), True)", "torch.rand(2, 3, size, size + 1)", sizes="size = 5",
        more="        self.conv_transpose = nn.ConvTranspose2d(3, a0, 3, 2, 1, 1)", init="5",
    ),
    "72_ConvTranspose3d_BatchNorm_AvgPool_AvgPool": problem(
        "self.pool(self.pool(self.batch_norm(self.conv_transpose(x))))", "torch.rand(2, 3, size, size, size)",
        sizes="size = 5", init="4",
        more="        self.conv_transpose = nn.ConvTranspose3d(3, a0, 3, 2, 1)\n"
        "        self.batch_norm = nn.BatchNorm3d(a0)\n        self.pool = nn.AvgPool3d(2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEVEL_2_PROBLEMS)
def test_kernels_for_level_2_are_right(name, zygote, tmp_path):
    checker = KernelBenchChecker(tmp_path, get_target("sm_90"), zygote)
    outcome = checker.check(KernelBenchFile(f"level2_{name}", LEVEL_2_PROBLEMS[name]))
    assert outcome.verified, outcome.reason


def test_kernels_of_the_user_go_before_those_of_evo(checkout, tmp_path, capsys):
    (tmp_path / "level1_3_Cube.py").write_text(
        seed_kernel(KernelBenchFile("level1_1_ReLU", "")).replace("tl.maximum(x, 0.0)", "x * x * x")
    )
    only = ["suite", "check", "kernelbench", "--path", str(checkout), "--only", "*_Cube", "--gpus", "none"]
    assert main(only) == 0
    assert "no seed kernel" in capsys.readouterr().out
    assert main([*only, "--seeds", str(tmp_path)]) == 0
    assert "level1_3_Cube" in capsys.readouterr().out
    (tmp_path / "level1_9_Other.py").write_text("")
    assert main([*only, "--seeds", str(tmp_path)]) == 2
    assert "level1_9_Other" in capsys.readouterr().err


def test_seed_kernels_of_evo_can_be_left_out(checkout, capsys):
    only = ["suite", "check", "kernelbench", "--path", str(checkout), "--only", "level1_1_ReLU", "--gpus", "none"]
    assert main([*only, "--no-seeds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["stages"] == ["read", "recorded"] and "no seed kernel" in found["reason"]


def test_candidates_are_judged_by_the_model(checked, zygote):
    root, _ = checked
    task = load_task(root / "level1_2_BatchNorm")
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        for old, new in (("* tl.load(weight_ptr + channel)", ""), ("+ tl.load(bias_ptr + channel)", "")):
            assert old in task.seed_source
            found = evaluator.evaluate(Candidate(task.seed_source.replace(old, new)), seed=3, known={})
            assert found.verdict is Verdict.WRONG, found.message


def test_a_lost_sign_is_found(checked, zygote):
    root, _ = checked
    task = load_task(root / "level1_1_ReLU")
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        found = evaluator.evaluate(Candidate(task.seed_source.replace("tl.maximum(x, 0.0)", "x")), seed=3, known={})
        assert found.verdict is Verdict.WRONG


# --- commands --------------------------------------------------------------------------------------------------------


def test_check_prints_a_line_for_each_problem_and_totals(checkout, capsys):
    arguments = ["suite", "check", "kernelbench", "--path", str(checkout), "--only", "level1_1_*,*_Missing"]
    assert main([*arguments, "--gpus", "none", "--gib", "0.0001"]) == 1
    out = capsys.readouterr().out
    assert "verified, 2 calls, reduced to rows=" in out
    assert "2 files: 1 read, 1 recorded, 1 compiled, 1 verified" in out


def test_misuse_is_said(checkout, capsys):
    arguments = ["suite", "check", "kernelbench", "--path", str(checkout), "--gpus", "none"]
    assert main([*arguments, "--gib", "0"]) == 2
    assert "--gib" in capsys.readouterr().err
    assert main([*arguments, "--only", "level1_77*"]) == 2
    arguments[2] = "tritonbench"
    assert main([*arguments, "--seeds", str(checkout)]) == 2
    assert "--seeds" in capsys.readouterr().err


def test_a_campaign_without_a_gpu_has_no_baselines(checkout, tmp_path, capsys):
    arguments = ["bench", "kernelbench", "--path", str(checkout), "--only", "*_ReLU,*_Cube", "--gpus", "none"]
    arguments += ["--out", str(tmp_path / "out"), "--workers", "1"]
    assert main([*arguments, "--budget", "0"]) == 2
    assert "expected a GPU" in capsys.readouterr().err
    assert main([*arguments, "--budget", "2"]) == 0
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "PyTorch is timed on a GPU alone" in summary
    assert "no seed kernel" in summary
    rows = {row["kernel"]: row for row in pq.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()}
    assert rows["level1_1_ReLU"]["candidates"] == 2 and rows["level1_1_ReLU"]["baselines"] == []
    assert main([*arguments, "--budget", "2", "--gib", "1"]) == 2
    assert "gib was None" in capsys.readouterr().err


@pytest.mark.gpu
@needs_gpu
def test_problems_are_verified_on_a_gpu(checkout, zygote, tmp_path):
    with gpu_verifier() as verifier:
        checker = KernelBenchChecker(tmp_path, get_target("sm_90"), zygote, verifier)
        outcomes = {source.name: checker.check(source) for source in sources(checkout)[:2]}
    assert all(outcome.verified for outcome in outcomes.values()), outcomes


@pytest.mark.gpu
@needs_gpu
def test_seeds_are_measured_beside_pytorch(checkout, tmp_path, capsys):
    arguments = ["bench", "kernelbench", "--path", str(checkout), "--only", "*_ReLU,*_BatchNorm"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--budget", "0"]) == 0
    lines = (tmp_path / "out" / "baselines.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        assert [b["name"] for b in row["baselines"]] == ["eager", "torch.compile"]
        for b in row["baselines"]:
            assert not b["error"] and b["us"] > 0 and b["ci95"][0] <= b["ratio"] <= b["ci95"][1]
    assert len(lines) == 2
    assert "fast_1" in Path(tmp_path / "out" / "summary.md").read_text()

"""TritonBench-T: files of its form, written for these tests, through the real sandbox, compiler and interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from evo.cli.main import main
from evo.core.errors import ConfigError
from evo.core.records import Candidate, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.target import get_target
from fitness.suites.check import gpu_verifier, new_zygote
from fitness.suites.tritonbench import TritonBenchFile
from fitness.suites.tritonbench_t.check import TritonBenchTChecker
from fitness.suites.tritonbench_t.seeds import SEEDS, seed_kernel
from fitness.suites.tritonbench_t.suite import FOLDER, SIZES, TritonBenchT
from fitness.tasks.task import load_task, run_reference
from fitness.verify.oracle import make_inputs

LINE = "#" * 146


def file(function: str, *calls: str) -> str:
    """A file of the suite's form: a function, then tests that make these calls."""
    made = "\n".join(f"    results.append({call})" for call in calls)
    head = "import torch\nimport torch.nn.functional as F\n\n"
    return f"{head}{function}\n\n{LINE}\n\nimport torch\n\ndef test():\n    results = []\n{made}\n\ntest()\n"


DRAWN = "torch.randn(4, 6, device='cuda')"
# Names that evo has seeds for; what those cannot do is asked for too.
TANH = file(
    "def tanh(x: torch.Tensor, out=None):\n    return torch.tanh(x, out=out)",
    f"tanh({DRAWN})", f"tanh(x={DRAWN}.t())", f"tanh({DRAWN}, out=torch.empty(4, 6, device='cuda'))",
)  # fmt: skip
SOFTMAX = file(
    "def softmax(input, dim=-1, dtype=None):\n    return input.softmax(dim, dtype=dtype)",
    f"softmax({DRAWN})", f"softmax({DRAWN}, 0)", "softmax(torch.randn(2, 3, 5, device='cuda'), dim=1)",
    f"softmax({DRAWN}, dtype=torch.float64)",
)  # fmt: skip
HALVED = file(
    "def halve_(x, times=1, out=None):\n    x.mul_(0.5 ** times)",
    "halve_(torch.ones(5, device='cuda'))", "halve_(torch.ones(7, device='cuda'), 2)",
)  # fmt: skip
SPREAD = file(
    "def spread(x, shape, rest=()):\n    return x.expand(*shape).to(torch.float32) * 2",
    "spread(torch.randn(3, device='cuda'), (2, 3))", "spread(torch.randn(3, device='cuda'), (4, 3), rest=[1])",
)  # fmt: skip
OWN_FILE = file("def own(x):\n    return x + 1", f"own({DRAWN})").replace(
    f"{LINE}\n\nimport torch", f"{LINE}\n\nimport torch\nfrom own import own"
)
FILES = {
    "tanh": TANH,
    "softmax": SOFTMAX,
    "halve_": HALVED,
    "spread": SPREAD,
    "own": OWN_FILE,
    "drop": file("def drop(x, p=0.5):\n    return F.dropout(x, p)", f"drop({DRAWN})", f"drop({DRAWN}, p=0.0)"),
    "noise": file("def noise(x):\n    return torch.rand_like(x)", f"noise({DRAWN})"),
    "ones": file("def ones(x):\n    return torch.ones_like(x)", f"ones({DRAWN})"),
    "phase": file("def phase(x):\n    return torch.fft.fft(x)", f"phase({DRAWN})"),
    "largest": file("def largest(x):\n    return x.max().item()", f"largest({DRAWN})"),
    "root": file("def root(x):\n    return x.sqrt()", "root(-torch.rand(9, device='cuda'))"),
    "gone": file("def gone(x):\n    return torch.no_such_function(x)", f"gone({DRAWN})"),
    "model": file("def model(m, x):\n    return m(x)", f"model(torch.nn.Linear(6, 2).cuda(), {DRAWN})"),
    "bare": file("def bare(n):\n    return torch.ones(n)", "bare(3)"),
    "broken": f"import no_such_module\n{LINE}\n",
}

HALVE_SEED = """import torch
import triton
import triton.language as tl

@triton.jit
def halve_kernel(x_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * factor, mask=i < n)

def halve_(x, times=1, out=None):
    halve_kernel[(1,)](x, x.numel(), 0.5**times, BLOCK=64)
"""


def write(root: Path, texts: dict[str, str]) -> Path:
    (root / FOLDER).mkdir(parents=True)
    for name, text in texts.items():
        (root / FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return write(tmp_path_factory.mktemp("checkout"), FILES)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "halve_.py").write_text(HALVE_SEED, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def zygote():
    with new_zygote(get_target("sm_90")) as started:
        yield started


@pytest.fixture(scope="module")
def checked(checkout, seeds, zygote, tmp_path_factory):
    """(folder of tasks, outcome by name)"""
    root = tmp_path_factory.mktemp("tasks")
    checker = TritonBenchTChecker(root, get_target("sm_90"), zygote, seeds=seeds)
    return root, {source.name: checker.check(source) for source in TritonBenchT().files(checkout)}


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="TritonBench_T_v1"):
        TritonBenchT().files(tmp_path)


def test_what_has_a_seed_is_verified(checked):
    _, outcomes = checked
    assert {name for name, outcome in outcomes.items() if outcome.verified} == {"tanh", "softmax", "halve_"}, outcomes
    assert not any(outcomes[name].rules for name in ("tanh", "softmax", "halve_"))
    assert (outcomes["halve_"].calls, outcomes["halve_"].left_out) == (2, 0)


def test_seconds_are_known_by_stage(checked):
    _, outcomes = checked
    for outcome in outcomes.values():
        if outcome.verified:
            assert set(outcome.seconds) == {"captured", "recorded", "compiled", "verified", "idle"}, outcome.name
            assert outcome.seconds["compiled"] > 0, outcome.name


def test_calls_that_a_seed_refuses_are_left_out(checked):
    _, outcomes = checked
    tanh, softmax = outcomes["tanh"], outcomes["softmax"]
    assert (tanh.calls, tanh.left_out) == (2, 1) and "NotImplementedError: out" in tanh.why_left_out
    assert (softmax.calls, softmax.left_out) == (3, 1) and "NotImplementedError: dtype" in softmax.why_left_out


def test_what_lacks_a_seed_has_a_task_folder_all_but_the_kernel(checked):
    root, outcomes = checked
    for name, calls in (("spread", 2), ("own", 1)):
        assert outcomes[name].stages == ["captured", "recorded"] and outcomes[name].calls == calls
        assert outcomes[name].alone and not outcomes[name].verified
        assert "no seed kernel" in outcomes[name].reason and "--seeds" in outcomes[name].reason
        assert (root / name / "task.py").exists() and not (root / name / "kernel.py").exists()
    # Without dropping it returns its argument: nothing is to be computed.
    assert not outcomes["drop"].alone and "that does nothing" in outcomes["drop"].reason


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("noise", "other results for the same arguments"),
        ("ones", "same whatever the inputs"),
        ("phase", "got torch.complex64"),
        ("largest", "got float"),
        ("root", "NaN or infinity"),
        ("gone", "no_such_function"),
        ("model", "argument m is a Linear"),
        ("bare", "call no function on tensors"),
        ("broken", "no_such_module"),
    ],
)
def test_every_other_file_says_why(checked, name, why):
    _, outcomes = checked
    assert outcomes[name].stages == [] and why in outcomes[name].reason, outcomes[name]


def test_random_calls_are_left_out_of_those_that_are_not(checked):
    root, outcomes = checked
    assert outcomes["drop"].left_out == 1 and "random numbers" in outcomes["drop"].why_left_out
    assert '"value": 0.0' in (root / "drop" / "calls.json").read_text()


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_the_reference_is_the_files_function_called_with_all_of_its_parameters(checked):
    root, _ = checked
    task = load_task(root / "softmax")
    assert task.parameters == ("input", "dim", "dtype")
    arguments = make_inputs(task, task.cases[1], 3)
    assert [list(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments] == [[4, 6], 0, None]
    structure, (result,) = run_reference(task, arguments)
    assert structure == "tensor" and torch.equal(result, arguments[0].softmax(0))
    assert [case.role for case in task.cases] == ["tune", "tune", "holdout"]


def test_what_is_written_in_place_is_found(checked):
    root, _ = checked
    task = load_task(root / "halve_")
    assert task.writes == ("x",)
    (x, times, out) = make_inputs(task, task.cases[1], 3)
    structure, (halved,) = run_reference(task, (x, times, out))
    assert structure == "none" and times == 2 and torch.equal(halved, x / 4)


def test_constants_of_the_tests_are_drawn_too(checked):
    root, _ = checked
    task = load_task(root / "halve_")
    x, other = (make_inputs(task, task.cases[0], seed)[0] for seed in (1, 2))
    assert not torch.equal(x, other) and x.min() >= 0.5 and x.max() <= 1.5  # ones, as the tests have them


def test_lists_and_dtypes_are_written_into_the_entry(checked):
    root, _ = checked
    text = (root / "spread" / "task.py").read_text()
    assert "spread(x_0, (shape_0_0, shape_1_0), ())" in text
    assert "spread(x_1, (shape_0_1, shape_1_1), [rest_0_1])" in text


def test_candidates_are_compared_with_the_function(checked, zygote):
    root, _ = checked
    task = load_task(root / "tanh")
    assert task.stress and not task.lenient and not task.allow_delegation
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()

        def verdict(old: str, new: str) -> Verdict:
            assert old in task.seed_source
            candidate = Candidate(task.seed_source.replace(old, new))
            return evaluator.evaluate(candidate, seed=3, known={}).verdict

        assert verdict("1024", "256") is Verdict.OK
        assert verdict("libdevice.tanh(x)", "tl.abs(libdevice.tanh(x))") is Verdict.WRONG
        assert verdict("entry(x)\n", "x.tanh()\n") is Verdict.REJECTED


# --- sizes -----------------------------------------------------------------------------------------------------------

TIMED = """from TorchBench_v1.tanh import tanh
from performance_utils import Performance_Metrics, do_bench_config

import torch

class performance_metrics(Performance_Metrics):
    def __init__(self, dtype=None, is_backward=False, **kwargs):
        super().__init__('tanh', dtype=dtype, is_backward=is_backward, **kwargs)

    def get_input_tensors(self):
        self.input_tensors = []
        for i in range(12, 28):
            self.input_tensors.append(torch.rand(2**i))

    def to_cuda(self, inputs):
        return inputs.cuda()

    def call_op(self, inputs):
        return tanh(inputs)
"""


def test_calls_of_the_script_that_times_a_file_are_tuned_and_never_computed_here(tmp_path, zygote):
    """Of 2^12 to 2^27 elements, 2^24 are the most within 64 MiB, and the middle is 2^18."""
    small = "    if x.numel() > 64:\n        raise RuntimeError(f'{x.numel()} elements')\n"
    write(tmp_path, {"tanh": TANH.replace("    return torch", f"{small}    return torch")})
    (tmp_path / SIZES).mkdir(parents=True)
    (tmp_path / SIZES / "tanh_perf.py").write_text(TIMED, encoding="utf-8")
    (source,) = TritonBenchT().files(tmp_path)
    judged = []
    outcome = TritonBenchTChecker(
        tmp_path, get_target("sm_90"), zygote, lambda task, facts: judged.append(task) or ()
    ).check(source)
    assert outcome.verified and outcome.note == "", outcome
    cases = judged[-1].cases
    assert [case.role for case in cases] == ["tune", "tune", "holdout", "holdout"]
    drawn = [judged[-1].inputs(case, torch.Generator().manual_seed(0)) for case in cases]
    assert [x.numel() for x, *_ in drawn] == [2**24, 2**18, 24, 24]
    # Where none of the tests' calls can be compared, those that are timed are not tried.
    noisy = replace(source, kernels=source.kernels.replace("torch.tanh(x, out=out)", "torch.rand_like(x)"))
    assert (
        "random numbers"
        in TritonBenchTChecker(tmp_path, get_target("sm_90"), zygote, lambda *_: ()).check(noisy).reason
    )


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_a_seed_is_called_as_the_files_function():
    source = TritonBenchFile(
        "gelu", "import torch\n\ndef gelu(input: torch.Tensor, approximate: str='none'):\n    ...\n", ""
    )
    text = seed_kernel(source)
    assert text is not None
    assert "def gelu(input, approximate='none'):\n    return entry(input, mode=approximate)\n" in text
    assert "VALUE" not in text and "TERM" not in text
    assert seed_kernel(replace(source, name="no_such_name")) is None


def test_a_seed_of_the_user_goes_before_evos(tmp_path):
    (tmp_path / "gelu.py").write_text("def gelu(x): ...\n", encoding="utf-8")
    assert seed_kernel(TritonBenchFile("gelu", "def gelu(x): ...", ""), tmp_path) == "def gelu(x): ...\n"


def test_the_pattern_of_every_seed_is_there():
    for pattern, words, _ in SEEDS.values():
        text = pattern.read_text(encoding="utf-8")
        assert all(word in text for word in words), (pattern, words)


CONV = "torch.randn(2, 4, 7, 6, device='cuda'), torch.randn(6, 2, 3, 3, device='cuda')"
SQUARES = "torch.randn(5, 5, device='cuda'), torch.randn(5, 5, device='cuda')"
PATTERNS = {
    "conv2d": file(
        "def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):\n"
        "    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)",
        f"conv2d({CONV}, torch.randn(6, device='cuda'), 2, (1, 0), groups=2)",
        f"conv2d({CONV}, dilation=2, groups=2)",
    ),
    "add_gelu": file(
        "def add_gelu(input, other, alpha=1, approximate='none'):\n"
        "    return F.gelu(input + alpha * other, approximate=approximate)",
        f"add_gelu({DRAWN}, torch.randn(6, device='cuda'), approximate='tanh')", f"add_gelu({DRAWN}, 0.5, 3)",
    ),
    "mean": file(
        "def mean(input_tensor, dim=None, keepdim=False):\n    return input_tensor.mean(dim, keepdim)",
        f"mean({DRAWN})", f"mean({DRAWN}, 0)", f"mean({DRAWN}, -1, True)",
    ),
    "argmax": file(
        "def argmax(input_tensor, dim=None, keepdim=False):\n    return input_tensor.argmax(dim, keepdim)",
        f"argmax({DRAWN})", f"argmax({DRAWN}, 1, True)",
    ),
    "addmm": file(
        "def addmm(input, mat1, mat2, beta=1, alpha=1):\n"
        "    return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)",
        f"addmm(torch.randn(5, device='cuda'), {SQUARES}, 0.5)",
        f"addmm({DRAWN}[:, :1], {DRAWN}, {DRAWN}.t()[:, :6], alpha=3)",
    ),
    "silu_batch_norm": file(
        "def silu_batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, eps=1e-5):\n"
        "    return F.silu(F.batch_norm(x, running_mean, running_var, weight, bias, training, eps=eps))",
        "silu_batch_norm(torch.randn(2, 3, 4).cuda(), torch.zeros(3, device='cuda'), torch.ones(3, device='cuda'))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_right(tmp_path, zygote, name):
    (source,) = TritonBenchT().files(write(tmp_path, {name: PATTERNS[name]}))
    outcome = TritonBenchTChecker(tmp_path / "tasks", get_target("sm_90"), zygote).check(source)
    assert outcome.verified and outcome.left_out == 0, outcome


# --- commands --------------------------------------------------------------------------------------------------------


def command(checkout: Path, verb: str, *more: str) -> int:
    verbs = {"check": ("suite", "check"), "bench": ("bench",)}[verb]
    return main([*verbs, "tritonbench-t", "--path", str(checkout), "--gpus", "none", *more])


def test_the_command_prints_a_line_for_each_file_and_totals(checkout, seeds, capsys):
    assert command(checkout, "check", "--only", "halve_,ones", "--seeds", str(seeds)) == 1
    out = capsys.readouterr().out
    assert "2 files: 1 captured, 1 recorded, 1 compiled, 1 verified" in out and "same whatever the inputs" in out


def test_a_bench_searches_what_has_a_seed(checkout, tmp_path, capsys):
    more = ("--only", "tanh,own", "--budget", "2", "--workers", "1", "--out", str(tmp_path / "out"))
    assert command(checkout, "bench", *more) == 0
    assert "1 of 2 files can be searched" in capsys.readouterr().out
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "2 files: 1 searched, 1 not runnable here" in summary and "PyTorch is timed on a GPU alone" in summary
    rows = {row["kernel"]: row for row in pq.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()}
    assert rows["tanh"]["candidates"] == 2


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--gib", "1"], "--gib: expected a suite that takes it, got tritonbench-t"),
        (["--seeds", "nowhere"], "--seeds: expected a folder"),
        (["--only", "nothing"], "--only: expected names"),
    ],
)
def test_misuse_is_said(checkout, capsys, more, why):
    assert command(checkout, "check", *more) == 2
    assert why in capsys.readouterr().err


def test_seeds_for_no_file_are_refused(checkout, tmp_path, capsys):
    (tmp_path / "nothing.py").write_text("", encoding="utf-8")
    assert command(checkout, "check", "--seeds", str(tmp_path)) == 2
    assert "with a function as the file's, got nothing" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_verifies_what_the_interpreter_does(checkout, seeds, zygote, tmp_path):
    with gpu_verifier() as verifier:
        checker = TritonBenchTChecker(tmp_path, get_target("sm_90"), zygote, verifier, seeds=seeds)
        outcomes = {source.name: checker.check(source) for source in TritonBenchT().files(checkout)}
    assert {name for name, outcome in outcomes.items() if outcome.verified} == {"tanh", "softmax", "halve_"}, outcomes

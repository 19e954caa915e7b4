"""TritonBench-G: files of its form, written for these tests, through the real sandbox, compiler and interpreter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evo.cli.main import main
from evo.core.errors import ConfigError, TaskError
from evo.core.records import Candidate, Check, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.gpu import launch_bundle
from fitness.gpu.runner import Report
from fitness.gpu_backend import GpuEvaluator
from fitness.suites import values
from fitness.suites.check import GpuVerifier, SuiteChecker, gpu_verifier, new_zygote
from fitness.suites.tritonbench import FOLDER, SIZES, sources
from fitness.tasks.task import load_task

LINE = "#" * 146

# An output argument, a keyword, a dtype and a holdout; the tests look at results that no kernel computed.
SCALE = f"""import torch
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)

def scale(x, y, factor=2.0, dtype=torch.float32):
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 32),)](x.to(dtype), y, n, factor, BLOCK=32)

{LINE}

import torch

def test_scale():
    results = {{}}
    for n in (48, 64, 100):
        x = torch.randn(n, device="cuda")
        y = torch.empty_like(x)
        scale(x, y, factor=0.5, dtype=torch.float32)
        results[n] = y
    assert torch.allclose(results[48], results[48])
    return results

result_gold = test_scale()
"""

# An autograd function: forward by apply, whose result is a tensor and a number; backward launches by itself.
GATE = f"""import torch
import triton
import triton.language as tl

@triton.jit
def pick_kernel(x, index, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rows = tl.load(index + i, mask=i < n, other=0)
    tl.store(y + i, tl.load(x + rows, mask=i < n), mask=i < n)

@triton.jit
def half_kernel(dy, dx, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(dx + i, tl.load(dy + i, mask=i < n) * 0.5, mask=i < n)

class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        y = torch.empty_like(x)
        pick_kernel[(1,)](x, index, y, x.numel(), BLOCK=64)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, dy):
        dx = torch.empty_like(dy)
        half_kernel[(1,)](dy, dx, dy.numel(), BLOCK=64)
        return dx, None

pick = Pick.apply

{LINE}

def test_pick():
    x = torch.randn(40, device="cuda", requires_grad=True)
    index = torch.arange(39, -1, -1, device="cuda")
    y = pick(x, index)
    y.backward(torch.ones_like(y))
    return y, x.grad

test_pick()
"""

# A backward pass with two launches: what the first would have computed for the second is memory as it was before.
BACKWARD = f"""import torch
import triton
import triton.language as tl

@triton.jit
def twice_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        twice_kernel[(1,)](x, y, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, dy):
        halves, dx = dy.new_empty(dy.shape), torch.empty_like(dy)
        assert dy.is_cuda and halves.device.type == "cuda"
        twice_kernel[(1,)](dy, halves, dy.numel(), BLOCK=64)
        twice_kernel[(1,)](halves, dx, dy.numel() - 1, BLOCK=64)
        return dx

{LINE}

def junk():
    return [torch.full((40,), 1.5e37) for _ in range(50)]

junk()
x = torch.randn(40, device="cuda", requires_grad=True)
Twice.apply(x).backward(torch.randn(40, device="cuda"))
x = torch.randn(33, device="cuda", requires_grad=True)
torch.autograd.grad([Twice.apply(x)], [x], [torch.randn(33, device="cuda")])
"""

# The test launches its autotuned kernel with a grid of its own, which is right for one configuration alone.
TUNED = f"""import torch
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({{"BLOCK": 32}}), triton.Config({{"BLOCK": 128}})], key=["n"])
@triton.jit
def plus_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

@triton.autotune(configs=[triton.Config({{"BLOCK": 32}}), triton.Config({{"BLOCK": 32}}, num_warps=8)], key=["n"])
@triton.jit
def minus_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) - 1, mask=i < n)

def plus(x):
    y = torch.empty_like(x)
    plus_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y

{LINE}

x = torch.randn(128, device="cuda")
for block in (32, 128):
    plus_kernel[lambda meta: (triton.cdiv(128, block),)](x, torch.empty_like(x), 128)
plus_kernel[(4,)](x, torch.empty_like(x), 127)
minus_kernel[(4,)](x, torch.empty_like(x), 128)
minus_kernel[lambda meta: (triton.cdiv(128, meta["BLOCK"]),)](x, torch.empty_like(x), 126)
plus(x)
"""

# A kernel that adds: in its first call to numbers so large that what it adds is lost in their rounding.
ADDED = f"""import torch
import triton
import triton.language as tl

@triton.jit
def add_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)

@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

def add(x, y):
    z = torch.empty_like(x)
    copy_kernel[(1,)](x, z, x.numel(), BLOCK=128)
    add_kernel[(1,)](z, y, x.numel(), BLOCK=128)

{LINE}

add(torch.randn(100, device="cuda"), 1e37 * torch.randn(100, device="cuda"))
add(torch.randn(90, device="cuda"), torch.randn(90, device="cuda"))
"""

# Needs a value that the device computed: cannot be recorded.
VALUE = f"""import torch
import triton
import triton.language as tl

@triton.jit
def fill_kernel(y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), 1.0)

def fill(x):
    y = torch.empty(int(x.max().item()) + 64, device=x.device)
    fill_kernel[(1,)](y, BLOCK=64)
    return y

{LINE}

fill(torch.rand(8, device="cuda"))
"""

# Its result is the work of a torch operator, on what the kernel wrote.
SUMMED = f"""import torch
import triton
import triton.language as tl

@triton.jit
def square_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * value, mask=i < n)

def sum_of_squares(x):
    y = torch.empty_like(x)
    square_kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y.sum()

{LINE}

sum_of_squares(torch.randn(50, device="cuda"))
"""

# One call with a destination beyond the output, as a test that draws indices may give.
BEYOND = f"""import torch
import triton
import triton.language as tl

@triton.jit
def put_kernel(x, where, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rows = tl.load(where + i, mask=i < n, other=0)
    tl.store(y + rows, tl.load(x + i, mask=i < n), mask=i < n)

def put(x, where, y):
    put_kernel[(1,)](x, where, y, x.numel(), BLOCK=64)

{LINE}

for shift in (0, 30, 10):
    where = torch.arange(20, device="cuda") + shift
    put(torch.randn(20, device="cuda"), where, torch.zeros(40 - shift // 2, device="cuda"))
"""

# All of its inputs are numbers that count up, or none; the launch is made in a function that takes no tensor.
COUNTED = f"""import torch
import triton
import triton.language as tl

@triton.jit
def twice_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

def twice(n):
    x = torch.arange(n, device="cuda", dtype=torch.int32)
    twice_kernel[(1,)](x, torch.zeros_like(x), n, BLOCK=64)

{LINE}

twice(48)
twice(0)
"""

# Imports that Triton no longer has, or that are PyTorch's own; a helper that only a branch not taken calls.
OTHERS = f"""import triton
import triton.language as tl
import torch
from torch._inductor.runtime import triton_helpers
from triton.ops.matmul_perf_model import early_config_prune, estimate_matmul_time

scale = 2.0

@triton.jit
def scaled(value):
    return value * scale

@triton.autotune(
    configs=[triton.Config({{"BLOCK": 64}}), triton.Config({{"BLOCK": 128}})], key=["n"],
    prune_configs_by={{"early_config_prune": early_config_prune, "perf_model": estimate_matmul_time, "top_k": 1}},
)
@triton.jit
def least_kernel(x, y, n, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = triton_helpers.minimum(tl.load(x + i, mask=i < n), 0.5)
    if SCALED:
        value = scaled(value)
    tl.store(y + i, value, mask=i < n)

def least(x):
    y = torch.empty_like(x)
    least_kernel[(1,)](x, y, x.numel(), SCALED=False)
    return y

{LINE}

least(torch.randn(50, device="cuda"))
"""

# Its first configuration does not compile, which Triton's autotuner is not stopped by; what it writes is an argument.
PICKY = f"""import torch
import triton
import triton.language as tl

@triton.autotune(
    configs=[triton.Config({{"BLOCK": 16}}), triton.Config({{"BLOCK": 64}}), triton.Config({{"BLOCK": 256}})], key=["n"]
)
@triton.jit
def minus_kernel(x, y, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK % 64 == 0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, -tl.load(x + i, mask=i < n), mask=i < n)

def minus(x, y):
    minus_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())

{LINE}

minus(torch.randn(500, device="cuda"), torch.empty(500, device="cuda"))
"""

# The second call gives it an array of one element, repeated by its strides, of which the kernel knows nothing.
WEIGHED = f"""import torch
import triton
import triton.language as tl

@triton.jit
def weigh_kernel(x, weight, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * tl.load(weight + i, mask=i < n), mask=i < n)

def weigh(x, weight):
    y = torch.empty_like(x)
    weigh_kernel[(triton.cdiv(x.numel(), 32),)](x, weight, y, x.numel(), BLOCK=32)
    return y

{LINE}

weigh(torch.randn(64, device="cuda"), torch.randn(64, device="cuda"))
weigh(torch.randn(96, device="cuda"), torch.ones(1, device="cuda").expand(96))
"""

BROKEN = f"import no_such_module\n{LINE}\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    (root / FOLDER).mkdir(parents=True)
    files = {"scale": SCALE, "pick": GATE, "summed": SUMMED, "value": VALUE, "broken": BROKEN}
    files |= {"beyond": BEYOND, "counted": COUNTED, "others": OTHERS, "picky": PICKY, "weighed": WEIGHED}
    files |= {"backward": BACKWARD, "tuned": TUNED, "added": ADDED}
    for name, text in files.items():
        (root / FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def zygote():
    with new_zygote(get_target("sm_90")) as started:
        yield started


@pytest.fixture(scope="module")
def checked(checkout, zygote, tmp_path_factory):
    """(folder of tasks, outcome by name)"""
    root = tmp_path_factory.mktemp("tasks")
    checker = SuiteChecker(root, get_target("sm_90"), zygote)
    return root, {source.name: checker.check(source) for source in sources(checkout)}


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="git clone"):
        sources(tmp_path)


def test_hidden_files_are_none_of_the_suite_and_what_is_no_text_is_named(tmp_path):
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "scale.py").write_text("x = 1\n")
    (folder / "._scale.py").write_bytes(b"\x00\x05\xff")
    assert [source.name for source in sources(tmp_path)] == ["scale"]
    (folder / "odd.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"expected a file in UTF-8 at .*odd.py, got: .*; restore it, or delete it"):
        sources(tmp_path)


def test_a_file_is_split_at_its_last_line_of_signs(tmp_path):
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "three.py").write_text(f"a = 1\n{LINE}\n# b\nb = 2\n{LINE}\nc = 3\n", encoding="utf-8")
    (source,) = sources(tmp_path)
    assert (source.name, source.kernels, source.tests.strip()) == ("three", "# b\nb = 2\n", "c = 3")


def test_what_goes_through_and_why_the_rest_does_not(checked):
    _, outcomes = checked
    assert outcomes["scale"].verified and outcomes["scale"].calls == 3 and not outcomes["scale"].rules
    assert outcomes["pick"].verified and outcomes["pick"].calls == 2
    assert "definition" in outcomes["pick"].rules  # a class
    assert outcomes["summed"].verified
    assert outcomes["value"].stages == ["captured"]
    assert "value computed on the device" in outcomes["value"].reason
    assert outcomes["broken"].stages == [] and "no_such_module" in outcomes["broken"].reason


def test_of_an_autotuned_kernel_the_first_configuration_that_compiles_is_checked(checked, zygote):
    root, outcomes = checked
    assert outcomes["picky"].verified, outcomes["picky"].reason
    task = load_task(root / "picky")
    assert task.writes == ("y",)
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluation = evaluator.prepare()
    left_out = evaluation.environment["left_out"]
    assert len(left_out) == 1 and left_out[0].startswith("BLOCK: 16, ") and "static_assert" in left_out[0]
    assert evaluation.frozen_source.count("triton.Config(") == 1 and "{'BLOCK': 16}" not in evaluation.frozen_source


TIMED = """import sys
import os

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), '..')))

from TritonBench_v1.scale import scale
from performance_utils import Performance_Metrics, do_bench_config

import torch

class performance_metrics(Performance_Metrics):
    def __init__(self, dtype=None, is_backward=False, **kwargs):
        super().__init__('scale', dtype=dtype, is_backward=is_backward, **kwargs)

    def get_input_tensors(self):
        self.input_tensors = []
        for i in range(12, 28):
            self.input_tensors.append(({"x": torch.rand(2**i)}, torch.empty(2**i)))

    def to_cuda(self, inputs):
        return inputs[0]["x"].cuda(), inputs[1].cuda()

    def call_op(self, inputs):
        scale(*inputs)

if __name__ == '__main__':
    raise SystemExit("not when it is read")
"""


@pytest.mark.parametrize("text", [SCALE, SCALE.replace("result_gold = test_scale()", "")])
def test_calls_of_the_script_that_times_a_file_are_tuned_and_those_of_its_tests_held_out(tmp_path, zygote, text):
    """Of 2^12 to 2^27 elements, 2^23 are the most within 64 MiB, and the middle is 2^17."""
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / SIZES).mkdir(parents=True)
    (tmp_path / FOLDER / "scale.py").write_text(text, encoding="utf-8")
    (tmp_path / SIZES / "scale_perf.py").write_text(TIMED, encoding="utf-8")
    (source,) = sources(tmp_path)
    judged = []
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, lambda task, facts: judged.append(task) or ()).check(
        source
    )
    assert outcome.verified and outcome.note == ""
    task = judged[0]
    drawn = [task.inputs(case, torch.Generator().manual_seed(0)) for case in task.cases]
    numels = [max(v.numel() for v in inputs if isinstance(v, torch.Tensor)) for inputs in drawn]
    assert [case.role for case in task.cases] == ["tune", "tune", "holdout", "holdout", "holdout"]
    assert numels == [2**23, 2**17, 48, 64, 100]
    # By the interpreter, which could not execute such sizes, it is the tests' calls alone.
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote).check(source)
    assert outcome.verified and outcome.calls == 3


def scale_timed_by(script, folder):
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "scale.py").write_text(SCALE, encoding="utf-8")
    return replace(sources(folder)[0], timed=script)


def largest(folder):
    """Elements of the largest tensor of each case."""
    task = load_task(folder)
    drawn = [task.inputs(case, torch.Generator().manual_seed(0)) for case in task.cases]
    return [max(v.numel() for v in inputs if isinstance(v, torch.Tensor)) for inputs in drawn]


def test_smaller_sizes_are_timed_where_outputs_overflow(tmp_path, zygote):
    """Those of the tests are small, and stay."""
    source = scale_timed_by(TIMED, tmp_path)

    def overflowing_from(elements):
        def verifier(task, facts):
            return [case.name for case, n in zip(task.cases, largest(task.folder), strict=True) if n >= elements]

        return SuiteChecker(tmp_path, get_target("sm_90"), zygote, verifier)

    outcome = overflowing_from(2**22).check(source)
    assert outcome.verified and not outcome.infinite
    assert outcome.note == "at sizes 8 times smaller than usual, at which no output overflows"
    assert largest(tmp_path / "scale") == [2**20, 2**16, 48, 64, 100]
    # Nor is anything made smaller because a test's own call overflows, or if it does not help.
    outcome = overflowing_from(10).check(source)
    assert outcome.verified and (outcome.infinite, outcome.note) == (["call0", "call1"], "")
    assert largest(tmp_path / "scale") == [2**23, 2**17, 48, 64, 100]


def test_calls_that_compile_for_too_long_are_left_out(tmp_path, zygote, monkeypatch):
    source = scale_timed_by(TIMED, tmp_path)
    took = iter([45.0, 1.0, 31.0, 1.0, 1.0, *[1.0] * 3])
    monkeypatch.setattr(launch_bundle, "slowest", lambda builds: next(took))
    checker = SuiteChecker(tmp_path, get_target("sm_90"), zygote, lambda task, facts: ())
    outcome = checker.check(source)
    assert outcome.verified and (outcome.calls, outcome.left_out, outcome.note) == (3, 2, "")
    why = "compiling a kernel takes 45 s, more than the 30 s that a search can afford"
    assert outcome.why_left_out == why
    cases = load_task(tmp_path / "scale").cases
    assert [(case.name, case.role) for case in cases] == [("call0", "tune"), ("call1", "holdout"), ("call2", "holdout")]
    # Those of the script are gone; then all are.
    took = iter([45.0, 45.0, *[1.0] * 6])
    assert checker.check(source).note == f"at the sizes of its tests: at those of its script, {why}"
    took = iter([45.0] * 5)
    outcome = checker.check(source)
    assert (outcome.verified, outcome.reason) == (False, f"compile: timeout: {why}")


def test_where_the_calls_of_the_script_do_not_go_through_the_note_says_so(tmp_path, zygote):
    source = scale_timed_by(TIMED, tmp_path)

    def refused(task, facts):
        judged.append(task)
        if len(judged) <= 3:  # all calls, then each of the script's alone
            raise Stop("verify", Verdict.WRONG, "replays differ")
        return ()

    judged = []
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, refused).check(source)
    assert outcome.verified and (outcome.calls, outcome.left_out) == (3, 2)
    assert outcome.note == "at the sizes of its tests: at those of its script, replays differ"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("", "no script that times it"),
        (TIMED.replace("scale(*inputs)", "scale(inputs)"), "TypeError: scale"),
        (TIMED.replace("scale(*inputs)", "pass"), "its script calls no kernel"),
        (TIMED.replace("range(12", "range(26"), "its smallest inputs are larger than 256 MiB"),
        (TIMED.replace("range(12, 28)", "range(12 / 0)"), "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_where_the_script_does_not_help_the_sizes_are_those_of_the_tests(tmp_path, zygote, script, why):
    source = scale_timed_by(script, tmp_path)
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, lambda task, facts: ()).check(source)
    assert outcome.verified and outcome.calls == 3
    assert outcome.note.startswith(f"at the sizes of its tests: {why}")


def test_calls_that_do_not_go_through_are_left_out(checked):
    root, outcomes = checked
    beyond = outcomes["beyond"]
    assert beyond.verified and (beyond.calls, beyond.left_out) == (2, 1)
    assert "out of bounds" in beyond.why_left_out
    assert [case.axes["call"] for case in load_task(root / "beyond").cases] == [0, 1]


def test_what_a_backward_pass_allocates_is_drawn_as_what_a_kernel_computes(checked):
    """Also if the memory that it gets holds what was there before."""
    root, outcomes = checked
    assert outcomes["backward"].verified, outcomes["backward"].reason
    calls = json.loads((root / "backward" / "calls.json").read_text())
    rules = [[a["tensor"].get("values") for a in call["arguments"] if "tensor" in a] for call in calls]
    within = [values for call in rules for values in call if values == [0.0, 1.0]]
    assert len(within) == 4 and all(max(map(abs, values)) < 10 for call in rules for values in call), rules


def test_launches_whose_grid_is_right_for_one_configuration_alone_are_no_calls(checked):
    root, outcomes = checked
    assert outcomes["tuned"].verified, outcomes["tuned"].reason
    source = (root / "tuned" / "kernel.py").read_text()
    entry = source.partition("def entry")[2]
    assert "plus_kernel[" not in entry and entry.count("minus_kernel[4,](") == 1 and "return plus(" in entry


def test_calls_in_which_a_kernel_need_not_do_its_work_are_left_out(checked):
    """Of the other call it is said that one of its kernels copies: there a copy is right."""
    root, outcomes = checked
    added = outcomes["added"]
    assert added.verified and (added.calls, added.left_out) == (1, 1), added
    assert "call0: kernel copy_kernel that " in added.why_left_out and "of the budget" in added.why_left_out
    (call,) = json.loads((root / "added" / "calls.json").read_text())
    assert call["arguments"][0]["tensor"]["shape"] == [90]
    assert len(added.idle) == 1 and "copy_kernel that copies an input: the same as the seed" in added.idle[0]
    assert added.vacuous and {finding.partition(":")[0] for finding in added.vacuous} == {"call0"}


def test_calls_whose_results_depend_on_memory_beyond_their_arrays_are_left_out(checked):
    _, outcomes = checked
    weighed = outcomes["weighed"]
    assert weighed.verified and (weighed.calls, weighed.left_out) == (1, 1), weighed
    assert "uses what it reads beyond its arrays" in weighed.why_left_out


def test_kept_values_are_shuffled_where_nothing_else_can_be_drawn(checked):
    root, outcomes = checked
    counted = outcomes["counted"]
    assert counted.verified, counted
    assert (counted.calls, counted.left_out) == (1, 1)
    assert counted.why_left_out == "a call without an input that may be drawn afresh"
    task = load_task(root / "counted")
    x, again = (task.inputs(task.cases[0], torch.Generator().manual_seed(s))[0] for s in (1, 2))
    assert not torch.equal(x, again)
    assert torch.equal(x.sort().values, torch.arange(48, dtype=torch.int32)) and torch.equal(
        x.sort().values, again.sort().values
    )


def test_imports_of_earlier_versions_and_of_torch_compile(checked):
    root, outcomes = checked
    assert outcomes["others"].verified, outcomes["others"]
    assert "triton_helpers.minimum" in load_task(root / "others").seed_source


def test_the_entry_makes_the_captured_calls(checked):
    root, _ = checked
    task = load_task(root / "scale")
    assert task.seed_source.endswith(
        "def entry(x, y, factor):\n    scale(x, y, factor=factor, dtype=torch.float32)\n    return None\n"
    )
    assert task.writes == ("y",) and task.lenient and task.reference is None
    assert [case.role for case in task.cases] == ["tune", "tune", "holdout"]
    pick = load_task(root / "pick").seed_source
    assert "    if form == 0:\n        return pick(x_0, index_0)\n" in pick
    assert "half_kernel[1,](dy_1, dx_1, n_1, BLOCK=BLOCK_1)" in pick


def test_a_seed_whose_operators_finish_its_work_leaves_candidates_as_much(checked):
    root, _ = checked
    assert load_task(root / "summed").min_own_share == 0
    assert load_task(root / "scale").min_own_share > 0


def test_inputs_are_drawn_afresh_where_they_are_data(checked):
    root, _ = checked
    task = load_task(root / "pick")

    def tensors(seed: int) -> list[torch.Tensor]:
        drawn = task.inputs(task.cases[0], torch.Generator().manual_seed(seed))
        return [a for a in drawn if isinstance(a, torch.Tensor)]

    (x, index), (other, same) = tensors(1), tensors(2)
    assert not torch.equal(x, other)
    assert torch.equal(index, same) and torch.equal(index, torch.arange(39, -1, -1))


def test_a_changed_file_of_calls_is_refused(checked, tmp_path):
    root, _ = checked
    for path in (root / "scale").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    calls = json.loads((tmp_path / "calls.json").read_text())
    calls[0]["arguments"][2] = {"value": 7.0}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    with pytest.raises(TaskError, match="generate the folder again"):
        load_task(tmp_path)


def test_candidates_are_compared_with_the_seed_kernel(checked, zygote):
    root, _ = checked
    task = load_task(root / "scale")
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()

        def verdict(old: str, new: str) -> tuple[Verdict, str]:
            assert old in task.seed_source
            candidate = Candidate(task.seed_source.replace(old, new))
            found = evaluator.evaluate(candidate, seed=3, known={})
            return found.verdict, found.message

        right, message = verdict("32),)](x.to(dtype), y, n, factor, BLOCK=32)", "64),)](x, y, n, factor, BLOCK=64)")
        assert right is Verdict.OK, message
        wrong, message = verdict("* factor, mask", "* factor * 1.001, mask")
        assert wrong is Verdict.WRONG and "output" in message
        wrong, _ = verdict("mask=i < n)\n\ndef", "mask=i < n - 1)\n\ndef")
        assert wrong is Verdict.WRONG
        wrong, message = verdict("    tl.store(y + i", "    tl.store(x + i, 0.0, mask=i < n)\n    tl.store(y + i")
        assert wrong is Verdict.WRONG and "'x' was modified" in message


class Scripted(GpuVerifier):
    """In the place of a GPU: keeps what is tried beside the seed, and answers by case with `verdicts`."""

    def __init__(self, **verdicts):
        super().__init__([])
        self.verdicts, self.tried = verdicts, []

    def __call__(self, task, facts):
        return ()

    def beside(self, task, seed, kernel, other):
        for case, plan in kernel.plans.items():
            assert seed.plans[case].launches == plan.launches
            built = [build for by_config in kernel.builds[case] for build in by_config]
            assert len(built) == len(plan.launches) and all(kernel.cubins[build["cubin"]] for build in built)
        self.tried.append((list(kernel.plans), other))
        wrong = Report(Verdict.WRONG, "verify", "wrong")
        return {case: self.verdicts.get(case, wrong) for case in kernel.plans}


def test_what_a_gpu_tries_beside_the_seed_is_built(checkout, zygote, tmp_path):
    source = next(s for s in sources(checkout) if s.name == "added")
    verifier = Scripted()
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, verifier).check(source)
    assert outcome.verified and outcome.calls == 2 and not outcome.idle, outcome
    assert verifier.tried == [(["call0", "call1"], False)] * 6  # three of each of two kernels


def test_what_a_gpu_finds_is_asked_again_on_other_inputs(checkout, zygote, tmp_path):
    source = next(s for s in sources(checkout) if s.name == "added")
    passed = Report(Verdict.OK, "done", check=Check(1, "call1", 0.5, 2.0))
    verifier = Scripted(call1=passed)
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, verifier).check(source)
    assert verifier.tried[:2] == [(["call0", "call1"], False), (["call1"], True)]
    # Each call alone is called call0, of which this verifier says that all are wrong; together they are refused again.
    assert outcome.reason.startswith(
        "idle: unsupported: not found wrong in call1: kernel copy_kernel that does nothing"
    )
    assert "its error is 0.5 of the budget (rms budget 2) (and 5 more)" in outcome.reason
    assert len(outcome.vacuous) == 6 and all(finding.startswith("call1: ") for finding in outcome.vacuous)
    fault = Scripted(call0=Report(Verdict.RUNTIME_ERROR, "verify", "illegal address", fault=True))
    outcome = SuiteChecker(tmp_path, get_target("sm_90"), zygote, fault).check(source)
    assert outcome.verified and len(outcome.idle) == 6 and "runtime_error: illegal address" in outcome.idle[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_verifies_one_task_after_the_other(checkout, zygote, tmp_path):
    with gpu_verifier() as verifier:
        checker = SuiteChecker(tmp_path, get_target("sm_90"), zygote, verifier)
        outcomes = {source.name: checker.check(source) for source in sources(checkout)}
    assert {name for name, outcome in outcomes.items() if outcome.verified} == {
        "scale", "pick", "summed", "beyond", "counted", "others", "picky", "weighed", "backward", "tuned", "added",
    }, outcomes  # fmt: skip
    added = outcomes["added"]
    assert (added.calls, added.left_out) == (1, 1) and "call0: kernel copy_kernel that " in added.why_left_out
    assert len(added.idle) == 1 and "copy_kernel that copies an input: the same as the seed" in added.idle[0]
    assert not any(outcome.idle or outcome.infinite for name, outcome in outcomes.items() if name != "added"), outcomes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_candidates_are_compared_with_the_seed_kernel_on_a_gpu(checked, zygote):
    root, _ = checked
    task = load_task(root / "scale")
    with GpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        wrong = Candidate(task.seed_source.replace("* factor, mask", "* factor * 1.001, mask"))
        found = evaluator.evaluate(wrong, seed=3, known={})
        assert found.verdict is Verdict.WRONG and "output" in found.message


def test_candidates_may_do_what_the_gate_finds_in_the_seed_and_nothing_else(checked, zygote):
    root, _ = checked
    task = load_task(root / "pick")
    with CpuEvaluator(task, get_target("sm_90"), zygote=zygote) as evaluator:
        evaluator.prepare()
        same = evaluator.evaluate(Candidate("LIMIT = 3\n" + task.seed_source), seed=3, known={})
        assert same.verdict is Verdict.OK, same.message
        opens = task.seed_source.replace("        dx = torch", "        open('/dev/null')\n        dx = torch")
        other = evaluator.evaluate(Candidate(opens), seed=3, known={})
        assert other.verdict is Verdict.REJECTED and "`open`" in other.message


def test_the_command_prints_a_line_for_each_file_and_totals(checkout, capsys):
    code = main(["suite", "check", "tritonbench", "--path", str(checkout), "--only", "value,broken", "--gpus", "none"])
    out = capsys.readouterr().out
    assert code == 1
    assert "2 files: 1 captured, 0 recorded, 0 compiled, 0 verified" in out
    assert "no_such_module" in out


def test_unknown_names_are_misuse(checkout, capsys):
    assert main(["suite", "check", "tritonbench", "--path", str(checkout), "--only", "nothing", "--gpus", "none"]) == 2
    assert "nothing" in capsys.readouterr().err


# --- values ----------------------------------------------------------------------------------------------------------


def described(tensor: torch.Tensor, folder: Path, drawn: dict | None = None) -> dict:
    return values.describe(tensor, drawn, folder, "value")


@pytest.mark.parametrize(
    ("tensor", "rule"),
    [
        (torch.full((3, 4), 2.5), "constant"),
        (torch.randn(100, generator=torch.Generator().manual_seed(0)), "quantiles"),
        (torch.arange(20) % 3, "kept"),
        ((torch.arange(200) % 2).float(), "kept"),
        (torch.tensor([0.0, -float("inf")]), "kept"),
        (torch.tensor([0.5, float("nan")]), "quantiles"),
        (torch.arange(0, 256).to(torch.uint8), "randint"),
        (torch.tensor([1 << 30, 5], dtype=torch.int32), "randint"),
        (torch.zeros(0), "constant"),
    ],
)
def test_the_rule_for_values(tensor, rule, tmp_path):
    form = described(tensor, tmp_path)
    assert form["rule"] == rule
    drawn = values.draw(form, torch.Generator().manual_seed(1), tmp_path)
    assert (drawn.shape, drawn.dtype, drawn.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
    if rule in ("constant", "kept"):
        assert torch.equal(drawn, tensor)


def test_drawn_values_have_the_distribution_that_was_seen(tmp_path):
    seen = torch.rand(4000, generator=torch.Generator().manual_seed(0)) ** 2 - 3
    drawn = values.draw(described(seen, tmp_path), torch.Generator().manual_seed(1), tmp_path)
    assert seen.min() <= drawn.min() and drawn.max() <= seen.max()
    levels = torch.tensor([0.1, 0.5, 0.9])
    assert torch.allclose(drawn.quantile(levels), seen.quantile(levels), atol=0.03)


def test_strides_are_kept_also_those_of_views(tmp_path):
    base = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for view in (base.t(), base[:, ::2], base[:1].expand(5, 8)):
        drawn = values.draw(described(view, tmp_path), torch.Generator().manual_seed(1), tmp_path)
        assert (drawn.shape, drawn.stride()) == (view.shape, view.stride())


def test_random_indices_do_not_repeat_where_there_are_enough(tmp_path):
    form = {"shape": [50], "strides": [1], "dtype": "int32", "rule": "randint", "low": 3, "high": 60}
    drawn = values.draw(form, torch.Generator().manual_seed(1), tmp_path)
    assert len(drawn.unique()) == 50 and drawn.min() >= 3 and drawn.max() < 60
    few = values.draw({**form, "high": 10}, torch.Generator().manual_seed(1), tmp_path)
    assert len(few.unique()) == 7

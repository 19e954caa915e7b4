"""Whole prompts of real tasks, as a run makes them from its store: what they say, their length, what they share."""

from __future__ import annotations

import dataclasses
import random
import re
import threading

import pytest

from evo.core.models import Model
from evo.core.records import Build, Timing, Verdict
from evo.core.settings import RunConfig
from evo.search.assemble import prompt_context
from evo.storage.queries import RunInfo
from fitness.frontend.target import get_target
from fitness.suites.check import SuiteChecker, new_zygote
from fitness.suites.tritonbench import FOLDER, sources
from fitness.tasks.task import load_task, task_names
from operators.base import Parent
from operators.llm.base import Tried
from operators.registry import LLM_OPERATORS

TOKENS = 6000  # of the first message of a usual task, at four characters a token
LINE = "#" * 146

# Two calls of different functions, so the generated entry has arguments that one of them leaves None; a class that the
# rules forbid; a function that no test calls; a transposed argument; indices that are kept.
CAPTURED = f"""import torch
import triton
import triton.language as tl

@triton.jit
def pick_kernel(x, index, y, n, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rows = tl.load(index + i, mask=i < n, other=0)
    tl.store(y + i, tl.load(x + rows * stride, mask=i < n), mask=i < n)

@triton.jit
def half_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 0.5, mask=i < n)

class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        y = torch.empty(index.numel(), device=x.device)
        pick_kernel[(1,)](x, index, y, index.numel(), x.stride(0), BLOCK=64)
        return y

def half(x, y):
    half_kernel[(1,)](x, y, x.numel(), BLOCK=64)

def never_called(x):
    return half(x, x)

{LINE}

x = torch.randn(4, 40, device="cuda").t()
Pick.apply(x, torch.arange(39, -1, -1, device="cuda"))
half(torch.randn(48, device="cuda"), torch.zeros(48, device="cuda"))
"""


def info(**environment):
    config = RunConfig(task="t", operators=("mutate",), triton="3.7.1")
    return RunInfo(config, "hash", {}, environment)


def messages(task, operator="mutate", *, evaluated=True, environment=None, seed=0, **changes):
    """The texts of a prompt of `operator` about the seed kernel."""
    timings = tuple(Timing(c.name, (50.0,), (50.0,), 1.0, (1.0, 1.0), False) for c in task.cases if c.role == "tune")
    builds = (Build("kernel", 40, 0, 1024, 4, 0.75, "ab", instructions={"wgmma": 4, "cp_async": 8, "load_bytes": 16}),)
    known = {"builds": builds, "timings": timings} if evaluated else {}
    parents = [Parent(0, task.seed_source, 1.0, **known)]
    make = prompt_context(info(**(environment or {"triton": "3.8.0"})), task)
    made = LLM_OPERATORS[operator].prompt(
        parents[: LLM_OPERATORS[operator].arity], make(evaluated=evaluated, rng=random.Random(seed), **changes)
    )
    return tuple(m.text for m in made.messages)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    (root / FOLDER).mkdir(parents=True)
    (root / FOLDER / "both.py").write_text(CAPTURED, encoding="utf-8")
    tasks = tmp_path_factory.mktemp("tasks")
    with new_zygote(get_target("sm_90")) as zygote:
        outcome = SuiteChecker(tasks, get_target("sm_90"), zygote).check(sources(root)[0])
    assert outcome.verified, outcome.reason
    return load_task(tasks / "both")


def test_what_a_run_s_prompts_share_is_made_before_the_first_is_asked_for():
    """Drawing inputs takes seconds, and the seed kernel is profiled meanwhile."""
    drawn, task, run = threading.Event(), load_task("softmax"), info(triton="3.8.0")

    def inputs(case, generator):
        drawn.set()
        return task.inputs(case, generator)

    asking = dataclasses.replace(run.config, models=(Model("m", "http://localhost:1/v1"),))
    prompt_context(dataclasses.replace(run, config=asking), dataclasses.replace(task, inputs=inputs))
    assert drawn.wait(60)


@pytest.mark.parametrize("name", task_names())
def test_the_constant_part_is_short_and_the_same_for_all(name):
    task = load_task(name)
    first, user = messages(task)
    assert len(first) / 4 < TOKENS
    tried = Tried("mutate", "an idea", Verdict.OK, speedup=1.2, parents=(0,))
    others = [messages(task, operator, seed=7, history=(tried,)) for operator in ("mutate", "explore", "initial")]
    assert {system for system, _ in others} == {first}
    assert len({text for _, text in others} | {user}) == 4


def test_softmax_has_its_facts():
    first, user = messages(load_task("softmax"))
    for part in (
        "square (tune; M=4096, N=4096): x: float32 (4096, 4096)",
        "odd (holdout; M=1003, N=777): x: float32 (1003, 777), rows unaligned",
        "x: mean 0, standard deviation 1",
        "torch.softmax(x, dim=-1)",
        "Right is what the reference below computes in float64",
        "up to about 4e-06 of its largest value",
        "# Triton 3.8.0",
    ):
        assert part in first
    assert re.search(r"\| square \| 50 \| 2,684 \| 1\.68 \| 31\.\d+ \| 63 \|", user)
    assert "wgmma, cp.async, loads of up to 16 bytes a thread" in user
    assert "def softmax(x)" in user and "def softmax(x)" not in first


def test_holdouts_and_integers_are_described():
    first, _ = messages(load_task("scatter"))
    assert "slots: from -1 to R - 1, 25 % are -1, each at most once" in first and "rate: 0.125" in first
    assert (
        "Written in place: table, restored before every call" in first
        and "output 'table' is contiguous float32" in first
    )
    assert "targets: from 0 to V - 1" in messages(load_task("cross_entropy"))[0]


def test_a_captured_task_has_no_plumbing(captured):
    first, user = messages(captured)
    text = first + user
    for word in ("CapturedCalls", "calls.json", "calls.inputs", "generator=", "cases =", "fitness", "Generated"):
        assert word not in text
    assert "never_called(x)" not in text and "does not use it: never_called" in first
    assert "None," not in first and ": None" not in first
    assert "call0 (tune): form: 0, x__0: float32 (40, 4) with strides (1, 40), index_0: int64 (40,)" in first
    assert "index_0: from 0 to 39, each at most once" in first
    assert "class `Pick`" in first and "A candidate may call operators of PyTorch" in first
    assert "quirks included" in first and captured.seed_source.split("\n", 1)[0] in first
    assert "It is the seed kernel, which the first message shows." in user and "def entry" not in user
    assert "# keep: NAME" in first


def test_an_answer_to_a_captured_task_needs_not_repeat_its_entry(captured):
    code = "@triton.jit\ndef half_kernel(x, y, n, BLOCK: tl.constexpr):\n    i = tl.arange(0, BLOCK)\n"
    code += "    tl.store(y + i, tl.load(x + i, mask=i < n) / 2, mask=i < n)\n\n\n# keep: entry\n"
    seed = Parent(0, captured.seed_source, 1.0)
    draft = LLM_OPERATORS["mutate"].read(f"Divide.\n```python\nimport triton\n{code}```\n", [seed])
    assert "/ 2" in draft.source and "* 0.5" not in draft.source and "class Pick" in draft.source
    assert f"def {captured.entry}(" in draft.source and "never_called" not in draft.source
    assert "import triton.language as tl" in draft.source


def test_strides_are_given(tmp_path):
    (tmp_path / "kernel.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "task.py").write_text(
        "from fitness import Case\nimport torch\nentry = 'f'\ncases = [Case('a', {'N': 12})]\n\n"
        "def inputs(case, generator):\n    return (torch.randn(case.axes['N'], 10, generator=generator).t(),)\n\n"
        "def reference(x):\n    return x * 2\n"
    )
    first, _ = messages(load_task(tmp_path))
    assert "a (tune; N=12): x: float32 (10, 12) with strides (1, 10), rows unaligned" in first
    assert "not contiguous (strides (1, 10) for shape (10, 12)) float32" in first


def test_what_evaluates_is_known_after_the_first_evaluation_only():
    task = load_task("vector_sin")
    gpu = {"triton": "3.6.0", "gpu": "NVIDIA H200 X", "copy_bytes_per_s": 4e12, "matmul_flops": 7e14}
    first, user = messages(task, evaluated=False, environment=gpu)
    assert "# Triton: the version is not known before the first evaluation" in first and "3.7.1" not in first
    assert "H200 X" not in first and "Nothing was measured yet" in user and "Measured" not in user
    first, user = messages(task, environment=gpu)
    assert "# Triton 3.6.0" in first and "NVIDIA H200 X" in first and "copying 4.00 TB/s" in first
    assert "Nothing was measured yet" not in user and "Measured:" in user
    # A store of an earlier version has the version in its settings alone.
    assert "# Triton 3.7.1" in messages(task, environment={"python": "3.11"})[0]

"""Tasks whose check a kernel passes that does not do its work, and the nearest ones in which it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evo.cli.main import main
from evo.core.records import Check, Verdict
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.sandbox.zygote import Zygote
from fitness.tasks.other_inputs import single_case
from fitness.tasks.task import Task, load_task
from fitness.validation.idle import idle_kernels
from fitness.validation.vacuous import SAME, UNTRIED, VACUOUS, check, findings, of_task

HEAD = """import torch
import triton
import triton.language as tl

@triton.jit
def times_kernel(x, w, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * tl.load(w + i, mask=i < n), mask=i < n)

@triton.jit
def move_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
"""

TIMES = """
def entry(x, w):
    y = torch.empty_like(x)
    times_kernel[(1,)](x, w, y, x.numel(), BLOCK=128)
    return y
"""

# What is moved aside is not used; what is returned is a copy.
MOVES = """
def entry(x, w):
    aside, y = torch.empty_like(w), torch.empty_like(x)
    times_kernel[(1,)](x, w, aside, x.numel(), BLOCK=128)
    move_kernel[(1,)](x, y, x.numel(), BLOCK=128)
    return y
"""

TASK = """import torch
from fitness import Case

entry = "entry"
cases = [Case("case", {{"N": 100}})]
stress = False
{more}

def inputs(case, generator):
    x = torch.randn(case.axes["N"], generator=generator, device=generator.device)
    w = {weight}
    return x, w
"""


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90") as started:
        yield started


def made(folder: Path, weight: str, more: str = 'reference = "seed"', kernel: str = TIMES) -> Task:
    folder.mkdir(exist_ok=True)
    (folder / "kernel.py").write_text(HEAD + kernel)
    (folder / "task.py").write_text(TASK.format(weight=weight, more=more))
    return load_task(folder)


DRAWN = "torch.randn(case.axes['N'], generator=generator, device=generator.device)"
PLAIN = "def reference(x, w):\n    return x * w"


def test_a_case_in_which_nothing_is_compared_is_found_beside_others(tmp_path, zygote):
    """Whose verification it would pass with, and never be looked at."""
    two = 'reference = "seed"\ncases.append(Case("never", {"N": 99}))'
    weight = f"{DRAWN} * (1 if case.axes['N'] == 100 else float('nan'))"
    found = of_task(made(tmp_path / "never", weight, two), get_target("sm_90"), zygote)
    assert {(f.case, f.what) for f in found} == {("never", VACUOUS)} and "nothing is compared" in str(found[0])


@pytest.mark.parametrize("more", ['reference = "seed"', PLAIN])
@pytest.mark.parametrize(
    ("weight", "kinds"),
    [
        (DRAWN, []),
        ("torch.ones_like(x)", ["copies an input"]),
        ("torch.zeros_like(x)", ["stores zeros"]),
        ("1 + 1e-7 * torch.rand_like(x)", ["copies an input"]),
    ],
)
def test_weights_that_do_nothing_are_found(tmp_path, zygote, weight, kinds, more):
    weight = weight.replace("torch.rand_like(x)", "torch.rand(x.shape, generator=generator)")
    found = of_task(made(tmp_path / "times", weight, more), get_target("sm_90"), zygote)
    assert [(f.case, f.kernel, f.kind, f.what) for f in found] == [("case", "times_kernel", k, VACUOUS) for k in kinds]
    if kinds:
        with pytest.raises(Stop, match=f"not found wrong in case: kernel times_kernel that {kinds[0]}: its error is"):
            check(found)
    else:
        check(found)


def test_elsewhere_tensors_hold_other_numbers_in_the_same_form(tmp_path):
    task = made(tmp_path / "times", DRAWN)
    index, flags = torch.arange(6), torch.ones(6, dtype=torch.bool)
    row, bytes_ = torch.zeros(3).expand(2, 3), torch.zeros(4096, dtype=torch.int8)[::2]
    task = replace(task, inputs=lambda case, generator: (row, bytes_, row.half(), index, flags, 2.0, None))
    other = single_case(task, task.cases[0], True)
    drawn, again = (other.inputs(task.cases[0], torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert other.reference is None and not other.stress
    assert drawn[0].stride() == (0, 1) and torch.equal(drawn[0][0], drawn[0][1]) and drawn[0].unique().numel() == 3
    assert drawn[1].stride() == (2,) and (int(drawn[1].min()), int(drawn[1].max())) == (-128, 127)
    assert drawn[2].dtype is torch.float16 and not torch.equal(drawn[2], again[2])
    assert drawn[3] is index and drawn[4] is flags and drawn[5:] == (2.0, None)
    assert single_case(task, task.cases[0], False).inputs is task.inputs


def test_kernels_that_copy_and_results_that_are_not_used_are_named_and_allowed(tmp_path, zygote):
    found = of_task(made(tmp_path / "moves", DRAWN, kernel=MOVES), get_target("sm_90"), zygote)
    kinds = [(f.kernel, f.kind) for f in found if f.what == SAME]
    assert kinds == [
        ("times_kernel", "does nothing"),
        ("times_kernel", "copies an input"),
        ("times_kernel", "stores zeros"),
        ("move_kernel", "copies an input"),
    ]
    assert len(found) == 4
    check(found)


def test_what_could_not_be_executed_is_named_and_no_fault_of_the_task():
    """Nor is a kernel allowed that nothing could be compared of on other inputs."""
    x, y = (TensorRef(b, "float32", (100,), (1,)) for b in (0, 1))
    step = Launch("move_kernel", (Config((1, 1, 1), {"x": x, "y": y}, {}),))
    plan = LaunchPlan((Buffer(400, 0), Buffer(400)), (x,), (y,), "tensor", (step,))
    slow = Stop("verify", Verdict.TIMEOUT, "too slow")

    def evaluate(idle, elsewhere):
        if idle.kind == "does nothing":
            return {"case": slow}
        return {"case": slow if elsewhere else Check(1, "case", 0.5, 1e-3)}

    found = findings(idle_kernels(HEAD, {"case": plan}, ()), evaluate)
    assert [f.what for f in found] == [UNTRIED, VACUOUS, VACUOUS]
    assert "timeout: too slow" in str(found[0]) and "0.5 of the budget (rms budget 0.001)" in str(found[1])


def test_the_command_names_what_passes(tmp_path, capsys):
    folder = made(tmp_path / "times", "torch.ones_like(x)").folder
    assert main(["tasks", "check", str(folder), "--json"]) == 1
    said = capsys.readouterr().out
    assert '"name": "times"' in said and '"kind": "copies an input", "what": "vacuous"' in said
    assert main(["tasks", "check", str(made(tmp_path / "good", DRAWN).folder)]) == 0
    assert capsys.readouterr().out == "good: kernels that do not do their work are found wrong\n"

"""A small task of a reference alone, and a model that writes real kernels for it: wrong, right, faster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import evo

TASK = '''"""A matrix times its sigmoid, plus one."""
import torch
from fitness import Case

entry = "swish"
stress = False
cases = [
    Case("large", {"M": 512, "N": 1024}, cpu_axes={"M": 4, "N": 64}),
    Case("odd", {"M": 31, "N": 33}, cpu_axes={"M": 3, "N": 33}, role="holdout"),
]

def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return torch.sigmoid(x) * x + 1
'''

KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, v / (1 + tl.exp(-v)) + 1, mask=i < n)


def swish(x):
    y = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 64),)](x, y, n, BLOCK=64)
    return y
"""
WRONG = KERNEL.replace(" + 1, mask", ", mask")
FAST = KERNEL.replace("64", "512")
IDLE = KERNEL.replace("v / (1 + tl.exp(-v)) + 1", "v * 0")
COPYING = KERNEL.replace("v / (1 + tl.exp(-v)) + 1", "v")


def reference_task(folder: Path, text: str = TASK) -> Path:
    """Writes the task without a kernel; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.py").write_text(text)
    return folder


def answer(source: str, plan: str) -> str:
    """An answer of a model in the form that prompts ask for."""
    return f"{plan}\n\n```python\n{source}```\n"


class Writer:
    """A model: its first kernel is wrong, its repair is right, a change doubles the block of the kernel that it gets.

    `first`: sources for the first questions about a first kernel; afterwards the wrong one again.  `die`: the number of
    the question at which the process is killed.  `asked`: what it was asked, in the order of asking.
    """

    def __init__(self, first: Sequence[str] = (), die: int | None = None) -> None:
        self.asked: list[str] = []
        self.systems: list[str] = []
        self._first, self._die = list(first), die

    def __call__(self, messages: Sequence[dict[str, str]]) -> str:
        text = messages[-1]["content"]
        self.systems.append(messages[0]["content"])
        if len(self.asked) == self._die:
            os.kill(os.getpid(), signal.SIGKILL)
        if "There is no kernel yet" in text:
            self.asked.append("initial")
            return answer(self._first.pop(0) if self._first else WRONG, "One program for each block.")
        if "Kernel A failed" in text:
            self.asked.append("repair")
            return answer(KERNEL, "One was missing.")
        self.asked.append("change")
        block = int(re.findall(r"BLOCK=(\d+)", text)[0])
        return answer(KERNEL.replace("64", str(2 * block)), "Larger blocks.")


def searched(folder: Path, model: Writer, **settings: object) -> evo.Result:
    """The result of a serial search on the task in `folder`/task, stored in `folder`/run."""
    task = reference_task(folder / "task")
    models = [evo.Model.from_callable("m", model)]
    return evo.search(task, run_dir=folder / "run", models=models, gpus="none", workers=1, **{"budget": 5, **settings})  # type: ignore[arg-type]


def course(result: evo.Result) -> list[tuple[int, str, tuple[int, ...], str, str]]:
    """What was tried: trial, operator, parents, candidate, verdict."""
    return [
        (t.index, t.proposal.operator, t.proposal.parents, t.proposal.candidate.id, str(t.evaluation.verdict))
        for t in result.trials
    ]

"""evo bench on a real local Ray cluster of two nodes, one of which is lost: 4 tasks, 2 variants that ask a mailbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from evo.cli import common
from evo.cli.main import main
from evo.storage.queries import RunReader
from tests.cluster_support import two_nodes
from tests.engine_support import facts
from tests.mailbox_support import answering

FUNCTIONS = ("sin", "cos", "exp", "abs")
TASK = '''"""Element-wise {name} of a short vector."""

import torch

from fitness import Case

entry = "entry"
cases = [Case("tune", {{"N": 96}}), Case("odd", {{"N": 65}}, role="holdout")]


def inputs(case, generator):
    """x: (N,)."""
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)


def reference(x):
    return torch.{name}(x)
'''
KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.{name}(x), mask=mask)


def entry(x):
    y = torch.empty_like(x)
    n = x.numel()
    BLOCK_SIZE = 16
    kernel[(triton.cdiv(n, BLOCK_SIZE),)](x, y, n, BLOCK_SIZE=BLOCK_SIZE, num_warps=1)
    return y
"""


def larger_blocks(question: Path) -> str:
    """An answer with the seed kernel of the run's task in other blocks."""
    kernel = KERNEL.format(name=question.name.partition(".")[0]).replace("SIZE = 16", "SIZE = 64")
    return f"Larger blocks.\n\n```python\n{kernel}```\n"


def test_a_campaign_whose_node_is_lost_loses_nothing_that_was_finished(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FUNCTIONS:
        Path(name).mkdir()
        Path(name, "task.py").write_text(TASK.format(name=name))
        Path(name, "kernel.py").write_text(KERNEL.format(name=name))
    finished: dict[Path, dict[str, list[Any]]] = {}
    with two_nodes() as nodes, answering(Path("box"), larger_blocks):

        def say(text: str) -> None:
            print(text)
            if text.startswith("[2/8]"):  # the others are under way, or wait
                finished.update({run: facts(run) for run in runs() if ended(run)})
                nodes.cluster.remove_node(nodes.second, allow_graceful=False)

        monkeypatch.setattr(common, "say", say)
        command = ["bench", *FUNCTIONS, "--strategy", "tritonforge,best-of-n", "--budget", "1", "--guidance", "none"]
        more = ["--model", "m@mailbox:box", "--out", "out", "--ray-address", "auto", "--gpus", "none", "--workers", "4"]
        assert main([*command, *more]) == 0
        assert ray.is_initialized(), "a connection that was there before is kept"
    said = capsys.readouterr().out
    assert "evaluating through Ray on 2 CPUs and 0 GPUs of 2 nodes" in said
    assert "2 variants x 4 tasks x 1 seed = 8 runs of 1 candidates" in said
    assert "lost a worker, number 1 on" in caplog.text
    assert len(runs()) == 8 and len(finished) >= 2
    assert all(facts(run) == before for run, before in finished.items())
    for run in runs():
        with RunReader(run) as reader:
            assert not reader.pending() and reader.verdicts() == {"ok": 2}
            operators = {trial.proposal.operator for trial in reader.trials()}
            assert operators == {"seed", "mutate@m"}
            asked = sum(use.calls for use in reader.models())
        assert len(list(Path("box").glob(f"{run.parent.parent.name}.{run.parent.name}.*.request.md"))) == asked
    assert "4 tasks, 4 runs a variant" in said


def runs() -> list[Path]:
    return sorted(path.parent for path in Path("out").glob("runs/*/*/*/run.sqlite"))


def ended(run: Path) -> bool:
    with RunReader(run) as reader:
        return any(kind == "ended" for kind, _, _ in reader.events())

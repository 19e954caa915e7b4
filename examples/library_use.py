"""evo as a library: a task made in Python, two kernels evaluated, and a small search.

    python examples/library_use.py [FOLDER]

FOLDER is where the run is stored (default: a temporary folder).  Without a GPU this takes about half a minute, and
speedups are estimates; with one, leave out gpus="none" and kernels are measured.
"""

import sys
import tempfile
from pathlib import Path

import torch

import evo

SEED = """
import torch
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x / (1 + tl.exp(-x)), mask=at < n)


def silu(x):
    y = torch.empty_like(x)
    block = 64
    silu_kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
    return y
"""
LARGER_BLOCKS = SEED.replace("block = 64", "block = 1024")
WRONG = SEED.replace("1 + tl.exp(-x)", "1 + tl.exp(x)")


def inputs(case, generator):
    """The arguments of `silu`: all random numbers come from `generator`."""
    return (torch.randn(case.axes["N"], generator=generator, device=generator.device),)


def reference(x):
    """The right result."""
    return torch.nn.functional.silu(x)


def make_task() -> evo.Task:
    """What a kernel has to compute, at which sizes."""
    return evo.Task(
        entry="silu",
        # axes: the size on the GPU; cpu_axes: the size at which it is executed without one.
        cases=[
            evo.Case("long", {"N": 1 << 22}, cpu_axes={"N": 2048}),
            evo.Case("odd", {"N": 1003}, role="holdout"),
        ],
        inputs=inputs,
        reference=reference,
        seed_source=SEED,
    )


def main(folder: Path) -> None:
    task = make_task()

    with evo.Evaluator(task, gpus="none") as evaluator:
        for evaluation in evaluator.evaluate_many([LARGER_BLOCKS, WRONG]):
            print("evaluated:", evaluation.verdict, evaluation.speedup, evaluation.message)

    result = evo.search(task, budget=4, gpus="none", workers=2, run_dir=folder / "run")
    assert result.best is not None  # the seed at least
    print("best:", result.best, "in trial", result.best.trial)
    print(result.best.patch)
    print("stopped:", result.stop_reason, "after", result.spent.candidates, "candidates")
    for trial in result.trials:
        print(trial.index, trial.proposal.operator, trial.evaluation.verdict)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))

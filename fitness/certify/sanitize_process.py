"""Replays plans once, for a tool that watches: `python -m fitness.certify.sanitize_process TASK FILE GPU`.

GPU is its UUID: the process takes the GPU lock when all is loaded.
FILE holds (bundle, cases, seed), pickled by the process that started this one (`fitness/certify/sanitize.py`).  Unlike
in the runner, each buffer of a plan is an allocation of its own without guard zones.  So a read beyond its end is
outside of any allocation.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from evo.core.records import Case
from fitness.certify.sanitize import FINISHED, START_S, WALL_S
from fitness.frontend.memory import DTYPES, Layout
from fitness.frontend.plan import ITEMSIZE, LaunchPlan, TensorRef
from fitness.gpu.buffers import DeviceMemory
from fitness.gpu.gpu_lock import ended_after, held_for
from fitness.gpu.program import Program
from fitness.gpu.programs import Loaded
from fitness.gpu.runner import LaunchBundle
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle


class SeparateBuffers(DeviceMemory):
    """The buffers of a plan, each an allocation of its own, one copy."""

    def __init__(self, plan: LaunchPlan, device: torch.device, copies: int = 1) -> None:
        Layout.__init__(self, plan)
        self.copies = copies
        self._buffers = [torch.empty(max(b.nbytes, 1), dtype=torch.uint8, device=device) for b in plan.buffers]

    def address(self, ref: TensorRef, copy: int) -> int:
        return self._buffers[ref.buffer].data_ptr() + ref.offset * ITEMSIZE[ref.dtype]

    def windows(self, ref: TensorRef) -> torch.Tensor:
        buffer, size = self._buffers[ref.buffer], ITEMSIZE[ref.dtype]
        if ref.numel == 0:
            return torch.empty_strided(
                (1, *ref.shape), (0, *ref.strides), dtype=DTYPES[ref.dtype], device=buffer.device
            )
        flat = buffer[: buffer.numel() // size * size].view(DTYPES[ref.dtype])
        return flat.as_strided((1, *ref.shape), (0, *ref.strides), ref.offset)


def main(arguments: list[str]) -> None:
    task = load_task(arguments[0], tried=True)
    bundle, cases, seed = pickle.loads(Path(arguments[1]).read_bytes())
    with ended_after(START_S):  # before the lock: a tool that hung here kept others from the GPU for minutes
        torch.empty(0, device="cuda")  # makes the context
    with held_for(arguments[2], int(WALL_S)):
        launches = replayed(task, bundle, cases, seed)
    print(FINISHED, f"{launches} launches of {len(cases)} cases", flush=True)


def replayed(task: Task, bundle: LaunchBundle, cases: Sequence[Case], seed: str) -> int:
    """Executes the plan of each case once; returns the number of launches."""
    device = torch.device("cuda")
    loaded = Loaded(bundle)
    launches = 0
    with torch.no_grad():
        for case in cases:
            plan = bundle.plans[case.name]
            program = Program(
                plan, loaded.choices[case.name], loaded.kernels(case.name),
                device=device, written=task.written, memory=SeparateBuffers,
            )  # fmt: skip
            # Drawn on the host: the tool makes every kernel slow, also those that draw random numbers.
            program.write_inputs(oracle.make_inputs(task, case, oracle.key_of(seed)))
            program.execute()
            torch.cuda.synchronize()
            launches += len(plan.launches)
    return launches


if __name__ == "__main__":
    main(sys.argv[1:])

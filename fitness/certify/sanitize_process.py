"""Replays plans once, for a tool that watches.

    python -m fitness.certify.sanitize_process TASK FILE GPU WALL_S ENOUGH_S

GPU is its UUID: the process takes the GPU lock when all is loaded and FILE is there.  WALL_S and ENOUGH_S are those of
`fitness.certify.sanitize.Tool`.
FILE holds (bundle, cases, seed), pickled by the process that started this one (`fitness/certify/sanitize.py`).  Unlike
in the runner, each buffer of a plan is an allocation of its own without guard zones.  So a read beyond its end is
outside of any allocation.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from evo.core.records import Case
from fitness.certify.sanitize import FINISHED, START_S
from fitness.frontend.memory import DTYPES, Layout
from fitness.frontend.plan import ITEMSIZE, LaunchPlan, TensorRef
from fitness.gpu.buffers import DeviceMemory
from fitness.gpu.gpu_lock import ended_after, held_for
from fitness.gpu.program import Program
from fitness.gpu.programs import Loaded
from fitness.gpu.runner import LOCK_S, LaunchBundle
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle

LOOK_S = 0.1  # between looks for FILE


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
    path, file, gpu, *limits = arguments
    task = load_task(path, tried=True)
    with ended_after(START_S):  # Before the lock: a tool that hung here kept others from the GPU for minutes.
        torch.empty(0, device="cuda")  # Makes the context.
    bundle, cases, seed = pickle.loads(awaited(Path(file)))
    wall_s, enough_s = map(int, limits)
    with held_for(gpu, wall_s):
        launches, done = replayed(task, bundle, cases, seed, enough_s)
    left = len(cases) - done
    rest = f", {left} larger ones are left out: these took more than {enough_s} s" if left else ""
    print(FINISHED, f"{launches} launches of {done} cases{rest}", flush=True)


def awaited(file: Path) -> bytes:
    """Returns what is in the file as soon as it is there."""
    with ended_after(int(LOCK_S)):  # who started this process may be gone
        while not file.exists():
            time.sleep(LOOK_S)
    return file.read_bytes()


def replayed(task: Task, bundle: LaunchBundle, cases: Sequence[Case], seed: str, enough_s: int) -> tuple[int, int]:
    """Executes the plan of each case once, those with the least memory first.  Returns the launches and the cases.

    After `enough_s` seconds it begins with no other case.
    """
    device = torch.device("cuda")
    loaded = Loaded(bundle)
    launches, begin = 0, time.monotonic()
    ordered = sorted(cases, key=lambda case: sum(buffer.nbytes for buffer in bundle.plans[case.name].buffers))
    with torch.no_grad():
        for done, case in enumerate(ordered):
            if time.monotonic() - begin > enough_s:
                return launches, done
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
    return launches, len(cases)


if __name__ == "__main__":
    main(sys.argv[1:])

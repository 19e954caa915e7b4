"""Executes one plan once for a profiler: `python -m fitness.profile.ncu_replay SOCKET GPU`.

It loads all it needs, and then asks for its work at SOCKET: a pickled (task folder,
`fitness.gpu.runner.LaunchBundle` with its choices, case).  It ends if the other side does.  GPU is its UUID: the
process takes the GPU lock when the profiler has started.  No Python of a candidate runs here.  No graph is used: a
profiler would not see the names of its kernels.  Only the second execution is profiled: the first loads the machine
code.

The first kernel that ncu profiles takes seconds, whatever it does (on an H200 3.3 s; another one then 1.4 s).  So a
kernel of one block is profiled before the GPU lock is taken.  Meanwhile others use the GPU, and are not measured: a
second lock lets one process at a time be profiled.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
from collections.abc import Iterator

import torch

from evo.core.records import Case
from fitness.cuda.launcher import LoadedKernel
from fitness.gpu.gpu_lock import GpuLock, ended_after, held_for
from fitness.gpu.program import Program
from fitness.gpu.runner import LaunchBundle
from fitness.profile.ncu import WALL_S
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle


def main(arguments: list[str]) -> None:
    path, gpu = arguments
    torch.zeros(1, device="cuda")
    work = received(path)
    if not work:
        return
    folder, bundle, name = pickle.loads(work)
    task = load_task(folder, tried=True)
    case = next(c for c in task.cases if c.name == name)
    with GpuLock(f"{gpu}-profiler").held():
        with ended_after(int(WALL_S)):
            start_profiler()
        with held_for(gpu, int(WALL_S)):  # to wait for the GPU has no limit here: the other side has one
            replay(task, bundle, case)


def received(path: str) -> bytes:
    """Returns all that the other side of a socket sends; nothing if it ends before."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(ConnectionError):
        connection.connect(path)
        with connection.makefile("rb") as sent:
            return sent.read()
    return b""


def start_profiler() -> None:
    """Profiles a kernel that does next to nothing: the first row of the table."""
    one = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with _profiled():
        one.fill_(1.0)


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    cudart = torch.cuda.cudart()
    cudart.cudaProfilerStart()
    yield
    torch.cuda.synchronize()
    cudart.cudaProfilerStop()


def replay(task: Task, bundle: LaunchBundle, case: Case) -> None:
    """Executes the plan of a case twice; the second time is profiled."""
    case_name, device = case.name, torch.device("cuda", 0)
    torch.cuda.set_device(device)
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream(device)):
        chosen = [
            by_config[i] for by_config, i in zip(bundle.builds[case_name], bundle.choices[case_name], strict=True)
        ]
        kernels = [LoadedKernel(bundle.cubins[build["cubin"]], build) for build in chosen]
        plan = bundle.plans[case_name]
        program = Program(plan, bundle.choices[case_name], kernels, device=device, written=task.written)
        program.write_inputs(oracle.make_inputs(task, case, 0, device=device))
        program.execute()
        torch.cuda.synchronize()
        with _profiled():
            program.execute()


if __name__ == "__main__":
    main(sys.argv[1:])

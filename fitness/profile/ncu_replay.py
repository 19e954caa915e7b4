"""Executes one plan once for a profiler: `python -m fitness.profile.ncu_replay TASK BUNDLE CASE DEVICE`.

BUNDLE is a pickled `fitness.gpu.runner.LaunchBundle` with its choices.  No Python of a candidate runs here.  No graph
is used: a profiler would not see the names of its kernels.  Only the second execution is profiled: the first loads the
machine code.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch

from fitness.cuda.launcher import LoadedKernel
from fitness.gpu.program import Program
from fitness.gpu.runner import LaunchBundle
from fitness.tasks.task import load_task
from fitness.verify import oracle


def main(arguments: list[str]) -> None:
    task, case_name, index = load_task(arguments[0], tried=True), arguments[2], int(arguments[3])
    bundle: LaunchBundle = pickle.loads(Path(arguments[1]).read_bytes())
    case = next(c for c in task.cases if c.name == case_name)
    device = torch.device("cuda", index)
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
        cudart = torch.cuda.cudart()
        cudart.cudaProfilerStart()
        program.execute()
        torch.cuda.synchronize()
        cudart.cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1:])

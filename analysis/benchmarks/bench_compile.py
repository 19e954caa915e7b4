"""Measures what takes the time of compiling a candidate, without a GPU.

    python -m analysis.benchmarks.bench_compile [--tasks softmax,matmul]

The seed kernel of each task takes the path of a measured candidate: its tune and its holdout cases.  Each job in the
sandbox is timed from outside.  Then the same work is done again in this process, in which Triton says what each stage
took.  "rest of the work" is what Triton does not say, with reading the machine code.  Times are wall time in
milliseconds.  Run it on an idle machine: jobs have a low priority.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fitness.candidate import FrontEnd
from fitness.frontend import compile as compiling
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import JobResult
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import load_task

# Stages of Triton, and what they are: its front end, its passes on tiles, LLVM, and ptxas.
STAGES = {"ir": "front end", "ttir": "front end", "ttgir": "tiles", "llir": "LLVM", "ptx": "LLVM", "cubin": "ptxas"}


class TimedZygote(Zygote):
    """Notes the jobs that compile, and how long they take."""

    def __init__(self, target: str) -> None:
        super().__init__(target, ("record", "compile"))
        self.jobs: list[tuple[Mapping[str, Any], float]] = []

    def run(self, job: str, payload: Mapping[str, Any], **how: Any) -> JobResult:
        begin = time.perf_counter()
        result = super().run(job, payload, **how)
        if job == "compile":
            self.jobs.append((payload, time.perf_counter() - begin))
        return result


@contextmanager
def stages() -> Iterator[Counter[str]]:
    """Counts the microseconds of each stage of all kernels that Triton compiles meanwhile."""
    from triton import knobs

    found: Counter[str] = Counter()

    def listen(*, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            found.update({"kernels": 1, "ir": times.ir_initialization, "store": times.store_results})
            found.update(dict(times.lowering_stages))

    with knobs.compilation.scope():
        knobs.compilation.listener = listen
        yield found


def row(name: str) -> str:
    """Returns the line of a task in the table."""
    task, target = load_task(name), get_target("sm_90")
    with closing(TimedZygote(target.spec)) as zygote, tempfile.TemporaryDirectory() as folder, stages() as found:
        with closing(FrontEnd(task, target, measured=True, zygote=zygote)) as front_end:
            front_end.collect(task.needed_seed)
        jobs, begin = zygote.jobs, time.perf_counter()
        for number, (payload, _) in enumerate(jobs):
            scratch = Path(folder, str(number))
            scratch.mkdir()
            compiling.job(payload, scratch)
        inside_ms = 1e3 * (time.perf_counter() - begin)
    parts = dict.fromkeys(STAGES.values(), 0.0)
    for stage, kind in STAGES.items():
        parts[kind] += found[stage] / 1e3
    outside_ms = 1e3 * sum(seconds for _, seconds in jobs)
    shares = " | ".join(f"{parts[kind]:.0f}" for kind in dict.fromkeys(STAGES.values()))
    rest = inside_ms - sum(parts.values())
    return f"| {name} | {len(jobs)} | {found['kernels']} | {shares} | {rest:.0f} | {outside_ms:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="softmax,layer_norm,matmul,attention")
    names = parser.parse_args().tasks.split(",")
    kinds = " | ".join(dict.fromkeys(STAGES.values()))
    print(f"| seed of | jobs | kernels | {kinds} | rest of the work | jobs, from outside |")
    print("|---|---|---|" + "---|" * (len(set(STAGES.values())) + 2))
    row(names[0])  # loads Triton
    for name in names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()

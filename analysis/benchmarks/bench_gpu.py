"""Measures candidates a second through all stages on one GPU, and how often noise passes for speed.

    python -m analysis.benchmarks.bench_gpu [--candidates 300] [--recorders 14] [--same 250] [--slower 20]

Throughput: softmax of 8192 x 8192 float32; all candidates are right and differ in their machine code.  Sandboxes record
and compile each (`--recorders` at once).  Then the runner verifies it (3 fresh inputs, and every stress variant unless
`--plain`) and makes 30 paired timings.  Prints the rates of everything at once, of recording and compiling alone, and
of the runner alone with all plans made before.  It also prints the rates of the same candidates in a process each
(`analysis/benchmarks/process_per_candidate.py`): one after the other, as valid timings must be, and `--recorders` at
once, whose timings disturb each other.

Same and slower (`--candidates 0`: only these): row sums of six sizes, from about 2 microseconds to about a
millisecond.  `--same` evaluations compare the kernel with itself; `--slower` evaluations compare it with one that
executes 3, 5 or 10 % more programs of the same work.  Printed is how often a difference was called one, and how large.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.core.records import Verdict
from fitness.gpu.launch_bundle import make_bundle
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import CPU, Calls
from fitness.tasks.task import Task, load_task

TARGET = "sm_90"
LIMITS = Limits(wall_s=120)
PART = 100  # comparisons of a kernel with itself between two reports
PROCESSES = 8  # candidates with a process each, four times this number at once

SOFTMAX_TASK = '''"""Softmax of the rows of an 8192 x 8192 float32 matrix."""
import torch
from fitness import Case

entry = "softmax"
stress = {stress}
cases = [Case("square", {{"M": 8192, "N": 8192}}, cpu_axes={{"M": 4, "N": 128}})]

def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return torch.softmax(x, dim=-1)

def bytes(case):
    return 2 * 4 * case.axes["M"] * case.axes["N"]
'''

SOFTMAX = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row + c, mask=c < n, other={padding})
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + c, e / tl.sum(e, 0), mask=c < n)

def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps={warps})
    return y
"""

SUMS_TASK = '''"""Sums of rows of 4096 float32."""
import torch
from fitness import Case

entry = "sums"
stress = False
rows = (64, 512, 2048, 8192, 32768, 245760)
cases = [Case(f"rows-{m}", {"M": m, "N": 4096}, cpu_axes={"M": 4, "N": 128}) for m in rows]

def inputs(case, generator):
    return (torch.randn(case.axes["M"], case.axes["N"], generator=generator, device=generator.device),)

def reference(x):
    return x.sum(1)

def bytes(case):
    return 4 * case.axes["M"] * (case.axes["N"] + 1)
'''

# Programs beyond the last row repeat the first rows.
SUMS = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, m, n, BLOCK: tl.constexpr):
    row = (tl.program_id(0) % m).to(tl.int64)
    c = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * n + c, mask=c < n, other=0.0), 0))

def sums(x):
    m, n = x.shape
    y = torch.empty(m, device=x.device)
    kernel[(m * {percent} // 100,)](x, y, m, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return y
"""


class GpuBench:
    """A task in a folder, its recorders and its runner."""

    def __init__(self, task_source: str, seed: str, looks: tuple[int, ...]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="evo-bench-")
        self.root = Path(self._folder.name)
        (self.root / "task").mkdir()
        (self.root / "task" / "task.py").write_text(task_source)
        (self.root / "task" / "kernel.py").write_text(seed)
        self.task: Task = load_task(self.root / "task")
        described = Calls(self.task).described().items()
        self._calls = [{"name": name, "args": args} for name, args in described if not name.endswith(CPU)]
        self.zygote, self.runner = Zygote(TARGET, ("record", "compile")), Runner(self.root / "task", looks=looks)

    def work(self, source: str) -> LaunchBundle:
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            return make_bundle(
                source, self.task, self._calls, zygote=self.zygote, target=TARGET, scratch=Path(scratch), limits=LIMITS
            )

    def close(self) -> None:
        self.runner.close()
        self.zygote.close()
        self._folder.cleanup()


@contextmanager
def prepared(task_source: str, seed: str, looks: tuple[int, ...] = (10, 20, 30)) -> Iterator[GpuBench]:
    """A lab whose runner knows the baseline."""
    lab = GpuBench(task_source, seed, looks)
    try:
        report = lab.runner.prepare(lab.work(seed))
        if report.verdict is not Verdict.OK:
            raise SystemExit(f"the seed of the benchmark is {report.verdict}: {report.message}")
        yield lab
    finally:
        lab.close()


def softmax_variant(number: int) -> str:
    """Returns a right kernel of a softmax; each number gives other machine code."""
    return SOFTMAX.format(padding=-1e30 - 1e24 * number, warps=(8, 16, 32)[number % 3])


def throughput(count: int, recorders: int, stress: bool) -> Iterator[dict[str, Any]]:
    """Rates for `count` candidates: everything at once and the runner alone, then in processes of their own."""
    sources = [softmax_variant(number) for number in range(2 * count)]
    with prepared(SOFTMAX_TASK.format(stress=stress), SOFTMAX.format(padding=-1e30, warps=4), (30,)) as lab:
        with ThreadPoolExecutor(recorders) as pool:
            list(pool.map(lab.work, sources[:recorders]))  # warm-up
            begin, reports = time.perf_counter(), []
            for number, work in enumerate(pool.map(lab.work, sources[count:])):
                reports.append(lab.runner.evaluate(work, seed=f"both-{number}"))
            together = count / (time.perf_counter() - begin)
            begin = time.perf_counter()
            works = list(pool.map(lab.work, sources[:count]))
            recorded = count / (time.perf_counter() - begin)
        begin = time.perf_counter()
        reports += [lab.runner.evaluate(work, seed=f"alone-{n}") for n, work in enumerate(works)]
        yield {
            "candidates": len(reports),
            "stress_variants": stress,
            "ok": sum(r.verdict is Verdict.OK for r in reports),
            "replays_verified": reports[0].check.cases if reports[0].check else 0,
            "median_us": statistics.median(statistics.median(t.samples_us) for r in reports for t in r.timings),
            "recorded_and_compiled_per_s": round(recorded, 1),
            "runner_alone_per_s": round(count / (time.perf_counter() - begin), 1),
            "together_per_s": round(together, 1),
        }
        one = processes(lab.root, sources[:PROCESSES], 1)
        yield {"process_per_candidate_per_s": round(one, 2), "times": round(together / one, 1)}
        several = processes(lab.root, sources[: PROCESSES * 4], recorders)
        yield {"and_at_once_per_s": round(several, 2), "times": round(together / several, 1)}


def processes(root: Path, sources: list[str], at_once: int) -> float:
    """Returns candidates a second, each evaluated by a process of its own."""
    (root / "seed.py").write_text(SOFTMAX.format(padding=-1e30, warps=4))

    def evaluate(number: int) -> None:
        path = root / f"candidate_{number}.py"
        path.write_text(sources[number])
        command = [sys.executable, "-m", "analysis.benchmarks.process_per_candidate", str(path), str(root / "seed.py")]
        subprocess.run(command, check=True, capture_output=True)

    begin = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(evaluate, range(len(sources))))
    return len(sources) / (time.perf_counter() - begin)


def noise(evaluations: int, slower: int) -> Iterator[dict[str, Any]]:
    """Comparisons of a kernel with itself, and with planted differences, over six sizes.

    Those with itself are reported after every `PART` evaluations, of all so far.
    """
    with prepared(SUMS_TASK, SUMS.format(percent=100)) as lab:
        itself, reports = lab.work(SUMS.format(percent=100)), []
        for number in range(evaluations):
            reports.append(lab.runner.evaluate(itself, seed=f"same-{number}"))
            if len(reports) % PART == 0 or len(reports) == evaluations:
                yield {"same": _tally(reports, lambda r: True)}
        for percent in (103, 105, 110):
            work = lab.work(SUMS.format(percent=percent))
            reports = [lab.runner.evaluate(work, seed=f"slower-{percent}-{n}") for n in range(slower)]
            yield {f"planted_{percent - 100}_percent_slower": _tally(reports, lambda r: r < 1)}


def _tally(reports: list[Report], expected: Callable[[float], bool]) -> dict[str, Any]:
    """Per case: how many comparisons counted (in the direction `expected`), and the spread of the ratios."""
    found: dict[str, Any] = {"not_ok": sum(r.verdict is not Verdict.OK for r in reports)}
    for timing in reports[0].timings:
        mine = [t for r in reports for t in r.timings if t.case == timing.case]
        ratios = sorted(t.ratio for t in mine)
        found[timing.case] = {
            "time_us": round(statistics.median(s for t in mine for s in t.samples_us), 2),
            "launches_per_sample": timing.terms["launches_per_sample"],
            "comparisons": len(mine),
            "counted": (counted := sum(t.significant and expected(t.ratio) for t in mine)),
            "share_counted": round(counted / len(mine), 4),
            "counted_and_at_least_5_percent": sum(t.significant and max(t.ratio, 1 / t.ratio) >= 1.05 for t in mine),
            "interval_excludes_1": sum(t.ci95[0] > 1 or t.ci95[1] < 1 for t in mine),
            "noise_floor": round(timing.terms["noise_floor"], 4),
            "ratio_min_median_max": [round(r, 4) for r in (ratios[0], statistics.median(ratios), ratios[-1])],
            "pairs": round(statistics.mean(t.terms["pairs"] for t in mine), 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--candidates", type=int, default=300)
    parser.add_argument("--recorders", type=int, default=14)
    parser.add_argument("--plain", action="store_true", help="no stress variants of the inputs")
    parser.add_argument("--same", type=int, default=250)
    parser.add_argument("--slower", type=int, default=20)
    options = parser.parse_args()
    if options.candidates:
        for figures in throughput(options.candidates, options.recorders, not options.plain):
            print(json.dumps(figures, indent=1), flush=True)
    if options.same:
        for figures in noise(options.same, max(options.slower, 1)):
            print(json.dumps(figures, indent=1), flush=True)


if __name__ == "__main__":
    main()

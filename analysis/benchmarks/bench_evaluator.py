"""Measures candidates a second through all stages without a GPU: gate, record, compile, screen, estimate, verify.

    python -m analysis.benchmarks.bench_evaluator [--task softmax] [--candidates 40] [--workers 2]

The candidates are the seed kernel with other warps, stages and constants, so that none is a duplicate and nothing is
answered from a cache.  The same candidates are also evaluated the usual way: in one fresh process each, with imports
and zygote, as by a script per candidate.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evo.core.records import Candidate, Evaluation, Verdict
from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.target import get_target
from fitness.tasks.task import load_task
from operators.genes import get_genes, set_genes

PLAIN = 3  # processes timed; each takes many seconds


def variants(source: str, count: int) -> list[Candidate]:
    """`count` settings of the genes of `source`, all different from each other and from `source`."""
    genes = get_genes(source)
    found: dict[str, Candidate] = {}
    for values in itertools.product(*(g.values for g in genes)):
        candidate = Candidate(set_genes(source, dict(zip((g.name for g in genes), values, strict=True))))
        if candidate.id != Candidate(source).id:
            found.setdefault(candidate.id, candidate)
    # Spread over the whole space: neighbours in the product differ in the last gene only.
    pool = list(found.values())
    step = max(1, len(pool) // count)
    chosen = pool[::step][:count]
    random.Random(0).shuffle(chosen)  # as they come in a run, not the slow ones together at one end
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="softmax")
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    task = load_task(options.task)
    begin = time.perf_counter()
    with CpuEvaluator(task, get_target("sm_90")) as evaluator:
        evaluator.prepare()
        warm = time.perf_counter() - begin
        candidates = variants(task.needed_seed, options.candidates)
        begin = time.perf_counter()
        with ThreadPoolExecutor(options.workers) as pool:
            done: list[Evaluation] = list(pool.map(lambda c: evaluator.evaluate(c, seed=0, known={}), candidates))
        rate = len(done) / (time.perf_counter() - begin)
    print(f"task {task.name}, {len(done)} candidates, {options.workers} workers; warm-up {warm:.1f} s")
    print("verdicts:", {v.value: n for v in Verdict if (n := sum(e.verdict is v for e in done))})
    for stage in ("gate", "record", "compile", "screen", "estimate", "verify"):
        seconds = [e.seconds[stage] for e in done if stage in e.seconds]
        if seconds:
            print(f"  {stage:9} median {statistics.median(seconds) * 1e3:7.1f} ms  max {max(seconds) * 1e3:7.1f} ms")
    plain = plain_rate(options.task, candidates[:PLAIN])
    print(f"warm evaluator {rate:.2f} candidates/s; a process per candidate {plain:.3f}/s; ratio {rate / plain:.0f}x")


def plain_rate(task: str, candidates: list[Candidate]) -> float:
    """Returns candidates a second if a process of its own evaluates each, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, candidate in enumerate(candidates):
            path = Path(folder) / f"candidate{i}.py"
            path.write_text(candidate.source, encoding="utf-8")
            paths.append(path)
        begin = time.perf_counter()
        for path in paths:
            subprocess.run([sys.executable, "-m", "evo", "evaluate", task, str(path)], stdout=subprocess.DEVNULL)
        return len(paths) / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()

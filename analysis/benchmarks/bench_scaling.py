"""Measures candidates a second on one GPU and on several of the same machine, in the same run.

    python -m analysis.benchmarks.bench_scaling [--gpus 2] [--candidates 300] [--plain] [--processes]

The candidates of `bench_gpu` (softmax of 8192 x 8192 float32, all right, no two with the same machine code) go through
the whole evaluator: gate, recording, compilation, verification (3 fresh inputs, and every stress variant unless
`--plain`), timing in pairs as a search does it.  Three times: without Ray, through Ray on one GPU, through Ray on
`--gpus`; each time as many candidates a GPU, after as many as there are workers to warm up.  Printed are the rates,
that of the recorders alone, and the rate on several GPUs as a part of as many times that on one.  New champions are
certified, seconds each: how many there are is chance, so rates are given with them and, for the ratio, without.

With `--processes` each GPU has a process with its share of the cores instead of Ray, as in `evo bench`: one alone, then
all at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from analysis.benchmarks.bench_gpu import SOFTMAX, SOFTMAX_TASK, TARGET
from evo.core.records import Candidate, Evaluation, Verdict
from evo.core.versions import versions
from fitness.evaluator import TaskEvaluator
from fitness.frontend.target import get_target
from fitness.gpu_backend import GpuEvaluator
from fitness.tasks.task import Task, load_task

READY = "ready\n"


def softmaxes() -> Iterator[str]:
    """Right kernels, no two equal."""
    for i in itertools.count():
        yield SOFTMAX.format(padding=-1e30 - 1e24 * i, warps=(8, 16, 32)[i % 3])


def rates(
    open_evaluator: Callable[[], TaskEvaluator],
    gpus: int,
    workers: int,
    count: int,
    sources: Iterator[str],
    begin: Callable[[], object] = lambda: None,
) -> Any:
    """Returns the rates of `count` candidates, after `workers` others and `begin`."""
    with open_evaluator() as evaluator, ThreadPoolExecutor(workers) as pool:
        evaluator.prepare()

        def per_s(work: Callable[[str], Any], number: int) -> tuple[float, list[Any]]:
            todo = list(itertools.islice(sources, number))
            begin = time.perf_counter()
            done = list(pool.map(work, todo))
            return number / (time.perf_counter() - begin), done

        def evaluate(source: str) -> Evaluation:
            return evaluator.evaluate(Candidate(source), seed=0, known={})

        per_s(evaluate, workers)
        begin()
        rate, done = per_s(evaluate, count)
        recorded, _ = per_s(evaluator._front_end.collect, count)
    certified = [float(e.environment["certificate_s"]) for e in done if "certificate_s" in e.environment]
    return {
        "gpus": gpus,
        "workers": workers,
        "candidates": count,
        "ok": sum(e.verdict is Verdict.OK for e in done),
        "certified": len(certified),
        "certified_s": round(sum(certified), 1),
        "recorded_and_compiled_per_s": round(recorded, 1),
        "per_s": round(rate, 2),
        "without_certificates_per_s": round(count / (count / rate - sum(certified) / gpus), 2),
    }


def compare(task: Task, gpus: int, candidates: int) -> Iterator[dict[str, Any]]:
    """Without Ray, with Ray on one GPU, with Ray on `gpus`; at last the ratio."""
    from fitness.cluster.pool import Cluster, ClusterEvaluator  # imports Ray

    target, sources, found = get_target(TARGET), softmaxes(), []
    cluster = Cluster("local")
    try:
        yield {"cluster": str(cluster)}
        workers = cluster.workers(1)
        yield {"ray": False} | rates(lambda: GpuEvaluator(task, target), 1, workers, candidates, sources)
        for number in (1, gpus):

            def on_cluster(number: int = number) -> TaskEvaluator:
                return ClusterEvaluator(Cluster("auto"), task, target, gpus=number, versions=versions)

            found.append(rates(on_cluster, number, cluster.workers(number), candidates * number, sources))
            yield {"ray": True} | found[-1]
        one, several = (figures["without_certificates_per_s"] for figures in found)
        yield {"of_linear": round(several / (gpus * one), 3)}
    finally:
        cluster.close()


def side_by_side(home: Path, gpus: int, candidates: int) -> Iterator[dict[str, Any]]:
    """A process on one GPU alone, then one on each at the same time; at last the ratio."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus

    def start(number: int) -> subprocess.Popen[str]:
        own = cores[number * share : (number + 1) * share]
        command = [sys.executable, "-m", "analysis.benchmarks.bench_scaling", "--home", str(home)]
        return subprocess.Popen(
            [*command, "--candidates", str(candidates)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(number)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
        )

    def together(numbers: Sequence[int]) -> dict[str, Any]:
        running = [start(number) for number in numbers]
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == READY
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        found = [json.loads(process.communicate()[0]) for process in running]
        rates = [figures["without_certificates_per_s"] for figures in found]
        return {"gpus": len(found), "cores_each": share, "each_per_s": rates, "per_s": round(sum(rates), 2)}

    one, several = together([0]), together(range(gpus))
    yield one
    yield several
    yield {"of_linear": round(several["per_s"] / (gpus * one["per_s"]), 3)}


def alone(home: Path, candidates: int) -> dict[str, Any]:
    """Measures the rate of this process, which waits for the start signal."""
    task, target, workers = load_task(home), get_target(TARGET), len(os.sched_getaffinity(0))

    def begin() -> None:
        print(READY, end="", flush=True)
        sys.stdin.readline()

    figures: dict[str, Any] = rates(lambda: GpuEvaluator(task, target), 1, workers, candidates, softmaxes(), begin)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--candidates", type=int, default=300, help="a GPU")
    parser.add_argument("--plain", action="store_true", help="no stress variants of the inputs")
    parser.add_argument("--processes", action="store_true", help="a process for each GPU, without Ray")
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)  # of the task: this is one of those processes
    options = parser.parse_args(arguments)
    if options.home:
        print(json.dumps(alone(options.home, options.candidates)))
        return
    with tempfile.TemporaryDirectory(prefix="evo-bench-") as folder:
        home = Path(folder) / "softmax"
        home.mkdir()
        (home / "task.py").write_text(SOFTMAX_TASK.format(stress=not options.plain))
        (home / "kernel.py").write_text(SOFTMAX.format(padding=-1e30, warps=4))
        if options.processes:
            found = side_by_side(home, options.gpus, options.candidates)
        else:
            found = compare(load_task(home), options.gpus, options.candidates)
        for figures in found:
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

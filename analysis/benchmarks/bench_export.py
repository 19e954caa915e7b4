"""Measures the cost of an export: `python -m analysis.benchmarks.bench_export [--trials N] [--formats parquet,grpo]`.

Writes the store of a run of N trials by SQL, with rows like those of a search on a GPU: 85 of 100 trials ok, two cases
of ten timed pairs each, kernels of 1.2 kB.  Every tenth trial comes from a model's answer of 2 kB to a prompt of 4 kB.
Then `evo export` exports it in a process of its own.  Prints rows, seconds and the peak memory of that process; exit
code 1 if it exceeds the limit.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from analysis.benchmarks.instant import SEED_SOURCE
from evo.core.settings import RunConfig
from evo.storage.folders import FILE
from evo.storage.queries import RunInfo
from evo.storage.store import Store

MEMORY_GB_LIMIT = 2.0
CASES, PAIRS = ("square", "wide"), 10
STEP = 10_000  # trials a transaction


def build(folder: Path, trials: int) -> None:
    """The store of a run of `trials` trials, in `folder`."""
    config = RunConfig("benchmark", ("mutate",), trials, device="gpu")
    Store.create(folder, RunInfo(config, "hash", {"evo": "0"}, {"gpu": "none"})).close()
    rng = random.Random(0)
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for start in range(0, trials, STEP):
            step = range(start, min(start + STEP, trials))
            rows: dict[str, Iterator[tuple[Any, ...]]] = {
                "sources": ((_candidate(i), SEED_SOURCE.replace("(100,", f"({i},")) for i in step),
                "proposals": (_proposal(i, rng) for i in step),
                "evaluations": (_evaluation(i, rng) for i in step),
                "llm_calls": (_call(i) for i in step if i % 10 == 9),
            }
            db.execute("BEGIN")
            for table, of_table in rows.items():
                width = len(db.execute(f"SELECT * FROM {table} LIMIT 0").description)
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", of_table)
            db.execute("COMMIT")


def _candidate(i: int) -> str:
    return f"{i:016x}"


def _proposal(i: int, rng: random.Random) -> tuple[Any, ...]:
    parents = json.dumps([rng.randrange(i)] if i else [])
    note = f"softmax_kernel.BLOCK_SIZE 128→{i}"
    return i, _candidate(i), "mutate", parents, i % 3, i, note, '{"drafts": 1}', 1.7e9 + i, None


def _evaluation(i: int, rng: random.Random) -> tuple[Any, ...]:
    ok = i % 100 < 85
    speedup = rng.uniform(0.5, 3.0)
    build = {"kernel": "softmax_kernel", "registers": 32, "spill_bytes": 0, "shared_bytes": 0, "num_warps": 4}
    evaluation = {
        "candidate": _candidate(i),
        "verdict": "ok" if ok else "wrong",
        "stage": "done" if ok else "verify",
        "message": "" if ok else f"case square: error {speedup} of the budget",
        "findings": [],
        "builds": [build | {"occupancy": 1.0, "sass_hash": f"{i:064x}", "compile_s": 0.1, "instructions": {}}],
        "check": {"cases": 6, "worst_case": "odd", "max_error": 0.5, "budget": 1e-6, "own_share": 1.0} if ok else None,
        "look": [],
        "timings": [_timing(case, speedup, rng) for case in CASES] if ok else [],
        "plan_hash": f"{i:064x}",
        "duplicate_of": "",
        "frozen_source": "",
        "seconds": {"record": 0.05, "compile": 0.1, "verify": 0.2},
        "environment": {"target": "sm_90"},
    }
    fitness = (speedup, 0.99 * speedup, 1.01 * speedup, 0, json.dumps(dict.fromkeys(CASES, speedup)))
    row = (evaluation["verdict"], evaluation["stage"], evaluation["plan_hash"], *(fitness if ok else (None,) * 5))
    return i + 1, i, *row, json.dumps(evaluation), 1.7e9 + i + 1


def _timing(case: str, speedup: float, rng: random.Random) -> dict[str, Any]:
    ours = [10 + rng.random() for _ in range(PAIRS)]
    return {
        "case": case,
        "samples_us": ours,
        "baseline_us": [t * speedup for t in ours],
        "ratio": speedup,
        "ci95": [0.99 * speedup, 1.01 * speedup],
        "estimated": False,
        "attainable_us": 5.0,
        "terms": {"counts": 1.0, "pairs": 10.0},
        "weight": 1.0,
    }


def _call(i: int) -> tuple[Any, ...]:
    """Four answers to each prompt."""
    prompt = i // 40
    request = {"messages": [{"role": "user", "text": f"prompt {prompt} " + 4000 * "x"}], "parameters": {}}
    plan = f"Plan: {i}. " + 700 * "y"
    spans = {"plan": [0, len(plan)], "code": [len(plan) + 11, len(plan) + 11 + 1200]}
    answer = f"{plan}\n```python\n{SEED_SOURCE[:1200]}\n```"
    return (
        i, f"{prompt:064x}", "model", "mutate@model", "[0]", 0, i, i, i, json.dumps(request), answer, None,
        json.dumps(spans), None, "stop", 1200, 700, 0.001, 1, 0, 4.0, None, 1.7e9 + i, 1.7e9 + i + 4,
    )  # fmt: skip


def measure(run: Path, form: str) -> float:
    """Exports the run in a process of its own, prints what it wrote; its largest resident memory in GB."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "evo", "export", str(run), "--out", f"{scratch}/out", "--format", form]
        if form in ("parquet", "csv", "jsonl"):
            command.append("--with-text")
        begin, spent = time.perf_counter(), _cpu_seconds()
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - spent
        written = sum(f.stat().st_size for f in Path(scratch, "out").iterdir())
    print(said.replace(f"{scratch}/out/", "  "), end="")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    verdict = "ok" if memory <= MEMORY_GB_LIMIT else "BROKEN"
    print(f"{form}: {seconds:.1f} s, {cpu:.1f} s of CPU time, {written / 1e6:.0f} MB")
    print(f"  memory at most {memory:.2f} GB (limit {MEMORY_GB_LIMIT:g}, the largest so far) {verdict}", flush=True)
    return memory


def _cpu_seconds() -> float:
    """Returns the CPU seconds of all exports so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--formats", default="parquet,grpo", metavar="A,B")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        build(Path(folder), arguments.trials)
        size = (Path(folder) / FILE).stat().st_size
        print(f"{arguments.trials:,} trials in {size / 1e9:.2f} GB, {time.perf_counter() - begin:.0f} s", flush=True)
        memory = [measure(Path(folder), form) for form in arguments.formats.split(",")]
    return 0 if max(memory) <= MEMORY_GB_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

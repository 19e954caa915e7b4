"""Executes one `evo run` of every built-in task on this machine and writes the results.

    python -m analysis.benchmarks.bench_runs OUT.json [--budget 64] [--seconds 40] [--tasks a,b]

The runs follow one another.  A run that takes longer than `--seconds` is stopped as by Ctrl-C and keeps what
it found.
OUT.json is written after every run; `--table OUT.json` prints it as Markdown.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evo.core.records import Timing, Trial
from evo.storage.queries import RunReader
from fitness.tasks.task import task_names

GRACE_S = 60.0  # for an interrupted run to end what is being evaluated
LINES = 12  # of the end of what a run printed


def one_run(task: str, folder: Path, budget: int, seconds: float) -> dict[str, Any]:
    """Executes one run; returns what it found, its seconds, and the end of its output."""
    command = [sys.executable, "-m", "evo", "run", task, "--budget", str(budget), "--run-dir", str(folder)]
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        took = time.perf_counter() - begin
        said.seek(0)
        lines = said.read().splitlines()[-LINES:]
    facts: dict[str, Any] = {"task": task, "exit_code": process.returncode, "seconds": round(took, 1), "printed": lines}
    if (folder / "run.sqlite").exists():
        facts |= _found(folder)
    return facts


def _found(folder: Path) -> dict[str, Any]:
    with RunReader(folder) as run:
        best, verdicts = run.best(), run.verdicts()
        facts: dict[str, Any] = {"candidates": sum(verdicts.values()) - 1, "verdicts": verdicts}
        if best is not None and best.fitness is not None:
            facts |= {
                "trial": best.index,
                "operator": best.proposal.operator,
                "note": best.proposal.note,
                "lineage": [f"{t.proposal.operator}: {t.proposal.note}" for t in run.lineage(best.index)],
                "speedup": best.fitness.speedup,
                "ci95": list(best.fitness.ci95),
                "estimated": best.fitness.estimated,
                "cases": [_case(t, best) for t in best.evaluation.timings],
                "source": best.evaluation.frozen_source or best.proposal.candidate.source,
            }
        facts |= {"versions": dict(run.info.versions), "environment": dict(run.info.environment)}
    return facts


def _case(timing: Timing, best: Trial) -> dict[str, Any]:
    assert best.fitness is not None
    return {
        "case": timing.case,
        "seed_us": timing.baseline_median_us,
        "best_us": timing.median_us,
        "ratio": timing.ratio,
        "ci95": list(timing.ci95),
        "scored": best.fitness.per_case[timing.case],
        **timing.terms,
    }


def table(results: list[dict[str, Any]]) -> str:
    """The runs as Markdown; cases of a task apart by slashes, in the order of the task."""
    rows = [
        "| task | cases | seed µs | best µs | speedup | verdicts | candidates | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if "cases" not in r:
            rows.append(f"| {r['task']} | | | | no result, exit code {r['exit_code']} | | | {r['seconds']} |")
            continue
        by_case = {key: " / ".join(_figure(c[key]) for c in r["cases"]) for key in ("case", "seed_us", "best_us")}
        speedup = f"{r['speedup']:.3f} [{r['ci95'][0]:.3f}, {r['ci95'][1]:.3f}]"
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in r["verdicts"].items())
        cells = [r["task"], *by_case.values(), speedup, verdicts, r["candidates"], r["seconds"]]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _figure(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--tasks", default=",".join(task_names()))
    parser.add_argument("--table", action="store_true", help="print what OUT holds")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.out.read_text())["runs"]))
        return
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="evo-runs-") as root:
        for task in arguments.tasks.split(","):
            results.append(one_run(task, Path(root) / task, arguments.budget, arguments.seconds))
            whole = {"budget": arguments.budget, "seconds": arguments.seconds, "python": platform.python_version()}
            arguments.out.write_text(json.dumps({**whole, "runs": results}, indent=1) + "\n")
            print(f"{task}: {results[-1]['seconds']} s, {results[-1].get('speedup')}", flush=True)


if __name__ == "__main__":
    main()

"""Reads the folders of runs: a row for each answer of the model, each run, and each run that was killed.

An answer counts for its engine only if the engine had its kernel evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.benchmarks.peers.drive import KNOWN
from analysis.benchmarks.peers.evaluations import EVALUATIONS, lines
from analysis.benchmarks.peers.prompts import name_of
from analysis.benchmarks.peers.runs import ANSWERS, DONE

Row = dict[str, Any]


def done_runs(folder: Path) -> Iterator[tuple[str, str, int, bool, Path]]:
    """Task, engine and seed of each run that is done, whether it was killed, and its folder."""
    for path in sorted(folder.glob(f"*/{DONE}")):
        task, engine, seed, *killed = path.parent.name.split(".")
        yield task, engine, int(seed), bool(killed), path.parent


def proposals(answers: Sequence[Row], evaluations: Sequence[Row], count: int) -> list[Row]:
    """The first `count` answers: kind, kernel, verdict ("" if never evaluated), speedup, and the best so far."""
    found = {e["id"]: e for e in evaluations if e["event"] == "end"}
    rows, best = [], 1.0
    for answer in answers[:count]:
        evaluation = found.get(answer.get("id"), {})
        speedup = evaluation.get("speedup", 0.0)
        best = max(best, speedup)
        rows.append(
            {
                "proposal": answer["number"] + 1, "kind": answer["kind"], "note": answer.get("note", ""),
                "parent": answer.get("parent", ""), "kernel": answer.get("id") or "",
                "verdict": evaluation.get("verdict", ""), "speedup": speedup, "best": best,
            }
        )  # fmt: skip
    return rows


def costs(answers: Sequence[Row], evaluations: Sequence[Row], cpu: Sequence[float], count: int) -> Row:
    """What an engine itself took, in seconds.

    `cpu_start_s`: CPU until its first request.  `cpu_s`, `wall_s`: a proposal, between the first request and the last
    that counts; `wall_s` leaves out the time in which the model answers or a kernel is evaluated.
    """
    last = min(count, len(answers)) - 1
    first_at, last_at = answers[0]["came"], answers[last]["came"]
    busy = [(a["came"], a["sent"]) for a in answers[:last]]
    begun: dict[str, float] = {}
    for event in evaluations:
        if event["event"] == "begin":
            begun[event["id"]] = event["at"]
        elif event["event"] == "end":
            busy.append((begun[event["id"]], event["at"]))
    return {
        "cpu_start_s": cpu[0],
        "cpu_s": (cpu[last] - cpu[0]) / last,
        "wall_s": (last_at - first_at - covered(busy, first_at, last_at)) / last,
    }


def covered(spans: Sequence[tuple[float, float]], low: float, high: float) -> float:
    """The length of the part of low..high that the spans cover together."""
    total, end = 0.0, low
    for first, last in sorted(spans):
        first, last = max(first, end), min(last, high)
        if last > first:
            total, end = total + last - first, last
    return total


def run_row(folder: Path, count: int) -> Row:
    """A run: its answers, evaluations and costs.

    `foreign`: kernels that the engine had evaluated and that no answer holds, the first kernel aside; 0 if each
    engine applies answers as they are meant.
    """
    answers, evaluations = lines(folder / ANSWERS), lines(folder / EVALUATIONS)
    cpu = json.loads((folder / DONE).read_text(encoding="utf-8"))["cpu_s"]
    first = name_of((folder / "initial.py").read_text(encoding="utf-8"))
    asked = [e["id"] for e in evaluations if e["event"] == "begin" and e["id"] != first]
    return {
        "answers": len(answers),
        "evaluations": len(asked),
        "different": len(set(asked)),
        "foreign": len(set(asked) - {a.get("id") for a in answers}),
        "unknown_prompts": sum(a["kind"] == "unknown prompt" for a in answers),
        **costs(answers, evaluations, cpu, count),
    }


def killed_row(folder: Path) -> Row:
    """A run that was killed: what it knew before, and what of that was lost or made again.

    `answers_before`: answers until the kill.  `kernels_before`: of these, right kernels, and the one whose evaluation
    was in flight; engines may forget wrong ones at any time.  `kernels_lost`: those that the engine does not know at
    its end.  `answers_after`: answers after the restart.  `evaluated_again`: evaluations after the restart of what was
    evaluated before.
    """
    answers, events = lines(folder / ANSWERS), lines(folder / EVALUATIONS)
    at = next(i for i, event in enumerate(events) if event["event"] == "killed")
    first = name_of((folder / "initial.py").read_text(encoding="utf-8"))
    before = {e["id"] for e in events[:at] if e["event"] == "begin"} - {first}
    ended = {e["id"]: e["verdict"] for e in events[:at] if e["event"] == "end"}
    before = {kernel for kernel in before if ended.get(kernel, "ok") == "ok"}
    again = [e["id"] for e in events[at + 1 :] if e["event"] == "begin" and e["id"] in ended]
    speedups = {e["id"]: e["speedup"] for e in events if e["event"] == "end"}
    known = set(json.loads((folder / KNOWN).read_text(encoding="utf-8")))
    return {
        "answers_before": events[at]["answers"],
        "answers_after": len(answers) - events[at]["answers"],
        "kernels_before": len(before),
        "kernels_lost": len(before - known),
        "evaluated_again": len(again),
        "best_before": max([1.0, *(speedups.get(kernel, 0.0) for kernel in before & ended.keys())]),
        "best_known": max([1.0, *(speedups.get(kernel, 0.0) for kernel in known)]),
    }


def collect(folder: Path, settings: Mapping[str, Any]) -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of proposals, of runs, and of runs that were killed, of all done runs in the folder."""
    answers: list[Row] = []
    runs: list[Row] = []
    killed: list[Row] = []
    for task, engine, seed, was_killed, path in done_runs(folder):
        name = {"task": task, "engine": engine, "seed": seed}
        if was_killed:
            killed.append(name | killed_row(path))
        else:
            count = settings["proposals"]
            rows = proposals(lines(path / ANSWERS), lines(path / EVALUATIONS), count)
            answers += [name | row for row in rows]
            runs.append(name | run_row(path, count))
    return answers, runs, killed

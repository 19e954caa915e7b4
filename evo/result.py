"""The end of a run in files: the best kernel, its diff to the seed, its figures."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from evo.errors import StoreError
from evo.records import Fitness, Trial
from evo.store import RunInfo


def speedup_text(fitness: Fitness) -> str:
    """E.g. "3.42x [3.01, 3.88] estimated"; the last word where no GPU measured it."""
    low, high = fitness.ci95
    return f"{fitness.speedup:.2f}x [{low:.2f}, {high:.2f}]{' estimated' if fitness.estimated else ''}"


def best_source(trial: Trial) -> str:
    """The source to use: with the chosen autotune configuration where there was one to choose."""
    return trial.evaluation.frozen_source or trial.proposal.candidate.source


def diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Unified diff, "" for equal texts."""
    lines = difflib.unified_diff(_lines(old), _lines(new), old_name, new_name)
    return "".join(lines)


def _lines(text: str) -> list[str]:
    return (text if text.endswith("\n") else text + "\n").splitlines(keepends=True)


def write_best(folder: Path, info: RunInfo, seed: Trial, best: Trial) -> str:
    """Writes best/kernel.py, best/diff.patch and best/result.json under `folder`; the diff.

    Where nothing beat the seed, the seed is the best kernel, unchanged.
    """
    source = seed.proposal.candidate.source if best.index == seed.index else best_source(best)
    patch = diff(seed.proposal.candidate.source, source, "seed/kernel.py", "best/kernel.py")
    try:
        (folder / "best").mkdir(exist_ok=True)
        for name, text in (
            ("kernel.py", source),
            ("diff.patch", patch),
            ("result.json", json.dumps(_figures(info, best), indent=2) + "\n"),
        ):
            (folder / "best" / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"expected to write {folder / 'best'}, got: {error}; check the disk and its permissions"
        ) from error
    return patch


def _figures(info: RunInfo, best: Trial) -> dict[str, object]:
    fitness = best.fitness
    assert fitness is not None  # the best trial has one
    return {
        "task": info.config.task,
        "task_hash": info.task_hash,
        "target": info.config.target,
        "device": info.config.device,
        "strategy": info.config.strategy,
        "seed": info.config.seed,
        "trial": best.index,
        "candidate": best.proposal.candidate.id,
        "operator": best.proposal.operator,
        "note": best.proposal.note,
        "improved": best.index != 0,
        "speedup": fitness.speedup,
        "ci95": list(fitness.ci95),
        "estimated": fitness.estimated,
        "per_case": dict(fitness.per_case),
        "frozen": bool(best.evaluation.frozen_source),
        "versions": dict(info.versions),
    }

"""The end of a run in files: the best kernel, its diff to the seed, its figures, and the evidence for them."""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from evo.core.errors import StoreError
from evo.core.files import write_whole
from evo.core.records import STAGES, Candidate, Certificate, Trial, Verdict, certificate_from_dict
from evo.core.text import quoted
from evo.storage.queries import RunInfo, RunReader

BEST, EVIDENCE = "best", "evidence.json"  # folder in that of a run, and what is written to it last


def best_source(trial: Trial) -> str:
    """Returns the source to use, with the chosen autotune configuration if there were several."""
    return trial.evaluation.frozen_source or trial.proposal.candidate.source


def diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Unified diff, "" for equal texts."""
    lines = difflib.unified_diff(_lines(old), _lines(new), old_name, new_name)
    return "".join(lines)


def _lines(text: str) -> list[str]:
    return (text if text.endswith("\n") else text + "\n").splitlines(keepends=True)


@dataclass(frozen=True)
class Conclusion:
    """The end of a run: its best trial, the certificate of that, and faster trials whose certificates failed.

    If a task has no seed kernel and no right kernel was found, the best trial is PyTorch: `has_kernel` is False.
    """

    best: Trial
    certificate: Certificate
    refused: tuple[tuple[int, Certificate], ...] = ()  # trial, certificate

    @property
    def has_kernel(self) -> bool:
        """Whether a right kernel was found."""
        return self.best.proposal.is_kernel

    def patch(self, seed: Trial) -> str:
        """The diff from the seed kernel to the best one, "" if the seed is the best, or if there is none."""
        if not seed.proposal.is_kernel:
            return ""
        return diff(seed.proposal.candidate.source, self.source, "seed/kernel.py", "best/kernel.py")

    @property
    def source(self) -> str:
        """The text of best/kernel.py, "" without one.  If no candidate beat the seed, it is the seed, unchanged."""
        if not self.has_kernel:
            return ""
        return self.best.proposal.candidate.source if self.best.index == 0 else best_source(self.best)


def write_result(run_folder: Path, info: RunInfo, seed: Trial, result: Conclusion) -> None:
    """Writes kernel.py, diff.patch, result.json and evidence.json to best/ under the run's folder.

    It leaves kernel.py out if no kernel is right, and diff.patch if the task lacks a seed kernel.  Who reads a file
    meanwhile finds the earlier one or the new one.
    """
    folder = run_folder / BEST
    kernel = {"kernel.py": result.source} if result.has_kernel else {}
    patch = {"diff.patch": result.patch(seed)} if seed.proposal.is_kernel else {}
    texts = {
        **kernel,
        **patch,
        "result.json": json.dumps(_figures(info, result.best), indent=2) + "\n",
        EVIDENCE: json.dumps(_evidence(info, result), indent=2) + "\n",
    }
    try:
        folder.mkdir(exist_ok=True)
        if not kernel:  # of before, if its certificate failed since; the store has the source
            (folder / "kernel.py").unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"expected to write {folder}, got: {error}; check the disk and its permissions") from error
    for name, text in texts.items():
        write_whole(folder / name, text)


def read_result(run: RunReader) -> Conclusion | None:
    """Returns what `write_result` wrote, None if it has not yet.  Raises StoreError for files that it did not write."""
    path = run.folder / BEST / EVIDENCE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        best = run.trial(int(raw["trial"]))
        certificate = certificate_from_dict(raw["certificate"])
        refused = tuple((int(r["trial"]), certificate_from_dict(r["certificate"])) for r in raw["refused"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"expected what evo wrote in {path}, got: {error!r}; delete the file") from error
    if not isinstance(best, Trial):
        raise StoreError(f"expected what evo wrote in {path}, but trial {best.index} is not finished; delete the file")
    return Conclusion(best, certificate, refused)


def _evidence(info: RunInfo, result: Conclusion) -> dict[str, object]:
    """Returns all the evidence for a speedup."""
    best = result.best
    evaluation = dataclasses.asdict(best.evaluation)
    del evaluation["frozen_source"]  # it is kernel.py
    return {
        "candidate": best.proposal.candidate.id,
        # differs if an autotune configuration was written into it
        "kernel": Candidate(result.source).id if result.has_kernel else None,
        "baseline": info.config.baseline,
        "trial": best.index,
        "task": info.config.task,
        "task_hash": info.task_hash,
        "target": info.config.target,
        "estimated": best.evaluation.estimated,
        "versions": dict(info.versions),
        "environment": dict(info.environment),
        "stages": [s for s in STAGES if s in best.evaluation.seconds or s == best.evaluation.stage],
        "evaluation": evaluation,
        "certified": result.certificate.verdict is Verdict.OK,
        "certificate": dataclasses.asdict(result.certificate),
        "refused": [{"trial": trial, "certificate": dataclasses.asdict(c)} for trial, c in result.refused],
        "reproduce": _commands(info) if result.has_kernel else [],
    }


def _commands(info: RunInfo) -> list[str]:
    """Returns the commands that evaluate and certify best/kernel.py as the run did."""
    config = info.config
    options = f"--target {config.target}"
    if config.baseline_kind.pytorch:
        options += f" --baseline {config.baseline}"
    if config.allow_delegation is not None:
        options += f" --allow-delegation {config.allow_delegation}"
    return [f"evo {command} {quoted(config.task)} best/kernel.py {options}" for command in ("evaluate", "certify")]


def _figures(info: RunInfo, best: Trial) -> dict[str, object]:
    fitness = best.fitness
    assert fitness is not None  # the best trial has one
    found = best.proposal.is_kernel
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
        "kernel_found": found,
        "baseline": info.config.baseline_kind.text,
        "speedup": fitness.speedup if found else None,
        "ci95": list(fitness.ci95) if found else None,
        "estimated": fitness.estimated,
        "own_share": best.evaluation.check.own_share if found and best.evaluation.check else None,
        "per_case": dict(fitness.per_case) if found else {},
        "attainable_us": {t.case: t.attainable_us for t in best.evaluation.timings},
        "attained": best.evaluation.attained if found else None,
        "frozen": bool(best.evaluation.frozen_source),
        "versions": dict(info.versions),
    }

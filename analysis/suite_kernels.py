"""Writes and reads the kernels of a suite's campaign as Parquet, a row each, to summarize several campaigns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from analysis.formats import parquet
from analysis.outcomes import Outcome
from analysis.suite import RIGHT, VALID, SuiteBaseline, SuiteKernel, count
from evo.core.errors import StoreError

FILE = "kernels.parquet"

_NUMBER, _COUNT = pa.float64(), pa.int32()
_BASELINE = pa.struct([
    ("name", pa.string()), ("us", _NUMBER), ("seed_us", _NUMBER), ("ratio", _NUMBER), ("ci_low", _NUMBER),
    ("ci_high", _NUMBER), ("over", _NUMBER), ("error", pa.string()),
])  # fmt: skip
_SCHEMA = pa.schema([
    ("kernel", pa.string()), ("lines", _COUNT), ("reason", pa.string()), ("best", _NUMBER), ("ci_low", _NUMBER),
    ("ci_high", _NUMBER), ("certified", _NUMBER), ("estimated", pa.bool_()), ("candidates", _COUNT), ("valid", _COUNT),
    ("right", _COUNT), ("successes", _COUNT), ("seconds", _NUMBER), ("gpu_seconds", _NUMBER),
    ("curve", pa.list_(_NUMBER)), ("note", pa.string()), ("baselines", pa.list_(_BASELINE)),
    ("variant", pa.string()), ("seed", pa.int64()), ("gpu_budget", _NUMBER), ("attained", _NUMBER),
    ("retimed", _NUMBER), ("retimed_low", _NUMBER), ("retimed_high", _NUMBER),
])  # fmt: skip
# Columns that files of earlier versions lack.  What they say of a search cannot be computed from the others.
_ADDED = frozenset({"certified", "gpu_seconds", "successes", "valid"})
# Missing in files of earlier versions, which have one run a kernel, and time it once.
_OF_RUN = frozenset({"variant", "seed", "gpu_budget", "attained", "retimed", "retimed_low", "retimed_high"})


def write_kernels(path: Path, kernels: Sequence[SuiteKernel]) -> None:
    """Writes one row a file to `path`.

    Columns: name, variant, seed, lines, reason, note.  Of its run: best, ci_low, ci_high of the search; retimed,
    retimed_low, retimed_high of the second timing; certified, estimated, the curve, attained (share of the attainable
    speed); candidates (and of these valid, right, successes); seconds (of all stages, those of a GPU, and how many the
    GPU had at most).
    Of each baseline a struct: name, us, seed_us, ratio (of the seed over it), its interval, over (of the best), error.
    """
    rows = []
    for k in kernels:
        row: dict[str, object] = {"kernel": k.name, "lines": k.lines, "reason": k.reason, "note": k.note}
        row |= {"variant": k.variant, "seed": k.seed}
        beside = [_baseline_row(k, name, b) for name, b in k.baselines.items()]
        rows.append(row | _run_row(k) | {"baselines": beside})
    with parquet(path, _SCHEMA) as write_batch:
        write_batch(pa.RecordBatch.from_pylist(rows, schema=_SCHEMA))


def _run_row(kernel: SuiteKernel) -> dict[str, object]:
    run = kernel.outcome
    if run is None:
        return {}
    low, high = run.ci95
    speedups = {
        "best": run.best,
        "ci_low": low,
        "ci_high": high,
        "certified": run.certified,
        "estimated": run.estimated,
    }
    counts = {"candidates": count(kernel), "valid": count(kernel, *VALID), "right": count(kernel, *RIGHT)}
    seconds = {"seconds": run.seconds, "gpu_seconds": run.gpu_spent, "gpu_budget": run.gpu_seconds}
    again = dict(zip(("retimed", "retimed_low", "retimed_high"), (run.retimed, *run.retimed_ci95), strict=False))
    row = speedups | again | counts | {"successes": run.successes, "curve": list(run.curve)} | seconds
    row["attained"] = run.attained
    return {name: value for name, value in row.items() if name not in kernel.unknown}


def _baseline_row(kernel: SuiteKernel, name: str, b: SuiteBaseline) -> dict[str, object]:
    if b.error:
        return {"name": name, "error": b.error}
    low, high = b.ci95
    times = {"us": b.us, "seed_us": b.seed_us, "ratio": b.ratio, "ci_low": low, "ci_high": high}
    return {"name": name, **times, "over": kernel.over(name), "error": ""}


def read_kernels(path: Path) -> list[SuiteKernel]:
    """Returns what `write_kernels` wrote.  Raises StoreError if `path` is another file.

    Of verdicts the file has numbers alone: right ones are "ok" here, valid ones that are not right "wrong", all others
    "failed".  A file of an earlier version may lack columns: of a kernel that was searched they are `unknown`.
    """
    if not path.exists():
        raise StoreError(
            f"{path}: expected the {FILE} of a campaign over a suite, got no file; evo bench writes it when it ends: "
            "give its command again, which continues a campaign that was stopped"
        )
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path}: expected the {FILE} of a campaign over a suite, got: {error}") from None
    missing = set(_SCHEMA.names) - set(table.column_names) - _OF_RUN
    if lacking := sorted(missing - _ADDED):
        raise StoreError(
            f"{path}: expected the columns of {FILE}, got none called {', '.join(lacking)}; write it again by evo bench"
        )
    return [_kernel(row, frozenset(missing)) for row in table.to_pylist()]


def merged(campaigns: Iterable[Iterable[SuiteKernel]]) -> list[SuiteKernel]:
    """Returns each file once a variant and seed, from the first campaign that searched it.

    So results do not decide which one counts.

    If no campaign searched a file, its entry is of the first campaign that timed it beside PyTorch.  If none did that,
    it is of the first that says why the file cannot be searched.
    """
    found: dict[tuple[str, int, str], SuiteKernel] = {}
    for kernels in campaigns:
        for kernel in kernels:
            run = (kernel.variant, kernel.seed, kernel.name)
            known = found.get(run)
            if known is None or _known(kernel) > _known(known):
                found[run] = kernel
    return list(found.values())


def _known(kernel: SuiteKernel) -> tuple[bool, bool, bool]:
    return kernel.outcome is not None, bool(kernel.baselines), bool(kernel.reason)


def _kernel(row: dict[str, Any], missing: frozenset[str]) -> SuiteKernel:
    """missing: columns that the file lacks."""
    baselines = {b["name"]: _baseline(b) for b in row["baselines"]}
    searched = row["curve"] is not None
    outcome = _outcome(row, missing) if searched else None
    unknown = missing if searched else frozenset()
    variant, seed = row.get("variant") or "", row.get("seed") or 0
    if outcome is not None:
        outcome = dataclasses.replace(outcome, variant=variant, seed=seed)
    return SuiteKernel(
        row["kernel"], row["lines"], row["reason"], outcome, baselines, row["note"], unknown, variant, seed
    )


def _outcome(row: dict[str, Any], missing: frozenset[str]) -> Outcome:
    """Values of missing columns are placeholders: `SuiteKernel.unknown` names them, and no figure uses them."""
    seed = 1
    row = {**row, **{name: value for name, value in _placeholders(row).items() if name in missing}}
    right, valid = row["right"], row["valid"]
    verdicts = {"ok": seed + right, "wrong": valid - right, "failed": row["candidates"] - valid}
    return Outcome(
        variant="",
        task=row["kernel"],
        seed=0,
        budget=len(row["curve"]),
        curve=tuple(row["curve"]),
        ci95=(row["ci_low"], row["ci_high"]),
        estimated=row["estimated"],
        verdicts=verdicts,
        seconds=row["seconds"],
        gpu_seconds=row.get("gpu_budget"),
        gpu_spent=row["gpu_seconds"],
        successes=row["successes"],
        certified=row["certified"],
        attained=row.get("attained"),
        retimed=row.get("retimed"),
        retimed_ci95=() if row.get("retimed") is None else (row["retimed_low"], row["retimed_high"]),
    )


def _placeholders(row: dict[str, Any]) -> dict[str, Any]:
    return {"certified": 1.0, "gpu_seconds": 0.0, "successes": 0, "valid": row["right"]}


def _baseline(row: dict[str, Any]) -> SuiteBaseline:
    if row["error"]:
        return SuiteBaseline(0.0, 0.0, 0.0, (0.0, 0.0), row["error"])
    return SuiteBaseline(row["us"], row["seed_us"], row["ratio"], (row["ci_low"], row["ci_high"]))

"""Baselines people know: times of PyTorch and libraries beside kernels, as one JSON file a machine and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evo.core.errors import StoreError
from evo.core.files import write_whole

FORMAT = 1
NAMES = ("eager", "torch.compile", "library")  # the order of columns
SEED, BEST = "seed", "best"


@dataclass(frozen=True)
class BaselineRow:
    """One baseline beside one kernel of a task, in one tune case.  Times are medians in microseconds.

    kernel: "seed" or "best", the best kernel of `run`.  ratio: time of the baseline over that of the kernel, of pairs:
    above 1 the kernel is faster.  attainable_us: None if unknown.  error: why nothing was timed; then times are 0.
    """

    task: str
    task_hash: str
    case: str
    attainable_us: float | None
    kernel: str
    run: str
    kernel_us: float
    baseline: str
    us: float
    ratio: float
    ci_low: float
    ci_high: float
    error: str = ""


def save(path: Path, rows: Sequence[BaselineRow], gpu: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    """Writes {"format", "gpu", "versions", "rows"} to `path`.  Raises StoreError if that fails."""
    lines = ",\n".join("  " + json.dumps(asdict(row)) for row in rows)
    head = json.dumps({"format": FORMAT, "gpu": dict(gpu), "versions": dict(versions)}, indent=1)[:-2]
    write_whole(path, f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


def load(path: Path) -> tuple[list[BaselineRow], dict[str, Any]]:
    """Returns the rows that `save` wrote, and which GPU measured them.  Raises StoreError if `path` is another file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}, this version reads {FORMAT}")
        return [BaselineRow(**row) for row in raw["rows"]], dict(raw["gpu"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"expected times of baselines in {path}, got: {error!r}; write it by evo tasks time"
        ) from error


def table(rows: Sequence[BaselineRow]) -> str:
    """The times as Markdown: a row a case, with shares of the attainable speed, and how far the kernel is ahead.

    The ratios are of the best kernel, or of the seed kernel without a best one.
    """
    names = [name for name in NAMES if any(row.baseline == name for row in rows)]
    over = [f"{BEST if any(row.kernel == BEST for row in rows) else 'seed'} over {name}" for name in names]
    head = ("task", "case", "attainable, µs", "seed, µs", "best, µs", *(f"{name}, µs" for name in names), *over)
    cases: dict[tuple[str, str], list[BaselineRow]] = {}
    for row in rows:
        cases.setdefault((row.task, row.case), []).append(row)
    lines = [_line(task, case, found, names) for (task, case), found in cases.items()]
    text = "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *lines))
    wrong = dict.fromkeys(f"{r.task}, {r.case}, {r.baseline} beside {r.kernel}: {r.error}" for r in rows if r.error)
    return text + "".join(f"\n{line}\n" for line in wrong)


def _line(task: str, case: str, rows: Sequence[BaselineRow], names: Sequence[str]) -> list[str]:
    least = rows[0].attainable_us
    timed = [row for row in rows if not row.error]
    kernels = {row.kernel: row.kernel_us for row in timed}
    ahead = BEST if any(row.kernel == BEST for row in rows) else SEED
    beside = {row.baseline: row for row in timed if row.kernel == ahead}
    return [
        task,
        case,
        "unknown" if least is None else f"{least:.1f}",
        *(_us(kernels.get(kernel), least) for kernel in (SEED, BEST)),
        *(_us(beside[name].us if name in beside else None, least) for name in names),
        *(_ratio(beside.get(name)) for name in names),
    ]


def _us(us: float | None, least: float | None) -> str:
    """E.g. "61.5 (48%)": the time, and its share of the attainable speed."""
    if us is None:
        return "none"
    return f"{us:.1f}" if least is None else f"{us:.1f} ({least / us:.0%})"


def _ratio(row: BaselineRow | None) -> str:
    return "none" if row is None else f"{row.ratio:.2f}× [{row.ci_low:.2f}, {row.ci_high:.2f}]"

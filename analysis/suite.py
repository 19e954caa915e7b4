"""What a search made of a benchmark suite: shares and means over its kernels, by length too, as Markdown and Parquet.

Failures count as 1.0x in the geometric mean.  TritonForge (arXiv:2512.09196) reports the share of kernels that got at
least 1.05x faster and the mean of those alone; both are here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats as scipy_stats

from analysis.outcomes import Outcome
from analysis.stats import geometric_mean, interval

SUCCESS = 1.05
# Share of kernels that are faster than this: fast_p of KernelBench (Ouyang et al. 2025, arXiv:2502.10517).
FAST = (1.0, 1.2, 2.0)


@dataclass(frozen=True)
class Kernel:
    """One file.  `reason`: why it was not searched, "" where it was; `outcome` exists where its run is finished."""

    name: str
    lines: int  # of code, blank ones and comments left out
    reason: str = ""
    outcome: Outcome | None = None

    @property
    def speedup(self) -> float:
        """Of the best candidate beyond its interval; 1 without one."""
        return self.outcome.best if self.outcome else 1.0


def code_lines(source: str) -> int:
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def markdown(kernels: Sequence[Kernel]) -> str:
    """The summary.  Raises ValueError where nothing was searched."""
    done = [k for k in kernels if k.outcome]
    if not done:
        raise ValueError("no kernel was searched")
    kind = "estimated by a model of the target" if any(k.outcome and k.outcome.estimated for k in done) else "measured"
    refused = [k for k in kernels if k.reason]
    waiting = len(kernels) - len(done) - len(refused)
    unfinished = f", {waiting} not finished" if waiting else ""
    parts = [
        f"{len(kernels)} files: {len(done)} searched, {len(refused)} not runnable here{unfinished}. Speedups over the "
        f"suite's own kernels, {kind}; a gain within its 95% interval counts as none.\n",
        _table(("figure", "value"), _figures(done)),
        "By length of the code, shortest quarter first:\n",
        _table(("quarter", "lines", "kernels", f"success ≥ {SUCCESS}×", "geometric mean"), _quarters(done)),
        _table(("kernel", "lines", "best", "95% interval", "candidates"), [_row(k) for k in _fastest_first(done)]),
    ]
    if refused:
        parts += ["Not runnable here:\n", _table(("kernel", "why"), [(k.name, _cell(k.reason)) for k in refused])]
    return "\n".join(parts)


def _figures(done: Sequence[Kernel]) -> list[tuple[str, str]]:
    speedups = [k.speedup for k in done]
    gains = [s for s in speedups if s >= SUCCESS]
    candidates = sum(_count(k) for k in done)
    right = sum(_count(k, "ok", "duplicate") for k in done)
    low, high = interval([[math.log(s)] for s in speedups])
    return [
        (f"success ≥ {SUCCESS}×", _share(len(gains), len(done))),
        *((f"fast_{p:g}", _share(sum(s > p for s in speedups), len(done))) for p in FAST),
        (
            "geometric mean, failures as 1.0×",
            f"{geometric_mean(speedups):.2f}× [{math.exp(low):.2f}, {math.exp(high):.2f}]",
        ),
        ("mean of successes", f"{sum(gains) / len(gains):.2f}×" if gains else "none"),
        ("candidates that are right", _share(right, candidates)),
        ("candidates a kernel", f"{candidates / len(done):.1f}"),
        ("seconds of evaluation a kernel", f"{sum(k.outcome.seconds for k in done if k.outcome) / len(done):.1f}"),
    ]


def _quarters(done: Sequence[Kernel]) -> list[tuple[str, str, str, str, str]]:
    ordered = sorted(done, key=lambda k: (k.lines, k.name))
    bounds = [round(i * len(ordered) / 4) for i in range(5)]
    rows = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds), 1):
        part = ordered[start:end]
        if part:
            gains = sum(k.speedup >= SUCCESS for k in part)
            mean = geometric_mean([k.speedup for k in part])
            lines = f"{part[0].lines} to {part[-1].lines}"
            rows.append((f"Q{number}", lines, str(len(part)), _share(gains, len(part)), f"{mean:.2f}×"))
    return rows


def _row(kernel: Kernel) -> tuple[str, str, str, str, str]:
    assert kernel.outcome is not None  # only those are listed
    low, high = kernel.outcome.ci95
    within = "no gain" if kernel.speedup == 1 else f"[{low:.2f}, {high:.2f}]"
    return kernel.name, str(kernel.lines), f"{kernel.speedup:.2f}×", within, str(_count(kernel))


def _fastest_first(done: Sequence[Kernel]) -> list[Kernel]:
    return sorted(done, key=lambda k: (-k.speedup, k.name))


def _count(kernel: Kernel, *verdicts: str) -> int:
    """Candidates evaluated (with one of `verdicts`, where some are named), the seed left out."""
    assert kernel.outcome is not None
    found = kernel.outcome.verdicts
    return sum(n for v, n in found.items() if not verdicts or v in verdicts) - 1


def _share(count: int, of: int) -> str:
    if not of:
        return "none"
    low, high = scipy_stats.binomtest(count, of).proportion_ci(method="wilson")
    return f"{count}/{of} = {count / of:.0%} [{low:.0%}, {high:.0%}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def write_parquet(path: Path, kernels: Sequence[Kernel]) -> None:
    """One row a file: name, lines, reason, and of its run best, ci_low, ci_high, estimated, candidates, seconds."""
    import pyarrow as pa

    from analysis.formats import parquet

    schema = pa.schema([
        ("kernel", pa.string()), ("lines", pa.int32()), ("reason", pa.string()), ("best", pa.float64()),
        ("ci_low", pa.float64()), ("ci_high", pa.float64()), ("estimated", pa.bool_()), ("candidates", pa.int32()),
        ("right", pa.int32()), ("seconds", pa.float64()), ("curve", pa.list_(pa.float64())),
    ])  # fmt: skip
    rows = []
    for k in kernels:
        o = k.outcome
        run = (
            (o.best, *o.ci95, o.estimated, _count(k), _count(k, "ok", "duplicate"), o.seconds, list(o.curve))
            if o
            else ()
        )
        rows.append(dict(zip(schema.names, (k.name, k.lines, k.reason, *(run or (None,) * 8)), strict=True)))
    with parquet(path, schema) as write_batch:
        write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))

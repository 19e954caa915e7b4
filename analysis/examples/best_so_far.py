"""Prints the best speedup so far over the trials of each run, and which operators made progress.

    python -m analysis.examples.best_so_far RUN...

Everything here works on tables of pyarrow; `.to_pandas()` or `polars.from_arrow` hands them on.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import analysis


def best_so_far(trials: pa.Table) -> list[dict[str, Any]]:
    """The trials of one run that were faster than all before them, in the order they finished."""
    done = trials.filter(pc.field("speedup").is_valid()).sort_by("finished")
    best: list[dict[str, Any]] = []
    for row in done.to_pylist():
        if not best or row["speedup"] > best[-1]["speedup"]:
            best.append(row)
    return best


def operators(lineage: pa.Table) -> pa.Table:
    """Per operator: children that are ok, and their largest gain over the first parent."""
    first = lineage.filter((pc.field("position") == 0) & pc.field("gain").is_valid())
    return first.group_by("operator").aggregate([("gain", "count"), ("gain", "max")]).sort_by("operator")


def main(folders: list[str]) -> None:
    tables = analysis.load(*folders, tables=("runs", "trials", "lineage"))
    for run in tables["runs"]["run"].to_pylist():
        trials, lineage = (tables[name].filter(pc.field("run") == run) for name in ("trials", "lineage"))
        print(f"{run}:")
        for row in best_so_far(trials):
            kind = " estimated" if row["estimated"] else ""
            print(f"  trial {row['trial']}: {row['speedup']:.2f}x{kind} by {row['operator']}: {row['note']}")
        for row in operators(lineage).to_pylist():
            print(f"  {row['operator']}: {row['gain_count']} ok, at best {row['gain_max']:.2f}x its first parent")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The best speedup so far over the trials of each run, and which operators made progress.

    python -m analysis.examples.best_so_far RUN...

Everything here works on tables of pyarrow; `.to_pandas()` or `polars.from_arrow` hands them on.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

import analysis


def best_so_far(trials: pa.Table) -> pa.Table:
    """The trials of one run that were faster than all before them, in the order they finished."""
    done = trials.filter(pc.is_valid(trials["speedup"])).sort_by("finished")
    if not len(done):
        return done
    best = pc.cumulative_max(done["speedup"].combine_chunks())
    before = pa.concat_arrays([pa.array([0.0]), best[:-1]])
    return done.filter(pc.greater(done["speedup"], before))


def operators(lineage: pa.Table) -> pa.Table:
    """Per operator: children that are ok, and their largest gain over the first parent."""
    first = lineage.filter(pc.and_(pc.equal(lineage["position"], 0), pc.is_valid(lineage["gain"])))
    return first.group_by("operator").aggregate([("gain", "count"), ("gain", "max")]).sort_by("operator")


def main(folders: list[str]) -> None:
    tables = analysis.load(*folders, tables=("runs", "trials", "lineage"))
    for run in tables["runs"]["run"].to_pylist():
        trials, lineage = (t.filter(pc.equal(t["run"], run)) for t in (tables["trials"], tables["lineage"]))
        print(f"{run}:")
        for row in best_so_far(trials).to_pylist():
            kind = " estimated" if row["estimated"] else ""
            print(f"  trial {row['trial']}: {row['speedup']:.2f}x{kind} by {row['operator']}: {row['note']}")
        for row in operators(lineage).to_pylist():
            print(f"  {row['operator']}: {row['gain_count']} ok, at best {row['gain_max']:.2f}x its first parent")


if __name__ == "__main__":
    main(sys.argv[1:])

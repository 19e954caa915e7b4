"""Chooses what to train on among the rows of `evo export --format sft|grpo`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError

Row = Mapping[str, Any]  # of an exported table, by column
BASELINE = 0  # the trial of the task's seed kernel, if it has one


def read_rows(file: Path | str) -> Iterator[Row]:
    """Yields the rows of `sft.jsonl` or `grpo.jsonl`.  Raises ConfigError if the file cannot be read."""
    try:
        with open(file, encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected a file that `evo export` wrote as JSON lines, got {file}: {error}") from error


def fastest(rows: Iterable[Row], keep: int) -> list[dict[str, Any]]:
    """Returns the `keep` fastest completions of each prompt: the examples of rejection-sampled fine-tuning.

    rows: of the table `sft`, which holds verified gains only.  An example has `prompt`, `completion` and `speedup`.
    Measured speedups go before estimated ones, and a completion is taken once.  Raises ConfigError for another table.
    """
    if keep < 1:
        raise ConfigError(f"keep: expected at least 1 completion a prompt, got {keep}")
    prompts: defaultdict[str, dict[str, Row]] = defaultdict(dict)
    for row in sorted(rows, key=_slowness):
        prompts[json.dumps([row["task"], row["target"], row["prompt"]])].setdefault(json.dumps(row["completion"]), row)
    return [
        {name: row[name] for name in ("prompt", "completion", "speedup")}
        for completions in prompts.values()
        for row in list(completions.values())[:keep]
    ]


def _slowness(row: Row) -> tuple[bool, float]:
    """Sorts rows, the fastest first; table `grpo` has a column `verdict`, and wrong kernels."""
    if "verdict" in row:
        raise ConfigError("expected rows of the table sft, got rows of grpo; run evo export --format sft")
    return row["estimated"], -row["speedup"]


def prompts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Returns each prompt once, with its `task`, for a model that answers anew: the data set of GRPO.

    rows: of the table `sft` or `grpo`.  Prompts about other kernels than the seed kernel are left out: an answer may
    refer to the kernel that its prompt shows, and a reward knows one such kernel for a task (`parent`).
    """
    found = {
        json.dumps([row["task"], row["prompt"]]): {"prompt": row["prompt"], "task": row["task"]}
        for row in rows
        if set(row["parents"]) <= {BASELINE}
    }
    return list(found.values())

"""Computes the figures of published kernels that went through capture, search and apply, on a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.figures.text import Figures, geometric, table, within

Result = Mapping[str, Any]


def programs(folder: Path) -> Figures:
    """Returns the figures of the ten published kernels, and of the training step with Liger's."""
    published = [json.loads(line) for line in (folder / "published.jsonl").read_text(encoding="utf-8").splitlines()]
    through = [result for result in published if result["reached"] == "program"]
    gains = [result["gain"]["speedup"] if _faster(result["gain"]) else 1.0 for result in through]
    figures = {
        "published": _published(published),
        "through": f"{len(through)} of {len(published)}",
        "faster": f"{sum(gain > 1 for gain in gains)} of {len(published)}",
        "mean": geometric(gains),
    }
    return figures | _training_step(json.loads((folder / "liger.json").read_text(encoding="utf-8")))


def _faster(gain: Result) -> bool:
    return bool(gain["improved"]) and float(gain["ci95"][0]) > 1


def _gain(gain: Result | None) -> tuple[str, str]:
    """Returns times as fast with the interval, and the share of the attainable speed."""
    if gain is None:
        return "", ""
    return within(gain["speedup"], *gain["ci95"]), f"{100 * gain['attained']:.0f} %"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _published(results: Sequence[Result]) -> str:
    rows = [
        (result["package"].partition(" ")[0], f"`{_last(result['kernel']) or result['program']}`",
         *_gain(result["gain"]), result["certificate"], f"{result['new_runs']} calls" if result["new_runs"] else "no")
        for result in results
    ]  # fmt: skip
    return table(
        ("package", "kernel", "times as fast [95 %]", "of attainable", "certificate", "ran in the program"), rows
    )


def _training_step(found: Result) -> Figures:
    searched = {search["kernel"]: search for search in found["searches"]}
    total = sum(kernel["gpu_us"] for kernel in found["table"])
    rows = []
    for kernel in found["table"]:
        search, answers = searched.get(kernel["kernel"]), found["answers"].get(kernel["kernel"])
        rows.append((
            f"`{_last(kernel['kernel'])}`", f"{kernel['gpu_us'] / 1e3:.1f}", f"{100 * kernel['gpu_us'] / total:.0f} %",
            _found(None if search is None else search["gain"]),
            _found(None if answers is None else answers["best"] or {}),
        ))  # fmt: skip
    head = ("kernel", "ms of 50 steps", "of Triton's time", "by rules", "by answers of a model")
    figures = {"liger": table(head, rows)}
    for name, compared in zip(("rules", "answers"), found["comparisons"], strict=True):
        step = compared["step_ms"]
        figures[f"{name}.whole"] = within(compared["ratio"], *compared["ci95"])
        figures[f"{name}.step"] = within(step["ratio"], *step["ci95"])
        figures[f"{name}.pairs"] = str(compared["pairs"])
    worst = max(side["deviation"] for compared in found["comparisons"] for side in compared["sides"])
    return figures | {"deviation": f"{100 * worst:.1f} %"}


def _found(gain: Result | None) -> str:
    """Returns times as fast, or why there is nothing to say; {} is a search that found nothing faster."""
    if gain is None:
        return "not asked"
    return "{} ({} of attainable)".format(*_gain(gain)) if gain and _faster(gain) else "nothing faster"

"""Says of a kernel in a prompt: its times by size with rates and share of the roofline, and what was compiled of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo.core.records import Build, Timing
from operators.base import Parent
from operators.genes import config_calls
from operators.llm.base import TaskFacts
from operators.llm.render import line, number
from operators.source import code, parse

ROOFLINE = "% of the roofline"


@dataclass(frozen=True)
class Speeds:
    """A table with a row a tune case; `estimated`: a model of the GPU computed the times."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    estimated: bool

    @property
    def roofline(self) -> bool:
        """Whether it has shares of the roofline."""
        return ROOFLINE in self.columns


def speeds(parent: Parent, task: TaskFacts) -> Speeds | None:
    """Returns the times of a parent, with the rates and the roofline that the task's work gives; None without times."""
    if not parent.timings:
        return None
    rows: list[dict[str, str]] = []
    for timing in parent.timings:
        work = task.work.get(timing.case, {})
        us, before = timing.median_us, timing.baseline_median_us
        least_us = timing.attainable_us or work.get("least_us")  # timings of earlier runs have none
        rows.append(
            {
                "size": timing.case,
                "µs": f"{us:.4g}",
                f"{task.baseline}, µs": f"{before:.4g}" if parent.index else "",
                "speedup": _ratio(timing) if parent.index else "",
                "GB/s": _rate(work, "bytes", us, 1e3),
                "TFLOP/s": _rate(work, "flops", us, 1e6),
                "roofline, µs": f"{least_us:.4g}" if least_us else "",
                ROOFLINE: f"{min(100.0, 100 * least_us / us):.0f}" if least_us else "",
            }
        )
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    cells = tuple(tuple(row[name] for name in columns) for row in rows)
    return Speeds(tuple(columns), cells, any(t.estimated for t in parent.timings))


def _ratio(timing: Timing) -> str:
    """Returns a speedup, with its 95 % interval if it was measured."""
    low, high = timing.ci95
    return f"{timing.ratio:.3g}" + ("" if timing.estimated else f" [{low:.3g}, {high:.3g}]")


def _rate(work: Mapping[str, float], name: str, us: float, unit: float) -> str:
    return number(work[name] / us / unit) if work.get(name) else ""


def resources(builds: Sequence[Build], frozen_source: str = "") -> list[str]:
    """Returns one line for each compiled kernel: warps, registers, memory, occupancy, and what its code uses.

    Lines for the configurations that autotuning chose follow (`Evaluation.frozen_source`).
    """
    compiled = [
        f"{line(b.kernel)}: {b.num_warps} warps, {b.registers} registers a thread, "
        + (f"{b.spill_bytes} bytes of them spilled" if b.spill_bytes else "no spills")
        + f", {b.shared_bytes} bytes of shared memory a program, {100 * b.occupancy:.0f}% occupancy"
        + "".join(f", {words}" for words in _code(b.instructions))
        for b in builds
    ]
    return compiled + _chosen(frozen_source)


def _chosen(frozen_source: str) -> list[str]:
    """Returns a line for each autotuned kernel whose only configuration is the chosen one."""
    source = parse(frozen_source) if frozen_source else None
    calls = {name: config_calls(source, kernel) for name, kernel in source.kernels.items()} if source else {}
    return [
        f"{line(name)}: autotuning chose {line(code(configs[0]))}"
        for name, configs in calls.items()
        if len(configs) == 1
    ]


def _code(found: Mapping[str, int]) -> list[str]:
    """Returns what the PTX of a kernel uses, [] if it is not known (runs of earlier versions)."""
    if not found:
        return []
    products = {"wgmma": "wgmma", "tcgen05": "tcgen05.mma", "mma_sync": "mma.sync"}
    words = [next((word for name, word in products.items() if found.get(name)), "no tensor cores")]
    words += ["TMA"] if found.get("tma") else ["cp.async"] if found.get("cp_async") else ["no asynchronous loads"]
    for name, what in (("load_bytes", "loads"), ("store_bytes", "stores")):
        words += [f"{what} of up to {found[name]} bytes a thread"] if found.get(name) else []
    return words + (["atomics"] if found.get("atomics") else [])

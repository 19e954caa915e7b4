"""Compares times with what the device can do: the least possible time, and rates against measured ceilings."""

from __future__ import annotations

from evo.core.records import Case, Verdict
from fitness.cuda.device import DeviceFacts
from fitness.estimate import roofline
from fitness.frontend.stages import Stop
from fitness.tasks.task import Task

MATMUL_HEADROOM = 2.5  # of the peak of the narrowest type over the measured bfloat16 rate


def check_roofline(task: Task, case: Case, facts: DeviceFacts, time_us: float) -> None:
    """Raises Stop(REJECTED) if the time is impossible."""
    if message := roofline.impossible(case.name, time_us, _limit_us(task, case, facts), facts.name):
        raise Stop("time", Verdict.REJECTED, message)


def _limit_us(task: Task, case: Case, facts: DeviceFacts) -> float:
    """Returns microseconds that no kernel can beat.  Data that fits into the L2 cache may still be there at the end."""
    moved = task.bytes(case) if task.bytes else 0.0
    flops = task.flops(case) if task.flops else 0.0
    memory_s = max(moved - facts.l2_bytes, 0.0) / facts.dram_bytes_per_s
    return 1e6 * max(memory_s, flops / (MATMUL_HEADROOM * facts.matmul_flops))


def rates(task: Task, case: Case, facts: DeviceFacts, time_us: float) -> dict[str, float]:
    """Returns GB/s and TFLOP/s, and their share of the measured rates of copies and matrix products.

    Empty if the task does not say how much work it is.
    """
    found: dict[str, float] = {}
    if task.bytes:
        rate = task.bytes(case) / (time_us / 1e6)
        found |= {"gb_per_s": rate / 1e9, "of_copy_rate": rate / facts.copy_bytes_per_s}
    if task.flops:
        rate = task.flops(case) / (time_us / 1e6)
        found |= {"tflop_per_s": rate / 1e12, "of_matmul_rate": rate / facts.matmul_flops}
    return found

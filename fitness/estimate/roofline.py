"""Refuses times that no kernel can have, measured or estimated."""

from __future__ import annotations

from fitness.frontend.plan import LaunchPlan, TensorRef
from fitness.frontend.target import Target

# A time below this share of what memory or the tensor cores allow is an error of the evaluator or a cheat.  The margin
# is for tasks whose `bytes` and `flops` count what some inputs let a kernel skip.
SHARE = 0.7


def impossible(case: str, time_us: float, limit_us: float, device: str) -> str | None:
    """A message if the time is impossible, else None.  limit_us: the least time for the task's traffic and work."""
    if time_us >= SHARE * limit_us:
        return None
    return (
        f"case {case}: {time_us:.2f} us is impossible, moving the task's bytes and doing its arithmetic "
        f"takes {limit_us:.2f} us at least on {device}"
    )


def least_us(plan: LaunchPlan, case_bytes: float | None, case_flops: float | None, target: Target) -> float:
    """Microseconds that a task takes at least: its bytes at the rate of memory, or its operations at the peak rate.

    Operands of 32 bits may be converted to 16, which is twice as fast.  Narrower types count only if the inputs have
    them.
    """
    given = {ref.dtype for ref in plan.inputs if isinstance(ref, TensorRef)}
    names = {"float16"} | {"float8" if d.startswith("float8") else "int8" if d == "uint8" else d for d in given}
    rate = max(target.tensor_flops[name] for name in names if name in target.tensor_flops)
    return 1e6 * max((case_bytes or 0.0) / target.dram_bytes_per_s, (case_flops or 0.0) / rate)

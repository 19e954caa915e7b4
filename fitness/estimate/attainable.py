"""Computes the attainable time of a case: the least in which its bytes move and its operations are done on a GPU.

This is the roofline of what a GPU reaches, not of its data sheet: the rates of large copies and matrix products,
measured if a GPU measures (`fitness.cuda.device`), else shares of the data sheet.  No kernel is shorter than its launch
and one read from memory.  It shows how far a kernel is from what the hardware allows, and ends searches.
`fitness.estimate.roofline` refuses times that cannot be; its limits are below these times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from fitness.estimate.coverage import read_by
from fitness.estimate.launch_trace import LaunchTrace
from fitness.estimate.time_model import DRAM_EFFICIENCY, DRAM_LATENCY_US, LAUNCH_US, WGMMA_EFFICIENCY
from fitness.frontend import aten
from fitness.frontend.plan import Launch, LaunchPlan, Op, TensorRef
from fitness.frontend.target import Target
from fitness.tasks.work import Workload

SHORTEST_US = LAUNCH_US + DRAM_LATENCY_US  # of a kernel that reads what is in no cache
# Products of narrower operands that are as precise as one of float32, at least: by the oracle's budget two are too few.
NARROW_PRODUCTS = 3
# Share of the peak that products of 8-bit operands may reach where a bfloat16 product reaches less: they draw less
# power.  On an H200 a Triton kernel reached 0.87 with int8 (4096 x 4096 x 4096), and cuBLAS 0.68 with float8.
EIGHT_BIT_SHARE = 0.9
_OPERANDS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "uint8": "int8"}


def attainable_us(work: Workload, target: Target, gpu: Mapping[str, Any] | None = None) -> float | None:
    """Returns the attainable microseconds; None if nothing is known of the work.

    gpu: "copy_bytes_per_s" and "matmul_flops" as measured (`fitness.cuda.device.DeviceFacts`), if a GPU measures.
    """
    moving_s = (work.bytes or 0.0) / bytes_per_s(target, gpu)
    computing_s = math.fsum(flops / flops_per_s(kind, target, gpu) for kind, flops in work.flops.items())
    busy_us = 1e6 * max(moving_s, computing_s)
    return max(busy_us, SHORTEST_US) if busy_us else None


def bytes_per_s(target: Target, gpu: Mapping[str, Any] | None = None) -> float:
    """Returns the rate at which a GPU moves data: as measured by a copy, read and written bytes both counted."""
    return float(gpu["copy_bytes_per_s"]) if gpu else DRAM_EFFICIENCY * target.dram_bytes_per_s


def flops_per_s(dtype: str, target: Target, gpu: Mapping[str, Any] | None = None) -> float:
    """Returns the rate at which a GPU multiplies operands of `dtype`, a fused multiply-add counted as two.

    Tensor cores reach the measured share of their peak with each type, or more with 8-bit ones.  A product in float32
    may be made of several narrower ones.  Other types have the rate of float32 without tensor cores.
    """
    peaks = target.tensor_flops
    share = gpu["matmul_flops"] / peaks["bfloat16"] if gpu else WGMMA_EFFICIENCY
    kind = "float8" if dtype.startswith("float8") else "int8" if dtype == "uint8" else dtype
    lanes = 2.0 * target.multiprocessors * target.fp32_lanes * target.clock_hz
    if kind == "float32":
        return max(lanes, share * peaks["float16"] / NARROW_PRODUCTS)
    if kind in ("int8", "float8"):
        share = max(share, EIGHT_BIT_SHARE)
    return float(share * peaks[kind] if kind in peaks else lanes)


def operator_flops(op: Op) -> float:
    """Returns the operations of an ATen operator that PyTorch can count (`torch.utils.flop_counter`): products, mostly.

    0 for all others.
    """
    function = aten.tensor_function(op.name)
    count = flop_registry.get(function.overloadpacket) if function is not None else None
    if count is None:
        return 0.0

    def shaped(value: Any) -> Any:
        return torch.empty(value.shape, device="meta") if isinstance(value, TensorRef) else value

    args, kwargs = tree_map(shaped, op.args), tree_map(shaped, dict(op.kwargs))
    made = [shaped(ref) for ref in op.outputs]
    return float(count(*args, **kwargs, out_val=made[0] if len(made) == 1 else tuple(made)))


def traced(plan: LaunchPlan, choice: Sequence[int], traces: Sequence[Sequence[LaunchTrace]]) -> Workload:
    """Returns the work of a kernel as its traces show it: what it touches of arguments and results, and its products.

    choice: configuration of each launch.  traces: by launch and configuration.  Memory between steps does not count: a
    kernel that does all at once would not need it.
    """
    given = {number for number, buffer in enumerate(plan.buffers) if buffer.input is not None}
    needed = given | {ref.buffer for ref in plan.outputs}
    moved: dict[tuple[int, bool], float] = {}  # by buffer, and whether it is written
    flops: dict[str, float] = {}

    def touch(buffer: int, size: float, *, written: bool) -> None:
        if buffer in (needed if written else given):  # a result that is read again was in no memory before
            most = min(size, plan.buffers[buffer].nbytes)
            moved[buffer, written] = max(moved.get((buffer, written), 0.0), most)

    launches = iter(zip(choice, traces, strict=True))
    for step in plan.steps:
        if not isinstance(step, Launch):
            for ref in read_by(step):
                touch(ref.buffer, ref.nbytes, written=False)
            for ref in step.outputs if isinstance(step, Op) else (step.dst,):
                touch(ref.buffer, ref.nbytes, written=True)
            if isinstance(step, Op) and (multiplied := operator_flops(step)):
                kind = next(ref.dtype for ref in read_by(step))
                flops[kind] = flops.get(kind, 0.0) + multiplied
            continue
        chosen, by_config = next(launches)
        trace = by_config[chosen]
        for t in trace.traffic:
            for kind, written in (("store", False), ("load", True)):  # an atomic operation reads and writes
                if t.kind != kind:
                    touch(t.buffer, t.distinct, written=written)
        for m, n, k, operand, *_, count in trace.dots:
            name = _OPERANDS.get(operand, "float8" if operand.startswith("fp8") else operand)
            flops[name] = flops.get(name, 0.0) + 2.0 * m * n * k * count * trace.programs
    return Workload(math.fsum(moved.values()), flops, "traced")

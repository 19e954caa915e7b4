"""Estimates how long a plan takes on the target, in microseconds.

The estimate uses the traces of its launches (`fitness/estimate/trace.py`) and their builds
(`fitness/frontend/compile.py`).  docs/estimate.md describes the model.  It is arithmetic on its arguments, so equal
arguments give equal estimates.

Constants marked "measured" come from CUDA graphs of small kernels on an NVIDIA H200 (Triton 3.6).  "vendor" is the data
sheet or the CUDA C++ Programming Guide; "guess" is neither.  Rates are scaled to other targets by multiprocessors and
clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.core.records import Build
from fitness.estimate.launch_trace import WINDOW, LaunchTrace, Traffic
from fitness.frontend import screen
from fitness.frontend.plan import ITEMSIZE, Config, Copy, Fill, Launch, LaunchPlan, Op, TensorRef
from fitness.frontend.target import Target
from fitness.interpreter.spans import SECTOR
from fitness.tasks.work import Workload

# --- constants -------------------------------------------------------------------------------------------------------

LAUNCH_US = 0.6  # measured: an empty kernel after another one in a CUDA graph.
PROGRAMS_PER_MULTIPROCESSOR_US = 12.5  # measured: empty programs started per microsecond and multiprocessor.
DRAM_EFFICIENCY = 0.89  # measured: copies reach 4.2 to 4.3 of 4.8 TB/s.
DRAM_SCATTERED = 2.0  # measured on gathers: an isolated sector of 32 bytes costs DRAM as much as 64.
L2_BYTES_PER_CLOCK = 48.0  # measured on matrix products: from L2 to one multiprocessor (its port has 64 bytes).
L1_USABLE = 0.5  # measured: rows that three passes read again, while results are stored.
L2_USABLE = 0.5  # measured on gathers: both halves of L2 may hold the same line.
SHARED_BYTES_PER_CLOCK = 128.0  # vendor.
SCATTERED_STORE_CLOCKS = 6.0  # measured: a multiprocessor's clocks for a store that fills part of a sector.
TRANSPOSED_COPY_CLOCKS = 3.7  # measured: a multiprocessor's clocks for an element that `x.t().contiguous()` moves.
ATOMIC_CLOCKS = 10.0  # measured: a multiprocessor's clocks for an atomic to a sector of its own.
ATOMIC_SAME_US = 1.76e-3  # measured: one atomic after the other to the same address.
DRAM_LATENCY_US = 0.50  # measured on chains of loads.
L2_LATENCY_US = 0.27  # public microbenchmarks of the H100 (about 200 to 260 clocks, plus the way back).
PROGRAM_START_US = 0.3  # measured: time of a program besides loads and arithmetic.
LOADS_AHEAD = 4  # measured: loads in flight in a loop without masks and barriers (the compiler unrolls it).
MASKED_LOADS_AHEAD = 2  # measured: loads in flight in a loop with masks.
DEFAULT_STAGES = 3  # Triton's num_stages.
REDUCTION_US = 0.06  # guess: shuffles within a warp.
BARRIER_US = 0.06  # measured on softmax: if there are several warps, they also exchange values by shared memory.
BARRIER_WARP_US = 0.008  # measured on softmax: for each warp that waits at that barrier.
CLOCKS_PER_INSTRUCTION = 3.0  # guess: for a single warp, in which half the operations depend on the one before.
SPILL_CLOCKS = 60.0  # measured: clocks of one warp to store or load a spilled register.
SCHEDULERS = 4  # vendor: warps from which a multiprocessor issues in each clock.
WGMMA_EFFICIENCY = 0.75  # measured: large fp16 products reach 720 of 989 Tflop/s.
TF32_TRANSPOSE_CLOCKS = 0.7  # measured: for each element of a float32 right operand, which passes registers.
MMA_EFFICIENCY = 0.6  # public microbenchmarks: mma.sync reaches about 62% of the H100's peak.
MMA_EFFICIENCY_AMPERE = 0.85  # guess: below compute capability 9.0 all products are by mma.sync.
MMA_INSTRUCTIONS = 90  # measured: of a warp around one tl.dot by mma.sync: addresses, copies, waits, barriers.
WGMMA_INSTRUCTIONS = 30  # guess: of a warp around one tl.dot by wgmma.
TRANSFER_START_US = 1.0  # measured: until a cold transfer is at full speed.
LIBRARY_EFFICIENCY = 0.7  # guess: share of the peak for work delegated to a library.

# Instructions per element beyond one, and how many of them the special function unit executes.  They are guesses from
# the PTX that Triton emits.  Index arithmetic is mostly folded, hoisted or shared between the elements of a vector.
_INSTRUCTIONS: Mapping[str, tuple[float, float]] = {
    "float": (1, 0), "half": (1, 0), "double": (2, 0), "fused": (0, 0), "compare": (1, 0), "select": (1, 0),
    "convert": (1, 0), "integer": (1, 0), "integer_64": (2, 0), "integer_product": (1, 0), "integer_product_64": (4, 0),
    "integer_division": (20, 1), "integer_division_64": (40, 1), "index": (0.25, 0), "index_64": (0.5, 0),
    "index_product": (0.25, 0), "index_product_64": (1, 0), "index_division": (5, 0.2), "index_division_64": (10, 0.2),
    "exp": (2, 1), "exp2": (1, 1), "log": (4, 1), "log2": (3, 1), "sin": (40, 0), "cos": (40, 0), "sqrt": (2, 1),
    "sqrt_rn": (8, 1), "rsqrt": (1, 1), "erf": (20, 1), "div": (4, 1), "div_rn": (10, 1), "frem": (20, 1),
    "library": (20, 1), "address": (0, 0),  # The accesses that use addresses count them.
}  # fmt: skip
# Resources that a program uses one after the other; those in one group work at the same time.
_STATIONS = (("dram", "l2", "scattered", "atomics"), ("issue", "special"), ("tensor", "shared"))
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8", "uint8": "int8"}
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "mv", "dot")

# How far estimated ratios are from measured ones.  Over 47 (kernel, case) pairs, log(estimated / measured speedup) has
# a root mean square of 0.21 with heavy tails.  With this value 43 of their intervals hold.  See docs/estimate.md.
RATIO_LOG_SD = 0.25
RATIO_LEAST = 0.5  # part of it that remains if the estimates are nearly equal, though the kernels are not.


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepEstimate:
    """One step of a plan.  `terms` overlap in time: `total_us` is less than their sum and not less than the largest."""

    name: str  # the kernel, "fill", "copy" or the delegated operator.
    total_us: float
    terms: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)


@dataclass(frozen=True)
class Estimate:
    """The time of a plan.  `terms` are sums over the steps, in microseconds; within a step they overlap."""

    total_us: float
    terms: Mapping[str, float]
    bottleneck: str
    per_launch: tuple[StepEstimate, ...]  # every step, Fill and Copy too.
    work: Workload | None = None  # that its traces show; None if a reference was estimated


def estimate(
    plan: LaunchPlan,
    choice: Sequence[int],
    builds: Sequence[Sequence[Any]],
    traces: Sequence[Sequence[LaunchTrace]],
    target: Target,
    *,
    tf32: bool = False,
) -> Estimate:
    """The time of one call of the entry, caches cold.

    choice: configuration of each launch.
    builds, traces: by launch and configuration; a build is a `Build` or a dict of `fitness.frontend.compile`.
    tf32: whether PyTorch's operators may multiply float32 matrices in TensorFloat-32.
    Raises ValueError if a chosen configuration does not fit on the target.
    """
    cache = _Cache(target.l2_bytes)
    steps: list[StepEstimate] = []
    launches = iter(zip(choice, builds, traces, strict=True))
    for step in plan.steps:
        match step:
            case Launch():
                chosen, by_config, trace = next(launches)
                found = _launch(step.configs[chosen], by_config[chosen], trace[chosen], target, cache)
                if found is None:
                    raise ValueError(f"configuration {chosen} of {step.kernel!r} does not fit on {target.device_name}")
                steps.append(found)
            case Fill():
                steps.append(_memory_step("fill", [], [step.dst], target, cache))
            case Copy():
                us = _transposing_us(step, target)
                steps.append(_memory_step("copy", [step.src], [step.dst], target, cache, scattered=us))
            case Op():
                steps.append(_delegated(step, target, cache, tf32))
    terms: dict[str, float] = {}
    for found in steps:
        for name, us in found.terms.items():
            terms[name] = terms.get(name, 0.0) + us
    total = math.fsum(s.total_us for s in steps)
    return Estimate(total, terms, max(terms, key=terms.__getitem__) if terms else "", tuple(steps))


def config_times(
    plan: LaunchPlan, builds: Sequence[Sequence[Any]], traces: Sequence[Sequence[LaunchTrace]], target: Target
) -> list[list[float | None]]:
    """Microseconds of every configuration of every launch by itself; None if it does not fit on the target."""
    times: list[list[float | None]] = []
    for launch, by_config, trace in zip(plan.launches, builds, traces, strict=True):
        found = [
            _launch(config, build, t, target, _Cache(target.l2_bytes))
            for config, build, t in zip(launch.configs, by_config, trace, strict=True)
        ]
        times.append([None if f is None else f.total_us for f in found])
    return times


def choose_configs(
    plan: LaunchPlan, builds: Sequence[Sequence[Any]], traces: Sequence[Sequence[LaunchTrace]], target: Target
) -> list[int]:
    """The configuration with the least estimate for each launch; the first one if none fits."""
    times = config_times(plan, builds, traces, target)
    scores = [[math.inf if us is None else us for us in by_config] for by_config in times]
    return [min(range(len(s)), key=s.__getitem__) for s in scores]


def interval(ratio: float) -> tuple[float, float]:
    """The 95% interval of an estimated ratio of times, by the errors of the model.

    Two kernels with nearly equal estimates are mostly alike, and the model has similar errors on both.  So the interval
    narrows towards 1.  If the ratio is exactly 1, both count as the same kernel and the interval is a point.
    """
    if ratio == 1:
        return 1.0, 1.0
    width = 1.96 * RATIO_LOG_SD * max(RATIO_LEAST, min(1.0, abs(math.log(ratio))))
    return ratio * math.exp(-width), ratio * math.exp(width)


def traces_from_json(raw: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[LaunchTrace]]:
    """The traces in the value of key "launches" of `fitness.estimate.trace.job`."""
    return [[LaunchTrace.from_dict(t) for t in by_config] for by_config in raw]


# --- one launch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Launched:
    """A launch on the device, as the terms of the model need it.

    warps, shared_bytes: of one program.
    stages: what the launch asks for.
    copies: asynchronous copies in the text of the machine code; each stage of a pipeline has its own.
    registers, spill_bytes: of one thread.
    resident: programs that a multiprocessor holds at a time.
    """

    trace: LaunchTrace
    target: Target
    warps: int
    stages: int
    copies: int
    wgmma: bool
    registers: int
    spill_bytes: int
    shared_bytes: int
    resident: int

    @property
    def threads(self) -> int:
        return self.warps * screen.WARP

    @property
    def clocks_per_us(self) -> float:
        """Clocks of one multiprocessor in a microsecond."""
        return self.target.clock_hz / 1e6

    @property
    def together(self) -> float:
        """Programs on the device at a time."""
        return max(1, min(self.trace.programs, self.resident * self.target.multiprocessors))

    @property
    def on_busiest(self) -> int:
        """Programs that the busiest multiprocessor runs."""
        return -(-self.trace.programs // self.target.multiprocessors)

    @property
    def l2_bytes(self) -> float:
        """Bytes of a stream of accesses that L2 keeps."""
        return L2_USABLE * self.target.l2_bytes

    @property
    def active_warps(self) -> float:
        """Warps on a multiprocessor at a time."""
        return self.warps * min(self.resident, self.on_busiest)


def _launch(config: Config, build: Any, trace: LaunchTrace, target: Target, cache: _Cache) -> StepEstimate | None:
    """The estimate of one launch, None if it does not fit on the target."""
    b = dataclasses.asdict(build) if isinstance(build, Build) else build
    if screen.out_of_resources(b, target):
        return None
    resident, _ = screen.occupancy(b["registers"], b["shared_bytes"], b["num_warps"], target)
    if resident == 0:
        return None
    features = b.get("ptx_features", {})
    large = any(row[0] >= 64 for row in trace.dots) and b["num_warps"] % SCHEDULERS == 0
    launch = _Launched(
        trace=trace,
        target=target,
        warps=b["num_warps"],
        stages=_requested_stages(config.options.get("num_stages")),
        copies=features.get("cp_async", screen.MOST_STAGES) + features.get("tma", 0),
        wgmma=bool(features["wgmma"] or features.get("tcgen05"))
        if "wgmma" in features
        else large and target.arch >= 90,
        registers=b["registers"],
        spill_bytes=b["spill_bytes"],
        shared_bytes=b["shared_bytes"],
        resident=resident,
    )
    if trace.programs == 0:
        return StepEstimate(trace.kernel, LAUNCH_US, {"launch": LAUNCH_US})
    memory = _memory(launch, cache)
    terms = {
        "schedule": trace.programs / (PROGRAMS_PER_MULTIPROCESSOR_US * target.multiprocessors),
        **{k: memory[k] for k in ("dram", "l2", "scattered", "atomics")},
        "issue": _on_multiprocessors(launch, _instructions(launch)),
        "special": _on_multiprocessors(launch, _special(launch)),
        "tensor": _on_multiprocessors(launch, _tensor_clocks(launch)),
        "shared": _on_multiprocessors(launch, _shared_clocks(launch)),
        "latency": _latency(launch, memory["latency_us"]),
    }
    stations = [max(terms[name] for name in station) for station in _STATIONS]
    total = LAUNCH_US + max(terms["schedule"], _queued(launch, stations, terms["latency"]))
    return StepEstimate(trace.kernel, total, {"launch": LAUNCH_US, **{k: v for k, v in terms.items() if v > 0}})


def _queued(launch: _Launched, busy: Sequence[float], waiting: float) -> float:
    """Microseconds of a launch, in which programs queue for the resources of a multiprocessor.

    busy: time that each resource needs for all programs.
    waiting: time that the programs wait without using any resource, divided by how many of them wait together.

    This is mean value analysis of a closed network (Reiser, Lavenberg 1980).  Its customers are the independent streams
    of work: a single one takes the sum of all times, many take the longest.
    """
    programs = launch.on_busiest
    streams = min(launch.resident, programs) * _streams(launch)
    demands = [b / programs / _streams(launch) for b in busy]
    think = waiting * min(launch.resident, programs) / programs
    queues = [0.0] * len(demands)
    rate = 0.0
    for customers in range(1, max(1, round(streams)) + 1):
        responses = [d * (1 + q) for d, q in zip(demands, queues, strict=True)]
        rate = customers / (think + math.fsum(responses))
        queues = [rate * r for r in responses]
    total = programs * _streams(launch) / rate
    return total + (launch.trace.busiest - 1) * total * min(launch.resident, programs) / programs


def _streams(launch: _Launched) -> int:
    """Independent streams of work in one program."""
    groups = max(1, launch.warps // SCHEDULERS)
    if not launch.trace.dots:
        return 1 if launch.trace.reductions else groups
    stages = max((_stages(launch, loop) for kind, loop, _ in launch.trace.rounds if kind == "dot"), default=1)
    return groups if launch.trace.reductions else groups * (1 + 2 * (stages - 1))


def _requested_stages(option: Any) -> int:
    """The pipeline stages that a launch asks for; below 2 nothing is pipelined."""
    return max(1, min(option, screen.MOST_STAGES)) if isinstance(option, int) else DEFAULT_STAGES


def _stages(launch: _Launched, loop: str) -> int:
    """Stages of the pipeline of a loop: the requested ones, at most as many as the machine code has copies."""
    if loop == "straight":  # Loops by `while` count as straight too.
        return 1
    requested = _requested_stages(int(loop.split()[1])) if loop.startswith("stages") else launch.stages
    return max(1, min(requested, launch.copies))


def _on_multiprocessors(launch: _Launched, clocks: float) -> float:
    """Microseconds of the busiest multiprocessor, if each program keeps it busy for `clocks`."""
    return launch.on_busiest * clocks / launch.clocks_per_us


# --- memory ----------------------------------------------------------------------------------------------------------


class _Cache:
    """The content of L2: the buffers that were touched last, as far as they fit."""

    def __init__(self, size: float) -> None:
        self._size = size
        self._held: OrderedDict[int, float] = OrderedDict()

    def held(self, buffer: int, footprint: float) -> float:
        """Part of a footprint on `buffer` that is in L2."""
        return min(1.0, self._held.get(buffer, 0.0) / footprint) if footprint else 0.0

    def touch(self, buffer: int, footprint: float) -> None:
        """Puts a footprint on `buffer` into L2; the oldest ones leave it."""
        self._held[buffer] = max(self._held.pop(buffer, 0.0), footprint)
        while self._held and math.fsum(self._held.values()) > self._size:
            self._held.popitem(last=False)


def _memory(launch: _Launched, cache: _Cache) -> dict[str, float]:
    """The terms dram, l2, scattered and atomics, and "latency_us", the latency of a load."""
    target, trace = launch.target, launch.trace
    dram = l2 = stores = atomics = contended = first = 0.0
    for t in trace.traffic:
        requested = _requested_of_l2(launch, t)
        l2 += requested
        isolated = 1 + (DRAM_SCATTERED - 1) * min(1.0, max(0.0, (t.sectors / t.requested - 4) / 4))
        again = _again(launch, t, requested) * isolated
        if t.kind == "load":
            fetched = t.distinct * (1 - cache.held(t.buffer, t.distinct)) + again
            first += fetched
            dram += fetched
        else:
            dram += t.distinct + again * (2 if t.kind == "atomic" else 1)
        if t.kind == "atomic":
            # Neighbouring addresses are combined; scattered or repeated ones are not (mostly 4 bytes each).
            together = 0.7 < t.sectors / t.requested < 1.5
            atomics += t.sectors / SECTOR if together else t.requested / 4
            contended = max(contended, t.requested / max(t.distinct / SECTOR * 4, 4.0))
        elif t.kind == "store":
            stores += max(0.0, t.sectors - t.requested) / SECTOR
        cache.touch(t.buffer, t.distinct)
    spilled = _spill_bytes(launch)
    loads = math.fsum(t.sectors for t in trace.traffic if t.kind == "load")
    part = min(1.0, first / loads) if loads else 0.0
    share = launch.on_busiest / trace.programs  # of the busiest multiprocessor.
    return {
        "dram": _dram_us(dram, target),
        "l2": share * (l2 + spilled) / L2_BYTES_PER_CLOCK / launch.clocks_per_us,
        "scattered": share * stores * SCATTERED_STORE_CLOCKS / launch.clocks_per_us,
        "atomics": max(share * atomics * ATOMIC_CLOCKS / launch.clocks_per_us, contended * ATOMIC_SAME_US),
        "latency_us": part * DRAM_LATENCY_US + (1 - part) * L2_LATENCY_US,
    }


def _dram_us(moved: float, target: Target) -> float:
    """Microseconds to move this number of bytes; a transfer starts slowly, and a short one never gets faster."""
    us = 1e6 * moved / (DRAM_EFFICIENCY * target.dram_bytes_per_s)
    return us + TRANSFER_START_US * us / (us + TRANSFER_START_US)


def _again(launch: _Launched, t: Traffic, requested: float) -> float:
    """Bytes read from DRAM again, because too much was touched in between (the distance in an LRU stack).

    requested: bytes requested from L2.
    """
    programs = launch.trace.programs
    near = min(WINDOW, programs)
    holders = 1 + (near - 1) * t.shared  # programs in the window that touch the same byte.
    windows = max(1.0, t.once / max(t.distinct, 1.0) / holders)  # windows with programs that touch it.
    # Programs that run at the same time and touch the same byte do so at nearly the same time, if they are in a loop.
    rounds = max(1.0, math.fsum(row[2] for row in launch.trace.rounds))
    apart = near / holders
    beside = _touched(launch, apart) / (rounds if apart < launch.together else 1)
    between = _touched(launch, programs / windows)
    return (
        max(0.0, t.once - t.once / holders) * _missing(beside, launch.l2_bytes)
        + max(0.0, t.once / holders - t.distinct) * _missing(between, launch.l2_bytes)
        + max(0.0, requested - t.once) * _missing(_touched(launch, launch.together), launch.l2_bytes)
    )


def _touched(launch: _Launched, programs: float) -> float:
    """Footprint of neighbouring programs, all buffers together."""
    return math.fsum(t.resident(programs, launch.trace.programs) for t in launch.trace.traffic)


def _missing(footprint: float, capacity: float) -> float:
    """Part of repeated accesses to a footprint that miss a cache: all of them if it is twice the capacity or more."""
    return min(1.0, max(0.0, footprint / capacity - 1))


def _requested_of_l2(launch: _Launched, t: Traffic) -> float:
    """Bytes that L1 requests from L2: each footprint once if it fits into L1, every access if it does not."""
    if t.kind != "load":
        return t.sectors
    room = (
        L1_USABLE
        * (launch.target.l1_bytes - launch.resident * launch.shared_bytes)
        / max(1.0, launch.active_warps / launch.warps)
    )
    missed = _missing(t.once / launch.trace.programs, max(room, 1.0))
    return t.once + max(0.0, t.sectors - t.again - t.once) * missed


def _spill_bytes(launch: _Launched) -> float:
    """Bytes of spilled registers that L1 cannot hold; each is stored and loaded once."""
    spilled = launch.spill_bytes * launch.threads
    resident = spilled * launch.active_warps / launch.warps
    return (
        2
        * spilled
        * _spill_rounds(launch)
        * launch.trace.programs
        * _missing(resident, (launch.target.l1_bytes - launch.resident * launch.shared_bytes) / 2 + 1)
    )


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _per_thread(launch: _Launched, elements: float) -> float:
    """Elements of a block that a thread computes.  If a block has fewer elements than threads, several compute each."""
    return max(1.0, elements / launch.threads)


def _warp_instructions(launch: _Launched) -> float:
    """Instructions of one warp of a program."""
    total = 0.0
    for kind, elements, count in launch.trace.ops:
        # A single value gets no discount for index arithmetic, as no elements of a vector share it.
        discount = 1.0 if elements > 1 or not kind.startswith("index") else 4.0
        total += count * _per_thread(launch, elements) * _INSTRUCTIONS[kind][0] * discount
    for _, elements, itemsize, vector, count in launch.trace.accesses:
        each = _per_thread(launch, elements)
        total += count * each / max(1.0, min(vector / itemsize, each)) * 3  # for address, mask and access.
    for _, _, results, count in launch.trace.reductions:
        total += count * 10 * max(1.0, results / launch.warps / 4)
    for m, n, k, a, _, precision, count in launch.trace.dots:
        if a == "fp32" and precision == "ieee":
            total += count * m * n * k / launch.threads * 1.25
        elif not launch.wgmma:
            total += count * (MMA_INSTRUCTIONS + 2 * _mma_fragments(launch, m, n, k))
        else:
            total += count * WGMMA_INSTRUCTIONS
    return total + launch.spill_bytes / 4 * 2 * _spill_rounds(launch)


def _spill_rounds(launch: _Launched) -> float:
    """How often spilled registers are stored and loaded: in every iteration of a loop with loads."""
    return max(1.0, math.fsum(row[2] for row in launch.trace.rounds))


def _mma_fragments(launch: _Launched, m: int, n: int, k: int) -> float:
    """The number of mma.sync m16n8k16 instructions of one warp."""
    return max(1.0, m * n / (16 * 8) / launch.warps) * max(1.0, k / 16)


def _instructions(launch: _Launched) -> float:
    """Clocks in which a multiprocessor issues the instructions of one program."""
    return _warp_instructions(launch) * launch.warps / min(SCHEDULERS, launch.active_warps)


def _special(launch: _Launched) -> float:
    """Clocks that the special function units of a multiprocessor need for one program."""
    total = 0.0
    for kind, elements, count in launch.trace.ops:
        total += count * _per_thread(launch, elements) * launch.threads * _INSTRUCTIONS[kind][1]
    return total / launch.target.special_lanes / min(1.0, launch.active_warps / SCHEDULERS)


def _tensor_clocks(launch: _Launched) -> float:
    """Clocks that the tensor cores of a multiprocessor need for one program."""
    total = 0.0
    for m, n, k, a, _, precision, count in launch.trace.dots:
        if (a == "fp32" and precision == "ieee") or a == "fp64":
            continue  # These count as instructions.
        dtype = "float8" if a.startswith("fp8") else _DTYPES.get(a, "float16")
        peak = launch.target.tensor_flops[dtype] / launch.target.multiprocessors / launch.target.clock_hz
        passes = 3 if precision == "tf32x3" else 1
        if launch.wgmma:
            # A product of 64 x n x 16 takes n/2 clocks, and 16 + n/4 to read both operands from shared memory.
            columns = min(n, 256)
            shape = (columns / 2) / max(columns / 2, 16 + columns / 4)
            rate = peak * shape * WGMMA_EFFICIENCY
            total += count * k * n * TF32_TRANSPOSE_CLOCKS if a == "fp32" else 0.0
            flops = 2.0 * max(m, 64) * n * k
        else:
            reached = MMA_EFFICIENCY if launch.target.arch >= 90 else MMA_EFFICIENCY_AMPERE
            rate = peak * reached * min(1.0, launch.active_warps / SCHEDULERS)
            flops = 2.0 * _mma_fragments(launch, m, n, k) * launch.warps * 16 * 8 * 16
        total += count * passes * flops / rate
    return total


def _shared_clocks(launch: _Launched) -> float:
    """Clocks of shared memory for the operands of matrix products: written once, read by each warp or warp group."""
    total = 0.0
    for m, n, k, a, b, _, count in launch.trace.dots:
        size_a, size_b = (_itemsize(x) for x in (a, b))
        written = m * k * size_a + k * n * size_b
        if launch.wgmma:
            read = math.ceil(m / 64) * (64 * k * size_a + k * n * size_b)
        else:
            rows = min(launch.warps, max(1, m // 16))  # Warps are placed along a column first.
            columns = max(1, launch.warps // rows)
            read = columns * m * k * size_a + rows * n * k * size_b
        total += count * (written + read)
    return total / SHARED_BYTES_PER_CLOCK


def _itemsize(dtype: str) -> int:
    return ITEMSIZE.get(_DTYPES.get(dtype, dtype), 8 if dtype == "fp64" else 1)


# --- latency ---------------------------------------------------------------------------------------------------------


def _latency(launch: _Launched, load_us: float) -> float:
    """Microseconds that programs wait: for loads, at barriers, and for instructions of a single warp.

    This is Little's law from the program's side: the loads in flight are those that the resident programs wait for.
    """
    instructions = _warp_instructions(launch)
    path = PROGRAM_START_US + instructions * (CLOCKS_PER_INSTRUCTION - 1) / launch.clocks_per_us
    path += launch.spill_bytes / 4 * 2 * SPILL_CLOCKS / launch.clocks_per_us
    all_rounds = math.fsum(count for *_, count in launch.trace.rounds)
    clocks = instructions * CLOCKS_PER_INSTRUCTION + _tensor_clocks(launch)
    busy = clocks / launch.clocks_per_us / max(1.0, all_rounds)
    for kind, loop, count in launch.trace.rounds:
        ahead = _loads_ahead(launch, kind, loop)
        hidden = busy / 2 if kind == "dot" and _stages(launch, loop) > 1 else 0.0
        path += count * max(0.0, load_us / ahead - hidden)
    barrier = BARRIER_US + BARRIER_WARP_US * launch.warps if launch.warps > 1 else 0.0
    path += math.fsum(count * (REDUCTION_US + barrier) for *_, count in launch.trace.reductions)
    return path * launch.on_busiest / min(launch.resident, launch.on_busiest)


def _loads_ahead(launch: _Launched, kind: str, loop: str) -> float:
    """How many rounds of loads are in flight at a time."""
    if loop == "straight":
        return 1
    stages = _stages(launch, loop)
    if kind == "dot" or (loop.startswith("stages") and stages > 1):  # Triton pipelines these.
        return max(1, stages - 1)
    return {"plain": LOADS_AHEAD, "masked": MASKED_LOADS_AHEAD}.get(kind, 1)


# --- steps that are not launches -------------------------------------------------------------------------------------


def _memory_step(
    name: str, read: Sequence[TensorRef], written: Sequence[TensorRef], target: Target, cache: _Cache, **busy: float
) -> StepEstimate:
    """The estimate of a step that is limited by memory, or by another term (`busy`: microseconds by term)."""
    moved = 0.0
    for ref in read:
        span = _window(ref)
        moved += span * (1 - cache.held(ref.buffer, span))
        cache.touch(ref.buffer, span)
    for ref in written:
        moved += _window(ref)
        cache.touch(ref.buffer, _window(ref))
    terms = {"dram": _dram_us(moved, target), **{term: us for term, us in busy.items() if us}}
    return StepEstimate(name, LAUNCH_US + max(terms.values()), {"launch": LAUNCH_US, **terms})


def _transposing_us(copy: Copy, target: Target) -> float:
    """Microseconds of a copy that reads along one axis and writes along another; 0 for other copies."""
    axes = [_fastest_axis(ref) for ref in (copy.src, copy.dst)]
    if len(copy.src.shape) != len(copy.dst.shape) or None in axes or axes[0] == axes[1]:
        return 0.0
    clocks = copy.dst.numel * TRANSPOSED_COPY_CLOCKS / target.multiprocessors
    return 1e6 * clocks / target.clock_hz


def _fastest_axis(ref: TensorRef) -> int | None:
    """The axis with stride 1, along which elements are neighbours in memory; None without such an axis."""
    return next((i for i, (n, s) in enumerate(zip(ref.shape, ref.strides, strict=True)) if s == 1 and n > 1), None)


def _window(ref: TensorRef) -> float:
    """Bytes of the sectors that a window touches; an expanded dimension (stride 0) counts once."""
    moving = [(n, s) for n, s in zip(ref.shape, ref.strides, strict=True) if s != 0 and n > 1]
    if ref.numel == 0:
        return 0.0
    elements = math.prod(n for n, _ in moving)
    itemsize = ITEMSIZE[ref.dtype]
    smallest = min((s for _, s in moving), default=1)
    return float(elements * min(SECTOR, itemsize * smallest))


def _delegated(op: Op, target: Target, cache: _Cache, tf32: bool) -> StepEstimate:
    """The estimate of a library's kernel by a roofline: operands once, and the arithmetic of products."""
    inputs = [a for a in op.args if isinstance(a, TensorRef)]
    dtype = op.outputs[0].dtype if op.outputs else "float32"
    lanes = 2.0 * target.multiprocessors * target.fp32_lanes * target.clock_hz  # without TensorFloat-32
    peak = target.tensor_flops.get(dtype, lanes) if dtype != "float32" or tf32 else lanes
    us = 1e6 * _products(op, inputs) / (peak * LIBRARY_EFFICIENCY)
    return _memory_step(op.name, inputs, op.outputs, target, cache, tensor=us)


def _products(op: Op, inputs: Sequence[TensorRef]) -> float:
    """Operations of an operator that multiplies matrices, convolves or attends; 0 for others."""
    name = op.name.split(".")[1] if "." in op.name else op.name
    if not op.outputs or len(inputs) < 2:
        return 0.0
    first, second = inputs[0], inputs[1]
    if name in _PRODUCTS:
        inner = inputs[-2].shape[-1] if inputs[-2].shape else 1
        return 2.0 * op.outputs[0].numel * inner
    if name == "convolution":  # each weight of a filter meets each element of the result, or of the input if transposed
        transposed = len(op.args) > 6 and op.args[6] is True
        return 2.0 * (first if transposed else op.outputs[0]).numel * math.prod(second.shape[1:])
    if name.startswith("_scaled_dot_product"):  # queries by keys, then by values
        return 4.0 * first.numel * second.shape[-2]
    return 0.0

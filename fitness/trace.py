"""What a plan's launches do on the device, counted on a few sampled programs at the sizes of the target.

A launch of a million programs on gigabytes is described by running some of its programs under Triton's interpreter
without memory (`fitness/counting.py`) and extrapolating to the grid.  Floating-point inputs and whatever an earlier
step computed read as zero; integer inputs have their real values where the caller gives them, because indices steer
where a kernel reads and writes.  A launch whose addresses or loop bounds are computed by an earlier launch is therefore
traced as if those were zero.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evo.records import Verdict
from fitness.jobs import JobError
from fitness.plan import ITEMSIZE, Config, Launch, LaunchPlan, TensorRef, from_json
from fitness.spans import SECTOR, Spans

if TYPE_CHECKING:
    from fitness.counting import Counter, CountingInterpreter

# What running a kernel without its values can raise; a kernel that is at fault is found out by verification.
_FAILURES = (
    NotImplementedError, AttributeError, TypeError, KeyError, NameError, RecursionError, AssertionError, ValueError,
    IndexError, ArithmeticError,
)  # fmt: skip

LAUNCH_COST = 3000.0  # counted cost of a launch after which fewer programs are sampled
EVERYWHERE = 1e12  # programs: more than any grid has
LEAST_SAMPLES = 4  # the first two and the last two programs
NEIGHBOURS = (1, 7, 3, 29, 11, 61)  # distance of a sample to its partner, by place in the grid


@dataclass(frozen=True)
class Traffic:
    """One launch's accesses of one kind to one buffer.  Sizes in bytes.

    A footprint is a set of sectors, each counted once however often it is touched.
    """

    buffer: int
    kind: str  # load | store | atomic
    requested: float  # asked for by all programs, every execution of every access
    sectors: float  # the same in whole sectors of 32 bytes
    once: float  # sum of the programs' footprints
    run: float  # neighbouring programs over which a footprint moves on by its own size (1: nothing is shared)
    common: float  # part of a footprint that any other program has too, wherever it is in the grid, 0..1
    distinct: float  # footprint of the launch
    written: float  # the same without rounding to sectors: bytes touched

    def resident(self, programs: float, grid: int) -> float:
        """Footprint of `programs` neighbouring programs of the `grid`."""
        return min(_union(self.once / grid, self.run, self.common, min(programs, grid)), self.distinct)


@dataclass(frozen=True)
class LaunchTrace:
    """What one launch does, per program (a mean over the samples) unless said otherwise.

    ops: (class, elements of the block, executions), classes as in `fitness.counting`
    accesses: (kind, elements of the block, bytes of an element, widest access of a thread in bytes, executions)
    lines: cache lines of 128 bytes asked of L1, by kind
    dots: (m, n, k, dtype of a, dtype of b, precision, executions)
    reductions: ("reduce" | "scan", elements, results, executions)
    rounds: (kind, where, waits for loads), see `fitness.counting.Counter`
    traffic: of all programs, by buffer and kind
    busiest: operations of the busiest sampled program / operations of the mean one
    truncated: a program was cut off (a loop that may not end on zeros), the counts are too small
    """

    kernel: str
    programs: int  # in the grid
    sampled: int
    ops: tuple[tuple[str, int, float], ...]
    accesses: tuple[tuple[str, int, int, int, float], ...]
    lines: Mapping[str, float]
    dots: tuple[tuple[int, int, int, str, str, str, float], ...]
    reductions: tuple[tuple[str, int, int, float], ...]
    rounds: tuple[tuple[str, str, float], ...]
    traffic: tuple[Traffic, ...]
    busiest: float
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> LaunchTrace:
        tuples = {n: tuple(tuple(row) for row in raw[n]) for n in ("ops", "accesses", "dots", "reductions", "rounds")}
        traffic = tuple(Traffic(**t) for t in raw["traffic"])
        return cls(**{**raw, **tuples, "traffic": traffic, "lines": dict(raw["lines"])})


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Traces every configuration of every launch.

    payload: "source", "constants", "plan" (JSON, at the target's sizes), "samples" (programs a launch), "integers"
    ({argument index: .npy file in `scratch`}).  Returns {"launches": [[LaunchTrace as a dict per configuration] per
    launch]}.
    """
    from fitness.counting import CountingInterpreter

    plan = from_json(payload["plan"])
    files = {int(i): scratch / name for i, name in payload.get("integers", {}).items()}
    with CountingInterpreter(_known_bytes(plan, files)) as interpreter:
        tracer = _Tracer(plan, payload, scratch, interpreter)
        return {"launches": [[tracer.trace(launch, c).to_dict() for c in launch.configs] for launch in plan.launches]}


class _Tracer:
    """Traces launches; those that differ in compiler options only are traced once."""

    def __init__(
        self, plan: LaunchPlan, payload: Mapping[str, Any], scratch: Path, interpreter: CountingInterpreter
    ) -> None:
        from fitness.kernels import load_kernels

        self._plan = plan
        self._samples = int(payload["samples"])
        self._kernels = load_kernels(payload["source"], payload["constants"], scratch)
        self._interpreter = interpreter
        self._traces: dict[str, LaunchTrace] = {}

    def trace(self, launch: Launch, config: Config) -> LaunchTrace:
        key = json.dumps([launch.kernel, config.grid, config.args], sort_keys=True, default=dataclasses.astuple)
        if key not in self._traces:
            try:
                self._traces[key] = self._run(launch, config)
            except _FAILURES as error:
                text = str(error).strip() or type(error).__name__
                message = f"kernel {launch.kernel} cannot be traced at its full size: {text}"
                raise JobError(Verdict.UNSUPPORTED, message, launch.line) from error
        return self._traces[key]

    def _run(self, launch: Launch, config: Config) -> LaunchTrace:
        from fitness.kernels import get_kernel

        kernel = get_kernel(self._kernels, launch.kernel, launch.line)
        args = {name: self._argument(value) for name, value in config.args.items()}
        programs = math.prod(config.grid)
        counters: dict[int, Counter] = {}
        weights = places(programs, LEAST_SAMPLES)
        for affordable in (LEAST_SAMPLES, self._samples):
            if affordable > LEAST_SAMPLES:  # now that the first few programs have shown what one costs
                dearest = max(c.cost for c in counters.values())
                weights = places(programs, max(LEAST_SAMPLES, min(affordable, int(LAUNCH_COST / dearest))))
            for number in weights:
                if number not in counters:
                    program = _program(number, config.grid)
                    counters[number] = self._interpreter.count(kernel, args, config.grid, program)
        sizes = [b.nbytes for b in self._plan.buffers]
        return summary(launch.kernel, sizes, programs, weights, [counters[n] for n in weights])

    def _argument(self, value: Any) -> Any:
        from fitness.counting import Pointer
        from fitness.kernels import argument
        from fitness.memory import DTYPES

        if isinstance(value, TensorRef):
            return Pointer.to(value.buffer, value.offset * ITEMSIZE[value.dtype], DTYPES[value.dtype])
        if isinstance(value, tuple):
            return tuple(self._argument(v) for v in value)
        return argument(value, self._kernels)


def _program(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The `number`-th program of a grid, x fastest as on the device."""
    return number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1]


# --- which programs --------------------------------------------------------------------------------------------------


def places(programs: int, samples: int) -> dict[int, float]:
    """Programs to sample and their weights (sum 1): pairs of neighbours at Gauss-Lobatto points of the grid.

    The points include both ends and lie symmetrically, and the weights integrate polynomials exactly, so that work that
    grows with the program id (as in causal attention) is averaged right.
    """
    if programs <= samples:
        return dict.fromkeys(range(programs), 1 / programs)
    count = max(2, samples // 2)
    weights: dict[int, float] = defaultdict(float)
    for place, (position, weight) in enumerate(_lobatto(count)):
        mirrored = place >= (count + 1) // 2
        distance = NEIGHBOURS[min(place, count - 1 - place) % len(NEIGHBOURS)]
        first = min(int(position * (programs - 1) + 0.5), programs - 1)
        partner = min(max(first - distance if mirrored else first + distance, 0), programs - 1)
        weights[first] += weight / 2
        weights[partner] += weight / 2
    return dict(sorted(weights.items()))


def _lobatto(count: int) -> list[tuple[float, float]]:
    """Positions in 0..1 and weights (sum 1) of Gauss-Lobatto quadrature with `count` >= 2 points."""
    legendre = np.polynomial.legendre.Legendre.basis(count - 1)
    positions = np.concatenate(([-1.0], np.sort(legendre.deriv().roots().real) if count > 2 else [], [1.0]))
    weights = 1.0 / (count * (count - 1) * legendre(positions) ** 2)
    return [(float(p + 1) / 2, float(w)) for p, w in zip(positions, weights / weights.sum(), strict=True)]


# --- from programs to the launch -------------------------------------------------------------------------------------


def summary(
    kernel: str, plan_sizes: Sequence[int], programs: int, weights: Mapping[int, float], counters: Sequence[Counter]
) -> LaunchTrace:
    """The trace of a launch of `programs` programs from samples.

    plan_sizes: bytes of each buffer; weights: sampled program -> weight (sum 1), in the order of `counters`.
    """
    mean: dict[tuple, float] = defaultdict(float)
    for weight, counter in zip(weights.values(), counters, strict=True):
        for key, count in counter.counts.items():
            mean[key] += weight * count
    work = [_work(c.counts) for c in counters]
    average = math.fsum(w * x for w, x in zip(weights.values(), work, strict=True))
    return LaunchTrace(
        kernel=kernel,
        programs=programs,
        sampled=len(counters),
        ops=_rows(mean, "ops"),
        accesses=_rows(mean, "access"),
        lines={key[1]: round(n, 6) for key, n in mean.items() if key[0] == "lines"},
        dots=_rows(mean, "dot"),
        reductions=tuple((k, *row) for k in ("reduce", "scan") for row in _rows(mean, k)),  # type: ignore[misc]
        rounds=_rows(mean, "rounds"),
        traffic=_traffic(plan_sizes, programs, weights, counters, mean),
        busiest=max(work) / average if average else 1.0,
        truncated=any(c.cut_off for c in counters),
    )


def _rows(mean: Mapping[tuple, float], kind: str) -> tuple:
    rows = [(*key[1:], round(count, 6)) for key, count in mean.items() if key[0] == kind]
    return tuple(sorted(rows, key=lambda row: tuple(map(str, row))))


def _work(counts: Mapping[tuple, float]) -> float:
    """A program's work for comparison with other programs: elements operated on, loaded, stored and multiplied."""
    total = 0.0
    for key, count in counts.items():
        if key[0] in ("ops", "access"):
            total += count * key[2]
        elif key[0] == "dot":
            total += count * key[1] * key[2] * key[3] / 64
    return total


def _traffic(
    plan_sizes: Sequence[int], programs: int, weights: Mapping[int, float], counters: Sequence[Counter], mean: Mapping
) -> tuple[Traffic, ...]:
    """Accesses by (buffer, kind), extrapolated to the grid."""
    touched = [_footprints(c) for c in counters]
    nothing = Spans.union([])
    found = []
    for buffer, kind in sorted({key for t in touched for key in t}):
        sets = [t.get((buffer, kind), nothing) for t in touched]
        size = plan_sizes[buffer] if 0 <= buffer < len(plan_sizes) else math.inf
        touched_bytes = _extent(programs, weights, sets, size)
        extent = _extent(programs, weights, [s.blocks(SECTOR) for s in sets], size)
        found.append(
            Traffic(
                buffer=buffer,
                kind=kind,
                requested=programs * round(mean["bytes", kind, buffer], 6),
                sectors=programs * round(mean["sectors", kind, buffer], 6),
                once=extent.once,
                run=extent.run,
                common=extent.common,
                distinct=max(extent.distinct, touched_bytes.distinct),
                written=touched_bytes.distinct,
            )
        )
    return tuple(found)


def _footprints(counter: Counter) -> dict[tuple[int, str], Spans]:
    parts: dict[tuple[int, str], list[Spans]] = defaultdict(list)
    for kind, buffer, spans in counter.footprint:
        parts[buffer, kind].append(spans)
    return {key: Spans.union(p) for key, p in parts.items()}


class _Extent(NamedTuple):
    once: float
    run: float
    common: float
    distinct: float


def _extent(programs: int, weights: Mapping[int, float], sets: Sequence[Spans], limit: float) -> _Extent:
    """How the samples' footprints (`sets`, in the order of `weights`) add up over the grid."""
    mean = round(math.fsum(w * s.size for w, s in zip(weights.values(), sets, strict=True)), 6)
    seen = Spans.union(sets).size
    sampled = list(zip(weights, sets, strict=True))
    near = _shared(list(zip(sampled[::2], sampled[1::2], strict=False)))
    far = _shared([(a, b) for i, a in enumerate(sampled) for b in sampled[i + 2 :]])
    common = min(near.part, far.part)
    if len(sets) == programs:
        return _Extent(programs * mean, near.run, common, float(seen))
    distinct = _union(mean, near.run, common, programs)
    return _Extent(programs * mean, near.run, common, min(max(distinct, float(seen)), limit))


class _Sharing(NamedTuple):
    part: float  # of one footprint of a pair that the other holds too
    run: float  # distance at which nothing would be shared any more, if sharing falls linearly with it


def _shared(pairs: Sequence[tuple[tuple[int, Spans], tuple[int, Spans]]]) -> _Sharing:
    both = either = distance = new = 0.0
    apart = EVERYWHERE
    for (i, a), (j, b) in pairs:
        if a.starts.size and b.starts.size:
            mean = (a.size + b.size) / 2
            common = a.size + b.size - Spans.union((a, b)).size
            both, either = both + common, either + mean
            if common:
                distance, new = distance + (j - i), new + (1 - common / mean)
            else:
                apart = min(apart, j - i)
    if not both:
        return _Sharing(0.0, 1.0)
    return _Sharing(both / either, max(1.0, min(apart, distance / new if new > 0 else EVERYWHERE)))


def _union(size: float, run: float, common: float, count: float) -> float:
    """Footprint of `count` neighbouring programs with footprints of `size`.

    Two models, of which the smaller result holds.  Sliding: along the grid a footprint moves on by its size every `run`
    programs.  Drawing: each footprint is drawn at random from size / common bytes, as many as the overlap of programs
    far apart suggests (the Lincoln-Petersen estimate of capture and recapture); right for gathers and shared tables.
    """
    sliding = size * (1 + (count - 1) / run)
    drawing = size * (1 - (1 - common) ** count) / common if common > 0 else math.inf
    return min(sliding, drawing)


def _known_bytes(plan: LaunchPlan, files: Mapping[int, Path]) -> dict[int, np.ndarray]:
    """The bytes of the buffers that hold the integer arguments in `files` (argument index -> .npy)."""
    known = {}
    for index, path in files.items():
        ref = plan.inputs[index]
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(ref, TensorRef) or values.shape != ref.shape:
            continue
        memory = np.zeros(plan.buffers[ref.buffer].nbytes, np.uint8)
        window = memory.view(values.dtype)[ref.offset :]
        strides = tuple(s * values.dtype.itemsize for s in ref.strides)
        np.lib.stride_tricks.as_strided(window, ref.shape, strides)[...] = values
        known[ref.buffer] = memory
    return known

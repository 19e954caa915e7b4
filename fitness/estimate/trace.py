"""Traces what a plan's launches do on the device, from a few sampled programs at the sizes of the target.

A launch may have a million programs on gigabytes.  Triton's interpreter runs some of its programs without memory
(`fitness/estimate/counters.py`), and the counts are extrapolated to the grid.  Floating-point inputs and results of
earlier steps read as zero.  Integer inputs have their real values if the caller gives them, because indices decide
which addresses a kernel uses.  So if an earlier launch computes addresses or loop bounds, they are traced as zero.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from triton.runtime.jit import JITFunction

from evo.core.records import Verdict
from fitness.estimate.counters import Counter, CountingInterpreter, Pointer
from fitness.estimate.launch_trace import BUFFER_SHIFT, WINDOW, LaunchTrace, Traffic, union
from fitness.frontend.kernels import argument, get_kernel, load_kernels
from fitness.frontend.memory import DTYPES
from fitness.frontend.plan import ITEMSIZE, Config, Launch, LaunchPlan, TensorRef, from_json, refs_of
from fitness.interpreter.interpreter import Program
from fitness.interpreter.spans import SECTOR, Spans
from fitness.interpreter.stores import StoreBlock, block_of, corners, position
from fitness.sandbox.jobs import JobError

# Errors of a kernel that runs without its values.  If the kernel itself is wrong, verification finds that.
_FAILURES = (
    NotImplementedError, AttributeError, TypeError, KeyError, NameError, RecursionError, AssertionError, ValueError,
    IndexError, ArithmeticError,
)  # fmt: skip

# Places in a window of neighbours.  They are drawn so that pairs of them represent all pairs in the window, for runs
# and periods of 2 to 64 programs: as many are in one run, and as many are whole periods apart.
OFFSETS = (0, 27, 33, 34, 75, 91, 106, 126, 133, 193, 217, 221)

EVERYONE = 4 * WINDOW  # Some grids of at most this size are counted as a whole (`_Tracer._run`) ...
EVERYONE_COST = 50_000.0  # ... unless they cost more than this together.  A closer look: as many as that pays for.
SPREAD, GOLDEN = 12, (5**0.5 - 1) / 2  # If programs have roles: number of sampled pairs, golden ratio.


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Traces every configuration of every launch of some plans.

    payload: "source", "constants", "samples" (programs per launch), "closer" (optional: more of a grid some of whose
    programs write less, if it is not known which) and "cases".  A case has "plan" (JSON, at the target's sizes) and
    "integers" ({argument index: .npy file in `scratch`}).

    Returns {"cases": [{"launches": [[LaunchTrace as a dict per configuration] per launch]} per case]}.
    """
    kernels = load_kernels(payload["source"], payload["constants"], scratch)
    found = []
    with CountingInterpreter() as interpreter:
        for case in payload["cases"]:
            plan = from_json(case["plan"])
            files = {int(i): scratch / name for i, name in case["integers"].items()}
            interpreter.use_buffers(_integer_contents(plan, files), [b.nbytes for b in plan.buffers])
            tracer = _Tracer(plan, int(payload["samples"]), kernels, interpreter, closer=bool(payload.get("closer")))
            traces = [[tracer.trace(launch, c).to_dict() for c in launch.configs] for launch in plan.launches]
            found.append({"launches": traces})
    return {"cases": found}


Count = Callable[..., dict[int, Counter]]  # counts programs with these numbers; briefly, if the second argument says so


class _Tracer:
    """Traces the launches of a plan; launches that differ only in compiler options are traced once."""

    def __init__(
        self,
        plan: LaunchPlan,
        samples: int,
        kernels: Mapping[str, JITFunction],
        interpreter: CountingInterpreter,
        *,
        closer: bool,
    ) -> None:
        self._plan, self._samples, self._closer = plan, samples, closer
        self._kernels, self._interpreter = kernels, interpreter
        self._traces: dict[str, LaunchTrace] = {}

    def trace(self, launch: Launch, config: Config) -> LaunchTrace:
        """The trace of a configuration; raises JobError(UNSUPPORTED) if the kernel cannot run without its values."""
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
        kernel = get_kernel(self._kernels, launch.kernel, launch.line)
        args = {name: self._argument(value) for name, value in config.args.items()}

        @functools.cache  # neighbours, partners and corners have programs in common
        def counted(number: int, brief: bool) -> Counter:
            return self._interpreter.count(kernel, args, config.grid, position(number, config.grid), brief=brief)

        def count(numbers: Iterable[int], brief: bool = False) -> dict[int, Counter]:
            return {n: counted(n, brief) for n in numbers}

        programs = math.prod(config.grid)
        weights = places(config.grid, self._samples)
        counters = count(weights)
        if programs <= self._samples:
            return self._summary(launch, config, weights, counters, count)
        if has_roles(counters.values()):
            weights = spread(programs)
            return self._summary(launch, config, weights, count(weights), count)
        affordable = int(EVERYONE_COST / max(_mean_cost(counters.values()), 1.0))
        few = programs <= min(EVERYONE, affordable)
        many = few or (self._closer and affordable >= 2 * SPREAD)
        if not (few and some_idle(counters.values())):
            found = self._summary(launch, config, weights, counters, count)
            if not (many and some_write_less(counters.values()) and found.extrapolates_stores):
                return found
        if few:
            weights = dict.fromkeys(range(programs), 1 / programs)
        else:
            weights = spread(programs, min(WINDOW, affordable) // 2)
        return self._summary(launch, config, weights, count(weights, brief=True), count)

    def _summary(
        self,
        launch: Launch,
        config: Config,
        weights: Mapping[int, float],
        counters: Mapping[int, Counter],
        count: Count,
    ) -> LaunchTrace:
        """Returns the trace from the counts of these programs, with weights, and of others that it counts itself."""
        programs = math.prod(config.grid)
        seen = dict(counters)
        near = far = list(counters.values())
        if programs == len(weights) > self._samples:
            near = [seen[number] for number in window(programs)]
        elif programs > len(weights):
            some = list(weights)[:: max(2, len(weights) // SPREAD)]
            beside, apart = count(window(programs), True), count(_with_partners(config.grid, some), True)
            near, far = list(beside.values()), list(apart.values())
            seen |= beside | apart
            seen |= count(corners(config.grid) - set(seen), True)
        sizes = [b.nbytes for b in self._plan.buffers]
        samples = {(n, weight): counters[n] for n, weight in weights.items()}
        found = summary(launch.kernel, sizes, programs, samples, near, far)
        given = {ref.buffer for ref in refs_of(dict(config.args))} if any(c.doubtful for c in seen.values()) else ()
        blocks = tuple(_blocks(config.grid, sizes, seen))
        return dataclasses.replace(found, blocks=blocks, doubtful=tuple(sorted(given)))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return Pointer.to(value.buffer, value.offset * ITEMSIZE[value.dtype], DTYPES[value.dtype])
        if isinstance(value, tuple):
            return tuple(self._argument(v) for v in value)
        return argument(value, self._kernels)


# --- choice of programs ----------------------------------------------------------------------------------------------


def places(grid: Program, samples: int) -> dict[int, float]:
    """Programs to count (x fastest) and their weights (sum 1): all of a few, Gauss-Lobatto points of a large grid.

    The points are symmetric on the diagonal from the first program to the last.  Their weights integrate polynomials of
    each axis exactly, so the average is right if work grows along an axis, as in causal attention.  An axis of two
    programs has no middle: both are taken, because the last one may have less work.
    """
    programs = math.prod(grid)
    if programs <= samples:
        return dict.fromkeys(range(programs), 1 / max(1, programs))
    weights: dict[int, float] = defaultdict(float)
    for place, weight in _lobatto(max(2, samples)):
        for x, y, z in itertools.product(*(range(2) if n == 2 else [int(place * (n - 1) + 0.5)] for n in grid)):
            weights[x + grid[0] * (y + grid[1] * z)] += weight / 2 ** grid.count(2)
    return weights


def has_roles(counters: Collection[Counter]) -> bool:
    """Whether programs write to different buffers, so that the few of `places` do not show how many have each role.

    Programs that write nothing have no role.
    """
    return len({_written(c) for c in counters} - {frozenset()}) > 1


def some_idle(counters: Collection[Counter]) -> bool:
    """Whether some programs write nothing and others do, as in a grid that is larger than the work."""
    return len({_written(c) for c in counters}) > 1


def some_write_less(counters: Iterable[Counter]) -> bool:
    """Whether programs write different numbers of bytes, such as those of a last block that is cut off."""
    return len({sum(s.size for kind, _, s in c.footprint if kind != "load") for c in counters}) > 1


def _mean_cost(counters: Collection[Counter]) -> float:
    """What counting a program like these costs."""
    return math.fsum(c.cost for c in counters) / len(counters)


def _written(counter: Counter) -> frozenset[int]:
    return frozenset(buffer for kind, buffer, spans in counter.footprint if kind != "load" and spans.starts.size)


def spread(programs: int, pairs: int = SPREAD) -> dict[int, float]:
    """Programs all over the grid, with equal weights: by the golden ratio, and in pairs, as roles often alternate."""
    found = {n for i in range(pairs) for n in _pair(int(i * GOLDEN % 1 * programs), programs)}
    return dict.fromkeys(sorted(found), 1 / len(found))


def _pair(number: int, programs: int) -> tuple[int, int]:
    return (number, number ^ 1) if number ^ 1 < programs else (number, number)


def window(programs: int) -> list[int]:
    """Programs from the middle of the grid, at most WINDOW apart, that show what neighbours share."""
    first = max(0, programs - WINDOW) // 2
    return sorted({first + offset * min(WINDOW, programs) // WINDOW for offset in OFFSETS})


def partners(grid: Program, number: int) -> list[int]:
    """Programs half a grid from `number`, and along each axis the greatest power of two away that fits.

    A kernel that takes the program number modulo a power of two, or half the grid, does the same work in both.
    """
    programs, step = math.prod(grid), 1
    found = [(number + programs // 2) % programs]
    for size in grid:
        at, far = number // step % size, 1 << (size - 1).bit_length() >> 1
        if at + far < size:
            found.append(number + far * step)
        elif at >= far:
            found.append(number - far * step)
        step *= size
    return [n for n in found if n != number]


def _with_partners(grid: Program, numbers: Sequence[int]) -> list[int]:
    """These programs and all their partners, in rising order."""
    return sorted({n for number in numbers for n in (number, *partners(grid, number))})


def _lobatto(count: int) -> list[tuple[float, float]]:
    """Positions in 0..1 and weights (sum 1) of Gauss-Lobatto quadrature with `count` >= 2 points."""
    legendre = np.polynomial.legendre.Legendre.basis(count - 1)
    positions = np.concatenate(([-1.0], np.sort(legendre.deriv().roots().real) if count > 2 else [], [1.0]))
    weights = 1.0 / (count * (count - 1) * legendre(positions) ** 2)
    return [(float(p + 1) / 2, float(w)) for p, w in zip(positions, weights / weights.sum(), strict=True)]


def _blocks(grid: Program, sizes: Sequence[int], seen: Mapping[int, Counter]) -> Iterator[StoreBlock]:
    """The block of each buffer in which all of these programs store the same one.  sizes: bytes of the buffers."""
    if any(c.cut_off or c.uneven or not all(sure for _, _, sure in c.stored) for c in seen.values()):
        return
    footprints = {number: _footprints(counter) for number, counter in seen.items()}
    written = {key for parts in footprints.values() for key in parts if key[1] != "load"}
    nothing = Spans.union([])
    for buffer, kind in sorted(written):
        if kind == "store" and (buffer, "atomic") not in written and 0 <= buffer < len(sizes):
            stored = {number: parts.get((buffer, kind), nothing) for number, parts in footprints.items()}
            first = (buffer + 1) << BUFFER_SHIFT
            stored = {number: Spans(spans.starts - first, spans.ends - first) for number, spans in stored.items()}
            if block := block_of(buffer, sizes[buffer], grid, stored):
                yield block


# --- from programs to the launch -------------------------------------------------------------------------------------


def summary(
    kernel: str,
    sizes: Sequence[int],
    programs: int,
    samples: Mapping[tuple[int, float], Counter],
    near: Sequence[Counter],
    far: Sequence[Counter],
) -> LaunchTrace:
    """The trace of a launch of `programs` programs.

    sizes: bytes of each buffer.
    samples: (program, weight) -> its counts; the weights sum to 1.
    near: programs within WINDOW of each other.  far: programs that are farther apart.
    """
    counters = list(samples.values())
    weights = [weight for _, weight in samples]
    mean: dict[tuple, float] = defaultdict(float)
    for weight, counter in zip(weights, counters, strict=True):
        for key, count in counter.counts.items():
            mean[key] += weight * count
    mean = defaultdict(float, {key: float(f"{count:.12g}") for key, count in mean.items()})  # 1, not 0.9999...
    elements = [_elements(c.counts) for c in counters]
    average = math.fsum(w * x for w, x in zip(weights, elements, strict=True))
    return LaunchTrace(
        kernel=kernel,
        programs=programs,
        sampled=len(counters),
        ops=_rows(mean, "ops"),
        accesses=_rows(mean, "access"),
        dots=_rows(mean, "dot"),
        reductions=tuple((k, *row) for k in ("reduce", "scan") for row in _rows(mean, k)),  # type: ignore[misc]
        rounds=_rows(mean, "rounds"),
        traffic=_traffic(sizes, programs, weights, counters, near, far, mean),
        busiest=max(elements) / average if average else 1.0,
        truncated=any(c.cut_off or c.uneven for c in counters),
        roles=has_roles(counters),
        met=any(c.met for c in counters),
        astray=any(c.astray for c in (*counters, *near, *far)),
        guided=any(c.guided for c in (*counters, *near, *far)),
        reads_astray=any(c.reads_astray for c in (*counters, *near, *far)),
        cut_off=any(c.cut_off for c in counters),
    )


def _rows(mean: Mapping[tuple, float], kind: str) -> tuple:
    rows = [(*key[1:], count) for key, count in mean.items() if key[0] == kind]
    return tuple(sorted(rows, key=lambda row: tuple(map(str, row))))


def _elements(counts: Mapping[tuple, float]) -> float:
    """Elements that a program operates on, loads, stores and multiplies, to compare programs."""
    total = 0.0
    for key, count in counts.items():
        if key[0] in ("ops", "access"):
            total += count * key[2]
        elif key[0] == "dot":
            total += count * key[1] * key[2] * key[3] / 64
    return total


def _traffic(
    sizes: Sequence[int],
    programs: int,
    weights: Sequence[float],
    counters: Sequence[Counter],
    near: Sequence[Counter],
    far: Sequence[Counter],
    mean: Mapping[tuple, float],
) -> tuple[Traffic, ...]:
    """Traffic by (buffer, kind), extrapolated to the grid."""
    sampled, neighbours = ([_footprints(c) for c in group] for group in (counters, near))
    nothing = Spans.union([])
    found = []
    for buffer, kind in sorted({key for t in sampled for key in t}):
        size = sizes[buffer] if 0 <= buffer < len(sizes) else math.inf
        extents = []
        for unit in (1, SECTOR):
            sets = [t.get((buffer, kind), nothing).blocks(unit) for t in sampled]
            beside = [t[buffer, kind].blocks(unit) for t in neighbours if (buffer, kind) in t]
            extents.append(_extent(programs, _mean(weights, [s.size for s in sets]), sets, beside, size))
        by_byte, by_sector = extents
        found.append(
            Traffic(
                buffer=buffer,
                kind=kind,
                requested=programs * mean["bytes", kind, buffer],
                sectors=programs * mean["sectors", kind, buffer],
                again=programs * mean["again", kind, buffer],
                once=by_sector.once,
                touched=min(by_byte.once, size),
                unrepeated=min(by_byte.once * (1 - (_repeated(buffer, far) if kind == "store" else 0)), size),
                shared=by_sector.shared,
                distinct=max(by_sector.distinct, by_byte.distinct),
            )
        )
    return tuple(found)


class _Extent(NamedTuple):
    once: float
    shared: float
    distinct: float


def _extent(programs: int, mean: float, sets: Sequence[Spans], beside: Sequence[Spans], limit: float) -> _Extent:
    """The footprint of all programs, from their mean size.

    sets: footprints of samples of the grid.  beside: footprints of programs near each other.  limit: bytes of the
    buffer.
    """
    shared = _shared(beside)
    distinct = float(Spans.union(sets).size)
    if len(sets) < programs:
        windows = programs / min(programs, WINDOW)
        sliding = union(mean, shared, programs / windows) * windows
        drawn = _drawn(mean, min(shared, _shared(sets)), programs)
        distinct = max(distinct, min(sliding, drawn, limit))
    return _Extent(programs * mean, shared, distinct)


def _repeated(buffer: int, programs: Sequence[Counter]) -> float:
    """Part of the bytes these programs store to a buffer that others among them certainly store too, 0 to 1."""
    every = [Spans.union(s for b, s, _ in c.stored if b == buffer) for c in programs]
    certain = [Spans.union(s for b, s, sure in c.stored if b == buffer and sure) for c in programs]
    total = sum(s.size for s in every)
    return (sum(s.size for s in certain) - Spans.union(certain).size) / total if total else 0.0


def _mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return float(f"{math.fsum(w * v for w, v in zip(weights, values, strict=True)):.12g}")


def _footprints(counter: Counter) -> dict[tuple[int, str], Spans]:
    parts: dict[tuple[int, str], list[Spans]] = defaultdict(list)
    for kind, buffer, spans in counter.footprint:
        if spans.starts.size:
            parts[buffer, kind].append(spans)
    return {key: Spans.union(p) for key, p in parts.items()}


def _shared(sets: Sequence[Spans]) -> float:
    """Part of one set that another one has too, on average over all pairs, 0 to 1."""
    both = either = 0.0
    for a, b in itertools.combinations(sets, 2):
        if a.starts.size and b.starts.size:
            both += a.size + b.size - Spans.union((a, b)).size
            either += (a.size + b.size) / 2
    return both / either if either else 0.0


def _drawn(size: float, shared: float, count: float) -> float:
    """Footprint of `count` programs if theirs are random samples of size / shared bytes, as their overlap suggests.

    This is the Lincoln-Petersen estimate of capture and recapture.  It is right for gathers and for tables that all
    programs read.
    """
    return size * (1 - (1 - shared) ** count) / shared if shared > 0 else math.inf


def _integer_contents(plan: LaunchPlan, files: Mapping[int, Path]) -> dict[int, np.ndarray]:
    """The bytes of the buffers that hold the integer arguments in `files` (argument index -> .npy), by buffer."""
    contents = {}
    for index, path in files.items():
        ref = plan.inputs[index]
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(ref, TensorRef) or values.shape != ref.shape:
            continue
        memory = np.zeros(plan.buffers[ref.buffer].nbytes, np.uint8)
        window = memory.view(values.dtype)[ref.offset :]
        strides = tuple(s * values.dtype.itemsize for s in ref.strides)
        np.lib.stride_tricks.as_strided(window, ref.shape, strides)[...] = values
        contents[ref.buffer] = memory
    return contents

"""Verification at full size without a GPU: a few programs of every launch, on real inputs, against the reference.

A case is executed as a whole only at its size for a CPU.  At its full size some programs of each launch are executed,
drawn by a key that the candidate does not know, and what they store in the outputs is compared with the float64
reference there (`fitness.verification.slices`).  So branches on sizes, second turns of loops, indices that overflow and
kernels that are launched at large sizes only are seen.

Not compared: what depends on programs that are not executed (`fitness.verification.validity`), such as sums by atomics;
outputs along whose axes the reference cannot be cut, if the whole of it takes too long; plans with operators of
PyTorch; and tasks whose reference is the seed kernel.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo.errors import EvoError
from evo.records import Case, Verdict
from fitness import oracle
from fitness.estimation.trace import LaunchWork
from fitness.memory import DTYPES, Layout
from fitness.plan import ITEMSIZE, Launch, LaunchPlan, Op, PlanError, TensorRef, to_json
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.scratch import LeftError, opened
from fitness.stages import Stop, expect_ok
from fitness.task import Task
from fitness.verification.interpret import LEFT_BYTES, ROW_BYTES
from fitness.verification.slices import Part, Slices
from fitness.verification.verify import Executable, check_accesses, check_stores

INPUT_BYTES = 1 << 29  # of the inputs of a case, which are kept for as long as the task is searched
MEMORY_BYTES = 1 << 31  # of all buffers of a plan
FILE_BYTES = 1 << 36  # what the file of inputs claims to have, most of it never written: any plan can be mapped on it
PLACES = 6  # in a grid, drawn once a run: what the reference gives there is computed once
ROUNDS = 4  # programs of a launch, at most
ALL = 4  # a launch of so few programs is executed as a whole
# What the programs of a candidate may cost together (`LaunchWork.cost`); the first program of each case may cost more.
COST, FIRST_COST = 12_000, 60_000
ELEMENTS = 4096  # of an output, compared of one program


@dataclass(frozen=True)
class _FullCase:
    """A case whose inputs are kept: in memory for the reference, in a file for jobs."""

    case: Case
    arguments: tuple[Any, ...]
    file: Path


@dataclass(frozen=True)
class _Sample:
    """Programs of each launch of a case's plan, as numbers (x fastest)."""

    full: _FullCase
    plan: LaunchPlan
    choice: list[int]
    programs: list[list[int]] = field(default_factory=list)


class Sampled:
    """Executes programs at full size.  Thread-safe after `prepare`."""

    def __init__(self, task: Task, zygote: Zygote, folder: Path, secret: str) -> None:
        """folder: an existing folder for the inputs; secret: keys the inputs and the places in a grid."""
        self._task, self._zygote, self._folder = task, zygote, folder
        self._key = oracle.key_of(secret)
        random = np.random.Generator(np.random.PCG64(self._key))
        self._places = random.random(PLACES).tolist()
        self._slices = Slices(task) if task.reference is not None else None
        self._cases: list[_FullCase] = []
        self._stored_by_seed: set[int] = set()  # arguments
        self.left_out: dict[str, str] = {}  # why cases are not sampled, by name

    def prepare(
        self, seed: Executable, work: Mapping[str, Sequence[LaunchWork]], scratch: Path, limits: Limits
    ) -> None:
        """Draws the inputs.  Cases at which the seed kernel itself does not pass are left out."""
        if self._slices is None:
            return
        for number, case in enumerate(self._task.cases):
            full = self._full(case, seed.plans[case.name], number)
            if full is None:
                self.left_out[case.name] = f"its inputs take more than {INPUT_BYTES >> 20} MiB"
            elif why := self._failure(full, seed, work, scratch, limits):
                self.left_out[case.name] = why
            else:
                self._cases.append(full)

    def check(
        self, candidate: Executable, work: Mapping[str, Sequence[LaunchWork]], key: str, scratch: Path, limits: Limits
    ) -> None:
        """Executes programs of the candidate and compares what they store.  Raises Stop.

        work: of each launch, by case; key: draws which programs.
        """
        random = np.random.Generator(np.random.PCG64(oracle.key_of(f"{self._key}:{key}")))
        self._execute(self._drawn(self._cases, candidate, work, random), candidate, work, random, scratch, limits)

    # --- inputs ------------------------------------------------------------------------------------------------------

    def _full(self, case: Case, plan: LaunchPlan, number: int) -> _FullCase | None:
        """The case with its inputs, None if they are too large."""
        inputs = [b for b in plan.buffers if b.input is not None]
        if sum(b.nbytes for b in inputs) > INPUT_BYTES:
            return None
        arguments = oracle.make_inputs(self._task, case, self._key)
        layout = Layout(LaunchPlan(tuple(inputs), plan.inputs, (), "none", ()))
        file = self._folder / f"inputs-{number}"
        with open(file, "wb+") as opened:
            opened.truncate(FILE_BYTES)
            with mmap.mmap(opened.fileno(), layout.total) as memory:
                layout.poison(memory)
                layout.write_inputs(memory, arguments)
        return _FullCase(case, arguments, file)

    def _failure(
        self,
        full: _FullCase,
        seed: Executable,
        work: Mapping[str, Sequence[LaunchWork]],
        scratch: Path,
        limits: Limits,
    ) -> str:
        """Why the seed kernel does not pass, "" if it does."""
        random = np.random.Generator(np.random.PCG64(self._key))
        try:
            self._execute(self._drawn([full], seed, work, random), seed, work, random, scratch, limits)
        except (Stop, EvoError) as error:
            return str(error)
        return ""

    # --- which programs ----------------------------------------------------------------------------------------------

    def _drawn(
        self,
        cases: Sequence[_FullCase],
        candidate: Executable,
        work: Mapping[str, Sequence[LaunchWork]],
        random: np.random.Generator,
    ) -> list[_Sample]:
        """Programs for each case: the last one, the first one and others, in an order that is drawn, while they cost
        little.
        """
        samples = []
        for full in cases:
            name = full.case.name
            plan = candidate.plans[name]
            if _can_be_sampled(plan):
                samples.append(_Sample(full, plan, list(candidate.choices[name])))
        places = {id(s): self._order(random) for s in samples}
        rounds: dict[int, list[float]] = {id(s): [] for s in samples}
        spent = 0.0
        for turn in range(ROUNDS):
            for i in random.permutation(len(samples)):
                sample = samples[i]
                cost = _cost(sample.plan, sample.choice, work[sample.full.case.name])
                if spent + cost <= (FIRST_COST if turn == 0 else COST):
                    spent += cost
                    rounds[id(sample)].append(places[id(sample)][turn])
        for sample in samples:
            sample.programs.extend(_programs(sample.plan, sample.choice, rounds[id(sample)]))
        return [s for s in samples if rounds[id(s)]]

    def _order(self, random: np.random.Generator) -> list[float]:
        """Places in a grid, from 0 to 1: the last program comes first or second."""
        drawn = [self._places[i] for i in random.permutation(PLACES)]
        first = [1.0, drawn[0]] if random.random() < 0.5 else [drawn[0], 1.0]
        return [*first, 0.0, drawn[1]]

    # --- execution ---------------------------------------------------------------------------------------------------

    def _execute(
        self,
        samples: Sequence[_Sample],
        candidate: Executable,
        work: Mapping[str, Sequence[LaunchWork]],
        random: np.random.Generator,
        scratch: Path,
        limits: Limits,
    ) -> None:
        if not samples:
            return
        payload = {
            "source": candidate.source,
            "constants": dict(candidate.constants),
            "runs": [self._payload(s, work, f"stored-{i}") for i, s in enumerate(samples)],
        }
        done = self._zygote.run("interpret", payload, scratch=scratch, limits=limits, shared=self._folder)
        value = expect_ok("verify", done)
        for i, sample in enumerate(samples):
            where = _where(sample)
            check_accesses(where, value["notes"][i])
            stored = set(value["stored"][i])
            if candidate.source == self._task.seed_source:
                self._stored_by_seed |= stored
            check_stores(self._task, where, stored, self._stored_by_seed)
            try:
                left = _left(scratch / f"stored-{i}", value["spans"][i])
            except LeftError as error:
                raise Stop("verify", Verdict.RUNTIME_ERROR, f"{where}: its results were replaced: {error}") from error
            self._compare(sample, left, random, where)

    def _payload(self, sample: _Sample, work: Mapping[str, Sequence[LaunchWork]], name: str) -> dict[str, Any]:
        try:
            Layout(sample.plan).checked_inputs(sample.full.arguments)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"{_where(sample)}: {error}") from error
        return {
            "plan": to_json(sample.plan),
            "choice": sample.choice,
            "inputs": str(sample.full.file),
            "programs": sample.programs,
            "costs": [launch.cost for launch in work[sample.full.case.name]],
            "stores": [launch.written for launch in work[sample.full.case.name]],
            "stored": name,
            "label": _where(sample),
        }

    def _compare(self, sample: _Sample, left: _Left, random: np.random.Generator, where: str) -> None:
        assert self._slices is not None
        plan, full = sample.plan, sample.full
        layout = Layout(plan)
        refs = [*plan.outputs, *(plan.inputs[i] for i in plan.tensors_among(self._task.written))]
        for program in left.programs:
            for output, ref in enumerate(refs):
                at, values = _elements(ref, *left.within(program, layout, ref.buffer))
                chosen = _fewer(at, random, [axis.dim for axis in self._slices.axes[output]])
                if not chosen.size:
                    continue
                part = self._slices.expected(full.case, full.arguments, output, ref.shape, at[chosen], random)
                if part is not None and (wrong := _wrong(ref, part, at[chosen], values[chosen])):
                    label = f"output {output}" if len(refs) > 1 else "output"
                    raise Stop("verify", Verdict.WRONG, f"{where}: {label} is wrong at {wrong}")


def _where(sample: _Sample) -> str:
    """What messages call the execution."""
    return f"case {sample.full.case.name} ({sample.full.case.role}) at its full size"


def _can_be_sampled(plan: LaunchPlan) -> bool:
    """Whether memory and operators of the plan can be borne, and its inputs are where the file has them."""
    inputs = [b for b, buffer in enumerate(plan.buffers) if buffer.input is not None]
    return (
        inputs == list(range(len(inputs)))
        and [plan.buffers[b].input for b in inputs] == sorted(plan.buffers[b].input or 0 for b in inputs)
        and Layout(plan).total <= MEMORY_BYTES
        and not any(isinstance(step, Op) for step in plan.steps)
    )


def _grids(plan: LaunchPlan, choice: Sequence[int]) -> list[int]:
    """Programs of each launch."""
    launches = (step for step in plan.steps if isinstance(step, Launch))
    return [math.prod(launch.configs[c].grid) for launch, c in zip(launches, choice, strict=True)]


def _cost(plan: LaunchPlan, choice: Sequence[int], work: Sequence[LaunchWork]) -> float:
    """Of one program of each launch, or of all if they are few."""
    sizes = _grids(plan, choice)
    return sum(launch.cost * (size if size <= ALL else 1) for size, launch in zip(sizes, work, strict=True))


def _programs(plan: LaunchPlan, choice: Sequence[int], places: Sequence[float]) -> list[list[int]]:
    """The programs at these places of each grid; the same numbers in grids of the same size."""
    return [
        list(range(size)) if size <= ALL else sorted({min(size - 1, int(place * size)) for place in places})
        for size in _grids(plan, choice)
    ]


# --- what a job left -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Left:
    """What programs stored: rows of (program, first byte, end) as offsets in the plan's memory, and their bytes."""

    spans: np.ndarray
    values: np.ndarray

    @property
    def programs(self) -> list[int]:
        return np.unique(self.spans[:, 0]).tolist()

    def within(self, program: int, layout: Layout, buffer: int) -> tuple[np.ndarray, np.ndarray]:
        """(offsets in the buffer, values) of the bytes that a program stored there."""
        start = layout.offsets[buffer]
        ends = np.cumsum(self.spans[:, 2] - self.spans[:, 1])
        end = start + layout.plan.buffers[buffer].nbytes
        mine = (self.spans[:, 0] == program) & (self.spans[:, 1] >= start) & (self.spans[:, 2] <= end)
        rows = np.flatnonzero(mine)
        if not rows.size:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        lengths = self.spans[rows, 2] - self.spans[rows, 1]
        steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        offsets = np.repeat(self.spans[rows, 1] - start, lengths) + steps
        at = np.repeat(ends[rows] - lengths, lengths) + steps
        return offsets, self.values[at]


def _left(path: Path, size: int) -> _Left:
    """What a job says it left: so many spans, then their bytes.  Raises LeftError."""
    if type(size) is not int or not 0 <= size * ROW_BYTES <= LEFT_BYTES:
        raise LeftError(f"expected at most {LEFT_BYTES // ROW_BYTES} spans, got {size!r}")
    with opened(path) as file:
        data = file.read()
    spans = np.frombuffer(data, np.int64, count=3 * size).reshape(-1, 3)
    lengths = spans[:, 2] - spans[:, 1]
    if (spans < 0).any() or (lengths <= 0).any() or len(data) - ROW_BYTES * size != lengths.sum():
        raise LeftError("spans that do not fit their bytes")
    return _Left(spans, np.frombuffer(data, np.uint8, offset=ROW_BYTES * size))


def _elements(ref: TensorRef, offsets: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (n, dimensions) of the elements of a window of which every byte was stored, and their bytes (n, size)."""
    size = ITEMSIZE[ref.dtype]
    numbers = offsets // size - ref.offset
    whole, first, count = np.unique(numbers, return_index=True, return_counts=True)
    kept = (count == size) & (whole >= 0)
    whole, first = whole[kept], first[kept]
    at = np.zeros((whole.size, len(ref.shape)), np.int64)
    rest = whole.copy()
    for dim in sorted(range(len(ref.shape)), key=lambda d: -ref.strides[d]):
        if ref.shape[dim] > 1 and ref.strides[dim]:
            at[:, dim] = rest // ref.strides[dim]
            rest %= ref.strides[dim]
    inside = (rest == 0) & (at < np.array(ref.shape, np.int64)).all(axis=1)
    order = np.lexsort((offsets, numbers))  # bytes of an element beside each other
    sorted_values = values[order]
    starts = np.searchsorted(numbers[order], whole[inside])
    return at[inside], sorted_values[starts[:, None] + np.arange(size)]


def _fewer(at: np.ndarray, random: np.random.Generator, dims: Sequence[int]) -> np.ndarray:
    """Which of the elements are compared: a part of their indices along each separable axis, ELEMENTS at most."""
    chosen = np.arange(len(at))
    while chosen.size:
        used = {dim: np.unique(at[chosen, dim]) for dim in dims}
        if math.prod(len(u) for u in used.values()) <= ELEMENTS:
            break
        longest = max(used, key=lambda dim: len(used[dim]))
        kept = random.choice(used[longest], len(used[longest]) // 2, replace=False)
        chosen = chosen[np.isin(at[chosen, longest], kept)]
    return chosen if chosen.size <= ELEMENTS else random.choice(chosen, ELEMENTS, replace=False)


def _wrong(ref: TensorRef, part: Part, at: np.ndarray, values: np.ndarray) -> str | None:
    """Where and how far the values lie from what is expected, None if within the budget."""
    got = torch.from_numpy(np.ascontiguousarray(values)).reshape(-1)
    got = got.to(torch.bool) if ref.dtype == "bool" else got.view(DTYPES[ref.dtype])
    ratio, _ = oracle.compare_values("output", part.exact, got, part.budget)
    if ratio <= 1:
        return None
    if part.budget is None:
        worst = int((got != part.exact).nonzero()[0])
    else:
        error = (got.double() - part.exact).abs()
        worst = int(torch.where(torch.isfinite(error), error, math.inf).argmax())
    place = tuple(int(i) for i in at[worst])
    budget = "" if part.budget is None else f" (largest error allowed {part.budget.max:.3g})"
    return f"{place}: expected {part.exact[worst].item():.9g}, got {got[worst].item():.9g}{budget}"

"""Verifies at full size without a GPU: executes a few programs of every launch on real inputs.

A case is executed as a whole only at its size for a CPU. At its full size some elements of each output are drawn, by a
key that the candidate does not know.  The programs that store them are executed, as far as `fitness.interpreter.stores`
knows them; of other launches some programs are drawn.  All that they store in the outputs is compared with the float64
reference (`fitness.verify.slices`).  So are drawn elements that no program stores.

This shows wrong branches on sizes, wrong second iterations of loops, indices that overflow, unwritten elements and
kernels that are launched at large sizes only.

Not compared: what depends on programs that are not executed (`fitness.interpreter.validity`), such as sums by atomics;
outputs along whose axes the reference cannot be cut, if the whole of it takes too long; plans with operators of
PyTorch; and tasks whose reference is the seed kernel.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evo.core.errors import EvoError
from evo.core.records import Case, Verdict
from fitness.estimate.launch_trace import LaunchWork
from fitness.frontend.memory import DTYPES, Layout
from fitness.frontend.plan import ITEMSIZE, Copy, Fill, Launch, LaunchPlan, Op, PlanError, TensorRef, to_json
from fitness.frontend.stages import Stop, expect_ok
from fitness.interpreter.stores import LEFT_BYTES, ROW_BYTES, Grid, StoreBlock
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import LeftError, opened
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task
from fitness.verify import oracle
from fitness.verify.compare import compare_elements
from fitness.verify.slices import Slices
from fitness.verify.verify import Executable, check_accesses, check_stores

INPUT_BYTES = 1 << 29  # of the inputs of a case, which are kept as long as the task is searched.
MEMORY_BYTES = 1 << 31  # of all buffers of a plan.
FILE_BYTES = 1 << 36  # what the file of inputs claims to have, most of it never written: any plan can be mapped on it.
PLACES = 6  # drawn once a run: the reference computes them once.
DIMENSIONS = 8  # of an output that have places of their own.
ROUNDS = 4  # elements of an output, or programs of a launch, that are looked at.
MOST_WRITERS = 4  # programs that may store an element.
ALL = 4  # a launch of at most this number of programs is executed as a whole.
# What the programs of a candidate may cost together (`LaunchWork.cost`): those of the first turns, and all.
FIRST_TURNS, FIRST_COST, COST = 2, 30_000, 8_000
TRIES = 8  # each time with half of the elements, until the reference is cheap enough.
ELEMENTS = 4096  # of an output, compared of one program.


@dataclass(frozen=True)
class _FullCase:
    """A case whose inputs are kept: in memory for the reference, in a file for jobs."""

    case: Case
    variant: str  # of the inputs
    arguments: tuple[Any, ...]
    file: Path


class _Element(NamedTuple):
    """An element of an output: its index, and its first byte in the buffer."""

    output: int
    at: tuple[int, ...]
    byte: int


@dataclass(frozen=True)
class _Sample:
    """What is executed of a case: programs of each launch by their numbers (x fastest), for these elements."""

    full: _FullCase
    plan: LaunchPlan
    choice: list[int]
    work: Sequence[LaunchWork]
    outputs: Sequence[TensorRef]  # returned tensors in order, then written arguments
    programs: list[set[int]]
    elements: list[_Element] = field(default_factory=list)

    @property
    def grids(self) -> list[Grid]:
        return [launch.configs[c].grid for launch, c in zip(self.plan.launches, self.choice, strict=True)]

    def __str__(self) -> str:
        inputs = "" if self.full.variant == "normal" else f", inputs {self.full.variant!r}"
        return f"case {self.full.case.name} ({self.full.case.role}) at its full size{inputs}"


class Sampled:
    """Executes programs at full size.  Thread-safe after `prepare`."""

    def __init__(self, task: Task, zygote: Zygote, folder: Path, secret: str) -> None:
        """folder: an existing folder for the inputs; secret: keys the inputs and the places in a grid."""
        self._task, self._zygote, self._folder = task, zygote, folder
        self._key = oracle.key_of(secret)
        random = np.random.Generator(np.random.PCG64(self._key))
        self._places = random.random((PLACES, 1 + DIMENSIONS))  # of a program in its grid, of an element in its output
        self._slices = Slices(task) if task.reference is not None else None
        self._cases: list[_FullCase] = []
        self._stored_by_seed: set[int] = set()  # arguments
        # why cases are not sampled, by name and by variant of the inputs
        self.left_out: dict[tuple[str, str], str] = {}

    def prepare(
        self, seed: Executable, work: Mapping[str, Sequence[LaunchWork]], scratch: Path, limits: Limits
    ) -> None:
        """Draws the inputs.  Leaves out cases that the seed kernel itself does not pass."""
        found = self.draw_inputs(seed.plans)
        if not found or not self._failure(found, seed, work, scratch, limits):
            return
        self._cases = []
        for full in found:
            if why := self._failure([full], seed, work, scratch, limits):
                self.left_out[full.case.name, full.variant] = why
            else:
                self._cases.append(full)

    def draw_inputs(self, plans: Mapping[str, LaunchPlan]) -> list[_FullCase]:
        """Draws the inputs of all cases that are small enough, keeps and returns them.

        plans: by case, with the forms of the inputs.
        """
        found: list[_FullCase] = []
        if self._slices is None:
            return found
        for case in self._task.cases:
            # Some mistakes show on large numbers alone; holdout cases are mostly small.
            for variant in ("normal", "large") if case.role == "holdout" and self._task.stress else ("normal",):
                full = self._full(case, variant, plans[case.name])
                if full is None:
                    self.left_out[case.name, variant] = f"its inputs take more than {INPUT_BYTES >> 20} MiB"
                else:
                    found.append(full)
        self._cases = found
        return found

    def check(
        self, candidate: Executable, work: Mapping[str, Sequence[LaunchWork]], key: str, scratch: Path, limits: Limits
    ) -> None:
        """Executes programs of the candidate and compares what they store.  Raises Stop.

        work: of each launch, by case; key: draws which programs.
        """
        random = np.random.Generator(np.random.PCG64(oracle.key_of(f"{self._key}:{key}")))
        self._execute(self._drawn(self._cases, candidate, work, random), candidate, random, scratch, limits)

    # --- inputs ------------------------------------------------------------------------------------------------------

    def _full(self, case: Case, variant: str, plan: LaunchPlan) -> _FullCase | None:
        """Returns the case with its inputs, None if they are too large."""
        inputs = [b for b in plan.buffers if b.input is not None]
        if sum(b.nbytes for b in inputs) > INPUT_BYTES:
            return None
        arguments = oracle.make_inputs(self._task, case, self._key, variant)
        layout = Layout(LaunchPlan(tuple(inputs), plan.inputs, (), "none", ()))
        file = self._folder / f"{self._task.cases.index(case)}-{variant}"
        with open(file, "wb+") as opened:
            opened.truncate(FILE_BYTES)
            with mmap.mmap(opened.fileno(), layout.total) as memory:
                layout.poison(memory)
                layout.write_inputs(memory, arguments)
        return _FullCase(case, variant, arguments, file)

    def _failure(
        self,
        cases: Sequence[_FullCase],
        seed: Executable,
        work: Mapping[str, Sequence[LaunchWork]],
        scratch: Path,
        limits: Limits,
    ) -> str:
        """Returns why the seed kernel does not pass these cases, "" if it does."""
        random = np.random.Generator(np.random.PCG64(self._key))
        try:
            self._execute(self._drawn(cases, seed, work, random), seed, random, scratch, limits)
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
        """Draws elements and programs for each case: the last ones, then random ones while they cost little."""
        samples = []
        for full in cases:
            name = full.case.name
            plan, choice = candidate.plans[name], list(candidate.choices[name])
            if _can_be_sampled(plan):
                outputs = plan.compared(self._task.written)
                constant = {b for b, buffer in enumerate(plan.buffers) if buffer.input is not None}
                constant -= {ref.buffer for ref in outputs}
                launches = [replace(w, written=tuple(set(w.written) - constant)) for w in work[name]]
                samples.append(_Sample(full, plan, choice, launches, outputs, [set() for _ in plan.launches]))
        spent = 0.0
        for number in range(ROUNDS):
            for i in random.permutation(len(samples)):
                spent += _add(
                    samples[i], self._place(number, random), (FIRST_COST if number < FIRST_TURNS else COST) - spent
                )
        return [sample for sample in samples if any(sample.programs)]

    def _place(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Returns (1 + DIMENSIONS,) from 0 to 1, of a program in its grid and of an element along each dimension."""
        if number % 2:
            return self._places[random.integers(PLACES)]
        return np.full(1 + DIMENSIONS, 1.0 if number == 0 else 0.0)

    # --- execution ---------------------------------------------------------------------------------------------------

    def _execute(
        self,
        samples: Sequence[_Sample],
        candidate: Executable,
        random: np.random.Generator,
        scratch: Path,
        limits: Limits,
    ) -> None:
        if not samples:
            return
        payload = {
            "source": candidate.source,
            "constants": dict(candidate.constants),
            "runs": [self._payload(s, f"stored-{i}") for i, s in enumerate(samples)],
        }
        done = self._zygote.run("interpret", payload, scratch=scratch, limits=limits, shared=self._folder)
        value = expect_ok("verify", done)
        for i, sample in enumerate(samples):
            check_accesses(sample, value["notes"][i])
            stored = set(value["stored"][i])
            if candidate.source == self._task.seed_source:
                self._stored_by_seed |= stored
            check_stores(self._task, sample, stored, self._stored_by_seed)
            try:
                left = _left(scratch / f"stored-{i}", value["spans"][i])
            except LeftError as error:
                raise Stop("verify", Verdict.RUNTIME_ERROR, f"{sample}: its results were replaced: {error}") from error
            self._compare(sample, left, random)
            if not value["unknown"][i]:
                self._compare_unwritten(sample, left, random)

    def _payload(self, sample: _Sample, name: str) -> dict[str, Any]:
        try:
            Layout(sample.plan).checked_inputs(sample.full.arguments)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"{sample}: {error}") from error
        return {
            "plan": to_json(sample.plan),
            "choice": sample.choice,
            "inputs": str(sample.full.file),
            "programs": [sorted(numbers) for numbers in sample.programs],
            "work": [asdict(launch) for launch in sample.work],
            "stored": name,
            "label": str(sample),
        }

    def _compare(self, sample: _Sample, left: _Left, random: np.random.Generator) -> None:
        """Raises Stop if a stored value is not what is expected there."""
        layout = Layout(sample.plan)
        for program in left.programs:
            for output, ref in enumerate(sample.outputs):
                at, values = _elements(ref, *left.within(layout, ref.buffer, program))
                self._compare_elements(sample, output, at, values, random)

    def _compare_unwritten(self, sample: _Sample, left: _Left, random: np.random.Generator) -> None:
        """Raises Stop if no program stores a drawn element and it does not hold what was there before."""
        layout = Layout(sample.plan)
        for element in sample.elements:
            ref = sample.outputs[element.output]
            if element.byte in left.within(layout, ref.buffer)[0]:
                continue
            before = _before(sample, element)
            if before is None:
                label = self._label(sample, element.output)
                raise Stop("verify", Verdict.WRONG, f"{sample}: no program writes {label} at {element.at}")
            values = before.reshape(1).view(torch.uint8).numpy().reshape(1, -1)
            self._compare_elements(sample, element.output, np.array([element.at]), values, random)

    def _compare_elements(
        self, sample: _Sample, output: int, at: np.ndarray, values: np.ndarray, random: np.random.Generator
    ) -> None:
        assert self._slices is not None
        full, ref = sample.full, sample.outputs[output]
        dims = [axis.dim for axis in self._slices.axes[output]]
        chosen, most = _fewer(at, random, dims, ELEMENTS), ELEMENTS
        for _ in range(TRIES):
            if not chosen.size:
                return
            part = self._slices.expected(
                full.case, full.file.name, full.arguments, output, ref.shape, at[chosen], random
            )
            if part is not None:
                if wrong := compare_elements(part.exact, _values(ref, values[chosen]), part.budget, at[chosen]):
                    label = self._label(sample, output)
                    raise Stop("verify", Verdict.WRONG, f"{sample}: {label} is wrong at {wrong}")
                return
            most //= 2
            fewer = _fewer(at, random, dims, most)
            if fewer.size >= chosen.size:  # the same would take as long again
                return
            chosen = fewer

    def _label(self, sample: _Sample, output: int) -> str:
        """Returns what a message calls an output."""
        returned = len(sample.plan.outputs)
        if output >= returned:
            return f"output {self._task.writes[output - returned]!r}"
        return f"output {output}" if len(sample.outputs) > 1 else "output"


def _add(sample: _Sample, place: np.ndarray, room: float) -> float:
    """Adds an element of each output, and programs, at a place, unless they cost more than `room`.

    Returns their cost.
    """
    programs: list[set[int]] = [set() for _ in sample.programs]
    elements = []
    certain = set()  # launches for which the programs that store the elements are known
    for output, ref in enumerate(sample.outputs):
        writers = [i for i, launch in enumerate(sample.work) if ref.buffer in launch.written]
        block = sample.work[writers[0]].block(ref.buffer) if len(writers) == 1 else None
        if block is None or not ref.numel or not _written_last(sample, writers[0], ref.buffer):
            continue
        at = tuple(min(n - 1, int(place[1 + dim % DIMENSIONS] * n)) for dim, n in enumerate(ref.shape))
        for index in (at, *_unwritten(ref, block, sample.plan.buffers[ref.buffer].nbytes, place)):
            byte = (ref.offset + sum(i * s for i, s in zip(index, ref.strides, strict=True))) * ITEMSIZE[ref.dtype]
            storing = block.programs_at(byte)
            if len(storing) <= MOST_WRITERS:
                elements.append(_Element(output, index, byte))
                programs[writers[0]] |= set(storing)
        certain.add(writers[0])
    for i, grid in enumerate(sample.grids):
        size = math.prod(grid)
        if size <= ALL:
            programs[i] = set(range(size))
        elif i not in certain:
            programs[i].add(min(size - 1, int(place[0] * size)))
    new = [numbers - before for numbers, before in zip(programs, sample.programs, strict=True)]
    cost = math.fsum(launch.cost * len(numbers) for launch, numbers in zip(sample.work, new, strict=True))
    if cost > room:
        return 0.0
    for numbers, more in zip(sample.programs, new, strict=True):
        numbers |= more
    sample.elements.extend(elements)
    return cost


def _unwritten(ref: TensorRef, block: StoreBlock, size: int, place: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Yields the index of at most one element of the window that no program stores; `place` says which."""
    missing = block.missing(size)
    if missing is not None and missing.size:
        ends = np.cumsum(missing.ends - missing.starts)
        nth = min(int(place[0] * ends[-1]), int(ends[-1]) - 1)
        interval = int(np.searchsorted(ends, nth, side="right"))
        byte = int(missing.ends[interval] - (ends[interval] - nth)) // ITEMSIZE[ref.dtype] * ITEMSIZE[ref.dtype]
        at, _ = _elements(ref, np.arange(byte, byte + ITEMSIZE[ref.dtype]), np.zeros(ITEMSIZE[ref.dtype], np.uint8))
        yield from (tuple(index) for index in at.tolist())


def _written_last(sample: _Sample, launch: int, buffer: int) -> bool:
    """Returns whether no other step writes to the buffer after this launch."""
    steps = sample.plan.steps
    at = [i for i, step in enumerate(steps) if isinstance(step, Launch)][launch]
    return not any(isinstance(step, (Fill, Copy)) and step.dst.buffer == buffer for step in steps[at:])


def _before(sample: _Sample, element: _Element) -> torch.Tensor | None:
    """Returns what an element holds if no program stores it (0 dimensions); None if nothing wrote it."""
    ref = sample.outputs[element.output]
    steps = sample.plan.steps
    owner = sample.plan.buffers[ref.buffer].input
    found = None if owner is None else sample.full.arguments[owner][element.at]
    for step in steps:
        if isinstance(step, Fill) and step.dst.buffer == ref.buffer:
            found = torch.tensor(step.value).to(DTYPES[ref.dtype])
    return found


def _can_be_sampled(plan: LaunchPlan) -> bool:
    """Returns whether the plan's memory and operators are affordable and its inputs lie at their places in the file."""
    inputs = [b for b, buffer in enumerate(plan.buffers) if buffer.input is not None]
    return (
        inputs == list(range(len(inputs)))
        and [plan.buffers[b].input for b in inputs] == sorted(plan.buffers[b].input or 0 for b in inputs)
        and Layout(plan).total <= MEMORY_BYTES
        and not any(isinstance(step, Op) for step in plan.steps)
    )


# --- what a job left -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Left:
    """What programs stored: rows of (program, first byte, end) as offsets in the plan's memory, and their bytes."""

    spans: np.ndarray
    values: np.ndarray

    @property
    def programs(self) -> list[int]:
        return np.unique(self.spans[:, 0]).tolist()

    def within(self, layout: Layout, buffer: int, program: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (offsets in the buffer, values) of the bytes that a program, or any, stored there."""
        start = layout.offsets[buffer]
        ends = np.cumsum(self.spans[:, 2] - self.spans[:, 1])
        end = start + layout.plan.buffers[buffer].nbytes
        mine = (self.spans[:, 1] >= start) & (self.spans[:, 2] <= end)
        mine &= program is None or self.spans[:, 0] == program
        rows = np.flatnonzero(mine)
        if not rows.size:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        lengths = self.spans[rows, 2] - self.spans[rows, 1]
        steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        offsets = np.repeat(self.spans[rows, 1] - start, lengths) + steps
        at = np.repeat(ends[rows] - lengths, lengths) + steps
        return offsets, self.values[at]


def _left(path: Path, size: int) -> _Left:
    """Reads what a job says it left: `size` spans, then their bytes.  Raises LeftError."""
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
    """Returns indices (n, dimensions) of a window's elements that were stored whole, and their bytes (n, size)."""
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


def _fewer(at: np.ndarray, random: np.random.Generator, dims: Sequence[int], most: int) -> np.ndarray:
    """Chooses the elements to compare: at most `most`, from a part of their indices along the separable dimensions."""
    chosen = np.arange(len(at))
    while chosen.size:
        used = {dim: np.unique(at[chosen, dim]) for dim in dims}
        if math.prod(len(u) for u in used.values()) <= most:
            break
        longest = max(used, key=lambda dim: len(used[dim]))
        kept = random.choice(used[longest], len(used[longest]) // 2, replace=False)
        chosen = chosen[np.isin(at[chosen, longest], kept)]
    return chosen if chosen.size <= most else random.choice(chosen, most, replace=False)


def _values(ref: TensorRef, values: np.ndarray) -> torch.Tensor:
    """Returns bytes of elements, (n, size), as elements of the window's dtype, (n,)."""
    got = torch.from_numpy(np.ascontiguousarray(values)).reshape(-1)
    return got.to(torch.bool) if ref.dtype == "bool" else got.view(DTYPES[ref.dtype])

"""Executes plans on a file of buffers, launches by Triton's interpreter, so that their results can be checked.

A plan may also be executed for some programs of its launches only.  Such a program may load what programs of an earlier
launch store.  Those are found by the blocks that a launch's programs store (`fitness.interpreter.stores`).  If a launch
has no such block, the later program is left out, since its inputs are unknown.
"""

from __future__ import annotations

import functools
import math
import mmap
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import JITFunction

from evo.core.records import Verdict
from fitness.frontend import aten
from fitness.frontend.kernels import argument, get_kernel, load_kernels
from fitness.frontend.memory import FILE_NAME, Layout
from fitness.frontend.plan import Config, Copy, Fill, Launch, LaunchPlan, Op, Step, TensorRef, from_json
from fitness.interpreter.bounds import Array, Arrays, Notes, Place, Undefined
from fitness.interpreter.conflicts import ConcurrentMemory, Conflicts
from fitness.interpreter.delegation import WriteTracker
from fitness.interpreter.interpreter import Interpreter, Program, programs_of
from fitness.interpreter.spans import Spans
from fitness.interpreter.stores import LEFT_BYTES, ROW_BYTES, StoreBlock, position
from fitness.interpreter.validity import Missing, Validity
from fitness.sandbox.jobs import JobError

ATTEMPTS = 4  # launches in a chain, each of which needs programs of the one before.
MOST_PROGRAMS = 256  # programs that are added for one program.
MOST_COST = 6000.0  # of all programs that are added (`LaunchWork.cost`).
# The interpreter lacks something, or cannot express what the compiler accepted: a gap.
_GAPS = (NotImplementedError, AttributeError, TypeError, KeyError, NameError, RecursionError)
# Faults of a kernel that compiles (a false assumption, a misaligned descriptor).
_FAULTS = (AssertionError, ValueError, IndexError, ArithmeticError)


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Executes all steps of plans, in place, on files in `scratch`.

    payload: "source", "constants", and either "runs" or the keys of one run.  A run has
    - "plan": JSON
    - "choice": index of the configuration of each launch
    - "order" of the programs of a grid: "forward", "reverse" or "at once"
    - "buffers": name of the file, laid out by `frontend.memory.Layout`
    - "authors" (optional): name of a file of as many zeros, for `fitness.interpreter.delegation.WriteTracker`
    - "twin" (optional): the index of an earlier run that differs only in the order.  If the programs of that one were
      independent, this run is not executed.  If they used atomics, "at once" is not executed.
    - "zeros": whether undefined lanes are zeros (`fitness.interpreter.bounds`)

    A run with "programs" (of each launch, numbers of the programs to execute) executes only these, and programs of
    earlier launches that they need.  It has "inputs" (path of a file with the inputs, which is not changed) instead of
    "buffers", and also
    - "work": a LaunchWork of each launch
    - "label": the name of the run in messages
    - "stored": name of a file for the bytes that the programs stored

    Returns
    - "programs": how many were executed
    - "left_out": indices of the runs that were not executed
    - "notes": of each run the first "load" or "store" out of bounds, and the first "undefined" lanes, as [text, line]
    - "stored": of each run, positions of the entry's arguments that were stored to, with whatever values
    - "spans", "unknown": of each run with "programs" the number of spans in its file, and whether there may be more

    Raises JobError(RUNTIME_ERROR) for a kernel that fails, and JobError(UNSUPPORTED) for one that the interpreter
    cannot execute.
    """
    kernels = load_kernels(payload["source"], payload["constants"], scratch)
    count = 0
    orders: list[set[str]] = []  # of each run, other orders of its programs that may have other results.
    left_out: list[int] = []
    notes: list[dict[str, list]] = []
    spans: list[int] = []
    unknown: list[bool] = []
    stored: list[list[int]] = []
    with Interpreter() as interpreter:
        common = kernels, interpreter, scratch
        for number, run in enumerate(payload.get("runs") or [payload]):
            earlier = run.get("twin")
            if earlier is not None and run["order"] not in orders[earlier]:
                left_out.append(number)
                orders.append(set())
                notes.append({})
                stored.append([])
                continue
            if "programs" in run:
                sampled = _execute_samples(run, *common)
                spans.append(sampled.leave(scratch / run["stored"]))
                unknown.append(sampled.unknown)
                made: _Run = sampled
            else:
                made = _Run(run, *common)
                made.execute()
            count += made.programs
            orders.append(made.orders_to_try())
            notes.append(made.notes)
            stored.append(sorted(interpreter.builder.stored))
    return {
        "programs": count,
        "left_out": left_out,
        "notes": notes,
        "spans": spans,
        "unknown": unknown,
        "stored": stored,
    }


class _Run:
    """One execution of one plan."""

    def __init__(
        self, run: Mapping[str, Any], kernels: Mapping[str, JITFunction], interpreter: Interpreter, scratch: Path
    ) -> None:
        self.plan: LaunchPlan = from_json(run["plan"])
        self.layout = Layout(self.plan)
        self.memory = self._attached(run, scratch)
        self.choice, self.order = run["choice"], run.get("order", "forward")
        self.kernels, self.interpreter = kernels, interpreter
        memory = np.frombuffer(self.memory, np.uint8)
        first = memory.ctypes.data
        self.conflicts = self._watch(run, memory, first)
        interpreter.builder.memory = first, first + self.layout.total
        interpreter.builder.conflicts = self.conflicts
        interpreter.builder.arrays = _arrays(self.layout, first)
        interpreter.builder.undefined = Undefined(zeros=run.get("zeros", False))
        self.notes: dict[str, list] = {}
        interpreter.builder.arguments = [
            (first + start, first + start + buffer.nbytes, buffer.input)
            for start, buffer in zip(self.layout.offsets, self.plan.buffers, strict=True)
            if buffer.input is not None
        ]
        interpreter.builder.stored = set()
        self.authors = self._authors(scratch / run["authors"]) if "authors" in run else None
        if len(self.choice) != len(self.plan.launches):
            raise ValueError(f"{len(self.plan.launches)} launches need as many choices, got {len(self.choice)}")

    def _attached(self, run: Mapping[str, Any], scratch: Path) -> mmap.mmap:
        return self.layout.attach(scratch, run.get("buffers", FILE_NAME))

    def _watch(self, run: Mapping[str, Any], memory: np.ndarray, first: int) -> Conflicts | ConcurrentMemory | Validity:
        return (
            ConcurrentMemory(memory, first) if self.order == "at once" else Conflicts(first, first + self.layout.total)
        )

    def _authors(self, path: Path) -> WriteTracker:
        data = torch.frombuffer(self.memory, dtype=torch.uint8)
        authors = torch.from_file(str(path), shared=True, size=self.layout.total, dtype=torch.uint8)
        return WriteTracker(self.layout, data, authors)

    def orders_to_try(self) -> set[str]:
        """The other orders of programs that may have other results."""
        if not isinstance(self.conflicts, Conflicts) or not self.conflicts.found:
            return set()
        return {"reverse"} if self.conflicts.gave_up else {"reverse", "at once"}

    def execute(self) -> int:
        """Executes all steps; returns the number of executed programs."""
        choices, self.programs = iter(self.choice), 0
        for step in self.plan.steps:
            choice = next(choices) if isinstance(step, Launch) else 0
            if self.authors is None:
                self._execute(step, choice)
            else:
                self.authors.follow(step, functools.partial(self._execute, step, choice))
        return self.programs

    def _execute(self, step: Step, choice: int) -> None:
        match step:
            case Fill():
                self._note_store(step.dst)
                self._view(step.dst).fill_(step.value)
            case Copy():
                self._note_store(step.dst)
                self._view(step.dst).copy_(self._view(step.src))
            case Op():
                for output in step.outputs:
                    self._note_store(output)
                aten.execute(step, self._view, torch.device("cpu"))
            case Launch():
                self.programs += self._launch(step, choice)

    def _note_store(self, ref: TensorRef) -> None:
        argument = self.plan.buffers[ref.buffer].input
        if argument is not None and ref.numel:
            self.interpreter.builder.stored.add(argument)

    def _view(self, ref: TensorRef) -> torch.Tensor:
        return self.layout.view(self.memory, ref)

    def _launch(self, launch: Launch, choice: int) -> int:
        config = launch.configs[choice]
        kernel = get_kernel(self.kernels, launch.kernel, launch.line)
        args = {name: self._kernel_argument(value) for name, value in config.args.items()}
        notes = self.interpreter.builder.notes = Notes()
        try:
            programs = self.interpreter.launch(kernel, args, config.grid, self._programs(config))
        except _GAPS as error:
            message = f"kernel {launch.kernel}: Triton's interpreter cannot execute it: {_text(error)}"
            raise JobError(Verdict.UNSUPPORTED, message, _line_of(error, kernel) or launch.line) from error
        except _FAULTS as error:
            message = f"kernel {launch.kernel}: {_text(error)}"
            raise JobError(Verdict.RUNTIME_ERROR, message, _line_of(error, kernel) or launch.line) from error
        for kind, (what, places) in notes.found.items():
            line = _line(places, kernel) or launch.line
            self.notes.setdefault(kind, [f"kernel {launch.kernel}: {what}", line])
        return programs

    def _programs(self, config: Config) -> Iterable[Program]:
        return programs_of(config.grid, self.order)

    def _kernel_argument(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return self._view(value)
        if isinstance(value, tuple):
            return tuple(self._kernel_argument(v) for v in value)
        return argument(value, self.kernels)


class _SampledRun(_Run):
    """An execution of some programs of each launch, on memory of its own."""

    conflicts: Validity
    unknown = False  # Whether the programs may have stored more than `leave` wrote.

    def __init__(
        self,
        run: Mapping[str, Any],
        numbers: Sequence[Sequence[int]],
        kernels: Mapping[str, JITFunction],
        interpreter: Interpreter,
        scratch: Path,
    ) -> None:
        """numbers: the programs of each launch."""
        super().__init__(run, kernels, interpreter, scratch)
        self._numbers = iter(numbers)
        self._work, self._label = iter(run["work"]), run["label"]

    def _attached(self, run: Mapping[str, Any], scratch: Path) -> mmap.mmap:
        """Maps the inputs, and zeros that take no memory until they are written."""
        with open(run["inputs"], "rb") as file:
            return mmap.mmap(file.fileno(), self.layout.total, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)

    def _watch(self, run: Mapping[str, Any], memory: np.ndarray, first: int) -> Validity:
        return Validity(self.layout, first)

    def _execute(self, step: Step, choice: int) -> None:
        super()._execute(step, choice)
        if isinstance(step, Fill):
            self.conflicts.write(step.dst)
        elif isinstance(step, Copy):
            self.conflicts.write(step.dst, [step.src])

    def _launch(self, launch: Launch, choice: int) -> int:
        config = launch.configs[choice]
        self._chosen = next(self._numbers)
        everything = len(self._chosen) == math.prod(config.grid)
        self.conflicts.expect(set(next(self._work)["written"]), everything)
        try:
            return super()._launch(launch, choice)
        except JobError as error:
            raise JobError(error.verdict, f"{self._label}: {error.message}", error.line) from error

    def _programs(self, config: Config) -> Iterable[Program]:
        for number in self._chosen:
            self.conflicts.number = number
            yield position(number, config.grid)

    def leave(self, path: Path) -> int:
        """Writes the bytes that the programs stored and that are valid in the end; returns the number of spans."""
        memory, room = np.frombuffer(self.memory, np.uint8), LEFT_BYTES
        rows: list[tuple[int, int, int]] = []
        for number, program in enumerate(self.conflicts.programs):
            stored = self.conflicts.kept(program.elements)
            kept = [Spans.of_elements(e.offsets, e.size) for e in stored if e.offsets.size]
            spans = Spans.union(kept)
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True):
                room -= ROW_BYTES + end - start
                if room >= 0:
                    rows.append((number, start, end))
        self.unknown = bool(self.conflicts.missing) or room < 0
        with open(path, "wb") as file:
            file.write(np.array(rows, np.int64).tobytes())
            for _, start, end in rows:
                file.write(memory[start:end].tobytes())
        return len(rows)


def _execute_samples(run: Mapping[str, Any], *common: Any) -> _SampledRun:
    """Executes the programs of a run, and those of earlier launches that they need.

    Each attempt starts from the beginning, with the programs that the one before lacked.
    """
    numbers = [set(chosen) for chosen in run["programs"]]
    blocks = [{b["buffer"]: StoreBlock.from_dict(b) for b in launch["blocks"]} for launch in run["work"]]
    room = MOST_COST
    for _ in range(ATTEMPTS):
        made = _SampledRun(run, [sorted(chosen) for chosen in numbers], *common)
        made.execute()
        before = sum(map(len, numbers))
        for missing in made.conflicts.missing:
            at, new = _producers(missing, made.conflicts, blocks)
            new -= numbers[at]
            if len(new) * run["work"][at]["cost"] <= room:
                room -= len(new) * run["work"][at]["cost"]
                numbers[at] |= new
        if sum(map(len, numbers)) == before:
            break
    return made


def _producers(missing: Missing, memory: Validity, blocks: Sequence[Mapping[int, StoreBlock]]) -> tuple[int, set[int]]:
    """The last earlier launch that stores the missing bytes, and its programs that do; no program if unknown."""
    buffer = memory.buffer_of(int(missing.offsets[0]))
    at = max((launch for launch in range(missing.launch) if buffer in blocks[launch]), default=0)
    block = blocks[at].get(buffer)
    found: set[int] = set()
    left = np.unique(missing.offsets) - memory.offset_of(buffer)
    while block is not None and left.size and len(found) < MOST_PROGRAMS:
        numbers = block.programs_at(int(left[0]))
        if not numbers:
            return at, set()
        found |= set(numbers)
        for spans in map(block.of, numbers):
            index = np.searchsorted(spans.starts, left, side="right") - 1
            left = left[(index < 0) | (left >= spans.ends[index])]
    return at, found


def _arrays(layout: Layout, first: int) -> Arrays:
    """All arrays of a plan; `first`: address of its memory."""
    buffers = zip(layout.offsets, layout.plan.buffers, strict=True)
    return Arrays([Array(first + start, buffer.nbytes, layout.name(b)) for b, (start, buffer) in enumerate(buffers)])


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _line_of(error: BaseException, kernel: JITFunction) -> int:
    """The innermost line of the candidate's kernels in the traceback of the error, 0 without one."""
    frames = traceback.extract_tb(error.__traceback__)
    return _line([(frame.filename, frame.lineno or 0) for frame in reversed(frames)], kernel)


def _line(places: Sequence[Place], kernel: JITFunction) -> int:
    """The first line among `places` that is in the candidate's kernels, 0 without one."""
    file = kernel.fn.__code__.co_filename
    return next((line for name, line in places if name == file), 0)

"""Executes plans on a file of buffers, launches by Triton's interpreter, so that what they compute can be checked."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import JITFunction

from evo.records import Verdict
from fitness import aten
from fitness.compilation.kernels import argument, get_kernel, load_kernels
from fitness.memory import FILE_NAME, Layout
from fitness.plan import Copy, Fill, Launch, LaunchPlan, Op, Step, TensorRef, from_json
from fitness.sandbox.jobs import JobError
from fitness.verification.at_once import AtOnce
from fitness.verification.conflicts import Conflicts
from fitness.verification.delegation import Authors
from fitness.verification.interpreter import Interpreter, programs_of

# The interpreter lacks something, or cannot express what the compiler accepted: a gap.
_GAPS = (NotImplementedError, AttributeError, TypeError, KeyError, NameError, RecursionError)
# What a kernel that compiles can still do wrong (an assumption that does not hold, a misaligned descriptor).
_FAULTS = (AssertionError, ValueError, IndexError, ArithmeticError)


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Executes all steps of plans, in place, on files in `scratch`.

    payload: "source", "constants", and either "runs" or the keys of one run.  A run has "plan" (JSON), "choice" (index
    of the configuration of each launch), "order" of the programs of a grid ("forward", "reverse" or "at once") and
    "buffers" (name of the file, laid out as by `fitness.memory.Layout`); and "authors" (name of a file of as many
    zeros) where it is to be found out who wrote what (`fitness.verification.delegation.Authors`); and "twin", the index
    of an earlier run that differs in nothing but the order: where the programs of that one were independent, this one
    is not executed, nor "at once" where they met in atomics.
    Returns {"programs": how many were run, "left_out": indices of runs that were not executed, "stored": of each run,
    positions of the entry's arguments that something was stored to, whatever it was}.
    Raises JobError(RUNTIME_ERROR) for a kernel that fails and JobError(UNSUPPORTED) for one the interpreter cannot
    execute.
    """
    kernels = load_kernels(payload["source"], payload["constants"], scratch)
    count = 0
    orders: list[set[str]] = []  # of each run, other orders of its programs that say more
    left_out = []
    stored: list[list[int]] = []
    with Interpreter() as interpreter:
        for number, run in enumerate(payload.get("runs") or [payload]):
            twin = run.get("twin")
            if twin is not None and run["order"] not in orders[twin]:
                left_out.append(number)
                orders.append(set())
                stored.append([])
                continue
            made = _Run(run, kernels, interpreter, scratch)
            count += made.execute()
            orders.append(made.orders_to_try())
            stored.append(sorted(interpreter.builder.stored))
    return {"programs": count, "left_out": left_out, "stored": stored}


class _Run:
    """One execution of one plan."""

    def __init__(
        self, run: Mapping[str, Any], kernels: Mapping[str, JITFunction], interpreter: Interpreter, scratch: Path
    ) -> None:
        self.plan: LaunchPlan = from_json(run["plan"])
        self.layout = Layout(self.plan)
        self.memory = self.layout.attach(scratch, run.get("buffers", FILE_NAME))
        self.choice, self.order = run["choice"], run.get("order", "forward")
        self.kernels, self.interpreter = kernels, interpreter
        memory = np.frombuffer(self.memory, np.uint8)
        first = memory.ctypes.data
        at_once = self.order == "at once"
        self.conflicts = AtOnce(memory, first) if at_once else Conflicts(first, first + self.layout.total)
        interpreter.builder.memory = first, first + self.layout.total
        interpreter.builder.conflicts = self.conflicts
        interpreter.builder.arguments = [
            (first + start, first + start + buffer.nbytes, buffer.input)
            for start, buffer in zip(self.layout.offsets, self.plan.buffers, strict=True)
            if buffer.input is not None
        ]
        interpreter.builder.stored = set()
        self.authors = self._authors(scratch / run["authors"]) if "authors" in run else None
        if len(self.choice) != len(self.plan.launches):
            raise ValueError(f"{len(self.plan.launches)} launches need as many choices, got {len(self.choice)}")

    def _authors(self, path: Path) -> Authors:
        data = torch.frombuffer(self.memory, dtype=torch.uint8)
        authors = torch.from_file(str(path), shared=True, size=self.layout.total, dtype=torch.uint8)
        return Authors(self.layout, data, authors)

    def orders_to_try(self) -> set[str]:
        if isinstance(self.conflicts, AtOnce) or not self.conflicts.found:
            return set()
        return {"reverse"} if self.conflicts.gave_up else {"reverse", "at once"}

    def execute(self) -> int:
        """Executes all steps; how many programs were run."""
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
        try:
            return self.interpreter.launch(kernel, args, config.grid, programs_of(config.grid, self.order))
        except _GAPS as error:
            message = f"kernel {launch.kernel}: Triton's interpreter cannot execute it: {_text(error)}"
            raise JobError(Verdict.UNSUPPORTED, message, _line(error, kernel) or launch.line) from error
        except _FAULTS as error:
            message = f"kernel {launch.kernel}: {_text(error)}"
            raise JobError(Verdict.RUNTIME_ERROR, message, _line(error, kernel) or launch.line) from error

    def _kernel_argument(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return self._view(value)
        if isinstance(value, tuple):
            return tuple(self._kernel_argument(v) for v in value)
        return argument(value, self.kernels)


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _line(error: BaseException, kernel: JITFunction) -> int:
    """The innermost line of the candidate's kernels on the way to the error, 0 where there is none."""
    file = kernel.fn.__code__.co_filename
    return next((f.lineno or 0 for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == file), 0)

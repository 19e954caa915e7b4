"""Verifies without a GPU: executes the plan's launches under Triton's interpreter and compares with the oracle.

Inputs go into a file of poisoned buffers with guard zones.  A sandboxed child executes the plan on that file, and this
process compares what is left in the file.  Expected values never enter the file or the child.  If the seed kernel is
the reference, a child of its own executes it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evo.core.records import Case, Check, Verdict
from fitness.frontend.memory import DTYPES, POISONS, Guards, Layout, Poison, contents
from fitness.frontend.plan import LaunchPlan, PlanError, TensorRef, to_json
from fitness.frontend.stages import NOTHING_COMPARED, Stop, at_line, expect_ok
from fitness.interpreter.bounds import NO_HABITS, Habits
from fitness.interpreter.delegation import Share, WriteTracker, check_share, needs_proof
from fitness.sandbox.jobs import JobError, Limits
from fitness.sandbox.scratch import LeftError, scratch_folder
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task
from fitness.verify import compare, oracle, seed_oracle
from fitness.verify.long_loops import AddedCase

# Limits on the files in which plans are executed, for one file and for all files of a verification.  A file may take
# TIMES_NEEDED times the bytes of arguments and outputs, plus the spare bytes for scratch buffers.  It may take at most
# MOST, or twice the arguments and outputs if that is more.
TIMES_NEEDED = 8
SPARE_BYTES, SPARE_TOGETHER = 128 << 20, 1 << 30
MOST_BYTES, MOST_TOGETHER = 1 << 30, 8 << 30
GUARDS_OF_SEED = (1 << 20) + 1  # the number of its guard zones; candidates have small ones


@dataclass(frozen=True)
class PlanExecution:
    """One execution of a case's plan on one set of inputs.

    order: in which order the programs of a grid run; poison: of memory that nothing has written yet; added: whether
    it is an added case (long-loop or reduced).
    """

    case: Case
    variant: str
    order: str = "forward"
    poison: Poison = POISONS[0]
    added: bool = False

    @property
    def inputs(self) -> tuple[str, str]:
        """Returns a key that is equal for executions on the same inputs."""
        return self.case.name, self.variant

    def __str__(self) -> str:
        programs = "all programs at once" if self.order == "at once" else f"{self.order} program order"
        return f"{self.case.name} ({self.case.role}), inputs {self.variant!r}, {programs}"


def executions(task: Task, added: Sequence[AddedCase] = ()) -> list[PlanExecution]:
    """Returns the executions: every case on fresh inputs in all program orders, and on each stress variant of them.

    Added cases run on their own variant alone.

    A kernel whose programs depend on each other's results (a race on the device) differs between the orders.  Or it
    differs when no program sees what others store (unless they meet in atomics, or the seed kernel is the reference).
    The other orders are skipped if no program touches what others store.
    """
    planned = []
    orders = ("forward", "reverse") if task.reference is None else ("forward", "reverse", "at once")
    stress = [v for v in oracle.variants(task) if v != "normal"]
    for number, case in enumerate(case.on_cpu() for case in task.cases):
        poison = seed_oracle.poison(task, number)
        planned += [PlanExecution(case, "normal", order, poison) for order in orders]
        planned += [
            PlanExecution(case, variant, poison=seed_oracle.poison(task, number + i))
            for i, variant in enumerate(stress, 1)
        ]
    return planned + [
        PlanExecution(case, case.variant, order, seed_oracle.poison(task, number), added=True)
        for number, case in enumerate(added)
        for order in orders
    ]


class Expectations(NamedTuple):
    """What each execution is compared with, and what the seed kernel does that candidates may do too."""

    executions: list[tuple[PlanExecution, oracle.Expected]]
    habits: Habits = NO_HABITS


@dataclass(frozen=True)
class Executable:
    """What the interpreter executes: plans by case name at the CPU sizes, and the configuration of each launch."""

    source: str
    constants: Mapping[str, object]
    plans: Mapping[str, LaunchPlan]
    choices: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Jobs:
    """The zygote, folder and limits with which jobs are executed."""

    zygote: Zygote
    scratch: Path
    limits: Limits

    def interpret(self, what: Executable, runs: Sequence[_Execution]) -> list[_Execution]:
        """Executes the runs and returns those executed; a run is skipped if its paired run already proves the result.

        Raises Stop.
        """
        payload = {
            "source": what.source,
            "constants": dict(what.constants),
            "runs": [run.payload() for run in runs],
        }
        value = expect_ok("verify", self.zygote.run("interpret", payload, scratch=self.scratch, limits=self.limits))
        for run, notes, stored in zip(runs, value["notes"], value["stored"], strict=True):
            run.notes = notes
            run.stored.update(stored)
        return [run for number, run in enumerate(runs) if run.paired is None or number not in value["left_out"]]


@dataclass(eq=False)
class _Execution:
    """An execution with its memory."""

    execution: PlanExecution
    plan: LaunchPlan
    choice: list[int]
    inputs: tuple
    layout: Layout
    file: str  # of buffers, in the scratch folder.
    authors: str = ""  # file of their authors, if operators might be among them.
    paired: int | None = None  # index of the run that differs only in the order of programs.
    zeros: bool = False  # in lanes that are undefined.
    notes: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # from the job of `interpret`.
    stored: set[int] = field(default_factory=set)  # arguments that something was stored to, after the execution.

    def payload(self) -> dict:
        found: dict[str, Any] = {"plan": to_json(self.plan), "choice": self.choice, "order": self.execution.order}
        found |= {"buffers": self.file, "zeros": self.zeros}
        found |= {"authors": self.authors} if self.authors else {}
        return found | ({} if self.paired is None else {"twin": self.paired})


def verify(
    task: Task,
    candidate: Executable,
    *,
    seed: str,
    jobs: Jobs,
    kernel: Executable | None = None,
    added: Sequence[AddedCase] = (),
    added_limits: Limits | None = None,
    stored_by_seed: set[int] | None = None,
    prove: bool = True,
    expected: Expectations | None = None,
) -> Check:
    """Executes the candidate's plans and compares every output with the oracle.

    seed: keys the fresh inputs; kernel: the seed kernel, needed if it is the reference; added: cases beside the task's
    own (see `executions`), used if the reference is another, within `added_limits`; stored_by_seed: arguments that the
    seed kernel stores to, which a verification of the seed adds to it; prove: whether to ask which kernels wrote the
    outputs; expected: what `expectations` gave for the same.  Raises Stop with the verdict of the first execution that
    fails.
    """
    key = oracle.key_of(seed)
    compared, habits = expected or expectations(task, seed=seed, jobs=jobs, kernel=kernel, added=added)
    guards = {inputs: n for n, inputs in enumerate(dict.fromkeys(r.inputs for r, _ in compared))}
    runs = [  # the authors of outputs are checked at the task's own sizes
        _run(task, candidate, r, key, f"replay{number}", prove=prove and not r.added, guards=guards[r.inputs])
        for number, (r, _) in enumerate(compared)
    ]
    for run in runs:
        run.zeros = habits.needs_zeros
    for run, (_, expectation) in zip(runs, compared, strict=True):
        _check_form(task, run, expectation)
    _make_files(runs, [_needed(run.inputs, e) for run, (_, e) in zip(runs, compared, strict=True)], jobs.scratch)
    usual, long = ([run for run in runs if run.execution.added is stretch] for stretch in (False, True))
    _pair(usual)
    executed = jobs.interpret(candidate, usual)
    if long:
        _pair(long)
        executed += replace(jobs, limits=added_limits or jobs.limits).interpret(candidate, long)
    worst, worst_replay, budget = 0.0, runs[0].execution, 0.0
    finals: dict[str, list[torch.Tensor]] = {}
    for run, (_, expectation) in zip(runs, compared, strict=True):
        if run not in executed:
            continue
        refs = run.plan.compared(task.written)
        outputs = _outputs_after(task, run, refs, jobs.scratch)
        check_accesses(run.execution, run.notes, habits)
        if candidate.source != task.seed_source:
            check_stores(task, run.execution, run.stored, stored_by_seed or set())
        elif stored_by_seed is not None:
            stored_by_seed |= run.stored
        ratio, message = compare.compare(expectation, run.plan.structure, outputs, [ref.strides for ref in refs])
        if message is not None:
            why = seed_oracle.UNLIKE_ITSELF if kernel is not None and kernel.source == candidate.source else ""
            raise Stop("verify", Verdict.WRONG, f"{run.execution}: {message}{why}{_undefined(run)}")
        if ratio >= worst:
            worst, worst_replay, budget = ratio, run.execution, expectation.rms_budget
        if run.execution.variant == "normal" and task.deterministic:
            _same_in_all_orders(finals.setdefault(run.execution.case.name, outputs), outputs, run.execution)
    own = _own_share(task, executed, jobs.scratch)
    return Check(cases=len(executed), worst_case=str(worst_replay), max_error=worst, budget=budget, own_share=own)


def expectations(
    task: Task, *, seed: str, jobs: Jobs, kernel: Executable | None = None, added: Sequence[AddedCase] = ()
) -> Expectations:
    """Returns what `verify` compares with.  Raises Stop if there is nothing."""
    key = oracle.key_of(seed)
    expected = _expectations(task, added, key) if kernel is None else _of_seed(task, kernel, key, jobs)
    if not expected.executions:
        raise Stop("verify", Verdict.INFRASTRUCTURE, NOTHING_COMPARED)
    return expected


def _check_form(task: Task, run: _Execution, expectation: oracle.Expected) -> None:
    """Raises Stop if the plan's outputs are of another form: then nothing has to be executed."""
    refs = run.plan.compared(task.written)
    strides = [ref.strides for ref in refs]
    if wrong := compare.wrong_form(expectation, run.plan.structure, [_formed(ref) for ref in refs], strides):
        raise Stop("verify", Verdict.WRONG, f"{run.execution}: {wrong}")


def _pair(runs: Sequence[_Execution]) -> None:
    """Pairs each run in another order with the run of the same inputs in forward order."""
    forward = {r.execution.inputs: i for i, r in enumerate(runs) if r.execution.order == "forward"}
    for run in runs:
        if run.execution.order != "forward":
            run.paired = forward.get(run.execution.inputs)


def _own_share(task: Task, runs: Sequence[_Execution], scratch: Path) -> float:
    """Returns the least share of own kernels in the outputs of a case.  Raises Stop if it is too little."""
    shares: dict[str, Share] = {}
    for run in runs:
        if run.authors:
            share = shares.setdefault(run.execution.case.name, Share(run.plan, run.plan.compared(task.written)))
            authors = _authors(run, scratch)
            share.add(WriteTracker(run.layout, authors, authors))
    for case, share in shares.items():
        check_share(task, case, share.plan, share.own, "the bytes of the outputs", "verify")
    return min((share.own for share in shares.values()), default=1.0)


def _authors(run: _Execution, scratch: Path) -> torch.Tensor:
    """Returns what the job noted in the run's file of authors.  Raises Stop if the file was removed."""
    try:
        return torch.from_numpy(contents(scratch / run.authors, run.layout.total))
    except LeftError as error:
        raise _foreign(run, error) from error


def _memory(run: _Execution, scratch: Path) -> np.ndarray:
    """Returns the run's memory that the job left.  Raises Stop if its file was replaced."""
    try:
        return run.layout.left(scratch, run.file)
    except LeftError as error:
        raise _foreign(run, error) from error


def _foreign(run: _Execution, error: LeftError) -> Stop:
    return Stop("verify", Verdict.RUNTIME_ERROR, f"{run.execution}: its files were replaced: {error}")


def _run(
    task: Task,
    what: Executable,
    execution: PlanExecution,
    key: int,
    name: str,
    *,
    moved: bool = False,
    prove: bool = False,
    guards: int = GUARDS_OF_SEED,
) -> _Execution:
    """Returns an execution of `what` on fresh inputs, in files called `name` that are yet to be made.

    moved: whether `seed_oracle.moved` moves the inputs; prove: whether authors are kept if operators might be among
    them; guards: number of the bytes of the guard zones.
    """
    plan = what.plans[execution.case.name]
    inputs = oracle.make_inputs(task, execution.case, key, execution.variant)
    if moved:
        inputs = seed_oracle.moved(task, inputs, key)
    authors = f"{name}.authors" if prove and needs_proof(plan) else ""
    choice = list(what.choices[execution.case.name])
    return _Execution(execution, plan, choice, inputs, Layout(plan, Guards(key, guards)), f"{name}.bin", authors)


def _make_files(runs: Sequence[_Execution], needed: Sequence[int], scratch: Path) -> None:
    """Makes the files of all runs, `needed` bytes each; makes no file if one is too large.  Raises Stop."""
    for run, least in zip(runs, needed, strict=True):
        _check_size(f"{run.execution}: its buffers", run.layout.total, least, SPARE_BYTES, MOST_BYTES)
    total = sum(run.layout.total for run in runs)
    _check_size(f"the buffers of {len(runs)} executions", total, sum(needed), SPARE_TOGETHER, MOST_TOGETHER)
    for run in runs:
        try:
            run.layout.write_inputs(run.layout.create(scratch, run.file, run.execution.poison), run.inputs)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"{run.execution}: {error}") from error
        if run.authors:
            (scratch / run.authors).write_bytes(bytes(run.layout.total))


def _check_size(what: str, size: int, needed: int, spare: int, most: int) -> None:
    most = max(min(spare + TIMES_NEEDED * needed, most), spare + 2 * needed)
    if size > most:
        message = f"{what} take {size >> 20} MiB, at most {most >> 20} are allowed"
        raise Stop("verify", Verdict.OUT_OF_MEMORY, message)


def _needed(inputs: Sequence[object], expectation: oracle.Expected) -> int:
    """Returns the bytes of a case's arguments and outputs, whatever a plan says of them."""
    arguments = sum(a.untyped_storage().nbytes() for a in inputs if isinstance(a, torch.Tensor))
    outputs = zip(expectation.outputs, expectation.dtypes, expectation.strides, strict=True)
    return arguments + sum(_reach(tuple(o.shape), strides) * dtype.itemsize for o, dtype, strides in outputs)


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the elements from the first to the last one of a window."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0


def _planned(plan: LaunchPlan) -> int:
    """Returns the bytes of arguments and outputs by the plan, if nothing else says them."""
    buffers = {ref.buffer for ref in (*plan.inputs, *plan.outputs) if isinstance(ref, TensorRef)}
    return sum(plan.buffers[b].nbytes for b in buffers)


def _expectations(task: Task, added: Sequence[AddedCase], key: int) -> Expectations:
    """Returns what each execution is compared with; leaves out those for which the float64 reference is not finite."""
    every = executions(task, added)
    firsts = {execution.inputs: execution for execution in reversed(every)}  # orders have the same expectation
    expectation_of = {inputs: oracle.expect(task, r.case, key, r.variant) for inputs, r in firsts.items()}
    return Expectations([(r, expected) for r in every if (expected := expectation_of[r.inputs]) is not None])


def _of_seed(task: Task, kernel: Executable, key: int, jobs: Jobs) -> Expectations:
    """Returns `_seed_expectations` and leaves no file of it: the candidate's job could read them."""
    with scratch_folder(jobs.scratch) as own:
        return _seed_expectations(task, kernel, key, replace(jobs, scratch=own))


def _seed_expectations(task: Task, kernel: Executable, key: int, jobs: Jobs) -> Expectations:
    """Returns `_expectations` by executing the seed kernel on the inputs and on moved ones; and its habits.

    Its guard zones differ from the candidate's: a seed that reads beyond its arrays does not repeat its results.
    """
    firsts = {execution.inputs: execution for execution in reversed(executions(task))}
    pairs = {
        at: [_run(task, kernel, execution, key, f"seed{n}-{moved:d}", moved=moved) for moved in (False, True)]
        for n, (at, execution) in enumerate(firsts.items())
    }
    runs = [run for pair in pairs.values() for run in pair]
    for run in runs:
        run.zeros = True
    _make_files(runs, [_planned(run.plan) for run in runs], jobs.scratch)
    jobs.interpret(kernel, runs)
    found = []
    for execution in executions(task):
        own, other = pairs[execution.inputs]
        refs = own.plan.compared(task.written)
        outputs, after_move = (_read(run, refs, _memory(run, jobs.scratch)) for run in (own, other))
        expected = seed_oracle.expect(task, own.inputs, own.plan.structure, refs, outputs, after_move)
        if expected is not None:
            found.append((execution, expected))
    usual = [own for own, _ in pairs.values() if own.execution.variant == "normal" and "undefined" in own.notes]
    habits = Habits(any("load" in run.notes for run in runs), _needs_zeros(task, kernel, usual, key, jobs))
    return Expectations(found, habits)


def _needs_zeros(task: Task, kernel: Executable, runs: Sequence[_Execution], key: int, jobs: Jobs) -> bool:
    """Returns whether these seed runs end otherwise if what the language leaves undefined is not zero."""
    again = [_run(task, kernel, run.execution, key, f"undefined{n}") for n, run in enumerate(runs)]
    _make_files(again, [_planned(run.plan) for run in again], jobs.scratch)
    try:
        if again:
            jobs.interpret(kernel, again)
    except Stop as stop:
        if stop.verdict is not Verdict.RUNTIME_ERROR:
            raise
        return True
    for one, other in zip(runs, again, strict=True):
        refs = one.plan.compared(task.written)
        first, second = (_read(run, refs, _memory(run, jobs.scratch)) for run in (one, other))
        if not compare.same_outputs(first, second):
            return True
    return False


def _formed(ref: TensorRef) -> torch.Tensor:
    """Returns a tensor of the window's form, without memory: an expanded one may be larger than the machine."""
    return torch.empty(ref.shape, dtype=DTYPES[ref.dtype], device="meta")


def _outputs_after(task: Task, run: _Execution, refs: list[TensorRef], scratch: Path) -> list[torch.Tensor]:
    """Returns the outputs left in the run's memory; raises Stop if anything else was written."""
    memory = _memory(run, scratch)
    broken = run.layout.broken_guards(memory)
    if broken:
        raise Stop("verify", Verdict.WRONG, f"{run.execution}: store out of bounds: {'; '.join(broken)}")
    try:
        for i, value in enumerate(run.inputs):
            if not isinstance(value, torch.Tensor) or i in task.written:
                continue
            if not compare.same_outputs([run.layout.read(memory, run.plan.inputs[i])], [value]):
                raise Stop(
                    "verify",
                    Verdict.WRONG,
                    f"{run.execution}: input {task.parameters[i]!r} was modified; copy it instead",
                )
    except JobError as error:
        raise Stop("verify", error.verdict, f"{run.execution}: {error.message}") from error
    return _read(run, refs, memory)


def check_accesses(where: object, notes: Mapping[str, tuple[str, int]], habits: Habits = NO_HABITS) -> None:
    """Raises Stop if a run with these notes left its arrays.

    where: what a message calls the run.
    """
    for kind in ("store", "load"):
        if kind in notes and not (kind == "load" and habits.loads_beyond):
            text, line = notes[kind]
            raise Stop("verify", Verdict.WRONG, *at_line("verify", f"{where}: {text}; mask it", line))


def check_stores(task: Task, where: object, stored: set[int], stored_by_seed: set[int]) -> None:
    """Raises Stop if something was stored to an input, even if it then held what it had held before."""
    for i in sorted(stored - set(task.written) - stored_by_seed):
        message = f"{where}: something was stored to input {task.parameters[i]!r}"
        raise Stop("verify", Verdict.WRONG, f"{message}; store to memory of its own, torch.empty_like or the like")


def _undefined(run: _Execution) -> str:
    """Returns what may be the cause of a wrong result."""
    if "undefined" not in run.notes or run.zeros:
        return ""
    text, line = run.notes["undefined"]
    return f"; line {line}: {text}: if they reach the result, give the load an `other`"


def _read(run: _Execution, refs: Sequence[TensorRef], memory: np.ndarray) -> list[torch.Tensor]:
    try:
        return [run.layout.read(memory, ref) for ref in refs]
    except JobError as error:
        raise Stop("verify", error.verdict, f"{run.execution}: {error.message}") from error


def _same_in_all_orders(first: list[torch.Tensor], second: list[torch.Tensor], execution: PlanExecution) -> None:
    if not compare.same_outputs(first, second):
        raise Stop(
            "verify",
            Verdict.WRONG,
            f"case {execution.case.name}: "
            "the result depends on the order in which the programs of the grid run (a race)",
        )

"""Verification without a GPU: the plan's launches under Triton's interpreter, against the float64 oracle.

Inputs go into a file of poisoned buffers with guard zones, a sandboxed child executes the plan on that file, and
what is left in the file is judged here.  Expected values never enter the file or the child.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from evo.records import Case, Check, Verdict
from fitness import oracle
from fitness.delegation import Authors, Share, check_share, needs_proof
from fitness.jobs import JobError, Limits
from fitness.memory import Layout
from fitness.plan import LaunchPlan, PlanError, TensorRef, to_json
from fitness.stages import Stop, expect_ok
from fitness.task import Task
from fitness.zygote import Zygote


@dataclass(frozen=True)
class Replay:
    """One execution of a case's plan on one set of inputs.  `order`: in which order the programs of a grid run."""

    case: Case
    variant: str
    order: str = "forward"

    def __str__(self) -> str:
        return f"{self.case.name} ({self.case.role}), inputs {self.variant!r}, {self.order} program order"


def replays(task: Task) -> list[Replay]:
    """What is executed: every case on fresh inputs in both program orders, each stress variant on one of the cases.

    A kernel whose programs depend on each other's results (a race on the device) differs between the two orders.
    """
    cases = [case.on_cpu() for case in task.cases]
    plain = [Replay(case, "normal", order) for case in cases for order in ("forward", "reverse")]
    stress = [v for v in oracle.VARIANTS if v != "normal"] if task.stress else []
    return plain + [Replay(cases[i % len(cases)], variant) for i, variant in enumerate(stress)]


@dataclass
class _Run:
    """A replay with its memory."""

    replay: Replay
    plan: LaunchPlan
    choice: list[int]
    inputs: tuple
    expected: oracle.Expected
    layout: Layout
    file: str  # of buffers, in the scratch folder
    authors: str = ""  # file of their authors, where operators might be among them

    def payload(self) -> dict:
        found = {"plan": to_json(self.plan), "choice": self.choice, "order": self.replay.order, "buffers": self.file}
        return found | ({"authors": self.authors} if self.authors else {})


def verify(
    task: Task,
    plans: Mapping[str, LaunchPlan],
    choices: Mapping[str, Sequence[int]],
    *,
    source: str,
    constants: Mapping[str, object],
    seed: str,
    zygote: Zygote,
    scratch: Path,
    limits: Limits,
) -> Check:
    """Executes `plans` (by case name, at the CPU sizes) and compares every output with the oracle.

    `choices` names the configuration of each launch; `seed` keys the fresh inputs.  Raises Stop with the verdict of the
    first replay that fails.
    """
    runs = list(_prepare(task, plans, choices, seed, scratch))
    payload = {"source": source, "constants": dict(constants), "runs": [run.payload() for run in runs]}
    expect_ok("verify", zygote.run("interpret", payload, scratch=scratch, limits=limits))
    worst, worst_replay, budget = 0.0, runs[0].replay, 0.0
    finals: dict[str, list[torch.Tensor]] = {}
    for run in runs:
        refs = _output_refs(task, run.plan)
        outputs = _outputs_after(task, run, refs, scratch)
        strides = [ref.strides for ref in refs]
        ratio, message = oracle.compare(run.expected, run.plan.structure, outputs, strides)
        if message is not None:
            raise Stop("verify", Verdict.WRONG, f"{run.replay}: {message}")
        if ratio >= worst:
            worst, worst_replay, budget = ratio, run.replay, _rms_budget(run.expected)
        if run.replay.variant == "normal" and task.deterministic:
            _same_in_both_orders(finals.setdefault(run.replay.case.name, outputs), outputs, run.replay)
    own = _own_share(task, runs, scratch)
    return Check(cases=len(runs), worst_case=str(worst_replay), max_error=worst, budget=budget, own_share=own)


def _own_share(task: Task, runs: Sequence[_Run], scratch: Path) -> float:
    """The least share of own kernels in the outputs of a case.  Raises Stop where it is too little."""
    shares: dict[str, Share] = {}
    for run in runs:
        if run.authors:
            share = shares.setdefault(run.replay.case.name, Share(run.plan, _output_refs(task, run.plan)))
            authors = torch.from_file(
                str(scratch / run.authors), shared=False, size=run.layout.total, dtype=torch.uint8
            )  # fmt: skip
            share.add(Authors(run.layout, authors, authors))
    for case, share in shares.items():
        check_share(task, case, share.plan, share.own, "the bytes of the outputs", "verify")
    return min((share.own for share in shares.values()), default=1.0)


def _prepare(
    task: Task, plans: Mapping[str, LaunchPlan], choices: Mapping[str, Sequence[int]], seed: str, scratch: Path
) -> Iterator[_Run]:
    key = oracle.key_of(seed)
    for number, replay in enumerate(replays(task)):
        expected = oracle.expect(task, replay.case, key, replay.variant)
        if expected is None:  # the float64 reference itself is not finite there
            continue
        plan = plans[replay.case.name]
        inputs = oracle.make_inputs(task, replay.case, key, replay.variant)
        layout, file = Layout(plan), f"replay{number}.bin"
        try:
            layout.write_inputs(layout.create(scratch, file), inputs)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"{replay}: {error}") from error
        authors = f"authors{number}.bin" if needs_proof(plan) else ""
        if authors:
            (scratch / authors).write_bytes(bytes(layout.total))
        yield _Run(replay, plan, list(choices[replay.case.name]), inputs, expected, layout, file, authors)


def _rms_budget(expected: oracle.Expected) -> float:
    """The budget of the first output that is not compared exactly; 0 where all are."""
    return next((b.rms for b in expected.budgets if b is not None), 0.0)


def _written(task: Task) -> list[int]:
    """Positions of the arguments that the task declares as written."""
    return [i for i, name in enumerate(inspect.signature(task.reference).parameters) if name in task.writes]


def _output_refs(task: Task, plan: LaunchPlan) -> list[TensorRef]:
    """What is compared: returned tensors in order, then written arguments."""
    return list(plan.outputs) + [plan.inputs[i] for i in _written(task)]


def _outputs_after(task: Task, run: _Run, refs: list[TensorRef], scratch: Path) -> list[torch.Tensor]:
    """The outputs left in the run's memory; raises Stop where anything else was written."""
    names = list(inspect.signature(task.reference).parameters)
    written = _written(task)
    memory = run.layout.attach(scratch, run.file)
    broken = run.layout.broken_guards(memory)
    if broken:
        raise Stop("verify", Verdict.WRONG, f"{run.replay}: store out of bounds: {'; '.join(broken)}")
    try:
        for i, value in enumerate(run.inputs):
            if not isinstance(value, torch.Tensor) or i in written:
                continue
            if not _bitwise_equal(run.layout.read(memory, run.plan.inputs[i]), value):
                raise Stop("verify", Verdict.WRONG, f"{run.replay}: input {names[i]!r} was modified; copy it instead")
        return [run.layout.read(memory, ref) for ref in refs]
    except JobError as error:
        raise Stop("verify", error.verdict, f"{run.replay}: {error.message}") from error


def _same_in_both_orders(first: list[torch.Tensor], second: list[torch.Tensor], replay: Replay) -> None:
    if not all(_bitwise_equal(a, b) for a, b in zip(first, second, strict=True)):
        raise Stop(
            "verify",
            Verdict.WRONG,
            f"case {replay.case.name}: the result depends on the order in which the programs of the grid run (a race)",
        )


def _bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))

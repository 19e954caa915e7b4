"""Verifies that a plan's CUDA graph computes what it should, on inputs that no kernel can know.

For each case, fresh inputs are written into new, poisoned memory and the graph is replayed.  Only then the reference
computes the expectation in float64, from inputs drawn once more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from evo.core.records import Case, Check, Verdict
from fitness.frontend.stages import NOTHING_COMPARED, Stop
from fitness.gpu.program import SLOW_US, Program, timed_us
from fitness.gpu.programs import Loaded, Programs
from fitness.interpreter.delegation import Share, check_share, needs_proof
from fitness.tasks.task import Task
from fitness.verify import oracle, seed_oracle
from fitness.verify.compare import bits, compare

FRESH = 3  # replays on different inputs for every case
SAME = 3  # replays on the same inputs, whose outputs must be equal to the bit
SLOWEST = 50  # times as long as the baseline's may an execution take, if that is more than SLOW_US
# An execution of a seed kernel may take so long.  Preparing it takes about a hundred, evaluating a candidate thirty.
SLOWEST_SEED_US = 2 * SLOW_US
UNSTEADY = (
    "a race, or memory that is read before it is written; a task whose results may differ says `deterministic = False`"
)


def inputs_of(task: Task, case: Case, key: int, fresh: int = FRESH) -> list[tuple[str, int]]:
    """Returns (variant, number) of the inputs of a case: every stress variant on one of the cases, plain ones last.

    `key` decides on which one: no kernel can see it.
    """
    stress = [v for v in oracle.variants(task) if v != "normal"]
    mine = task.cases.index(case)
    chosen = [v for i, v in enumerate(stress) if (i + key) % len(task.cases) == mine]
    return [(variant, 0) for variant in chosen] + [("normal", number) for number in range(fresh)]


class VerificationSummary:
    """The worst replay so far."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.infinite: set[str] = set()  # cases whose outputs hold infinities
        self.own_share = 1.0
        self._cases, self._worst, self._where, self._budget = 0, -1.0, "", 0.0

    def has_seen(self, case: Case) -> bool:
        return case.name in self.seen

    def add(self, where: str, ratio: float, budget: float) -> None:
        """Adds a replay. ratio: error in units of the budget; budget: absolute, root mean square."""
        self._cases += 1
        if ratio > self._worst:
            self._worst, self._where, self._budget = ratio, where, budget

    def check(self) -> Check:
        if not self._cases:
            raise Stop("verify", Verdict.INFRASTRUCTURE, NOTHING_COMPARED)
        return Check(self._cases, self._where, self._worst, self._budget, self.own_share)


class Verifier:
    """Verifies programs of one task on one GPU, and compares outputs with what is expected."""

    def __init__(self, programs: Programs) -> None:
        self.task, self.programs = programs.task, programs

    def verified(
        self,
        loaded: Loaded,
        case: Case,
        key: int,
        summary: VerificationSummary,
        fresh: int = FRESH,
        *,
        prove: bool = True,
    ) -> Program:
        """Returns the program of a case, its graph verified, on `fresh` plain inputs among others.  Raises Stop.

        prove: whether to check which kernels wrote the outputs.
        """
        program = self.programs.build(loaded, case, [self.programs.inputs(case, key)])
        self._check_pace(program, loaded, case)
        share = Share(program.plan, program.outputs_of_plan) if prove and needs_proof(program.plan) else None
        inputs = inputs_of(self.task, case, key, fresh)
        for done, (variant, number) in enumerate(inputs, 1):
            left = len(inputs) - done + FRESH - fresh
            self._verify(program, case, variant, key + number, summary, poison=left)
            if share is not None:
                share.add(program.tracked_writes())
        if share is not None:
            check_share(self.task, case.name, program.plan, share.own, "the bytes of the outputs", "verify")
            summary.own_share = min(summary.own_share, share.own)
        return program

    def _verify(
        self, program: Program, case: Case, variant: str, key: int, summary: VerificationSummary, *, poison: int
    ) -> None:
        """Verifies one replay on fresh inputs, from the poison of that number; the first plain one several times."""
        where = f"{case.name} ({case.role}), inputs {variant!r}"
        program.write_inputs(self.programs.inputs(case, key, variant))
        program.memory.renew_guards(poison)
        repeats = SAME if variant == "normal" and not summary.has_seen(case) else 1
        self._replay(program, repeats, poison, where)
        program.integrity.look_at_guards()
        # The expectation is made now, from inputs drawn again: none of it was on the device during the replay.
        again = self.programs.inputs(case, key, variant)
        modified = program.modified_inputs(again)
        expected = self.expect(case, key, variant, again)
        # Asked for so late that the GPU has work meanwhile.
        if broken := program.memory.overwritten():
            raise Stop("verify", Verdict.WRONG, f"{where}: store out of bounds: {'; '.join(broken)}")
        if changed := modified() or (program.integrity.changed_inputs() if repeats > 1 else []):
            raise Stop("verify", Verdict.WRONG, f"{where}: argument {changed[0]} was modified; copy it instead")
        if expected is not None:
            self.compare(program, expected, where, summary)
            if expected.infinite:
                summary.infinite.add(case.name)
        if variant == "normal":
            summary.seen.add(case.name)

    def _replay(self, program: Program, repeats: int, poison: int, where: str) -> None:
        """Replays.  Raises Stop(WRONG) if outputs differ from one time to the next."""
        if repeats > 1:
            program.integrity.remember_inputs()
        first: list[torch.Tensor] = []
        for repeat in range(repeats):
            program.reset(seed_oracle.poison(self.task, poison + repeat))
            program.replay()
            if repeats > 1:
                program.integrity.check_inputs_and_guards()
            if not self.task.deterministic:
                continue
            if repeat == 0:
                first = [output.clone() for output in program.outputs()] if repeats > 1 else []
            elif not program.outputs_are(first):
                raise Stop("verify", Verdict.WRONG, f"{where}: replays on the same inputs differ: {UNSTEADY}")

    def _check_pace(self, program: Program, loaded: Loaded, case: Case) -> None:
        """Raises Stop if an execution takes far longer than the baseline's, or too long for a baseline.

        Others wait for the GPU meanwhile.
        """
        if loaded is self.programs.seed:
            self.programs.baseline_us[case.name] = us = _replay_us(program)
            if us > SLOWEST_SEED_US:
                fix = "give the case smaller sizes, or the task a faster kernel"
                message = (
                    f"one execution of the seed kernel takes {us / 1e6:.2g} s, more than {SLOWEST_SEED_US / 1e6:g} s"
                )
                raise Stop("verify", Verdict.UNSUPPORTED, f"case {case.name}: {message}: {fix}")
        limit = max(SLOWEST * self.programs.baseline_us.get(case.name, math.inf), SLOW_US)
        if program.executed_us > limit and (us := _replay_us(program)) > limit:
            message = f"one execution takes {us / 1e6:.2g} s, more than the {limit / 1e6:.2g} s that are allowed beside"
            raise Stop("verify", Verdict.TIMEOUT, f"case {case.name}: {message} the baseline")

    def expect(self, case: Case, key: int, variant: str, arguments: Sequence[Any]) -> oracle.Expected | None:
        """Returns what the reference, or the seed kernel in its place, makes of `arguments`, which are used up."""
        if self.task.reference is not None:
            draw = functools.partial(self.programs.inputs, case, key, variant)
            return oracle.expect_for(self.task, case, variant, arguments, draw)
        seed = self.programs.of_seed(case, [arguments])
        found = []
        for given in (seed_oracle.moved(self.task, arguments, key), arguments):
            seed.write_inputs(given)
            seed.reset()
            seed.replay()
            found.append([output.clone() for output in seed.outputs()])
        seed.reset()  # a kernel must not find what was expected
        after_move, own = found
        return seed_oracle.expect(self.task, arguments, seed.plan.structure, seed.outputs_of_plan, own, after_move)

    def expect_again(self, case: Case, key: int) -> oracle.Expected | None:
        return self.expect(case, key, "normal", self.programs.inputs(case, key))

    def compare(
        self,
        program: Program,
        expected: oracle.Expected,
        where: str,
        summary: VerificationSummary,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Compares outputs with the expectation. outputs: instead of those of the first copy.  Raises Stop(WRONG)."""
        strides = [ref.strides for ref in program.outputs_of_plan]
        outputs = program.outputs() if outputs is None else outputs
        for output in outputs:
            if output.dtype == torch.bool and output.numel() and int(bits(output).max()) > 1:
                raise Stop("verify", Verdict.WRONG, f"{where}: an output holds booleans that were never written")
        ratio, message = compare(expected, program.plan.structure, outputs, strides)
        if message is not None:
            is_reference = self.task.reference is None and self.programs.is_of_seed(program)
            why = seed_oracle.UNLIKE_ITSELF if is_reference else ""
            raise Stop("verify", Verdict.WRONG, f"{where}: {message}{why}")
        summary.add(where, ratio, expected.rms_budget)


def _replay_us(program: Program) -> float:
    program.reset()
    return timed_us(program.replay, torch.cuda.current_stream())

"""Times a verified program beside the seed kernel, and checks that what was timed did the verified work.

The graph is timed in pairs of alternating order, from cold caches and poisoned outputs.  A program too short to be
timed alone is timed as several copies, each on inputs of its own.  All copies must do what the verified graph does on
these inputs.  While a kernel is timed, its results do not lie in memory of evo's.  Inputs are new again.  Results of
the verified graph and of the seed kernel are poisoned right after the comparison.  The expectation is computed after
all timing.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evo.core.records import Case, Verdict
from fitness.frontend.stages import Stop
from fitness.gpu.baselines import BaselineCall
from fitness.gpu.program import Program, SwappedInputs
from fitness.gpu.programs import Programs
from fitness.gpu.timer import PairedBlock, Timer
from fitness.gpu.timing import EQUAL, BaselineNoise, noise_floor
from fitness.gpu.verification import FRESH, UNSTEADY, VerificationSummary, Verifier
from fitness.verify import oracle

OTHER_OUTPUTS = f"a timed replay gave other outputs than the verified one: {UNSTEADY}"
NOT_ALONE = "a launch did not do the work of its own copy alone"

SWAPS = 4  # copies that may be given other arguments just before they run.

# It took longer than when it was timed, each time, on inputs that it was not executed on before.
NEW, NEW_SAMPLES, SEED_SAMPLES = 1.1, 8, 3
NEW_US = 5.0  # of a sample, and at least this much: what comes before it may add a constant to a first one.
NEW_AHEAD = 20  # fills of the caches before a sample that is taken again, about 0.5 ms: a busy host is late.

# A sample should last this long: `timing.RESOLUTION_US` is then at most a percent of it, from 2 us a launch on.
SAMPLE_US, MAX_COPIES = 100.0, 64
COPIES_SAMPLES = 5  # the least of these decides how many copies a sample takes.
LONGEST_SAMPLE_US = 3000.0  # of the baseline, if it is much slower than the candidate.
COPIES_BYTES = 2 << 30  # device memory for all copies of one case.

# The seed is compared with itself, each time in other memory: the place of its buffers changes its time by up to a
# percent.  Eight comparisons rarely see the worst case: hence the margin, an exponent.
FLOOR_COMPARISONS, FLOOR_PAIRS, FLOOR_MARGIN = 8, 20, 1.5
# Of a seed that takes tenths of a second fewer pairs are taken, or preparing it would take minutes.  The fewer, the
# wider its floor comes out.
FLOOR_US, FLOOR_LEAST = 1e6, 3  # for one comparison, and pairs
FLOOR_BYTES = 4 << 30  # device memory of paired programs that are kept so that the next one gets other memory.
# of a baseline that was slow, on each of two inputs, to see whether they are the reason
ALONE_ROUNDS, ALONE_SAMPLES = 2, 5


@dataclass(frozen=True)
class PairedBenchmark:
    """A program beside the baseline's, on the same inputs: those of `keys`, one for each copy.

    verified: the program of a single copy that was verified; it is the timed one if that has only one copy.
    """

    verifier: Verifier
    timer: Timer
    summary: VerificationSummary
    case: Case
    program: Program
    verified: Program
    baseline: Program | BaselineCall
    keys: Sequence[int]

    def decide(self, noise: BaselineNoise, input_slowdown: Callable[[], float]) -> PairedBlock:
        """Times both and returns the result.

        noise, input_slowdown: see `Timer.compare`.  Raises Stop if what was timed is wrong.
        """
        for given in (self.baseline, self.program):
            given.integrity.remember_inputs()
        first_us = self._first_us()
        self._take_outputs()
        if self.program is not self.verified:
            self.program.integrity.swaps = [self._swap(copy) for copy in _drawn(self.program, SWAPS)]
        found = self.timer.compare(self.program, self.baseline, noise, input_slowdown)
        meddled = self.baseline.integrity.broken_guards() or self.baseline.integrity.changed_inputs()
        self._check_timed()
        if meddled:
            message = f"case {self.case.name}: stored into the memory of the kernel timed beside it"
            raise Stop("time", Verdict.WRONG, message)
        self._check_new(found, first_us)
        return found

    def _first_us(self, ahead: int = 1) -> tuple[float, float]:
        """Returns microseconds of candidate and baseline on inputs that the candidate was not executed on yet.

        ahead: see `Timer.alone`; the same for both, or a late host would excuse the candidate.
        """
        # One disturbed sample of the seed would excuse the candidate.
        baseline_us = min(self.timer.alone(self.baseline, SEED_SAMPLES, ahead))
        self.baseline.reset()
        (own_us,) = self.timer.alone(self.program, 1, ahead)
        return own_us, baseline_us

    def _take_outputs(self) -> None:
        """Remembers the outputs of its first replay on these inputs: later replays must give the same.

        Raises Stop(WRONG) unless they are those of the verified graph on the inputs of each copy.
        """
        program, verified, task = self.program, self.verified, self.verifier.task
        program.integrity.remember_outputs()
        program.integrity.check_inputs_and_guards()
        if not task.deterministic:
            program.integrity.keep_outputs()
        if program is verified:
            return
        program.reset()
        inputs = (self._inputs(key) for key in self.keys)
        right = torch.stack([verified.fingerprints_on(arguments) for arguments in inputs], dim=1)
        verified.reset()  # a kernel must not find the results here
        if task.deterministic and not program.integrity.remembers(right):
            raise Stop("time", Verdict.WRONG, f"case {self.case.name}: {OTHER_OUTPUTS}")

    # --- what was timed is right -------------------------------------------------------------------------------------

    def _check_timed(self) -> None:
        """Checks that what was timed computed right results, every time, and wrote nothing else.

        All copies did what the verified graph did.  Some random copies are also compared with what is expected.
        """
        program, where = self.program, f"case {self.case.name}: a timed replay"
        self.timer.evict()
        program.replay()
        program.integrity.check_outputs()
        if program.integrity.broken_guards():
            raise Stop("time", Verdict.WRONG, f"{where} stored out of bounds")
        if modified := program.integrity.changed_inputs():
            raise Stop("time", Verdict.WRONG, f"{where} modified argument {modified[0]}; copy it instead")
        chosen: Sequence[int] = range(program.copies)
        if self.verifier.task.deterministic:
            if program.integrity.outputs_differed():
                raise Stop("time", Verdict.WRONG, f"case {self.case.name}: {OTHER_OUTPUTS}")
            chosen = _drawn(program, FRESH)
        self._compare_copies(chosen)
        self._check_swapped()

    def _compare_copies(self, chosen: Sequence[int]) -> None:
        """Compares the outputs of these copies, now and each time they were kept, with what is expected."""
        where = f"{self.case.name} ({self.case.role}), timed inputs"
        for copy in chosen:
            expected = self.verifier.expect_again(self.case, self.keys[copy])
            if expected is None:
                continue
            for outputs in (self.program.outputs(copy), *self.program.integrity.kept(copy)):
                self.verifier.compare(self.program, expected, where, self.summary, outputs)

    def _inputs(self, key: int) -> tuple[Any, ...]:
        return self.verifier.programs.inputs(self.case, key)

    # --- each launch does the work of its own copy -------------------------------------------------------------------

    def _swap(self, copy: int) -> SwappedInputs:
        """Returns arguments that a copy is given just before it runs, on which the verified graph is right."""
        number = secrets.randbits(48)
        arguments = self._swapped_arguments(copy, number)
        right = self.verified.fingerprints_on(arguments)[: len(self.verified.outputs_of_plan), None]
        where = f"{self.case.name} ({self.case.role}), inputs of one copy"
        self._compare_swapped(copy, number, [self.verified.outputs()], where)
        self.verified.reset()
        usual = self._inputs(self.keys[copy])
        return SwappedInputs(copy, number, arguments, usual, right if self.verifier.task.deterministic else None)

    def _swapped_arguments(self, copy: int, number: int) -> tuple[Any, ...]:
        """Returns those of a copy with few elements changed, if allowed: a kernel that samples them sees no change."""
        programs = self.verifier.programs
        generator = torch.Generator(programs.device).manual_seed(number)
        changed = oracle.with_few_changed(self.verifier.task, self._inputs(self.keys[copy]), generator)
        return self._inputs(number) if changed is None else changed

    def _check_swapped(self) -> None:
        """Checks all results on swapped arguments: no other launch could have computed them."""
        where = f"case {self.case.name}: {NOT_ALONE}"
        if self.program.integrity.swapped_outputs_differed():
            raise Stop("time", Verdict.WRONG, where)
        for swap in self.program.integrity.swaps:
            self._compare_swapped(swap.copy, swap.number, self.program.integrity.kept_swapped(swap), where)

    def _compare_swapped(self, copy: int, number: int, each: Sequence[Sequence[torch.Tensor]], where: str) -> None:
        """Compares outputs on swapped arguments with what is expected. each: the outputs, once or several times."""
        if not each:
            return
        arguments = self._swapped_arguments(copy, number)
        expected = self.verifier.expect(self.case, self.keys[copy], "normal", arguments)
        if expected is None:
            return
        for outputs in each:
            self.verifier.compare(self.verified, expected, where, self.summary, outputs)

    # --- nothing is kept from one replay for the next ----------------------------------------------------------------

    def _check_new(self, found: PairedBlock, first_us: tuple[float, float]) -> None:
        """Checks that the program is not slower on inputs that it was not executed on before, else it kept results.

        One sample may be disturbed, so it is taken again, on other inputs and with the host far ahead.  Each is
        compared with the baseline's.
        Raises Stop(REJECTED).
        """
        seed_us = statistics.median(found.baseline_us) * found.drift
        paired, quotient = self, math.inf
        for sample in range(NEW_SAMPLES):
            if sample:
                paired = paired._anew()
                first_us = paired._first_us(NEW_AHEAD)
                paired._compare_copies(range(self.program.copies))
            usual_us = statistics.median(found.own_us) * max(first_us[1] / seed_us, 1.0)
            quotient = min(quotient, first_us[0] / usual_us)
            if quotient <= NEW or (first_us[0] - usual_us) * self.program.copies <= NEW_US:
                return
        why = "results are kept from one replay for the next"
        message = (
            f"case {self.case.name}: {quotient:.2f} times as long on inputs that it was not timed on before: {why}"
        )
        raise Stop("time", Verdict.REJECTED, message)

    def _anew(self) -> PairedBenchmark:
        """Returns the same two on other inputs."""
        keys = [key + len(self.keys) for key in self.keys]
        for given in (self.baseline, self.program):
            self.verifier.programs.write(self.case, given, keys)
        self.program.integrity.drop_outputs()
        return dataclasses.replace(self, keys=keys)


def _drawn(program: Program, most: int) -> list[int]:
    """Returns some random copies, which no kernel can predict."""
    return secrets.SystemRandom().sample(range(program.copies), min(program.copies, most))


class SeedTimes:
    """Times of the baseline of `programs` (the seed kernel, or PyTorch), measured at the first request."""

    def __init__(self, programs: Programs, timer: Timer) -> None:
        self._programs, self._timer = programs, timer
        self.start_over()

    def start_over(self) -> None:
        self._noise: dict[tuple[str, int], BaselineNoise] = {}
        self._noise_on: dict[tuple[str, int], Sequence[int]] = {}  # the keys of its inputs
        self._us: dict[str, float] = {}  # of each case
        self._copies: dict[str, int] = {}

    def copies(self, case: Case, program: Program | BaselineCall) -> int:
        """Returns how many launches a sample takes: a power of two, so that few graphs of the seed are needed."""
        time_us = self._timer.least(program, COPIES_SAMPLES)
        seed_us = self._us.setdefault(case.name, time_us)  # the seed comes first
        most = min(MAX_COPIES, LONGEST_SAMPLE_US / seed_us, COPIES_BYTES / program.nbytes)
        copies = 1
        while copies < SAMPLE_US / time_us and 2 * copies <= most:
            copies *= 2
        # With as many as the seed had, or half as many, its graphs and its noise floor are there already.
        earlier = self._copies.setdefault(case.name, copies)
        return earlier if copies <= earlier <= min(most, 2 * copies) else copies

    def noise(self, case: Case, baseline: Program | BaselineCall, keys: Sequence[int]) -> BaselineNoise:
        """Returns the baseline's noise floor and time for a case, measured beside the same in other memory.

        keys: of its inputs.
        """
        graph = (case.name, baseline.copies)
        if graph not in self._noise:
            others: list[Program | BaselineCall] = []
            ratios, medians = [], []
            pair_us = 2 * self._us[case.name] * baseline.copies
            pairs = min(FLOOR_PAIRS, max(FLOOR_LEAST, int(FLOOR_US / pair_us)))
            baseline.reset()
            for _ in range(FLOOR_COMPARISONS):
                inputs = (self._programs.inputs(case, key) for key in keys)
                others.append(self._programs.another_baseline(case, inputs, baseline.copies))
                others[-1].reset()
                block = self._timer.block(others[-1], baseline, pairs)
                others[-1].integrity.drop_outputs()
                ratios.append(statistics.median(s / t for s, t in zip(block.baseline_us, block.own_us, strict=True)))
                medians.append(statistics.median(block.baseline_us))
                if sum(t.copies * t.nbytes for t in others) > FLOOR_BYTES:
                    others.clear()
            floor = max(noise_floor(ratios) ** FLOOR_MARGIN, 1 + EQUAL)
            self._noise[graph], self._noise_on[graph] = BaselineNoise(floor, min(medians)), keys
        return self._noise[graph]

    def input_slowdown(self, paired: PairedBenchmark) -> float:
        """Returns how many times as long the seed takes on these inputs as on those of `noise`, both measured now.

        Alternating, and the least of each: a disturbance of only one of them is not a reason.
        """
        case, baseline = paired.case, paired.baseline
        baseline.integrity.check_inputs_and_guards()  # stores there are seen before it is written again
        both = (self._noise_on[case.name, baseline.copies], paired.keys)
        least = [math.inf, math.inf]
        for round_ in range(2 * ALONE_ROUNDS):
            self._programs.write(case, baseline, both[round_ % 2])
            least[round_ % 2] = min(least[round_ % 2], *self._timer.alone(baseline, ALONE_SAMPLES))
        baseline.reset()
        return least[1] / least[0]

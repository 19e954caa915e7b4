"""Measures the seed kernel: how many launches make a sample, its noise floor, its time alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from evo.core.records import Case
from fitness.gpu.paired_benchmark import PairedBenchmark
from fitness.gpu.program import Program
from fitness.gpu.programs import Programs
from fitness.gpu.timer import Timer
from fitness.gpu.timing import EQUAL, Alone, noise_floor

# A sample should last this long: the noise of one measured pair of events is about a microsecond.
SAMPLE_US, MAX_COPIES = 100.0, 32
LONGEST_SAMPLE_US = 3000.0  # of the baseline, if it is much slower than the candidate
COPIES_BYTES = 2 << 30  # device memory for all copies of one case

# The seed is compared with itself, each time in other memory: the place of its buffers changes its time by up to a
# percent.  Eight comparisons rarely see the worst case: hence the margin, an exponent.
FLOOR_COMPARISONS, FLOOR_PAIRS, FLOOR_MARGIN = 8, 20, 1.5
FLOOR_BYTES = 4 << 30  # device memory of paired programs that are kept so that the next one gets other memory
# of a baseline that was slow, on each of two inputs, to see whether they are the reason
ALONE_ROUNDS, ALONE_SAMPLES = 2, 5


class SeedTimes:
    """Times of the seed of `programs`, measured at the first request."""

    def __init__(self, programs: Programs, timer: Timer) -> None:
        self._programs, self._timer = programs, timer
        self.start_over()

    def start_over(self) -> None:
        self._alone: dict[tuple[str, int], Alone] = {}
        self._alone_on: dict[tuple[str, int], Sequence[int]] = {}  # the keys of its inputs
        self._us: dict[str, float] = {}  # of each case
        self._copies: dict[str, int] = {}

    def copies(self, case: Case, program: Program) -> int:
        """Returns how many launches a sample takes: a power of two, so that few graphs of the seed are needed."""
        time_us = self._timer.least(program, 2)
        seed_us = self._us.setdefault(case.name, time_us)  # the seed comes first
        most = min(MAX_COPIES, LONGEST_SAMPLE_US / seed_us, COPIES_BYTES / program.nbytes)
        copies = 1
        while copies < SAMPLE_US / time_us and 2 * copies <= most:
            copies *= 2
        # With as many as the seed had, or half as many, its graphs and its noise floor are there already.
        key = self._copies.setdefault(case.name, copies)
        return key if copies <= key <= min(most, 2 * copies) else copies

    def alone(self, paired: PairedBenchmark) -> Alone:
        """Returns the seed's noise floor and time for a case, measured beside another program of the same plan."""
        case, baseline, keys = paired.case, paired.baseline, paired.keys
        key = (case.name, baseline.copies)
        if key not in self._alone:
            assert self._programs.seed is not None
            others: list[Program] = []
            ratios, medians = [], []
            baseline.reset()
            for _ in range(FLOOR_COMPARISONS):
                inputs = (self._programs.inputs(case, key) for key in keys)
                others.append(self._programs.build(self._programs.seed, case, inputs, baseline.copies))
                others[-1].reset()
                block = self._timer.block(others[-1], baseline, FLOOR_PAIRS)
                others[-1].drop_outputs()
                ratios.append(statistics.median(s / t for s, t in zip(block.baseline_us, block.own_us, strict=True)))
                medians.append(statistics.median(block.baseline_us))
                if sum(t.copies * t.nbytes for t in others) > FLOOR_BYTES:
                    others.clear()
            floor = max(noise_floor(ratios) ** FLOOR_MARGIN, 1 + EQUAL)
            self._alone[key], self._alone_on[key] = Alone(floor, min(medians)), keys
        return self._alone[key]

    def harder(self, paired: PairedBenchmark) -> float:
        """Returns how many times as long the seed takes on these inputs as on those of `alone`, both measured now.

        Alternating, and the least of each: a disturbance of only one of them is not a reason.
        """
        case, baseline = paired.case, paired.baseline
        baseline.look_around()  # stores there are seen before it is written again
        both = (self._alone_on[case.name, baseline.copies], paired.keys)
        least = [math.inf, math.inf]
        for round_ in range(2 * ALONE_ROUNDS):
            self._programs.write(case, baseline, both[round_ % 2])
            least[round_ % 2] = min(least[round_ % 2], *self._timer.alone(baseline, ALONE_SAMPLES))
        baseline.reset()
        return least[1] / least[0]

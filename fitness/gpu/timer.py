"""Times graphs from cold caches: alone, or in pairs of alternating order.

Every timed replay is checked: outputs after each, inputs and guard zones after some at random.  Memory of both programs
of a pair is poisoned as soon as they are done.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fitness.cuda.device import GpuWatch, disturbance
from fitness.frontend.memory import POISONS, Poison
from fitness.gpu.baselines import BaselineCall
from fitness.gpu.program import SLOW_US, Graph, Program, timed_us, two_events
from fitness.gpu.timing import BaselineNoise, Ratio, Stopping
from fitness.interpreter.delegation import needs_proof
from fitness.tasks.task import Task
from fitness.verify import seed_oracle

SHARE_SAMPLES = 5  # replays of own kernels alone, and of operators alone, if a plan has both.
KEPT_SWAPPED = (
    2  # swapped-input executions in a block of pairs, and copies in each, if outputs may differ and so are kept
)
LEAST_SWAPPED = 3  # one pair in that many has swapped inputs at least: few leave a chance that none shows a cheat.
RETAKES = 2  # of a block of pairs that was disturbed.
PAUSE_S = 0.1  # before a block is taken again during which something else used the GPU.

T = TypeVar("T")


@dataclass(frozen=True)
class TimedBlock:
    """Some pairs: microseconds of one execution of the plan. retaken: how often they were thrown away before."""

    own_us: list[float]
    baseline_us: list[float]
    retaken: int = 0


@dataclass(frozen=True)
class PairedBlock(TimedBlock):
    """As many pairs as decide the comparison.

    ratio: baseline over candidate; drift: how many times as long as beside itself the baseline took; its times are
    divided by it.
    """

    ratio: Ratio = dataclasses.field(kw_only=True)
    drift: float = dataclasses.field(kw_only=True)


class Timer:
    """Times programs of one task on one GPU. Use it within its stream. rule: when enough pairs were taken."""

    def __init__(self, task: Task, stream: torch.cuda.Stream, watch: GpuWatch, l2_bytes: int, rule: Stopping) -> None:
        self._task, self._stream, self._watch, self._rule = task, stream, watch, rule
        # Read, not written: evicting what was read needs no write-back while the next kernel runs.
        self._filler = torch.zeros(2 * l2_bytes // 8, dtype=torch.int64, device=stream.device)
        self._sum = torch.zeros((), dtype=torch.int64, device=stream.device)

    def evict(self) -> None:
        """Enqueues: the caches are full of something else."""
        torch.sum(self._filler, dim=0, dtype=torch.int64, out=self._sum)

    def cold(self, program: Program | BaselineCall) -> None:
        """Enqueues: the program's memory as before its first replay, the caches full of something else."""
        program.reset()
        self.evict()

    def poison(self, program: Program | BaselineCall) -> Poison:
        """Returns the poison that a timed replay begins from; it says nothing about the replay's purpose.

        For several copies, or with steps that are not own kernels, it is always the same: the proof of authors begins
        from it.
        """
        if program.copies > 1 or isinstance(program, BaselineCall) or needs_proof(program.plan):
            return POISONS[0]
        return seed_oracle.poison(self._task, secrets.randbelow(len(POISONS)))

    def least(self, program: Program | BaselineCall, samples: int) -> float:
        """Returns the least microseconds of one execution of the plan; of a very slow one, those of the first."""
        found = self.alone(program, 1)
        if found[0] < SLOW_US:
            found += self.alone(program, samples - 1)
        return max(min(found), 1e-3)

    def alone(self, program: Program | BaselineCall, samples: int, ahead: int = 1) -> list[float]:
        """Returns microseconds of one execution each time, with nothing else in between.

        ahead: how often caches are filled once more, so that the host gets ahead of the device meanwhile, as in paired
        timing.  A host that does not adds its delay to the sample.
        """

        def before() -> None:
            self.cold(program)
            for _ in range(ahead):
                self.evict()

        return [self.once(program, before) / program.copies for _ in range(samples)]

    def beside(
        self, program: Program | BaselineCall, baseline: Program | BaselineCall, pairs: int
    ) -> tuple[list[float], list[float]]:
        """Returns microseconds of both, alternately and each alone, without the checks of timed replays."""
        both = [(self.alone(program, 1)[0], self.alone(baseline, 1)[0]) for _ in range(pairs)]
        baseline.reset()  # a kernel must not find results here
        return [own_us for own_us, _ in both], [baseline_us for _, baseline_us in both]

    def once(self, graph: Program | BaselineCall | Graph, before: Callable[[], None]) -> float:
        """Returns microseconds of a replay, after `before`."""
        before()
        return timed_us(graph.replay, self._stream)

    def _some(self, items: Sequence[T], least: int = 1) -> list[T]:
        """Returns a random choice of at least `least`; only a few if each costs memory and a reference."""
        if not self._task.deterministic:
            return secrets.SystemRandom().sample(items, min(len(items), KEPT_SWAPPED))
        chosen = 0
        while chosen.bit_count() < least:
            chosen = secrets.randbits(len(items))
        return [item for i, item in enumerate(items) if chosen >> i & 1]

    def own_share(self, program: Program) -> float:
        """Returns the share of own kernels in the time of all steps."""

        def before() -> None:
            self.cold(program)
            program.replay()  # a part alone needs the results of the others

        own_us, others_us = (
            statistics.median(self.once(part, before) for _ in range(SHARE_SAMPLES)) for part in program.parts()
        )
        return own_us / (own_us + others_us)

    def compare(
        self,
        program: Program | BaselineCall,
        baseline: Program | BaselineCall,
        noise: BaselineNoise | None = None,
        input_slowdown: Callable[[], float] = lambda: 1.0,
    ) -> PairedBlock:
        """Returns the comparison of a program with the baseline.

        noise: of the baseline beside itself, on other inputs.  input_slowdown: returns how many times as long the
        baseline takes on these inputs; called if it was slow.  Drift beyond that is divided out of its times.
        """
        input_slowdown = functools.cache(input_slowdown)

        def drift(baseline_us: Sequence[float]) -> float:
            if noise is None or noise.drift(baseline_us) == 1:
                return 1.0
            return dataclasses.replace(noise, us=noise.us * max(input_slowdown(), 1.0)).drift(baseline_us)

        program.reset(self.poison(program))
        baseline.reset()
        own_us: list[float] = []
        baseline_us: list[float] = []
        retaken = 0
        for look in self._rule.looks:
            block = self.block(program, baseline, look - len(own_us), drift)
            own_us += block.own_us
            baseline_us += block.baseline_us
            retaken += block.retaken
            if self._rule.decided(self._rule.ratio(own_us, baseline_us)):
                break
        drifted = drift(baseline_us)
        baseline_us = [us / drifted for us in baseline_us]
        ratio = self._rule.ratio(own_us, baseline_us)
        return PairedBlock(own_us, baseline_us, retaken, ratio=ratio, drift=drifted)

    def block(
        self,
        program: Program | BaselineCall,
        baseline: Program | BaselineCall,
        pairs: int,
        drift: Callable[[Sequence[float]], float] = lambda baseline_us: 1.0,
    ) -> TimedBlock:
        """Returns pairs taken between equal states of the clocks, and without drift if possible."""
        retaken, kept = 0, program.integrity.times_kept
        while True:
            before = self._watch.read()
            own_us, baseline_us = self.pairs(program, baseline, pairs)
            disturbed = disturbance(before, self._watch.read()) is not None
            drifted = drift(baseline_us) > 1
            if retaken == RETAKES or not (drifted or disturbed):
                return TimedBlock(own_us, baseline_us, retaken)
            retaken += 1
            program.integrity.drop_outputs(kept)
            if drifted:
                time.sleep(PAUSE_S)

    def pairs(
        self, program: Program | BaselineCall, baseline: Program | BaselineCall, pairs: int
    ) -> tuple[list[float], list[float]]:
        """Returns microseconds of the candidate and of the baseline.

        Both are reset before and afterwards.  Some things are decided at random when they are done: after which replays
        inputs and guard zones are checked, and which outputs are kept if a task has several right ones.  So is which
        copies get swapped inputs.  With several copies a kernel can find out that it is timed, and is always checked.
        """
        events: dict[bool, list[tuple[Any, Any]]] = {True: [], False: []}
        kept_pair = -1 if self._task.deterministic else secrets.randbelow(pairs)
        swap = self._some(range(pairs), -(-pairs // LEAST_SWAPPED)) if program.integrity.swaps else ()
        for pair in range(pairs):
            for is_candidate in (True, False) if pair % 2 else (False, True):
                chosen: Program | BaselineCall = program if is_candidate else baseline
                begin, end = two_events()
                self.evict()
                begin.record(self._stream)
                chosen.replay()
                end.record(self._stream)
                if is_candidate:
                    program.integrity.check_outputs()
                    if program.copies > 1 or secrets.randbits(1):
                        program.integrity.check_inputs_and_guards()
                    if pair == kept_pair:
                        program.integrity.keep_outputs()
                    if pair in swap:
                        self.cold(program)
                        assert isinstance(program, Program)  # a call of PyTorch has no swaps
                        program.execute_swapped(self._some(program.integrity.swaps))
                        self.evict()  # meanwhile the host gets ahead of the device again
                    program.reset(self.poison(program))
                else:
                    baseline.reset()  # now, so that the candidate cannot find its results
                events[is_candidate].append((begin, end))
        self._stream.synchronize()
        own_us, baseline_us = (
            [1e3 * begin.elapsed_time(end) / program.copies for begin, end in events[kind]] for kind in (True, False)
        )
        return own_us, baseline_us

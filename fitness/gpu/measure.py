"""Verifies plans on the GPU and times what was verified.  Lives in the runner process; no candidate Python here.

For each case: inputs never seen before are written into new, poisoned memory, the plan's CUDA graph is replayed, and
only then is the expectation computed, by the reference in float64, from inputs drawn once more.  That graph is then
timed against the graph of the seed kernel, in pairs of alternating order, from cold caches and poisoned outputs.  What
is too short to be timed alone is timed as several copies, each on inputs of its own, which must all do what the
verified graph does there.

While a kernel is timed its results do not lie in memory of evo's: inputs are new again, what the verified graph and the
seed kernel make of them is poisoned as soon as it was looked at, and the expectation is computed when all is timed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evo.records import Case, Timing, Verdict
from fitness import by_seed, oracle, roofline
from fitness.certification.judge import Match, Planned, draw, judge
from fitness.gpu import bits, fingerprint
from fitness.gpu.baselines import NAMES, Baseline, Call
from fitness.gpu.device import DeviceFacts, Watch
from fitness.gpu.launcher import DeviceError, Kernel
from fitness.gpu.replay import Late, Program
from fitness.gpu.runner import Report, Work
from fitness.gpu.stopwatch import Comparison, Stopwatch
from fitness.gpu.tally import FRESH, Tally, replays
from fitness.gpu.timing import EQUAL, Alone, Stopping, counts, noise_floor
from fitness.memory import POISONS, Poison
from fitness.plan import PlanError
from fitness.stages import Stop
from fitness.task import Task
from fitness.verification.delegation import Share, check_share, needs_proof

SAME = 3  # replays on the same inputs, whose outputs must be equal to the bit
UNSTEADY = (
    "a race, or memory that is read before it is written; a task whose results may differ says `deterministic = False`"
)

OTHER_OUTPUTS = f"a timed replay gave other outputs than the verified one: {UNSTEADY}"

NOT_ALONE = "a launch did not do the work of its own copy alone"
LATES = 4  # copies that may be given other arguments when their turn comes

# A sample should last this long: the noise of one measured pair of events is about a microsecond.
SAMPLE_US, MAX_COPIES = 100.0, 32
LONGEST_SAMPLE_US = 3000.0  # of the baseline, where it is much slower than the candidate
COPIES_BYTES = 2 << 30  # device memory for all copies of one case

# Of the seed with itself, each time in other memory: where its buffers lie makes a kernel up to a percent faster or
# slower, for as long as they lie there.  Eight comparisons rarely see the worst case: hence the margin, an exponent.
FLOOR_COMPARISONS, FLOOR_PAIRS, FLOOR_MARGIN = 8, 20, 1.5
FLOOR_BYTES = 4 << 30  # device memory of the twins that are kept so that the next one gets other memory
ALONE_SAMPLES = 10  # of a baseline that was slow, on each of two inputs, to see whether they are why

# Where it takes that much longer than it was timed, each time, on inputs that it was not executed on before.
NEW, NEW_SAMPLES = 1.1, 8
NEW_US = 5.0  # of a sample, and so much at least: what comes before it may add a constant to a first one
RACE_SAMPLES = 5  # replays of each configuration of an autotuned kernel

SHARE_SAMPLES = 5  # replays of own kernels alone, and of operators alone, where a plan has both

MATMUL_HEADROOM = 2.5  # of the peak of the narrowest type over the measured bfloat16 rate


class Bench:
    """Measures plans of one task on one GPU.  Use it within `torch.cuda.stream(bench.stream)`."""

    def __init__(self, task: Task, index: int, facts: DeviceFacts, stopping: Stopping) -> None:
        self.task, self.facts = task, facts
        self.device = torch.device("cuda", index)
        for own in (bits, fingerprint):
            own.prepare(index)  # what loads its kernels cannot be captured
        self.stream = torch.cuda.Stream(self.device)
        self.stopwatch = Stopwatch(task, self.stream, Watch(index), facts.l2_bytes, stopping)
        self._start_over()

    def _start_over(self) -> None:
        """Forgets the seed kernel and what was measured beside it."""
        self._seed: Loaded | None = None
        self._baselines: dict[tuple[str, int], Program] = {}
        self._alone: dict[tuple[str, int], Alone] = {}
        self._alone_on: dict[tuple[str, int], Sequence[int]] = {}  # the keys of its inputs
        self._seed_us: dict[str, float] = {}  # time of the seed on each case
        self._seed_copies: dict[str, int] = {}

    # --- requests ----------------------------------------------------------------------------------------------------

    def prepare(self, work: Work) -> Report:
        """Verifies the seed kernel and makes it the baseline.  Raises Stop where it fails."""
        self._start_over()
        loaded = self._load(work)
        self._seed = loaded
        try:
            return self._measure(loaded, "seed")
        except Exception:
            self._seed = None
            raise

    def verify(self, work: Work) -> Report:
        """Verifies the seed kernel and compares it with nothing.  Raises Stop where it fails."""
        self._start_over()
        self._seed = loaded = self._load(work)
        tally = Tally()
        for case in self.task.cases:
            program = self._verified(loaded, case, oracle.key_of("seed"), tally)
            if case.role == "tune" and program.plan.delegated:
                self._own_time(case, self._for_timing(loaded, case, program, oracle.key_of("seed"))[0])
        self._start_over()
        return Report(Verdict.OK, "done", check=tally.check(), choices=loaded.choices)

    def baselines(self, work: Work) -> list[Baseline]:
        """PyTorch's times on the tune cases, beside those of the seed kernel.  It is not verified here."""
        self._start_over()
        loaded = self._load(work)
        found = []
        for case in (c for c in self.task.cases if c.role == "tune"):
            arguments = self._inputs(case, oracle.key_of("seed"))
            copies = self._copies(case, self._program(loaded, case, [arguments]))
            program = self._program(loaded, case, [arguments] * copies, copies)
            found += [self._beside_pytorch(name, case, program, arguments) for name in NAMES]
        return found

    def _beside_pytorch(self, name: str, case: Case, program: Program, arguments: Sequence[Any]) -> Baseline:
        try:
            call = Call(self.task, name, arguments, program.copies)
        except Exception as error:  # compilers and captures raise all kinds
            torch.cuda.synchronize()  # raises where the context is lost
            return Baseline(name, case.name, error=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
        found = self.stopwatch.compare(program, call)
        medians = statistics.median(found.baseline_us), statistics.median(found.own_us)
        return Baseline(name, case.name, *medians, found.ratio.ratio, (found.ratio.low, found.ratio.high))

    def evaluate(self, work: Work, seed: str) -> Report:
        """Verifies and times a candidate.  `seed` keys its inputs.  Raises Stop with the verdict."""
        if self._seed is None:
            raise RuntimeError("there is no baseline: call prepare() with the seed kernel first")
        loaded = self._load(work)
        try:
            return self._measure(loaded, seed)
        finally:
            loaded.close()

    def draw(self, cases: Sequence[Case], seed: str, folder: str) -> list[list[dict[str, Any]]]:
        """Fresh arguments of each case, described, in files of `folder` (`fitness.certification.exchange`).

        Gives back what memory it can: another process is about to need the device.
        """
        torch.cuda.empty_cache()
        return [
            draw(self.task, case, oracle.key_of(seed), Path(folder) / f"{number}.in", self.device)
            for number, case in enumerate(cases)
        ]

    def judge(
        self, work: Work | None, cases: Sequence[Case], seed: str, folder: str, answers: Sequence[Mapping[str, Any]]
    ) -> list[Match]:
        """What another process made of the arguments that `draw` wrote, case by case.

        work: the plans that its outputs must equal to the bit; None where the oracle's budget is enough.
        """
        loaded = None if work is None else self._load(work)
        try:
            return [
                judge(
                    self.task,
                    case,
                    oracle.key_of(seed),
                    answer,
                    Path(folder),
                    self.device,
                    self._planned(loaded, case),
                    self._expect_again,
                )
                for case, answer in zip(cases, answers, strict=True)
            ]
        finally:
            if loaded is not None:
                loaded.close()

    def _planned(self, loaded: Loaded | None, case: Case) -> Planned | None:
        def outputs(arguments: Sequence[Any], fill: int | None = None) -> list[torch.Tensor]:
            assert loaded is not None
            program = self._program(loaded, case, [arguments])
            program.reset(POISONS[0] if fill is None else Poison(fill, fill))
            program.replay()
            return program.outputs()

        return None if loaded is None else outputs

    def _load(self, work: Work) -> Loaded:
        loaded = Loaded(work)
        if not work.choices:
            loaded.choices = self._race(loaded)
        return loaded

    def _measure(self, loaded: Loaded, seed: str) -> Report:
        key, tally = oracle.key_of(seed), Tally()
        programs = [
            (case, self._verified(loaded, case, key, tally, FRESH - 1 if case.role == "tune" else FRESH))
            for case in self.task.cases
        ]
        timings = tuple(
            self._timed(loaded, case, program, key, tally) for case, program in programs if case.role == "tune"
        )
        return Report(Verdict.OK, "done", check=tally.check(), timings=timings, choices=loaded.choices)

    # --- verification ------------------------------------------------------------------------------------------------

    def _program(self, loaded: Loaded, case: Case, inputs: Iterable[Sequence[Any]], copies: int = 1) -> Program:
        """The program of a case; `inputs`: the entry's arguments for each copy."""
        program = Program(
            loaded.work.plans[case.name],
            loaded.choices[case.name],
            loaded.kernels(case.name),
            device=self.device,
            copies=copies,
            written=self.task.written,
        )
        try:
            program.write_all(inputs)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"case {case.name}: {error}") from error
        program.build()
        return program

    def _inputs(self, case: Case, key: int) -> tuple[Any, ...]:
        return oracle.make_inputs(self.task, case, key, device=self.device)

    def _verified(self, loaded: Loaded, case: Case, key: int, tally: Tally, fresh: int = FRESH) -> Program:
        """The program of a case, its graph verified, on `fresh` plain inputs among others."""
        program = self._program(loaded, case, [self._inputs(case, key)])
        share = Share(program.plan, program.outputs_of_plan) if needs_proof(program.plan) else None
        inputs = replays(self.task, case, key, fresh)
        for done, (variant, number) in enumerate(inputs, 1):
            left = len(inputs) - done + FRESH - fresh
            self._verify(program, case, variant, key + number, tally, poison=left)
            if share is not None:
                share.add(program.authors())
        if share is not None:
            check_share(self.task, case.name, program.plan, share.own, "the bytes of the outputs", "verify")
            tally.own_share = min(tally.own_share, share.own)
        return program

    def _verify(self, program: Program, case: Case, variant: str, key: int, tally: Tally, *, poison: int) -> None:
        """One replay on fresh inputs, beginning from the poison of that number; the first plain one several times."""
        where = f"{case.name} ({case.role}), inputs {variant!r}"
        program.write_inputs(oracle.make_inputs(self.task, case, key, variant, device=self.device))
        repeats = SAME if variant == "normal" and not tally.knows(case) else 1
        if repeats > 1:
            program.remember_inputs()
        first: list[torch.Tensor] = []
        for repeat in range(repeats):
            program.reset(by_seed.poison(self.task, poison + repeat))
            program.replay()
            if repeats > 1:
                program.look_around()
            if not self.task.deterministic:
                continue
            if repeat == 0:
                first = [output.clone() for output in program.outputs()] if repeats > 1 else []
            elif not program.outputs_are(first):
                raise Stop("verify", Verdict.WRONG, f"{where}: replays on the same inputs differ: {UNSTEADY}")
        broken = program.broken_guards()
        if broken:
            raise Stop("verify", Verdict.WRONG, f"{where}: store out of bounds: {'; '.join(broken)}")
        # What is compared with is made now, from inputs drawn anew: none of it was on the device during the replay.
        again = oracle.make_inputs(self.task, case, key, variant, device=self.device)
        changed = program.modified_inputs(again) or (program.differing_inputs() if repeats > 1 else [])
        if changed:
            raise Stop("verify", Verdict.WRONG, f"{where}: argument {changed[0]} was modified; copy it instead")
        expected = self._expect(case, key, variant, again)
        if expected is not None:
            self._compare(program, expected, where, tally)
        if variant == "normal":
            tally.seen.add(case.name)

    def _expect(self, case: Case, key: int, variant: str, arguments: Sequence[Any]) -> oracle.Expected | None:
        """What to compare with for `arguments`, which are used up: as the reference says, or the seed kernel."""
        if self.task.reference is not None:
            return oracle.expect_for(self.task, case, variant, arguments)
        seed = self._baseline(case, [arguments])
        found = []
        for given in (by_seed.moved(self.task, arguments, key), arguments):
            seed.write_inputs(given)
            seed.reset()
            seed.replay()
            found.append([output.clone() for output in seed.outputs()])
        seed.reset()  # what was expected does not stay where a kernel might find it
        after_move, own = found
        return by_seed.expect(self.task, arguments, seed.plan.structure, seed.outputs_of_plan, own, after_move)

    def _expect_again(self, case: Case, key: int) -> oracle.Expected | None:
        return self._expect(case, key, "normal", self._inputs(case, key))

    def _compare(
        self,
        program: Program,
        expected: oracle.Expected,
        where: str,
        tally: Tally,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`outputs`: others than those of the first copy as they are."""
        strides = [ref.strides for ref in program.outputs_of_plan]
        outputs = program.outputs() if outputs is None else outputs
        for output in outputs:
            if output.dtype == torch.bool and output.numel() and int(bits.bits(output).max()) > 1:
                raise Stop("verify", Verdict.WRONG, f"{where}: an output holds booleans that were never written")
        ratio, message = oracle.compare(expected, program.plan.structure, outputs, strides)
        if message is not None:
            why = by_seed.UNLIKE_ITSELF if self._is_reference(program) else ""
            raise Stop("verify", Verdict.WRONG, f"{where}: {message}{why}")
        tally.add(where, ratio, expected.rms_budget)

    def _is_reference(self, program: Program) -> bool:
        """Whether the program is of the seed kernel, and this says what is right."""
        plans = self._seed.work.plans.values() if self._seed is not None and self.task.reference is None else ()
        return any(program.plan is plan for plan in plans)

    # --- timing ------------------------------------------------------------------------------------------------------

    def _copies(self, case: Case, program: Program) -> int:
        """How many launches a sample takes: a power of two, so that few graphs of the baseline are needed."""
        time_us = self.stopwatch.least(program, 2)
        seed_us = self._seed_us.setdefault(case.name, time_us)  # the seed is the first
        most = min(MAX_COPIES, LONGEST_SAMPLE_US / seed_us, COPIES_BYTES / program.nbytes)
        copies = 1
        while copies < SAMPLE_US / time_us and 2 * copies <= most:
            copies *= 2
        # With as many as the seed had, or half as many, its graphs and its noise floor are there already.
        known = self._seed_copies.setdefault(case.name, copies)
        return known if copies <= known <= min(most, 2 * copies) else copies

    def _for_timing(self, loaded: Loaded, case: Case, verified: Program, key: int) -> tuple[Program, list[int]]:
        """What is timed of a verified program, and the keys of its inputs, on which it was not executed yet.

        Inputs are other ones on each copy, or a kernel could take the results of the copy before it.
        """
        copies = self._copies(case, verified)
        keys = [key + FRESH + copy for copy in range(copies)]
        if copies > 1:
            program = self._program(loaded, case, [self._inputs(case, key)] * copies, copies)
            program.replay()  # what a first replay takes longer for is not timed
            self._write(case, program, keys)
            if not program.inputs_are_equal():  # of which some tasks have few
                return program, keys
        self._write(case, verified, keys[:1])
        return verified, keys[:1]

    def _write(self, case: Case, program: Program, keys: Sequence[int]) -> None:
        program.write_all(self._inputs(case, key) for key in keys)

    def _baseline(self, case: Case, inputs: Iterable[Sequence[Any]], copies: int = 1) -> Program:
        """The seed's program for a case, on these inputs.

        What somebody stored into its memory is not held against the next one.
        """
        assert self._seed is not None
        known = self._baselines.get((case.name, copies))
        if known is None or known.broken_guards():
            known = self._baselines[case.name, copies] = self._program(self._seed, case, inputs, copies)
            known.replay()  # what a first replay takes longer for is not timed
            known.reset()
        else:
            known.write_all(inputs)
        return known

    def _timed(self, loaded: Loaded, case: Case, verified: Program, key: int, tally: Tally) -> Timing:
        contest = self._contest(loaded, case, verified, key)
        alone = self._seed_alone(contest)
        for given in (contest.baseline, contest.program):
            given.remember_inputs()
        first = self._first_us(contest)
        self._take_outputs(contest)
        if contest.program is not contest.verified:
            contest.program.lates = [self._late(contest, copy, tally) for copy in _drawn(contest.program, LATES)]
        program, baseline = contest.program, contest.baseline
        found = self.stopwatch.compare(program, baseline, alone, functools.partial(self._harder, contest))
        meddled = baseline.broken_guards() or baseline.differing_inputs()
        self._check_timed(contest, tally)
        if meddled:
            raise Stop("time", Verdict.WRONG, f"case {case.name}: stored into the memory of the kernel timed beside it")
        self.check_roofline(case, statistics.median(found.own_us))
        self._check_new(contest, found, first, tally)
        terms = self._terms(case, found, alone.floor, program.copies)
        if program.plan.delegated:
            terms["own_time_share"] = self._own_time(case, program)
        return Timing(
            case=case.name,
            samples_us=tuple(found.own_us),
            baseline_us=tuple(found.baseline_us),
            ratio=found.ratio.ratio,
            ci95=(found.ratio.low, found.ratio.high),
            estimated=False,
            terms=terms,
        )

    def _contest(self, loaded: Loaded, case: Case, verified: Program, key: int) -> Contest:
        program, keys = self._for_timing(loaded, case, verified, key)
        # Drawn anew: what the candidate left in its own is not the seed's to be slow on.
        baseline = self._baseline(case, (self._inputs(case, key) for key in keys), program.copies)
        return Contest(case, program, verified, baseline, keys)

    def _first_us(self, contest: Contest) -> tuple[float, float]:
        """Microseconds of candidate and baseline on inputs that the candidate was not executed on yet."""
        (baseline_us,) = self.stopwatch.alone(contest.baseline, 1)
        contest.baseline.reset()
        (own_us,) = self.stopwatch.alone(contest.program, 1)
        return own_us, baseline_us

    def _take_outputs(self, contest: Contest) -> None:
        """The outputs of its first replay on these inputs are those that it must have from now on.

        Raises Stop(WRONG) where they are not those of the verified graph on the inputs of each copy.
        """
        case, program, verified = contest.case, contest.program, contest.verified
        program.remember_outputs()
        program.look_around()
        if not self.task.deterministic:
            program.keep_outputs()
        if program is verified:
            return
        program.reset()
        right = torch.stack([verified.fingerprints_on(self._inputs(case, key)) for key in contest.keys], dim=1)
        verified.reset()  # the results do not stay where a kernel might find them
        if self.task.deterministic and not program.remembers(right):
            raise Stop("time", Verdict.WRONG, f"case {case.name}: {OTHER_OUTPUTS}")

    def _late(self, contest: Contest, copy: int, tally: Tally) -> Late:
        """Arguments that a copy is given when its turn comes, on which the verified graph is right."""
        case, verified = contest.case, contest.verified
        number = secrets.randbits(48)
        arguments = self._late_arguments(contest, copy, number)
        right = verified.fingerprints_on(arguments)[: len(verified.outputs_of_plan), None]
        where = f"{case.name} ({case.role}), inputs of one copy"
        self._compare_late(contest, verified, copy, number, verified.outputs(), where, tally)
        verified.reset()
        usual = self._inputs(case, contest.keys[copy])
        return Late(copy, number, arguments, usual, right if self.task.deterministic else None)

    def _late_arguments(self, contest: Contest, copy: int, number: int) -> tuple[Any, ...]:
        """Those of a copy with few elements changed, where they may be: who looks at some of them does not see it."""
        generator = torch.Generator(self.device).manual_seed(number)
        changed = oracle.with_few_changed(self.task, self._inputs(contest.case, contest.keys[copy]), generator)
        return self._inputs(contest.case, number) if changed is None else changed

    def _compare_late(
        self,
        contest: Contest,
        program: Program,
        copy: int,
        number: int,
        outputs: Sequence[torch.Tensor],
        where: str,
        tally: Tally,
    ) -> None:
        arguments = self._late_arguments(contest, copy, number)
        expected = self._expect(contest.case, contest.keys[copy], "normal", arguments)
        if expected is not None:
            self._compare(program, expected, where, tally, outputs)

    def _check_new(self, contest: Contest, found: Comparison, first: tuple[float, float], tally: Tally) -> None:
        """What was timed took no longer on inputs that it was not executed on before, else it kept results somewhere.

        One sample may be disturbed, and so is taken again, on other inputs; each is held against the baseline's.
        Raises Stop(REJECTED).
        """
        case, program = contest.case, contest.program
        own_us, seed_us = statistics.median(found.own_us), statistics.median(found.baseline_us) * found.drift
        quotient = math.inf
        for sample in range(NEW_SAMPLES):
            if sample:
                contest = dataclasses.replace(contest, keys=[key + len(contest.keys) for key in contest.keys])
                for given in (contest.baseline, program):
                    self._write(case, given, contest.keys)
                program.drop_outputs(0)  # on other inputs
                first = self._first_us(contest)
                self._compare_copies(contest, range(program.copies), tally)
            usual_us = own_us * max(first[1] / seed_us, 1.0)
            quotient = min(quotient, first[0] / usual_us)
            if quotient <= NEW or (first[0] - usual_us) * program.copies <= NEW_US:
                return
        why = "results are kept from one replay for the next"
        message = f"case {case.name}: {quotient:.2f} times as long on inputs that it was not timed on before: {why}"
        raise Stop("time", Verdict.REJECTED, message)

    def _own_time(self, case: Case, program: Program) -> float:
        """The share of own kernels in the time of all steps.  Raises Stop where it is too little."""

        def before() -> None:
            self.stopwatch.cold(program)
            program.replay()  # a part alone needs what the others leave it

        times = []
        for part in program.parts():
            samples = [self.stopwatch.once(part, before) for _ in range(SHARE_SAMPLES)]
            times.append(statistics.median(samples))
        own = times[0] / sum(times)
        check_share(self.task, case.name, program.plan, own, "the time on the GPU", "time")
        return own

    def _harder(self, contest: Contest) -> float:
        """How many times as long the seed takes on these inputs as on those that `_seed_alone` had, both now."""
        case, baseline = contest.case, contest.baseline
        baseline.look_around()  # what was stored there is seen before it is written anew
        medians = []
        for keys in (self._alone_on[case.name, baseline.copies], contest.keys):
            self._write(case, baseline, keys)
            medians.append(statistics.median(self.stopwatch.alone(baseline, ALONE_SAMPLES)))
        baseline.reset()
        return medians[1] / medians[0]

    def _seed_alone(self, contest: Contest) -> Alone:
        """What the seed's graph of a case is beside another one of the same plan."""
        case, baseline, keys = contest.case, contest.baseline, contest.keys
        key = (case.name, baseline.copies)
        if key not in self._alone:
            assert self._seed is not None
            twins: list[Program] = []
            ratios, medians = [], []
            baseline.reset()
            for _ in range(FLOOR_COMPARISONS):
                inputs = (self._inputs(case, key) for key in keys)
                twins.append(self._program(self._seed, case, inputs, baseline.copies))
                twins[-1].reset()
                block = self.stopwatch.block(twins[-1], baseline, FLOOR_PAIRS)
                twins[-1].drop_outputs(0)
                ratios.append(statistics.median(s / t for s, t in zip(block.baseline_us, block.own_us, strict=True)))
                medians.append(statistics.median(block.baseline_us))
                if sum(t.copies * t.nbytes for t in twins) > FLOOR_BYTES:
                    twins.clear()
            floor = max(noise_floor(ratios) ** FLOOR_MARGIN, 1 + EQUAL)
            self._alone[key], self._alone_on[key] = Alone(floor, min(medians)), keys
        return self._alone[key]

    def _check_timed(self, contest: Contest, tally: Tally) -> None:
        """What was timed computed right results, every time, and nothing else was written.

        Of many copies some are compared with what is expected, nobody knows which; all did what the verified graph did.
        """
        case, program = contest.case, contest.program
        where = f"case {case.name}: a timed replay"
        self.stopwatch.evict()
        program.replay()
        program.look()
        if program.broken_guards():
            raise Stop("time", Verdict.WRONG, f"{where} stored out of bounds")
        if modified := program.differing_inputs():
            raise Stop("time", Verdict.WRONG, f"{where} modified argument {modified[0]}; copy it instead")
        chosen: Sequence[int] = range(program.copies)
        if self.task.deterministic:
            if program.differing_outputs():
                raise Stop("time", Verdict.WRONG, f"case {case.name}: {OTHER_OUTPUTS}")
            chosen = _drawn(program, FRESH)
        self._compare_copies(contest, chosen, tally)
        self._check_late(contest, tally)

    def _check_late(self, contest: Contest, tally: Tally) -> None:
        """Whatever was executed on late arguments was right: each launch does the work of its own copy, and alone."""
        program, where = contest.program, f"case {contest.case.name}: {NOT_ALONE}"
        if program.differing_late():
            raise Stop("time", Verdict.WRONG, where)
        for late, outputs in program.kept_late:
            self._compare_late(contest, program, late.copy, late.number, outputs, where, tally)

    def _compare_copies(self, contest: Contest, chosen: Sequence[int], tally: Tally) -> None:
        """What is in the outputs of these copies, and was when they were kept, with what is expected."""
        case, program = contest.case, contest.program
        for copy in chosen:
            expected = self._expect_again(case, contest.keys[copy])
            if expected is None:
                continue
            for outputs in (program.outputs(copy), *program.kept(copy)):
                self._compare(program, expected, f"{case.name} ({case.role}), timed inputs", tally, outputs)

    def check_roofline(self, case: Case, time_us: float) -> None:
        """Raises Stop(REJECTED) where the time is impossible."""
        if message := roofline.impossible(case.name, time_us, self._limit_us(case), self.facts.name):
            raise Stop("time", Verdict.REJECTED, message)

    def _limit_us(self, case: Case) -> float:
        """Microseconds that no kernel can beat.  What fits into the L2 cache may still be there when the time ends."""
        moved = self.task.bytes(case) if self.task.bytes else 0.0
        flops = self.task.flops(case) if self.task.flops else 0.0
        memory_s = max(moved - self.facts.l2_bytes, 0.0) / self.facts.dram_bytes_per_s
        return 1e6 * max(memory_s, flops / (MATMUL_HEADROOM * self.facts.matmul_flops))

    def _terms(self, case: Case, found: Comparison, floor: float, copies: int) -> dict[str, float]:
        """Beside the times: rates against the measured ceilings, and how the times were taken."""
        time_us = statistics.median(found.own_us)
        terms = {"noise_floor": floor, "counts": float(counts(found.ratio, floor))}
        terms |= {"launches_per_sample": float(copies), "pairs": float(found.ratio.pairs)}
        terms |= {"blocks_retaken": float(found.retaken), "baseline_drift": found.drift}
        if self.task.bytes:
            rate = self.task.bytes(case) / (time_us / 1e6)
            terms |= {"gb_per_s": rate / 1e9, "of_copy_rate": rate / self.facts.copy_bytes_per_s}
        if self.task.flops:
            rate = self.task.flops(case) / (time_us / 1e6)
            terms |= {"tflop_per_s": rate / 1e12, "of_matmul_rate": rate / self.facts.matmul_flops}
        return terms

    # --- autotuning --------------------------------------------------------------------------------------------------

    def _race(self, loaded: Loaded) -> dict[str, list[int]]:
        """Chooses a configuration of every autotuned kernel by its time over the tune cases, one kernel after another.

        Keyed by (kernel, number of configurations): a kernel launched at several places is frozen to one setting.
        """
        chosen: dict[tuple[str, int], int] = {}
        for plan in loaded.work.plans.values():
            chosen |= {(launch.kernel, len(launch.configs)): 0 for launch in plan.launches}
        racers = [key for key in chosen if key[1] > 1]
        track = [(c, self._inputs(c, 0)) for c in self.task.cases if c.role == "tune"] if racers else []
        for racer in racers:
            scores = [self._score(loaded, {**chosen, racer: i}, track) for i in range(racer[1])]
            chosen[racer] = min(range(racer[1]), key=lambda i: (scores[i], i))
        return _choices(loaded.work, chosen)

    def _score(
        self, loaded: Loaded, chosen: Mapping[tuple[str, int], int], track: Sequence[tuple[Case, Sequence[Any]]]
    ) -> float:
        """Sum over cases with inputs of the logarithm of the time; infinite where the device cannot launch it."""
        trial = dataclasses.replace(loaded.work, choices=_choices(loaded.work, chosen))
        total = 0.0
        contender = Loaded(trial)
        try:
            for case, arguments in track:
                program = self._program(contender, case, [arguments])
                total += math.log(self.stopwatch.least(program, RACE_SAMPLES))
        except DeviceError as error:
            if error.fatal:
                raise
            return math.inf
        finally:
            contender.close()
        return total


@dataclasses.dataclass(frozen=True)
class Contest:
    """A program beside the seed's, on the same inputs: those of `keys`, one for each copy.

    verified: the program of a single copy that was verified, which is the timed one where that has no more.
    """

    case: Case
    program: Program
    verified: Program
    baseline: Program
    keys: Sequence[int]


class Loaded:
    """Work with its chosen kernels on the device."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.choices = {name: list(choice) for name, choice in work.choices.items()}
        self._kernels: dict[str, Kernel] = {}

    def kernels(self, case: str) -> list[Kernel]:
        """The kernel of each launch of a case, in the chosen configuration."""
        found = []
        for by_config, i in zip(self.work.builds[case], self.choices[case], strict=True):
            build = by_config[i]
            if build["key"] not in self._kernels:
                self._kernels[build["key"]] = Kernel(self.work.cubins[build["cubin"]], build)
            found.append(self._kernels[build["key"]])
        return found

    def close(self) -> None:
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels = {}


def _drawn(program: Program, most: int) -> list[int]:
    """Some of its copies: nobody can know which."""
    return secrets.SystemRandom().sample(range(program.copies), min(program.copies, most))


def _choices(work: Work, chosen: Mapping[tuple[str, int], int]) -> dict[str, list[int]]:
    return {
        name: [chosen[launch.kernel, len(launch.configs)] for launch in plan.launches]
        for name, plan in work.plans.items()
    }

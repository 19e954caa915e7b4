"""Verifies plans on one GPU, and times what was verified beside the seed kernel.

Lives in the runner process; no candidate Python here.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evo.core.records import PYTORCH_IS_RIGHT, SIGNIFICANT, Case, Timing, Verdict
from fitness.cuda.device import DeviceFacts, GpuWatch
from fitness.estimate import roofline
from fitness.frontend.memory import POISONS, Poison
from fitness.frontend.stages import Stop
from fitness.frontend.target import narrowest_rate
from fitness.gpu import fingerprint
from fitness.gpu.autotune import select
from fitness.gpu.baselines import KINDS, Baseline, BaselineCall, called, names, reason
from fitness.gpu.eager_check import Match, Planned, compare_answer, write
from fitness.gpu.paired_benchmark import PairedBenchmark, SeedTimes
from fitness.gpu.program import Program
from fitness.gpu.programs import Loaded, Programs
from fitness.gpu.runner import LaunchBundle, Report
from fitness.gpu.timer import PairedBlock, Timer
from fitness.gpu.timing import Stopping, counts, paired_ratio, resolution
from fitness.gpu.verification import FRESH, VerificationSummary, Verifier
from fitness.interpreter.delegation import check_share
from fitness.tasks import other_inputs
from fitness.tasks.task import Task
from fitness.verify import compare, oracle

MATMUL_HEADROOM = 1.25  # of the peak over the measured rate, with bfloat16
# Of a first look: the least and the greatest ratio of six pairs enclose the median with a probability of 97 %.  The
# place of the buffers changes a time by up to a percent, for each of the two (`paired_benchmark.FLOOR_COMPARISONS`).
LOOK_PAIRS, LOOK_MARGIN = 6, 1.02
# To read fewer bytes takes a tenth of a second, by estimate; to wait for the GPU again takes longer.
LENT_BYTES = 1 << 28


Lend = Callable[[bool], contextlib.AbstractContextManager[None]]  # see `fitness.gpu.gpu_lock.GpuLock.lent`


def _unshared(again: bool) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


class Benchmark:
    """Measures plans of one task on one GPU. Use it within `torch.cuda.stream(bench.stream)`."""

    def __init__(self, task: Task, index: int, facts: DeviceFacts, stopping: Stopping, lent: Lend = _unshared) -> None:
        """lent: entered while this process does without the GPU; others may have it then."""
        device = torch.device("cuda", index)
        for own in (compare, fingerprint):
            own.prepare(index)  # loading a kernel cannot be captured
        self.stream = torch.cuda.Stream(device)
        timer = Timer(task, self.stream, GpuWatch(index), facts.l2_bytes, stopping)
        self._set_up(task, device, facts, timer, lent)

    def _set_up(
        self,
        task: Task,
        device: torch.device,
        facts: DeviceFacts,
        timer: Timer,
        lent: Lend = _unshared,
    ) -> None:
        self.task, self.device, self.facts, self.timer, self._lent = task, device, facts, timer, lent
        self.programs = Programs(task, device)
        self._verifier = Verifier(self.programs)
        self.seed_times = SeedTimes(self.programs, timer)

    def _start_over(self) -> None:
        """Forgets the baseline and its measured times."""
        self.programs.start_over()
        self.seed_times.start_over()

    def compile_ahead(self, request: str) -> None:
        """Compiles what a request of this kind needs of `torch.compile`.  Call it before the GPU is locked."""
        of_run = [self.task.timed_against] if self.task.seed_source is None else []
        self.programs.compile_ahead({"prepare": of_run, "baselines": list(KINDS.values())}.get(request, ()))

    # --- requests ----------------------------------------------------------------------------------------------------

    def prepare(self, bundle: LaunchBundle) -> Report:
        """Verifies the seed kernel and makes it the baseline; of a task without one, times PyTorch.

        Raises Stop if that fails.
        """
        self._start_over()
        if self.task.seed_source is None:
            return self._prepare_pytorch()
        self.programs.seed = loaded = self._load(bundle)
        try:
            return self._measure(loaded, "seed")
        except Exception:
            self.programs.seed = None
            raise

    def verify(self, bundle: LaunchBundle) -> Report:
        """Verifies the seed kernel and compares it with nothing.  Raises Stop if it fails."""
        self._start_over()
        self.programs.seed = loaded = self._load(bundle)
        key, summary = oracle.key_of("seed"), VerificationSummary()
        try:
            for case in self.task.cases:
                program = self._verifier.verified(loaded, case, key, summary)
                if case.role == "tune" and program.plan.delegated:
                    self._own_time(case, self._on_new_inputs(loaded, case, program, key)[0])
        finally:
            self._start_over()
            loaded.close()
        infinite = sorted(summary.infinite)
        return Report(Verdict.OK, "done", check=summary.check(), choices=loaded.choices, infinite=infinite)

    def beside(self, seed: LaunchBundle, kernel: LaunchBundle, other: bool) -> dict[str, Report]:
        """Verifies other kernels in the seed's place, case by case: see `Runner.beside`."""
        self._start_over()
        self.programs.seed = chosen = self._load(seed)
        choices = dict(kernel.choices) or {name: chosen.choices[name] for name in kernel.plans}
        loaded = Loaded(replace(kernel, choices=choices))
        try:
            return self._by_case(loaded, oracle.key_of(other_inputs.SEED), other)
        finally:
            self._start_over()
            loaded.close()
            chosen.close()

    def elsewhere(self, bundle: LaunchBundle, seed: str) -> dict[str, Report]:
        """Verifies a candidate, case by case, on values that the task does not draw, keyed by `seed`.

        The seed kernel says what is right.
        """
        loaded = self._load(bundle)
        try:
            return self._by_case(loaded, oracle.key_of(seed), other=True)
        finally:
            loaded.close()

    def _by_case(self, loaded: Loaded, key: int, other: bool) -> dict[str, Report]:
        """Verifies each case of the task that there is a plan of by itself; other: on values that it does not draw."""
        found = {}
        for case in (c for c in self.task.cases if c.name in loaded.bundle.plans):
            programs = Programs(other_inputs.single_case(self.task, case, other), self.device)
            programs.seed, summary = self.programs.seed, VerificationSummary()
            try:
                Verifier(programs).verified(loaded, case, key, summary, prove=False)
                found[case.name] = Report(Verdict.OK, "done", check=summary.check())
            except Stop as stop:
                found[case.name] = Report(stop.verdict, stop.stage, stop.message)
        return found

    def baselines(self, bundle: LaunchBundle) -> list[Baseline]:
        """Returns PyTorch's times on the tune cases, beside those of the seed kernel.  It is not verified here."""
        self._start_over()
        loaded = self._load(bundle)
        found = []
        try:
            for case in (c for c in self.task.cases if c.role == "tune"):
                arguments = self.programs.inputs(case, oracle.key_of("seed"))
                copies = self.seed_times.copies(case, self.programs.build(loaded, case, [arguments]))
                program = self.programs.build(loaded, case, [arguments], copies)
                found += [self._beside_pytorch(name, case, program, arguments) for name in names(self.task)]
        finally:
            loaded.close()
        return found

    def _beside_pytorch(self, name: str, case: Case, program: Program, arguments: Sequence[Any]) -> Baseline:
        try:
            call = self.programs.call(called(self.task, name), KINDS[name], case, program.copies)
            call.build()
            call.write_all([arguments])
        except Exception as error:  # compilers and captures raise all kinds
            torch.cuda.synchronize()  # raises if the context is lost
            return Baseline(name, case.name, error=reason(error))
        found = self.timer.compare(program, call)
        medians = statistics.median(found.baseline_us), statistics.median(found.own_us)
        return Baseline(name, case.name, *medians, found.ratio.ratio, (found.ratio.low, found.ratio.high))

    def look(self, bundle: LaunchBundle, seed: str) -> Report:
        """Verifies a candidate on one set of inputs of each tune case and times it coarsely.  Raises Stop.

        `seed` keys the inputs.  Who wrote the outputs, and what timed replays computed, is not checked.
        """
        loaded = self._load(bundle)
        key, summary = oracle.key_of(seed), VerificationSummary()
        try:
            timings = tuple(self._looked(loaded, c, key, summary) for c in self.task.cases if c.role == "tune")
            return Report(Verdict.OK, "done", check=summary.check(), timings=timings, choices=loaded.choices)
        finally:
            loaded.close()

    def _looked(self, loaded: Loaded, case: Case, key: int, summary: VerificationSummary) -> Timing:
        verified = self._verifier.verified(loaded, case, key, summary, 1, prove=False)
        program, baseline, _ = self._for_timing(loaded, case, verified, key)
        own_us, baseline_us = self.timer.beside(program, baseline, LOOK_PAIRS)
        ratio = paired_ratio(own_us, baseline_us)
        ci95 = ratio.low / LOOK_MARGIN, ratio.high * LOOK_MARGIN
        terms = {"launches_per_sample": float(program.copies), "pairs": float(ratio.pairs)}
        return Timing(case.name, tuple(own_us), tuple(baseline_us), ratio.ratio, ci95, False, terms, weight=case.weight)

    def evaluate(self, bundle: LaunchBundle, seed: str) -> Report:
        """Verifies and times a candidate.  `seed` keys its inputs.  Raises Stop with the verdict."""
        if self.programs.seed is None and self.task.seed_source is not None:
            raise RuntimeError("there is no baseline: call prepare() with the seed kernel first")
        loaded = self._load(bundle)
        try:
            return self._measure(loaded, seed)
        finally:
            loaded.close()

    def draw(self, cases: Sequence[Case], seed: str, folder: str) -> list[list[dict[str, Any]]]:
        """Draws fresh arguments of each case into files of `folder` and returns their descriptions.

        Gives back what memory it can: another process is about to need the device.  So it does not wait for it again.
        """
        drawn = [self.programs.inputs(case, oracle.key_of(seed)) for case in cases]
        with self._aside(again=False):
            described = [write(arguments, Path(folder) / f"{n}.in") for n, arguments in enumerate(drawn)]
            del drawn
            torch.cuda.empty_cache()
        return described

    @contextlib.contextmanager
    def _aside(self, again: bool = True) -> Iterator[None]:
        """Lets others use the GPU: files of gigabytes are written or read meanwhile."""
        torch.cuda.current_stream().synchronize()
        with self._lent(again):
            yield

    def _reading(self, nbytes: int) -> contextlib.AbstractContextManager[None]:
        """Lets others use the GPU while so many bytes are read, if they are many."""
        return self._aside() if nbytes >= LENT_BYTES else contextlib.nullcontext()

    def compare(
        self,
        bundle: LaunchBundle | None,
        cases: Sequence[Case],
        seed: str,
        folder: str,
        answers: Sequence[Mapping[str, Any]],
    ) -> list[Match]:
        """Compares what another process made of the arguments that `draw` drew, case by case.

        bundle: the plans that its outputs must equal to the bit; None if the oracle's budget is enough.
        """
        loaded = None if bundle is None else self._load(bundle)
        try:
            return [
                compare_answer(
                    self.task,
                    case,
                    oracle.key_of(seed),
                    answer,
                    Path(folder),
                    self.device,
                    self._planned(loaded, case),
                    self._verifier.expect_again,
                    self._reading,
                )
                for case, answer in zip(cases, answers, strict=True)
            ]
        finally:
            if loaded is not None:
                loaded.close()

    def _planned(self, loaded: Loaded | None, case: Case) -> Planned | None:
        def outputs(arguments: Sequence[Any], fill: int | None = None) -> list[torch.Tensor]:
            assert loaded is not None
            program = self.programs.build(loaded, case, [arguments])
            program.reset(POISONS[0] if fill is None else Poison(fill, fill))
            program.replay()
            return program.outputs()

        return None if loaded is None else outputs

    def _load(self, bundle: LaunchBundle) -> Loaded:
        loaded = Loaded(bundle)
        if not bundle.choices:
            loaded.choices = select(self.task, self.programs, self.timer, loaded)
        return loaded

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _measure(self, loaded: Loaded, seed: str) -> Report:
        key, summary = oracle.key_of(seed), VerificationSummary()
        programs = [
            (case, self._verifier.verified(loaded, case, key, summary, FRESH - 1 if case.role == "tune" else FRESH))
            for case in self.task.cases
        ]
        timings = tuple(
            self._timed(loaded, case, program, key, summary) for case, program in programs if case.role == "tune"
        )
        return Report(Verdict.OK, "done", check=summary.check(), timings=timings, choices=loaded.choices)

    def _prepare_pytorch(self) -> Report:
        """Times PyTorch, which is the baseline, beside itself.  What it computes is right by definition."""
        key = oracle.key_of("seed")
        timings = tuple(self._timed_pytorch(case, key) for case in self.task.cases if case.role == "tune")
        return Report(Verdict.OK, "done", check=PYTORCH_IS_RIGHT, timings=timings)

    def _timed_pytorch(self, case: Case, key: int) -> Timing:
        """Raises Stop also if the reference changes an argument without declaring it: each replay needs the same."""
        single = self.programs.baseline(case, [self.programs.inputs(case, key)])
        copies = self.seed_times.copies(case, single)
        single.reset()  # a kernel must not find results here
        keys = [key + FRESH + copy for copy in range(copies)]
        baseline = self.programs.baseline(case, (self.programs.inputs(case, k) for k in keys), copies)
        baseline.integrity.remember_inputs()
        noise = self.seed_times.noise(case, baseline, keys)
        other = self.programs.another_baseline(case, (self.programs.inputs(case, k) for k in keys), copies)
        found = self.timer.compare(other, baseline)  # PyTorch itself cannot slow the baseline down
        self.programs.baseline_us[case.name] = statistics.median(found.baseline_us)
        if changed := baseline.integrity.changed_inputs():
            name = self.task.parameters[changed[0]]
            message = f"case {case.name}: the reference changes argument {name!r}: name it in writes, or copy it"
            raise Stop("time", Verdict.UNSUPPORTED, message)
        return _timing(case, found, self._terms(case, found, noise.floor, copies))

    def _timed(self, loaded: Loaded, case: Case, verified: Program, key: int, summary: VerificationSummary) -> Timing:
        program, baseline, keys = self._for_timing(loaded, case, verified, key)
        paired = PairedBenchmark(self._verifier, self.timer, summary, case, program, verified, baseline, keys)
        noise = self.seed_times.noise(case, baseline, keys)
        found = paired.decide(noise, functools.partial(self.seed_times.input_slowdown, paired))
        self._check_roofline(case, statistics.median(found.own_us))
        terms = self._terms(case, found, noise.floor, program.copies)
        if program.plan.delegated:
            terms["own_time_share"] = self._own_time(case, program)
        return _timing(case, found, terms)

    def _for_timing(
        self, loaded: Loaded, case: Case, verified: Program, key: int
    ) -> tuple[Program, Program | BaselineCall, list[int]]:
        """Returns a verified program that can be timed, the baseline on the same inputs, and the keys of these.

        The program was not executed on them yet, so it cannot have changed those of the baseline.
        """
        program, drawn, keys = self._on_new_inputs(loaded, case, verified, key)
        return program, self.programs.baseline(case, drawn, program.copies), keys

    def _on_new_inputs(
        self, loaded: Loaded, case: Case, verified: Program, key: int
    ) -> tuple[Program, list[tuple[Any, ...]], list[int]]:
        """Returns a verified program, its new inputs, on which it was not executed yet, and their keys.

        Each copy has other inputs, or a kernel could take the results of the copy before it.
        """
        copies = self.seed_times.copies(case, verified)
        keys = [key + FRESH + copy for copy in range(copies)]
        if copies > 1:
            program = self.programs.build(loaded, case, [self.programs.inputs(case, key)], copies)
            program.replay()  # the first replay takes longer and is not timed
            drawn = self._written(case, program, keys)
            if not program.inputs_are_equal():  # some tasks have few different inputs
                return program, drawn, keys
        return verified, self._written(case, verified, keys[:1]), keys[:1]

    def _written(self, case: Case, program: Program, keys: Sequence[int]) -> list[tuple[Any, ...]]:
        """Returns the inputs of each key, after they were written to a copy of the program."""
        drawn = [self.programs.inputs(case, key) for key in keys]
        program.write_all(drawn)
        return drawn

    def _own_time(self, case: Case, program: Program) -> float:
        """Returns the share of own kernels in the time of all steps.  Raises Stop if it is too little."""
        own = self.timer.own_share(program)
        check_share(self.task, case.name, program.plan, own, "the time on the GPU", "time")
        return own

    def _check_roofline(self, case: Case, time_us: float) -> None:
        """Raises Stop(REJECTED) if the time is impossible."""
        check_roofline(self.task, case, self.facts, time_us)

    def _terms(self, case: Case, found: PairedBlock, floor: float, copies: int) -> dict[str, float]:
        """Returns what is stored beside the times: how they were taken, and rates against the measured ceilings.

        floor: of the baseline beside itself; the resolution of the samples may be coarser.
        """
        sample_us = copies * min(statistics.median(found.own_us), statistics.median(found.baseline_us))
        floor = max(floor, resolution(sample_us))
        terms = {"noise_floor": floor, SIGNIFICANT: float(counts(found.ratio, floor))}
        terms |= {"launches_per_sample": float(copies), "pairs": float(found.ratio.pairs)}
        terms |= {"blocks_retaken": float(found.retaken), "baseline_drift": found.drift}
        return terms | rates(self.task, case, self.facts, statistics.median(found.own_us))


def _timing(case: Case, found: PairedBlock, terms: dict[str, float]) -> Timing:
    return Timing(
        case=case.name,
        samples_us=tuple(found.own_us),
        baseline_us=tuple(found.baseline_us),
        ratio=found.ratio.ratio,
        ci95=(found.ratio.low, found.ratio.high),
        estimated=False,
        terms=terms,
        weight=case.weight,
    )


# --- ceilings --------------------------------------------------------------------------------------------------------


def check_roofline(task: Task, case: Case, facts: DeviceFacts, time_us: float) -> None:
    """Raises Stop(REJECTED) if the time is impossible."""
    if message := roofline.impossible(case.name, time_us, _limit_us(task, case, facts), facts.name):
        raise Stop("time", Verdict.REJECTED, message)


def _limit_us(task: Task, case: Case, facts: DeviceFacts) -> float:
    """Returns microseconds that no kernel can beat.  Data that fits into the L2 cache may still be there at the end."""
    moved = task.bytes(case) if task.bytes else 0.0
    flops = task.flops(case) if task.flops else 0.0
    memory_s = max(moved - facts.l2_bytes, 0.0) / facts.dram_bytes_per_s
    return 1e6 * max(memory_s, flops / (narrowest_rate(facts.capability) * MATMUL_HEADROOM * facts.matmul_flops))


def rates(task: Task, case: Case, facts: DeviceFacts, time_us: float) -> dict[str, float]:
    """Returns GB/s and TFLOP/s, and their share of the measured rates of copies and matrix products.

    Empty if the task does not say how much work it is.
    """
    found: dict[str, float] = {}
    if task.bytes:
        rate = task.bytes(case) / (time_us / 1e6)
        found |= {"gb_per_s": rate / 1e9, "of_copy_rate": rate / facts.copy_bytes_per_s}
    if task.flops:
        rate = task.flops(case) / (time_us / 1e6)
        found |= {"tflop_per_s": rate / 1e12, "of_matmul_rate": rate / facts.matmul_flops}
    return found

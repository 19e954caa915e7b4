"""Certifies a candidate: runs its real Python eagerly on the GPU in a fresh sandboxed process, on fresh inputs.

Recorded plans are verified and timed; a certificate shows that the Python they were recorded from does the same.
Inputs come from the runner as files, and outputs go back as files; meanwhile it evaluates others.  The runner compares
them: within the oracle's budget, and to the bit with the plan if the task is deterministic.

`quick` takes the task's cases.  `full` adds sizes that are not the task's, times of the eager calls,
compute-sanitizer, and values that a task without stressed inputs does not draw.  Every candidate is compared with the
seed.  If the seed's own Python cannot run like this, the machine or the task is at fault.  A size that the seed cannot
handle is not asked of a candidate, nor an unseen size if only the seed says what is right.

Without a seed kernel, a kernel of evo's own shows whether the machine can run Triton like this.  The sizes are those at
which the reference works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import Candidate, Case, Certificate, Evidence, Verdict
from fitness.certify.sanitize import TOOLS, SanitizerFinding, sanitize
from fitness.frontend.stages import Stop, expect_ok
from fitness.frontend.target import get_target, machine, sm_name
from fitness.gpu.eager_check import Match
from fitness.gpu.exchange import MalformedAnswer, checked_answer
from fitness.gpu.launch_bundle import make_bundle
from fitness.gpu.runner import LaunchBundle, Report, Runner
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import remove, scratch_folder, scratch_root
from fitness.sandbox.zygote import Zygote
from fitness.tasks import other_inputs, pytorch_plan
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task

# Limits of the eager process: a CUDA context, a C compiler for Triton's launchers, the kernels, gigabytes of tensors.
LIMITS = Limits(wall_s=120.0, cpu_s=240, memory_bytes=32 << 30, file_bytes=16 << 30)
DEVICE = "cuda"
ELSEWHERE = "other values"
SAMPLES = 30  # eager calls that are timed.
MOST_UNSEEN = 4  # sizes that are derived from a task's own.
# Shows that this machine can run Triton's kernels as `python` does, if a task has no seed kernel.
OWN_KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), 1.0)


def entry():
    y = torch.empty(16, device="cuda")
    kernel[(1,)](y, BLOCK=16)
    return y
"""
OF_SEED = "right is what the seed kernel computes, which is known at the task's own sizes alone"
SHRINK = 7  # a derived size is smaller by one part in SHRINK, and so rarely a multiple of anything.


def unseen_cases(task: Task) -> list[Case]:
    """Returns sizes that no candidate has seen: the task's `certify`, or its smallest case with one axis changed."""
    if task.certify:
        return list(task.certify)
    base = min(task.cases, key=lambda case: math.prod(case.axes.values()))
    return [_changed(base, axis) for axis in base.axes if base.axes[axis]][:MOST_UNSEEN]


def _changed(base: Case, axis: str) -> Case:
    axes, small = ({**sizes, axis: _other(sizes[axis])} for sizes in (base.axes, base.on_cpu().axes))
    name = f"{base.name} with {axis}={axes[axis]}"
    return dataclasses.replace(base, name=name, axes=axes, cpu_axes=small, role="holdout")


def _other(size: int) -> int:
    return size - max(1, size // SHRINK) if size > 1 else size + 1


class Certifier:
    """Certifies candidates of one task on the GPU of one runner."""

    def __init__(self, task: Task, runner: Runner, zygote: Zygote | None = None) -> None:
        """Keeps both.  The runner and a given `zygote` (for job "eager") are shared with others and not closed here."""
        self._task, self._runner = task, runner
        facts = runner.facts
        self._compiled_for, self._gpu = sm_name(facts["capability"]), facts["uuid"]
        self._root = scratch_root()
        self._zygote, self._shared = zygote, zygote is not None
        self._recorder: Zygote | None = None  # started by a first full certificate
        self._calls = Calls(task, self._root)
        self._reference: Certificate | None = None  # the seed's
        self._unseen: tuple[list[Case], list[Evidence]] | None = None
        self._lock = threading.Lock()  # the seed is tried once

    def close(self) -> None:
        for zygote in (None if self._shared else self._zygote, self._recorder):
            if zygote is not None:
                zygote.close()
        remove(self._root)

    def quick(self, source: str, bundle: LaunchBundle, *, seed: str) -> Certificate:
        """Certifies on the task's cases.

        bundle: of this very source, with `choices`.  The seed is tried only if this fails.
        """
        certificate = self._eager(source, bundle, self._task.cases, seed, samples=0)
        if certificate.verdict is Verdict.OK or (problem := self._problem()) is None:
            return certificate
        return dataclasses.replace(problem, candidate=Candidate(source).id)

    def full(self, source: str, *, seed: str) -> Certificate:
        """Certifies on the task's cases and on other sizes, with times, and under compute-sanitizer."""
        self._start_recorder()  # it takes as long as the seed's processes
        if (problem := self._problem()) is not None:
            return dataclasses.replace(problem, candidate=Candidate(source).id)
        allowed, left_out = self._allowed(seed)
        cases = [*self._task.cases, *allowed]
        small = [dataclasses.replace(case.on_cpu(), name=f"{case.name}, small") for case in cases]
        try:
            bundle = self._bundle(source, [*cases, *small])
        except Stop as stop:
            return self._failed(source, stop.verdict, f"at stage {stop.stage}: {stop.message}", seed=seed)
        with self._sanitizing(bundle, small, seed) as sanitized:
            certificate = self._eager(source, bundle, cases, seed, samples=SAMPLES)
            checks = [*certificate.checks, *left_out]
            if certificate.verdict is not Verdict.OK:
                return dataclasses.replace(certificate, checks=tuple(checks))
            checks += map(_sanitized, sanitized)
        checks += self._elsewhere(bundle, seed)
        bad = next((check for check in checks if check.outcome == "failed"), None)
        verdict, message = (Verdict.OK, "") if bad is None else (Verdict.RUNTIME_ERROR, f"{bad.what}: {bad.detail}")
        return dataclasses.replace(certificate, verdict=verdict, message=message, checks=tuple(checks))

    # --- the seed ----------------------------------------------------------------------------------------------------

    def _problem(self) -> Certificate | None:
        """Returns why nothing can be certified, found by trying the seed; None if the seed can be certified."""
        with self._lock:
            if self._reference is None:
                self._reference = self._first()
        if self._reference.verdict is Verdict.OK:
            return None
        what = "the seed kernel's own Python" if self._task.seed_source is not None else "a kernel of evo's own"
        message = f"{what} cannot be run eagerly here: {self._reference.message}"
        return dataclasses.replace(
            self._reference,
            verdict=Verdict.INFRASTRUCTURE,
            message=message,
            checks=(Evidence("eager", "not run", message),),
        )

    def _first(self) -> Certificate:
        """Returns the certificate of the seed kernel; without one, of a kernel of evo's own, which nothing judges."""
        if self._task.seed_source is not None:
            return self._eager(self._task.seed_source, None, self._task.cases, "seed", samples=0)
        call = {"name": "0", "args": [], "written": [], "samples": 0}
        with scratch_folder(self._root) as folder:
            try:
                answers, layers = self._run_eagerly(OWN_KERNEL, "entry", [call], folder)
            except Stop as stop:
                return self._failed(OWN_KERNEL, stop.verdict, stop.message)
        answer = answers[0] if isinstance(answers, list) and answers else {"error": "no answer"}
        if not isinstance(answer, Mapping) or "error" in answer:
            return self._failed(OWN_KERNEL, Verdict.RUNTIME_ERROR, f"it answered {answer!r:.200}")
        return Certificate(Candidate(OWN_KERNEL).id, Verdict.OK, "", (), layers)

    def _allowed(self, seed: str) -> tuple[list[Case], list[Evidence]]:
        """Returns the unseen sizes that the seed handles, and the evidence for the others.

        None is allowed if the seed is the reference.  Found once: the sizes, and the seed's results on them, do not
        depend on a candidate.
        """
        if self._unseen is None:
            cases = unseen_cases(self._task)
            if self._task.seed_source is None:
                self._unseen = _by_reference(self._task, self._calls, cases)
                return self._unseen
            if self._task.reference is None:  # the runner has the seed's plans for these sizes alone
                self._unseen = [], [Evidence(_name(case), "not run", OF_SEED) for case in cases]
                return self._unseen
            found = self._eager(self._task.seed_source, None, cases, seed, samples=0)
            good = {check.what for check in found.checks if check.outcome == "passed"}
            allowed = [case for case in cases if _name(case) in good]
            why = {check.what: check.detail for check in found.checks}
            left_out = [
                Evidence(_name(case), "not run", f"the seed does not handle it: {why.get(_name(case), found.message)}")
                for case in cases
                if case not in allowed
            ]
            self._unseen = allowed, left_out
        return self._unseen

    def _elsewhere(self, bundle: LaunchBundle, seed: str) -> list[Evidence]:
        """Returns how the plans do on values that the task does not draw.

        Only the seed kernel says what is right there, and its arguments may have to fit together.  So a difference is
        noted, and does not fail the certificate.
        """
        if not other_inputs.tried(self._task):
            return []
        names = {case.name for case in self._task.cases}
        own = dataclasses.replace(bundle, plans={name: plan for name, plan in bundle.plans.items() if name in names})
        found = self._runner.elsewhere(own, seed=seed)
        if isinstance(found, Report):
            return [Evidence(ELSEWHERE, "not run", found.message)]
        return [_noted(case, report) for case, report in found.items()]

    # --- steps -------------------------------------------------------------------------------------------------------

    def _start_recorder(self) -> Zygote:
        self._recorder = self._recorder or Zygote(get_target(self._compiled_for).spec, ("record", "compile"))
        return self._recorder

    def _bundle(self, source: str, cases: Sequence[Case]) -> LaunchBundle:
        """Returns the bundle to replay.  The source has one configuration for each launch.  Raises Stop."""
        recorder = self._start_recorder()
        calls = [{"name": case.name, "args": self._calls.describe(case)} for case in cases]
        target = machine(get_target(self._compiled_for), self._runner.facts)
        with scratch_folder(self._root) as folder:
            bundle = make_bundle(
                source, self._task, calls,
                zygote=recorder, target=target.spec, scratch=folder, limits=LIMITS,
            )  # fmt: skip
        choices = {name: [0] * len(plan.launches) for name, plan in bundle.plans.items()}
        return dataclasses.replace(bundle, choices=choices)

    @contextlib.contextmanager
    def _sanitizing(
        self, bundle: LaunchBundle, cases: Sequence[Case], seed: str
    ) -> Iterator[Iterator[SanitizerFinding]]:
        """Runs the sanitizers meanwhile.  Yields their findings, each once its tool has finished.

        Their processes start at once.  Each gets the GPU after the one before, which ends it if it found errors.  When
        the caller is done, also by an error or Ctrl-C, all are ended.
        """
        stop = threading.Event()
        turns = [threading.Event() for _ in range(len(TOOLS) + 1)]
        turns[0].set()
        with scratch_folder(self._root) as folder, ThreadPoolExecutor(len(TOOLS)) as pool:

            def run(number: int, tool: str) -> SanitizerFinding:
                finding = sanitize(
                    tool, self._task.folder, bundle, cases, seed=seed, folder=folder, gpu=self._gpu, stop=stop,
                    begin=turns[number],
                )  # fmt: skip
                (stop if finding.errors else turns[number + 1]).set()
                return finding

            try:
                yield pool.map(run, range(len(TOOLS)), TOOLS)
            finally:
                stop.set()

    def _eager(
        self, source: str, bundle: LaunchBundle | None, cases: Sequence[Case], seed: str, *, samples: int
    ) -> Certificate:
        """Runs one process, every case on inputs of its own. bundle: what to compare with to the bit."""
        layers: tuple[str, ...] = ()
        answers: list[Mapping[str, Any]] = []

        def run(drawn: list[list[dict[str, Any]]]) -> Sequence[Mapping[str, Any]]:
            nonlocal layers
            timed = [samples if case.role == "tune" else 0 for case in cases]
            calls = [
                {"name": str(number), "args": args, "written": list(self._task.written), "samples": times}
                for number, (args, times) in enumerate(zip(drawn, timed, strict=True))
            ]
            with self._runner.idle() if samples else contextlib.nullcontext():  # Nothing disturbs its times.
                found, layers = self._run_eagerly(source, self._task.entry, calls, folder)
            answers.extend(_checked(found, cases))
            return answers

        exact = bundle if self._task.deterministic and not _delegates(bundle) else None
        with scratch_folder(self._root) as folder:
            try:
                matches = self._runner.compare(exact, cases, seed=seed, folder=folder, run=run)
            except Stop as stop:
                return dataclasses.replace(self._failed(source, stop.verdict, stop.message, seed=seed), layers=layers)
        if isinstance(matches, Report):
            message = f"the results could not be compared: {matches.message}"
            return self._failed(source, Verdict.INFRASTRUCTURE, message, seed=seed)
        checks = [_compared(c, m, a) for c, m, a in zip(cases, matches, answers, strict=True)]
        # A case without a finite reference is skipped, as in verification; if all are, nothing is certified.
        failed = [m for m in matches if m.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE)]
        if not failed and all(m.verdict is Verdict.INFRASTRUCTURE for m in matches):
            failed = list(matches)
        verdict, message = (failed[0].verdict, f"{failed[0].case}: {failed[0].message}") if failed else (Verdict.OK, "")
        return Certificate(Candidate(source).id, verdict, message, tuple(checks), layers, seed)

    def _run_eagerly(
        self, source: str, entry: str, calls: Sequence[Mapping[str, Any]], folder: Path
    ) -> tuple[Any, tuple[str, ...]]:
        """Runs host code in a fresh process with the GPU; returns its answers, unchecked, and the sandbox's layers."""
        payload = {"source": source, "entry": entry, "device": DEVICE, "calls": list(calls)}
        try:
            self._zygote = self._zygote or Zygote(get_target(self._compiled_for).spec, ("eager",), self._gpu)
            result = self._zygote.run("eager", payload, scratch=folder, limits=LIMITS)
        except EvoError as error:  # no such process can be started here
            raise Stop("certify", Verdict.INFRASTRUCTURE, str(error)) from error
        return expect_ok("certify", result).get("calls"), result.layers

    def _failed(self, source: str, verdict: Verdict, message: str, *, seed: str = "") -> Certificate:
        outcome = "not run" if verdict is Verdict.INFRASTRUCTURE else "failed"
        return Certificate(Candidate(source).id, verdict, message, (Evidence("eager", outcome, message),), (), seed)


def not_run(source: str, why: str) -> Certificate:
    """Returns the certificate of a machine that cannot certify."""
    checks = tuple(Evidence(what, "not run", why) for what in ("eager", *TOOLS))
    return Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, why, checks)


def _delegates(bundle: LaunchBundle | None) -> bool:
    """Returns whether libraries do part of the work: they may choose other algorithms in another process."""
    return bundle is not None and any(plan.delegated for plan in bundle.plans.values())


def _by_reference(task: Task, calls: Calls, cases: Sequence[Case]) -> tuple[list[Case], list[Evidence]]:
    """Returns the sizes at which the reference works, tried on shapes alone, and the evidence for the others."""
    allowed, left_out = [], []
    for case in cases:
        try:
            pytorch_plan.recorded(task, calls.describe(case), pytorch_plan.reference_call)
            allowed.append(case)
        except Exception as error:  # the user's own code, which was not written for such a size
            left_out.append(Evidence(_name(case), "not run", f"the reference does not handle it: {error}"))
    return allowed, left_out


def _checked(calls: Any, cases: Sequence[Case]) -> list[Mapping[str, Any]]:
    """Returns the answers of an untrusted process, one for each case.  Raises Stop if they are malformed."""
    if not isinstance(calls, list) or len(calls) != len(cases):
        message = f"the eager process did not answer for all {len(cases)} cases"
        raise Stop("certify", Verdict.RUNTIME_ERROR, message)
    return [_sound(call, case) for call, case in zip(calls, cases, strict=True)]


def _sound(call: Any, case: Case) -> Mapping[str, Any]:
    try:
        return checked_answer(call, timed=True)
    except MalformedAnswer as error:
        message = f"{case.name}: the eager process gave a malformed answer: {error}"
        raise Stop("certify", Verdict.RUNTIME_ERROR, message) from error


def _name(case: Case) -> str:
    return f"eager: {case.name}"


def _compared(case: Case, match: Match, answer: Mapping[str, Any]) -> Evidence:
    if match.verdict is not Verdict.OK:
        outcome = "not run" if match.verdict is Verdict.INFRASTRUCTURE else "failed"
        return Evidence(_name(case), outcome, match.message)
    how = "equal to the plan to the bit" if match.bitwise else "within the oracle's budget"
    figures = {"max_error": match.max_error}
    samples = answer["samples_us"]
    if samples:
        figures |= {"eager_us": statistics.median(samples), "samples": float(len(samples))}
    return Evidence(_name(case), "passed", f"{how}, arguments not modified", figures)


def _noted(case: str, report: Report) -> Evidence:
    """Returns the evidence of a case on values that the task does not draw."""
    outcome = {Verdict.OK: "passed", Verdict.WRONG: "noted"}.get(report.verdict, "not run")
    return Evidence(f"{ELSEWHERE}: {case}", outcome, report.message or "within the budget of the seed kernel")


def _sanitized(finding: SanitizerFinding) -> Evidence:
    """Returns the evidence of a sanitizer.

    Racecheck looks at shared memory, which the source of a Triton kernel does not mention.  Its findings are the
    compiler's (known of reductions) or its own mistakes (of asynchronous copies), so they are only noted.
    """
    if finding.problem:
        return Evidence(finding.tool, "not run", finding.problem)
    if not finding.errors:
        return Evidence(finding.tool, "passed", finding.text)
    outcome = "noted" if finding.tool == "racecheck" else "failed"
    return Evidence(finding.tool, outcome, finding.text, {"errors": float(finding.errors)})

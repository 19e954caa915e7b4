"""Starts and asks the trusted process of one GPU, as seen from the host; the process can be killed.

`Runner` owns one long-lived process (`fitness/gpu/runner_process.py`) with a warm CUDA context.  It gets plans and
machine code, never Python of a candidate.  A kernel can hang the process or break its context.  Then it is killed, and
a new process gets the baseline (which also shows that the GPU works).  A candidate that broke the context gets a second
try, which distinguishes a flake from a fault.  One that hangs does not: others wait for the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core.errors import EvoError
from evo.core.records import Case, Check, Timing, Verdict
from fitness.frontend.plan import LaunchPlan
from fitness.gpu.eager_check import Match
from fitness.gpu.timing import LOOKS
from fitness.sandbox.layers import python_path

if TYPE_CHECKING:
    from fitness.gpu.baselines import Baseline

LOCK_S = 1800.0  # that others may keep the GPU; each request of theirs has an end.
START_S = 300.0  # importing torch from a cold disk, creating a context, measuring the ceilings.
EXCHANGE_S = 900.0  # for the files of a certificate; meanwhile others may have the GPU
ATTEMPTS = 2  # of a candidate whose kernels bring the process down.
# Seconds on the GPU after which a candidate counts as hung: the first, and some for each that the seed kernel took.
HUNG_S, HUNG_TIMES = 20.0, 20

# Seconds for verifying one kernel in the seed's place: an idle kernel may wait for what nobody writes, and a reference
# may take hours on inputs that the task does not draw.  Others wait for the GPU meanwhile.
BESIDE_S = 30.0

MOST_READ, MOST_SAID = 100_000, 600  # characters: of what a process that died wrote, and of its last error
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception)\b", re.MULTILINE)

# Descriptions of the arguments of each case -> answers in the form of `fitness.certify.eager.job`.
Run = Callable[[list[list[dict[str, Any]]]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class LaunchBundle:
    """What a candidate asks of the device, case by case (by name, tune and holdout), at the target's sizes.

    `builds[case][launch][configuration]` are items of "builds" from `fitness.frontend.compile.job`, `cubins` the
    machine code by their "cubin". `choices[case]` names the configuration of each launch; without choices the runner
    selects them.
    """

    plans: Mapping[str, LaunchPlan]
    builds: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
    cubins: Mapping[str, bytes]
    choices: Mapping[str, Sequence[int]] = field(default_factory=dict)


NO_KERNEL = LaunchBundle({}, {}, {})  # in the place of a seed kernel, if a task has none: PyTorch is its baseline


@dataclass(frozen=True)
class Report:
    """The result of a LaunchBundle.  `check`, `timings` and `choices` exist for OK, a `message` for everything else.

    fault: the runner's process had to be replaced; note: a first try that a second one did not confirm; seconds: the
    GPU's work on it, without waiting for the GPU lock or for a new process; begun: False if nothing was executed, as
    others kept the GPU.
    """

    verdict: Verdict
    stage: str
    message: str = ""
    check: Check | None = None
    timings: tuple[Timing, ...] = ()
    choices: Mapping[str, Sequence[int]] = field(default_factory=dict)
    fault: bool = False
    note: str = ""
    seconds: float = 0.0
    infinite: Sequence[str] = ()  # of `verify`: cases whose outputs hold infinities
    begun: bool = True


class Runner:
    """Verifies and times candidates of one task on one GPU, one at a time.  Thread-safe."""

    def __init__(
        self,
        task: str | os.PathLike[str],
        *,
        device: int = 0,
        wall_s: float = 30.0,
        looks: Sequence[int] = LOOKS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts nothing yet.

        task: built-in name or folder; wall_s: the most that a candidate may take before it counts as hung (less if the
        seed kernel is quick: HUNG_S and HUNG_TIMES); looks:
        numbers of pairs after which a comparison may stop (`fitness.gpu.timing.Stopping`); settings: of a run
        (`Task.run_settings`), None: those of the task's files.
        """
        given = json.dumps(None if settings is None else dict(settings))
        self._command = [os.fspath(task), str(device), ",".join(map(str, looks)), given]
        self._device, self._wall_s = device, wall_s
        self._baseline: LaunchBundle | None = None
        self._baseline_s = 0.0  # that it took on the GPU
        self._facts: Mapping[str, Any] = {}  # once they are known, a new process need not measure them.
        self._lock = threading.RLock()  # a thread that holds `idle` may ask again.
        # Held while another process has the inputs of `compare` and uses the GPU; taken before `_lock`, never after it.
        self._exchanging = threading.Lock()
        self._exchanges_begun = self._exchanges_ended = 0
        self._process: _RunnerProcess | None = None
        self._closed = False
        self.respawns = 0

    def prepare(self, bundle: LaunchBundle) -> Report:
        """Verifies the seed kernel and makes it the baseline of everything that follows.

        bundle: NO_KERNEL for a task without a seed kernel; then PyTorch is timed.
        """
        with self._lock:
            self._baseline = None
            report = self._timed("prepare", bundle, wall_s=START_S)
            if report.verdict is Verdict.OK:
                self._baseline, self._baseline_s = bundle, report.seconds
            return report

    def evaluate(self, bundle: LaunchBundle, *, seed: str) -> Report:
        """Verifies and times a candidate; `seed` keys its inputs.  Raises EvoError if no runner can be had."""
        return self._tried("evaluate", bundle, seed)

    def look(self, bundle: LaunchBundle, *, seed: str) -> Report:
        """Verifies a candidate once on each tune case, which is all that `bundle` needs, and times it coarsely.

        An OK report says no more than that.
        """
        return self._tried("look", bundle, seed)

    def _tried(self, kind: str, bundle: LaunchBundle, seed: str) -> Report:
        """Returns the report.  A candidate that lacked memory while another process had some is tried again without."""
        ended = self._exchanges_ended
        report = self._tried_now(kind, bundle, seed)
        if report.verdict is Verdict.OUT_OF_MEMORY and self._exchanges_begun > ended:
            with self._exchanging:  # the memory may have been that process's
                again = self._tried_now(kind, bundle, seed)
            return replace(again, seconds=report.seconds + again.seconds)
        return report

    def _tried_now(self, kind: str, bundle: LaunchBundle, seed: str) -> Report:
        """Returns the report.  A candidate that brings the process down is tried again, but not one that hangs.

        If others kept the GPU it is not tried again either: to wait once more takes as long.
        """
        with self._lock:
            if self._baseline is None:
                raise EvoError("the runner has no baseline yet: call prepare() with the seed kernel first")
            first, seconds = "", 0.0
            wall_s = min(self._wall_s, HUNG_S + HUNG_TIMES * self._baseline_s)
            for _ in range(ATTEMPTS):
                report = self._timed(kind, bundle, seed, wall_s=wall_s)
                seconds += report.seconds
                if not report.fault or not report.begun or report.verdict is Verdict.TIMEOUT:
                    break
                first = first or report.message
            note = f"first try: {first}" if first and not report.fault else report.note
            return replace(report, note=note, seconds=seconds)

    def compare(
        self, bundle: LaunchBundle | None, cases: Sequence[Case], *, seed: str, folder: Path, run: Run
    ) -> list[Match] | Report:
        """Has `run` execute a candidate elsewhere on fresh inputs, and compares its results with oracle and plans.

        This runner evaluates others while `run` works, and so may others on the GPU. bundle: plans (with choices) whose
        outputs must be equal to the bit, or None; folder: for inputs and outputs.  Returns a Report if the comparison
        failed.
        """
        with self._lock:
            drawn = self._ask("draw", cases, seed, str(folder), wall_s=EXCHANGE_S)
        if isinstance(drawn, Report):
            return drawn
        with self._exchanging:
            self._exchanges_begun += 1
            try:
                answers = run(drawn)
            finally:
                self._exchanges_ended += 1
        with self._lock:
            return self._ask("compare", bundle, cases, seed, str(folder), answers, wall_s=EXCHANGE_S)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Holds the GPU lock meanwhile: for others who use the GPU for a while, with this runner or without.

        Raises EvoError if it does not get it.
        """
        with self._lock:
            if isinstance(failed := self._ask("take", wall_s=START_S), Report):
                raise EvoError(f"expected to have the GPU for a while, got: {failed.message}")
            try:
                yield
            finally:
                self._ask("leave", wall_s=START_S)

    def verify(self, task: str | os.PathLike[str], bundle: LaunchBundle) -> Report:
        """Verifies the seed kernel of another task, and times nothing: for suites, because a process each is slow."""
        with self._lock:
            return self._switch_to(task) or self._ask("verify", bundle, wall_s=self._wall_s)  # type: ignore[no-any-return]

    def beside(
        self, task: str | os.PathLike[str], seed: LaunchBundle, kernel: LaunchBundle, other: bool
    ) -> Mapping[str, Report]:
        """Verifies other kernels in the seed's place, each case that `kernel` has a plan of by itself; by case.

        other: on inputs that the task does not draw (`fitness.tasks.other_inputs`).
        """
        with self._lock:
            wall_s = min(self._wall_s, BESIDE_S)
            found = self._switch_to(task) or self._ask("beside", seed, kernel, other, wall_s=wall_s)
            if not isinstance(found, Report):
                return found  # type: ignore[no-any-return]
            if len(kernel.plans) == 1 or not found.begun:
                return dict.fromkeys(kernel.plans, found)
            one_by_one = ({case: plan} for case, plan in kernel.plans.items())  # one of them ended the process
            return {
                c: r
                for plans in one_by_one
                for c, r in self.beside(task, seed, replace(kernel, plans=plans), other).items()
            }

    def elsewhere(self, bundle: LaunchBundle, *, seed: str) -> Mapping[str, Report] | Report:
        """Verifies a candidate beside the seed kernel on values that the task does not draw; by case.

        seed: keys them.  Returns a Report if that failed as a whole.
        """
        with self._lock:
            return self._ask("elsewhere", bundle, seed, wall_s=START_S)  # type: ignore[no-any-return]

    def baselines(self, task: str | os.PathLike[str], bundle: LaunchBundle) -> list[Baseline] | Report:
        """Returns PyTorch's times beside those of the seed kernel of another task; a Report if that fails."""
        with self._lock:
            return self._switch_to(task) or self._ask("baselines", bundle, wall_s=START_S)  # type: ignore[no-any-return]

    def _switch_to(self, task: str | os.PathLike[str]) -> Report | None:
        """Has the process load another task; returns a Report if that fails."""
        self._baseline = None
        try:
            self._living().ask(("task", os.fspath(task)), START_S)
            return None
        except _Kept as kept:
            report = kept.report()
        except (TimeoutError, EOFError, OSError) as error:
            report = Report(Verdict.INFRASTRUCTURE, "verify", self._died(error), fault=True)
        self._end()
        return report

    def start(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Starts the process with the known properties of its GPU; returns these and the process's own."""
        with self._lock:
            self._facts = self._facts or facts
        return self.facts

    @property
    def facts(self) -> Mapping[str, Any]:
        """Returns `fitness.cuda.device.DeviceFacts` of the GPU as a dict."""
        with self._lock:
            self._living()
            return self._facts

    def close(self) -> None:
        """Ends the process, whatever it is doing; a request under way raises EvoError."""
        self._closed = True
        process = self._process
        if process is not None:
            process.stop()
        with self._lock:
            self._end()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the process -------------------------------------------------------------------------------------------------

    def _timed(self, kind: str, *request: Any, wall_s: float) -> Report:
        """Returns the report with its seconds; a process is started before they count."""
        process = self._living()
        report: Report = self._ask(kind, *request, wall_s=wall_s)
        return replace(report, seconds=process.worked_s)

    def _ask(self, kind: str, *request: Any, wall_s: float) -> Any:
        """Returns the answer, or a Report with a verdict."""
        process = self._living()
        try:
            return process.ask((kind, *request), wall_s)
        except _Kept as kept:
            report = kept.report()
        except TimeoutError:
            message = f"not finished after {wall_s:.0f} s on the GPU: a kernel that does not end, or far too slow"
            report = Report(Verdict.TIMEOUT, "verify", message, fault=True)
        except (EOFError, OSError) as error:
            report = Report(Verdict.RUNTIME_ERROR, "verify", self._died(error), fault=True)
        except _Broken as broken:
            report = broken.report
        self._end()
        return report

    def _died(self, error: Exception) -> str:
        """Returns how the process died.  Raises EvoError if `close` ended it."""
        if self._closed:
            self._end()
            raise EvoError("the runner is closed") from error
        said = self._process.last_words() if self._process else ""
        return f"the process on the GPU died ({type(error).__name__}); it said: {said or 'nothing'}"

    def _living(self) -> _RunnerProcess:
        """Returns the process; starts one if needed, which gets the baseline."""
        if self._closed:
            raise EvoError("the runner is closed")
        if self._process is None:
            self._process = process = _RunnerProcess([*self._command, json.dumps(dict(self._facts))])
            try:
                self._facts = process.ask(("facts",), START_S)
                if self._baseline is not None:
                    self.respawns += 1
                    report = process.ask(("prepare", self._baseline), START_S)
                    if report.verdict is not Verdict.OK:
                        raise EvoError(f"GPU {self._device} no longer runs the seed kernel: {report.message}")
            except (TimeoutError, EOFError, OSError, _Broken, EvoError) as error:
                said = process.last_words()
                self._end()
                message = (
                    f"expected a runner on GPU {self._device}, but it did not start: {error}; it said: {said or '-'}"
                )
                raise EvoError(message) from error
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def last_error(text: str) -> str:
    """Returns the beginning of the last error in what Python printed, which says what is wrong; without one, the end.

    An error for lack of device memory goes on with a list of all processes on the GPU.
    """
    errors = list(_ERROR.finditer(text))
    return text[errors[-1].start() :][:MOST_SAID].strip() if errors else text.strip()[-MOST_SAID:]


class _Kept(TimeoutError):
    """Others kept the GPU, so the process did not begin with the request."""

    def report(self) -> Report:
        return Report(Verdict.INFRASTRUCTURE, "verify", str(self), fault=True, begun=False)


class _Broken(Exception):
    """The process answered, but its CUDA context is unusable."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.message)
        self.report = report


class _RunnerProcess:
    """One runner process and the connection to it.  `worked_s`: seconds of the last request, without its wait."""

    worked_s = 0.0

    def __init__(self, arguments: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        command = [sys.executable, "-P", "-m", "fitness.gpu.runner_process", str(theirs.fileno()), *arguments]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,  # Ctrl-C in the terminal is for the driver alone.
        )
        theirs.close()
        self._connection = Connection(ours.detach())

    def ask(self, request: tuple, wall_s: float) -> Any:
        """Returns the answer, at most `wall_s` after the process got the GPU lock.

        Raises _Kept if it did not get the lock, TimeoutError, EOFError or OSError (it died), _Broken (its context did).
        """
        self.worked_s = 0.0
        self._connection.send(request)
        if not self._connection.poll(LOCK_S):
            raise _Kept(f"another process has kept the GPU, or PyTorch has compiled, for {LOCK_S:g} s")
        self._connection.recv()  # it has the GPU lock
        begin = time.perf_counter()
        try:
            if not self._connection.poll(wall_s):
                raise TimeoutError(f"no answer within {wall_s:g} s")
            answer = self._connection.recv()
        finally:
            self.worked_s = time.perf_counter() - begin
        if isinstance(answer, Report) and answer.fault:
            raise _Broken(answer)
        return answer

    def last_words(self) -> str:
        """Returns the last error that it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._errors.seek(0)
        return last_error(self._errors.read()[-MOST_READ:].decode(errors="replace"))

    def stop(self) -> None:
        """Kills it; a request under way then raises EOFError."""
        self._process.kill()

    def kill(self) -> None:
        """Kills it and releases its resources."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._errors.close()

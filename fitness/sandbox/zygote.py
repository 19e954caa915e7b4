"""Runs jobs in sandboxed forks of a warm process, the zygote (`fitness/sandbox/zygote_process.py`).

This is the driver's side:

    with Zygote("sm_90") as zygote:
        result = zygote.run("record", payload, scratch=folder, limits=Limits())

`run` may be called from many threads at once; each call is one child process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import Verdict
from evo.core.text import plain, short
from fitness.sandbox.jobs import JobResult, Limits, reported_error
from fitness.sandbox.layers import clean_environment
from fitness.sandbox.scratch import NO_SPACE, no_space
from fitness.sandbox.zygote_process import read_frame, send_frame

JOBS = ("record", "compile", "interpret", "trace")
# Sandbox profiles by job; every other job runs in "strict".  `capture` may start threads: torch built for CUDA does so
# in a backward pass.
PROFILES = {"compile": "compiler", "fitness.suites.capture": "compiler", "eager": "gpu"}
# Lower limits on each file that a job writes, by job.  It writes its source, or what a compiler makes of it.  Existing
# files that it maps do not count.
FILE_BYTES = {"record": 16 << 20, "trace": 16 << 20, "interpret": 16 << 20, "compile": 256 << 20}
# Limits on all files that a job adds to its folder.  Several compile jobs may share one folder; all their files count.
DISK_BYTES = {"record": 64 << 20, "trace": 64 << 20, "interpret": 64 << 20, "compile": 1 << 30}
SCRATCH_BYTES = {"record": 64 << 20}  # `record` needs no files afterwards, so its folder is in memory.
# Lower limits on results.  A build takes about 700 bytes, and a kernel has at most 64 configurations.  The interpreter
# writes its output to files.
RESULT_BYTES = {
    "compile": 8 << 20,
    "interpret": 1 << 20,
    "fitness.validation.draft_rehearsal": 1 << 20,
}
BYTES_A_MARK = 8  # a result may have one bracket or comma per 8 bytes of its limit; plans have one per 7 bytes.
START_S = 120.0  # importing torch and Triton from a cold disk takes tens of seconds.
GRACE_S = 60.0  # time for the zygote to enforce a deadline on an overloaded machine, before it counts as hung.


class Zygote:
    """A warm process and the jobs it can fork.

    target: `Target.spec` of the GPU that jobs warm up for (`fitness.frontend.target`).
    jobs: names of modules in `fitness` with a function `job` (see `fitness/sandbox/zygote_process.py`).
    gpu: the only GPU that jobs see (an index or a UUID, as in CUDA_VISIBLE_DEVICES), "" for none.

    The process starts immediately, in the background; the first `run` waits for it.  When it dies, running jobs end as
    INFRASTRUCTURE.  The next `run` then starts another one, unless it died before it finished any job.
    """

    def __init__(self, target: str, jobs: Sequence[str] = JOBS, gpu: str = "") -> None:
        self._target, self._jobs, self._gpu = target, tuple(jobs), gpu
        self._lock = threading.Lock()
        self._closed = False
        self._process = _ZygoteProcess(self._target, self._jobs, self._gpu)

    def run(
        self, job: str, payload: Mapping[str, Any], *, scratch: Path, limits: Limits, shared: Path | None = None
    ) -> JobResult:
        """Runs one job in a child, waits for its end and returns its result.

        payload: anything that is valid JSON.
        scratch: an existing folder, the only one the job can write to.
        shared: another folder, which the job may read.
        Raises EvoError if no zygote can be started.  Whatever the job does becomes a JobResult.
        """
        if job not in self._jobs:
            raise ValueError(f"this zygote runs {', '.join(self._jobs)}, got {job!r}")
        profile = PROFILES.get(job, "strict")
        limits = replace(
            limits,
            file_bytes=min(limits.file_bytes, FILE_BYTES.get(job, limits.file_bytes)),
            disk_bytes=DISK_BYTES.get(job, limits.disk_bytes),
            result_bytes=min(limits.result_bytes, RESULT_BYTES.get(job, limits.result_bytes)),
            scratch_bytes=SCRATCH_BYTES.get(job, limits.scratch_bytes),
        )
        header = {
            "job": job,
            "profile": profile,
            "scratch": str(scratch.resolve(strict=True)),
            "shared": str(shared.resolve(strict=True)) if shared else None,
            "limits": asdict(limits),
        }
        process = self._running_process()
        process.wait_ready()
        try:
            pending = process.ask(header, json.dumps(payload).encode())
            answer, body = pending.result(limits.most_s(profile) + GRACE_S)
        except FutureTimeout:
            process.kill()
            return _infrastructure(f"the zygote did not answer within {GRACE_S:.0f} s after the job's deadline")
        except ConnectionError as error:
            return _infrastructure(str(error))
        return classify(answer, body, limits, profile)

    @property
    def layers(self) -> dict[str, str]:
        """Sandbox layers of this machine: "active" or the reason why not."""
        process = self._running_process()
        process.wait_ready()
        return process.layers

    def close(self) -> None:
        """Ends the zygote and every job; calls of `run` in other threads return INFRASTRUCTURE."""
        with self._lock:
            self._closed = True
            self._process.close()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_process(self) -> _ZygoteProcess:
        with self._lock:
            if self._closed:
                raise RuntimeError("this zygote is closed")
            if self._process.dead:
                self._process.close()
                if not self._process.finished:
                    raise EvoError(
                        "expected the zygote (python -m fitness.sandbox.zygote_process) to keep running, but it died "
                        f"before it finished a job; its last output:\n{self._process.log_tail}"
                    )
                self._process = _ZygoteProcess(self._target, self._jobs, self._gpu)
            return self._process


class _ZygoteProcess:
    """One zygote process: a socket, a thread that reads answers, the futures that wait for them."""

    def __init__(self, target: str, jobs: Sequence[str], gpu: str) -> None:
        self.layers: dict[str, str] = {}
        self.log_tail = ""
        self.finished, self.dead = 0, False
        self._ready, self._started = threading.Event(), False
        self._sending, self._state = threading.Lock(), threading.Lock()
        self._pending: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._ids = itertools.count()
        self._home = Path(tempfile.mkdtemp(prefix="evo-zygote-"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process writes to it
        self._sock, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "fitness.sandbox.zygote_process",
                    str(theirs.fileno()),
                    str(self._home),
                    target,
                    *jobs,
                ],
                env=_environment(self._home, gpu),
                cwd=self._home,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
            )
        threading.Thread(target=self._read, name="zygote-reader", daemon=True).start()

    def wait_ready(self) -> None:
        if not self._ready.wait(START_S):
            self.kill()
            raise EvoError(f"expected the zygote to be ready within {START_S:.0f} s; is the machine overloaded?")
        if not self._started:
            if NO_SPACE in self.log_tail:
                raise no_space()
            raise EvoError(
                "expected the zygote (python -m fitness.sandbox.zygote_process) to start, but it ended; "
                f"its last output:\n{self.log_tail or '(none)'}"
            )

    def ask(self, header: dict[str, Any], body: bytes) -> Future[tuple[dict[str, Any], bytes]]:
        """Sends a request.  The future gets the answer, or ConnectionError if the zygote dies before that."""
        future: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._state:
            number = next(self._ids)
            if self.dead:
                future.set_exception(ConnectionError(self._why_it_ended()))
                return future
            self._pending[number] = future
        try:
            with self._sending:
                send_frame(self._sock, {**header, "id": number}, body)
        except OSError:
            self.kill()  # the reader sees the end of the stream and answers all callers
        return future

    def kill(self) -> None:
        self._popen.kill()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is dead already
            self._sock.shutdown(socket.SHUT_RDWR)
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _read(self) -> None:
        try:
            while (frame := read_frame(self._sock)) is not None:
                self._dispatch(*frame)
        except OSError:
            pass  # reset instead of closed: the same
        self._popen.wait()
        self._fail_pending()

    def _dispatch(self, header: dict[str, Any], body: bytes) -> None:
        if "ready" in header:
            self.layers = header["layers"]
            self._started = True
            self._ready.set()
            return
        with self._state:
            future = self._pending.pop(header["id"])
            self.finished += 1
        future.set_result((header, body))

    def _fail_pending(self) -> None:
        with self._state:
            self.log_tail = self._last_output()
            self.dead = True
            waiting, self._pending = list(self._pending.values()), {}
        for future in waiting:
            future.set_exception(ConnectionError(self._why_it_ended()))
        self._ready.set()

    def _why_it_ended(self) -> str:
        code = self._popen.returncode
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"the zygote {how} while the job ran; its last output: {self.log_tail.strip() or '(none)'}"

    def _last_output(self) -> str:
        with self._log:
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - 2000))
            return self._log.read().decode("utf-8", "replace")


def _environment(home: Path, gpu: str) -> dict[str, str]:
    """The environment of the zygote: one thread, no GPU but that one, no cache or key of the user."""
    return {
        **clean_environment(),
        "HOME": str(home),
        "TMPDIR": str(home),
        "USER": "evo",
        "TRITON_HOME": str(home),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "CUDA_VISIBLE_DEVICES": gpu,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # Large pages, where Linux gives them on request: a fork then costs less, and a child has fewer page faults.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }


def classify(answer: Mapping[str, Any], body: bytes, limits: Limits, profile: str = "strict") -> JobResult:
    """The JobResult that says how a child ended.  Untrusted code wrote `body`, so it is checked."""
    layers, seconds = tuple(answer["layers"]), float(answer["seconds"])

    def ended(status: str, verdict: Verdict, message: str, line: int = 0) -> JobResult:
        return JobResult(status, None, verdict, message, line, seconds, layers)

    number, words = answer["signal"], plain(answer["words"]).strip()
    last = f"; its last output: {words[-500:]}" if words else ""
    if answer["killed"] == "timeout":
        return ended("timeout", Verdict.TIMEOUT, f"ran longer than {limits.most_s(profile):g} s")
    if answer["killed"] == "idle":
        return ended("timeout", Verdict.TIMEOUT, f"did next to nothing for {limits.wall_s:g} s")
    if answer["killed"] == "overflow":
        return ended("crash", Verdict.RUNTIME_ERROR, f"wrote more than {limits.result_bytes >> 20} MiB as its result")
    if answer["killed"] == "disk":
        message = f"wrote more than {limits.disk_bytes >> 20} MiB of files, or too many of them"
        return ended("crash", Verdict.RUNTIME_ERROR, message)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and seconds >= limits.cpu_s):
        return ended("timeout", Verdict.TIMEOUT, f"used all its CPU time, {limits.cpu_s} s at most")
    if number == signal.SIGKILL or (number and any(t in words for t in ("bad_alloc", "Cannot allocate memory"))):
        return ended("memory", Verdict.OUT_OF_MEMORY, f"needed more than {limits.memory_bytes >> 20} MiB{last}")
    if number:
        return ended("crash", Verdict.RUNTIME_ERROR, f"died by {_signal_name(number)}{last}")
    # Two characters of text may become an object of a hundred bytes: [[],[],[] ...
    if (most := limits.result_bytes // BYTES_A_MARK) < sum(map(body.count, (b"[", b"{", b","))):
        return ended("crash", Verdict.RUNTIME_ERROR, f"wrote more than {most} lists, entries and items as its result")
    try:
        return _result(json.loads(body), seconds, layers, ended)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        exit_code = answer["exit"]
        return ended("crash", Verdict.RUNTIME_ERROR, f"exited with code {exit_code} and no valid result{last}")


def _result(raw: Any, seconds: float, layers: tuple[str, ...], ended: Any) -> JobResult:
    """The JobResult of what a child wrote; raises one of the errors that `classify` catches if it is malformed."""
    if set(raw) == {"value"} and isinstance(raw["value"], dict):
        return JobResult("ok", raw["value"], seconds=seconds, layers=layers)
    error = reported_error(raw["error"])
    status = "memory" if error.verdict is Verdict.OUT_OF_MEMORY else "error"
    return ended(status, error.verdict, short(error.message), error.line)  # type: ignore[no-any-return]


def _infrastructure(message: str) -> JobResult:
    return JobResult("crash", None, Verdict.INFRASTRUCTURE, message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"

"""The zygote process: warm imports, one sandboxed fork per job, one event loop, one thread.

`fitness.sandbox.zygote.Zygote` starts it as `python -m fitness.sandbox.zygote_process SOCKET_FD HOME TARGET JOB ...`.
It ends when the other end of the socket closes, for whatever reason, and kills every child then.

A job is a module (of _MODULES, or named with its dots) with a function

    def job(payload: dict, scratch: Path) -> dict: ...     # runs in a child of its own; the result is JSON

A job whose first use is slow may also have a function that runs once in this process, so that children inherit what
it loads; `jobs` are the functions `job` by name:

    def warm_up(jobs: dict, target_name: str) -> None: ...

Frames on the socket are a JSON header and a body (`send_frame`).  A request's header has id, job, profile, scratch and
limits; its body is the payload.  An answer's header has id, how the child ended, the end of its output and the active
layers; its body is the result.  An untrusted process wrote that result, so the receiver has to check it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from evo.core.records import Verdict
from fitness.sandbox.jobs import JobError, Limits, line_of_error
from fitness.sandbox.layers import available_layers, confine, die_with_parent, preload
from fitness.sandbox.scratch import taken

_MODULES = {
    "record": "fitness.frontend.recording.job",
    "compile": "fitness.frontend.compile",
    "trace": "fitness.estimate.trace",
    "interpret": "fitness.interpreter.job",
    "eager": "fitness.certify.eager",
}

PIPE_BYTES = 1 << 16  # what a pipe holds; for a larger piece, memory would be cleared that is not used.
WORDS_BYTES = 4096  # kept of stdout and stderr: the last bytes, which hold the message of an assertion in C++.
_FRAME = struct.Struct("!II")
# Children have a lower priority than the driver and the runners: no timing is to wait for a compiler.
NICE = 10
COLLECTED_AFTER = 5000  # new objects after which a child looks for garbage; it is short-lived, and leaves little
BUSY = 0.05  # share of a core: a job that used less waits for something other than a core.
WEIGH_S = 0.1  # seconds between two measurements of a job's files, plus ten times what one measurement takes.
MOST_FILES = 20_000  # in a job's folder: a compiler leaves about ten for each configuration.
_TICKS = os.sysconf("SC_CLK_TCK")  # in a second of /proc's times


def send_frame(sock: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send a JSON header and a body; blocks until the socket has taken both."""
    head = json.dumps(header).encode()
    sock.sendall(_FRAME.pack(len(head), len(body)) + head + body)


def read_frame(sock: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The header and body of the next frame, None at the end of the stream."""
    sizes = _read_exactly(sock, _FRAME.size)
    if sizes is None:
        return None
    head_size, body_size = _FRAME.unpack(sizes)
    head, body = _read_exactly(sock, head_size), _read_exactly(sock, body_size)
    return None if head is None or body is None else (json.loads(head), body)


def _read_exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def job_module(name: str) -> ModuleType:
    """The module of a job: one of `_MODULES`, or any other by its dotted name."""
    return importlib.import_module(_MODULES.get(name, name))


@dataclass
class _Child:
    """A running job.  Its process group is its own pid."""

    id: int
    pid: int
    result: int  # Read end of the pipe with the layers (first line) and the result.
    words: int  # Read end of the pipe with stdout and stderr.
    limits: Limits
    profile: str
    scratch: Path
    bytes_before: float  # in its folder before it began
    started: float = field(default_factory=time.monotonic)
    checks: int = 0  # how often `check_progress` ran
    cpu_s: float = 0.0  # used at the last such check
    waited_s: float = 0.0  # for a CPU, until the last such check
    data: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    weigh_at: float = math.inf  # Time of the next `check_disk_use`.
    killed: str = ""  # Why this process ended it: "timeout", "idle", "overflow" or "disk".

    @property
    def deadline(self) -> float:
        """Time of the next `check_progress`."""
        return self.started + (self.checks + 1) * self.limits.wall_s

    def check_progress(self) -> None:
        """Kills the job at its deadline if its time is up, or if it did next to nothing since the last check.

        To wait for a CPU that others use is not to do nothing.
        """
        self.checks += 1
        cpu_s, waited_s = _cpu_seconds(self.pid), _waited_seconds(self.pid)
        # Less waiting than before: of a thread that ended meanwhile.
        active = cpu_s - self.cpu_s + max(0.0, waited_s - self.waited_s)
        self.cpu_s, self.waited_s = cpu_s, waited_s
        if self.checks * self.limits.wall_s >= self.limits.most_s(self.profile):
            self.kill("timeout")
        elif active < BUSY * self.limits.wall_s:
            self.kill("idle")

    def check_disk_use(self) -> None:
        """Kills the job if its files take too much.

        Files that it removed but holds open are not counted.  Its limits on open files and on memory bound those.
        """
        begin = time.monotonic()
        if taken(self.scratch, MOST_FILES) > self.bytes_before + self.limits.disk_bytes:
            self.kill("disk")
        end = time.monotonic()
        self.weigh_at = end + WEIGH_S + 10 * (end - begin)

    def kill(self, why: str) -> None:
        self.killed = self.killed or why
        for send in (os.killpg, os.kill):  # the group exists only after the child's setsid
            try:
                send(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _cpu_seconds(session: int) -> float:
    """CPU seconds used by the living processes of a session and by those they waited for, not by those that left it."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _processes(session)) / _TICKS


def _waited_seconds(session: int) -> float:
    """Seconds that living threads of a session were ready to run and had no CPU; 0 if the kernel does not count them.

    Source: the second number of /proc/PID/task/TID/schedstat, in nanoseconds.
    """
    waited = 0
    for folder, _ in _processes(session):
        for path in folder.glob("task/*/schedstat"):
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                waited += int(path.read_text(encoding="utf-8").split()[1])
    return waited / 1e9


def _processes(session: int) -> Iterator[tuple[Path, list[str]]]:
    """Yields the folder of each living process of a session, and the fields of its `stat` from the state on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield path.parent, fields


class _Server:
    """The event loop: takes requests, forks a child for each, enforces deadlines and sends the answers."""

    def __init__(self, sock: socket.socket, modules: dict[str, ModuleType]) -> None:
        self._sock, self._modules = sock, modules
        self._children: dict[int, _Child] = {}  # by pid
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        wake_read, self._wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write)
        self._wake = wake_read
        self._selector.register(wake_read, selectors.EVENT_READ)
        self._by_fd: dict[int, _Child] = {}

    def serve(self) -> None:
        """Handles requests and children until the driver closes the socket."""
        while True:
            now = time.monotonic()
            for child in self._children.values():
                if now >= child.deadline and not child.killed:
                    child.check_progress()
                if now >= child.weigh_at and not child.killed:
                    child.check_disk_use()
            alive = [min(c.deadline, c.weigh_at) for c in self._children.values() if not c.killed]
            for key, _ in self._selector.select(max(0.0, min(alive) - now) if alive else None):
                if key.fileobj is self._sock:
                    request = read_frame(self._sock)
                    if request is None:
                        return
                    self._fork(*request)
                elif key.fd == self._wake:
                    os.read(self._wake, 4096)
                elif key.fd in self._by_fd:
                    self._read_pipe(self._by_fd[key.fd], key.fd)
            self._reap()

    def end(self) -> None:
        """Kills all children and waits for their end."""
        for child in self._children.values():
            child.kill("shutdown")
        for pid in self._children:
            os.waitpid(pid, 0)

    def _fork(self, request: dict[str, Any], payload: bytes) -> None:
        result_read, result_write = os.pipe()
        words_read, words_write = os.pipe()
        parent, limits, scratch = os.getpid(), Limits(**request["limits"]), Path(request["scratch"])
        bytes_before = taken(scratch, MOST_FILES) if limits.disk_bytes else 0.0
        pid = os.fork()
        if pid == 0:
            _run_child(parent, request, payload, self._modules[request["job"]], result_write, words_write)
        os.close(result_write)
        os.close(words_write)
        child = _Child(request["id"], pid, result_read, words_read, limits, request["profile"], scratch, bytes_before)
        if limits.disk_bytes:
            child.weigh_at = child.started + WEIGH_S
        self._children[pid] = child
        for fd in (result_read, words_read):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
            self._by_fd[fd] = child

    def _read_pipe(self, child: _Child, fd: int) -> bool:
        """Reads a piece of what is in one of the child's pipes; False if there is nothing, or too much."""
        try:
            piece = os.read(fd, PIPE_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._close_pipe(fd)
        elif fd == child.words:
            child.tail = (child.tail + piece)[-WORDS_BYTES:]
        elif len(child.data) + len(piece) <= child.limits.result_bytes:
            child.data += piece
        else:
            child.kill("overflow")
            return False
        return bool(piece)

    def _close_pipe(self, fd: int) -> None:
        if self._by_fd.pop(fd, None) is not None:
            self._selector.unregister(fd)
            os.close(fd)

    def _reap(self) -> None:
        for pid, child in list(self._children.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # While the leader is a zombie its group id cannot be used again: kill what it left behind, then reap.
            child.kill("")
            _, status = os.waitpid(pid, 0)
            for fd in (child.result, child.words):
                # A pipe at its end is closed already, and its number may be that of a younger child's pipe by now.
                while self._by_fd.get(fd) is child and self._read_pipe(child, fd):
                    pass  # to the end of the pipe, or of what is in it
                if self._by_fd.get(fd) is child:
                    self._close_pipe(fd)
            del self._children[pid]
            self._report(child, status)

    def _report(self, child: _Child, status: int) -> None:
        first, _, body = bytes(child.data).partition(b"\n")
        header = {
            "id": child.id,
            "killed": child.killed,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            # The child wrote the first line before any untrusted code ran; without that line none ran.
            "layers": json.loads(first) if first else [],
            "words": bytes(child.tail).decode("utf-8", "replace"),
            "seconds": time.monotonic() - child.started,
        }
        send_frame(self._sock, header, body)


def _lower_priority() -> None:
    """Lowers the priority of this session.

    If Linux divides the cores among sessions, niceness counts within a session only (sched(7), "autogroup").
    """
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE), encoding="ascii")


def _run_child(
    parent: int, request: dict[str, Any], payload: bytes, module: ModuleType, result: int, words: int
) -> NoReturn:
    """All of a child's life: leave the zygote's session and files, confine, do the job, write the result."""
    code = 70
    try:
        os.setsid()
        if request["profile"] != "gpu":
            _lower_priority()
        die_with_parent(parent)
        _close_other_files(result, words)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        scratch = Path(request["scratch"])
        _write_only_to(scratch)
        layers = confine(request["profile"], scratch, Limits(**request["limits"]), request.get("shared"))
        os.closerange(3, result)  # what setting up the layers left open
        _write(result, json.dumps(layers).encode() + b"\n")
        _write(result, _outcome(module, json.loads(payload), scratch))
        code = 0
    finally:
        os._exit(code)


def _close_other_files(result: int, words: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.closerange(3, result)
    os.closerange(result + 1, 4096)


def _write_only_to(scratch: Path) -> None:
    """Makes the scratch folder the place for everything that a library may want to write."""
    os.chdir(scratch)
    tempfile.tempdir = str(scratch)
    for name in ("HOME", "TMPDIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[name] = str(scratch)
    os.environ["TRITON_CACHE_DIR"] = str(scratch / "triton")
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # under memory pressure this process dies first
    except OSError as error:
        print(f"the kernel's memory killer may choose another process: {error}", file=sys.stderr)


def _outcome(module: ModuleType, payload: dict[str, Any], scratch: Path) -> bytes:
    """The job's value or error as JSON.  Whatever the job raises ends here, at the process boundary."""
    try:
        return json.dumps({"value": module.job(payload, scratch)}).encode()
    except JobError as error:
        report = {"verdict": error.verdict, "message": error.message, "line": error.line}
    except BaseException as error:
        verdict, text = Verdict.RUNTIME_ERROR, str(error)
        if _is_out_of_memory(error):
            verdict, text = Verdict.OUT_OF_MEMORY, text or "the memory limit of the job is reached"
        traceback.print_exc()
        report = {"verdict": verdict, "message": f"{type(error).__name__}: {text}", "line": line_of_error(error)}
    return json.dumps({"error": report}).encode()


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was exhausted.  Python, the kernel and torch each have messages of their own for it."""
    texts = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "not enough memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(arguments: list[str]) -> None:
    """Runs the zygote: imports and warms up the jobs, then serves until the driver closes the socket."""
    gc.disable()  # imports leave little garbage, and to look for it takes a fifth of their time
    sock = socket.socket(fileno=int(arguments[0]))
    home, target, names = Path(arguments[1]), arguments[2], arguments[3:]
    modules = {name: job_module(name) for name in names}
    for module in modules.values():
        if hasattr(module, "warm_up"):
            module.warm_up({name: each.job for name, each in modules.items()}, target)
    preload()
    gc.freeze()  # otherwise a child's garbage collector touches, and so copies, every page of the zygote
    gc.set_threshold(COLLECTED_AFTER)
    gc.enable()
    server = _Server(sock, modules)
    send_frame(sock, {"ready": True, "layers": available_layers()})
    try:
        server.serve()
    except ConnectionError:
        pass  # the driver is gone
    finally:
        server.end()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])

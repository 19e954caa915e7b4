"""Questions and answers between the runner and a candidate's process: JSON lines through two named pipes.

The pipes lie in the scratch folder of the sandboxed process, which may do with them what it likes.  The runner waits
for nothing longer than it wants to, and believes nothing that it reads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

ASK, ANSWER = "ask.pipe", "answer.pipe"
ENDED = "{}.ended"  # a file beside the scratch folder of that name: its process is gone
TICK_S = 0.1  # between looks for that file
LINE_BYTES = 16 << 20  # of one answer
PIECE = 1 << 16


class Ended(Exception):
    """The process on the other side is gone, or has no more to say."""


def make_pipes(scratch: Path) -> None:
    for name in (ASK, ANSWER):
        os.mkfifo(scratch / name)


def mark_ended(scratch: Path) -> None:
    """Tells whoever asks the process of `scratch` that it ended, however it did."""
    _mark(scratch).touch()


def release(scratch: Path) -> None:
    """Lets a process that waits for questions go: nobody asks any more."""
    for name, flags in ((ASK, os.O_WRONLY), (ANSWER, os.O_RDONLY)):
        with contextlib.suppress(OSError):  # ENXIO: it is not there, or not yet
            os.close(os.open(scratch / name, flags | os.O_NONBLOCK | os.O_NOFOLLOW))


def _mark(scratch: Path) -> Path:
    return scratch.with_name(ENDED.format(scratch.name))


class Asker:
    """The trusted end."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._answers = os.open(scratch / ANSWER, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        self._questions = -1
        self._read = bytearray()

    def begin(self, wall_s: float) -> None:
        """Waits for the process to be there.  Raises Ended, TimeoutError."""
        until = time.monotonic() + wall_s
        self._line(until)
        while self._questions < 0:
            try:
                self._questions = os.open(self._scratch / ASK, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.ENXIO or time.monotonic() > until or _mark(self._scratch).exists():
                    raise Ended from error
                time.sleep(1e-3)

    def ask(self, question: Mapping[str, Any], wall_s: float) -> tuple[dict[str, Any], float]:
        """(answer, seconds from the question's first byte to the answer's last).  Raises Ended, TimeoutError."""
        until = time.monotonic() + wall_s
        data = json.dumps(question).encode() + b"\n"
        begin = time.perf_counter()
        self._send(data, until)
        line = self._line(until)
        seconds = time.perf_counter() - begin
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Ended from error
        if not isinstance(answer, dict):
            raise Ended
        return answer, seconds

    def _send(self, data: bytes, until: float) -> None:
        while data:
            if not select.select([], [self._questions], [], max(0.0, until - time.monotonic()))[1]:
                raise TimeoutError
            try:
                data = data[os.write(self._questions, data) :]
            except BlockingIOError:
                continue
            except OSError as error:  # nobody reads any more, or it is no pipe
                raise Ended from error

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if select.select([self._answers], [], [], min(left, TICK_S))[0]:
                # Nothing to read from what is readable: its last writer is gone, if there ever was one.
                self._take()
            elif _mark(self._scratch).exists():
                raise Ended
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        return line

    def _take(self) -> None:
        try:
            piece = os.read(self._answers, PIECE)
        except BlockingIOError:
            return
        except OSError as error:  # a folder in the pipe's place
            raise Ended from error
        self._read += piece
        if not piece or len(self._read) > LINE_BYTES:
            raise Ended

    def close(self) -> None:
        for fd in (self._answers, self._questions):
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Answerer:
    """The end in the sandbox."""

    def __init__(self, scratch: Path) -> None:
        self._answers: IO[str] = (scratch / ANSWER).open("w")
        self.answer({})  # it is there
        self._questions: IO[str] = (scratch / ASK).open()

    def questions(self) -> Iterator[dict[str, Any]]:
        """Until the other side hangs up."""
        for line in self._questions:
            yield json.loads(line)

    def answer(self, answer: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

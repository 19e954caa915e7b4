"""fitness.gpu.orphan: a process ends with the one that started it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

BUSY = (
    "import sys, time; from fitness.gpu.orphan import end_with; end_with(int(sys.argv[1])); print('up', flush=True); {}"
)


def start(work: str) -> tuple[socket.socket, subprocess.Popen[str]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY.format(work), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return ours, process


def test_it_ends_when_the_other_side_has_gone_busy_or_not():
    ours, process = start("time.sleep(600)")
    ours.close()
    assert process.wait(60) == 1


def test_what_is_sent_does_not_end_it():
    ours, process = start("import os; print(os.read(int(sys.argv[1]), 1), flush=True); sys.exit(7)")
    ours.send(b"x")
    assert process.communicate(timeout=60)[0] == "b'x'\n"
    assert process.returncode == 7

"""What the process of a runner loads, and that it ends with the process that started it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUSY = """
import sys, time
from fitness.gpu.runner_process import end_with
end_with(int(sys.argv[1]))
print("up", flush=True)
{}
"""


def start(work: str) -> tuple[socket.socket, subprocess.Popen[str]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY.format(work), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=HERE.parent,
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


def test_it_loads_neither_the_rules_nor_the_recorder():
    """They are large, and the trusted process has no use for them."""
    unwanted = ("fitness.frontend.rules", "fitness.frontend.recording", "fitness.frontend.gate", "libcst")
    program = (
        "import sys, fitness.gpu.runner_process; "
        f"print([name for name in sys.modules if name.startswith({unwanted!r})])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=HERE.parent, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

"""fitness.gpu.gpu_lock: real processes, no GPU."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fitness.gpu.gpu_lock import GpuLock

# Waits for its turn, says so, and keeps it until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from fitness.gpu.gpu_lock import GpuLock
with GpuLock("GPU-1", Path(sys.argv[1])).held():
    print("mine", flush=True)
    sys.stdin.read()
"""
# Tries to write while nobody else does: reads a number, and writes one more.
COUNTER = """
import sys
from pathlib import Path
from fitness.gpu.gpu_lock import GpuLock
turn, file = GpuLock("GPU-1", Path(sys.argv[1])), Path(sys.argv[1], "count")
for _ in range(200):
    with turn.held():
        file.write_text(str(int(file.read_text()) + 1))
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=pipe, stdout=pipe, text=True)


def is_free(gpu: str, folder: Path) -> bool:
    with open(folder / f"evo-{gpu}.lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    processes = [start(COUNTER, tmp_path) for _ in range(3)]
    assert [p.wait(60) for p in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "600"


def test_who_is_killed_gives_the_turn_back(tmp_path: Path) -> None:
    with start(HOLDER, tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "mine\n"
        with start(HOLDER, tmp_path) as second:
            first.kill()
            assert second.stdout is not None
            assert second.stdout.readline() == "mine\n"
            second.kill()
    with GpuLock("GPU-1", tmp_path).held():
        pass


def test_a_turn_can_be_taken_again_by_who_has_it(tmp_path: Path) -> None:
    turn = GpuLock("GPU-1", tmp_path)
    turn.take()
    with turn.held():
        pass
    with start(HOLDER, tmp_path) as other:
        turn.leave()
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"  # so nothing is held any more
        turn.leave()  # nothing to give back
        other.kill()


def test_a_turn_is_lent_and_taken_again(tmp_path: Path) -> None:
    turn = GpuLock("GPU-1", tmp_path)
    with turn.held():
        with turn.lent():
            assert is_free("GPU-1", tmp_path)
        assert not is_free("GPU-1", tmp_path)
        with pytest.raises(ValueError, match="oops"), turn.lent():
            raise ValueError("oops")
        assert not is_free("GPU-1", tmp_path)
        for again in (True, False):
            with turn.held(), turn.lent(again):  # it was taken twice: somebody relies on it
                assert not is_free("GPU-1", tmp_path)
        assert not is_free("GPU-1", tmp_path)
    assert is_free("GPU-1", tmp_path)


def test_a_turn_may_be_given_up_before_its_end(tmp_path: Path) -> None:
    turn = GpuLock("GPU-1", tmp_path)
    with turn.held():
        with turn.lent(again=False):
            assert is_free("GPU-1", tmp_path)
        assert is_free("GPU-1", tmp_path)
    with turn.held():
        assert not is_free("GPU-1", tmp_path)


def test_who_lent_a_turn_waits_for_it(tmp_path: Path) -> None:
    turn, taken = GpuLock("GPU-1", tmp_path), threading.Event()

    def lend() -> None:
        with turn.lent():
            assert other.stdout is not None
            assert other.stdout.readline() == "mine\n"
        taken.set()

    with turn.held(), start(HOLDER, tmp_path) as other:
        thread = threading.Thread(target=lend)
        thread.start()
        assert not taken.wait(0.5)
        other.kill()
        assert taken.wait(60)
        thread.join()


def test_other_gpus_have_other_turns(tmp_path: Path) -> None:
    with GpuLock("GPU-1", tmp_path).held():
        assert not is_free("GPU-1", tmp_path)
        assert is_free("GPU-2", tmp_path)
        with GpuLock("GPU-2", tmp_path).held():
            assert not is_free("GPU-2", tmp_path)


def test_an_error_gives_the_turn_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="oops"), GpuLock("GPU-1", tmp_path).held():
        raise ValueError("oops")
    assert is_free("GPU-1", tmp_path)


# Holds the lock for a tool, for at most a second.
TOOL = """
import sys, time
from fitness.gpu.gpu_lock import held_for
with held_for("GPU-1", 1):
    print("mine", flush=True)
    time.sleep(float(sys.argv[1]))
print("left", flush=True)
"""


def test_a_tool_that_hangs_before_it_has_the_lock_ends_too(tmp_path: Path) -> None:
    code = "import time; from fitness.gpu.gpu_lock import ended_after\nwith ended_after(1): time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGALRM


@pytest.mark.parametrize(("seconds", "code", "said"), [("60", -signal.SIGALRM, "mine\n"), ("0", 0, "mine\nleft\n")])
def test_a_tool_keeps_the_lock_for_a_limited_time(tmp_path: Path, seconds: str, code: int, said: str) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", TOOL, seconds], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    assert is_free("GPU-1", tmp_path)

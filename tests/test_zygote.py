"""The zygote with real children that behave badly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from evo.core.errors import EvoError
from evo.core.records import Verdict
from fitness.sandbox import zygote_process
from fitness.sandbox.jobs import PATIENCE, JobResult, Limits
from fitness.sandbox.scratch import NO_SPACE
from fitness.sandbox.zygote import PROFILES, RESULT_BYTES, Zygote, _ZygoteProcess, classify
from fitness.sandbox.zygote_process import NICE

JOB = "tests.zygote_job"  # no torch, so these start in a moment
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("sm_90", jobs=(JOB,)) as process:
        yield process


def run(zygote: Zygote, scratch: Path, code: str, **limits: float) -> JobResult:
    return zygote.run(JOB, {"code": textwrap.dedent(code)}, scratch=scratch, limits=Limits(**limits))  # type: ignore[arg-type]


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=100)
    assert not alive


def test_a_job_inherits_what_its_module_warmed_up(zygote: Zygote, tmp_path: Path) -> None:
    result = run(zygote, tmp_path, f"from {JOB} import warmed; answer['warmed'] = warmed")
    assert result.value == {"warmed": [[[JOB], "sm_90"]]}


def test_a_zygote_without_room_to_start_says_where_it_wanted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ZygoteProcess, "_last_output", lambda self: f"Traceback ...\nOSError: [Errno 28] {NO_SPACE}")
    with Zygote("sm_90", jobs=("tests.no_such_job",)) as zygote, pytest.raises(EvoError) as caught:
        zygote.run("tests.no_such_job", {}, scratch=tmp_path, limits=Limits())
    assert "set TMPDIR to a folder with more" in str(caught.value) and "Traceback" not in str(caught.value)


# --- how a job can end -----------------------------------------------------------------------------------------------


def test_value(zygote: Zygote, tmp_path: Path) -> None:
    result = run(zygote, tmp_path, "answer = {'pi': [3.14, None, 'x']}")
    assert (result.status, result.value, result.verdict) == ("ok", {"pi": [3.14, None, "x"]}, None)
    active = {name for name, state in zygote.layers.items() if state == "active"}
    assert set(result.layers) == active - {"tmpfs"}  # which jobs have where nobody reads their files


def test_jobs_give_way_to_whoever_asked_for_them(zygote: Zygote, tmp_path: Path) -> None:
    """By niceness, and by that of their session where cores are shared out by session."""
    code = "import pathlib, time\n(scratch / 'there').touch()\nwhile not (scratch / 'seen').exists(): time.sleep(0.01)"
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(run, zygote, tmp_path, code)
        while not (tmp_path / "there").exists():
            time.sleep(0.01)
        job = next(p for p in descendants(os.getpid()) if p.nice() == min(psutil.Process().nice() + NICE, 19))
        of_session = Path(f"/proc/{job.pid}/autogroup")
        if os.geteuid() == 0 and of_session.exists():  # others may set it ten times a second
            assert of_session.read_text().split()[-1] == str(NICE)
        (tmp_path / "seen").touch()
        assert result.result().status == "ok"


def test_an_exception_has_its_type_and_line(zygote: Zygote, tmp_path: Path) -> None:
    result = run(zygote, tmp_path, "def f():\n    raise KeyError('k')\n\nf()")
    assert (result.status, result.verdict, result.line) == ("error", Verdict.RUNTIME_ERROR, 2)
    assert result.message == "KeyError: 'k'"


def test_a_job_error_keeps_verdict_and_line(zygote: Zygote, tmp_path: Path) -> None:
    code = """
    from evo.core.records import Verdict
    from fitness.sandbox.jobs import JobError
    raise JobError(Verdict.UNSUPPORTED, "needs a value", 17)
    """
    result = run(zygote, tmp_path, code)
    assert (result.status, result.verdict, result.message, result.line) == (
        "error", Verdict.UNSUPPORTED, "needs a value", 17,
    )  # fmt: skip


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "raise KeyboardInterrupt", "def f(): f()\nf()"])
def test_what_looks_like_an_exit_is_an_error(zygote: Zygote, tmp_path: Path, code: str) -> None:
    result = run(zygote, tmp_path, code)
    assert (result.status, result.verdict) == ("error", Verdict.RUNTIME_ERROR)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "while True: print('x' * 1000)",
    ],
)
def test_wall_clock(zygote: Zygote, tmp_path: Path, code: str) -> None:
    result = run(zygote, tmp_path, code, wall_s=0.5)
    assert (result.status, result.verdict) == ("timeout", Verdict.TIMEOUT)
    assert result.message == f"ran longer than {0.5 * PATIENCE:g} s"


# Done after more than a second, with little of a core: others may be busy too while tests run.
BUSY = """
import time
end = time.monotonic() + 1.3
while time.process_time() < 0.1: pass
time.sleep(max(0.0, end - time.monotonic()))
"""


def test_who_is_busy_may_take_longer_than_who_waits(zygote: Zygote, tmp_path: Path) -> None:
    assert run(zygote, tmp_path, BUSY, wall_s=1).status == "ok"
    for code in ("import time\ntime.sleep(1000)", BUSY + "time.sleep(1000)"):
        result = run(zygote, tmp_path, code, wall_s=1)
        assert (result.status, result.verdict) == ("timeout", Verdict.TIMEOUT)
        assert result.message == "did next to nothing for 1 s"


def test_who_waits_for_a_busy_process_of_its_own_is_busy(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a compiler waits for ptxas."""
    monkeypatch.setitem(PROFILES, JOB, "compiler")
    code = f"import os\nif (pid := os.fork()) == 0:\n{textwrap.indent(BUSY, '    ')}    os._exit(0)\nos.waitpid(pid, 0)"
    assert run(zygote, tmp_path, code, wall_s=1).status == "ok"


@pytest.mark.parametrize(
    ("cpu", "waited", "killed"),
    [((0.0, 0.0), (0.9, 1.8), ""), ((0.9, 1.8), (0.0, 0.0), ""), ((0.0, 0.0), (0.9, 0.9), "idle")],
)
def test_who_waits_for_a_cpu_is_busy(
    monkeypatch: pytest.MonkeyPatch, cpu: tuple[float, ...], waited: tuple[float, ...], killed: str
) -> None:
    child = zygote_process._Child(1, -1, 0, 0, Limits(wall_s=1), "python", Path(), 0.0)
    monkeypatch.setattr(child, "kill", lambda why: setattr(child, "killed", child.killed or why))
    for used, ready in zip(cpu, waited, strict=True):
        assert not child.killed
        monkeypatch.setattr(zygote_process, "_cpu_seconds", lambda session, used=used: used)
        monkeypatch.setattr(zygote_process, "_waited_seconds", lambda session, ready=ready: ready)
        child.check_progress()
    assert child.killed == killed


def test_the_kernel_counts_how_long_who_is_ready_waits_for_a_cpu() -> None:
    """Two busy processes share one CPU; a third one sleeps."""
    one = min(os.sched_getaffinity(0))
    codes = ["while True: pass", "while True: pass", "import time; time.sleep(1000)"]
    pinned = f"import os; os.sched_setaffinity(0, {{{one}}})"
    started = [subprocess.Popen([sys.executable, "-c", f"{pinned}\n{c}"], start_new_session=True) for c in codes]
    try:
        end = time.monotonic() + 60
        while zygote_process._waited_seconds(started[0].pid) < 0.5 and time.monotonic() < end:
            time.sleep(0.05)
        waited = [zygote_process._waited_seconds(process.pid) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert waited[0] >= 0.5 and waited[2] < waited[0]


def test_who_has_the_gpu_may_take_no_longer(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, JOB, "gpu")
    assert run(zygote, tmp_path, BUSY, wall_s=0.5).message == "ran longer than 0.5 s"


def test_cpu_time_even_where_the_warning_is_ignored(zygote: Zygote, tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = run(zygote, tmp_path, code, cpu_s=1)
    assert (result.status, result.verdict) == ("timeout", Verdict.TIMEOUT)
    assert "CPU" in result.message


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(1 << 30)",
        "x = []\nwhile True: x.append(bytes(1 << 20))",
        "import mmap\nmmap.mmap(-1, 1 << 30)",
    ],
)
def test_memory(zygote: Zygote, tmp_path: Path, code: str) -> None:
    result = run(zygote, tmp_path, code, memory_bytes=256 << 20)
    assert (result.status, result.verdict) == ("memory", Verdict.OUT_OF_MEMORY)
    assert "memory" in result.message


EVERY_FD = "import os\nfor fd in range(3, 50):\n    try: "


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os\nos._exit(0)", "exited with code 0 and no valid result"),
        ("import os\nos._exit(3)", "exited with code 3"),
        ("import os, sys\nprint('last words', flush=True)\nos._exit(3)", "last words"),
        ("import os\nos.abort()", "SIGABRT"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        (EVERY_FD + "os.write(fd, b'garbage')\n    except OSError: pass", "no valid"),
        (EVERY_FD + "os.write(fd, b'[' * 50_000)\n    except OSError: pass\nos._exit(0)", "no valid"),
        (EVERY_FD + "exec('while True: os.write(fd, bytes(1 << 20))')\n    except OSError: pass", "more than 32 MiB"),
    ],
)
def test_crash(zygote: Zygote, tmp_path: Path, code: str, words: str) -> None:
    result = run(zygote, tmp_path, code)
    assert (result.status, result.verdict, result.value) == ("crash", Verdict.RUNTIME_ERROR, None), result
    assert words in result.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"value": 3}',
        b'{"value": {}, "more": 1}',
        b'{"error": {}}',
        b'{"error": {"verdict": "ok", "message": "", "line": 0}}',
        b'{"error": {"verdict": "infrastructure", "message": "", "line": 0}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": "x"}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": Infinity}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": NaN}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": 1e999}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": -1}}',
        b'{"error": {"verdict": "wrong", "message": "", "line": 99999999999999999999}}',
        b'{"error": {"verdict": ["wrong"], "message": "", "line": 0}}',
        b'{"error": {"verdict": "wrong", "message": {}, "line": 0}}',
        b'{"error": Infinity}',
        b"Infinity",
        b"[" * 100_000,
        b"\xff\xfe",
        b"9" * 10_000,
    ],
)
def test_a_forged_result_is_a_crash(body: bytes) -> None:
    answer = {"layers": [], "seconds": 0.1, "signal": 0, "exit": 0, "killed": "", "words": ""}
    result = classify(answer, body, Limits())
    assert (result.status, result.verdict, result.value) == ("crash", Verdict.RUNTIME_ERROR, None)


def test_a_job_may_say_as_much_as_its_kind_has_to(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "answer = {'text': 'x' * (2 << 20)}"
    assert run(zygote, tmp_path, code).status == "ok"
    monkeypatch.setitem(RESULT_BYTES, JOB, 1 << 20)
    result = run(zygote, tmp_path, code)
    assert (result.status, result.verdict) == ("crash", Verdict.RUNTIME_ERROR)
    assert result.message == "wrote more than 1 MiB as its result"


@pytest.mark.parametrize("unit", [b"{}", b"[0]", b'{"a":1}', b"1", b"[[[]]]"])
def test_a_small_text_of_many_objects_is_not_read(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(count: int) -> bytes:
        return b'{"value": {"a": [' + b",".join([unit] * count) + b"]}}"

    answer = {"layers": [], "seconds": 0.1, "signal": 0, "exit": 0, "killed": "", "words": ""}
    limits = Limits(result_bytes=1 << 20)
    assert classify(answer, body(10_000), limits).status == "ok"
    monkeypatch.setattr("fitness.sandbox.zygote.json.loads", pytest.fail)
    result = classify(answer, body(140_000), limits)
    assert (result.status, result.verdict) == ("crash", Verdict.RUNTIME_ERROR)
    assert result.message == "wrote more than 131072 lists, entries and items as its result"


FILES = """
import os, time
for n in range(100):
    with open(f"f{n}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
time.sleep(SLEEP)
"""


@pytest.mark.parametrize(
    "code",
    [
        FILES.replace("SLEEP", "60"),
        "import os, time\nfor n in range(30_000): os.mkdir(f'd{n}')\ntime.sleep(60)",
        "import os, time\nos.mkdir('closed', 0o000)\ntime.sleep(60)",
    ],
    ids=["bytes", "files", "closed"],
)
def test_files_of_a_job_are_limited_together(zygote: Zygote, tmp_path: Path, code: str) -> None:
    if "closed" in code and os.geteuid() == 0:
        pytest.skip("root may read every folder")
    begin = time.monotonic()
    result = run(zygote, tmp_path, code, disk_bytes=50 << 20)
    assert (result.status, result.verdict) == ("crash", Verdict.RUNTIME_ERROR)
    assert result.message == "wrote more than 50 MiB of files, or too many of them"
    assert time.monotonic() - begin < 60  # it was ended, and did not end


def test_what_a_job_found_in_its_folder_is_not_its_own(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(bytes(60 << 20))
    assert run(zygote, tmp_path, "import time\ntime.sleep(0.5)", disk_bytes=1 << 20).status == "ok"
    assert run(zygote, tmp_path, FILES.replace("SLEEP", "0.5"), disk_bytes=200 << 20).status == "ok"
    assert run(zygote, tmp_path, FILES.replace("f{n}", "g{n}").replace("SLEEP", "0.5")).status == "ok"


def test_words_and_messages_are_plain(zygote: Zygote, tmp_path: Path) -> None:
    died = run(zygote, tmp_path, "import os\nos.write(2, b'\\x1b[2Kwords')\nos.abort()")
    assert "\\x1b[2Kwords" in died.message
    raised = run(zygote, tmp_path, "raise ValueError('\\x1b[32mok \\ud800 \\u202e')")
    assert raised.message == r"ValueError: \x1b[32mok \ud800 \u202e"


# --- process groups --------------------------------------------------------------------------------------------------

BOMB = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(1000)"
ORPHAN = """
import os, time
if os.fork() == 0:
    open("began", "w").write(str(os.getpid()))
    time.sleep(1000)
while not os.path.exists("began"):
    time.sleep(0.01)
"""


def test_a_fork_bomb_does_not_get_off_the_ground(zygote: Zygote, tmp_path: Path) -> None:
    if zygote.layers["seccomp"] != "active":
        pytest.skip("without seccomp only the limit on processes holds it")
    result = run(zygote, tmp_path, BOMB)
    assert (result.status, result.verdict) == ("error", Verdict.RUNTIME_ERROR)


def test_a_timeout_ends_the_whole_group(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, JOB, "compiler")  # the one that may have processes
    result = run(zygote, tmp_path, ORPHAN + "time.sleep(1000)", wall_s=0.5)
    assert (result.status, result.verdict) == ("timeout", Verdict.TIMEOUT)
    wait_until_gone(forked_from(zygote))


def test_what_a_finished_job_leaves_behind_is_killed(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, JOB, "compiler")
    assert run(zygote, tmp_path, ORPHAN).status == "ok"
    assert (tmp_path / "began").exists()
    wait_until_gone(forked_from(zygote))


def forked_from(zygote: Zygote) -> list[psutil.Process]:
    """Living processes that were forked from the zygote, orphans too: they share its command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != zygote._process._popen.pid and str(zygote._process._home) in process.cmdline():
                found.append(process)
    return found


# --- confinement seen from a job -------------------------------------------------------------------------------------


def test_no_secret_of_the_driver_is_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "token").write_text("sk-secret")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f"""
    import os
    seen = repr(dict(os.environ))
    for path in ("/proc/self/environ", f"/proc/{{os.getppid()}}/environ", "/proc/{os.getpid()}/environ",
                 {str(tmp_path / "token")!r}, "/etc/passwd"):
        try:
            seen += open(path).read()
        except OSError as error:
            seen += type(error).__name__
    answer = {{"seen": seen}}
    """
    with Zygote("sm_90", jobs=(JOB,)) as zygote:
        result = run(zygote, scratch, code)
        landlock = zygote.layers["landlock"] == "active"
    assert result.value is not None
    assert "OPENAI" not in result.value["seen"]
    assert not landlock or ("sk-secret" not in result.value["seen"] and "root:" not in result.value["seen"])


def test_a_child_starts_in_its_scratch_folder_with_its_own_session(zygote: Zygote, tmp_path: Path) -> None:
    code = """
    import os, tempfile
    open("here", "w").write("x")
    tempfile.NamedTemporaryFile(delete=False).write(b"y")
    answer = {"own": os.getsid(0) == os.getpid(), "fds": sorted(map(int, os.listdir("/proc/self/fd")))}
    """
    result = run(zygote, tmp_path, code)
    assert result.value is not None and result.value["own"]
    assert (tmp_path / "here").exists() and len(list(tmp_path.glob("tmp*"))) == 1
    assert len(result.value["fds"]) <= 5  # stdin, stdout, stderr, the result, and the folder just listed


# --- concurrency, death and shutdown ---------------------------------------------------------------------------------


def test_many_threads_get_their_own_answers(zygote: Zygote, tmp_path: Path) -> None:
    def one(i: int) -> int:
        result = run(zygote, tmp_path, f"answer = {{'i': {i}, 'ballast': 'x' * {i * 20_000}}}")
        assert result.value is not None and len(result.value["ballast"]) == i * 20_000
        return int(result.value["i"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(40))) == list(range(40))


def test_a_slow_job_does_not_hold_up_others(zygote: Zygote, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, zygote, tmp_path, "import time\ntime.sleep(1000)", wall_s=6)
        results = [run(zygote, tmp_path, "answer = {}") for _ in range(3)]
        assert [r.status for r in results] == ["ok"] * 3 and not slow.done()
        assert slow.result().status == "timeout"


def test_after_its_death_jobs_are_infrastructure_and_the_next_one_works(tmp_path: Path) -> None:
    with Zygote("sm_90", jobs=(JOB,)) as zygote, ThreadPoolExecutor(1) as pool:
        assert run(zygote, tmp_path, "answer = {}").status == "ok"
        slow = pool.submit(run, zygote, tmp_path, "import time\nopen('began', 'w')\ntime.sleep(1000)", wall_s=60)
        _wait_for(tmp_path / "began")
        pid = zygote._process._popen.pid
        children = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        result = slow.result()
        assert (result.verdict, result.value) == (Verdict.INFRASTRUCTURE, None)
        assert "SIGKILL" in result.message
        wait_until_gone(children)
        assert run(zygote, tmp_path, "answer = {}").status == "ok"


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with Zygote("sm_90", jobs=("tests.no_such_job",)) as zygote, pytest.raises(EvoError, match="no_such_job"):
        zygote.run("tests.no_such_job", {}, scratch=tmp_path, limits=Limits())


def test_an_unknown_job_is_named(zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tests\.zygote_job, got 'other'"):
        zygote.run("other", {}, scratch=tmp_path, limits=Limits())


def test_close_ends_everything(tmp_path: Path) -> None:
    zygote = Zygote("sm_90", jobs=(JOB,))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, zygote, tmp_path, "import time\nopen('began', 'w')\ntime.sleep(1000)", wall_s=60)
        _wait_for(tmp_path / "began")
        process, home = zygote._process._popen, zygote._process._home
        children = [psutil.Process(process.pid), *descendants(process.pid)]
        assert len(children) == 2
        zygote.close()
        wait_until_gone(children)
        assert slow.result().verdict is Verdict.INFRASTRUCTURE
    assert not home.exists()
    zygote.close()  # twice does no harm


DRIVER = f"""
import sys, threading, time
from pathlib import Path
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
zygote = Zygote("sm_90", jobs=("{JOB}",))
code = {{"code": "import time\\nopen('began', 'w')\\ntime.sleep(1000)"}}
arguments = {{"scratch": Path(sys.argv[1]), "limits": Limits(wall_s=500)}}
threading.Thread(target=zygote.run, args=("{JOB}", code), kwargs=arguments).start()
time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_no_process(tmp_path: Path, how: signal.Signals) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT)
    _wait_for(tmp_path / "began")
    children = descendants(driver.pid)
    assert len(children) == 2  # the zygote and its child
    driver.send_signal(how)
    driver.wait()
    wait_until_gone(children)


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} did not appear"
        time.sleep(0.05)

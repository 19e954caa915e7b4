"""Nsight Compute: its table read, its failures told, its command built.  Counters themselves need a GPU."""

import contextlib
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fitness.gpu.runner import LaunchBundle
from fitness.profile import ncu
from fitness.profile.ncu import CounterReader, NoCounters, command_line, failure, parse, readings
from fitness.profile.profile import NAMES
from fitness.sandbox.jobs import Limits

TABLE = Path(__file__).parent / "data" / "ncu_raw.csv"
NAMES_ROW, UNITS_ROW = TABLE.read_text().splitlines()[-4:-2]


def test_a_table_becomes_readings():
    (name, softmax), (other, _) = parse(TABLE.read_text())
    assert (name, other) == ("softmax_kernel", "vectorized_elementwise_kernel")
    assert softmax["time"] == pytest.approx(41.12)
    assert softmax["dram"] == pytest.approx(78.31) and softmax["sm"] == pytest.approx(35.2)
    assert softmax["dram_bytes"] == pytest.approx(67_108_864 + 66_900_000)
    assert softmax["registers"] == 26 and softmax["active"] == pytest.approx(93.1)
    assert softmax["l2_hit"] == pytest.approx(33.4)
    assert softmax["conflicts"] == pytest.approx(512 / 2048)
    stalls = {k: v for k, v in softmax.items() if k.startswith("stall_")}
    assert sum(stalls.values()) == pytest.approx(100)
    assert max(stalls, key=stalls.__getitem__) == "stall_long_scoreboard"
    assert "stall_selected" not in stalls


def test_what_a_chip_lacks_is_missing():
    assert readings({"gpu__time_duration.sum": 5000.0}, {"gpu__time_duration.sum": "ns"}) == {"time": 5.0}
    assert readings({"gpu__time_duration.sum": 5.0}, {"gpu__time_duration.sum": "us"}) == {"time": 5.0}
    assert readings({}, {}) == {}


def test_a_table_without_what_is_needed_is_refused():
    text = TABLE.read_text().replace("sm__throughput", "sm__thruput")
    with pytest.raises(NoCounters, match=r"lacks sm; it has dram__bytes_read.sum"):
        parse(text)


def test_parts_of_a_stall_are_not_counted_twice():
    name = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio".format
    values = {name("wait"): 3.0, name("barrier"): 1.0, name("barrier_not_issued"): 1.0, name("selected"): 1.0}
    assert readings(values, {}) == {"stall_wait": 75.0, "stall_barrier": 25.0}


def test_sectors_are_told_in_either_unit():
    name = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld"
    assert readings({f"{name}.ratio": 8.0}, {}) == readings({f"{name}.pct": 25.0}, {}) == {"sector": 25.0}


def test_every_reading_has_a_name():
    assert set(ncu.READINGS) <= set(NAMES)


@pytest.mark.parametrize("text", ["", "==PROF== Connected\n", "\n".join([NAMES_ROW, UNITS_ROW])])
def test_no_table_no_counters(text):
    with pytest.raises(NoCounters, match=r"no table|no kernel"):
        parse(text)


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "no permission to read the GPU's"),
        (1, "x\nError: Failed to initialize the profiler: LibraryNotLoaded", "LibraryNotLoaded"),
        (1, "==ERROR== Unknown section", "ncu: ==ERROR== Unknown section"),
        (3, "Traceback\nValueError: no", "exit code 3: ValueError: no"),
        (0, "==WARNING== No kernels were profiled.", "measured no kernel"),
        (0, TABLE.read_text(), ""),
    ],
)
def test_failures_say_why(code, said, problem):
    found = failure(code, said)
    assert problem in found if problem else found == ""


def test_clocks_are_left_alone_and_only_the_replay_is_profiled():
    command = command_line("/usr/bin/ncu", Path("/tmp/log"), ["/tmp/plan", "GPU-1"])
    assert command[0] == "/usr/bin/ncu" and command[-2:] == ["/tmp/plan", "GPU-1"]
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert "fitness.profile.ncu_replay" in command


def test_of_the_memory_tables_only_what_a_profile_uses_is_asked_for():
    """All of them take as long to read as everything else."""
    command = command_line("/usr/bin/ncu", Path("/tmp/log"), [])
    assert "MemoryWorkloadAnalysis" in command and "MemoryWorkloadAnalysis_Tables" not in command
    asked = command[command.index("--metrics") + 1].split(",")
    assert readings(dict.fromkeys(asked, 8.0), {}) == {"sector": 8.0, "conflicts": 1.0, "dram_bytes": 16.0}


NO_PLAN = ("softmax", LaunchBundle({}, {}, {}), "square")


@pytest.fixture
def reader():
    with contextlib.closing(CounterReader("GPU-1")) as opened:
        yield opened


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Returns a function that puts a script in the place of ncu."""

    def install(script: str) -> None:
        tool = tmp_path / "ncu"
        tool.write_text(script)
        tool.chmod(0o755)
        monkeypatch.setattr(ncu, "find_tool", lambda name: str(tool))

    return install


def test_without_the_tool_there_are_no_counters(monkeypatch, reader):
    monkeypatch.setattr(ncu, "find_tool", lambda name: "")
    reader.start()
    with pytest.raises(NoCounters, match="not installed"):
        reader.read(*NO_PLAN)


def test_a_tool_that_fails_is_a_reason(install, reader):
    install("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    with pytest.raises(NoCounters, match="ERR_NVGPUCTRPERM"):
        reader.read(*NO_PLAN)


def tool_that_writes(table: str, folder: Path) -> str:
    """A script that leaves this table as ncu's log."""
    log = folder / "table.csv"
    log.write_text(table)
    find_log = 'while [ "$1" != --log-file ]; do shift; done'
    return f"#!/bin/sh\n{find_log}\ncp '{log}' \"$2\"\necho what the program says\n"


def test_the_log_has_the_table_and_its_first_kernel_only_starts_the_profiler(install, reader, tmp_path):
    install(tool_that_writes(TABLE.read_text(), tmp_path))
    assert reader.read(*NO_PLAN) == parse(TABLE.read_text())[1:]


def test_a_plan_of_which_no_kernel_was_measured_has_no_counters(install, reader, tmp_path):
    install(tool_that_writes("\n".join(TABLE.read_text().splitlines()[:-1]), tmp_path))
    with pytest.raises(NoCounters, match="measured no kernel of the plan"):
        reader.read(*NO_PLAN)


# It says that it runs, waits for a plan as the program under ncu does, and writes what it got.
WAITING = f"""#!{sys.executable}
import os, pickle, shutil, sys
from pathlib import Path
from fitness.profile.ncu_replay import received
folder = Path(__file__).parent
(folder / f"started-{{os.getpid()}}").touch()
work = received(sys.argv[-2])
(folder / f"ended-{{os.getpid()}}").write_text(repr(pickle.loads(work)[::2]) if work else "nothing")
shutil.copy({str(TABLE)!r}, sys.argv[sys.argv.index("--log-file") + 1])
"""


def test_the_process_of_the_next_plan_is_started_ahead(install, reader, tmp_path):
    install(WAITING)
    reader.start()
    (first,) = awaited(tmp_path, "started-*", 1)
    for plan in ("square", "wide"):
        assert reader.read("softmax", LaunchBundle({}, {}, {}), plan) == parse(TABLE.read_text())[1:]
    assert (tmp_path / f"ended-{number(first)}").read_text() == "('softmax', 'square')"
    assert {path.read_text() for path in tmp_path.glob("ended-*")} == {"('softmax', 'square')", "('softmax', 'wide')"}
    waiting = {number(p) for p in awaited(tmp_path, "started-*", 3)} - {number(p) for p in tmp_path.glob("ended-*")}
    reader.close()
    reader.start()
    assert [alive(process) for process in waiting] == [False]
    assert len(list(tmp_path.glob("started-*"))) == 3  # nothing is started after the end


def test_a_process_that_failed_while_it_waited_is_replaced(install, reader, tmp_path):
    once = f"""[ -e '{tmp_path}/failed' ] || {{ touch '{tmp_path}/failed'; echo CUDA out of memory; exit 1; }}\n"""
    shebang, _, rest = tool_that_writes(TABLE.read_text(), tmp_path).partition("\n")
    install(f"{shebang}\n{once}{rest}")
    reader.start()
    assert wait_until(lambda: reader._next.ended)
    assert reader.read(*NO_PLAN) == parse(TABLE.read_text())[1:]


def test_a_process_that_waits_ends_with_the_one_that_started_it(install, tmp_path):
    install(WAITING)
    tool = ncu.find_tool("ncu")
    script = (
        f"from fitness.profile import ncu\nncu.find_tool = lambda name: {tool!r}\n"
        "reader = ncu.CounterReader('GPU-1')\nreader.start()\nprint('started', flush=True)\ninput()\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    awaited(tmp_path, "started-*", 1)
    starter.kill()
    starter.communicate()
    (ended,) = awaited(tmp_path, "ended-*", 1)
    assert wait_until(lambda: ended.read_text() == "nothing")


def test_a_profiled_process_may_wait_for_the_gpu_and_has_a_limit_for_its_work(monkeypatch, tmp_path):
    """Its limit would end it while others use the GPU, though nothing is wrong with it."""
    from fitness.gpu import gpu_lock
    from fitness.profile import ncu_replay

    order: list[tuple[str, bool]] = []
    limits = [0]

    def noted(what: str) -> None:
        order.append((what, limits[-1] > 0))

    def opened(path: Path) -> int:
        noted(path.name)  # it waits now
        return open_lock(path)

    open_lock = gpu_lock._opened
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpu_lock, "_opened", opened)
    monkeypatch.setattr(gpu_lock, "signal", SimpleNamespace(alarm=limits.append))
    monkeypatch.setattr(ncu_replay.torch, "zeros", lambda *_, device: None)
    monkeypatch.setattr(ncu_replay, "received", lambda path: pickle.dumps(("softmax", NO_PLAN[1], "square")))
    monkeypatch.setattr(ncu_replay, "start_profiler", lambda: noted("starts"))
    monkeypatch.setattr(ncu_replay, "replay", lambda task, bundle, case: noted(f"replays {case.name}"))
    ncu_replay.main(["socket", "GPU-1"])
    noted("end")
    assert order == [
        ("evo-GPU-1-profiler.lock", False),
        ("starts", True),
        ("evo-GPU-1.lock", False),
        ("replays square", True),
        ("end", False),
    ]


def awaited(folder: Path, pattern: str, count: int) -> list[Path]:
    """Returns the files of a pattern once there are so many."""
    assert wait_until(lambda: len(list(folder.glob(pattern))) >= count)
    return sorted(folder.glob(pattern))


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_plan_is_replayed_under_the_profiler(tmp_path):
    from fitness.cuda.device import GpuWatch
    from fitness.cuda.nvidia import find_tool, tool_problem
    from fitness.gpu.launch_bundle import make_bundle
    from fitness.sandbox.zygote import Zygote
    from fitness.tasks.calls import CPU, Calls
    from fitness.tasks.task import load_task

    tool = find_tool("ncu")
    if not tool or tool_problem("ncu", tool):
        pytest.skip("no counters on this machine")
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    zygote = Zygote("sm_90", ("record", "compile"))
    try:
        work = make_bundle(
            task.seed_source, task, calls, zygote=zygote, target="sm_90", scratch=tmp_path, limits=Limits(wall_s=120)
        )
    finally:
        zygote.close()
    work = LaunchBundle(work.plans, work.builds, work.cubins, {"square": [0]})
    with contextlib.closing(CounterReader(GpuWatch(0).uuid)) as reader:
        ((kernel, found),) = reader.read(task.folder, work, "square")
        assert [name for name, _ in reader.read(task.folder, work, "square")] == [kernel]
    assert kernel == "softmax_kernel"
    assert {"time", "dram", "l2", "sm", "active", "registers", "l2_hit", "dram_bytes"} <= set(found), found
    assert any(name.startswith("stall_") for name in found)
    assert 5 < found["time"] < 5000 and 0 < found["dram"] <= 100

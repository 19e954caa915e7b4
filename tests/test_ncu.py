"""Nsight Compute: its table read, its failures told, its command built.  Counters themselves need a GPU."""

from pathlib import Path

import pytest
import torch

from fitness.gpu.runner import LaunchBundle
from fitness.profile import ncu
from fitness.profile.ncu import NoCounters, command_line, counters, failure, parse, readings
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
    command = command_line("/usr/bin/ncu", Path("/tmp/log"), ["softmax", "work", "square", "GPU-1"])
    assert command[0] == "/usr/bin/ncu" and command[-4:] == ["softmax", "work", "square", "GPU-1"]
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert "fitness.profile.ncu_replay" in command


def test_without_the_tool_there_are_no_counters(monkeypatch):
    monkeypatch.setattr(ncu, "find_tool", lambda name: "")
    with pytest.raises(NoCounters, match="not installed"):
        counters("softmax", LaunchBundle({}, {}, {}), "square", gpu="GPU-1")


def test_a_tool_that_fails_is_a_reason(monkeypatch, tmp_path):
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(ncu, "find_tool", lambda name: str(tool))
    with pytest.raises(NoCounters, match="ERR_NVGPUCTRPERM"):
        counters("softmax", LaunchBundle({}, {}, {}), "square", gpu="GPU-1")


@pytest.fixture
def tool_that_writes(monkeypatch, tmp_path):
    """Returns a function that puts a program in the place of ncu: it leaves this table as its log."""

    def install(table: str) -> None:
        tool, log = tmp_path / "ncu", tmp_path / "table.csv"
        log.write_text(table)
        find_log = 'while [ "$1" != --log-file ]; do shift; done'
        tool.write_text(f"#!/bin/sh\n{find_log}\ncp '{log}' \"$2\"\necho what the program says\n")
        tool.chmod(0o755)
        monkeypatch.setattr(ncu, "find_tool", lambda name: str(tool))

    return install


def test_the_log_has_the_table_and_its_first_kernel_only_starts_the_profiler(tool_that_writes):
    tool_that_writes(TABLE.read_text())
    assert counters("softmax", LaunchBundle({}, {}, {}), "square", gpu="GPU-1") == parse(TABLE.read_text())[1:]


def test_a_plan_of_which_no_kernel_was_measured_has_no_counters(tool_that_writes):
    tool_that_writes("\n".join(TABLE.read_text().splitlines()[:-1]))
    with pytest.raises(NoCounters, match="measured no kernel of the plan"):
        counters("softmax", LaunchBundle({}, {}, {}), "square", gpu="GPU-1")


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
    ((kernel, found),) = counters("softmax", work, "square", gpu=GpuWatch(0).uuid)
    assert kernel == "softmax_kernel"
    assert {"time", "dram", "l2", "sm", "active", "registers", "l2_hit", "dram_bytes"} <= set(found), found
    assert any(name.startswith("stall_") for name in found)
    assert 5 < found["time"] < 5000 and 0 < found["dram"] <= 100

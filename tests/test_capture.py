"""Captures of small programs: by Triton's interpreter, and on tensors that only say that they lie on a GPU."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import evo
from evo.core.errors import ConfigError
from evo.programs import inside
from evo.programs.capture import Capture, CapturedCall, read
from evo.programs.task import TARGET, MadeTask, make_task
from evo.programs.times import LaunchTimer
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import load_task
from tests.capture_programs import AUTOTUNED, HEAD, captured, listed, run, write

Make = Callable[..., MadeTask]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What `evo capture` of the program printed."""
    done = run(folder, "capture", "--out", "interpreted", "--keep-values", "--", sys.executable, "program.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def interpreted(folder: Path, printed: str) -> Capture:
    return read(folder / "interpreted")


@pytest.fixture(scope="module")
def noted(folder: Path) -> subprocess.CompletedProcess[str]:
    """A module that is run by its name, whose launches are noted and not made."""
    words = ("--json", "--out", "noted", "--", sys.executable, "-m", "autotuned")
    return run(folder, "capture", *words, interpreted=False)


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """`make_task`, with one zygote for all."""
    with Zygote(TARGET) as zygote:
        yield functools.partial(make_task, zygote=zygote)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def calls(capture: Capture, host: str) -> list[CapturedCall]:
    return sorted(capture.hosts[host].calls, key=lambda call: call.form["call"])


# --- launches --------------------------------------------------------------------------------------------------------


def test_kernels_are_listed_with_calls_shapes_and_places(folder: Path, interpreted: Capture) -> None:
    kernels = {kernel.attribute: kernel for kernel in interpreted.kernels}
    assert {name: kernel.launches for name, kernel in kernels.items()} == {
        "scale_kernel": 8, "main_kernel": 2, "gather_kernel": 2, "add_kernel": 2,
    }  # fmt: skip
    assert kernels["scale_kernel"].hosts == {"kernels.scale": 6, "": 2}, "backward launches outside of host functions"
    assert kernels["main_kernel"].hosts == {"__main__.plus_one": 2}, "also the call that began before it was watched"
    backward = next(site for site in kernels["scale_kernel"].sites if site["function"] == "Scale.backward")
    text = (folder / "kernels.py").read_text().splitlines()[backward["line"] - 1]
    assert "scale_kernel[" in text and backward["count"] == 2
    assert [kernel.gpu_us for kernel in interpreted.kernels] == [None] * 4
    assert interpreted.total_us is None and [p["troubles"] for p in interpreted.processes] == [[]]


def test_the_program_prints_the_same_with_and_without(folder: Path, printed: str) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    alone = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    assert printed.startswith(alone.stdout)
    assert "times on a GPU are unknown" in printed and "evo tasks new NAME --from interpreted scale_kernel" in printed


def test_an_autograd_function_ends_the_search_for_a_host_function(interpreted: Capture) -> None:
    assert "kernels.around" not in interpreted.hosts


def test_calls_are_taken_at_their_begin(interpreted: Capture) -> None:
    """`scale` makes its argument contiguous, and a tensor of other strides is another call."""
    first, second = sorted(calls(interpreted, "kernels.scale"), key=lambda call: -call.count)
    assert first.count == 5 and first.result == {"tuple": [{"tensor": 0}, {"value": 100}]}
    assert [a["tensor"]["strides"] for a in (first.arguments[0], second.arguments[0])] == [[1], [1, 6]]
    assert second.arguments[1] == {"value": 3.0} and second.form["result"] == "result[0]"


def test_integers_are_described_by_their_structure(interpreted: Capture) -> None:
    tensors = [call.arguments[1]["tensor"] for call in calls(interpreted, "kernels.gather")]
    rules = {tensor["shape"][0]: tensor for tensor in tensors}
    assert rules[200]["rule"] == "randint" and 0 <= rules[200]["low"] < rules[200]["high"] <= 500
    assert rules[5]["rule"] == "kept" and (interpreted.folder / rules[5]["file"]).exists()


def test_arguments_that_share_memory_are_seen(interpreted: Capture) -> None:
    same, part = calls(interpreted, "kernels.add_into")
    same, part = (same, part) if not same.trouble else (part, same)
    assert same.form["call"] == "add_into(x, x, x)" and same.aliases == {"y": "x", "z": "x"}
    assert part.trouble == "arguments x and y share part of their memory"


def test_without_a_gpu_launches_are_noted_and_not_made(folder: Path, noted: subprocess.CompletedProcess[str]) -> None:
    assert noted.returncode == 0, noted.stderr
    kernel = listed(noted)["__main__.tuned_kernel"]
    assert (kernel["launches"], kernel["distinct_calls"], kernel["host"]) == (6, 3, "__main__.double")
    assert kernel["configs"] == {} and kernel["gpu_us"] is None, "the tuner did not run"
    assert "last 128" in noted.stderr, "standard output is for the JSON"
    (call, *_) = read(folder / "noted").kernel("tuned_kernel").calls
    assert {"BLOCK", "EVEN"} <= set(call.names)
    assert call.arguments[0] == {"value": 3}, "the grid of the first configuration"


def test_every_process_writes_its_own_file(folder: Path) -> None:
    (folder / "processes.py").write_text(
        """
import multiprocessing, subprocess, sys, torch
from kernels import scale

def work(n):
    scale(torch.randn(n))

if __name__ == "__main__":
    work(10)
    for how, n in (("fork", 20), ("spawn", 30)):
        child = multiprocessing.get_context(how).Process(target=work, args=(n,))
        child.start()
        child.join()
        assert child.exitcode == 0
    code = "import torch; from kernels import scale; scale(torch.randn(10))"
    subprocess.run([sys.executable, "-c", code], check=True)
"""
    )
    capture = captured(folder, "processes", "processes.py")
    assert len(capture.processes) == 4 and len({p["pid"] for p in capture.processes}) == 4
    assert capture.kernel("scale_kernel").launches == 4
    by_size = {call.arguments[0]["tensor"]["shape"][0]: call.count for call in calls(capture, "kernels.scale")}
    assert by_size == {10: 2, 20: 1, 30: 1}, "equal calls of two processes are one"


def test_a_block_is_watched_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: tensors claim one inside the block, and nothing of that is left after it."""
    if torch.cuda.is_available():
        pytest.skip("the block would launch on the GPU")
    (tmp_path / "watched_module.py").write_text(AUTOTUNED)
    monkeypatch.syspath_prepend(tmp_path)
    import watched_module  # type: ignore[import-not-found]

    double, before = watched_module.double, dict(os.environ)
    with evo.capture(tmp_path / "block") as found:
        watched_module.double(torch.randn(96, device="cuda"))
        with pytest.raises(ConfigError, match="not watched yet"), evo.capture(tmp_path / "inner"):
            pass
    assert watched_module.double is double and dict(os.environ) == before and not torch.cuda.is_available()
    assert read(found).hosts["watched_module.double"].calls[0].count == 1
    with pytest.raises(ConfigError, match="expected a new folder"), evo.capture(found):
        pass


def test_the_users_sitecustomize_runs_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    env = inside.environment({"watch": None, "patches": [], "report": ""})
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = subprocess.run([sys.executable, "-c", "import sitecustomize"], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_misuse_is_explained(folder: Path, tmp_path: Path) -> None:
    nothing = run(folder, "capture", "--", sys.executable, "-c", "print(1)")
    assert nothing.returncode == 1 and "no Triton kernel was launched" in nothing.stderr
    (tmp_path / "process-1-1.json").touch()
    for words, text in (
        (["--"], "expected a program after --"),
        (["--", "no_such_program"], "expected a program that can be started"),
        (["--out", str(tmp_path), "--", "python"], "expected a new folder"),
    ):
        done = run(folder, "capture", *words)
        assert done.returncode == 2 and text in done.stderr, done.stderr
    done = run(folder, "tasks", "new", "x", "--from", "nowhere", "scale_kernel")
    assert done.returncode == 2 and "expected a folder that `evo capture" in done.stderr


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_is_made_of_a_host_function(interpreted: Capture, make: Make, tmp_path: Path) -> None:
    made = make(interpreted, "scale_kernel", tmp_path / "task")
    task = load_task(made.folder)
    assert (task.entry, task.parameters, task.reference, task.writes) == ("entry", ("x", "factor"), None, ())
    assert [case.weight for case in task.cases] == [1.0, 1.0]
    assert "def grid_of(" in task.needed_seed and "FACTOR = 2.0" in task.needed_seed
    assert "gather" not in task.needed_seed
    assert (task.inputs.__doc__ or "").startswith("The program calls scale: write it anew. entry stands for")
    x, factor = task.inputs(task.cases[1], torch.Generator().manual_seed(0))
    assert (x.stride(), factor) == ((1, 6), 3.0)
    origin = json.loads((made.folder / "origin.json").read_text())
    assert (origin["module"], origin["attribute"], origin["kind"]) == ("kernels", "scale", "function")
    first = origin["calls"][0]
    tensor = {"dtype": "float32", "shape": [100], "stride": [1], "offset": 0, "alignment": 16}
    assert first["arguments"] == [{"name": "x", "tensor": tensor}, {"name": "factor", "value": 2.0}]
    assert (first["count"], first["gpu_us"]) == (5, None)
    assert made.notes == [
        "no holdout case: the program made 2 distinct calls; add one to task.py by hand",
        "GPU times are unknown: all cases weigh the same",
        "2 of 8 launches of scale_kernel are made outside of host functions; with --launch the task has all of them",
    ]


def test_a_host_function_that_is_called_as_it_is_needs_no_entry(folder: Path, make: Make, tmp_path: Path) -> None:
    (folder / "plain.py").write_text(
        f"{HEAD}\nfrom kernels import grid_of, scale_kernel\n\n\ndef doubled(x, n=None):\n"
        "    y = torch.empty_like(x)\n    scale_kernel[grid_of(x.numel(), 32)](x, y, x.numel(), 2.0, BLOCK=32)\n"
        "    return y\n\n\ndoubled(torch.randn(9), None)\ndoubled(torch.randn(40), None)\n"
    )
    task = load_task(make(captured(folder, "plain", "plain.py"), "doubled", tmp_path / "task").folder)
    assert (task.entry, task.parameters, task.inputs.__doc__) == ("doubled", ("x", "n"), None)
    assert "def entry" not in task.needed_seed


def test_a_task_of_shared_memory_gives_one_tensor_for_all(interpreted: Capture, make: Make, tmp_path: Path) -> None:
    made = make(interpreted, "add_into", tmp_path / "task")
    task = load_task(made.folder)
    assert task.parameters == ("x",) and task.writes == ("x",)
    assert "left out: 1 of 2 calls" in made.notes[-1]


def test_a_task_is_made_of_a_launch_alone(interpreted: Capture, make: Make, tmp_path: Path) -> None:
    made = make(interpreted, "scale_kernel", tmp_path / "task", launch=True)
    task = load_task(made.folder)
    assert task.parameters[:3] == ("grid_0", "grid_1", "grid_2") and task.writes == ("y",)
    (tune, *_) = json.loads((made.folder / "origin.json").read_text())["calls"]
    assert tune["grid"] == [4, 1, 1] and tune["arguments"][0]["name"] == "x"


def test_a_tuned_kernel_alone_is_launched_as_it_was(folder: Path, noted: object, make: Make, tmp_path: Path) -> None:
    task = load_task(make(read(folder / "noted"), "tuned_kernel", tmp_path / "task", launch=True).folder)
    assert "autotune" not in task.needed_seed and "num_warps=4" in task.needed_seed


def test_the_users_function_may_be_the_reference(interpreted: Capture, make: Make, tmp_path: Path) -> None:
    text = "def right(x, factor):\n    return x.contiguous() * factor,\n"
    made = make(interpreted, "scale", tmp_path / "task", ("import torch\n\n\n" + text, "right"))
    task = load_task(made.folder)
    assert task.reference is not None
    x = torch.ones(100)
    assert torch.equal(task.reference(x, 2.0), 2 * x)


def test_what_cannot_become_a_task_says_why(folder: Path, tmp_path: Path) -> None:
    (folder / "odd.py").write_text(
        f"{HEAD}\nfrom kernels import gather, scale_kernel\nSTATE = object()\n\n\ndef host(x):\n    STATE\n"
        "    scale_kernel[(1,)](x, x, x.numel(), 2.0, BLOCK=32)\n\n\nhost(torch.randn(9))\n"
        "gather(torch.randn(9), torch.tensor([3, 1, 4, 1, 5]))\n"
    )
    capture = captured(folder, "odd", "odd.py")
    with pytest.raises(evo.EvoError, match=r"argument index holds values .* --keep-values"):
        make_task(capture, "gather_kernel", tmp_path / "task")
    alone = r"__main__.host does not stand alone: host uses STATE: .* got object"
    with pytest.raises(evo.EvoError, match=alone):
        make_task(capture, "host", tmp_path / "task")
    with pytest.raises(evo.EvoError, match=alone + ".* or make the task of the launch alone, by --launch"):
        make_task(capture, "kernels.scale_kernel", tmp_path / "task")
    assert not (tmp_path / "task").exists()


def test_a_launch_alone_has_no_pre_hook(folder: Path, tmp_path: Path) -> None:
    """The kernel adds to what its tuner's pre_hook has filled with zeros."""
    (folder / "hooked.py").write_text(
        f"""{HEAD}

@triton.autotune(configs=[triton.Config({{"BLOCK": 32}}, pre_hook=lambda given: given["y"].zero_())], key=[])
@triton.jit
def adding_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)


x = torch.randn(9)
adding_kernel[(1,)](x, torch.empty_like(x), 9)
"""
    )
    capture = captured(folder, "hooked", "hooked.py")
    with pytest.raises(evo.EvoError, match=r"no call of .*adding_kernel can be made again: its tuner's .* a pre_hook"):
        make_task(capture, "adding_kernel", tmp_path / "task", launch=True)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@triton.jit
def add_one(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) + 1)


@gpu
@pytest.mark.gpu
def test_times_and_configurations_are_measured(folder: Path) -> None:
    capture = captured(folder, "gpu", "autotuned.py", interpreted=False)
    kernel = capture.kernel("tuned_kernel")
    assert kernel.launches == 6, "trial launches of the tuner do not count"
    assert sum(kernel.configs.values()) == 6 and kernel.gpu_us is not None and 0 < kernel.gpu_us < 1e5
    assert capture.share(kernel) == pytest.approx(1.0)
    assert sum(call.gpu_us or 0 for call in capture.hosts["__main__.double"].calls) == pytest.approx(kernel.gpu_us)


@gpu
@pytest.mark.gpu
def test_the_time_of_many_launches_is_that_of_all(folder: Path) -> None:
    """Most of them are not timed; they are on a stream of the program's own."""
    (folder / "many.py").write_text(
        """
import torch
from kernels import scale
x = torch.randn(1 << 24, device="cuda")
with torch.cuda.stream(torch.cuda.Stream()):
    scale(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(400):
        scale(x)
    end.record()
    end.synchronize()
print("took", begin.elapsed_time(end) * 1000)
"""
    )
    done = run(folder, "capture", "--out", "many", "--", sys.executable, "many.py", interpreted=False)
    assert done.returncode == 0, done.stderr
    took = float(done.stdout.split("took ")[1].split()[0])
    capture = read(folder / "many")
    kernel = capture.kernel("scale_kernel")
    assert kernel.launches == 401 and kernel.gpu_us == pytest.approx(took, rel=0.2)
    assert sum(call.gpu_us or 0 for call in capture.hosts["kernels.scale"].calls) == pytest.approx(kernel.gpu_us)
    assert not any(process["troubles"] for process in capture.processes)


@gpu
@pytest.mark.gpu
def test_the_time_of_a_short_kernel_is_not_what_the_host_takes_to_launch_it() -> None:
    timer, times = LaunchTimer(lambda function, *arguments: function(*arguments)), []
    x = torch.zeros(64, device="cuda")
    for _ in range(60):
        with timer.launch(times.append):
            add_one[(1,)](x, N=64)
        torch.cuda.synchronize()  # so the GPU waits for the next launch
    timer.finish()
    assert len(times) == 60 and int(x[0]) == 60
    assert statistics.median(times) < 12, "an empty launch takes 2 to 3 us, the host 20 and more"


@gpu
@pytest.mark.gpu
def test_launches_into_cuda_graphs_count(folder: Path) -> None:
    (folder / "graphs.py").write_text(
        """
import torch
from kernels import scale
x = torch.randn(100, device="cuda")
scale(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y, _ = scale(x)
for _ in range(5):
    graph.replay()
assert torch.equal(y, 2 * x)
"""
    )
    done = run(folder, "capture", "--out", "graphs", "--", sys.executable, "graphs.py", interpreted=False)
    assert done.returncode == 0 and "1 launches were into CUDA graphs" in done.stdout, done.stderr
    assert read(folder / "graphs").kernel("scale_kernel").launches == 2


@gpu
@pytest.mark.gpu
def test_inductors_kernels_are_named_as_such(folder: Path) -> None:
    (folder / "compiled.py").write_text(
        """
import torch
from kernels import scale
f = torch.compile(lambda x: scale(torch.sin(x) + 1)[0] * 2)
for _ in range(3):
    f(torch.randn(1000, device="cuda"))
"""
    )
    capture = captured(folder, "compiled", "compiled.py", interpreted=False)
    assert {kernel.kind for kernel in capture.kernels} == {"inductor"}

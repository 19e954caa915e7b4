"""A package that `evo apply` writes: it needs nothing of evo, and replaces while the program runs."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.core.errors import ConfigError
from evo.programs.apply import find
from evo.programs.package import write_package
from tests.program_support import (
    FASTER,
    HEAD,
    HOST,
    KERNEL,
    PAIR,
    PROGRAM,
    WRAPPED,
    WRAPPED_CALL,
    WRAPPED_TASK,
    import_program,
    write_program,
    write_run,
    write_task,
)


@pytest.fixture
def written(tmp_path) -> tuple[Path, Path]:
    """The user's file, and a package of a run for it."""
    file = write_program(tmp_path, "prog_packaged")
    run = write_run(tmp_path / "run", write_task(tmp_path / "scaling", file), [(FASTER, {"small": 1.5, "large": 2.0})])
    finding = find(run, print, opener=None)
    assert finding is not None
    write_package(finding, tmp_path / "fast_scale")
    return file, tmp_path / "fast_scale"


def test_importing_it_replaces_and_a_kernel_wrong_elsewhere_never_runs_there(written, monkeypatch):
    file, package = written
    ops = import_program(file, monkeypatch)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("fast_scale", "fast_scale.patch", "fast_scale.kernel", "fast_scale.guard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    patch = importlib.import_module("fast_scale.patch")
    kernel = importlib.import_module("fast_scale.kernel")
    try:
        x = torch.randn(64)
        assert torch.equal(ops.twice(x), x * 2) and patch.counts()["new"] == 1
        # 60 elements, in memory with others behind them: the new kernel has no mask and would write beyond.
        part, beyond = torch.randn(60), torch.zeros(64)
        kernel.scale_kernel[(2,)](torch.randn(64), beyond[:60], 60, 2.0, BLOCK=32)
        assert beyond[60:].any(), "alone it is wrong there"
        assert torch.equal(ops.scale(part), part * 2)
        assert torch.equal(ops.scale(x, 3.0), x * 3)
        assert torch.equal(ops.scale(torch.randn(128)[::2] * 0 + x), x * 2)
        assert patch.counts() == {
            "new": 2,
            "original": {"x: shape not verified": 1, "factor: value not verified": 1},
        }
    finally:
        patch.undo()
    assert ops.scale.__module__ == "prog_packaged.ops" and torch.equal(ops.scale(x), x * 2)
    assert patch.counts()["new"] == 2, "undone, nothing is counted"


def test_it_runs_without_evo_and_as_a_file(written):
    file, package = written
    script = (
        "import runpy, sys, torch\n"
        "class No:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('evo', 'fitness', 'operators', 'analysis'):\n"
        "            raise ImportError(f'{name} must not be needed')\n"
        "sys.meta_path.insert(0, No())\n"
        f"sys.path.insert(0, {str(file.parent.parent)!r})\n"
        "from prog_packaged.ops import scale\n"
        f"runpy.run_path({str(package / 'patch.py')!r})\n"
        "import prog_packaged.ops, fast_scale.patch as patch\n"
        "prog_packaged.ops.scale(torch.ones(64)); scale(torch.ones(64)); print(patch.counts())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin"},
    )
    assert done.stdout == "{'new': 2, 'original': {}}\n", done.stderr


def test_its_files_say_what_was_measured_and_what_was_verified(written):
    file, package = written
    domain = json.loads((package / "domain.json").read_text())
    assert domain["names"] == ["x", "factor"] and domain["capability"] == [9, 0]
    assert [call["arguments"][0][1] for call in domain["calls"]] == [[64], [256], [96]]
    assert json.loads((package / "origin.json").read_text())["file"] == str(file)
    docstring = ast.get_docstring(ast.parse((package / "patch.py").read_text()))
    assert docstring is not None and "1.73x [1.73, 1.73] over the original, estimated" in docstring
    assert "# Verdict: ok" in (package / "kernel.py").read_text()


def test_an_earlier_package_is_replaced_and_other_folders_are_not(written, tmp_path):
    finding = find(tmp_path / "run", print, opener=None)
    assert finding is not None
    write_package(finding, tmp_path / "fast_scale")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected a new or empty folder, or an earlier package"):
        write_package(finding, mine)
    with pytest.raises(ConfigError, match="expected a folder, got the file"):
        write_package(finding, (mine / "notes.txt").rename(tmp_path / "notes"))
    with pytest.raises(ConfigError, match="a folder whose name can be imported"):
        write_package(finding, tmp_path / "fast-scale")


def test_a_task_with_an_entry_around_the_function_and_plain_results(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_entry_around", PROGRAM.replace(HOST, PAIR))
    task = write_task(tmp_path / "scaling", file, seed=WRAPPED, task=WRAPPED_TASK, calls=[WRAPPED_CALL])
    new = WRAPPED.replace("BLOCK=16", "BLOCK=32").replace("numel(), 16)", "numel(), 32)").replace("y, 16", "y, 32")
    finding = find(write_run(tmp_path / "run", task, [(new, {"small": 2.0, "large": 2.0})]), print, opener=None)
    assert finding is not None
    write_package(finding, tmp_path / "fast_entry")
    ops = import_program(file, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    patch = importlib.import_module("fast_entry.patch")
    try:
        x = torch.randn(64)
        y, block, nothing = ops.scale(x)
        assert torch.equal(y, x * 2) and (block, nothing) == (16, None), "as the original returned it"
        assert patch.counts() == {"new": 1, "original": {}}
        assert ops.scale(torch.randn(256))[1] == 16, (
            "a case that was not captured: what the original returns is unknown"
        )
        assert patch.counts()["new"] == 1
    finally:
        patch.undo()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_patched_program_runs_on_a_gpu(written, monkeypatch):
    file, package = written
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the package is for compute capability 9.0")
    ops = import_program(file, monkeypatch, interpreted=False)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in ("fast_scale", "fast_scale.patch", "fast_scale.kernel", "fast_scale.guard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    patch = importlib.import_module("fast_scale.patch")
    try:
        for size in (64, 256, 60):
            x = torch.randn(size, device="cuda")
            assert torch.equal(ops.scale(x), x * 2)
        assert torch.equal(ops.scale(torch.randn(65, device="cuda")[1:] * 0), torch.zeros(64, device="cuda"))
        part = torch.randn(65, device="cuda")[1:]
        assert torch.equal(ops.scale(part), part * 2)
        counts = patch.counts()
        assert counts["new"] == 3 and counts["original"] == {
            "x: shape not verified": 1,
            "a tensor does not start at a multiple of 16 bytes": 1,
        }
        compiled = torch.compile(lambda x: ops.scale(x) + 1)
        assert torch.equal(compiled(torch.ones(64, device="cuda")), torch.full((64,), 3.0, device="cuda"))
        assert patch.counts() == counts, "torch.compile traces the original"
    finally:
        patch.undo()


LAUNCH = """
def entry(grid_0, grid_1, grid_2, x_ptr, y_ptr, n, factor, BLOCK):
    scale_kernel[(grid_0, grid_1, grid_2)](x_ptr, y_ptr, n, factor, BLOCK=BLOCK, num_warps=4)
    return None
"""
LAUNCH_TASK = """
import torch
from fitness import Case

entry = "entry"
writes = ("y_ptr",)
cases = [Case("small", {"N": 64}), Case("large", {"N": 256})]
stress = False


def inputs(case, generator):
    n = case.axes["N"]
    x = torch.randn(n, generator=generator, device=generator.device)
    return n // 16, 1, 1, x, torch.zeros_like(x), n, 2.0, 16


def reference(grid_0, grid_1, grid_2, x_ptr, y_ptr, n, factor, BLOCK):
    y_ptr.copy_(x_ptr * factor)
"""


def check_two_sizes_are_replaced(file: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program runs with the package at two verified sizes and another one.  Returns its module, without it."""
    ops = import_program(file, monkeypatch)
    monkeypatch.syspath_prepend(str(package.parent))
    patch = importlib.import_module(f"{package.name}.patch")
    try:
        for size in (64, 256, 80):
            x = torch.randn(size)
            assert torch.equal(ops.scale(x), x * 2)
        assert patch.counts() == {"new": 2, "original": {"x_ptr: shape not verified": 1}}
    finally:
        patch.undo()
    return ops


def test_a_kernel_whose_launch_the_search_changed_is_replaced(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_launch")
    seed = f"{HEAD}\n{KERNEL}\n{LAUNCH}"
    task = write_task(
        tmp_path / "t", file, seed=seed, task=LAUNCH_TASK, attribute="scale_kernel", kind="kernel", calls=[]
    )
    new = seed.replace("(grid_0, grid_1, grid_2)", "(grid_0 // 2, grid_1, grid_2)").replace("BLOCK=BLOCK", "BLOCK=32")
    finding = find(write_run(tmp_path / "run", task, [(new, {"small": 2.0, "large": 2.0})]), print, opener=None)
    assert finding is not None
    write_package(finding, tmp_path / "fast_launch")
    domain = json.loads((tmp_path / "fast_launch" / "domain.json").read_text())
    names = ("x_ptr", "y_ptr", "n", "factor", "BLOCK")
    slots = [*(["grid", axis] for axis in range(3)), *(["argument", name] for name in names)]
    assert [call["slots"] for call in domain["calls"]] == [slots, slots]
    ops = check_two_sizes_are_replaced(file, tmp_path / "fast_launch", monkeypatch)
    assert type(ops.scale_kernel).__name__ == "InterpretedFunction"


FORMS = """
def entry(form, grid_0, grid_1, grid_2, x_0, y_0, n_0, f_0, BLOCK_0, grid_3, grid_4, grid_5, x_1, y_1, n_1, BLOCK_1):
    if form == 0:
        scale_kernel[(grid_0, grid_1, grid_2)](x_0, y_0, n_0, f_0, BLOCK=BLOCK_0, num_warps=4)
        return None
    scale_kernel[(grid_3, grid_4, grid_5)](x_1, y_1, n_1, 2.0, BLOCK=BLOCK_1, num_warps=8)
    return None
"""
FORMS_INPUTS = """
    given = n // 16, 1, 1, x, torch.zeros_like(x), n
    small = (*given, 2.0, 16) if n == 64 else (None,) * 8
    return int(n != 64), *small, *((None,) * 7 if n == 64 else (*given, 16))


def reference(form, grid_0, grid_1, grid_2, x_0, y_0, n_0, f_0, BLOCK_0, grid_3, grid_4, grid_5, x_1, y_1, *_):
    (y_1 if form else y_0).copy_(2 * (x_1 if form else x_0))
"""


def test_launches_of_several_forms_are_replaced_each_by_its_own(tmp_path, monkeypatch):
    """A tuner chose 4 warps at one size and 8 at another: the entry has a branch for each."""
    file = write_program(tmp_path, "prog_forms")
    seed = f"{HEAD}\n{KERNEL}\n{FORMS}"
    text = LAUNCH_TASK[: LAUNCH_TASK.index("    return n // 16")] + FORMS_INPUTS
    how = {"attribute": "scale_kernel", "kind": "kernel", "calls": []}
    task = write_task(tmp_path / "t", file, seed=seed, task=text.replace('"y_ptr",', '"y_0", "y_1"'), **how)
    new = seed.replace("grid_0, grid_1, grid_2)]", "grid_0 // 2, grid_1, grid_2)]").replace("BLOCK=BLOCK_0", "BLOCK=32")
    finding = find(write_run(tmp_path / "run", task, [(new, {"small": 2.0, "large": 2.0})]), print, opener=None)
    assert finding is not None
    write_package(finding, tmp_path / "fast_forms")
    domain = json.loads((tmp_path / "fast_forms" / "domain.json").read_text())
    small, large = [call["slots"] for call in domain["calls"]]
    assert small[:5] == [["value", 0], ["grid", 0], ["grid", 1], ["grid", 2], ["argument", "x_ptr"]]
    assert small[9:] == [["value", None]] * 7
    assert large[:9] == [["value", 1], *[["value", None]] * 8] and large[12] == ["argument", "x_ptr"]
    check_two_sizes_are_replaced(file, tmp_path / "fast_forms", monkeypatch)


def test_what_is_no_plain_launch_is_refused(tmp_path):
    file = write_program(tmp_path, "prog_no_launch")
    how = {"task": LAUNCH_TASK, "attribute": "scale_kernel", "kind": "kernel", "calls": []}
    for number, (old, new, message) in enumerate(
        [
            (
                "    return None",
                "    scale_kernel[(1,)](x_ptr, y_ptr, n, factor, 16)",
                "once, got one that does 2 times",
            ),
            ("n, factor, BLOCK=", "n + 0, factor, BLOCK=", "that calls scale_kernel alone, got TypeError"),
            ("n, factor, BLOCK=", "64, factor, BLOCK=", "that passes n to scale_kernel as it is"),
        ]
    ):
        folder = tmp_path / str(number)
        task = write_task(folder / "t", file, seed=f"{HEAD}\n{KERNEL}\n{LAUNCH}".replace(old, new), **how)
        run = write_run(folder / "run", task, [(f"{HEAD}\n{KERNEL}\n{LAUNCH}", {"small": 2.0, "large": 2.0})])
        finding = find(run, print, opener=None)
        assert finding is not None
        with pytest.raises(ConfigError, match=message):
            write_package(finding, folder / "made")

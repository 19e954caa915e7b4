"""fitness.cuda.nvidia: what is read off NVIDIA's tools.  Scripts that say what the tools say stand in for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fitness.cuda import nvidia

NO_PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
)
COUNTED = "sm__cycles_elapsed.max      cycle        4,242"


def tool(folder: Path, name: str, says: str, code: int = 0) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("name", "says", "code", "problem"),
    [
        ("ncu", COUNTED, 0, ""),
        ("ncu", NO_PERMISSION, 0, "no permission to read"),
        ("ncu", "==WARNING== No kernels were profiled.", 0, "exit code 0 on a small kernel: ==WARNING== No kernels"),
        ("compute-sanitizer", "========= ERROR SUMMARY: 0 errors", 0, ""),
        ("compute-sanitizer", "Error: cannot attach\nmore", 7, "exit code 7 on a small kernel: Error: cannot attach"),
        ("compute-sanitizer", "", 1, "it said nothing"),
    ],
)
def test_whether_a_tool_can_be_used_is_read_off_its_trial(tmp_path, name, says, code, problem):
    found = nvidia.tool_problem(name, tool(tmp_path, name, says, code))
    assert problem in found
    assert bool(found) == bool(problem)


def test_a_tool_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "_TRIAL_S", 0.2)
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    assert "did not finish" in nvidia.tool_problem("ncu", str(path))


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.1.0.0 (build 35237751)", "2025.1.0.0"),
        ("NVIDIA (R) Compute Sanitizer\nVersion 2025.1.0.0 (build 1)", "2025.1.0.0"),
    ],
)
def test_versions(tmp_path, says, version):
    assert nvidia.tool_version(tool(tmp_path, "tool", says)) == version


def test_tools_are_found_on_the_path_and_where_cuda_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(nvidia, "_FOLDERS", (str(tmp_path / "nsight-compute" / "*"),))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.find_tool("ncu") == ""
    for version in ("2024.3", "2025.1"):
        (tmp_path / "nsight-compute" / version).mkdir(parents=True)
        tool(tmp_path / "nsight-compute" / version, "ncu", version)
    assert nvidia.find_tool("ncu") == str(tmp_path / "nsight-compute" / "2025.1" / "ncu")
    on_path = tool(tmp_path, "ncu", "")
    assert nvidia.find_tool("ncu") == on_path


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_has_a_driver():
    assert nvidia.driver_version()[0].isdigit()


def test_without_package_and_module_there_is_no_driver(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setattr(nvidia, "_KERNEL_MODULE", tmp_path / "version")
    assert nvidia.driver_version() == ""
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n")
    assert nvidia.driver_version() == "550.54.15"

"""The scripts in examples/, without a GPU: one in a process of its own, as a user starts it, the others in this one."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def output_of_process(name: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, str(ROOT / "examples" / name), str(folder / "runs")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def output_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """`output_of(name)` executes a script as `python` does, in this process: its zygotes are warm."""

    def output_of(name: str) -> str:
        script = ROOT / "examples" / name
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "runs")])
        monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
        runpy.run_path(str(script), run_name="__main__")
        return capfd.readouterr().out

    return output_of


def test_library_use(tmp_path: Path) -> None:
    out = output_of_process("library_use.py", tmp_path)
    right, wrong = (line for line in out.splitlines() if line.startswith("evaluated:"))
    assert float(right.split()[2]) > 1 and right.split()[1] == "ok"
    assert "evaluated: wrong None" in wrong and "output is wrong" in wrong
    assert re.search(r"^best: \d+\.\d\dx \[.*\] estimated in trial \d$", out, re.MULTILINE)
    assert "stopped: budget spent after 4 candidates" in out and "\n0 seed ok\n" in out
    assert (tmp_path / "runs/run/best/kernel.py").exists()


def test_callable_model(output_of: Callable[[str], str]) -> None:
    out = output_of("callable_model.py")
    assert len(re.findall(r"^\d mutate@doubler (?:ok|duplicate) Larger blocks", out, re.MULTILINE)) == 2
    (speedup, tokens) = re.findall(r"^best: ([\d.]+)x .* for (\d+) tokens$", out, re.MULTILINE)[0]
    assert float(speedup) > 1 and int(tokens) > 0


def test_ablation_script(output_of: Callable[[str], str]) -> None:
    lines = output_of("ablation_script.py").splitlines()
    assert [line.split(":")[0] for line in lines] == ["evolve", "random"]
    for line in lines:
        median, *speedups = map(float, re.findall(r"([\d.]+)x", line))
        assert len(speedups) == 2 and min(speedups) - 0.01 <= median <= max(speedups) + 0.01

"""`evo tasks time`: its table, its file, which best kernels it takes, and what it says without a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis import baselines
from analysis.baselines import BaselineRow
from evo.cli.main import main
from evo.core.errors import StoreError
from evo.search import evaluators
from fitness.cuda.gpus import Gpus
from fitness.tasks.task import load_task, task_names
from tests.reference_support import reference_task

pytest.importorskip("pynvml")
pytest.importorskip("cuda.bindings")

from fitness.gpu.baselines import Baseline
from fitness.suites import baselines as suite_baselines
from fitness.suites.baselines import TimedKernel

RUNS = Path(__file__).parent.parent / "runs" / "reference" / "h200-claude-24"
GPU = {"name": "a GPU", "copy_bytes_per_s": 4e12, "matmul_flops": 7e14}


def row(kernel: str, name: str, us: float, ratio: float, **changes: Any) -> BaselineRow:
    usual = {"task": "t", "task_hash": "h", "case": "c", "attainable_us": 5.0, "run": "", "kernel_us": us / ratio}
    return BaselineRow(
        **{**usual, "kernel": kernel, "baseline": name, "us": us, "ratio": ratio, "ci_low": ratio, "ci_high": ratio}
        | changes
    )


def test_the_table_has_shares_of_the_attainable_speed_and_the_best_over_each_baseline() -> None:
    rows = [row("seed", "eager", 20.0, 0.5), row("best", "eager", 20.0, 2.0), row("best", "library", 8.0, 0.8)]
    rows.append(row("seed", "library", 0.0, 1.0, error="RuntimeError: no"))
    head, _, line, *notes = baselines.table(rows).splitlines()
    assert head.count("|") == line.count("|") and "best over library" in head and "torch.compile" not in head
    assert line == (
        "| t | c | 5.0 | 40.0 (12%) | 10.0 (50%) | 20.0 (25%) | 8.0 (62%) | 2.00× [2.00, 2.00] | 0.80× [0.80, 0.80] |"
    )
    assert notes == ["", "t, c, library beside seed: RuntimeError: no"]


def test_rows_are_saved_and_read(tmp_path: Path) -> None:
    rows = [row("seed", "eager", 20.0, 0.5), row("seed", "library", 20.0, 0.5, attainable_us=None)]
    baselines.save(tmp_path / "a.json", rows, GPU, {"torch": "2"})
    assert baselines.load(tmp_path / "a.json") == (rows, GPU)
    (tmp_path / "b.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(StoreError, match=r"b\.json, got: ValueError.*format 9.*write it by evo tasks time"):
        baselines.load(tmp_path / "b.json")


def measured(asked: list[tuple[str, str]]) -> Any:
    def measure(kernels: Sequence[Any], target: Any, workers: int) -> Iterator[TimedKernel]:
        for task, source in kernels:
            asked.append((task.name, source))
            cases = [case.name for case in task.cases if case.role == "tune"]
            found = [Baseline("eager", case, 20.0, 10.0, 2.0, (1.9, 2.1)) for case in cases]
            yield TimedKernel(task, source, found, dict.fromkeys(cases, 5.0), GPU)

    return measure


def test_seeds_and_the_best_kernels_of_runs_are_timed(monkeypatch, tmp_path: Path, capsys) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(suite_baselines, "measure", measured(asked))
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: Gpus(1, "a GPU", ""))
    out = tmp_path / "a.json"
    names = ["softmax", "matmul_backward"]
    assert main(["tasks", "time", *names, "--best", str(RUNS), "--out", str(out)]) == 0
    best = (RUNS / "matmul_backward" / "best_kernel.py").read_text()
    seeds = [(name, load_task(name).seed_source) for name in names]
    assert asked == [*seeds, ("matmul_backward", best)]
    text = capsys.readouterr().out
    assert re.search(r"softmax \| square \| 5\.0 \| 10\.0 \(50%\) \| none", text) and f"wrote {out}" in text
    rows, _ = baselines.load(out)
    assert {(r.task, r.kernel, bool(r.run)) for r in rows} == {
        ("softmax", "seed", False),
        ("matmul_backward", "seed", False),
        ("matmul_backward", "best", True),
    }


def test_without_a_gpu_or_a_run_of_the_task_it_says_so(capsys) -> None:
    assert main(["tasks", "time", "softmax", "--best", str(RUNS)]) == 2
    assert "expected a run of softmax with a kernel faster than its baseline" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["tasks", "time"]) == 2
        assert "torch sees no CUDA GPU; PyTorch, libraries and kernels are timed" in capsys.readouterr().err


def test_tasks_without_any_kernel_are_refused(tmp_path: Path, capsys) -> None:
    assert main(["tasks", "time", str(reference_task(tmp_path / "swish"))]) == 2
    assert "expected a task with kernel.py, or --best DIR with a kernel of one, got swish" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_every_built_in_task_is_timed_beside_its_baselines(tmp_path: Path) -> None:
    assert main(["tasks", "time", "--out", str(tmp_path / "a.json")]) == 0
    rows, gpu = baselines.load(tmp_path / "a.json")
    assert {row.task for row in rows} == set(task_names()) and gpu["copy_bytes_per_s"] > 0
    for row in rows:
        assert not row.error and row.us > 0 and row.ci_low <= row.ratio <= row.ci_high
        assert row.attainable_us is not None and row.attainable_us < 1.1 * min(row.us, row.kernel_us)
    assert {row.baseline for row in rows if row.task == "matmul"} == {"eager", "torch.compile", "library"}

"""Searches on a task of a reference alone: PyTorch is trial 0, models write the first kernels.

The evaluator is the real one without a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import evo
from evo import api
from evo.cli.main import main
from evo.core.errors import ConfigError, TaskError
from evo.core.records import BASELINE_OPERATOR, Verdict
from evo.result import Result
from tests.reference_support import COPYING, FAST, IDLE, KERNEL, WRONG, Writer, course, reference_task, searched

EAGER = "PyTorch eager (TF32 off)"


@pytest.mark.parametrize("strategy", ["tritonforge", "random"])  # the others: tests/test_strategies.py
def test_a_first_kernel_is_written_then_mended_then_improved(tmp_path: Path, strategy: str) -> None:
    model = Writer()
    result = searched(tmp_path, model, strategy=strategy, operators=["initial", "repair", "mutate"], budget=4)
    assert model.asked[:3] == ["initial", "repair", "change"]
    assert all(f"compared with that of {EAGER}. The result" in text for text in model.systems)
    first, wrong, mended, changed, *_ = result.trials
    assert (first.proposal.operator, first.proposal.note, first.proposal.parents) == (BASELINE_OPERATOR, EAGER, ())
    assert first.evaluation.pytorch and first.evaluation.estimated and first.fitness.speedup == 1
    assert wrong.evaluation.verdict is Verdict.WRONG and wrong.proposal.parents == ()
    assert (mended.proposal.operator, mended.proposal.parents) == ("repair@m", (1,)) and mended.fitness is not None
    assert (changed.proposal.operator, changed.proposal.parents) == ("mutate@m", (2,)) and changed.fitness is not None
    assert all(0 not in trial.proposal.parents for trial in result.trials)
    assert result.best.trial >= 2 and result.baseline == EAGER and result.best.patch == ""
    assert (tmp_path / "run/best/kernel.py").read_text() == result.best.source
    assert not (tmp_path / "run/best/diff.patch").exists()
    figures = json.loads((tmp_path / "run/best/result.json").read_text())
    assert (
        figures["baseline"] == EAGER and figures["kernel_found"] and figures["estimated"] and figures["own_share"] == 1
    )
    evidence = json.loads((tmp_path / "run/best/evidence.json").read_text())
    assert evidence["baseline"] == "eager" and "--baseline eager" in evidence["reproduce"][0]


def test_independent_samples_are_all_written_from_the_reference(tmp_path: Path) -> None:
    model = Writer(first=[WRONG, KERNEL, FAST])
    result = searched(tmp_path, model, strategy="best-of-n", budget=3)
    assert model.asked == ["initial"] * 3 and result.config.operators == ("initial@m",)
    assert [t.evaluation.verdict for t in result.trials][1:] == [Verdict.WRONG, Verdict.OK, Verdict.OK]


def test_idle_kernels_are_no_right_kernels_and_the_run_says_that_it_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = searched(tmp_path, Writer(first=[IDLE, COPYING, WRONG]), strategy="best-of-n", budget=3)
    assert {t.evaluation.verdict for t in result.trials if t.index} == {Verdict.WRONG}
    assert result.best is None and result.seed is not None and "no right kernel" in result.certificate.message
    assert not (tmp_path / "run/best/kernel.py").exists()
    figures = json.loads((tmp_path / "run/best/result.json").read_text())
    assert not figures["kernel_found"] and figures["speedup"] is None and figures["trial"] == 0
    from evo.cli.search import show_end

    assert show_end(result) == 1
    assert f"no right kernel was found among 3 candidates; {EAGER} is the baseline" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "run")]) == 0
    assert f"no right kernel yet; speedups are over {EAGER}" in capsys.readouterr().out


def test_without_a_model_nothing_is_begun(tmp_path: Path) -> None:
    task = reference_task(tmp_path / "task")
    with pytest.raises(ConfigError, match=r"expected a kernel.py in .*task to start from, or a model .* got neither"):
        evo.search(task, run_dir=tmp_path / "run", gpus="none")
    with pytest.raises(ConfigError, match=r"expected one that writes a first kernel.*got mutate; add initial"):
        searched(tmp_path, Writer(), operators=["mutate"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "baseline", "message"),
    [
        ("softmax", "eager", "expected a task without kernel.py, got softmax"),
        ("", "fast", "expected one of eager, compile, eager-tf32, compile-tf32, got 'fast'"),
    ],
)
def test_a_baseline_that_cannot_be_is_refused(tmp_path: Path, task: str, baseline: str, message: str) -> None:
    folder = task or str(reference_task(tmp_path / "task"))
    models = [evo.Model.from_callable("m", Writer())]
    with pytest.raises(ConfigError, match=message):
        evo.search(folder, run_dir=tmp_path / "run", models=models, baseline=baseline, gpus="none")
    assert not (tmp_path / "run").exists()


def test_compiled_pytorch_is_not_estimated(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"torch.compile .TF32 off. is only measured.*use --baseline eager"):
        searched(tmp_path, Writer(), baseline="compile")


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    operators = ["initial", "repair", "mutate", "random_params"]
    settings = {"strategy": "random", "operators": operators, "baseline": "eager-tf32", "budget": 4}
    whole = searched(tmp_path / "whole", Writer(), **settings)
    script = (
        "import sys; from pathlib import Path; from tests.reference_support import Writer, searched\n"
        f"searched(Path(sys.argv[1]), Writer(die=2), **{settings!r})"
    )
    killed = tmp_path / "killed"
    died = subprocess.run([sys.executable, "-c", script, str(killed)], cwd=Path(__file__).parents[1], check=False)
    assert died.returncode == -9 and len(list(Result.open(killed / "run").trials)) == 3
    resumed = evo.resume(killed / "run", models=[evo.Model.from_callable("m", Writer())])
    assert course(resumed)[1:] == course(whole)[1:]
    assert resumed.baseline == whole.baseline == "PyTorch eager (TF32 on)" and resumed.best == whole.best
    assert all(decision.same for decision in api.replay(killed / "run"))


def test_halves_of_a_search_work_on_one_folder(tmp_path: Path) -> None:
    task, folder = reference_task(tmp_path / "task"), tmp_path / "run"
    models = [evo.Model.from_callable("m", Writer(first=[WRONG, KERNEL]))]
    assert api.propose(folder, 1, task, models=models, workers=1, budget=6).proposed == 1
    assert api.evaluate_pending(folder, workers=1, gpus="none").best is None
    assert api.propose(folder, 1, models=[evo.Model.from_callable("m", Writer())], workers=1).proposed == 1
    result = api.evaluate_pending(folder, workers=1, gpus="none")
    assert [t.proposal.operator for t in result.trials] == [BASELINE_OPERATOR, "initial@m", "repair@m"]
    assert result.best is not None and result.best.trial == 2
    assert all(decision.same for decision in api.replay(folder))

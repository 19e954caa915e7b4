"""Campaigns in halves: proposed on a login node, evaluated on a GPU node, alternately, on one folder that travels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import evo.core.versions
from analysis.benchmarks.endpoint import answer_to
from evo.campaign.spec import read_plan
from evo.cli import common
from evo.cli.main import main
from evo.search import evaluators
from tests.campaign_support import candidates, install, readers
from tests.cli_support import NO_GPU, CliEvaluator
from tests.mailbox_support import answering
from tests.test_bench import FILES, FOLDER

ONE_GPU = SimpleNamespace(count=1, name="H200", problem="")
LOGIN, NODE = Path("login"), Path("node")
BENCH = ("bench", "softmax", "rotary", "--budget", "6")
STRATEGIES = ("--strategy", "evolve,best-of-n")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch.setattr)


@contextmanager
def on_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The GPU node: it has a GPU, and another build of torch and Triton."""
    with monkeypatch.context() as patch:
        patch.setattr(evaluators, "find_gpus", lambda target: ONE_GPU)
        patch.setattr(evo.core.versions, "versions", lambda: {"evo": "1", "torch": "2.13.0+cu126"})
        patch.setattr("evo.search.assemble.triton_version", lambda: "9.9.9")
        patch.delenv("OPENAI_API_KEY")
        yield


@contextmanager
def travels(there: Path, back: Path) -> Iterator[None]:
    shutil.rmtree(back, ignore_errors=True)
    shutil.copytree(there, back)
    yield
    shutil.rmtree(there)
    shutil.copytree(back, there)


def noting(answered: list[str]) -> Callable[[Path], str]:
    """Answers of a person who notes the names."""

    def answer_of(question: Path) -> str:
        answered.append(question.name)
        return answer_to(question.read_text())

    return answer_of


def test_a_campaign_that_travels_between_a_login_node_and_a_gpu_node(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (*BENCH, *STRATEGIES, "--model", "m@mailbox:box")
    answered: list[str] = []
    for number in range(3):
        before = len(opened)
        with answering(Path("box"), noting(answered)):
            assert main([*command, "--out", str(LOGIN), "--propose-only", "2"]) == 0
        assert len(opened) == before, "proposing starts no evaluator"
        assert capsys.readouterr().out.count("proposed, 2 candidates pending") == 4
        assert candidates(LOGIN) == 4 * 2 * (number + 1)
        with travels(LOGIN, NODE), on_node(monkeypatch):
            moved = [part.replace("mailbox:box", "mailbox:elsewhere") for part in command]
            assert main([*moved, "--out", str(NODE), "--evaluate-only"]) == 0
            again = len(list(NODE.glob("runs/*/*/*/best/retimed.json")))  # each in an evaluator of its own
            assert (again > 0) == (number == 2), "only runs that came to their end have champions"
            assert {evaluator.device for evaluator in opened[before:]} == {"gpu"} and len(opened) == before + 2 + again
            assert not any(run.pending() for run in readers(NODE))
    assert len(set(answered)) == len(answered) >= 12  # best-of-n asked for each of its candidates
    assert {name.split(".")[0] for name in answered} == {"softmax", "rotary"}
    plan = read_plan(LOGIN)
    assert {settings["device"] for settings in plan.settings.values()} == {"gpu"}
    for run in readers(LOGIN):
        assert run.info.versions == {"evo": "1", "torch": "2.13.0+cu126"} and run.info.config.device == "gpu"
        assert run.spent() == 6 and run.info.config.triton != "9.9.9"
    assert (LOGIN / "summary.md").exists() and (LOGIN / "tables.md").exists()
    # All is done: another round does nothing, and the campaign is that of a GPU.
    assert main([*command, "--out", str(LOGIN), "--propose-only", "2"]) == 0
    assert candidates(LOGIN) == 24
    assert main([*command, "--out", str(LOGIN)]) == 2
    assert "device expected 'gpu', got 'cpu'" in capsys.readouterr().err


def test_requests_say_which_run_they_belong_to_and_one_pass_answers_all(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted with all questions open; their answers lie there when it goes on."""
    command = (*BENCH, "--strategy", "best-of-n", "--seed", "0,1", "--model", "m@mailbox:box", "--llm-concurrency", "3")
    questions: list[Path] = []

    def stop_when_all_are_asked(self: object) -> bool:
        questions[:] = sorted(Path("box").glob("*.request.md"))
        return len(questions) == 12

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evo.search.interrupt.Interrupt.__call__", stop_when_all_are_asked)
        assert main([*command, "--out", "out", "--propose-only", "3"]) == common.EXIT_INTERRUPTED
    assert len({path.name for path in questions}) == 12
    for path in questions:
        found = re.search(r"^- run: (\w+)/best-of-n/seed-(\d)$", path.read_text(), re.MULTILINE)
        assert found and path.name.startswith(f"{found[1]}.best-of-n.seed-{found[2]}.000")
        path.with_name(path.name.replace(".request.", ".answer.")).write_text(answer_to(path.read_text()))
    assert main([*command, "--out", "out", "--propose-only", "3"]) == 0
    assert sorted(Path("box").glob("*.request.md")) == questions  # nothing was asked again
    assert candidates(Path("out")) == 12 and opened == []
    assert "evaluate them: the same command with --evaluate-only" in capsys.readouterr().out


def test_limits_hold_in_halves(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("bench", "softmax", "rotary", "--out", "login")
    assert main([*command, "--propose-only", "5", "--max-candidates", "7"]) == common.EXIT_LIMIT
    assert candidates(LOGIN) == 7
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: ONE_GPU)
    assert main([*command, "--evaluate-only", "--gpu-seconds", "31"]) == common.EXIT_LIMIT
    spent = sum(run.spent() for run in readers(LOGIN))
    assert 1 <= spent < 7 and candidates(LOGIN) == 7
    assert main([*command, "--evaluate-only", "--gpu-seconds", "1000"]) == 0
    assert sum(run.spent() for run in readers(LOGIN)) == 7
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: NO_GPU)
    assert main([*command, "--propose-only", "1", "--max-candidates", "9"]) == 0
    assert candidates(LOGIN) == 9


def test_an_ablation_in_halves(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.toml").write_text(
        'tasks = ["softmax", "rotary"]\nseeds = 2\nvariants = ["full", "random"]\n[budget]\ntrials = 4\n'
    )
    for _ in range(2):
        assert main(["ablate", "spec.toml", "--no-figures", "--propose-only", "2"]) == 0
        assert main(["ablate", "spec.toml", "--no-figures", "--evaluate-only"]) == 0
    assert "4 runs a variant" in capsys.readouterr().out
    assert all(run.spent() == 4 for run in readers(Path("runs/spec")))


def test_files_of_a_suite_are_checked_by_the_half_that_evaluates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real evaluator."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkout" / FOLDER).mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / "checkout" / FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    command = ["bench", "tritonbench", "--path", "checkout", "--out", "out", "--gpus", "none"]
    assert main([*command, "--propose-only", "2"]) == 2
    assert "--propose-only: expected files that were checked, got none in" in capsys.readouterr().err
    assert main([*command, "--evaluate-only", "--workers", "1"]) == 0
    assert main([*command, "--propose-only", "2"]) == 0
    assert candidates(Path("out")) == 2
    assert main([*command, "--evaluate-only"]) == 0
    assert [run.spent() for run in readers(Path("out"))] == [2]

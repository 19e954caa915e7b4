"""evo.cli.main, with an instant evaluator; what is real is tested end to end elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import evo
from analysis.benchmarks.instant import SEED_SOURCE
from evo import api
from evo.cli.main import main
from evo.core.errors import EvoError
from evo.core.records import Candidate, Certificate, Evidence, Verdict
from evo.search import evaluators
from evo.storage.queries import RunReader
from evo.storage.store import Store
from fitness.tasks import advice
from tests.cli_support import LOG, NO_GPU, BrokenEvaluator, CliEvaluator, install
from tests.engine_support import create, facts, ok_trial

ROOT = Path(__file__).parent.parent


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    """Evaluators that were opened; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch.setattr)


def run(*arguments: str) -> int:
    """The exit code, also where argparse leaves by itself."""
    try:
        return main(list(arguments))
    except SystemExit as left:
        assert isinstance(left.code, int)
        return left.code


def evo_process(*arguments: str, sleep_s: float = 0.0, cwd: Path = ROOT, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cli_support", str(sleep_s), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


# --- run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_gpu(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))


def test_a_run_says_what_it_measures_with_and_keeps_to_it(
    opened: list[CliEvaluator],
    one_gpu: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("run", "softmax", "--budget", "3", "--workers", "1", "--run-dir", "out") == 0
    assert "measuring times on GPU 0, H200" in capsys.readouterr().out
    assert [e.device for e in opened] == ["gpu"]
    with RunReader(Path("out")) as reader:
        assert reader.info.config.device == "gpu"
        assert reader.info.config.screen_budget == 0
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: NO_GPU)
    assert run("resume", "out", "--budget", "5") == 2
    assert "measured on a GPU, but torch sees no CUDA GPU" in capsys.readouterr().err
    assert len(opened) == 1


def test_gpus_none_estimates_and_more_than_there_are_are_refused(
    opened: list[CliEvaluator], one_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "softmax", "--budget", "3", "--gpus", "none", "--run-dir", "out") == 0
    assert "estimating times by a model of the target" in capsys.readouterr().out
    assert [e.device for e in opened] == ["cpu"]
    assert run("run", "softmax", "--gpus", "2") == 2
    assert "--gpus 2: expected at most 1" in capsys.readouterr().err


class FakeCluster:
    """What the command line asks of a cluster, with two GPUs."""

    addresses: ClassVar[list[str]] = []

    def __init__(self, address: str) -> None:
        self.addresses.append(address)

    def find_gpus(self, target: object) -> SimpleNamespace:
        return SimpleNamespace(count=2, name="H200", problem="")

    def workers(self, gpus: int) -> int:
        return 10 * gpus


@pytest.fixture
def clusters(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Clusters have two GPUs, this machine one; the addresses that were joined."""

    def open_on(cluster: FakeCluster, task: Any, target: str, gpus: int) -> CliEvaluator:
        opened.append(CliEvaluator())
        opened[-1].device = f"{gpus} GPUs of a cluster"
        return opened[-1]

    monkeypatch.setattr(FakeCluster, "addresses", [])
    monkeypatch.setattr(evaluators, "join", FakeCluster)
    monkeypatch.setattr(evaluators, "open_cluster_evaluator", open_on)
    return FakeCluster.addresses


def config_of(folder: str) -> tuple[str, str | None, str | None, int]:
    with RunReader(Path(folder)) as reader:
        config = reader.info.config
        return config.device, config.gpus, config.ray_address, config.workers


def test_an_address_means_all_gpus_of_its_cluster_and_is_kept(
    one_gpu: None, clusters: list[str], opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "softmax", "--budget", "3", "--ray-address", "head:1", "--run-dir", "out") == 0
    assert "measuring times on 2 GPUs, H200" in capsys.readouterr().out
    assert config_of("out") == ("gpu", None, "head:1", 20)
    assert run("resume", "out", "--budget", "5") == 0
    assert [e.device for e in opened] == ["2 GPUs of a cluster"] * 2
    assert clusters == ["head:1"] * 2
    assert run("resume", "out", "--budget", "7", "--gpus", "1", "--ray-address", "other:1") == 0
    assert opened[-1].device == "1 GPUs of a cluster"
    assert config_of("out") == ("gpu", "1", "other:1", 10)
    assert run("resume", "out", "--budget", "9", "--gpus", "3") == 2
    assert "--gpus 3: expected at most 2" in capsys.readouterr().err
    assert run("resume", "out", "--budget", "9", "--gpus", "none") == 2
    assert "this run is measured on a GPU, and keeps to it" in capsys.readouterr().err


def test_several_gpus_of_one_machine_start_ray_there_and_one_does_not(
    clusters: list[str], opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=4, name="H200", problem=""))
    for gpus, device in (("1", "gpu"), ("4", "4 GPUs of a cluster"), ("none", "cpu")):
        assert run("run", "softmax", "--budget", "2", "--gpus", gpus, "--workers", "1", "--run-dir", f"out{gpus}") == 0
        assert opened[-1].device == device
        assert config_of(f"out{gpus}")[1:] == (gpus, None, 1)
    assert clusters == ["local"]
    assert run("resume", "out1", "--budget", "3", "--gpus", "2") == 0
    assert config_of("out1") == ("gpu", "2", None, 1), "a repeatable run stays serial unless asked otherwise"


def test_run_ends_with_the_best_kernel_and_its_figures(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "softmax", "--budget", "40", "--workers", "1", "--run-dir", "out") == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "out/best/result.json").read_text())
    kernel = (tmp_path / "out/best/kernel.py").read_text()
    assert result["improved"] and result["speedup"] > 1.1 and result["estimated"] is True
    assert kernel != SEED_SOURCE
    patch = (tmp_path / "out/best/diff.patch").read_text()
    assert patch in out
    assert patch.startswith("--- seed/kernel.py\n+++ best/kernel.py\n")
    assert f"best: {result['speedup']:.2f}x [" in out
    assert "estimated against the seed" in out and "no GPU measured it" in out
    assert f"evo show out {result['trial']}" in out
    assert "[40/40]" in out and "ETA" in out
    assert [e.closed for e in opened] == [True]
    with RunReader(tmp_path / "out") as stored:
        assert stored.info.config.workers == 1
        assert stored.info.environment == {"evaluator": "instant"}


def test_commands_that_are_printed_can_be_copied(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "--budget", "2", "--run-dir", "my run") == 0
    assert "look closer: evo show 'my run', evo show 'my run' " in capsys.readouterr().out
    assert run("resume", "my run") == 0
    assert "`evo resume 'my run' --budget N`" in capsys.readouterr().out
    assert run("run", "--run-dir", "my run") == 2
    assert "`evo resume 'my run'`" in capsys.readouterr().err


def test_run_numbers_its_folders(opened: list[CliEvaluator], tmp_path: Path) -> None:
    for _ in range(2):
        assert run("run", "softmax", "--budget", "1") == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["softmax-001", "softmax-002"]


def test_same_seed_same_run(opened: list[CliEvaluator], tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("run", "--budget", "15", "--seed", "3", "--workers", "1", "--run-dir", name) == 0
    assert facts(tmp_path / "a") == facts(tmp_path / "b")


def test_options_reach_the_run(opened: list[CliEvaluator], tmp_path: Path) -> None:
    options = [
        "--strategy=hillclimb",
        "--operators=nudge,mix",
        "--islands=2",
        "--workers=2",
        "--seed=9",
        "--target=h100",
    ]
    assert run("run", "softmax", "--budget", "6", "--run-dir", "out", *options) == 0
    with RunReader(tmp_path / "out") as stored:
        config = stored.info.config
        assert {t.proposal.operator for t in stored.trials()} <= {"seed", "nudge", "mix"}
    assert (config.strategy, config.operators, config.islands) == ("hillclimb", ("nudge", "mix"), 2)
    assert (config.workers, config.seed, config.target, config.task) == (2, 9, "h100", "softmax")


def test_a_run_that_found_nothing_says_so(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.test_engine import Exhausting

    monkeypatch.setattr(evaluators, "open_evaluator", lambda task, target, device, profiles: Exhausting())
    assert run("run", "--budget", "3", "--run-dir", "out") == 0
    assert "nothing faster than the seed was found" in capsys.readouterr().out
    assert (tmp_path / "out/best/kernel.py").read_text() == SEED_SOURCE
    assert json.loads((tmp_path / "out/best/result.json").read_text())["improved"] is False


def test_a_broken_task_leaves_nothing_behind(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "broken", "--run-dir", "out") == 2
    assert capsys.readouterr().err == (
        "evo: task broken: expected a right seed kernel, got verdict wrong; mend kernel.py\n"
    )
    assert not (tmp_path / "out").exists()
    assert opened[0].closed


# --- resume ----------------------------------------------------------------------------------------------------------


def test_resume_goes_further(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("run", "--budget", "10", "--workers", "1", "--run-dir", "parts") == 0
    assert run("resume", "parts", "--budget", "25") == 0
    assert "resuming parts at 10 of 25 candidates" in capsys.readouterr().out
    assert run("run", "--budget", "25", "--workers", "1", "--run-dir", "whole") == 0
    assert facts(tmp_path / "parts") == facts(tmp_path / "whole")


def test_resume_of_a_complete_run_writes_the_result_again(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "--budget", "10", "--run-dir", "out") == 0
    kernel = (tmp_path / "out/best/kernel.py").read_text()
    (tmp_path / "out/best/kernel.py").unlink()
    assert run("resume", "out") == 0
    assert "all 10 candidates are evaluated; `evo resume out --budget N` goes further" in capsys.readouterr().out
    assert (tmp_path / "out/best/kernel.py").read_text() == kernel
    assert len(opened) == 1


def test_resume_certifies_what_an_interruption_left_uncertified(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "--budget", "10", "--run-dir", "out") == 0
    path = tmp_path / "out/best/evidence.json"
    written = json.loads(path.read_text())
    left = {**written["certificate"], "verdict": "infrastructure", "message": api.INTERRUPTED, "checks": []}
    path.write_text(json.dumps({**written, "certificate": left}))
    assert run("resume", "out") == 0
    assert "resuming out at 10 of 10 candidates" in capsys.readouterr().out
    assert json.loads(path.read_text())["certificate"] == written["certificate"] and len(opened) == 2


def test_gpu_seconds_end_a_run_and_more_of_them_go_further(
    one_gpu: None, opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "--budget", "500", "--gpu-seconds", "9", "--workers", "1", "--run-dir", "out") == 0
    assert "ended: budget spent" in (said := capsys.readouterr().out) and "/9 GPU s] trial" in said
    assert run("resume", "out") == 0
    assert "`evo resume out --gpu-seconds X` goes further" in capsys.readouterr().out
    assert len(opened) == 1
    assert run("resume", "out", "--gpu-seconds", "20") == 0
    assert run("show", "out") == 0
    assert re.search(r"\b20\.\d of 20 GPU seconds spent", capsys.readouterr().out)
    assert run("run", "--budget", "500", "--gpu-seconds", "20", "--workers", "1", "--run-dir", "whole") == 0
    told, whole = facts(tmp_path / "out"), facts(tmp_path / "whole")
    assert told["evaluations"] == whole["evaluations"] and told["meta"] == whole["meta"]
    assert run("run", "--gpus", "none", "--gpu-seconds", "9", "--run-dir", "estimated") == 2
    assert "9 GPU seconds: expected a GPU that measures, got estimated times" in capsys.readouterr().err


@pytest.mark.parametrize("spent", ["all", "some"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--budget 50 --gpus 1", "--gpus 1: this run is estimated, and keeps to it"),
        ("--budget 60 --workers 0", "workers: expected an integer from 1 to 1024, got 0"),
        ("--budget 50 --gpu-seconds 5", "5 GPU seconds: expected a GPU that measures, got estimated times"),
        ("--budget 50 --gpus many", "--gpus: expected a number from 1, all or none, got 'many'"),
        ("--budget 50 --ray-address head", "--ray-address head: expected HOST:PORT"),
        ("--budget 50 --max-tokens 4", "got none; leave it out, or start another run with one"),
        ("--budget 50 --model m@mailbox:box", "--model: expected models of the run (none), got m"),
        ("--budget 1", "expected at least the 2 candidates spent, got 1; give more than 2 to go further, or leave it"),
        ("--gpus 1", "--gpus 1: this run is estimated, and keeps to it"),
        ("--workers 0", "workers: expected an integer from 1 to 1024, got 0"),
        ("--gpu-seconds 5", "5 GPU seconds: expected a GPU that measures, got estimated times"),
        ("--ray-address head", "--ray-address head: expected HOST:PORT"),
    ],
)
def test_a_resume_that_is_refused_changes_nothing(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], options: str, words: str, spent: str
) -> None:
    assert run("run", "--budget", "2", "--workers", "1", "--run-dir", "out") == 0
    if spent == "some":
        with Store.resume(Path("out"), task_hash="hash", versions={"evo": "1"}) as store:
            store.set_config(store.info.config.with_budget(9))
    before = all_of("out")
    assert run("resume", "out", *options.split()) == 2
    assert words in capsys.readouterr().err
    assert all_of("out") == before
    assert len(opened) == 1


def all_of(folder: str) -> object:
    with RunReader(Path(folder)) as reader:
        return reader.info, reader.events()


def test_a_resume_whose_evaluator_fails_changes_nothing(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("run", "--budget", "2", "--run-dir", "out") == 0
    before = all_of("out")
    monkeypatch.setattr(evaluators, "open_evaluator", lambda task, target, device, profiles: BrokenEvaluator())
    assert run("resume", "out", "--budget", "9") == 2
    assert all_of("out") == before


def test_where_nothing_is_left_to_do_the_last_event_stays(opened: list[CliEvaluator]) -> None:
    assert run("run", "--budget", "2", "--run-dir", "out") == 0
    before = all_of("out")
    assert run("resume", "out", "--workers", "1", "--gpus", "none") == 0
    assert all_of("out") == before


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    process = evo_process("run", "--budget", "500", "--run-dir", "out", sleep_s=0.01, cwd=tmp_path)
    while not (tmp_path / LOG).exists() or len((tmp_path / LOG).read_text().splitlines()) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping when what is being evaluated is done" in err
    assert "ended: interrupted" in out
    assert "go on: evo resume out" in out
    assert (tmp_path / "out/best/kernel.py").exists()
    with RunReader(tmp_path / "out") as stored:
        assert 3 <= sum(stored.verdicts().values()) < 500


def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    process = evo_process("run", "--budget", "5", "--run-dir", "out", sleep_s=60, cwd=tmp_path)
    while not (tmp_path / LOG).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "Ctrl-C again" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)  # the evaluation takes longer
    assert process.returncode == 130
    assert "interrupted; go on by `evo resume out`" in err
    assert "Traceback" not in err


# --- evaluate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(tmp_path: Path) -> tuple[str, str]:
    """A right kernel and a wrong one."""
    (tmp_path / "right.py").write_text(SEED_SOURCE)
    for number in range(1000):
        source = SEED_SOURCE.replace("(100, 100, 100)", f"({number}, 0, 0)")
        (tmp_path / "wrong.py").write_text(source)
        if not run_verdict(source):
            break
    return "right.py", "wrong.py"


def run_verdict(source: str) -> bool:
    from analysis.benchmarks.instant import InstantEvaluator
    from evo.core.records import Candidate, Verdict

    return InstantEvaluator().evaluate(Candidate(source), seed=0, known={}).verdict is Verdict.OK


def test_evaluate_prints_one_object_a_kernel(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], kernels: tuple[str, str]
) -> None:
    assert run("evaluate", "softmax", *kernels, kernels[0], "--json") == 1
    right, wrong, again = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    keys = [
        "kernel",
        "verdict",
        "stage",
        "message",
        "findings",
        "speedup",
        "ci95",
        "estimated",
        "baseline",
        "attained",
        "own_share",
    ]
    assert list(right) == list(wrong) == keys
    assert right == again == {
        "kernel": "right.py", "verdict": "ok", "stage": "done", "message": "", "findings": [],
        "speedup": 1.0, "ci95": [0.9, 1.1], "estimated": True, "baseline": "the seed kernel", "attained": None,
        "own_share": 1.0,
    }  # fmt: skip
    assert wrong == {
        "kernel": "wrong.py", "verdict": "wrong", "stage": "verify", "message": "wrong result", "findings": [],
        "speedup": None, "ci95": None, "estimated": False, "baseline": "the seed kernel", "attained": None,
        "own_share": None,
    }  # fmt: skip
    assert opened[0].closed


def test_evaluate_is_content_when_all_are_ok(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], kernels: tuple[str, str]
) -> None:
    assert run("evaluate", "softmax", kernels[0]) == 0
    assert capsys.readouterr().out == "right.py: ok, 1.00x [0.90, 1.10] estimated against the seed\n"
    assert run("evaluate", "softmax", kernels[1]) == 1
    assert capsys.readouterr().out == "wrong.py: wrong at stage verify: wrong result\n"


# --- certify ---------------------------------------------------------------------------------------------------------


def certified(verdict: Verdict, message: str = "") -> Callable[..., Certificate]:
    """What an evaluator's `certify` gives, whatever the source."""
    outcome = {Verdict.OK: "passed", Verdict.INFRASTRUCTURE: "not run"}.get(verdict, "failed")
    checks = (Evidence("eager: square", outcome, message or "fine", {"eager_us": 12.345}),)
    return lambda self, source, *, seed: Certificate(Candidate(source).id, verdict, message, checks)


def test_certify_says_what_passed(
    opened: list[CliEvaluator],
    capsys: pytest.CaptureFixture[str],
    kernels: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CliEvaluator, "certify", certified(Verdict.OK))
    assert run("certify", "softmax", kernels[0]) == 0
    assert capsys.readouterr().out == "eager: square: passed, fine; eager_us 12.35\ncertificate: passed (1 passed)\n"
    assert run("certify", "softmax", kernels[0], "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["certificate"]["verdict"]) == ("ok", "ok")
    assert facts["certificate"]["checks"][0]["figures"] == {"eager_us": 12.345}
    assert all(evaluator.closed for evaluator in opened)


def test_what_is_not_certified_is_code_1(
    opened: list[CliEvaluator],
    capsys: pytest.CaptureFixture[str],
    kernels: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("certify", "softmax", kernels[0]) == 1
    assert capsys.readouterr().out == "certificate: nothing was certified on a GPU: nothing is executed\n"
    assert run("certify", "softmax", kernels[1]) == 1
    assert capsys.readouterr().out == "not certified: wrong at stage verify: wrong result\n"
    monkeypatch.setattr(CliEvaluator, "certify", certified(Verdict.WRONG, "square: off by one"))
    assert run("certify", "softmax", kernels[0]) == 1
    assert "certificate: wrong: square: off by one (1 failed)" in capsys.readouterr().out


def test_a_best_that_its_certificate_refuses_gives_way_to_the_next(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def certify(self: CliEvaluator, source: str, *, seed: int) -> Certificate:
        asked.append(source)
        verdict = Verdict.WRONG if len(asked) < 3 else Verdict.OK
        return certified(verdict, "not the same" if len(asked) < 3 else "")(self, source, seed=seed)

    monkeypatch.setattr(CliEvaluator, "certify", certify)
    assert run("run", "--budget", "20", "--workers", "1", "--run-dir", "out") == 0
    out = capsys.readouterr().out
    with RunReader(tmp_path / "out") as stored:
        ranked = list(stored.ranked())
        refused = [text for kind, text, _ in stored.events() if kind == "refused"]
    speedups = [trial.fitness.speedup for trial in ranked if trial.fitness]
    assert speedups == sorted(speedups, reverse=True)
    assert len(refused) == 2 and "is not certified: wrong: not the same" in refused[0]
    assert f"trial {ranked[0].index} is not certified" in out and "trying the next best" in out
    evidence = json.loads((tmp_path / "out/best/evidence.json").read_text())
    assert (evidence["trial"], evidence["certified"]) == (ranked[2].index, True)
    assert [r["trial"] for r in evidence["refused"]] == [ranked[0].index, ranked[1].index]
    assert (tmp_path / "out/best/kernel.py").read_text() == asked[2]
    assert "certificate: passed (1 passed)" in out
    assert run("show", "out") == 0
    shown = f"written to best/: trial {ranked[2].index}, certificate: passed (1 passed)"
    assert shown in " ".join(capsys.readouterr().out.split())
    assert run("resume", "out") == 0  # nothing is left to do, and nothing is tried again
    assert len(asked) == 3
    assert json.loads((tmp_path / "out/best/evidence.json").read_text()) == evidence


def test_where_the_gpu_is_lost_at_the_end_the_best_is_written_all_the_same(
    opened: list[CliEvaluator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: CliEvaluator, source: str, *, seed: int) -> Certificate:
        raise EvoError("expected a runner on GPU 0, but it did not start")

    monkeypatch.setattr(CliEvaluator, "certify", lost)
    assert run("run", "--budget", "3", "--workers", "1", "--run-dir", "out") == 0
    evidence = json.loads((tmp_path / "out/best/evidence.json").read_text())
    assert evidence["certified"] is False
    assert evidence["certificate"]["message"] == "expected a runner on GPU 0, but it did not start"


def test_a_certificate_that_ends_in_an_error_gives_way_to_the_next_best(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def certify(self: CliEvaluator, source: str, *, seed: int) -> Certificate:
        asked.append(source)
        if len(asked) == 1:
            raise KeyError("samples_us")
        return certified(Verdict.OK, "")(self, source, seed=seed)

    monkeypatch.setattr(CliEvaluator, "certify", certify)
    assert run("run", "--budget", "20", "--workers", "1", "--run-dir", "out") == 0
    assert "infrastructure: certifying it ended in KeyError: 'samples_us'; trying the next" in capsys.readouterr().out
    with RunReader(tmp_path / "out") as stored:
        first, second = [trial.index for trial in stored.ranked()][:2]
    evidence = json.loads((tmp_path / "out/best/evidence.json").read_text())
    assert (evidence["trial"], evidence["certified"]) == (second, True)
    assert [r["trial"] for r in evidence["refused"]] == [first]
    assert (tmp_path / "out/best/kernel.py").read_text() == asked[1]


# --- misuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run --budget 0", "budget: expected an integer from 1 to 10000000, got 0; set --budget"),
        ("run --budget many", "invalid int value: 'many'"),
        ("run --gpu-seconds 0", "--gpu-seconds: expected a number above 0, got 0.0"),
        ("run --gpu-seconds 9", "9 GPU seconds: expected a GPU that measures, got estimated times"),
        ("run --workers 0", "workers: expected"),
        ("run --islands -1", "islands: expected"),
        ("run --seed -1", "seed: expected"),
        ("run --strategy anneal", "expected one of evolve, random, hillclimb, best-of-n, tritonforge, got 'anneal'"),
        ("run --operators mutate,nothing", "'nothing'"),
        ("run --operators mix,mix", "expected each name once, got mix twice"),
        ("run --operators=", "operator: expected one of"),
        ("run --target sm_1", "target: expected one of sm_90, h100, sm_80, sm_89, rtx4090, sm_100, got 'sm_1'"),
        ("run --run-dir taken", "holds one; go on with it by `evo resume taken`"),
        ("run --run-dir file/run", "choose another --run-dir"),
        ("evaluate softmax nowhere.py", "expected a kernel file in UTF-8 at nowhere.py"),
        ("evaluate softmax binary.py", "expected a kernel file in UTF-8 at binary.py"),
        ("evaluate softmax .", "expected a kernel file in UTF-8 at ."),
        ("evaluate softmax", "KERNEL.py"),
        ("evaluate softmax kernel.py --workers 0", "workers: expected at least 1, got 0"),
        ("evaluate softmax kernel.py --seed -5", "seed: expected"),
        ("evaluate broken kernel.py", "expected a right seed kernel"),
        ("certify softmax nowhere.py", "expected a kernel file in UTF-8 at nowhere.py"),
        ("certify softmax kernel.py --seed -5", "seed: expected"),
        ("resume nowhere", "expected a run in nowhere, found no run.sqlite"),
        ("run --run-dir file/run", "file is a file; choose another --run-dir"),
        ("resume taken --budget 1", "expected at least the 2 candidates spent, got 1"),
        ("show nowhere", "expected a run in nowhere"),
        ("show taken 99", "expected a trial from 0 to 2 in taken, got 99; name one of these"),
        ("run --strategy best-of-n", "--strategy best-of-n: expected a model to ask, got none; add --model"),
        ("run --guidance raw", "--guidance: expected a model whose prompts have profiles, got none; add --model"),
        ("run --llm-concurrency 0", "--llm-concurrency: expected an integer from 1 to 1024, got 0"),
        (
            "run --ray-address head",
            "--ray-address head: expected HOST:PORT of a Ray cluster, auto or local, got 'head'",
        ),
        (
            "run --ray-address head:port",
            "HOST:PORT of a Ray cluster, auto or local, got 'head:port'; `ray start --head`",
        ),
        ("run --operators mix", "got mix (mix needs two parents); add another, e.g. mutate"),
        ("tasks new taken nowhere.py", "expected a kernel file"),
        ("tasks new made notes.txt", "expected a host function"),
        ("tasks new made slip.py", "slip.py, line 1: not Python"),
        ("dance", "invalid choice"),
        ("resme out", "invalid choice: 'resme' (choose from run, evaluate, "),
        ("resme out", "did you mean resume?"),
        ("run --strategy hilclimb", "got 'hilclimb'; a plug-in is given by --plugin FILE; did you mean hillclimb?"),
        ("", "COMMAND"),
    ],
)
def test_misuse_is_one_message_and_code_2(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, words: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "kernel.py").write_text(SEED_SOURCE)
    (tmp_path / "notes.txt").write_text("x = 1\n")
    (tmp_path / "slip.py").write_text("def f(:\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert run("run", "--budget", "2", "--run-dir", "taken") == 0
    capsys.readouterr()
    assert run(*arguments.split()) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert "Traceback" not in err + out
    assert "evaluating its seed kernel" not in out


def test_an_empty_task_is_not_the_default_one(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "", "--budget", "1") == 2
    assert (
        "TASK: expected a built-in task or a task folder, got ''; leave it out for softmax" in capsys.readouterr().err
    )
    assert not opened


def test_a_task_that_changed_is_refused(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("run", "--budget", "2", "--run-dir", "out") == 0
    from tests.cli_support import load

    def changed(name: str, **_: str) -> object:
        return dataclasses.replace(load(name), hash="other")

    monkeypatch.setattr(api, "load_task", changed)
    assert run("resume", "out", "--budget", "9") == 2
    assert "has changed since the run started" in capsys.readouterr().err


# --- show, tasks, the rest -------------------------------------------------------------------------------------------


def test_show_sums_up_a_run(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("run", "--budget", "40", "--run-dir", "out") == 0
    capsys.readouterr()
    assert run("show", "out") == 0
    out = capsys.readouterr().out
    with RunReader(tmp_path / "out") as stored:
        best, verdicts = stored.best(), stored.verdicts()
    assert best is not None and best.fitness is not None
    assert "40 of 40 candidates evaluated, 0 pending" in out
    assert f"best: {best.fitness.speedup:.2f}x [" in out and "estimated" in out
    for verdict in verdicts:
        assert verdict in out
    for words in ("lineage of the best", "the task's seed kernel", best.proposal.operator, "environment", "instant"):
        assert words in out


def test_show_tells_all_about_a_trial(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("run", "--budget", "40", "--run-dir", "out") == 0
    capsys.readouterr()
    with RunReader(tmp_path / "out") as stored:
        best = stored.best()
        failed = next(t for t in stored.trials() if t.fitness is None)
    assert best is not None
    assert run("show", "out", str(best.index)) == 0
    out = capsys.readouterr().out
    genes = best.proposal.candidate.source.partition("GENES=")[2].splitlines()[0]
    words = ["verdict: ok", "def softmax_kernel", genes, "registers", "memory", "latency", "case square", "estimated"]
    words += [
        best.proposal.note,
        "cost: ",
        "diff to parent",
        "diff to the seed",
        "+    softmax_kernel",
        "seconds by stage",
    ]
    for word in words:
        assert word in out, word
    assert run("show", "out", str(failed.index)) == 0
    out = capsys.readouterr().out
    assert f"verdict: {failed.evaluation.verdict}" in out and failed.evaluation.message in out
    assert run("show", "out", "0") == 0
    assert "diff to" not in capsys.readouterr().out


def test_show_works_while_a_run_is_pending(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    from tests.engine_support import create, proposal

    with create(Path("out")) as store:
        store.proposed(proposal(0, operator="seed"))
        assert run("show", "out") == 0
        assert "0 of 40 candidates evaluated, 1 pending" in capsys.readouterr().out
        assert run("show", "out", "0") == 0
        assert "not evaluated yet" in capsys.readouterr().out


def test_tasks_are_listed(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks") == 0
    out = capsys.readouterr().out
    assert run("tasks", "list") == 0
    assert capsys.readouterr().out == out
    assert "softmax: " in out
    assert "    square (tune): M=64, float32" in out


def test_a_new_task_is_made_from_a_kernel_and_never_over_another(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kernel.py").write_text(SEED_SOURCE)
    assert run("tasks", "new", "mine", "kernel.py") == 0
    assert 'entry = "softmax"' in (tmp_path / "mine/task.py").read_text()
    assert (tmp_path / "mine/kernel.py").read_text() == SEED_SOURCE
    out = capsys.readouterr().out
    assert "the entry is softmax\n" in out and "evo run mine" in out
    assert run("tasks", "new", "softmax", "kernel.py") == 0
    assert "evo run ./softmax" in capsys.readouterr().out  # the name alone is that of a built-in task
    assert run("tasks", "new", "mine", "kernel.py") == 2
    assert "mine has task.py and kernel.py; choose another" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"evo {evo.__version__}\n"


@pytest.mark.parametrize("name", ["operators.py", "fitness.py"])
def test_files_of_the_current_folder_are_not_taken_for_parts_of_evo(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("raise SystemExit('the wrong file')\n")
    process = subprocess.run(
        [sys.executable, "-m", "evo", "run", "--operators", "nothing"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 2 and "operator: expected one of" in process.stderr, process.stderr


def test_evos_own_warnings_are_one_line(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "slow_case", lambda task: "case 'square' has no cpu_axes")
    assert run("run", "--budget", "1", "--run-dir", "out") == 0
    assert "warning: case 'square' has no cpu_axes\n" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom evo.cli.main import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'triton', 'deap', 'rich', 'numpy', 'libcst', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "--budget N" in process.stdout


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    process = evo_process("tasks", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert err == ""


def test_output_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "evo", "tasks"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert process.returncode == 2
    assert process.stderr.startswith("evo: [Errno 28]") and process.stderr.count("\n") == 1


def test_a_terminal_of_another_encoding_shows_what_it_can(tmp_path: Path) -> None:
    with create(tmp_path / "out") as store:
        trial = ok_trial(0, note="Größe")
        store.proposed(trial.proposal)
        store.finished(trial)
    process = subprocess.run(
        [sys.executable, "-m", "evo", "show", str(tmp_path / "out"), "0"],
        cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "") and "Gr??e" in process.stdout


def test_a_run_is_known_by_its_database_and_its_best_too(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--budget", "2", "--run-dir", "out") == 0
    capsys.readouterr()
    shown = []
    for name in ("out", "out/run.sqlite", "out/best"):
        assert run("show", name) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]


def test_drafts_are_screened_as_asked_for_on_a_gpu_too(opened: list[CliEvaluator], one_gpu: None) -> None:
    assert run("run", "t", "--budget", "2", "--run-dir", "plain") == 0
    assert run("run", "t", "--budget", "2", "--run-dir", "screened", "--screen-budget", "6") == 0
    budgets = []
    for folder in ("plain", "screened"):
        with RunReader(Path(folder)) as reader:
            budgets.append(reader.info.config.screen_budget)
    assert budgets == [0, 6]
    assert run("run", "t", "--run-dir", "other", "--screen-budget", "-1") == 2

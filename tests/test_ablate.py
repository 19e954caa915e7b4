"""evo ablate, with the real engine on an instant evaluator."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import operators.registry
from analysis import campaign_report, outcomes
from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, context
from evo.campaign.limits import CLAIM
from evo.campaign.spec import CampaignRun
from evo.cli import campaigns, common
from evo.cli.main import main
from evo.core.locks import try_lock
from evo.llm import queue
from evo.search import assemble, evaluators
from evo.search.budget import gpu_seconds
from evo.storage.queries import RunReader
from evo.storage.store import Store
from tests.cli_support import LOG, CliEvaluator, install
from tests.engine_support import facts

ROOT = Path(__file__).parent.parent
SPEC = """
tasks = ["softmax", "rotary"]
seeds = 3
variants = ["full", "no-islands", "random"]
[budget]
trials = 6
"""
DRAW = campaign_report.draw
ONE_GPU = SimpleNamespace(count=1, name="H200", problem="")
FILES = {"tables.md", "tables.tex", "outcomes.json", "curves.pdf", "curves.png", "effects.pdf", "effects.png"}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(SPEC)
    monkeypatch.setattr(campaign_report, "draw", lambda *_: [])  # slow, and seen once
    return install(monkeypatch.setattr)


def ablate(*more: str) -> int:
    return main(["ablate", "spec.toml", *more])


def runs(folder: Path) -> dict[str, dict[str, list[Any]]]:
    return {str(path.parent.relative_to(folder)): facts(path.parent) for path in folder.glob("runs/*/*/*/run.sqlite")}


def test_a_run_that_another_process_works_on_is_left_to_it(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = Path("runs/spec/runs/rotary/full/seed-1")
    theirs.mkdir(parents=True)
    with try_lock(theirs / CLAIM) as held:
        assert held
        assert ablate("--workers", "2", "--no-figures") == 0
    said = capsys.readouterr().out
    assert "1 runs are left to other processes that run this campaign" in said
    assert "1 of 18 runs are missing" in said
    assert len(runs(Path("runs/spec"))) == 17
    assert ablate("--workers", "2", "--no-figures") == 0
    assert "left to other processes" not in capsys.readouterr().out
    assert len(runs(Path("runs/spec"))) == 18


def test_processes_share_a_campaign(opened: list[CliEvaluator]) -> None:
    code = (
        "from tests.cli_support import install; install(setattr); from evo.cli.main import main; "
        "raise SystemExit(main(['ablate', 'spec.toml', '--workers', '1', '--no-figures']))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum(len(re.findall(r"^\[\d+/18\] ", text, re.MULTILINE)) for text in said) == 18
    found = runs(Path("runs/spec"))
    assert len(found) == 18 and all(len(run["evaluations"]) == 7 for run in found.values())


def test_a_campaign_runs_every_run_and_reports(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign_report, "draw", DRAW)
    assert ablate("--workers", "3") == 0
    folder, said = Path("runs/spec"), capsys.readouterr().out
    assert {p.name for p in folder.iterdir()} >= FILES | {"campaign.json", "spec.toml", "runs"}
    assert "3 variants x 2 tasks x 3 seeds = 18 runs of 6 candidates; 0 finished; 3 at once" in said
    assert len(re.findall(r"^\[\d+/18\] ", said, re.MULTILINE)) == 18
    assert len(opened) == 2 and all(e.closed for e in opened)  # one evaluator a task
    found = outcomes.load(folder / "outcomes.json")
    assert {(o.variant, o.task, o.seed) for o in found} == {
        (a, t, s) for a in ("full", "no-islands", "random") for t in ("softmax", "rotary") for s in range(3)
    }
    assert all(len(o.curve) == 6 and o.estimated for o in found)
    table = (folder / "tables.md").read_text()
    assert table in said
    assert "estimated by a model of the target; no GPU measured anything here" in table
    assert r"\toprule" in (folder / "tables.tex").read_text()


def test_finished_runs_are_not_run_again(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate("--workers", "1") == 0
    before, first = runs(Path("runs/spec")), capsys.readouterr().out.partition("Best speedup")[2]
    assert ablate() == 0
    assert len(opened) == 2
    said = capsys.readouterr().out
    assert "18 finished" in said and said.partition("Best speedup")[2] == first
    assert runs(Path("runs/spec")) == before


def test_a_run_does_not_depend_on_how_many_run_at_once(opened: list[CliEvaluator]) -> None:
    assert ablate("--workers", "1", "--out", "one") == 0
    assert ablate("--workers", "4", "--out", "four") == 0
    assert runs(Path("one")) == runs(Path("four"))


def test_a_run_that_fails_stops_no_other_and_is_tried_again(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CampaignRun("softmax", "random", 1)
    broken = run.folder(Path("runs/spec"))
    broken.mkdir(parents=True)
    (broken / "run.sqlite").write_text("not a database, but long enough to be taken for the start of one" * 20)
    assert ablate() == 1
    said = capsys.readouterr().out
    assert "failed: softmax, random, seed 1: expected a run in" in said
    assert "1 of 18 runs are missing; their tasks and seeds are left out for all variants." in said
    assert re.search(r"\| full \| \d/5 \|", said)
    assert "StoreError" in (broken / "failure.txt").read_text()
    (broken / "run.sqlite").unlink()
    assert ablate() == 0
    assert re.search(r"\| full \| \d/6 \|", capsys.readouterr().out)
    assert not (broken / "failure.txt").exists()


def test_a_task_whose_seed_is_wrong_fails_alone(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.toml").write_text(SPEC.replace("rotary", "broken"))
    assert ablate() == 1
    said = capsys.readouterr().out
    assert said.count("failed: broken, ") == 9
    assert "1 task, 3 runs a variant" in said


def test_on_a_gpu_evaluations_are_not_shared(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: ONE_GPU)
    assert ablate() == 0
    assert {e.device for e in opened} == {"gpu"}
    assert not Path("runs/spec/evaluations.sqlite").exists()
    with RunReader(Path("runs/spec/runs/softmax/full/seed-0")) as run:
        assert run.info.config.device == "gpu" and run.info.config.screen_budget == 0
    assert "measured on a GPU" in capsys.readouterr().out


def test_on_a_gpu_champions_are_timed_again_by_default(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: ONE_GPU)
    assert ablate("--no-figures", "--no-certify") == 0
    folder = Path("runs/spec/runs")
    assert len(opened) == 2 and not list(folder.glob("*/*/*/best"))  # an evaluator a task, and no more
    assert ablate("--no-figures") == 0  # it concludes runs that are finished
    assert len(list(folder.glob("*/*/*/best/evidence.json"))) == 18
    retimed = list(folder.glob("*/*/*/best/retimed.json"))
    assert len(opened) == 4 + len(retimed) > 4 and all(evaluator.closed for evaluator in opened)
    assert "neither certified" not in capsys.readouterr().out


def test_without_a_gpu_it_says_that_nothing_is_certified(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--no-figures") == 0
    assert "without a GPU the best kernels are neither certified nor timed again" in capsys.readouterr().out
    assert not list(Path("runs/spec/runs").glob("*/*/*/best"))


def test_several_gpus_and_clusters_evaluate_the_runs_of_all_tasks(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joined, workshops = [], []

    class TwoGpus:
        def __init__(self, address: str) -> None:
            joined.append(address)

        def __str__(self) -> str:
            return "16 CPUs and 2 GPUs of 2 nodes"

        def find_gpus(self, target: Any) -> Any:
            return SimpleNamespace(count=2, name="H200", problem="")

        def workers(self, gpus: int) -> int:
            return 5 * gpus

    def open_workshop(cluster: TwoGpus, target: str, gpus: int, limits: Any) -> Any:
        workshops.append(gpus)
        return SimpleNamespace(open=lambda task: evaluators.open_evaluator(task, target, "gpu"), close=lambda: None)

    monkeypatch.setattr(evaluators, "join", TwoGpus)
    monkeypatch.setattr(evaluators, "open_cluster_factory", open_workshop)
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=2, name="H200", problem=""))
    assert ablate("--ray-address", "head:1", "--no-certify") == 0
    said = capsys.readouterr().out
    assert "measuring times on 2 GPUs" in said and "through Ray on 16 CPUs and 2 GPUs of 2 nodes" in said
    assert "10 at once" in said
    assert (joined, workshops) == (["head:1"], [2])
    assert len(opened) == 2 and all(e.closed for e in opened)  # one evaluator a task
    assert ablate("--gpus", "1", "--no-certify") == 0  # another number of GPUs goes on
    assert "18 finished" in capsys.readouterr().out
    assert ablate("--gpus", "3", "--out", "more") == 2
    assert "--gpus 3: expected at most 2" in capsys.readouterr().err
    assert ablate("--ray-address", "head:1", "--processes", "2", "--out", "more") == 2
    assert "--processes: expected 1 for runs that only propose, or on a cluster" in capsys.readouterr().err


def test_several_gpus_of_a_machine_have_a_process_each(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the second one takes over what it is started for: there is no GPU."""
    started = []

    class Helper:
        returncode = 0

        def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
            started.append((command, env["CUDA_VISIBLE_DEVICES"]))
            assert len(started) < 2 or main(command[3:]) == 0

        def poll(self) -> int:
            return 0

        def kill(self) -> None:
            pass

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=2, name="H200", problem=""))
    monkeypatch.setattr(campaigns.subprocess, "Popen", Helper)
    assert ablate("--gpus", "all", "--no-figures", "--workers", "3", "--no-certify") == 0
    assert [device for _, device in started] == ["0", "1"]
    command = started[0][0]
    assert command[1:5] == ["-m", "evo", "ablate", "spec.toml"]
    assert command[-7:] == ["--gpus", "1", "--workers", "2", "--processes", "1", "--helper"]
    assert len(runs(Path("runs/spec"))) == 18 and len(opened) == 2


def test_runs_at_equal_gpu_seconds(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.toml").write_text(SPEC.replace("trials = 6", "trials = 400\ngpu_seconds = 7.5"))
    assert ablate() == 2
    captured = capsys.readouterr()
    assert "torch sees no CUDA GPU" in captured.out
    assert "a budget of 7.5 GPU seconds: expected a GPU that measures, got estimated times" in captured.err
    assert not Path("runs").exists()
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: ONE_GPU)
    monkeypatch.setattr(campaign_report, "draw", DRAW)
    assert ablate() == 0
    said = capsys.readouterr().out
    assert "18 runs of 7.5 GPU seconds (400 candidates at most)" in said
    table = Path("runs/spec/tables.md").read_text()
    assert "after 7.5 GPU seconds (400 candidates at most)" in table
    assert "best-so-far curve over GPU seconds (verifying and timing)" in table
    counts = set()
    for found in outcomes.load(Path("runs/spec/outcomes.json")):
        with RunReader(CampaignRun(found.task, found.variant, found.seed).folder(Path("runs/spec"))) as run:
            spent = [gpu_seconds(trial.evaluation) for trial in run.trials() if trial.index]
        assert sum(spent) >= 7.5 > sum(spent[:-1])
        assert (found.at[0], found.curve[0]) == (0.0, 1.0) and list(found.at) == sorted(found.at) and found.at[-1] < 7.5
        counts.add(len(spent))
    assert len(counts) > 1  # not one number of candidates


def test_without_matplotlib_it_says_so_before_it_runs(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert ablate() == 2
    assert "expected matplotlib" in capsys.readouterr().err
    assert opened == []
    assert ablate("--no-figures") == 0
    assert {p.name for p in Path("runs/spec").iterdir()} & FILES == {"tables.md", "tables.tex", "outcomes.json"}


def test_a_campaign_run_elsewhere_is_reported_here(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--out", "there") == 0
    written = {name: (Path("there") / name).read_bytes() for name in ("tables.md", "tables.tex", "outcomes.json")}
    Path("there").rename("here")
    for name in written:
        (Path("here") / name).unlink()
    monkeypatch.setattr("evo.core.versions.versions", lambda: {"evo": "another"})
    capsys.readouterr()
    assert main(["ablate", "here"]) == 0
    assert {name: (Path("here") / name).read_bytes() for name in written} == written
    first = capsys.readouterr().out
    run = CampaignRun("rotary", "full", 0).folder(Path("here")) / "run.sqlite"
    whole = run.read_bytes()
    run.write_bytes(b"of another version")
    assert main(["ablate", "here"]) == 1
    said = capsys.readouterr().out
    assert "failed: rotary, full, seed 0: expected a run in here/runs/rotary/full/seed-0" in said
    assert "1 of 18 runs are missing" in said
    assert Path("here/outcomes.json").read_bytes() == written["outcomes.json"]  # it may come back
    run.write_bytes(whole)
    assert main(["ablate", "here"]) == 0
    assert capsys.readouterr().out == first
    assert {name: (Path("here") / name).read_bytes() for name in written} == written
    Path("here/runs").rename("here/cells")  # as earlier versions of evo called all of it
    for name, new, old in (
        ("campaign.json", '"variants"', '"arms"'),
        ("outcomes.json", '"variant"', '"arm"'),
        ("outcomes.json", '"format": 3', '"format": 1'),
    ):
        text = (Path("here") / name).read_text()
        assert new in text
        (Path("here") / name).write_text(text.replace(new, old))
    assert main(["ablate", "here"]) == 0
    assert capsys.readouterr().out == first
    assert {name: (Path("here") / name).read_bytes() for name in written} == written
    shutil.rmtree("here/cells")  # as a reference is committed: outcomes rounded, runs left out
    assert main(["ablate", "here"]) == 0
    assert capsys.readouterr().out == first
    assert ablate("--out", "here") == 2
    assert "versions (evo expected '1', got 'another') differ" in capsys.readouterr().err
    assert main(["ablate", "."]) == 2
    assert "expected a campaign in ." in capsys.readouterr().err


def test_a_stored_outcome_is_never_dropped(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--out", "whole", "--no-figures") == 0
    whole, tables = Path("whole/outcomes.json").read_bytes(), Path("whole/tables.md").read_bytes()
    for run in [p.parent for p in Path("whole/runs").glob("*/*/*/run.sqlite")][1:]:
        shutil.rmtree(run)  # archived without them
    assert main(["ablate", "whole", "--no-figures"]) == 0
    assert Path("whole/tables.md").read_bytes() == tables and Path("whole/outcomes.json").read_bytes() == whole
    shutil.rmtree("whole/runs")
    monkeypatch.setattr("evo.search.interrupt.Interrupt.__call__", lambda self: True)
    assert ablate("--out", "whole", "--no-figures") == common.EXIT_INTERRUPTED  # stopped before any run
    assert Path("whole/outcomes.json").read_bytes() == whole
    broken = CampaignRun("softmax", "random", 1).folder(Path("whole"))
    broken.mkdir(parents=True, exist_ok=True)
    (broken / "run.sqlite").write_bytes(b"damaged")
    assert ablate("--out", "whole", "--no-figures") == common.EXIT_INTERRUPTED
    assert "failed: softmax, random, seed 1: expected a run in" in capsys.readouterr().out
    assert main(["ablate", "whole", "--no-figures"]) == 1
    assert Path("whole/outcomes.json").read_bytes() == whole
    Path("whole/outcomes.json").write_text("{")
    assert ablate("--out", "whole", "--no-figures") == 2
    assert "expected the outcomes of runs in whole/outcomes.json" in capsys.readouterr().err
    assert Path("whole/outcomes.json").read_text() == "{"


def test_a_run_that_is_not_its_runs_does_not_count(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--no-figures") == 0
    folder = Path("runs/spec")
    longer, other = (CampaignRun("softmax", variant, 0).folder(folder) for variant in ("full", "no-islands"))
    with Store.resume(longer, task_hash="hash", versions={"evo": "1"}) as store:  # as `evo resume --budget 9` does
        store.set_config(store.info.config.with_budget(9))
    shutil.copyfile(CampaignRun("softmax", "random", 0).folder(folder) / "run.sqlite", other / "run.sqlite")
    for argument in ("runs/spec", "spec.toml"):
        capsys.readouterr()
        assert main(["ablate", argument, "--no-figures"]) == 1
        said = capsys.readouterr().out
        assert f"expected the run of softmax, full, seed 0 in {longer}, got one with budget 9 instead of 6; " in said
        assert (
            f"expected the run of softmax, no-islands, seed 0 in {other}, got one with strategy 'random' instead"
            in said
        )
        assert "2 of 18 runs are missing" in said
    assert "16 finished" in said
    shutil.rmtree(longer)
    shutil.rmtree(other)
    assert ablate("--no-figures") == 0


def test_a_run_may_be_gone_on_with_on_another_machine(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--no-figures") == 0
    run = CampaignRun("softmax", "full", 0).folder(Path("runs/spec"))
    with Store.resume(run, task_hash="hash", versions={"evo": "1"}) as store:
        elsewhere = {"task": "/elsewhere/softmax", "gpus": "all", "ray_address": "head:1"}
        store.set_config(dataclasses.replace(store.info.config, **elsewhere))
        store.event("ended", "budget spent")
    assert ablate("--no-figures") == 0
    assert "18 finished" in capsys.readouterr().out


def test_a_folder_without_a_comparison_is_not_ok(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate("--no-figures") == 0
    shutil.rmtree("runs/spec/runs")
    Path("runs/spec/outcomes.json").unlink()
    assert main(["ablate", "runs/spec", "--no-figures"]) == 1
    assert "nothing to compare: no task and seed that all variants have finished" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_the_same_command_goes_on(
    opened: list[CliEvaluator], tmp_path: Path, number: signal.Signals
) -> None:
    """A stopped and continued campaign holds the same facts as one that was never stopped."""
    command = [sys.executable, "-m", "tests.cli_support", "0.1", "ablate", "spec.toml", "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if (ended := re.match(r"\[(\d+)/18\]", line)) and int(ended[1]) >= 2:
            process.send_signal(number)
            break
    rest, _ = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert process.returncode == common.EXIT_INTERRUPTED and "the same command continues" in rest
    if Path("runs/spec/tables.md").exists():  # some seed was finished in all variants
        assert re.search(r"\d+ of 18 runs are missing", Path("runs/spec/tables.md").read_text())
    assert 2 <= len(runs(Path("runs/spec"))) < 18
    deadline = time.monotonic() + 60
    while ablate() != 0:  # in this process, without sleeping
        assert time.monotonic() < deadline
    assert ablate("--out", "straight") == 0
    assert runs(Path("runs/spec")) == runs(Path("straight"))


def test_a_second_ctrl_c_does_not_wait_and_loses_nothing_finished(tmp_path: Path) -> None:
    Path(tmp_path / "spec.toml").write_text(SPEC)
    command = [sys.executable, "-m", "tests.cli_support", "600", "ablate", "spec.toml", "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / LOG
    while not (log.exists() and len(log.read_text().split()) == 2):
        assert process.poll() is None
        time.sleep(0.05)  # until both runs evaluate
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "Ctrl-C again" not in process.stderr.readline():  # two signals at once would be one
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)  # an evaluation takes 600 s
    assert process.returncode == common.EXIT_INTERRUPTED
    assert "interrupted; the same command continues runs/spec" in said
    found = runs(tmp_path / "runs/spec")
    assert len(found) == 2 and all(len(tables["evaluations"]) == 1 for tables in found.values())  # the seed


# --- models ----------------------------------------------------------------------------------------------------------

ASKING = """
tasks = ["softmax"]
seeds = 2
variants = ["full", "no-llm", "no-repair"]
models = ["m@{url}"]
[budget]
trials = 12
"""


@pytest.fixture
def asking(opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators.registry, "DEFAULT_LLM_OPERATORS", ("change", "mend"))
    monkeypatch.setattr(assemble, "prompt_context", lambda info, task: context)
    monkeypatch.setattr(queue, "BACKOFF_S", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(operators.registry, "LLM_OPERATORS", {o.name: o for o in (Ask(), Ask("mend", repairs=True))})


def used(variant: str) -> set[str]:
    with RunReader(CampaignRun("softmax", variant, 0).folder(Path("runs/spec"))) as run:
        return {t.proposal.operator for t in run.trials()}


def test_variants_that_ask_models(asking: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint() as endpoint:
        Path("spec.toml").write_text(ASKING.format(url=endpoint.url))
        assert ablate() == 0
        assert "sk-secret" not in Path("runs/spec/campaign.json").read_text()
        asked = len(endpoint.requests)
        assert ablate() == 0
        assert len(endpoint.requests) == asked  # nothing is asked twice
    assert f"model m: {endpoint.url}" in capsys.readouterr().out
    assert "change@m" in used("full") and "change@m" in used("no-repair") and "mend@m" not in used("no-repair")
    assert not any("@" in name for name in used("no-llm"))


def test_a_run_whose_model_falls_silent_goes_on_once_it_answers(
    asking: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends at once: going on by rules alone would make it another search than its variant's."""
    down = True

    def script(body: dict[str, Any], number: int) -> Reply:
        return Reply(status=500) if down and number > 1 else Reply()

    with Endpoint(script) as endpoint:
        Path("spec.toml").write_text(ASKING.format(url=endpoint.url))
        assert ablate("--workers", "1") == 1
        failed = "failed: softmax, full, seed 0: no model answers; the same command continues this run once one does"
        assert failed in capsys.readouterr().out
        folder = CampaignRun("softmax", "full", 0).folder(Path("runs/spec"))
        with RunReader(folder) as run:
            kept = [trial.proposal.candidate.id for trial in run.trials()]
            assert len(kept) < 13 and sum(use.answers for use in run.models()) <= 4
        down = False
        assert ablate("--workers", "1") == 0
    with RunReader(folder) as run:
        trials = list(run.trials())
    assert [trial.proposal.candidate.id for trial in trials][: len(kept)] == kept and len(trials) == 13
    assert sum("@" in trial.proposal.operator for trial in trials) > 3

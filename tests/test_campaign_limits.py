"""Limits of whole campaigns: never exceeded by runs at once, in several processes, and after kill -9."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.benchmarks.endpoint import Endpoint, Reply
from evo.campaign.limits import CampaignLimits, charges
from evo.cli import common
from evo.cli.main import main
from evo.search import evaluators
from evo.search.budget import MOST_GPU_S, gpu_seconds
from evo.storage.ledger import CANDIDATES, TOKENS, Ledger
from fitness.gpu.runner import Runner
from tests.campaign_support import MOST, ROOT, candidates, install, readers, write_models
from tests.cli_support import CliEvaluator

OUT = Path("out")
BENCH = ("bench", "softmax", "rotary", "--strategy", "evolve,best-of-n", "--out", "out", "--workers", "3")
MODEL = ("--model", "m", "--models", "models.toml")
TOKENS_OF_ONE = 200


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CliEvaluator]:
    monkeypatch.chdir(tmp_path)
    return install(monkeypatch.setattr)


def billing(body: dict[str, Any], number: int) -> Reply:
    return Reply(tokens=(TOKENS_OF_ONE // 2, TOKENS_OF_ONE // 2))


def bench(*more: str) -> int:
    return main([*BENCH, *more])


def answers(folder: Path = OUT) -> int:
    return sum(use.answers for run in readers(folder) for use in run.models())


def test_tokens_of_all_runs_end_them_and_a_higher_limit_goes_on(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    with Endpoint(billing) as endpoint:
        write_models(endpoint.url)
        asked = [*MODEL, "--budget", "6"]
        assert bench(*asked, "--max-tokens", "2000") == common.EXIT_LIMIT
        said = capsys.readouterr().out
        assert "limit of the campaign reached: " in said and "higher --max-tokens continues" in said
        assert "best-of-n, seed 0: limit of the campaign reached" in said
        assert 2000 - MOST < endpoint.billed <= 2000
        assert answers() * TOKENS_OF_ONE == endpoint.billed
        assert re.search(r"\| softmax \| \d of 6 candidates, best ", Path("out/summary.md").read_text())
        before = endpoint.billed
        assert bench(*asked) == common.EXIT_LIMIT  # the limit is kept in the folder, and nothing is asked again
        assert endpoint.billed == before
        assert bench(*asked, "--max-tokens", "100000") == 0
        assert answers() * TOKENS_OF_ONE == endpoint.billed  # no answer was paid twice
    assert candidates(OUT) == 4 * 6 and all(not run.pending() for run in readers(OUT))


def test_candidates_of_all_runs(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint() as endpoint:
        write_models(endpoint.url)
        more = (*MODEL, "--budget", "6", "--llm-concurrency", "4")
        for limit in (9, 14):
            assert bench(*more, "--max-candidates", str(limit)) == common.EXIT_LIMIT
            assert candidates(OUT) == limit
        assert "14 candidates of 14; the same command with a higher --max-candidates" in capsys.readouterr().out
        assert bench(*more, "--max-candidates", "24") == 0
    assert candidates(OUT) == 24


def test_dollars_need_prices_and_hold(opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]) -> None:
    with Endpoint(billing) as endpoint:
        write_models(endpoint.url)
        assert bench(*MODEL, "--max-usd", "0.002") == 2
        assert "--max-usd: expected a price for each model, got none for m; give usd_in" in capsys.readouterr().err
        assert not OUT.exists()
        write_models(endpoint.url, usd_in=1.0, usd_out=1.0)
        assert bench(*MODEL, "--budget", "6", "--max-usd", "0.002") == common.EXIT_LIMIT
        assert 0.002 - MOST / 1e6 < endpoint.billed / 1e6 <= 0.002


def test_gpu_seconds_of_all_runs(
    opened: list[CliEvaluator], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ("bench", "softmax", "rotary", "--strategy", "evolve,random", "--out", "out", "--workers", "3")
    assert main([*rules, "--gpu-seconds", "60"]) == 2
    assert "--gpu-seconds: expected a GPU that measures, got estimated times" in capsys.readouterr().err
    monkeypatch.setattr(evaluators, "find_gpus", lambda target: SimpleNamespace(count=1, name="H200", problem=""))
    assert main([*rules, "--gpu-seconds", "20"]) == 2
    assert "--gpu-seconds: expected at least 30, the longest that one candidate may take" in capsys.readouterr().err

    def spent() -> float:
        return sum(gpu_seconds(t.evaluation) for run in readers(OUT) for t in run.trials() if t.index)

    assert main([*rules, "--gpu-seconds", "45"]) == common.EXIT_LIMIT
    assert 45 - MOST_GPU_S < spent() <= 45
    assert main([*rules, "--gpu-seconds", "10000"]) == 0
    assert candidates(OUT) == 4 * 64


def test_the_longest_that_a_gpu_works_is_what_the_runner_allows() -> None:
    assert Runner.__init__.__kwdefaults__["wall_s"] == MOST_GPU_S


def test_killed_processes_lose_nothing_of_what_was_spent(opened: list[CliEvaluator], tmp_path: Path) -> None:
    """Three processes share a campaign; one is killed while questions are in flight."""

    def slow(body: dict[str, Any], number: int) -> Reply:
        if number == 5:
            started[0].send_signal(signal.SIGKILL)
        return Reply(tokens=(100, 100), delay_s=0.05)

    with Endpoint(slow) as endpoint:
        write_models(endpoint.url)
        arguments = [*BENCH, *MODEL, "--budget", "6", "--seed", "0,1", "--max-tokens", "6000"]
        command = [sys.executable, "-m", "tests.campaign_support", "0", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        started = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for _ in range(3)]
        codes = [process.wait(timeout=120) for process in started]
        assert codes[0] == -signal.SIGKILL and set(codes[1:]) <= {0, common.EXIT_LIMIT}
        assert endpoint.billed <= 6000
        assert main(arguments) == common.EXIT_LIMIT
        assert (
            6000 - 3 * MOST < endpoint.billed <= 6000
        )  # questions of the killed one count with the most they may cost
        known = sum(charges(run.folder)[0][TOKENS] for run in readers(OUT))
        ledger = Ledger(OUT)
        assert ledger.spent()[TOKENS] == known <= 6000 and not any(ledger.runs().values())


def test_the_ledger_is_made_of_the_runs(opened: list[CliEvaluator]) -> None:
    """Also of campaigns of before, and if it is lost; a run that was deleted was paid for all the same."""
    assert main(["bench", "softmax", "rotary", "--budget", "5", "--out", "out"]) == 0
    for path in OUT.glob("ledger.sqlite*"):
        path.unlink()
    limits = CampaignLimits(OUT, {CANDIDATES: 12})
    assert limits.in_words() == "10 candidates of 12"
    limits.close()
    run = OUT / "runs/rotary/evolve/seed-0"
    for path in run.iterdir():
        path.unlink()
    assert main(["bench", "softmax", "rotary", "--budget", "5", "--out", "out"]) == common.EXIT_LIMIT
    assert candidates(OUT) == 5 + 2
    assert Ledger(OUT).spent()[CANDIDATES] == 12


def test_another_setting_in_the_same_folder_is_refused(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "softmax", "--budget", "2", "--out", "out"]) == 0
    for more, words in (
        (["--budget", "3"], "budget (trials expected 2, got 3)"),
        (["--budget", "2", "--seed", "1"], "seeds expected [0], got [1]"),
        (["--budget", "2", "--strategy", "random"], "variants (evolve expected "),
    ):
        capsys.readouterr()
        assert main(["bench", "softmax", "--out", "out", *more]) == 2
        said = capsys.readouterr().err
        assert words in said and "restore them, or choose another folder by --out" in said
    assert main(["bench", "rotary", "--budget", "2", "--out", "out"]) == 2
    assert "tasks (softmax expected 'hash', got None, rotary expected None, got 'hash')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["softmax", "--max-tokens", "5"], "--max-tokens: expected a model whose answers it limits, got none"),
        (["softmax", "--max-candidates", "-1"], "--max-candidates: expected a number above 0, got -1"),
        (["softmax", "--strategy", "evolve,tritonforge"], "--strategy: expected a model for tritonforge to ask"),
        (["softmax", "--strategy", "evolve,evolve"], "--strategy: expected different names, separated by commas"),
        (["softmax", "--strategy", "anneal"], "strategy: expected one of"),
        (["softmax", "--seed", "0,a"], "--seed: expected integers, separated by commas, got '0,a'"),
        (["softmax", "--guidance", "raw"], "--guidance: expected a model whose prompts have profiles"),
        (["softmax", "--only", "a"], "--only: expected a suite with its checkout, got tasks"),
        (["kernelbench"], "kernelbench: expected the checkout of this suite, got none; add --path DIR"),
        (["kernelbench", "softmax", "--path", "x"], "--path: expected one suite, got kernelbench, softmax"),
        (["softmax", "--budget", "0"], "--budget: expected a number from 1, got 0, which only suites in PyTorch take"),
        (["softmax", "--propose-only", "0"], "--propose-only: expected a number from 1, got 0"),
    ],
)
def test_misuse(
    opened: list[CliEvaluator], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists() and opened == []

"""Runs of tasks that become known one after the other, with the real engine on an instant evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo.campaign.limits import CampaignLimits
from evo.campaign.runner import CLAIMS, Done, Work, counter, execute_runs, finished, why_failed
from evo.campaign.spec import Campaign, CampaignRun, Spec
from evo.cli.campaigns import run_campaign
from evo.core.errors import StoreError
from evo.core.locks import try_lock
from evo.core.records import Verdict
from evo.search import evaluators
from evo.storage.queries import RunInfo
from evo.storage.store import Store
from fitness.evaluator import SeedError
from tests.cli_support import BROKEN, CliEvaluator, install, load

SPEC = Spec(
    tasks=(), seeds=(0,), variants=("full",), trials=3, tokens=None, target="sm_90", models=(), base={}, own={}
)  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[CliEvaluator]:
    return install(monkeypatch.setattr)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Campaign.open(tmp_path / "out", SPEC, "cpu", {}, {"evo": "1"})


def added(campaign: Campaign, name: str) -> Any:
    campaign.add(name, name, "hash")
    return load(name)


def work(campaign: Campaign, **more: Any) -> Work:
    return Work(CampaignLimits(campaign.folder, {}), {"evo": "1"}, **more)


def run(campaign: Campaign, tasks: Iterator[Any], stop: Any = lambda: False) -> list[Done]:
    return list(execute_runs(campaign, tasks, lambda task: CliEvaluator(), 2, work(campaign, stop=stop)))


def test_a_task_is_searched_while_the_next_is_not_known_yet(opened: list[CliEvaluator], campaign: Campaign) -> None:
    def arriving() -> Iterator[Any]:
        yield added(campaign, "softmax")
        for _ in range(100):  # each waits a moment
            if finished(campaign.folder, CampaignRun("softmax", "full", 0)):
                break
            yield None
        else:
            pytest.fail("the first task was not searched")
        yield added(campaign, "rotary")

    done = run(campaign, arriving())
    assert [(d.run.task, d.reason) for d in done] == [("softmax", "budget spent"), ("rotary", "budget spent")]
    assert counter(campaign.folder, campaign.runs())() == 2


def test_a_task_is_asked_for_when_a_worker_is_free(opened: list[CliEvaluator], campaign: Campaign) -> None:
    ended = []

    def arriving() -> Iterator[Any]:
        for name in ("softmax", "rotary", "matmul", "scatter"):
            ended.append(counter(campaign.folder, campaign.runs())())
            yield added(campaign, name)

    assert len(run(campaign, arriving())) == 4
    assert all(n >= least for n, least in zip(ended, (0, 0, 1, 2), strict=True))  # of two workers


def test_no_more_tasks_are_taken_once_it_is_to_stop(opened: list[CliEvaluator], campaign: Campaign) -> None:
    taken = []

    def arriving() -> Iterator[Any]:
        for name in ("softmax", "rotary"):
            taken.append(name)
            yield added(campaign, name)

    assert run(campaign, arriving(), stop=lambda: len(taken) == 2) != []
    assert [run.task for run in campaign.runs()] == taken
    assert not finished(campaign.folder, CampaignRun("rotary", "full", 0))


def test_what_ends_the_coming_of_tasks_ends_the_campaign(opened: list[CliEvaluator], campaign: Campaign) -> None:
    def arriving() -> Iterator[Any]:
        yield added(campaign, "softmax")
        raise StoreError("no files can be checked")

    with pytest.raises(StoreError, match="no files can be checked"):
        run_campaign(campaign, arriving(), 1, work(campaign), lambda: 0, lambda: 1, lambda: _factory())


def test_what_other_processes_finish_counts_as_progress(
    opened: list[CliEvaluator], campaign: Campaign, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 100)
    monkeypatch.setattr("evo.cli.campaigns.time", SimpleNamespace(monotonic=clock.__next__))
    counted = iter((2, 7))  # five were finished in the meantime, this process's one among them
    tasks = iter([added(campaign, "softmax")])
    ended = run_campaign(campaign, tasks, 1, work(campaign), counted.__next__, lambda: 12, lambda: _factory())
    assert (ended.code, ended.failed) == (0, [])
    (line,) = (n for n in capsys.readouterr().out.splitlines() if n.startswith("["))
    assert line.startswith("[7/12] softmax, full, seed 0: budget spent, ") and line.endswith("; ETA 0:01:40")


def test_a_run_of_another_task_does_not_count(opened: list[CliEvaluator], campaign: Campaign) -> None:
    search = CampaignRun("softmax", "full", 0)
    other = RunInfo(SPEC.config("softmax", "full", 0, "cpu"), "another", {"evo": "1"}, {})
    added(campaign, "softmax")
    with Store.create(search.folder(campaign.folder), other) as store:
        store.event("ended", "budget spent")
    assert not finished(campaign.folder, search)
    [done] = run(campaign, iter([load("softmax")]))
    assert done.reason == "failed"
    assert "expected the run of softmax, full, seed 0" in done.message
    assert "task hash 'another' instead of 'hash'" in done.message


def test_a_task_that_another_process_began_comes_last_and_its_runs_are_shared(
    opened: list[CliEvaluator], campaign: Campaign
) -> None:
    tasks = [added(campaign, name) for name in ("softmax", "rms_norm", "matmul")]
    (campaign.folder / CLAIMS).mkdir()
    with try_lock(campaign.folder / CLAIMS / "softmax.lock") as held:
        assert held
        done = list(execute_runs(campaign, iter(tasks), lambda task: CliEvaluator(), 1, work(campaign)))
    assert [d.run.task for d in done] == ["rms_norm", "matmul", "softmax"]
    assert all(finished(campaign.folder, d.run) for d in done)


def test_why_a_search_failed_is_one_line(opened: list[CliEvaluator], campaign: Campaign) -> None:
    def tasks() -> Iterator[Any]:
        yield added(campaign, BROKEN)

    def fails(task: Any) -> Any:
        raise SeedError(f"task {task.name!r}: line 3: K / 4\n  in `static_assert`", Verdict.COMPILE_ERROR)

    search = CampaignRun(BROKEN, "full", 0)
    assert why_failed(campaign.folder, search) == ""
    [done] = execute_runs(campaign, tasks(), fails, 1, work(campaign))
    assert done.reason == "failed"
    why = why_failed(campaign.folder, search)
    assert why.startswith("task 'broken'")
    assert "\n" not in why and "line 3: K / 4" in why


def _factory() -> Any:
    return evaluators.open_factory("sm_90", "cpu")

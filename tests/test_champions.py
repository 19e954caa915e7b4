"""evo.campaign.champions: the best kernel of a run is certified, timed again by a new evaluator, and reported so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from analysis.benchmarks.instant import SEED_SOURCE
from analysis.outcomes import Outcome, load, outcome_of, save
from analysis.suite import SuiteKernel, markdown
from analysis.suite_kernels import read_kernels, write_kernels
from evo.campaign.champions import RETIMED, Retiming, conclude, retimed
from evo.campaign.limits import CampaignLimits
from evo.campaign.runner import Work, execute_runs
from evo.campaign.spec import Campaign, CampaignRun, Spec
from evo.core.errors import EvoError, StoreError
from evo.core.records import Candidate, Evaluation, Verdict
from evo.search.listener import Listener
from evo.storage.best import BEST, EVIDENCE
from tests.cli_support import CliEvaluator, install
from tests.cli_support import load as load_task

SPEC = Spec(
    tasks=(), seeds=(0,), variants=("full",), trials=40, tokens=None, target="sm_90", models=(), base={}, own={}
)  # fmt: skip
RUN = CampaignRun("softmax", "full", 0)


class Slower(CliEvaluator):
    """Opened after another one, every kernel is half as fast as there."""

    seeds: ClassVar[list[int]] = []

    def evaluate(self, candidate: Candidate, *, seed: int, known: Mapping[str, str]) -> Evaluation:
        self.seeds.append(seed)
        found = super().evaluate(candidate, seed=seed, known=known)
        timings = tuple(
            dataclasses.replace(t, ratio=t.ratio / 2, ci95=(t.ci95[0] / 2, t.ci95[1] / 2)) for t in found.timings
        )
        return dataclasses.replace(found, timings=timings)


class Wrong(CliEvaluator):
    def evaluate(self, candidate: Candidate, *, seed: int, known: Mapping[str, str]) -> Evaluation:
        return Evaluation(candidate.id, Verdict.WRONG, "verify", message="wrong on these inputs")


class Gone(CliEvaluator):
    def prepare(self) -> Any:
        raise EvoError("the GPU is gone")


def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: type[CliEvaluator], *, again: bool = True) -> Any:
    """Returns the run's folder, and the evaluators that were opened: the search's, then those of second timings."""
    install(monkeypatch.setattr)
    campaign = Campaign.open(tmp_path / "out", SPEC, "cpu", {}, {"evo": "1"})
    campaign.add(RUN.task, RUN.task, "hash")
    opened: list[CliEvaluator] = []

    def open_evaluator(task: Any) -> CliEvaluator:
        opened.append(second() if opened else CliEvaluator())
        return opened[-1]

    def end(store: Any, evaluator: Any, fresh: Any) -> None:
        conclude(store, evaluator, Listener(), fresh if again else None)

    work = Work(CampaignLimits(campaign.folder, {}), {"evo": "1"}, conclude=end)
    done = list(execute_runs(campaign, iter([load_task(RUN.task)]), open_evaluator, 1, work))
    assert [d.reason for d in done] == ["budget spent"], done
    return RUN.folder(campaign.folder), opened


def test_the_second_timing_is_a_new_evaluators_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slower, "seeds", [])
    folder, opened = searched(tmp_path, monkeypatch, Slower)
    assert len(opened) == 2 and all(evaluator.closed for evaluator in opened)
    found, outcome = retimed(folder), outcome_of(folder, "full")
    assert found is not None and found.verdict is Verdict.OK and found.speedup is not None
    assert found.speedup == pytest.approx(outcome.best / 2)
    assert outcome.reported == (found.speedup if found.ci95 and found.ci95[0] > 1 else 1.0) != outcome.best
    assert (folder / BEST / EVIDENCE).exists()
    (seed,) = Slower.seeds
    assert seed not in range(100)  # inputs of its own


def test_a_kernel_that_is_not_right_again_is_no_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongLater(Wrong):
        def prepare(self) -> Evaluation:
            return CliEvaluator.evaluate(self, Candidate(SEED_SOURCE), seed=0, known={})

    folder, _ = searched(tmp_path, monkeypatch, WrongLater)
    found, outcome = retimed(folder), outcome_of(folder, "full")
    assert found is not None and (found.verdict, found.message) == (Verdict.WRONG, "wrong on these inputs")
    assert outcome.reported == 1.0 < outcome.best and outcome.reported_ci95 == (1.0, 1.0)


def test_without_a_gpu_for_it_the_times_of_the_search_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = searched(tmp_path, monkeypatch, Gone)
    found, outcome = retimed(folder), outcome_of(folder, "full")
    assert found is not None and (found.verdict, found.message) == (Verdict.INFRASTRUCTURE, "the GPU is gone")
    assert outcome.retimed is None and outcome.reported == outcome.best > 1


def test_nothing_is_timed_again_if_it_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, opened = searched(tmp_path, monkeypatch, Slower, again=False)
    assert len(opened) == 1 and retimed(folder) is None and (folder / BEST / EVIDENCE).exists()


def test_summaries_and_files_keep_the_second_timing(tmp_path: Path) -> None:
    outcome = Outcome(
        "full", "softmax", 0, 2, (1.5, 2.0), (1.9, 2.1), False, {"ok": 3}, 1.0, retimed=1.6, retimed_ci95=(1.5, 1.7)
    )  # fmt: skip
    save(tmp_path / "outcomes.json", [outcome])
    assert load(tmp_path / "outcomes.json") == [outcome]
    write_kernels(tmp_path / "kernels.parquet", [SuiteKernel("softmax", 20, outcome=outcome)])
    (kernel,) = read_kernels(tmp_path / "kernels.parquet")
    assert kernel.speedup == 1.6 and kernel.outcome is not None and kernel.outcome.best == 2.0
    text = markdown([kernel])
    assert "| best timed again in a new process | 1/1; 0.800 of the search's speedup |" in text
    assert "| softmax | 20 | 1.60× | [1.50, 1.70] |" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"trial": 1, "verdict": "fine", "message": "", "ci95": null}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / BEST).mkdir()
    (tmp_path / BEST / RETIMED).write_text(text)
    with pytest.raises(StoreError, match="delete best/ to have it made"):
        retimed(tmp_path)
    (tmp_path / BEST / RETIMED).write_text(json.dumps(dataclasses.asdict(Retiming(3, Verdict.WRONG, "no"))))
    assert retimed(tmp_path) == Retiming(3, Verdict.WRONG, "no")

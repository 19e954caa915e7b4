"""evo.search.progress and evo.storage.best."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from evo.cli.main import _parser
from evo.core.errors import StoreError
from evo.core.records import STAGES, Certificate, Fitness, Verdict
from evo.search.progress import PLAIN_S, Progress, ProgressCounts
from evo.storage.best import Conclusion, best_source, diff, read_result, write_result
from evo.storage.queries import RunInfo
from tests.engine_support import config, failed_trial, ok_trial


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(clock: FakeClock, budget: int = 10) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(config(budget=budget), Console(file=out, width=80), clock), out


def test_a_tally_counts_trials_and_time() -> None:
    clock = FakeClock()
    tally = ProgressCounts(10, clock)
    assert tally.add(ok_trial(0, 1.0, operator="seed"), replayed=False)
    assert (tally.spent, tally.rate(), tally.pace()) == (0, None, "")
    clock.now += 4.0
    assert tally.add(ok_trial(1, 2.0), replayed=False)
    assert not tally.add(ok_trial(2, 2.0), replayed=False)
    assert not tally.add(failed_trial(3), replayed=False)
    assert (tally.spent, tally.rate()) == (3, 0.75)
    assert tally.pace() == "0.8/s, ETA 0:00:09"
    assert tally.verdict_text() == "3 ok, 1 wrong"
    assert tally.best_text() == "best: 2.00x [1.80, 2.20] estimated, trial 1"


def test_a_tally_counts_gpu_seconds() -> None:
    clock = FakeClock()
    tally = ProgressCounts(100, clock, gpu_seconds=20.0)
    for index, (seconds, replayed) in enumerate([(50.0, False), (6.0, True), (1.0, False), (1.0, False)]):
        trial = ok_trial(index, operator="mutate" if index else "seed")
        measured = dataclasses.replace(trial.evaluation, seconds={"time": seconds})
        tally.add(dataclasses.replace(trial, evaluation=measured), replayed=replayed)
    clock.now += 4.0
    assert (tally.spent_text(), tally.share()) == ("3/100, 8.0/20 GPU s", 0.4)
    assert tally.pace() == "0.5/s, ETA 0:00:24"  # 12 s are left, enough for 12 like the two that were measured here


def test_a_tally_says_what_operators_achieve_and_cost() -> None:
    tally = ProgressCounts(10)
    tally.add(ok_trial(0, 1.0, operator="seed"), replayed=False)
    cost = {"tokens_in": 1000, "tokens_out": 234, "usd": 0.05}
    for trial in (
        ok_trial(1, 2.0, operator="mutate@gpt", parents=(0,), cost=cost),
        failed_trial(2, operator="mutate@gpt", parents=(1,), cost=cost),
        ok_trial(3, 1.5, operator="params", parents=(1, 0)),
    ):
        tally.add(trial, replayed=False)
    assert tally.credit_text() == "better than their parents: mutate@gpt 1 of 2, params 0 of 1; 2,468 tokens, $0.10"


def test_a_gain_within_the_intervals_is_not_counted() -> None:
    tally = ProgressCounts(10)
    tally.add(ok_trial(0, 1.0, operator="seed"), replayed=False)
    trial = ok_trial(1, 1.02, operator="params", parents=(0,))
    assert trial.fitness is not None
    fitness = dataclasses.replace(trial.fitness, ci95=(0.79, 1.30))
    tally.add(dataclasses.replace(trial, fitness=fitness), replayed=False)
    assert tally.credit_text() == "better than their parents: params 0 of 1"


def test_replayed_trials_do_not_count_for_the_rate() -> None:
    clock = FakeClock()
    tally = ProgressCounts(100, clock)
    for index in range(50):
        tally.add(ok_trial(index), replayed=True)
    clock.now += 1.0
    assert tally.rate() is None
    tally.add(ok_trial(50), replayed=False)
    assert (tally.spent, tally.rate()) == (51, 1.0)


def test_plain_lines_are_throttled_but_for_news() -> None:
    clock = FakeClock()
    progress, out = plain(clock, budget=6)
    with progress:
        progress.absorbed(ok_trial(0, 1.0, operator="seed"), replayed=False)
        progress.absorbed(failed_trial(1), replayed=False)  # too soon
        progress.absorbed(ok_trial(2, 3.0), replayed=False)  # a new best
        clock.now += PLAIN_S
        progress.absorbed(failed_trial(3, Verdict.TIMEOUT, "30 s\nsecond line"), replayed=False)
        progress.absorbed(failed_trial(4), replayed=False)  # too soon
        progress.absorbed(failed_trial(5), replayed=False)  # too soon
        progress.absorbed(failed_trial(6), replayed=False)  # the last
    title, *lines, verdicts, credit = out.getvalue().splitlines()
    assert credit == "better than their parents: mutate 0 of 6"
    assert title == "instant, evolve, seed 0, sm_90, 1 worker"
    assert [line.split()[2] for line in lines] == ["0", "2", "3", "6"]
    assert lines[1].startswith("[2/6] trial 2 mutate: ok, 3.00x [2.70, 3.30] estimated; best: 3.00x")
    assert "timeout, 30 s; best: 3.00x" in lines[2] and "second line" not in lines[2]
    assert verdicts == "verdicts: 4 wrong, 2 ok, 1 timeout"


def test_the_best_has_its_share_of_what_is_attainable() -> None:
    counts = ProgressCounts(10)
    counts.add(ok_trial(0, 1.0, operator="seed"), replayed=False)
    assert "attainable" not in counts.best_text()
    counts.add(ok_trial(1, 4.0, attainable_us=0.2), replayed=False)
    assert counts.best_text() == "best: 4.00x [3.60, 4.40] estimated, 80% of attainable, trial 1"


def test_replayed_trials_print_nothing() -> None:
    progress, out = plain(FakeClock())
    with progress:
        progress.absorbed(ok_trial(0), replayed=True)
    assert "trial" not in out.getvalue()


def test_a_terminal_gets_a_panel() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Progress(config(budget=4), console, FakeClock()) as progress:
        progress.absorbed(ok_trial(0, 1.0, operator="seed"), replayed=False)
        progress.absorbed(ok_trial(1, 2.5, note="BLOCK 4 to 256"), replayed=False)
        progress.absorbed(failed_trial(2), replayed=False)
    drawn = out.getvalue()
    for words in ("2/4 candidates", "2.50x [2.25, 2.75] estimated", "BLOCK 4 to 256", "2 ok", "1 wrong"):
        assert words in drawn


def test_an_estimate_is_always_called_one() -> None:
    assert str(Fitness(2.0, (1.5, 2.5), {}, estimated=True)) == "2.00x [1.50, 2.50] estimated"
    assert str(Fitness(2.0, (1.5, 2.5), {}, estimated=False)) == "2.00x [1.50, 2.50]"


def test_a_diff_needs_no_final_newline() -> None:
    assert diff("a\nb", "a\nc", "old", "new") == "--- old\n+++ new\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert diff("a", "a\n", "old", "new") == ""


CERTIFICATE = Certificate("id", Verdict.INFRASTRUCTURE, "nothing is executed")


def info(**changes: Any) -> RunInfo:
    return RunInfo(config(**changes), "hash", {"evo": "1"}, {})


def test_the_best_is_written_with_its_frozen_configuration(tmp_path: Path) -> None:
    seed, best = ok_trial(0, operator="seed"), ok_trial(4, 2.0, note="halved")
    best = dataclasses.replace(best, evaluation=dataclasses.replace(best.evaluation, frozen_source="x = 'frozen'\n"))
    result = Conclusion(best, CERTIFICATE)
    write_result(tmp_path, info(), seed, result)
    patch = result.patch(seed)
    assert best_source(best) == (tmp_path / "best/kernel.py").read_text() == "x = 'frozen'\n"
    assert (tmp_path / "best/diff.patch").read_text() == patch
    assert "-x = 0\n+x = 'frozen'\n" in patch
    result = json.loads((tmp_path / "best/result.json").read_text())
    assert (result["trial"], result["speedup"], result["frozen"], result["improved"]) == (4, 2.0, True, True)
    assert result["estimated"] is True and result["ci95"] == [1.8, 2.2]


def test_without_a_better_one_the_seed_is_written_as_it_was(tmp_path: Path) -> None:
    seed = ok_trial(0, operator="seed")
    seed = dataclasses.replace(seed, evaluation=dataclasses.replace(seed.evaluation, frozen_source="x = 'frozen'\n"))
    result = Conclusion(seed, CERTIFICATE)
    write_result(tmp_path, info(), seed, result)
    assert result.patch(seed) == (tmp_path / "best/diff.patch").read_text() == ""
    assert (tmp_path / "best/kernel.py").read_text() == "x = 0\n"


def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("in the way")
    with pytest.raises(StoreError, match="expected to write"):
        write_result(tmp_path, info(), ok_trial(0), Conclusion(ok_trial(1), CERTIFICATE))


def test_a_reader_never_finds_half_a_result(tmp_path: Path) -> None:
    write_result(tmp_path, info(), ok_trial(0, operator="seed"), Conclusion(ok_trial(1), CERTIFICATE))
    before = {path: path.read_text() for path in (tmp_path / "best").iterdir()}
    with contextlib.ExitStack() as stack:
        reading = {path: stack.enter_context(open(path, encoding="utf-8")) for path in before}
        write_result(tmp_path, info(), ok_trial(0, operator="seed"), Conclusion(ok_trial(2, 2.0), CERTIFICATE))
        assert {path: file.read() for path, file in reading.items()} == before
    assert set((tmp_path / "best").iterdir()) == set(before)


def test_the_evidence_has_all_there_is_to_believe_a_speedup_and_can_be_read_again(tmp_path: Path) -> None:
    seed, best = ok_trial(0, operator="seed"), ok_trial(4, 2.0)
    refused = Certificate("other", Verdict.WRONG, "small: output is wrong")
    result = Conclusion(best, CERTIFICATE, ((7, refused),))
    write_result(tmp_path, info(), seed, result)
    evidence = json.loads((tmp_path / "best/evidence.json").read_text())
    assert (evidence["candidate"], evidence["trial"], evidence["task_hash"]) == (best.proposal.candidate.id, 4, "hash")
    assert (evidence["estimated"], evidence["certified"]) == (True, False)
    assert evidence["certificate"]["message"] == "nothing is executed"
    assert evidence["stages"] == [stage for stage in STAGES if stage in evidence["stages"]]
    assert evidence["stages"][-1] == "done"
    assert evidence["evaluation"]["timings"][0]["samples_us"]
    assert evidence["refused"][0]["certificate"]["verdict"] == "wrong"
    assert evidence["reproduce"] == [
        "evo evaluate instant best/kernel.py --target sm_90",
        "evo certify instant best/kernel.py --target sm_90",
    ]
    run: Any = SimpleNamespace(folder=tmp_path, trial=lambda index: {4: best}[index])
    assert read_result(run) == result


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"baseline": "compile"}, "--target sm_90 --baseline compile"),
        ({"allow_delegation": 0.25}, "--target sm_90 --allow-delegation 0.25"),
        ({"allow_delegation": 0, "target": "h100"}, "--target h100 --allow-delegation 0"),
    ],
)
def test_commands_of_the_evidence_have_the_settings_that_verdicts_depend_on(
    tmp_path: Path, settings: dict[str, Any], options: str
) -> None:
    write_result(tmp_path, info(**settings), ok_trial(0, operator="seed"), Conclusion(ok_trial(4, 2.0), CERTIFICATE))
    commands = json.loads((tmp_path / "best/evidence.json").read_text())["reproduce"]
    assert commands == [f"evo {command} instant best/kernel.py {options}" for command in ("evaluate", "certify")]
    parsed = vars(_parser().parse_args(commands[0].split()[1:]))
    assert {name: parsed[name] for name in settings} == settings


def test_evidence_of_somebody_else_is_an_error(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(folder=tmp_path, trial=None)
    assert read_result(run) is None
    (tmp_path / "best").mkdir()
    (tmp_path / "best/evidence.json").write_text("{}")
    with pytest.raises(StoreError, match="delete the file"):
        read_result(run)

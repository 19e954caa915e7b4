"""analysis.training: answers, rewards and advantages, as TRL and verl read them."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import statistics
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fitness
from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, llm_of, search_with
from analysis.benchmarks.instant import InstantEvaluator
from analysis.export import export_training
from analysis.training.tables import TUNED
from evo.cli.main import main
from evo.core.models import Model
from evo.core.records import Candidate, Evaluation, Trial, Verdict, score
from evo.core.rewards import EPSILON
from evo.llm.completions import NO_FORM, UNEXPLAINED, UNKNOWN_OPERATOR
from evo.storage.folders import FILE
from evo.storage.model_calls import stored_calls
from evo.storage.queries import RunReader
from operators.base import Draft, Parent
from operators.llm.base import Unreadable
from operators.registry import LLM_OPERATORS
from tests.analysis_support import CALLS, add_call, answered, fill
from tests.engine_support import MoreWarps, create, failed_trial, ok_trial, proposal, resume
from tests.llm_endpoint import in_turn
from tests.llm_run import OPERATORS

TASK = "vector_sin"
SEED = (Path(fitness.__file__).parent / "tasks" / "builtin" / TASK / "kernel.py").read_text(encoding="utf-8")
GENES: Any = {o.name: o for o in (Ask(), Ask("mend", repairs=True), Ask("cross", 2))}  # these ask in `search_of_genes`

REWARDS = ("autotriton", "tritonrl_plan", "tritonrl_code")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A measured run with a few calls, and one with three groups of seven answers, where speedups are estimated."""
    root = tmp_path_factory.mktemp("runs")
    fill(root / "measured")
    with create(root / "many") as store:
        trials = [ok_trial(0, operator="seed")]
        trials += [ok_trial(i, i / 3, parents=(0,)) if i % 4 else failed_trial(i, parents=(0,)) for i in range(1, 22)]
        for trial in trials:
            store.proposed(trial.proposal)
            store.finished(trial)
    with closing(sqlite3.connect(root / "many" / FILE)) as db, db:
        for i in range(1, 22):
            add_call(db, i, f"prompt {i % 3}", answered(i, f"Plan: {i}"))
    return [root / "measured", root / "many"]


@pytest.fixture(scope="module")
def grpo(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grpo") / "out"
    done = export_training(runs, out, "grpo", operators=LLM_OPERATORS)
    assert done.notes == {
        "left out: no verdict yet, or the evaluator failed": 2,
        "alone in their group, so without an advantage": 3,
    }
    return out


@pytest.fixture(scope="module")
def rows(grpo: Path) -> list[dict[str, Any]]:
    return pq.read_table(grpo / "grpo.parquet").to_pylist()


def test_advantages_recomputed_from_the_file_agree(grpo: Path) -> None:
    rows = [json.loads(line) for line in (grpo / "grpo.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in REWARDS:
        groups = defaultdict(list)
        for row in rows:
            groups[row["group"]].append(row[f"{name}_reward"])
        assert sorted(map(len, groups.values())) == [1, 1, 1, 3, 7, 7, 7]
        for row in rows:
            rewards = groups[row["group"]]
            std = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
            expected = (row[f"{name}_reward"] - statistics.fmean(rewards)) / (std + 1e-4)
            assert row[f"{name}_advantage"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert any(row[f"{name}_advantage"] for row in rows)


def test_rewards_follow_from_flags_and_speedup(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        flags = [row[flag] for flag in ("syntax", "rules", "compiled", "correct")]
        assert row["autotriton_reward"] == row["rules"] * row["correct"]
        assert row["tritonrl_code_reward"] == all(flags)
        assert row["tritonrl_plan_reward"] == all(flags) * (row["speedup"] or 0)
        assert row["tritonrl_alpha"] == 0.1
        assert (row["speedup"] is None) == (row["estimated"] is None) == (not row["correct"])


def test_every_judged_answer_is_there_with_its_verdict(rows: list[dict[str, Any]]) -> None:
    found = {row["trial"]: row for row in rows if row["run"] == "measured"}
    assert {t: (r["verdict"], r["syntax"], r["rules"], r["compiled"], r["correct"]) for t, r in found.items()} == {
        1: ("ok", True, True, True, True),
        2: ("ok", True, True, True, True),
        3: ("duplicate", True, True, True, True),
        4: ("rejected", True, False, False, False),
        5: ("wrong", True, True, True, False),
        6: ("ok", True, True, True, True),
    }
    assert (found[2]["speedup"], found[2]["estimated"], found[6]["estimated"]) == (3.0, False, True)
    assert (found[3]["speedup"], found[3]["estimated"]) == (1.0, False)  # its twin's, the seed's
    assert len({found[t]["group"] for t in (1, 2, 4)}) == 1


def test_prompts_completions_and_spans_are_the_stored_ones(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["run"] != "measured":
            continue
        prompt, answer = next((prompt, answer) for trial, prompt, answer in CALLS if trial == row["trial"])
        assert row["prompt"] == [
            {"role": "system", "content": "You write kernels."},
            {"role": "user", "content": prompt},
        ]
        assert row["completion"] == [{"role": "assistant", "content": answer}]
        assert answer is not None
        code = answer[row["code_start"] : row["code_end"]]
        assert answer == f"{answer.partition('```')[0]}```python\n{code}```"
        if answer.startswith("Plan"):
            assert answer[row["plan_start"] : row["plan_end"]] == answer.splitlines()[0]
        else:
            assert row["plan_start"] is row["plan_end"] is None


def test_verl_finds_its_columns(rows: list[dict[str, Any]]) -> None:
    assert rows[0]["data_source"] == "evo/instant"
    assert rows[0]["reward_model"] == {"style": "rule", "ground_truth": "instant"}
    assert rows[3]["extra_info"] == {"index": 3, "split": "train"}


def test_both_files_say_the_same(grpo: Path, rows: list[dict[str, Any]]) -> None:
    assert [json.loads(line) for line in (grpo / "grpo.jsonl").read_text(encoding="utf-8").splitlines()] == rows


def test_datasets_loads_both_files(grpo: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for form, name in (("json", "grpo.jsonl"), ("parquet", "grpo.parquet")):
        data = datasets.load_dataset(form, data_files=str(grpo / name), split="train", cache_dir=str(tmp_path))
        assert data["trial"] == [row["trial"] for row in rows]
        assert data[0]["prompt"] == rows[0]["prompt"]
        assert data[0]["completion"] == rows[0]["completion"]
        assert data["tritonrl_plan_advantage"] == [row["tritonrl_plan_advantage"] for row in rows]


def test_sft_has_measured_gains_only(runs: list[Path], tmp_path: Path) -> None:
    done = export_training(runs, tmp_path / "out", "sft", operators=LLM_OPERATORS)
    rows = pq.read_table(tmp_path / "out" / "sft.parquet").to_pylist()
    assert [(r["run"], r["trial"], r["speedup"], r["parent_speedup"]) for r in rows] == [
        ("measured", 1, 2.0, 1.0),
        ("measured", 2, 3.0, 1.0),
    ]
    assert all(r["ci_low"] > 1 and not r["estimated"] for r in rows)
    assert rows[0]["messages"] == rows[0]["prompt"] + rows[0]["completion"]
    estimated = sum(i % 4 != 0 and i / 3 * 0.9 > 1 for i in range(1, 22))
    assert done.notes == {
        "left out: no verdict yet, or the evaluator failed": 2,
        "left out: no gain": 25
        - estimated,  # trial 6 of the first run is faster than the seed, but slower than its parents
        "left out: a gain, but only an estimated one (--allow-estimated takes it)": estimated,
    }


def test_the_command_writes_training_data(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export", *map(str, runs), "--out", str(out), "--format", "sft", "--allow-estimated"]) == 0
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "sft.jsonl").read_text(encoding="utf-8").splitlines()]
    assert f"{out}/sft.jsonl: {len(rows)} rows\n" in said
    assert "\n2 answers left out: no verdict yet, or the evaluator failed\n" in said
    assert "estimated, not measured: the speedups of measured, many\n" in said
    assert {(r["run"], r["estimated"]) for r in rows} == {("measured", False), ("many", True)}


def test_where_no_answer_is_taken_the_command_says_what_would_take_some(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimated = str(runs[1])
    assert main(["export", estimated, "--out", str(tmp_path / "none"), "--format", "sft"]) == 0
    assert "nothing to train on: no answer is one that sft takes; no GPU measured" in (said := capsys.readouterr().out)
    assert "--allow-estimated takes estimated gains too" in said
    assert main(["export", estimated, "--out", str(tmp_path / "some"), "--format", "sft", "--allow-estimated"]) == 0
    assert "nothing to train on" not in capsys.readouterr().out


def test_a_group_without_differences_has_no_advantages(tmp_path: Path) -> None:
    assert EPSILON == 1e-4
    with create(tmp_path / "run") as store:
        for i in range(3):
            trial = ok_trial(0) if i == 0 else failed_trial(i)
            store.proposed(trial.proposal)
            store.finished(trial)
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        for i in (1, 2):
            add_call(db, i, "prompt", answered(i))
    export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=LLM_OPERATORS)
    rows = pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist()
    assert [row[f"{name}_advantage"] for row in rows for name in REWARDS] == [0.0] * 6


def test_an_answer_that_repeats_a_candidate_is_judged_as_that_one(tmp_path: Path) -> None:
    fill(
        tmp_path / "run"
    )  # its trials: 2 ok, 3 a duplicate of 0, 4 rejected, 5 wrong, 7 failed by the evaluator, 8 pending
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("DELETE FROM llm_calls")
    with resume(tmp_path / "run") as store:
        for index, repeated in enumerate((2, 3, 4, 5, 7, 8), 9):
            made = proposal(index)
            judged = Evaluation(
                made.candidate.id, Verdict.DUPLICATE, "answer", "repeats", duplicate_of=proposal(repeated).candidate.id
            )
            store.proposed(made)
            store.finished(Trial(made, judged))
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        for index in range(9, 15):
            add_call(db, index, "prompt", answered(index))
    done = export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=LLM_OPERATORS)
    rows = pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist()
    flags = [tuple(row[flag] for flag in ("syntax", "rules", "compiled", "correct", "speedup")) for row in rows]
    assert flags == [
        (True, True, True, True, 3.0),
        (True, True, True, True, 1.0),
        (True, False, False, False, None),
        (True, True, True, False, None),
    ]
    assert {(row["verdict"], row["stage"]) for row in rows} == {("duplicate", "answer")}
    assert done.notes == {"left out: no verdict yet, or the evaluator failed": 2}


def search_of_genes(folder: Path, evaluator: InstantEvaluator | None = None, **config: Any) -> list[Trial]:
    """Runs a search on an instant evaluator; the trials that were answers."""
    with Endpoint() as endpoint:
        model = Model("m", endpoint.url, max_tokens=100, timeout_s=30.0)
        with create(folder, operators=OPERATORS, models=(model,), budget=20, **config) as store:
            search_with(store, llm_of(store), evaluator)
    with RunReader(folder) as run:
        return [t for t in run.trials() if "@" in t.proposal.operator]


def test_answers_of_a_real_search(tmp_path: Path) -> None:
    asked = search_of_genes(tmp_path / "run", tune_budget=0)
    done = export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=GENES)
    rows = {row["trial"]: row for row in pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist()}
    assert len(rows) == len(asked) > 5
    with RunReader(tmp_path / "run") as run:
        for trial in asked:
            row = rows[trial.index]
            assert (row["operator"], row["model"]) == (trial.proposal.operator, "m")
            assert (row["verdict"], row["stage"]) == (trial.evaluation.verdict, trial.evaluation.stage)
            if trial.fitness:
                assert (row["speedup"], row["estimated"]) == (trial.fitness.speedup, trial.fitness.estimated)
            call = run.call_of(trial.index)
            assert call is not None and row["completion"][0]["content"] == call["answer"] and not row["tuned"]
            spans = json.loads(call["spans"] or "{}")
            assert [row["code_start"], row["code_end"]] == spans.get("code", [None, None])
    assert sum(row["code_start"] is not None for row in rows.values()) > 5
    assert set(done.notes) <= {
        "left out: no verdict yet, or the evaluator failed",
        "alone in their group, so without an advantage",
    }


def test_a_tuned_source_that_has_no_place_in_the_answer_is_left_out(tmp_path: Path) -> None:
    """These answers are genes alone: warps cannot be written into them."""
    asked = search_of_genes(tmp_path / "run", MoreWarps())
    tuned = {t.index for t in asked if t.proposal.cost.get("tuned")}
    done = export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=GENES)
    rows = pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist()
    assert tuned and done.notes[NO_FORM] == len(tuned)
    assert {row["trial"] for row in rows} == {t.index for t in asked} - tuned
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))


def test_answers_that_cannot_be_read_again_are_left_out(tmp_path: Path) -> None:
    asked = search_of_genes(tmp_path / "run", tune_budget=0)
    done = export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=LLM_OPERATORS)
    assert done.notes == {UNKNOWN_OPERATOR: sum(t.evaluation.stage != "answer" for t in asked)}


def test_an_answer_that_does_not_yield_what_was_judged_is_left_out_of_its_group(tmp_path: Path) -> None:
    """Of an old run it may not be known why."""
    fill(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE llm_calls SET answer = ? WHERE trial = 1", (answered(9),))
    done = export_training([tmp_path / "run"], tmp_path / "out", "grpo", operators=LLM_OPERATORS)
    rows = {row["trial"]: row for row in pq.read_table(tmp_path / "out" / "grpo.parquet").to_pylist()}
    assert done.notes[UNEXPLAINED] == 1 and 1 not in rows
    # Of the group of three there are two: rewards 1 and 0.
    assert rows[2]["autotriton_advantage"] == -rows[4]["autotriton_advantage"] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    done = export_training([tmp_path / "run"], tmp_path / "gains", "sft", operators=LLM_OPERATORS)
    assert done.notes[UNEXPLAINED] == 1
    assert [r["trial"] for r in pq.read_table(tmp_path / "gains" / "sft.parquet").to_pylist()] == [2]


# --- answers that are tuned, with the real evaluator -----------------------------------------------------------------

SLOW = SEED.replace("BLOCK_SIZE = 4", "BLOCK_SIZE = 16")
ANSWERS = (
    f"Plan: four times the block.\n```python\n{SLOW}```\nThat is all.",
    "Plan: load what is read once.\n\n<<<<<<< SEARCH\n    x = tl.load(x_ptr + offsets, mask=mask)\n=======\n"
    '    x = tl.load(x_ptr + offsets, mask=mask, eviction_policy="evict_first")\n>>>>>>> REPLACE\n',
    f"```python\n{SLOW.replace('tl.sin(x)', 'tl.cos(x)')}```",
    f"```python\n{SLOW.replace('tl.sin(x)', 'tl.no_such(x)')}```",
    "I would rather not.",
)


@pytest.fixture(scope="module")
def tuned_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of the built-in task: answers written by hand, the real evaluator, the real tuning."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    with Endpoint(in_turn(*(Reply(text=text) for text in ANSWERS))) as endpoint:
        options = ["--gpus", "none", "--workers", "1", "--seed", "3", "--budget", str(len(ANSWERS))]
        # Islands of their own, so that the second answer is about the seed kernel too, which tuning can improve.
        model = ["--model", f"m@{endpoint.url}", "--operators", "mutate", "--islands", "3"]
        assert main(["run", TASK, "--run-dir", str(folder), *options, *model]) == 0
    return folder


def exported(run: Path, out: Path, kind: str, *options: str) -> dict[int, dict[str, Any]]:
    """Rows by trial."""
    assert main(["export", str(run), "--out", str(out), "--format", kind, *options]) == 0
    return {row["trial"]: row for row in pq.read_table(out / f"{kind}.parquet").to_pylist()}


def test_the_text_of_a_row_judged_again_has_the_verdict_of_the_row(tuned_run, tmp_path, capsys, evaluators) -> None:
    rows = exported(tuned_run, tmp_path / "grpo", "grpo")
    said = capsys.readouterr().out
    assert [row["tuned"] for row in rows.values()] == [True, True, True, False, False]
    assert f"3 answers {TUNED}" in said
    evaluator = evaluators(TASK)
    with RunReader(tuned_run) as run:
        trials = {trial.index: trial for trial in run.trials()}
        for index, row in rows.items():
            proposal, stored = trials[index].proposal, trials[index].evaluation
            (message,) = row["completion"]
            parents = [Parent(p, trials[p].proposal.candidate.source, 1.0) for p in proposal.parents]
            draft = LLM_OPERATORS["mutate"].read(message["content"], parents)
            if row["stage"] == "answer":
                assert isinstance(draft, Unreadable)
                continue
            assert isinstance(draft, Draft)
            again = evaluator.evaluate(Candidate(draft.source), seed=proposal.seed, known={})
            assert (again.verdict, again.stage, again.plan_hash) == (row["verdict"], row["stage"], stored.plan_hash)
            fitness = score(again)
            assert (fitness.speedup if fitness else None) == row["speedup"]
    assert {row["verdict"] for row in rows.values()} == {"ok", "wrong", "compile_error", "rejected"}


def test_a_tuned_answer_is_stored_as_answered_and_as_judged(tuned_run: Path, tmp_path: Path, capsys) -> None:
    rows = exported(tuned_run, tmp_path / "both", "grpo")
    with RunReader(tuned_run) as run:
        for index, row in rows.items():
            call = run.call_of(index)
            judged = run.trial(index).proposal.candidate
            assert row["as_written"] == (ANSWERS[index - 1] if row["tuned"] else None)
            if not row["tuned"]:
                assert call["answered_source"] is None
                continue
            parents = [
                Parent(p, run.trial(p).proposal.candidate.source, 1.0) for p in run.trial(index).proposal.parents
            ]
            read = LLM_OPERATORS["mutate"].read(call["answer"], parents)
            assert call["answered_source"] == read.source and Candidate(read.source).id != judged.id
    capsys.readouterr()
    assert main(["show", str(tuned_run), "1"]) == 0
    said = capsys.readouterr().out
    assert "--- as answered" in said and "as judged" in said and "-    BLOCK_SIZE = 16" in said
    assert re.search(r"estimated: \d+\.\d\dx as answered and \d+\.\d\dx as judged", said)
    assert main(["export", str(tuned_run), "--out", str(tmp_path / "all"), "--format", "parquet", "--with-text"]) == 0
    (table,) = (tmp_path / "all").glob("**/llm_calls.parquet")
    stored = {row["trial"]: row["answered_source"] for row in pq.read_table(table).to_pylist()}
    assert SLOW.strip() in stored[1] and stored[5] is None


def test_a_run_of_an_earlier_version_is_read_without_its_answered_sources(tuned_run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(tuned_run, old)
    with closing(sqlite3.connect(old / "run.sqlite")) as db:
        db.execute("ALTER TABLE llm_calls DROP COLUMN answered_source")
    with RunReader(old) as run:
        assert run.call_of(1)["answered_source"] is None and len(list(stored_calls(run))) == len(ANSWERS)
    assert main(["show", str(old), "1"]) == 0
    rows, before = exported(old, tmp_path / "new", "grpo"), exported(tuned_run, tmp_path / "same", "grpo")
    assert [(r["completion"], r["tuned"], r["as_written"]) for r in rows.values()] == [
        (r["completion"], r["tuned"], r["as_written"]) for r in before.values()
    ]


def test_the_text_as_answered_has_another_speedup(tuned_run: Path, tmp_path: Path, evaluators) -> None:
    """So a row must not pair it with that of the tuned source."""
    row = exported(tuned_run, tmp_path / "grpo", "grpo")[1]
    (as_answered,) = evaluators(TASK).screen([SLOW])
    assert as_answered < row["speedup"] / 1.5


def test_tuned_completions_keep_the_form_of_the_answer(tuned_run: Path, tmp_path: Path) -> None:
    rows = exported(tuned_run, tmp_path / "sft", "sft", "--allow-estimated")
    whole, edits = (row["completion"][0]["content"] for row in (rows[1], rows[2]))
    assert whole.startswith("Plan: four times the block.\n```python\nimport torch") and whole.endswith("That is all.")
    assert edits.startswith(ANSWERS[1].partition("<")[0]) and 'eviction_policy="evict_first"' in edits
    assert edits.count("<<<<<<< SEARCH") >= 1 and "import torch" not in edits
    for row, text in ((rows[1], whole), (rows[2], edits)):
        assert row["tuned"] and row["messages"][-1]["content"] == text
        assert text[row["plan_start"] : row["plan_end"]].startswith("Plan: ")
        code = text[row["code_start"] : row["code_end"]]
        assert code.startswith(("import torch", "<<<<<<< SEARCH")) and code.rstrip().endswith(("return y", "REPLACE"))

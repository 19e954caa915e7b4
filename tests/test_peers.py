"""The comparison with other engines: prompts and answers, the model's determinism over HTTP, the summary's figures."""

from __future__ import annotations

import json
import math
import re
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from analysis.benchmarks.endpoint import Endpoint, Reply
from analysis.benchmarks.peers import collect, runs, summary
from analysis.benchmarks.peers.model import AnswerShares, FixedModel
from analysis.benchmarks.peers.prompts import (
    EDITS,
    END,
    FILE,
    START,
    ReadPrompt,
    UnknownPromptError,
    edits,
    marked,
    name_of,
    read_question,
    unmarked,
    write_answer,
)
from evo.core.errors import ConfigError
from evo.core.records import candidate_id
from fitness.tasks.task import BUILTIN_TASKS
from operators.base import Draft, Parent
from operators.registry import LLM_OPERATORS

SEED = (BUILTIN_TASKS / "softmax" / "kernel.py").read_text(encoding="utf-8")
OTHER = SEED.replace("num_warps=8", "num_warps=2")
NEW = SEED.replace("BLOCK_SIZE=128", "BLOCK_SIZE=1024")
assert len({SEED, OTHER, NEW}) == 3


def chat(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def block(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```"


# Not the engines' texts: their headings and blocks alone.
BEFORE = f"# Program Evolution History\n### Program 1\n{block(OTHER)}\n\n"
OPENEVOLVE = f"{BEFORE}# Current Program\n{block(marked(SEED))}\n\n# Task\n"
SHINKA = f"# Prior programs\n\n{block(OTHER)}\n\n# Current program\n\nHere:\n\n{block(marked(SEED))}\n\n# Task\n"


# --- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "engine", "other", "form"),
    [
        (chat("", f"{OPENEVOLVE}<<<<<<< SEARCH"), "openevolve", None, EDITS),
        (chat("", f"{OPENEVOLVE}Rewrite it."), "openevolve", None, FILE),
        (chat("<DIFF>", SHINKA), "shinka", None, EDITS),
        (chat("<CODE>", SHINKA), "shinka", None, FILE),
        (chat("<CODE>", f"{SHINKA}# Crossover Inspiration Programs\n{block(marked(OTHER))}"), "shinka", OTHER, FILE),
        (chat("<CODE>", f"# Incorrect Program to Fix\n\n{block(marked(SEED))}\n"), "shinka", None, FILE),
        (chat("", f"# Kernel A\n\n{block(SEED)}\n\n# Kernel B\n\n{block(OTHER)}\n"), "evo", OTHER, FILE),
        (chat(f"The seed kernel:\n\n{block(SEED)}\n", "# Kernel A\n\nThe seed.\n\n# Direction\n"), "evo", None, FILE),
        (chat("", f"# Kernel A\n\n{block(SEED)}\n\n Then give edits of kernel A in one block"), "evo", None, EDITS),
    ],
)  # fmt: skip
def test_the_kernel_to_change_is_found(messages: Any, engine: str, other: str | None, form: str) -> None:
    found = read_question(messages)
    assert (found.engine, found.form) == (engine, form)
    assert candidate_id(found.source) == candidate_id(SEED)
    assert (found.other and candidate_id(found.other)) == (other and candidate_id(other))


def test_an_engine_that_asks_again_is_answered_about_the_same_kernel() -> None:
    again = [*chat("<DIFF>", SHINKA), {"role": "assistant", "content": "?"}, {"role": "user", "content": "Try again."}]
    assert name_of(read_question(again).source) == name_of(SEED)
    with pytest.raises(UnknownPromptError):
        read_question(chat("You write poems.", "Write one."))


def test_prompts_of_evo_as_they_are_sent() -> None:
    golden = Path(__file__).parent / "golden" / "prompts"
    system = (golden / "system.md").read_text(encoding="utf-8")
    found = {p.stem: p.read_text(encoding="utf-8") for p in golden.glob("*.md") if "Kernel A" in p.read_text()}
    users = {name: text for name, text in found.items() if name != "system"}
    assert len(users) > 5
    for name, user in users.items():
        question = read_question(chat(system, user))
        assert "@triton.jit" in question.source, name
        assert (question.other is not None) == ("# Kernel B" in user), name


def applied(source: str, blocks: str) -> str:
    """The source after SEARCH/REPLACE blocks, each of which must be found once."""
    found = re.findall(r"<<<<<<< SEARCH\n(.*?)\n=======\n(.*?)\n?>>>>>>> REPLACE", blocks, re.DOTALL)
    assert found
    for old, new in found:
        assert source.count(old) == 1 and START not in old and END not in old
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("engine", ["openevolve", "shinka"])
def test_edits_make_the_new_kernel_of_the_old_one(engine: str) -> None:
    longer = NEW.replace("    return y", "    # twice\n\n    return y").replace("import torch\n", "import torch\n\n\n")
    for new in (NEW, OTHER, longer, "import triton\n"):
        text = write_answer(ReadPrompt(engine, SEED, None, EDITS), "why", new)
        assert name_of(applied(marked(SEED), text)) == name_of(new)
    assert all(old.split("\n")[0].strip() for old, _ in edits(ReadPrompt(engine, SEED, None, EDITS), longer))


@pytest.mark.parametrize(("operator", "form"), [("mutate", FILE), ("mutate", EDITS), ("crossover", FILE)])
def test_evo_reads_the_answers(operator: str, form: str) -> None:
    parents = [Parent(0, SEED, 1.0), Parent(1, OTHER, 1.0)][: 2 if operator == "crossover" else 1]
    draft = LLM_OPERATORS[operator].read(write_answer(ReadPrompt("evo", SEED, None, form), "why", NEW), parents)
    assert isinstance(draft, Draft) and candidate_id(draft.source) == candidate_id(NEW)


def test_marks_change_no_name() -> None:
    broken = "def f(:\n"
    assert unmarked(marked(SEED)) == SEED.strip("\n") + "\n"
    assert name_of(marked(broken)) == name_of(broken) and name_of(marked(SEED)) == candidate_id(SEED)


# --- the model -------------------------------------------------------------------------------------------------------


def ask(url: str, messages: Any) -> dict[str, Any]:
    address = urlparse(url)
    connection = HTTPConnection(address.hostname or "", address.port)
    body = json.dumps({"model": "fixed", "messages": messages})
    connection.request("POST", f"{address.path}/chat/completions", body, {"Content-Type": "application/json"})
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer["choices"][0]


def served(seed: int, chats: list[Any]) -> list[dict[str, Any]]:
    """The choices that a server of the model gives, one request after the other."""
    model = FixedModel(seed, AnswerShares(mean_delay_s=0.0001))

    def reply(body: dict[str, Any], number: int) -> Reply:
        answer = model.answer(body["messages"], number)
        return Reply(text=answer.text, finish=answer.finish, delay_s=answer.delay_s)

    with Endpoint(reply) as endpoint:
        return [ask(endpoint.url, messages) for messages in chats]


def test_answers_follow_from_the_seed_and_the_requests() -> None:
    chats = [chat("", f"{OPENEVOLVE}<<<<<<< SEARCH")] * 6
    first = served(0, chats)
    assert first == served(0, chats) and first != served(1, chats)
    assert len({choice["message"]["content"] for choice in first}) > 2, "the same question gets other answers"


def test_engines_get_the_same_change_in_their_own_form() -> None:
    questions = [
        chat("", f"{OPENEVOLVE}<<<<<<< SEARCH"),
        chat("<CODE>", SHINKA),
        chat("", f"# Kernel A\n\n{block(SEED)}"),
    ]
    for number in range(8):
        found = [FixedModel(3).answer(messages, number) for messages in questions]
        assert len({(a.kind, a.source and name_of(a.source), a.delay_s) for a in found}) == 1
        assert found[0].source is None or len({a.text for a in found}) == 3


def test_shares_of_answers_and_what_each_kind_is() -> None:
    model = FixedModel(0)
    answers = [model.answer(chat("<CODE>", SHINKA), number) for number in range(120)]
    kinds = {
        kind: [a for a in answers if a.kind == kind]
        for kind in ("rewrite", "parameter", "wrong", "syntax", "prose", "cut")
    }
    assert all(kinds.values()) and len(kinds["rewrite"]) + len(kinds["parameter"]) > 70
    assert all(a.source is None and "```" not in a.text for a in kinds["prose"])
    assert all(a.source is None and a.finish == "length" for a in kinds["cut"])
    for answer in kinds["syntax"]:
        with pytest.raises(SyntaxError):
            compile(answer.source or "", "", "exec")
    for answer in kinds["rewrite"] + kinds["parameter"] + kinds["wrong"]:
        compile(answer.source or "", "", "exec")
        assert name_of(answer.source or "") != name_of(SEED)


def test_a_change_that_broke_a_kernel_is_undone_half_of_the_time() -> None:
    model = FixedModel(0)
    broken = next(a for n in range(60) if (a := model.answer(chat("<CODE>", SHINKA), n)).kind == "wrong").source or ""
    messages = chat("<CODE>", f"# Incorrect Program to Fix\n\n{block(marked(broken))}\n")
    again = [model.answer(messages, number) for number in range(40)]
    undone = [a for a in again if a.kind == "undo"]
    assert 10 < len(undone) < 30 and {name_of(a.source or "") for a in undone} == {name_of(SEED)}


# --- the engines' own templates and readers --------------------------------------------------------------------------


@pytest.mark.published
@pytest.mark.parametrize("diffs", [True, False])
def test_openevolve_applies_answers_to_its_own_prompts(diffs: bool) -> None:
    sampler = pytest.importorskip("openevolve.prompt.sampler")
    from openevolve.config import PromptConfig
    from openevolve.utils.code_utils import apply_diff, parse_full_rewrite

    program = {"code": marked(OTHER), "metrics": {"combined_score": 1.5}, "id": "1", "changes": "", "metadata": {}}
    prompt = sampler.PromptSampler(PromptConfig()).build_prompt(
        current_program=marked(SEED), parent_program=marked(SEED), program_metrics={"combined_score": 1.0},
        previous_programs=[program], top_programs=[program], inspirations=[program], language="python",
        evolution_round=1, diff_based_evolution=diffs, program_artifacts={"verdict": "ok"},
    )  # fmt: skip
    question = read_question(chat(prompt["system"], prompt["user"]))
    assert (question.engine, question.form) == ("openevolve", EDITS if diffs else FILE)
    assert name_of(question.source) == name_of(SEED)
    text = write_answer(question, "why", NEW)
    made = apply_diff(marked(SEED), text) if diffs else parse_full_rewrite(text, "python")
    assert made is not None and name_of(made) == name_of(NEW)


@pytest.mark.published
@pytest.mark.parametrize("kind", ["diff", "full", "cross"])
def test_shinka_applies_answers_to_its_own_prompts(kind: str, tmp_path: Path) -> None:
    sampler = pytest.importorskip("shinka.core.sampler", exc_type=ImportError)
    from shinka.database import Program
    from shinka.edit import apply_diff_patch, apply_full_patch

    def program(source: str) -> Any:
        return Program(id="1", code=marked(source), combined_score=1.0, public_metrics={"correct": 1.0}, correct=True)

    made = sampler.PromptSampler(patch_types=[kind], patch_type_probs=[1.0])
    system, user, _ = made.sample(program(SEED), [program(OTHER)], [])
    question = read_question(chat(system, user))
    assert (question.engine, question.form) == ("shinka", EDITS if kind == "diff" else FILE)
    assert name_of(question.source) == name_of(SEED)
    assert (question.other is None) == (kind != "cross")
    apply = apply_diff_patch if kind == "diff" else apply_full_patch
    text = write_answer(question, "why", NEW)
    source, count, _, error, *_ = apply(text, original_str=marked(SEED), language="python", verbose=False)
    assert error is None and count == 1 and name_of(source) == name_of(NEW)


@pytest.mark.published
@pytest.mark.parametrize("engine", ["evo", "openevolve", "shinka"])
def test_a_run_that_is_killed(engine: str, tmp_path: Path) -> None:
    """A run of 4 proposals on vector_sin with the real service, killed within the second one."""
    pytest.importorskip("shinka.core" if engine == "shinka" else "openevolve", exc_type=ImportError)
    run = runs.Run(runs.CONTESTANTS[engine], "vector_sin", 0, 4, kill_after=2)
    with runs.service(tmp_path / "service", "none", 1) as url:
        runs.execute(run, tmp_path / "runs" / run.name, url, sys.executable, AnswerShares())
    _, others, (row,) = collect.collect(tmp_path / "runs", {"proposals": 4})
    assert others == [] and (row["task"], row["engine"], row["seed"]) == ("vector_sin", engine, 0)
    assert row["answers_before"] >= 2 and row["kernels_before"] >= 1 and row["answers_after"] >= 1
    if engine == "evo":
        assert row["kernels_lost"] == 0 and row["answers_before"] + row["answers_after"] == 4


# --- the summary -----------------------------------------------------------------------------------------------------


def rows(engine: str, task: str, seed: int, *best: float) -> list[dict[str, Any]]:
    return [
        {"engine": engine, "task": task, "seed": seed, "proposal": i, "best": b, "kind": "rewrite", "verdict": "ok"}
        for i, b in enumerate(best, 1)
    ]


SOME = [
    *rows("evo", "a", 0, 1.0, 4.0), *rows("evo", "b", 0, 2.0, 2.0),
    *rows("other", "a", 0, 1.0, 2.0), *rows("other", "b", 0, 2.0, 2.0),
    *rows("other", "a", 1, 8.0, 8.0),  # evo has not finished it
]  # fmt: skip


def test_tasks_are_the_units_of_the_comparison() -> None:
    curves = summary.curves_of(summary.complete(SOME))
    assert curves["other"]["a"] == [[1.0, 2.0]], "a seed counts if all engines have it"
    evo, other = summary.standings(curves)
    assert (evo.engine, other.engine) == ("evo", "other")
    assert evo.mean == pytest.approx(math.sqrt(8)) and other.mean == pytest.approx(2.0)
    assert evo.half == pytest.approx(math.sqrt(2)) and evo.by_task == {"a": 4.0, "b": 2.0}
    assert evo.area == pytest.approx((0.5 + 1.0) / 2)
    (pair,) = summary.pairings(curves)
    assert pair.ratio == pytest.approx(math.sqrt(2)) and (pair.ahead, pair.equal, pair.behind) == (1, 1, 0)
    assert pair.ci95[0] == pytest.approx(1.0) and pair.ci95[1] == pytest.approx(2.0) and pair.p == 1.0
    with pytest.raises(ConfigError, match="every engine has finished"):
        summary.curves_of(summary.complete([*rows("evo", "a", 0, 1.0), *rows("other", "b", 0, 1.0)]))


def test_an_answer_counts_once_its_kernel_was_evaluated() -> None:
    answers = [
        {"number": n, "kind": "rewrite", "id": kernel} for n, kernel in enumerate(["k1", None, "k2", "k3", "k1"])
    ]
    ends = [("k1", "ok", 1.5), ("k3", "wrong", 0.0), ("k0", "ok", 9.0)]
    events = [{"event": "end", "id": kernel, "verdict": verdict, "speedup": s} for kernel, verdict, s in ends]
    found = collect.proposals(answers, events, 4)
    assert [row["best"] for row in found] == [1.5] * 4
    assert [row["verdict"] for row in found] == ["ok", "", "", "wrong"]


def test_costs_leave_the_model_and_evaluations_out() -> None:
    answers = [{"came": 10.0, "sent": 11.0}, {"came": 15.0, "sent": 16.0}, {"came": 20.0, "sent": 21.0}]
    events = [{"event": kind, "id": "k", "at": at} for kind, at in (("begin", 10.5), ("end", 13.0))]
    found = collect.costs(answers, events, [2.0, 3.0, 6.0], 3)
    assert found == {"cpu_start_s": 2.0, "cpu_s": 2.0, "wall_s": pytest.approx((10.0 - 3.0 - 1.0) / 2)}
    assert collect.covered([(0, 4), (1, 2), (3, 6), (8, 12)], 1, 10) == 7


def test_losses_of_a_run_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "a.evo.0.killed"
    folder.mkdir()
    (folder / "initial.py").write_text("seed = 1\n")
    first = name_of("seed = 1\n")

    def evaluated(kernel: str, speedup: float, verdict: str = "ok") -> list[dict[str, Any]]:
        end = {"event": "end", "id": kernel, "verdict": verdict, "speedup": speedup}
        return [{"event": "begin", "id": kernel}, end]

    events = [
        *evaluated(first, 1.0), *evaluated("k1", 3.0), *evaluated("k2", 2.0),
        *evaluated("k4", 0.0, "wrong"), {"event": "begin", "id": "k3"},
        {"event": "killed", "answers": 4}, *evaluated("k2", 2.0), *evaluated("k3", 1.0),
    ]  # fmt: skip
    for name, lines in ((collect.EVALUATIONS, events), (collect.ANSWERS, [{}] * 6)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / collect.KNOWN).write_text(json.dumps([first, "k2", "k3"]))
    assert collect.killed_row(folder) == {
        "answers_before": 4, "answers_after": 2, "kernels_before": 3, "kernels_lost": 1, "evaluated_again": 1,
        "best_before": 3.0, "best_known": 2.0,
    }  # fmt: skip


def test_settings_of_a_folder_stay(tmp_path: Path) -> None:
    summary.keep_settings(tmp_path, {"proposals": 4, "gpus": "none"})
    summary.keep_settings(tmp_path, {"proposals": 4, "gpus": "none"})
    with pytest.raises(ConfigError, match="name another folder"):
        summary.keep_settings(tmp_path, {"proposals": 5, "gpus": "none"})


def test_the_committed_rows_give_the_committed_tables(tmp_path: Path) -> None:
    committed = Path(__file__).parents[1] / "runs" / "reference" / "peers"
    for path in committed.glob("*.*"):
        if path.suffix in (".json", ".parquet"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    text = summary.write(tmp_path, tmp_path)
    assert text == (committed / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "summary.json").read_bytes() == (committed / "summary.json").read_bytes()
    assert (tmp_path / "curves.png").stat().st_size > 10_000

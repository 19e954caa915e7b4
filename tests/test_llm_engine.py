"""Runs that ask models: the engine, its lane, replays, mailboxes, kills."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, answer_to, llm_of, search_with
from analysis.benchmarks.instant import SEED_SOURCE, InstantEvaluator
from evo.core.models import Model
from evo.core.records import Bar, Candidate, Evaluation, StopReason, Trial, Verdict
from evo.llm import queue as lane_module
from evo.llm.base import LlmError, Request
from evo.llm.budget import ModelBudget
from evo.llm.mailbox import MailboxProvider
from evo.llm.models import read_models
from evo.llm.repairs import REPAIRS
from evo.storage.model_calls import ModelAnswer
from evo.storage.queries import RunReader
from operators.base import Draft, Parent
from operators.llm.base import Message, Prompt, Unreadable
from tests.engine_support import MoreWarps, create, facts, resume
from tests.llm_endpoint import error, in_turn
from tests.llm_run import OPERATORS

ROOT = Path(__file__).parent.parent
MODEL_OPERATORS = ("change@m", "mend@m", "cross@m")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "BACKOFF_S", 0.01)


def model(url: str, **settings: Any) -> Model:
    return Model("m", url, **{"max_tokens": 100, "timeout_s": 30.0, **settings})


def run(folder: Path, *models: Model, evaluator: InstantEvaluator | None = None, **config: Any) -> Any:
    """The outcome of a run in `folder`."""
    defaults = {"operators": MODEL_OPERATORS, "models": models, "budget": 20}
    with create(folder, **{**defaults, **config}) as store:
        return search_with(store, llm_of(store), evaluator)


def calls(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM llm_calls ORDER BY call")]


def decisions(folder: Path) -> dict[str, list[Any]]:
    """What a run decided: all facts but the settings, and the calls without what the clock says."""
    clock = ("asked_at", "answered_at", "seconds", "attempts", "request")
    rows = [{k: v for k, v in row.items() if k not in clock} for row in calls(folder)]
    return {**{t: rows for t, rows in facts(folder).items() if t != "meta"}, "llm_calls": rows}


def trials(folder: Path) -> list[Trial]:
    with RunReader(folder) as found:
        return list(found.trials())


def test_answers_become_trials_with_their_cost(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        outcome = run(tmp_path, model(endpoint.url, usd_in=1.0, usd_out=2.0))
    assert (outcome.reason, outcome.spent) == ("budget spent", 20)
    made = trials(tmp_path)[1:]
    assert [t.index for t in made] == list(range(1, 21))
    assert {t.proposal.operator for t in made} == set(MODEL_OPERATORS)
    for trial in made:
        cost = dict(trial.proposal.cost)
        assert cost.pop("hint:none", 1) == 1
        assert cost.pop("screened", 0) <= 12
        assert cost.pop("tuned", 0) in (0, 1)
        assert cost == {"tokens_in": 10, "tokens_out": 20, "usd": pytest.approx(50e-6), "stale": 0}
    rows = calls(tmp_path)
    assert [row["trial"] for row in rows] == list(range(1, 21))
    for row in rows:
        start, end = json.loads(row["spans"])["code"]
        assert row["answer"][start:end].startswith("GENES=(")


def test_rules_and_models_share_a_serial_run(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        run(tmp_path, model(endpoint.url), operators=OPERATORS, budget=40)
    operators = Counter(t.proposal.operator for t in trials(tmp_path))
    assert operators["mutate"] > 2 and sum(operators[o] for o in MODEL_OPERATORS) > 5
    assert all(t.proposal.cost.get("stale", 0) == 0 for t in trials(tmp_path))


def test_prompts_are_told_of_earlier_tries(tmp_path: Path) -> None:
    ask = Ask()
    with Endpoint() as endpoint, create(tmp_path, operators=("change@m",), models=(model(endpoint.url),)) as store:
        search_with(store, llm_of(store, ask))
    lengths = [len(c.history) for c in ask.contexts]
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 39
    assert {t.verdict for t in ask.contexts[-1].history} >= {Verdict.OK, Verdict.WRONG}
    told = ask.contexts[-1].history[0]
    assert (told.operator, told.parent_speedup) == ("change", 1.0)


def test_answers_without_a_new_source_are_trials_with_a_verdict(tmp_path: Path) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        kinds = (
            Reply(text="I would rather not."),
            Reply(text="GENES=(1, 2, 3)"),
            Reply(text="GENES=(", finish="length"),
        )
        return kinds[number % 3]

    with Endpoint(script) as endpoint:
        outcome = run(tmp_path, model(endpoint.url), operators=("change@m",), budget=9)
    assert outcome.spent == 9
    made = [t.evaluation for t in trials(tmp_path)[1:]]
    assert made[0].verdict is Verdict.REJECTED and made[0].message == "no genes in the answer"
    assert made[1].stage != "answer"
    assert made[2].verdict is Verdict.REJECTED
    assert made[2].message.startswith("the answer was cut off after 20 tokens")
    repeated = made[4]
    assert (repeated.verdict, repeated.stage) == (Verdict.DUPLICATE, "answer")
    assert repeated.duplicate_of == made[1].candidate
    assert {m.stage for m in (made[0], made[2], made[4], made[7])} == {"answer"}
    assert len({m.candidate for m in made}) == 9


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((10, 100), "the answer was cut off after 100 tokens: it has to be shorter, or --models FILE to allow"),
        ((10, 20), "the answer was cut off after 20 tokens, before max_tokens: prompt and answer fill"),
        (None, "the answer was cut off: it has to be shorter"),
    ],
)
def test_what_cut_an_answer_off_is_said_and_the_next_prompt_says_it(
    tmp_path: Path, tokens: tuple[int, int] | None, words: str
) -> None:
    operator = Ask("change")
    with (
        Endpoint(lambda body, number: Reply(text="GENES=(", finish="length", tokens=tokens)) as endpoint,
        create(tmp_path, operators=("change@m",), models=(model(endpoint.url),), budget=2) as store,
    ):
        search_with(store, llm_of(store, operator))
    made = trials(tmp_path)[1].evaluation
    assert (made.verdict, made.stage) == (Verdict.REJECTED, "answer")
    assert made.message.startswith(words)
    assert operator.contexts[1].history[0].message == made.message


def test_a_failure_is_repaired_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Nothing but the seed is ever right, so each failure uses up its repairs."""

    class Failing(InstantEvaluator):
        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            return Evaluation(candidate.id, Verdict.COMPILE_ERROR, "compile", message=f"broken {candidate.id}")

    with Endpoint() as endpoint:
        run(
            tmp_path, model(endpoint.url), operators=("change@m", "mend@m"), budget=40, evaluator=Failing(), llm_slots=4
        )
    found = {t.index: t for t in trials(tmp_path)}
    repairs = [t for t in found.values() if t.proposal.operator == "mend@m"]
    assert repairs

    def first(trial: Trial) -> int:
        parent = found[trial.proposal.parents[0]]
        return first(parent) if parent.proposal.operator == "mend@m" else parent.index

    assert max(Counter(map(first, repairs)).values()) <= REPAIRS
    prompts = [
        json.loads(row["request"])["messages"][-1]["text"] for row in calls(tmp_path) if "mend" in row["operator"]
    ]
    assert all("compile_error broken" in text for text in prompts)


def test_what_is_mended_is_not_repaired_again(tmp_path: Path) -> None:
    class OneFault(InstantEvaluator):
        """The first child is wrong, all others are as good as the seed."""

        faulty = ""

        def prepare(self) -> Evaluation:
            return InstantEvaluator().prepare()

        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            self.faulty = self.faulty or candidate.id
            if candidate.id == self.faulty:
                return Evaluation(candidate.id, Verdict.WRONG, "verify", message="wrong")
            return dataclasses.replace(self.prepare(), candidate=candidate.id)

    with Endpoint(lambda body, number: Reply(text=f"GENES=({number}, 1, 1)")) as endpoint:
        run(tmp_path, model(endpoint.url), operators=("change@m", "mend@m"), budget=12, evaluator=OneFault())
    repairs = [t for t in trials(tmp_path) if t.proposal.operator == "mend@m"]
    assert [t.proposal.parents for t in repairs] == [(1,)]
    assert repairs[0].evaluation.verdict is Verdict.OK


@pytest.mark.parametrize("slots", [1, 8])
def test_the_limit_on_tokens_holds_and_ends_the_run(tmp_path: Path, slots: int) -> None:
    kinds = (Reply(), error(500, "oops"), Reply(body=b"{"), Reply(drop=True), Reply(text=""))
    with Endpoint(lambda body, number: kinds[number % 5]) as endpoint:
        outcome = run(tmp_path, model(endpoint.url, attempts=9), max_tokens=20_000, budget=10_000, llm_slots=slots)
        assert outcome.reason == "limit on tokens or dollars reached"
        assert 0 < outcome.spent < 100
        assert endpoint.billed <= 20_000
    limits = ModelBudget(20_000)
    with resume(tmp_path) as store:
        outcome = search_with(store, llm_of(store, limits=limits))
        assert outcome.reason == "limit on tokens or dollars reached"
    assert endpoint.billed <= limits.tokens <= 20_000


def test_dollars_are_limited_too(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        outcome = run(tmp_path, model(endpoint.url, usd_in=1000.0, usd_out=1000.0), max_usd=1.0, budget=1000)
        assert outcome.reason == "limit on tokens or dollars reached"
        assert 0.3 < endpoint.billed * 1000 / 1e6 <= 1.0


def test_without_models_that_answer_the_rules_go_on(tmp_path: Path) -> None:
    with Endpoint(in_turn(error(500, "oops"))) as endpoint:
        outcome = run(tmp_path, model(endpoint.url, attempts=2), operators=("mutate", "change@m"), budget=15)
        assert outcome.reason == "budget spent"
        assert {t.proposal.operator for t in trials(tmp_path)} == {"seed", "mutate"}
        with RunReader(tmp_path) as found:
            assert sum(kind == "llm" and "oops" in text for kind, text, _ in found.events()) == 3
        outcome = run(tmp_path / "alone", model(endpoint.url, attempts=2), operators=("change@m",))
        assert (outcome.reason, outcome.spent) == ("no model answers", 0)


def test_a_fault_ends_the_run_and_resume_asks_again(tmp_path: Path) -> None:
    with Endpoint(in_turn(Reply(), Reply(), error(401, "who are you"), Reply())) as endpoint:
        with pytest.raises(LlmError, match="refuses: Error code: 401 - who are you"):
            run(tmp_path, model(endpoint.url), operators=("change@m",), budget=5)
        assert len(trials(tmp_path)) == 3
        with resume(tmp_path) as store:
            assert search_with(store, llm_of(store)).spent == 5


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_models_are_kept_as_busy_as_allowed(tmp_path: Path) -> None:
    barrier = threading.Barrier(16, timeout=30)

    def script(body: dict[str, Any], number: int) -> Reply:
        if number < 16:
            barrier.wait()  # passes only if sixteen questions are under way
        return Reply()

    with Endpoint(script) as endpoint:
        run(tmp_path, model(endpoint.url), budget=60, llm_slots=16, workers=2, operators=("change@m",))
        assert endpoint.most_flying == 16
    with Endpoint(in_turn(Reply(delay_s=0.02))) as endpoint:
        run(tmp_path / "few", model(endpoint.url, concurrency=3), budget=20, llm_slots=16, operators=("change@m",))
        assert endpoint.most_flying <= 3
    assert max(t.proposal.cost.get("stale", 0) for t in trials(tmp_path)) > 0
    assert len(trials(tmp_path)) == 61


def test_evaluations_go_on_while_models_think(tmp_path: Path) -> None:
    """The model answers when ten candidates of the rules are evaluated, which needs the lanes to be independent."""
    enough = threading.Event()

    class Counting(InstantEvaluator):
        seen = 0

        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            self.seen += 1
            if self.seen >= 10:
                enough.set()
            return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    def script(body: dict[str, Any], number: int) -> Reply:
        assert enough.wait(30)
        return Reply()

    with Endpoint(script) as endpoint:
        run(tmp_path, model(endpoint.url), operators=("mutate", "change@m"), budget=40, workers=2, llm_slots=2,
            evaluator=Counting())  # fmt: skip
    answered = [t for t in trials(tmp_path) if t.proposal.operator == "change@m"]
    assert answered and max(t.proposal.cost["stale"] for t in answered) >= 9


def test_models_answer_while_evaluations_go_on(tmp_path: Path) -> None:
    """The first evaluation ends when eight questions were asked."""
    endpoint = Endpoint()

    class Slow(InstantEvaluator):
        def prepare(self) -> Evaluation:
            return InstantEvaluator().prepare()

        def evaluate(
            self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
        ) -> Evaluation:
            deadline = time.monotonic() + 30
            while len(endpoint.requests) < 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    with endpoint:
        run(tmp_path, model(endpoint.url), operators=("change@m",), budget=12, workers=1, llm_slots=8, evaluator=Slow())
        assert len(endpoint.requests) >= 12


# --- replay ----------------------------------------------------------------------------------------------------------


def recorded(folder: Path, budget: int = 30) -> None:
    kinds = (Reply(), Reply(), error(503, "busy"), Reply(), Reply(text="no"))
    with Endpoint(lambda body, number: kinds[number % 5]) as endpoint:
        run(folder, model(endpoint.url), operators=OPERATORS, budget=budget)


def test_a_replay_reproduces_every_decision(tmp_path: Path) -> None:
    recorded(tmp_path / "a")
    models = read_models([f"replay:{tmp_path / 'a'}"], None)
    assert [(m.name, m.provider, m.max_tokens) for m in models] == [("m", "replay", 100)]
    run(tmp_path / "b", *models, operators=OPERATORS, budget=30)
    assert decisions(tmp_path / "b") == decisions(tmp_path / "a")
    assert any(row["model"] for row in calls(tmp_path / "b"))


def test_answers_in_a_file_are_as_good_as_a_store(tmp_path: Path) -> None:
    recorded(tmp_path / "a")
    with RunReader(tmp_path / "a") as found:
        lines = [json.dumps(row) for row in found.answers()]
    (tmp_path / "calls.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(tmp_path / "b", *read_models([f"replay:{tmp_path / 'calls.jsonl'}"], None), operators=OPERATORS, budget=30)
    assert decisions(tmp_path / "b") == decisions(tmp_path / "a")


@pytest.mark.parametrize(
    ("bill", "cost"),
    [
        ({"tokens_in": 10, "tokens_out": 20}, {"tokens_in": 10, "tokens_out": 20}),
        ({"tokens_in": 10}, {}),
        ({"tokens_out": 20, "usd": 0.5}, {}),
    ],
)
def test_answers_in_a_file_may_lack_parts_of_their_bill(
    tmp_path: Path, bill: dict[str, float], cost: dict[str, float]
) -> None:
    recorded(tmp_path / "a", budget=3)
    billed = ("tokens_in", "tokens_out", "usd")
    with RunReader(tmp_path / "a") as found:
        rows = [{k: v for k, v in row.items() if k not in billed} | bill for row in found.answers()]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    models = read_models([f"replay:{tmp_path / 'answers.jsonl'}"], None)
    run(tmp_path / "b", *models, operators=OPERATORS, budget=3)
    asked = [t for t in trials(tmp_path / "b") if "@" in t.proposal.operator]
    assert asked
    assert all({k: v for k, v in t.proposal.cost.items() if k in billed} == cost for t in asked)


class Whole(Ask):
    """Takes the whole answer for a source, as the answers of models are."""

    def read(self, answer: str, parents: Sequence[Parent]) -> Draft | Unreadable:
        return Draft(answer, answer.splitlines()[-1], {"hint:none": 1}, {"code": (0, len(answer))})


def test_a_run_goes_on_where_an_answer_is_not_utf_8_and_its_replay_finds_the_same(tmp_path: Path) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        if number == 1:
            return error(503, "busy \ud800")
        text = f"{SEED_SOURCE}half = '{number} \ud800'\n"
        return Reply(text=text, finish="stopped \ud800", message={"reasoning": "why \ud800"})

    def asked(folder: Path, *models: Model) -> Any:
        with create(folder, operators=("change@m",), models=models, budget=4) as store:
            return search_with(store, llm_of(store, Whole()))

    with Endpoint(script) as endpoint:
        assert asked(tmp_path / "a", model(endpoint.url)).spent == 4
    made = trials(tmp_path / "a")[1:]
    rows = calls(tmp_path / "a")
    assert [t.proposal.candidate.source for t in made] == [row["answer"] for row in rows]
    assert made[0].proposal.candidate.source.endswith("half = '0 \\ud800'\n")
    assert (rows[0]["finish"], rows[0]["reasoning"]) == ("stopped \\ud800", "why \\ud800")
    asked(tmp_path / "b", *read_models([f"replay:{tmp_path / 'a'}"], None))
    assert decisions(tmp_path / "b") == decisions(tmp_path / "a")


def test_a_prompt_that_was_never_answered_is_named(tmp_path: Path) -> None:
    recorded(tmp_path / "a", budget=10)
    models = read_models([f"replay:{tmp_path / 'a'}"], None)
    with pytest.raises(LlmError, match=r"expected an answer of m to prompt [0-9a-f]{64} \((change|mend|cross)@m\)"):
        run(tmp_path / "b", *models, operators=OPERATORS, budget=10, seed=1)


# --- mailbox ---------------------------------------------------------------------------------------------------------


def answer_mail(folder: Path, stop: threading.Event) -> None:
    """An agent that answers what it finds, first half, then whole, then in place."""
    while not stop.is_set():
        for request in folder.glob("*.request.md"):
            stem = request.name.removesuffix(".request.md")
            answer = folder / f"{stem}.answer.md"
            if not answer.exists():
                text = re.search(r"## user\n\n`+\n(.*?)\n`+\n", request.read_text(encoding="utf-8"), re.S)
                assert text is not None
                draft = folder / f"{stem}.draft.md"
                draft.write_text("half of the ans", encoding="utf-8")
                draft.write_text(answer_to(text.group(1)), encoding="utf-8")
                draft.rename(answer)
        time.sleep(0.02)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from evo.llm import mailbox

    monkeypatch.setattr(mailbox.MailboxProvider.__init__, "__kwdefaults__", {"poll_s": 0.02, "settle_s": 0.04})
    stop = threading.Event()
    box = tmp_path / "box"
    box.mkdir()
    thread = threading.Thread(target=answer_mail, args=(box, stop))
    yield box, thread
    stop.set()
    if thread.is_alive():
        thread.join()


def test_a_mailbox_is_answered_by_whoever_reads_it(tmp_path: Path, agent: Any) -> None:
    box, thread = agent
    thread.start()
    outcome = run(tmp_path / "run", Model("m", f"mailbox:{box}"), budget=8)
    assert outcome.spent == 8
    assert all(t.evaluation.stage != "answer" for t in trials(tmp_path / "run"))
    assert len(list(box.glob("*.request.md"))) == len(list(box.glob("*.answer.md"))) == 8
    assert [row["tokens_in"] for row in calls(tmp_path / "run")] == [None] * 8
    with Endpoint() as endpoint:  # the same answers come from an endpoint, so the same run
        run(tmp_path / "same", model(endpoint.url), budget=8)
    assert facts(tmp_path / "same")["sources"] == facts(tmp_path / "run")["sources"]


def test_the_request_that_is_waited_for_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = MailboxProvider(Model("m", f"mailbox:{tmp_path}"), poll_s=0.01, settle_s=0.02)
    request = Request(7, "mutate", Prompt("mutate", (Message("user", "a question"),)))

    async def asked(*, answered: bool) -> ModelAnswer:
        waiting = asyncio.create_task(box.ask(request))
        await asyncio.sleep(0.1)
        if not answered:
            (question,) = tmp_path.glob("*.request.md")
            question.with_name(question.name.replace("request", "answer")).write_text("an answer", encoding="utf-8")
        return await waiting

    assert asyncio.run(asked(answered=False)).text == "an answer"
    name = f"0007-{request.prompt.hash[:8]}"
    said = f"waiting for an answer to {tmp_path}/{name}.request.md, which says how to give it\n"
    assert capsys.readouterr().err == said
    assert asyncio.run(asked(answered=True)).text == "an answer"
    assert capsys.readouterr().err == ""


def test_stopping_does_not_wait_for_mail_and_resume_takes_it_up(tmp_path: Path, agent: Any) -> None:
    box, thread = agent
    stop = threading.Event()
    with create(tmp_path / "run", operators=("change@m",), models=(Model("m", f"mailbox:{box}"),), budget=5) as store:
        threading.Timer(0.5, stop.set).start()
        assert search_with(store, llm_of(store), stop=stop.is_set).reason == "interrupted"
    (request,) = box.glob("*.request.md")
    before = request.read_text(encoding="utf-8")
    thread.start()
    with resume(tmp_path / "run") as store:
        assert search_with(store, llm_of(store)).spent == 5
    assert request.read_text(encoding="utf-8") == before
    assert len(list(box.glob("*.request.md"))) == len(calls(tmp_path / "run")) == 5


@pytest.mark.parametrize("screened", [1, 4])  # source as it was answered, then its settings
def test_stopping_does_not_wait_for_an_answer_to_be_tuned_and_resume_reads_it(tmp_path: Path, screened: int) -> None:
    stop = threading.Event()

    class Stopping(MoreWarps):
        calls = 0

        def screen(self, sources: Sequence[str]) -> list[float | None]:
            self.calls += 1
            if self.calls == screened:
                stop.set()
            return super().screen(sources)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with Endpoint() as endpoint:
        run(whole, model(endpoint.url), evaluator=MoreWarps(), budget=5)
        asked = len(endpoint.requests)
        with create(parts, operators=MODEL_OPERATORS, models=(model(endpoint.url),), budget=5) as store:
            assert search_with(store, llm_of(store), Stopping(), stop=stop.is_set).reason == "interrupted"
        with resume(parts) as store:
            assert search_with(store, llm_of(store), MoreWarps()).spent == 5
        assert len(endpoint.requests) == 2 * asked
    assert decisions(parts) == decisions(whole)


# --- kill -9 ---------------------------------------------------------------------------------------------------------


def test_kill_9_loses_no_answer_and_changes_no_decision(tmp_path: Path) -> None:
    rng, budget = random.Random(4), 40
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with Endpoint(in_turn(Reply(delay_s=0.01))) as endpoint:

        def start(folder: Path) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tests.llm_run", str(folder), endpoint.url, str(budget)]
            return subprocess.Popen(command, cwd=ROOT)

        assert start(whole).wait(120) == 0
        uninterrupted = len(endpoint.requests)
        interrupted = 0
        for _ in range(4):
            before = len(endpoint.requests)
            process = start(killed)
            while len(endpoint.requests) < before + 4:
                time.sleep(0.002)
                assert process.poll() is None
            time.sleep(rng.uniform(0.0, 0.03))
            process.send_signal(signal.SIGKILL)
            interrupted += process.wait() == -signal.SIGKILL
        assert start(killed).wait(120) == 0
        assert interrupted == 4, "the kills did not fall into the run"
        again = len(endpoint.requests) - uninterrupted
    rows = calls(killed)
    assert decisions(killed)["proposals"] == decisions(whole)["proposals"]
    assert decisions(killed)["sources"] == decisions(whole)["sources"]
    assert all(row["answer"] and row["trial"] for row in rows)
    # What was sent again is what a kill caught without its answer, at most one question a kill.
    assert again - len(rows) <= sum(row["attempts"] - 1 for row in rows) <= interrupted


def test_stored_answers_are_used_first(tmp_path: Path) -> None:
    """As a kill leaves them: answered, and no proposal yet."""
    with Endpoint() as endpoint:
        run(tmp_path / "whole", model(endpoint.url), budget=10)
        run(tmp_path / "cut", model(endpoint.url), budget=10)
        with closing(sqlite3.connect(tmp_path / "cut" / "run.sqlite")) as db, db:
            db.execute("UPDATE llm_calls SET trial = NULL, spans = NULL WHERE trial = 10")
            db.execute("DELETE FROM evaluations WHERE trial = 10")
            db.execute("DELETE FROM proposals WHERE trial = 10")
            db.execute("DELETE FROM sources WHERE candidate NOT IN (SELECT candidate FROM proposals)")
        sent = len(endpoint.requests)
        with resume(tmp_path / "cut") as store:
            assert search_with(store, llm_of(store)).spent == 10
        assert len(endpoint.requests) == sent
    assert decisions(tmp_path / "cut") == decisions(tmp_path / "whole")


# --- strategies ------------------------------------------------------------------------------------------------------


def test_an_answer_is_judged_with_its_parameters_tuned(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        run(tmp_path / "tuned", model(endpoint.url), evaluator=MoreWarps(), workers=1, budget=6)
        run(tmp_path / "plain", model(endpoint.url), evaluator=MoreWarps(), workers=1, budget=6, tune_budget=0)
    tuned = [t for t in trials(tmp_path / "tuned") if t.proposal.cost.get("tuned")]
    assert tuned
    for trial in tuned:
        assert trial.proposal.note.endswith("; parameters tuned")
        assert 0 < trial.proposal.cost["screened"] <= 12
    assert max(int(w) for t in tuned for w in re.findall(r"num_warps=(\d+)", t.proposal.candidate.source)) > 4
    assert all("num_warps=4" in t.proposal.candidate.source for t in trials(tmp_path / "plain"))


def test_best_of_n_samples_the_seed_and_tells_nothing_of_the_others(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        outcome = run(tmp_path, model(endpoint.url), strategy="best-of-n", operators=("change@m",), budget=6)
    assert outcome.spent == 6
    assert {t.proposal.parents for t in trials(tmp_path)[1:]} == {(0,)}
    assert all("; 0 tries before;" in call["request"] for call in calls(tmp_path))


def test_tritonforge_is_one_path_that_the_arbiter_ends(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        outcome = run(
            tmp_path, model(endpoint.url), strategy="tritonforge", operators=("change@m",), workers=1, budget=40
        )
    assert outcome.reason is StopReason.STRATEGY and outcome.text.startswith("the arbiter ended the path after")
    assert 3 <= outcome.spent <= 8
    best = 0
    for trial in trials(tmp_path)[1:]:
        assert trial.proposal.parents[0] <= best
        best = max(best, trial.index)


def test_a_resumed_path_is_not_taken_up_after_its_end(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        settings = {"strategy": "tritonforge", "operators": ("change@m",), "workers": 1, "budget": 40}
        first = run(tmp_path, model(endpoint.url), **settings)
        with resume(tmp_path) as store:
            again = search_with(store, llm_of(store))
    assert (again.reason, again.spent) == (first.reason, first.spent)

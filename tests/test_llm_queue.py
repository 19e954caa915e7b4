"""evo.llm.queue and evo.llm.client, against a real server."""

from __future__ import annotations

import queue
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.benchmarks.endpoint import Endpoint, Reply, answer_to
from evo.core.errors import ConfigError
from evo.core.models import Bill, Model
from evo.llm import queue as queue_module
from evo.llm.base import LlmError
from evo.llm.budget import TEMPLATE_TOKENS, ModelBudget
from evo.llm.queue import FAILURES, ModelQueue, open_model_queue
from evo.storage.model_calls import CallLog, ModelCall, Question
from evo.storage.queries import RunReader
from operators.llm.base import Message, Prompt
from tests.engine_support import create
from tests.llm_endpoint import KEY, error, in_turn

MAX_TOKENS = 100
PROMPT = "better genes, please"
MOST = len(PROMPT) + TEMPLATE_TOKENS + MAX_TOKENS  # that one request can be billed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not wait for seconds between two attempts."""
    monkeypatch.setattr(queue_module, "BACKOFF_S", 0.01)


class Asked:
    """A queue on a fresh store, and the calls it delivered."""

    def __init__(self, model_queue: ModelQueue, folder: Path) -> None:
        self.queue, self.folder = model_queue, folder
        self.inbox: queue.SimpleQueue[ModelCall] = queue.SimpleQueue()
        self.left = model_queue.start(self.inbox.put)

    def submit(self, text: str = PROMPT, model: str = "m") -> bool:
        prompt = Prompt("change", (Message("user", text),))
        return self.queue.submit(Question(f"change@{model}", prompt, (0,), 0, 1))

    def take(self) -> ModelCall:
        call = self.inbox.get(timeout=60)
        self.queue.collected(call)
        return call

    def ask(self, text: str = PROMPT) -> ModelCall:
        assert self.submit(text)
        return self.take()

    def rows(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.folder / "run.sqlite")) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute("SELECT * FROM llm_calls ORDER BY call")]


@contextmanager
def asking(
    folder: Path, endpoint: Endpoint | str, *, limits: ModelBudget | None = None, drop: bool = False, **settings: Any
) -> Iterator[Asked]:
    url = endpoint if isinstance(endpoint, str) else endpoint.url
    model = Model("m", url, **{"max_tokens": MAX_TOKENS, "timeout_s": 20.0, "attempts": 3, **settings})
    if not (folder / "run.sqlite").exists():
        create(folder).close()
    model_queue = open_model_queue(folder, [model], {"OPENAI_API_KEY": KEY}, limits or ModelBudget(), 16)
    try:
        yield Asked(model_queue, folder)
    finally:
        model_queue.close(drop=drop)


def test_an_answer_is_stored_with_its_question_and_its_bill(tmp_path: Path) -> None:
    reply = Reply(message={"reasoning_content": "first I thought"})
    with Endpoint(in_turn(reply)) as endpoint, asking(tmp_path, endpoint, usd_in=1.0, usd_out=10.0) as asked:
        call = asked.ask()
        assert call.answer is not None and call.answer.bill is not None
        assert (call.number, call.error, call.answer.text) == (1, "", answer_to(PROMPT))
        assert call.answer.bill.usd == pytest.approx((10 * 1.0 + 20 * 10.0) / 1e6)
        (row,) = asked.rows()
        assert row["answer"] == answer_to(PROMPT)
        assert (row["reasoning"], row["finish"], row["tokens_in"], row["tokens_out"]) == (
            "first I thought",
            "stop",
            10,
            20,
        )
        assert (row["attempts"], row["unsettled"], row["trial"]) == (1, 0, None)
        assert row["request"] == (
            '{"messages": [{"role": "user", "text": "better genes, please"}], '
            '"parameters": {"model": "m", "max_tokens": 100}}'
        )
        assert endpoint.keys == [f"Bearer {KEY}"]


def test_the_question_is_stored_before_it_is_sent(tmp_path: Path) -> None:
    seen: list[int] = []

    def script(body: dict[str, Any], number: int) -> Reply:
        with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
            seen.extend(n for (n,) in db.execute("SELECT unsettled FROM llm_calls WHERE answer IS NULL"))
        return Reply()

    with Endpoint(script) as endpoint, asking(tmp_path, endpoint) as asked:
        asked.ask()
    assert seen == [1]


PASSING = {
    "429": error(429, "slow down"),
    "500": error(500, "oops"),
    "503": Reply(503, body=b"<html>busy</html>", headers={"content-type": "text/html"}, tokens=None),
}
UNKNOWN = {
    "malformed JSON": Reply(body=b'{"id": "1", "choices": [{"mess'),
    "another kind of body": Reply(body=b"<html>", headers={"content-type": "text/html"}),
    "no choices": Reply(body=b'{"id": "1", "choices": []}'),
    "null": Reply(body=b"null"),
    "dropped": Reply(drop=True),
    "cut off": Reply(body=b'{"id"', headers={"content-length": "1000", "connection": "close"}),
    "slow": Reply(delay_s=1.0),
    "504": error(504, "gateway time-out"),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_refusal_that_passes_is_tried_again_and_costs_nothing(tmp_path: Path, name: str) -> None:
    limits = ModelBudget()
    with Endpoint(in_turn(PASSING[name], Reply())) as endpoint, asking(tmp_path, endpoint, limits=limits) as asked:
        call = asked.ask()
        assert call.answer is not None and call.answer.text == answer_to(PROMPT)
        (row,) = asked.rows()
        assert (row["attempts"], row["unsettled"], row["tokens_in"], row["tokens_out"]) == (2, 0, 10, 20)
        assert limits.tokens == 30


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_attempt_without_a_bill_counts_as_its_reservation(tmp_path: Path, name: str) -> None:
    limits = ModelBudget()
    with (
        Endpoint(in_turn(UNKNOWN[name], Reply())) as endpoint,
        asking(tmp_path, endpoint, limits=limits, timeout_s=0.5) as asked,
    ):
        call = asked.ask()
        assert call.answer is not None and call.answer.text == answer_to(PROMPT)
        (row,) = asked.rows()
        assert (row["attempts"], row["unsettled"], row["tokens_in"]) == (2, 1, 10)
        assert limits.tokens == MOST + 30
    again = ModelBudget()  # a resumed run counts the same
    with asking(tmp_path, endpoint, limits=again):
        assert again.tokens == MOST + 30


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_is_down_bills_nothing(tmp_path: Path, stream: bool) -> None:
    limits = ModelBudget()
    with Endpoint() as endpoint:
        url = endpoint.url
    with asking(tmp_path, url, limits=limits, stream=stream) as asked:
        call = asked.ask()
        assert "Connection error" in call.error
        (row,) = asked.rows()
        assert (row["attempts"], row["unsettled"], row["tokens_in"], limits.tokens) == (3, 0, 0, 0)


def test_an_endpoint_that_trickles_is_given_up(tmp_path: Path) -> None:
    """Each byte comes within the time-out, the whole answer never does."""
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with asking(tmp_path, url, timeout_s=0.6, attempts=1) as asked:
            assert asked.submit()
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n")
                while asked.inbox.empty():
                    time.sleep(0.1)
                    with suppress(OSError):  # it hung up
                        connection.sendall(b" ")
                call = asked.take()
            assert call.error == "no whole answer within 0.6 s"


def test_retry_after_is_obeyed_by_all_conversations(tmp_path: Path) -> None:
    wait = error(429, "slow down")
    replies = in_turn(Reply(429, body=wait.body, tokens=None, headers={"retry-after": "0.7"}), Reply())
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint) as asked:
        asked.submit("first")
        while not (endpoint.requests and asked.queue._not_before):
            time.sleep(0.001)
        asked.submit("second")
        calls = [asked.take(), asked.take()]
        assert all(c.answer for c in calls)
        assert all(t - endpoint.times[0] >= 0.69 for t in endpoint.times[1:])


def test_an_empty_answer_is_asked_for_again_and_paid_for(tmp_path: Path) -> None:
    limits = ModelBudget()
    replies = in_turn(Reply(text=" \n"), Reply(text="<think>so so</think>GENES"))
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint, limits=limits) as asked:
        call = asked.ask()
        assert call.answer is not None and call.answer.bill is not None
        assert (call.answer.text, call.answer.reasoning) == ("GENES", "so so")
        assert (call.answer.bill.tokens_in, call.answer.bill.tokens_out) == (20, 40)
        assert limits.tokens == 60


def test_a_truncated_answer_is_an_answer(tmp_path: Path) -> None:
    with Endpoint(in_turn(Reply(text="", finish="length"))) as endpoint, asking(tmp_path, endpoint) as asked:
        call = asked.ask()
        assert call.answer is not None and call.answer.finish == "length"
        assert len(endpoint.requests) == 1


@pytest.mark.parametrize("content", [7, ["text"], {"text": "hello"}])
def test_an_answer_that_is_no_text_is_asked_for_again(tmp_path: Path, content: Any) -> None:
    replies = in_turn(Reply(message={"content": content}), Reply())
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint) as asked:
        assert asked.ask().answer is not None
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "message",
    [
        "request (60013 tokens) exceeds the available context size (16384 tokens), try increasing it",  # llama.cpp
        "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens",  # vLLM
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",  # SGLang
    ],
)
def test_a_prompt_that_does_not_fit_is_one_failed_call_and_costs_nothing(tmp_path: Path, message: str) -> None:
    limits = ModelBudget()
    replies = in_turn(error(400, message), Reply())
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint, limits=limits) as asked:
        call = asked.ask()
        assert call.answer is None and call.fault is None
        assert message in call.error
        assert (len(endpoint.requests), limits.tokens) == (1, 0)
        assert asked.ask("a shorter one").answer is not None


def test_each_request_has_a_connection_of_its_own(tmp_path: Path) -> None:
    """llama.cpp's server closes a kept one without a word, so that a streamed request was lost now and then."""
    with Endpoint() as endpoint, asking(tmp_path, endpoint) as asked:
        for _ in range(3):
            assert asked.ask().answer is not None
        assert len(set(endpoint.clients)) == 3


def test_after_all_attempts_the_error_is_told(tmp_path: Path) -> None:
    with Endpoint(in_turn(error(500, "oops"))) as endpoint, asking(tmp_path, endpoint) as asked:
        call = asked.ask()
        assert call.answer is None and call.fault is None
        assert "oops" in call.error
        assert len(endpoint.requests) == 3
        assert asked.rows()[0]["error"] == call.error
        for _ in range(FAILURES - 1):
            assert asked.queue.free() == ["m"]
            asked.ask()
        assert asked.queue.free() == []
        assert asked.queue.ended == "no model answers"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(401, f"Incorrect API key provided: {KEY}"), "put a key into EVO_API_KEY_M or OPENAI_API_KEY"),
        (error(404, "The model does not exist"), "does not exist"),
        (error(400, "this is not how to ask"), "this is not how to ask"),
        (Reply(400, body=b'{"detail":"Server is pinned to \'tiny\'"}', tokens=None), "Server is pinned to 'tiny'"),
        (error(429, "You exceeded your current quota", code="insufficient_quota"), "exceeded your current quota"),
    ],
)
def test_what_waiting_does_not_mend_is_a_fault_without_the_key(tmp_path: Path, reply: Reply, words: str) -> None:
    with Endpoint(in_turn(reply)) as endpoint, asking(tmp_path, endpoint) as asked:
        call = asked.ask()
        assert isinstance(call.fault, LlmError)
        assert words in call.error and KEY not in call.error
        assert len(endpoint.requests) == 1
    assert KEY.encode() not in b"".join(p.read_bytes() for p in tmp_path.iterdir())


def test_a_reasoning_model_gets_the_parameters_it_takes(tmp_path: Path) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        for name, words in (
            ("max_tokens", "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
            ("temperature", "Unsupported value: 'temperature' does not support 0.5 with this model."),
        ):
            if name in body:
                return error(400, words)
        return Reply()

    settings = {"temperature": 0.5, "reasoning_effort": "high", "sent_as": "gpt-think"}
    with Endpoint(script) as endpoint, asking(tmp_path, endpoint, **settings) as asked:
        assert asked.ask().answer is not None
        assert asked.ask("another").answer is not None
        *_, third, fourth = endpoint.requests
        for body in (third, fourth):
            body.pop("messages")
            assert body == {"model": "gpt-think", "max_completion_tokens": MAX_TOKENS, "reasoning_effort": "high"}
        assert len(endpoint.requests) == 4  # it is learnt once


def test_a_stream_is_the_answer_that_it_brings_in_parts(tmp_path: Path) -> None:
    limits = ModelBudget()
    replies = in_turn(Reply(finish="length", message={"reasoning_content": "first I thought"}))
    with (
        Endpoint(replies) as endpoint,
        asking(tmp_path, endpoint, stream=True, limits=limits, usd_in=1.0, usd_out=10.0) as asked,
    ):
        answer = asked.ask().answer
        assert answer is not None and answer.bill is not None
        assert (answer.text, answer.reasoning, answer.finish) == (answer_to(PROMPT), "first I thought", "length")
        assert (answer.bill.tokens_in, answer.bill.tokens_out, limits.tokens) == (10, 20, 30)
        assert answer.bill.usd == pytest.approx((10 * 1.0 + 20 * 10.0) / 1e6)
        sent = endpoint.requests[0]
        assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
        assert '"stream": true' in asked.rows()[0]["request"]


def test_a_stream_that_does_not_say_what_it_used_stays_charged_with_the_most(tmp_path: Path) -> None:
    limits = ModelBudget()
    with (
        Endpoint(in_turn(Reply(tokens=None))) as endpoint,
        asking(tmp_path, endpoint, stream=True, limits=limits) as asked,
    ):
        answer = asked.ask().answer
        assert answer is not None and (answer.text, answer.bill) == (answer_to(PROMPT), None)
        assert (asked.rows()[0]["unsettled"], limits.tokens) == (1, MOST)


def sse(*events: str, done: bool = False) -> Reply:
    data = "".join(f"data: {event}\n\n" for event in (*events, *(["[DONE]"] if done else [])))
    return Reply(body=data.encode(), headers={"content-type": "text/event-stream"}, tokens=None)


def test_a_stream_may_end_without_a_last_word(tmp_path: Path) -> None:
    """As `transformers serve` 5.24 sends it: no [DONE], and the usage is in the part with the finish_reason."""
    head = '{"id":"16bb","created":1795549186,"model":"m","object":"chat.completion.chunk","system_fingerprint":"",'
    parts = (
        '"choices":[{"delta":{"role":"assistant"},"index":0}]}',
        '"choices":[{"delta":{"content":" M"},"index":0}]}',
        '"choices":[{"delta":{"content":"ex"},"index":0}]}',
        '"choices":[{"delta":{},"index":0,"finish_reason":"length"}],'
        '"usage":{"completion_tokens":2,"prompt_tokens":16,"total_tokens":18}}',
    )
    replies = in_turn(sse(*(head + part for part in parts)))
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint, stream=True) as asked:
        answer = asked.ask().answer
        assert answer is not None and (answer.text, answer.finish) == (" Mex", "length")
        assert answer.bill == Bill(16, 2, None)


PART = '{"choices": [{"delta": {"content": "GENES"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
BROKEN = {
    "cut off": Reply(body=sse(PART).body, headers={"content-length": "1000", "connection": "close"}, tokens=None),
    "no end": sse(PART),
    "an error": sse(PART, '{"error": "out of memory"}'),
    "malformed JSON": sse(PART, '{"error": "no "memory""}'),
    "another kind of part": sse("7", '{"choices": [{}]}', '{"choices": {"0": null}}', '{"choices": [null]}'),
    "no stream": Reply(body=b'{"id": "1", "choices": []}', tokens=None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_asked_for_again_and_counts_as_its_reservation(tmp_path: Path, name: str) -> None:
    limits = ModelBudget()
    with (
        Endpoint(in_turn(BROKEN[name], Reply())) as endpoint,
        asking(tmp_path, endpoint, stream=True, limits=limits) as asked,
    ):
        call = asked.ask()
        assert call.answer is not None and call.answer.text == answer_to(PROMPT)
        assert (asked.rows()[0]["attempts"], asked.rows()[0]["unsettled"]) == (2, 1)
        assert limits.tokens == MOST + 30


@pytest.mark.parametrize("status", [400, 422])
def test_what_an_endpoint_does_not_know_is_left_out(tmp_path: Path, status: int) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        for name in ("stream_options", "reasoning_effort"):
            if name in body:
                return Reply(status, body=b'{"detail":"Unexpected fields: %s"}' % name.encode(), tokens=None)
        return Reply()

    with (
        Endpoint(script) as endpoint,
        asking(tmp_path, endpoint, stream=True, temperature=0.5, reasoning_effort="low") as asked,
    ):
        call = asked.ask()
        assert call.answer is not None and (call.answer.text, call.answer.bill) == (answer_to(PROMPT), None)
        assert len(endpoint.requests) == 3
        assert sorted(endpoint.requests[2]) == ["max_tokens", "messages", "model", "stream", "temperature"]


def test_limits_count_what_is_in_flight(tmp_path: Path) -> None:
    limits = ModelBudget(max_tokens=2 * MOST + 5)
    with Endpoint(in_turn(Reply(delay_s=0.1))) as endpoint, asking(tmp_path, endpoint, limits=limits) as asked:
        assert [asked.submit(), asked.submit(), asked.submit()] == [True, True, False]
        assert asked.queue.ended is None  # there is room again when those are settled
        asked.take()
        asked.take()
        assert limits.tokens == 60
        while asked.submit():
            asked.take()
        assert asked.queue.ended == "limit on tokens or dollars reached"
        assert endpoint.billed == limits.tokens <= 2 * MOST + 5
        assert limits.tokens + MOST > 2 * MOST + 5


def test_limits_hold_over_everything_that_can_go_wrong(tmp_path: Path) -> None:
    """The server bills every answer it made, also those that never arrived."""
    most = 40 * MOST
    kinds = [Reply(), *PASSING.values(), *UNKNOWN.values(), Reply(text=""), Reply(text="", finish="length")]
    full = [Reply(**{**vars(k), "tokens": (len(PROMPT) + 3, MAX_TOKENS)}) if k.tokens else k for k in kinds]
    limits = ModelBudget(max_tokens=most)
    with (
        Endpoint(lambda body, number: full[number * 7 % len(full)]) as endpoint,
        asking(tmp_path, endpoint, limits=limits, timeout_s=0.5, attempts=20) as asked,
    ):
        flying = 0
        while True:
            while asked.queue.busy < 16 and asked.submit(PROMPT[: len(PROMPT)]):
                flying += 1
            if not asked.queue.busy:
                break
            asked.take()
        assert endpoint.billed > 0
        asked.queue.close()
    assert endpoint.billed <= limits.tokens <= most


def test_closing_waits_for_what_is_paid_and_drops_what_waits(tmp_path: Path) -> None:
    replies = in_turn(Reply(delay_s=0.5), error(500, "oops"))
    with Endpoint(replies) as endpoint:
        with asking(tmp_path, endpoint) as asked:
            asked.submit("first")
            while not endpoint.requests:
                time.sleep(0.001)
            queue_module.BACKOFF_S = 60.0  # the fixture puts it back
            asked.submit("second")
            while asked.rows()[-1]["attempts"] != 1 or asked.rows()[-1]["unsettled"]:
                time.sleep(0.001)
        endpoint.script = in_turn(Reply())
        with asking(tmp_path, endpoint) as asked:
            assert len(asked.left) == 2
            calls = [asked.take(), asked.take()]
            assert sorted(c.number for c in calls) == [1, 2]
            assert all(c.answer for c in calls)
        assert [r["messages"][0]["content"] for r in endpoint.requests] == ["first", "second", "second"]


@pytest.mark.parametrize(
    ("environment", "url", "key"),
    [
        ({"OPENAI_API_KEY": "a", "EVO_API_KEY_M_1": "b"}, "https://x.example/v1", "b"),
        ({"OPENAI_API_KEY": "a"}, "https://x.example/v1", "a"),
        ({"OPENAI_API_KEY": "a"}, "http://localhost:8000/v1", "a"),
        ({"OPENAI_API_KEY": "a", "EVO_API_KEY_M_1": "b"}, "http://x.example/v1", "b"),
        ({}, "http://x.example/v1", ""),
    ],
)
def test_keys_come_from_the_environment(environment: dict[str, str], url: str, key: str) -> None:
    from evo.llm.client import find_key

    assert find_key(Model("m-1", url), environment) == key


def test_the_general_key_is_not_sent_in_clear_text() -> None:
    from evo.llm.client import find_key

    with pytest.raises(ConfigError, match=r"expected https: OPENAI_API_KEY would be sent in clear text to x\.example"):
        find_key(Model("m", "http://x.example/v1"), {"OPENAI_API_KEY": "a"})


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    create(tmp_path).close()
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "evo.llm.client", raising=False)
    with pytest.raises(ConfigError, match=r'\.venv/bin/pip install -e "\."'):
        open_model_queue(tmp_path, [Model("m", "http://localhost/v1")], {}, ModelBudget(), 1)


def test_uses_of_models_are_summed_up(tmp_path: Path) -> None:
    with Endpoint() as endpoint, asking(tmp_path, endpoint) as asked:
        asked.ask("one")
        asked.ask("two")
    with RunReader(tmp_path) as run:
        (use,) = run.models()
        assert (use.name, use.calls, use.answers, use.failed) == ("m", 2, 2, 0)
        assert (use.tokens_in, use.tokens_out, use.usd) == (20, 40, None)
        assert [a["answer"] for a in run.answers()] == [answer_to("one"), answer_to("two")]


def test_costs_are_unknown_if_those_of_one_answer_are(tmp_path: Path) -> None:
    replies = in_turn(error(500, "no"), Reply(tokens=None), Reply())
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint, usd_in=1.0, usd_out=10.0, attempts=1) as asked:
        for text in ("refused, which costs nothing", "not counted", "counted"):
            asked.ask(text)
    with RunReader(tmp_path) as run:
        (use,) = run.models()
        assert (use.answers, use.failed, use.tokens_in, use.tokens_out, use.usd) == (2, 1, None, None, None)


def test_costs_are_known_if_a_question_that_failed_cost_nothing(tmp_path: Path) -> None:
    replies = in_turn(error(500, "no"), Reply())
    with Endpoint(replies) as endpoint, asking(tmp_path, endpoint, usd_in=1.0, usd_out=10.0, attempts=1) as asked:
        asked.ask("refused, which costs nothing")
        asked.ask("counted")
    with RunReader(tmp_path) as run:
        (use,) = run.models()
        assert (use.failed, use.tokens_in, use.tokens_out, use.usd) == (1, 10, 20, pytest.approx(210 / 1e6))


def test_the_direction_of_a_question_is_stored_with_it(tmp_path: Path) -> None:
    """What answers in flight look in is known after a restart."""
    create(tmp_path).close()
    log = CallLog(tmp_path)
    directed = Prompt("change", (Message("user", "Look there."),), "Look there.")
    prompts = (directed, replace(directed, direction=""))
    numbers = [log.asked(Question("change@m", prompt, (0,), 0, 1), {}) for prompt in prompts]
    assert [log.call(n).question.prompt.direction for n in numbers] == ["Look there.", ""]
    assert [call.question.prompt.direction for call in log.open_calls()] == ["Look there.", ""]
    log.close()

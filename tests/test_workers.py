"""Workers that are lost: by hand-made workers, deterministic; `tests/test_pool.py` kills real ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from evo.core.errors import ConfigError, EvoError
from evo.core.records import Verdict
from fitness.cluster.workers import ATTEMPTS, Lost, WorkerPool
from fitness.frontend.stages import Stop


class Hand:
    """Answers with its place; is lost where it is told to `die`."""

    def __init__(self, place: str, lanes: int = 1) -> None:
        self.place, self.lanes = place, lanes
        self.stopped = threading.Event()

    def ask(self, method, *arguments):
        if method == "die" and (not arguments or self.place == arguments[0]):
            raise Lost("gone")
        if method == "stop":
            raise Stop("verify", Verdict.WRONG, "not equal")
        if method == "wait":
            arguments[0].wait(60)
        if method == "hold":
            self.stopped.wait(60)
            raise Lost("fired")
        return self.place

    def stop(self):
        self.stopped.set()


def pool_of(*places: str, lanes: int = 1) -> WorkerPool:
    return WorkerPool("record", {place: partial(Hand, place, lanes) for place in places})


def test_calls_spread_over_the_workers_and_answers_come_back():
    with ThreadPoolExecutor(4) as callers:
        workers, gate = pool_of("a", "b", lanes=2), threading.Barrier(4)
        answers = [callers.submit(workers.call, "wait", gate) for _ in range(4)]  # the barrier opens for four at once
        assert sorted(a.result(60) for a in answers) == ["a", "a", "b", "b"]


def test_a_verdict_goes_to_the_caller():
    with pytest.raises(Stop) as stop:
        pool_of("a").call("stop")
    assert stop.value.verdict is Verdict.WRONG


def test_a_lost_call_is_answered_elsewhere_and_the_place_is_filled_again():
    started: list[Hand] = []
    again = threading.Event()

    def start(place: str) -> Hand:
        started.append(Hand(place))
        if len(started) == 3:
            again.set()
        return started[-1]

    workers = WorkerPool("record", {place: partial(start, place) for place in "ab"})
    lost, other = "a", "b"
    assert {workers.call("die", lost) for _ in range(2)} == {other}
    assert again.wait(60)
    assert [hand.place for hand in started].count(lost) == 2
    assert next(hand for hand in started if hand.place == lost).stopped.is_set()


def test_a_call_that_brings_workers_down_ends_after_some():
    workers = pool_of("a", "b")
    with pytest.raises(Stop) as stop:
        workers.call("die")
    assert stop.value.verdict is Verdict.INFRASTRUCTURE
    assert stop.value.stage == "record"
    assert stop.value.message.count("gone") == ATTEMPTS
    assert workers.call("fine") in "ab"  # the next one is served


def test_where_nobody_is_left_and_nobody_comes_calls_say_so(caplog):
    def start() -> Hand:
        if started:
            raise Lost("the node is gone")
        started.append(Hand("a"))
        return started[0]

    started: list[Hand] = []
    workers = WorkerPool("record", {"a": start})
    with pytest.raises(EvoError, match="no worker is left for stage record; the last was lost: a: the node is gone"):
        workers.call("die")
    lost, given_up = caplog.messages
    assert lost == "stage record lost a worker, a: gone; what it held is done again"
    assert given_up.startswith("stage record goes on without the worker a: ")


@pytest.mark.parametrize("error", [Lost("no room"), ConfigError("no room"), Stop("verify", Verdict.WRONG, "no room")])
def test_all_places_must_be_filled_at_first(error):
    hand = Hand("a")

    def fails() -> Hand:
        raise error

    with pytest.raises(EvoError if isinstance(error, Lost) else type(error), match="no room"):
        WorkerPool("record", {"a": lambda: hand, "b": fails})
    assert hand.stopped.is_set()


def test_closing_ends_the_workers_and_frees_those_that_wait():
    hand = Hand("a")
    workers = WorkerPool("record", {"a": lambda: hand})
    with ThreadPoolExecutor(2) as callers:
        holding = callers.submit(workers.call, "hold")
        waiting = callers.submit(workers.call, "fine")
        workers.close()
        with pytest.raises(EvoError, match="closed"):
            holding.result(60)
        with pytest.raises(EvoError, match="closed"):
            waiting.result(60)
    assert hand.stopped.is_set()
    with pytest.raises(EvoError, match="closed"):
        workers.call("fine")


def test_everyone_is_asked_at_once():
    gate = threading.Barrier(3)  # opens for three at once
    answers = pool_of("a", "b", "c").everyone(lambda worker: (gate.wait(60), worker.ask("name"))[1])
    assert answers == {"a": "a", "b": "b", "c": "c"}
    with pytest.raises(Stop) as stop:
        pool_of("a", "b").everyone(lambda worker: worker.ask("stop"))
    assert stop.value.verdict is Verdict.WRONG


def test_who_is_lost_among_everyone_is_left_out_and_replaced():
    workers = pool_of("a", "b")
    assert workers.everyone(lambda worker: worker.ask("die", "a") and worker.place) == {"b": "b"}
    with workers._changed:
        assert workers._changed.wait_for(lambda: len(workers._members) == 2, 60)
    assert set(workers.everyone(lambda worker: worker.ask("name"))) == {"a", "b"}


def test_everyone_waits_for_a_worker_that_starts_and_says_if_none_is_left():
    started: list[Hand] = []

    def start() -> Hand:
        if len(started) == 2:
            raise EvoError("no third")
        started.append(Hand("a"))
        return started[-1]

    workers = WorkerPool("record", {"a": start})
    assert workers.everyone(lambda w: w.ask("die") if w is started[0] else w.ask("name")) == {"a": "a"}
    with pytest.raises(EvoError, match="no worker is left for stage record; the last was lost: no third"):
        workers.everyone(lambda worker: worker.ask("die"))
    closed = pool_of("a")
    closed.close()
    with pytest.raises(EvoError, match="the workers were closed"):
        closed.everyone(lambda worker: worker.ask("name"))

"""fitness.gpu.turn: real threads, no GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fitness.gpu.turn import ALONE, SHARED, Turn

SOON_S, LONG_S = 0.05, 10.0  # that nobody comes in; that somebody does


class Holder:
    """A thread that takes the turn and keeps it until it is told to leave."""

    def __init__(self, turn: Turn, way: str) -> None:
        self.has, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(turn, way), daemon=True)
        self._thread.start()

    def _hold(self, turn: Turn, way: str) -> None:
        with turn.hold(way):
            self.has.set()
            self._leave.wait(LONG_S)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(LONG_S)


@contextmanager
def held(turn: Turn, *ways: str) -> Iterator[list[Holder]]:
    holders = [Holder(turn, way) for way in ways]
    assert all(h.has.wait(LONG_S) for h in holders)
    yield holders
    for holder in holders:
        holder.leave()


def test_many_share() -> None:
    with held(Turn(), SHARED, SHARED, SHARED) as holders:
        assert all(h.has.is_set() for h in holders)


@pytest.mark.parametrize("way", [SHARED, ALONE])
def test_who_is_alone_keeps_out_others(way: str) -> None:
    turn = Turn()
    with held(turn, ALONE) as (first,):
        second = Holder(turn, way)
        assert not second.has.wait(SOON_S)
        first.leave()
        assert second.has.wait(LONG_S)
    second.leave()


def test_who_wants_to_be_alone_waits_for_all_and_goes_before_those_who_come_later() -> None:
    turn = Turn()
    with held(turn, SHARED, SHARED) as (one, two):
        alone = Holder(turn, ALONE)
        assert not alone.has.wait(SOON_S)
        late = Holder(turn, SHARED)
        assert not late.has.wait(SOON_S)
        one.leave()
        assert not alone.has.wait(SOON_S)
        two.leave()
        assert alone.has.wait(LONG_S)
        assert not late.has.wait(SOON_S)
        alone.leave()
        assert late.has.wait(LONG_S)
    late.leave()


def test_who_is_alone_may_ask_again() -> None:
    turn = Turn()
    with turn.alone():
        with turn.alone(), turn.shared():
            pass
        other = Holder(turn, SHARED)
        assert not other.has.wait(SOON_S)
    assert other.has.wait(LONG_S)
    other.leave()


def test_an_error_gives_the_turn_back() -> None:
    turn = Turn()
    for way in (SHARED, ALONE):
        with pytest.raises(ValueError, match="oops"), turn.hold(way):
            raise ValueError("oops")
    with held(turn, ALONE):
        pass

"""Listeners hear what a search does: a silent one, one that prints, or a class of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evo.search.engine import EvaluatorLike, Observer
    from evo.storage.store import Store

Stop = Callable[[], bool]


class Listener:
    """Hears a search and keeps silent.  A subclass overrides what it cares about."""

    def say(self, text: str) -> None:
        """Takes one message: what evaluates, which model failed, how the run ended.  Called from any thread."""

    @contextmanager
    def searching(self, store: Store, evaluator: EvaluatorLike | None) -> Iterator[tuple[Sequence[Observer], Stop]]:
        """Surrounds the engine's work on the run in `store`.

        Yields the engine's observers, and a function that says whether to stop.
        """
        yield (), never


class Terminal(Listener):
    """Prints messages, and draws the progress of the search."""

    def say(self, text: str) -> None:
        print(f"{text}\n", end="", flush=True)  # one write: threads would come between a line and its end

    @contextmanager
    def searching(self, store: Store, evaluator: EvaluatorLike | None) -> Iterator[tuple[Sequence[Observer], Stop]]:
        from rich.console import Console

        from evo.search.progress import Progress

        with Progress(store.info.config, Console()) as progress:
            yield [progress], never


def never() -> bool:
    """Asks for no stop."""
    return False


def listener_of(progress: bool | Listener) -> Listener:
    """The listener that an argument `progress` stands for: True is a terminal, False is silence."""
    if isinstance(progress, Listener):
        return progress
    return Terminal() if progress else Listener()

"""Hands calls to workers of one kind that can be lost, retries the calls of a lost one, and replaces it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from evo.core.errors import EvoError
from evo.core.records import Verdict
from fitness.frontend.stages import Stop

_LOG = logging.getLogger(__name__)  # whoever started the run should know what it lost.
ATTEMPTS = 3  # of a call whose workers are lost: a call that ends its workers must not end all.
CLOSE_S = 20.0  # for callers to notice that their workers have ended.


class Lost(Exception):
    """A worker is gone, or useless, and the calls that it held are lost."""


class Worker(Protocol):
    """Answers calls, `lanes` at once."""

    @property
    def lanes(self) -> int: ...
    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the answer.  Raises Stop with a verdict, Lost if the worker gives no answer."""
        ...

    def stop(self) -> None:
        """Ends it, whatever it is doing."""
        ...


Start = Callable[[], Worker]  # returns when the worker is ready; raises Lost, Stop or EvoError


class WorkerPool:
    """Hands calls to any worker with room; callers wait if none has room.  Thread-safe.

    A call whose worker is lost goes to another, ATTEMPTS times at most.  Meanwhile another worker is started in the
    lost one's place; the place is given up if that fails.
    """

    def __init__(self, stage: str, starts: Mapping[str, Start]) -> None:
        """Starts all workers at once. starts: how to start the worker of each place, by its name; stage: of its calls.

        Raises EvoError if a worker cannot be started, Stop if starting it raises that.
        """
        self._stage = stage
        self._changed = threading.Condition()
        self._members: list[_Member] = []
        self._held = 0  # calls under way
        self._coming = 0  # places that are being filled again
        self._closed = False
        self._last_loss = ""
        with ThreadPoolExecutor(len(starts)) as starting:
            started = [starting.submit(_Member, place, start) for place, start in starts.items()]
        self._members = [future.result() for future in started if future.exception() is None]
        failed = next((error for future in started if (error := future.exception())), None)
        if failed is not None:
            self.close()
            raise EvoError(str(failed)) if isinstance(failed, Lost) else failed

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns the answer of a worker.  Raises Stop with its verdict, or INFRASTRUCTURE if all attempts were lost.

        Raises EvoError if no worker is left.
        """
        losses: list[str] = []
        while len(losses) < ATTEMPTS:
            member = self._take()
            try:
                return member.worker.ask(method, *arguments)
            except Lost as loss:
                losses.append(f"{member.place}: {loss}")
                self._lose(member, losses[-1])
            finally:
                self._give_back(member)
        message = f"lost with {ATTEMPTS} workers, one after the other: {'; '.join(losses)}"
        raise Stop(self._stage, Verdict.INFRASTRUCTURE, message)

    def everyone(self, do: Callable[[Any], Any]) -> dict[str, Any]:
        """Calls `do` with each worker, all at once; returns the results by the worker's place, without lost workers.

        Raises what `do` raises, EvoError if no worker is left.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._members or not self._coming)
                self._check_there()
                members = list(self._members)
            with ThreadPoolExecutor(len(members)) as threads:
                answers = dict(threads.map(partial(self._done_by, do), members))
            answers.pop("", None)
            if answers:
                return answers

    def _done_by(self, do: Callable[[Any], Any], member: _Member) -> tuple[str, Any]:
        """Returns its place with the answer; "" if it is lost."""
        try:
            return member.place, do(member.worker)
        except Lost as loss:
            self._lose(member, f"{member.place}: {loss}")
            return "", None

    def _check_there(self) -> None:
        """Raises EvoError if all workers are gone and none will be started."""
        if self._closed:
            raise EvoError("the workers were closed")
        if not self._members and not self._coming:
            raise EvoError(f"no worker is left for stage {self._stage}; the last was lost: {self._last_loss}")

    def close(self) -> None:
        """Ends all workers.  Calls under way raise EvoError; waits for them, CLOSE_S at most."""
        with self._changed:
            self._closed = True
            members, self._members = self._members, []
            self._changed.notify_all()
        if members:
            with ThreadPoolExecutor(len(members)) as ending:
                list(ending.map(lambda member: member.worker.stop(), members))
        with self._changed:
            self._changed.wait_for(lambda: not self._held and not self._coming, CLOSE_S)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _take(self) -> _Member:
        """Waits for a worker with room; returns the one with the largest share of its lanes free."""
        with self._changed:
            while True:
                self._check_there()
                free = [member for member in self._members if member.free]
                if free:
                    member = max(free, key=lambda m: m.free / m.worker.lanes)
                    member.free -= 1
                    self._held += 1
                    return member
                self._changed.wait()

    def _give_back(self, member: _Member) -> None:
        with self._changed:
            member.free += 1
            self._held -= 1
            self._changed.notify_all() if self._closed else self._changed.notify()

    def _lose(self, member: _Member, why: str) -> None:
        """Removes a worker and starts another in its place; once, however many of its calls were lost."""
        with self._changed:
            if member not in self._members:
                return
            self._members.remove(member)
            self._coming += 1
            self._last_loss = why
        _LOG.warning("stage %s lost a worker, %s; what it held is done again", self._stage, why)
        threading.Thread(target=self._replace, args=(member,), name="replace", daemon=True).start()

    def _replace(self, lost: _Member) -> None:
        why = ""
        try:
            lost.worker.stop()
            member = _Member(lost.place, lost.start)
            with self._changed:
                too_late = self._closed
                if not too_late:
                    self._members.append(member)
            if too_late:
                member.worker.stop()
        except (Lost, Stop, EvoError) as error:
            why = str(error)
            if not self._closed:
                _LOG.warning("stage %s goes on without the worker %s: %s", self._stage, lost.place, why)
        finally:
            with self._changed:
                self._coming -= 1
                self._last_loss = why or self._last_loss
                self._changed.notify_all()


class _Member:
    """A worker, its place, and how many more calls it can take."""

    def __init__(self, place: str, start: Start) -> None:
        self.place, self.start = place, start
        try:
            self.worker = start()
        except Lost as loss:
            raise Lost(f"{place}: {loss}") from loss
        self.free = self.worker.lanes

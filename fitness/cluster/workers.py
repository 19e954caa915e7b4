"""Workers of one kind that can be lost: who is free, what happens to the calls a lost one held, who takes its place."""

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

_LOG = logging.getLogger(__name__)  # whoever started the run should know what it lost
ATTEMPTS = 3  # of a call whose workers are lost: one that brings them down must not bring all down
CLOSE_S = 20.0  # for callers to notice that their workers have ended


class Lost(Exception):
    """A worker is gone, or of no use any more, and with it the calls that it held."""


class Worker(Protocol):
    """Answers calls, `lanes` at once."""

    @property
    def lanes(self) -> int: ...
    def ask(self, method: str, *arguments: Any) -> Any:
        """The answer.  Raises Stop with a verdict, Lost where there is none."""
        ...

    def fire(self) -> None:
        """Ends it, whatever it is doing."""
        ...


Hire = Callable[[], Worker]  # returns when the worker is ready; raises Lost, Stop or EvoError


class WorkerPool:
    """Hands calls to whichever worker has room; callers wait where none has.  Thread-safe.

    A call whose worker is lost goes to another, ATTEMPTS times at most.  Meanwhile the lost worker's place is filled
    again, or given up where that fails.
    """

    def __init__(self, stage: str, hires: Mapping[str, Hire]) -> None:
        """`hires`: how to fill each place, by its name; all are filled at once.  `stage`: that calls are part of.

        Raises EvoError where a place cannot be filled, Stop where hiring does.
        """
        self._stage = stage
        self._changed = threading.Condition()
        self._members: list[_Member] = []
        self._held = 0  # calls under way
        self._coming = 0  # places that are being filled again
        self._closed = False
        self._last_loss = ""
        with ThreadPoolExecutor(len(hires)) as starting:
            started = [starting.submit(_Member, place, hire) for place, hire in hires.items()]
        self._members = [future.result() for future in started if future.exception() is None]
        failed = next((error for future in started if (error := future.exception())), None)
        if failed is not None:
            self.close()
            raise EvoError(str(failed)) if isinstance(failed, Lost) else failed

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of a worker.  Raises Stop with its verdict, or INFRASTRUCTURE where all attempts were lost.

        Raises EvoError where no worker is left.
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
        """What `do` makes of each worker, all at once, by the worker's place; one that is lost by it is left out.

        Raises what `do` raises, EvoError where no worker is left.
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
        """Its place with the answer; "" where it is lost."""
        try:
            return member.place, do(member.worker)
        except Lost as loss:
            self._lose(member, f"{member.place}: {loss}")
            return "", None

    def _check_there(self) -> None:
        """Raises EvoError where there will be no worker any more."""
        if self._closed:
            raise EvoError("the workers were closed")
        if not self._members and not self._coming:
            raise EvoError(f"no worker is left for stage {self._stage}; the last was lost: {self._last_loss}")

    def close(self) -> None:
        """Ends all workers; calls under way raise EvoError, and are waited for, CLOSE_S at most."""
        with self._changed:
            self._closed = True
            members, self._members = self._members, []
            self._changed.notify_all()
        if members:
            with ThreadPoolExecutor(len(members)) as ending:
                list(ending.map(lambda member: member.worker.fire(), members))
        with self._changed:
            self._changed.wait_for(lambda: not self._held and not self._coming, CLOSE_S)

    # --- who is there ------------------------------------------------------------------------------------------------

    def _take(self) -> _Member:
        """A worker with room, waited for.  The one with the largest share of its lanes free."""
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
        """Lets go of a worker and fills its place again; once, however many of its calls were lost."""
        with self._changed:
            if member not in self._members:
                return
            self._members.remove(member)
            self._coming += 1
            self._last_loss = why
        _LOG.warning("stage %s lost a worker, %s; what it held is done again", self._stage, why)
        threading.Thread(target=self._replace, args=(member,), name="hire", daemon=True).start()

    def _replace(self, lost: _Member) -> None:
        why = ""
        try:
            lost.worker.fire()
            member = _Member(lost.place, lost.hire)
            with self._changed:
                too_late = self._closed
                if not too_late:
                    self._members.append(member)
            if too_late:
                member.worker.fire()
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
    """A worker, where it is, and how many more calls it can take."""

    def __init__(self, place: str, hire: Hire) -> None:
        self.place, self.hire = place, hire
        try:
            self.worker = hire()
        except Lost as loss:
            raise Lost(f"{place}: {loss}") from loss
        self.free = self.worker.lanes

"""Hands out the jobs of many clients fairly: in rounds over tokens, and over the clients of a token."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Container

from evo.storage.requests import Job


class FairQueue:
    """Jobs that wait for a worker.  Threads may share it.

    Each token gets one job a round, and within a token each of its clients.  So a client waits for its own jobs and for
    one of each other client, however many jobs others have.  A token gains nothing by more client names.
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[str, OrderedDict[str, deque[Job]]] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: Job) -> None:
        with self._changed:
            clients = self._lines.setdefault(job.caller.token, OrderedDict())
            clients.setdefault(job.caller.client, deque()).append(job)
            self._changed.notify()

    def take(self, blocked: Container[str] = ()) -> Job | None:
        """The next job, waiting for one; None once the queue is closed.

        blocked: hashes of tasks that are not ready; their jobs stay.  Call `wake` if it changes.
        """
        with self._changed:
            while not self._closed:
                if (job := self._next(blocked)) is not None:
                    return job
                self._changed.wait()
            return None

    def _next(self, blocked: Container[str]) -> Job | None:
        for token, clients in self._lines.items():
            for client, line in clients.items():
                for job in line:
                    if job.task not in blocked:
                        line.remove(job)
                        self._end_turn(token, client)
                        return job
        return None

    def _end_turn(self, token: str, client: str) -> None:
        """Puts the client behind the others of its token, and the token behind the others."""
        clients = self._lines[token]
        clients.move_to_end(client)
        self._lines.move_to_end(token)
        if not clients[client]:
            del clients[client]
        if not clients:
            del self._lines[token]

    def remove(self, job: str) -> bool:
        """Takes out the job of that id; False if it is not waiting."""
        with self._changed:
            for token, clients in self._lines.items():
                for client, line in clients.items():
                    for waiting in line:
                        if waiting.id == job:
                            line.remove(waiting)
                            if not line:
                                del clients[client]
                            if not clients:
                                del self._lines[token]
                            return True
        return False

    def waiting(self, token: str | None = None) -> int:
        """The number of jobs that wait, of one token or of all."""
        with self._changed:
            lines = self._lines.values() if token is None else [self._lines.get(token, OrderedDict())]
            return sum(len(line) for clients in lines for line in clients.values())

    def wake(self) -> None:
        """Lets `take` look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Hands out no more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

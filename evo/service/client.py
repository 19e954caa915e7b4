"""A client of the service, with the methods of `evo.Evaluator`.

    with evo.Client("http://gpu-box:8321", "softmax", token=...) as client:
        evaluation = client.evaluate(source)

Requests are safe to repeat: the same task and source is the same evaluation.  So the client asks again if the service
is full or the connection breaks, and nothing is evaluated twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from evo.core.errors import ConfigError, ServiceError, TaskError, how_to_install
from evo.core.records import Evaluation, evaluation_from_json
from evo.service.guard import TOKEN_VARIABLE

if TYPE_CHECKING:
    import httpx

_WAIT_S = 30  # of one request for a result
_AGAIN = (429, 502, 503, 504)
_FIRST_S = 30.0  # patience with a service that never answered: its address may be wrong
_PAUSE_S = 0.1, 5.0  # between attempts, without a Retry-After: at first, at most
T = TypeVar("T")


class Client:
    """Evaluates kernels through a service; use it as a context manager, or call `close`.  Threads may share it."""

    def __init__(
        self,
        url: str,
        task: str = "",
        *,
        token: str | None = None,
        name: str = "",
        in_flight: int = 32,
        patience_s: float = 600.0,
    ) -> None:
        """url: of the service, e.g. "http://localhost:8321".  task: for calls that name none.

        token: as the service knows it; None: that of EVO_SERVICE_TOKEN, if it is set.
        name: what the service calls this client: workers are shared fairly among the names of a token.
        in_flight: evaluations that `evaluate_many` asks for at once.
        patience_s: how long a request is tried again before ServiceError is raised; 30 s at most as long as the service
        never answered.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f'url: expected that of a service, e.g. "http://localhost:8321", got {url!r:.100}')
        if in_flight < 1:
            raise ConfigError(f"in_flight: expected a number from 1, got {in_flight}")
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if name:
            self._headers["Evo-Client"] = name
        self.url, self.task, self.in_flight, self._patience_s = url.rstrip("/"), task, in_flight, patience_s
        self._reached = False
        self._loop = asyncio.new_event_loop()
        self._http = self._open()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evo-client", daemon=True)
        self._thread.start()

    def _open(self) -> httpx.AsyncClient:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ConfigError(f"expected httpx, for a client of a service; {how_to_install('serve')}") from error
        limits = httpx.Limits(max_connections=self.in_flight + 16, max_keepalive_connections=self.in_flight + 16)
        timeout = httpx.Timeout(30.0, read=_WAIT_S + 60, pool=None)
        return httpx.AsyncClient(headers=self._headers, limits=limits, timeout=timeout)

    # --- evaluating --------------------------------------------------------------------------------------------------

    def evaluate(self, source: str, *, task: str = "") -> Evaluation:
        """The evaluation of a kernel, given as the text of its file.

        Raises ServiceError if the service refuses the request or cannot be reached, TaskError if the task is at fault.
        """
        return self._start(self._evaluate(source, task or self.task)).result()

    async def aevaluate(self, source: str, *, task: str = "") -> Evaluation:
        """`evaluate` for a coroutine."""
        return await asyncio.wrap_future(self._start(self._evaluate(source, task or self.task)))

    def evaluate_many(self, sources: Iterable[str], *, task: str = "") -> Iterator[Evaluation]:
        """The evaluations of kernels in the order of `sources`, each as soon as it and all before it are ready.

        Sources are read as there is room among those in flight, so there may be any number of them.
        """
        running: deque[Future[Evaluation]] = deque()
        try:
            for source in sources:
                running.append(self._start(self._evaluate(source, task or self.task)))
                if len(running) >= self.in_flight:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    async def aevaluate_many(self, sources: Iterable[str], *, task: str = "") -> AsyncIterator[Evaluation]:
        """`evaluate_many` for a coroutine."""
        running: deque[Future[Evaluation]] = deque()
        try:
            for source in sources:
                running.append(self._start(self._evaluate(source, task or self.task)))
                if len(running) >= self.in_flight:
                    yield await asyncio.wrap_future(running.popleft())
            while running:
                yield await asyncio.wrap_future(running.popleft())
        finally:
            for future in running:
                future.cancel()

    def submit(self, sources: Sequence[str], *, task: str = "") -> list[str]:
        """Asks for evaluations without waiting for them; their ids."""
        ids: list[str] = self._start(self._submit(sources, task or self.task)).result()["ids"]
        return ids

    def status(self, evaluation: str, *, wait_s: float = 0.0) -> dict[str, Any]:
        """How an evaluation (its id) is doing: `state`, `queue_s`, `execution_s`, `error`, `evaluation`.

        wait_s: the answer comes when the evaluation is over, and after that many seconds at the latest; 60 at most.
        """
        return self._start(self._request("GET", f"/v1/evaluations/{evaluation}?wait={wait_s}")).result()

    def cancel(self, evaluation: str) -> dict[str, Any]:
        """Cancels an evaluation (its id) that waits, unless another client asked for it too; its status."""
        return self._start(self._request("DELETE", f"/v1/evaluations/{evaluation}")).result()

    async def _submit(self, sources: Sequence[str], task: str, wait_s: float = 0.0) -> dict[str, Any]:
        """The "ids" of the evaluations; with `wait_s` also their "statuses", once all are over or the time is."""
        for source in sources:
            _check_source(source)
        if not task:
            raise ConfigError("task: expected the name of a task of the service, got none; Client(url, task)")
        path = f"/v1/evaluations?wait={wait_s}" if wait_s else "/v1/evaluations"
        return await self._request("POST", path, {"task": task, "sources": list(sources)})

    async def _evaluate(self, source: str, task: str) -> Evaluation:
        while True:
            try:
                (status,) = (await self._submit([source], task, _WAIT_S))["statuses"]
                while status["state"] in ("queued", "running"):
                    status = await self._request("GET", f"/v1/evaluations/{status['id']}?wait={_WAIT_S}")
            except asyncio.CancelledError:
                with contextlib.suppress(ServiceError):  # the same request again says the id
                    (found,) = (await self._submit([source], task))["ids"]
                    await self._request("DELETE", f"/v1/evaluations/{found}")
                raise
            if status["state"] == "done":
                return evaluation_from_json(json.dumps(status["evaluation"]))
            if status["state"] == "failed":
                raise TaskError(f"task {task}: {status['error']}")
            # It was cancelled, by whoever asked for it first: this client still wants it.

    # --- tasks -------------------------------------------------------------------------------------------------------

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks of the service: `name`, `title`, `hash`, and whether it was `uploaded`."""
        found: list[dict[str, Any]] = self._start(self._request("GET", "/v1/tasks")).result()["tasks"]
        return found

    def upload_task(
        self, name: str, kernel: str, entry: str, calls: list[dict[str, Any]], *, writes: Iterable[str] = ()
    ) -> str:
        """Uploads a task as data and returns the name that the service gave it.

        kernel: the text of the seed kernel's file; its own results are right.  entry: its host function.
        calls: {"arguments": [{"tensor": {...}} or {"value": ...}], "role": "tune" or "holdout"} (docs/service.md).
        writes: parameters that are written in place.
        """
        described = {"name": name, "kernel": kernel, "entry": entry, "calls": calls, "writes": list(writes)}
        given: str = self._start(self._request("POST", "/v1/tasks", described)).result()["name"]
        return given

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON of an answer.  Tries again if the service is full, stopping or out of reach."""
        import httpx

        begin, pause = time.monotonic(), _PAUSE_S[0]
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            try:
                response = await self._http.request(method, self.url + path, content=content, headers=headers)
            except httpx.TransportError as error:
                problem = ServiceError(
                    f"expected a service at {self.url}, got {type(error).__name__}: {error}; `evo serve` starts one"
                )
            else:
                self._reached = True
                if response.is_success:
                    found: dict[str, Any] = response.json()
                    return found
                problem = _problem(response)
                if response.status_code not in _AGAIN:
                    raise problem
            wait = problem.retry_after or pause * random.uniform(0.5, 1)
            patience_s = self._patience_s if self._reached else min(self._patience_s, _FIRST_S)
            if time.monotonic() - begin + wait > patience_s:
                raise problem
            await asyncio.sleep(wait)
            pause = min(2 * pause, _PAUSE_S[1])

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Ends the connections.  What still runs is dropped; a service that cannot drop it now is not asked again."""
        if self._loop.is_closed():
            return
        self._start(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._patience_s = 0.0  # each cancelled evaluation asks the service to drop it, once
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_source(source: str) -> None:
    """Raises ConfigError for what cannot be sent as a source."""
    if not isinstance(source, str):
        raise ConfigError(f"expected the source of a kernel as text, got {source!r:.100}; read its file")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"source: expected Unicode text, got half a character at {error.start}") from None


def _problem(response: httpx.Response) -> ServiceError:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    wait = response.headers.get("retry-after", "")
    return ServiceError(
        f"the service answered {response.status_code}: {message}",
        response.status_code,
        float(wait) if wait.isdigit() else None,
    )

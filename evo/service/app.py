"""The HTTP interface of the service, and the server that runs it (`docs/service.md`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from types import FrameType
from typing import Annotated, Any, Literal

import prometheus_client as prometheus
import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from evo import __version__
from evo.core.errors import ConfigError, EvoError, ServiceError
from evo.core.records import Verdict
from evo.core.text import short
from evo.service.guard import Access, Guard, Limits, error_body, error_headers
from evo.service.tasks import Entry, TaskRegistry
from evo.service.work import MOST_BATCH, Metrics, Service, Status
from evo.storage.requests import FAILED, Caller

MOST_WAIT_S = 60.0  # of one request for a result
_MOST_CONNECTIONS = 16384  # of some 10 kB each; the guard limits what they ask for
_SECONDS = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class Evaluations(BaseModel):
    """Kernels to evaluate: the name of a task, and one source or a list of them."""

    model_config = ConfigDict(extra="forbid")
    task: Annotated[str, Field(max_length=200)]
    source: str | None = None
    sources: Annotated[list[str], Field(min_length=1, max_length=MOST_BATCH)] | None = None


class Call(BaseModel):
    """One call of a kernel's entry; `fitness.suites.values` describes the rules for values of tensors."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["tune", "holdout"] = "tune"
    arguments: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=64)]


class NewTask(BaseModel):
    """A task as data: a kernel, the name of its entry, and calls of it.  Or, if it is allowed, with a task.py."""

    model_config = ConfigDict(extra="forbid")
    name: str
    kernel: str
    entry: str = ""
    calls: list[Call] = []
    writes: list[str] = []
    task: str | None = None


def make_app(
    service: Service,
    tasks: TaskRegistry,
    access: Access,
    limits: Limits | None = None,
    mcp: Any = None,
) -> Guard:
    """The application.  mcp: an MCP server of the SDK to be reached at /mcp, or None."""
    metrics = _Counters(service)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with contextlib.AsyncExitStack() as stack:
            if mcp is not None:
                await stack.enter_async_context(mcp.session_manager.run())
            yield
        await service.close()

    app = FastAPI(title="evo", version=__version__, lifespan=lifespan, redoc_url=None)
    _add_errors(app)
    _add_evaluations(app, service, tasks)
    _add_tasks(app, tasks)
    if mcp is not None:
        from mcp.server.transport_security import TransportSecuritySettings

        # Hosts and origins are checked by the guard.
        safe = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        app.router.routes.extend(
            mcp.streamable_http_app(stateless_http=True, json_response=True, transport_security=safe).routes
        )

    @app.get("/healthz", summary="Whether the service takes work")
    async def healthz() -> Response:
        state = "stopping" if service.draining else "ok"
        return _json(json.dumps({"status": state, "version": __version__}), 503 if service.draining else 200)

    @app.get("/metrics", summary="Figures for Prometheus")
    async def show_metrics() -> Response:
        return Response(prometheus.generate_latest(metrics.registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    return Guard(app, access, limits, metrics.answered)


def _add_evaluations(app: FastAPI, service: Service, tasks: TaskRegistry) -> None:
    @app.post("/v1/evaluations", status_code=202, summary="Evaluate kernels; returns their ids, waits if asked to")
    async def submit(
        given: Evaluations, request: Request, wait: Annotated[float, Query(ge=0, le=MOST_WAIT_S)] = 0
    ) -> Response:
        if (given.source is None) == (given.sources is None):
            raise ServiceError("expected either source, a text, or sources, a list of texts", 422)
        sources = [given.source] if given.source is not None else given.sources or []
        caller = caller_of(request)
        ids = service.submit(tasks.find(given.task, caller.token).hash, sources, caller)
        if not wait:
            return _json(json.dumps({"ids": ids}), 202)
        statuses = await asyncio.gather(*(service.wait(each, wait) for each in ids))
        return _json(f'{{"ids": {json.dumps(ids)}, "statuses": [{", ".join(map(status_json, statuses))}]}}', 202)

    @app.get("/v1/evaluations/{id}", summary="How an evaluation is doing; waits for its end")
    async def find(id: str, wait: Annotated[float, Query(ge=0, le=MOST_WAIT_S)] = 0) -> Response:
        return _json(status_json(await service.wait(id, wait)))

    @app.delete("/v1/evaluations/{id}", summary="Cancel an evaluation that waits")
    async def cancel(id: str, request: Request) -> Response:
        return _json(status_json(service.cancel(id, caller_of(request))))


def _add_tasks(app: FastAPI, tasks: TaskRegistry) -> None:
    one_at_a_time = asyncio.Lock()

    @app.get("/v1/tasks", summary="The tasks that a client may name")
    async def show(request: Request) -> Response:
        return _json(json.dumps({"tasks": [entry_facts(e) for e in tasks.seen_by(caller_of(request).token)]}))

    @app.post("/v1/tasks", status_code=201, summary="Upload a task")
    async def upload(given: NewTask, request: Request) -> Response:
        described = given.model_dump(exclude_none=True)
        async with one_at_a_time:
            try:
                entry = await asyncio.to_thread(tasks.upload, described, caller_of(request).token)
            except ServiceError:
                raise
            except EvoError as error:
                raise ServiceError(short(str(error)), 422) from error
        return _json(json.dumps(entry_facts(entry)), 201)


def caller_of(request: Any) -> Caller:
    """Who asks, as the guard found."""
    caller: Caller = request.state.caller
    return caller


def entry_facts(entry: Entry) -> dict[str, Any]:
    """What clients see of a task."""
    return {"name": entry.name, "title": entry.title, "hash": entry.hash, "uploaded": bool(entry.token)}


def status_json(status: Status) -> str:
    """The JSON of a status; the evaluation in it is as it was stored."""
    facts = {
        "id": status.id,
        "state": status.state,
        "queue_s": round(status.queue_s, 6),
        "execution_s": None if status.execution_s is None else round(status.execution_s, 6),
        "error": status.error,
    }
    return f'{json.dumps(facts)[:-1]}, "evaluation": {status.evaluation or "null"}}}'


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


# --- errors ----------------------------------------------------------------------------------------------------------


def _add_errors(app: FastAPI) -> None:
    """Answers all errors in one form; none shows what was sent, or a traceback."""

    @app.exception_handler(ServiceError)
    async def refused(request: Request, error: ServiceError) -> Response:
        return Response(error_body(str(error), error.status), error.status, error_headers(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[0]
        place = ".".join(str(part) for part in found["loc"] if part != "body") or "body"
        status, message = 422, f"{place}: {found['msg']}"
        if found["type"] == "json_invalid":
            status, message = 400, f"expected JSON, got at character {place}: {found['ctx']['error']}"
        return Response(error_body(short(message[:500]), status), status, media_type="application/json")

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {short(request.url.path[:80])}: {error.detail}"
        if error.status_code == 400:  # FastAPI's answer to whatever else goes wrong with a body
            message = "expected JSON in UTF-8, got something else, or JSON that is nested too deeply"
        return Response(error_body(message, error.status_code), error.status_code, media_type="application/json")

    @app.exception_handler(Exception)
    async def faulty(request: Request, error: Exception) -> Response:
        """The server prints the traceback."""
        return Response(error_body("evo failed; its own output says how", 500), 500, media_type="application/json")

    @app.exception_handler(EvoError)
    async def broken(request: Request, error: EvoError) -> Response:
        return Response(error_body(short(str(error)), 503), 503, {"retry-after": "10"}, "application/json")


# --- figures ---------------------------------------------------------------------------------------------------------


class _Counters:
    """What Prometheus reads."""

    def __init__(self, service: Service) -> None:
        self.registry = prometheus.CollectorRegistry()
        requests = prometheus.Counter("evo_requests", "Answers by HTTP status", ["status"], registry=self.registry)
        ended = prometheus.Counter("evo_evaluations", "Ended, by verdict", ["verdict"], registry=self.registry)
        for verdict in [*Verdict, FAILED]:
            ended.labels(str(verdict))
        queued, executed = (
            prometheus.Histogram(f"evo_{name}_seconds", text, buckets=_SECONDS, registry=self.registry)
            for name, text in (("queue", "From request to start"), ("execution", "From start to end"))
        )
        gauges: Mapping[str, Callable[[], float]] = {
            "evo_waiting": lambda: service.waiting,
            "evo_running": lambda: service.running,
            "evo_waiting_requests": lambda: service.listening,
        }
        for name, read in gauges.items():
            prometheus.Gauge(name, "How many now", registry=self.registry).set_function(read)
        self.answered: Callable[[int], None] = lambda status: requests.labels(str(status)).inc()
        service.metrics = Metrics(lambda verdict: ended.labels(verdict).inc(), queued.observe, executed.observe)


# --- the server ------------------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """Stops in two steps: the service first, so that whoever waits for what does not run gets an answer."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address.  Raises ConfigError if it cannot be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio turns Nagle's algorithm off: else an answer may wait 40 ms.
        found = socket.socket(family, kind, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there: {error}; choose another") from error
    return found


def serve(app: Guard, service: Service, bound: socket.socket) -> None:
    """Answers requests until SIGTERM or Ctrl-C; then finishes what runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, _MOST_CONNECTIONS):  # it is often 1024; sandboxes have limits of their own
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _MOST_CONNECTIONS), hard))
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # ASGI's types are looser
        log_level="warning",
        access_log=False,
        limit_concurrency=_MOST_CONNECTIONS,
        backlog=2048,
        timeout_keep_alive=30,
        lifespan="on",
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal once more when all is done
        previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            _Server(config, service).run(sockets=[bound])
        finally:
            signal.signal(signal.SIGTERM, previous)

"""Admits requests before anything else sees them: who asks, how often, and how much they send.

Memory stays bounded whatever clients send.  Limits are for one token: bytes of a request, bytes of all its requests,
requests at once, and requests a second.  No token uses up another's share.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError, ServiceError
from evo.core.text import short
from evo.storage.requests import Caller

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

TOKEN_VARIABLE = "EVO_SERVICE_TOKEN"
LOCAL = "local"  # the name of a caller without a token
_OPEN_PATHS = ("/healthz", "/docs", "/openapi.json")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_LEAST_TOKEN = 16  # characters
_DISCARD = 1 << 26  # bytes of a refused body that are read and dropped: a client reads the answer after sending


@dataclass(frozen=True)
class Limits:
    """What the service takes of one token."""

    body: int = 8 << 20  # bytes of one request
    bodies: int = 64 << 20  # bytes of all requests that are being read or answered
    requests: int = 1024  # being read or answered.  Those that wait for a result count too.
    rate: float = 1000.0  # requests a second on average; twice as many at once
    body_s: float = 30.0  # seconds that a body may take


def read_tokens(file: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The tokens by name: of a file with "NAME TOKEN" on each line, and one of the environment.  Raises ConfigError."""
    tokens = {}
    if environment.get(TOKEN_VARIABLE):
        tokens["default"] = environment[TOKEN_VARIABLE]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file: expected a file of tokens at {file}, got: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, *rest = line.split()
            if len(rest) != 1 or not _NAME.fullmatch(name) or name in tokens:
                raise ConfigError(f"--token-file: expected NAME TOKEN on line {number} of {file}, each name once")
            tokens[name] = rest[0]
        if not tokens:
            raise ConfigError(f"--token-file: expected NAME TOKEN on a line, got none in {file}")
    for name, token in tokens.items():
        if len(token) < _LEAST_TOKEN or not token.isascii():
            raise ConfigError(
                f"token {name}: expected at least {_LEAST_TOKEN} ASCII characters, got {len(token)}; make one: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )
    return tokens


class Access:
    """Says who asks.  Without tokens only this machine may ask, under its own name (no page of a browser may)."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._names = {hashlib.sha256(token.encode()).digest(): name for name, token in tokens.items()}

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request.  Raises ServiceError: 401 for a wrong token, 403 for a wrong host."""
        client = headers.get("evo-client", "")
        if client and not _NAME.fullmatch(client):
            raise ServiceError("Evo-Client: expected a name of letters, digits, '.', '_' and '-', 64 at most", 400)
        if not self._names:
            self._check_local(headers)
            return Caller(LOCAL, client)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given, found = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest(), ""
        for digest, name in self._names.items():  # all of them, so that time says nothing
            if hmac.compare_digest(digest, given):
                found = name
        if scheme.lower() != "bearer" or not found:
            got = "none" if not token else "one that is not known"
            raise ServiceError(f"expected the header `Authorization: Bearer TOKEN` with a token, got {got}", 401)
        return Caller(found, client)

    @staticmethod
    def _check_local(headers: Mapping[str, str]) -> None:
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        if host not in _LOCAL_HOSTS or "origin" in headers:
            raise ServiceError(
                f"expected a program of this machine that asks for {' or '.join(_LOCAL_HOSTS)}, got host "
                f"{short(host[:80])!r}; give the service a token (docs/service.md)",
                403,
            )


class Guard:
    """An ASGI application around another: admits requests, and hands over their bodies whole."""

    def __init__(
        self,
        app: App,
        access: Access,
        limits: Limits | None = None,
        answered: Callable[[int], None] = lambda status: None,
    ) -> None:
        """answered: hears the status of each answer."""
        self._app, self._access, self._limits, self._answered = app, access, limits or Limits(), answered
        self._usage: dict[str, _Usage] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(message["status"])
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if scope["path"] in _OPEN_PATHS and scope["method"] in ("GET", "HEAD"):
                await self._app(scope, receive, counted)
                return
            caller = self._access.caller(headers)
            scope.setdefault("state", {})["caller"] = caller
            usage = self._usage.setdefault(caller.token, _Usage(_Rate(self._limits.rate)))
            body = _Body()
            usage.requests += 1
            try:
                await self._admit(scope["method"], headers, receive, usage, body)
                await self._app(scope, body.replayed(receive), counted)
            finally:
                usage.requests -= 1
                usage.held -= body.size
        except ServiceError as error:
            await answer_error(error, counted)

    async def _admit(
        self, method: str, headers: Mapping[str, str], receive: Receive, usage: _Usage, body: _Body
    ) -> None:
        """Reads the body of a request that may be answered.  Raises ServiceError for others."""
        try:
            self._check_request(method, headers, usage)
            async with asyncio.timeout(self._limits.body_s):
                await self._read(receive, usage, body)
        except TimeoutError:
            raise ServiceError(f"expected the whole request within {self._limits.body_s:g} s", 408) from None
        except ServiceError as error:
            if error.status in (413, 415, 429) and body.more and headers.get("expect", "").lower() != "100-continue":
                await self._discard(receive)
            raise

    def _check_request(self, method: str, headers: Mapping[str, str], usage: _Usage) -> None:
        if usage.requests > self._limits.requests:
            raise ServiceError(f"more than {self._limits.requests} requests at once; try again later", 429, 1)
        if (wait := usage.rate.take()) > 0:
            raise ServiceError(f"more than {self._limits.rate:g} requests a second; try again later", 429, wait)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limits.body:
            raise self._too_large()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in ("POST", "PUT", "PATCH") and kind != "application/json":
            raise ServiceError(f"Content-Type: expected application/json, got {short(kind[:80])!r}", 415)

    def _too_large(self) -> ServiceError:
        return ServiceError(
            f"expected a request of at most {self._limits.body} bytes, got more; send less at once", 413
        )

    async def _read(self, receive: Receive, usage: _Usage, body: _Body) -> None:
        while body.more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ServiceError("the client left before its request was complete", 400)
            chunk, body.more = message.get("body", b""), message.get("more_body", False)
            if body.size + len(chunk) > self._limits.body:
                raise self._too_large()
            if usage.held + len(chunk) > self._limits.bodies:
                raise ServiceError("too many large requests at once; try again later", 429, 1)
            usage.held += len(chunk)
            body.add(chunk)

    async def _discard(self, receive: Receive) -> None:
        """Reads on for a while and keeps nothing: a client that is still sending would not see the answer."""
        read = 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while read < _DISCARD:
                    message = await receive()
                    read += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


@dataclass
class _Body:
    """The body of a request, in the pieces that came."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    more: bool = True

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)

    def replayed(self, receive: Receive) -> Receive:
        """A `receive` that hands the body over whole, then goes on as before."""
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            data = b"".join(self.chunks)
            self.chunks.clear()
            return {"type": "http.request", "body": data, "more_body": False}

        return replay


@dataclass
class _Rate:
    """A bucket that fills by `rate` a second, up to twice that."""

    rate: float
    filled: float = -1.0
    at: float = 0.0

    def take(self) -> float:
        """Takes one and returns 0, or the seconds after which there is one."""
        now = time.monotonic()
        full = 2 * self.rate
        self.filled = full if self.filled < 0 else min(full, self.filled + (now - self.at) * self.rate)
        self.at = now
        if self.filled < 1:
            return (1 - self.filled) / self.rate
        self.filled -= 1
        return 0.0


@dataclass
class _Usage:
    """What one token uses now."""

    rate: _Rate
    requests: int = 0
    held: int = 0  # bytes of bodies


def error_body(message: str, status: int) -> bytes:
    """The JSON of an error, as every answer has it."""
    return json.dumps({"error": {"status": status, "message": message}}).encode()


def error_headers(error: ServiceError) -> dict[str, str]:
    """The headers of an error's answer."""
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (408, 413):
        headers["connection"] = "close"
    return headers


async def answer_error(error: ServiceError, send: Send) -> None:
    """Answers a request with an error, below any framework."""
    body = error_body(str(error), error.status)
    headers = {**error_headers(error), "content-length": str(len(body))}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

"""Services for tests: a process with an instant evaluator, and one with evo's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from analysis.benchmarks.bench_service import ServerProcess, source

ROOT = Path(__file__).parent.parent
TOKENS = {"default": "a-token-that-is-long-enough"}
__all__ = ["TOKENS", "ServerProcess", "call", "message", "real_service", "source", "submit"]


def call(server: ServerProcess | str, method: str, path: str, **more: Any) -> httpx.Response:
    """One request and its answer, without any second attempt."""
    url = server if isinstance(server, str) else server.url
    return httpx.request(method, url + path, timeout=60, **more)


def submit(server: ServerProcess | str, *sources: str, task: str = "softmax", client: str = "") -> list[str]:
    """Ids of evaluations that were accepted."""
    headers = {"Evo-Client": client} if client else {}
    answer = call(server, "POST", "/v1/evaluations", json={"task": task, "sources": sources}, headers=headers)
    assert answer.status_code == 202, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


def message(answer: httpx.Response) -> str:
    """The message of an error, which is all that its answer says."""
    found = json.loads(answer.content)
    assert set(found) == {"error"} and set(found["error"]) == {"status", "message"}
    assert found["error"]["status"] == answer.status_code
    text: str = found["error"]["message"]
    assert len(text) < 1500 and "Traceback" not in text
    return text


@contextmanager
def real_service(folder: Path, *options: str, limit_s: float = 280) -> Iterator[str]:
    """`evo serve` without a GPU in a process of its own; its URL.

    SIGTERM ends it, and it must leave with 0.  limit_s: seconds after which it is killed.
    """
    command = [sys.executable, "-m", "evo", "serve", "--port", "0", "--gpus", "none", "--dir", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path()})
    assert process.stdout is not None
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on http://"), line
        yield line.split()[2]
        process.terminate()
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


def path() -> str:
    """PYTHONPATH for a process that must find this checkout first."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

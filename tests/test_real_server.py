"""The whole flow with a real server of a tiny random model: `make test-server` sets both up.

EVO_TEST_SERVER is the path of `transformers` or of llama.cpp's `llama-server`; EVO_TEST_MODEL is what
`analysis.benchmarks.tiny_model` made, a folder or a GGUF file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import evo
from evo.cli import doctor_checks
from evo.cli.main import main
from evo.core.models import Model
from evo.core.records import Verdict
from evo.llm.base import Failed, LlmError, Request
from evo.llm.client import EndpointProvider
from evo.llm.queue import ask_once
from evo.storage.model_calls import ModelAnswer
from operators.llm.base import Message, Prompt

SERVER, MODEL = (os.environ.get(name, "") for name in ("EVO_TEST_SERVER", "EVO_TEST_MODEL"))
pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not (SERVER and MODEL), reason="needs a server of models: make test-server"),
]
NAME = "tiny"
# llama.cpp would choose among the likeliest tokens only, and the last one is seldom among them.
ALL_TOKENS = ("--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0")
ANSWERS = {Verdict.REJECTED, Verdict.COMPILE_ERROR, Verdict.DUPLICATE}  # what random text can get


class RealServer:
    """A server process on a port of its own, which can be killed, stopped and started again."""

    def __init__(self, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url, self._log = f"http://127.0.0.1:{self.port}/v1", log
        self.start()

    def start(self) -> None:
        model = Path(MODEL).resolve()
        address = ("--host", "127.0.0.1", "--port", str(self.port))
        arguments = (
            ("-m", str(model), "--alias", NAME, "-c", "65536", "-np", "2", "-t", "1", *ALL_TOKENS)
            if Path(SERVER).name == "llama-server"
            else ("serve", model.name, "--device", "cpu")
        )
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [Path(SERVER).absolute(), *arguments, *address],
                cwd=model.parent,
                env=environment,
                stdout=log,
                stderr=log,
            )
        while not self._healthy():
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    made = RealServer(tmp_path_factory.mktemp("server") / "server.log")
    yield made
    made.kill()


def model(server: RealServer, **settings: Any) -> Model:
    return Model(NAME, server.url, **{"max_tokens": 64, "timeout_s": 60.0, **settings})


def ask(asked: Model) -> ModelAnswer:
    """The answer to one attempt."""

    async def attempt() -> ModelAnswer:
        provider = EndpointProvider(asked, "")
        try:
            return await ask_once(provider, Request(1, "mutate", Prompt("mutate", (Message("user", "hello"),))), asked)
        finally:
            await provider.close()

    return asyncio.run(attempt())


def rows(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM llm_calls ORDER BY call")]


@pytest.mark.parametrize("stream", [False, True])
def test_truncated_and_whole_answers_are_billed(server: RealServer, stream: bool) -> None:
    cut = ask(model(server, max_tokens=3, stream=stream))
    assert cut.finish == "length" and cut.bill is not None and cut.bill.tokens_out == 3
    # The chance of another token than the last one is 511 of 512, each time.
    whole = ask(model(server, max_tokens=12000, stream=stream))
    assert whole.finish == "stop" and whole.bill is not None and whole.bill.tokens_out < 12000
    assert cut.bill.tokens_in == whole.bill.tokens_in > 0


def test_the_doctor_knows_what_is_served(server: RealServer) -> None:
    assert doctor_checks._model(model(server)).state == doctor_checks.OK
    found = doctor_checks._model(Model("nope", server.url))
    assert found.state == doctor_checks.UNUSABLE
    assert "serves tiny, not nope" in found.found


def test_another_model_than_the_served_one_is_refused_or_answered_by_it(server: RealServer) -> None:
    wrong = model(server, sent_as="nope")
    if Path(SERVER).name == "llama-server":  # it does not look at the name
        assert ask(wrong).bill is not None
    else:
        with pytest.raises(LlmError, match="requested 'nope'"):
            ask(wrong)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_hangs_is_given_up_and_asked_again(server: RealServer, stream: bool) -> None:
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(Failed, match="no whole answer") as raised:
            ask(model(server, timeout_s=0.5, stream=stream))
        assert raised.value.bill is None  # it may be answered, and billed, later
    finally:
        server.signal(signal.SIGCONT)
    assert ask(model(server, stream=stream)).bill is not None


def test_a_run_survives_its_server_and_is_resumed_within_a_hard_budget(
    server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two models, one of them streamed: both are answered by the server."""
    settings = "\n".join(
        f'[models.{name}]\nendpoint = "{server.url}"\nsent_as = "{NAME}"\nmax_tokens = 64\nstream = {stream}'
        for name, stream in (("whole", "false"), ("parts", "true"))
    )
    (tmp_path / "models.toml").write_text(settings, encoding="utf-8")
    folder = tmp_path / "run"
    command = ("run", "vector_sin", "--run-dir", str(folder), "--budget", "8", "--workers", "1", "--gpus", "none")
    models = ("--model", "whole", "--model", "parts", "--models", str(tmp_path / "models.toml"))
    operators = ("--operators", "mutate,explore")
    run = subprocess.Popen([sys.executable, "-m", "evo", *command, *models, *operators], stdout=subprocess.DEVNULL)
    wait_while(run, lambda: not (folder / "run.sqlite").exists())
    wait_while(run, lambda: sum(row["answer"] is not None for row in rows(folder)) < 2)
    server.kill()
    wait_while(run, lambda: all(row["attempts"] < 2 for row in rows(folder)))
    server.start()
    assert run.wait() == 0

    found = evo.Result.open(folder)
    assert found.stop_reason == "budget spent" and found.spent.candidates == 8
    calls = rows(folder)
    assert all(row["answer"] is not None and row["finish"] in ("stop", "length") for row in calls)
    assert max(row["attempts"] for row in calls) >= 2
    assert main(["calls", str(folder)]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["answer"] for row in calls] == [row["answer"] for row in printed]
    assert main(["replay", str(folder)]) == 0

    assert found.spent.tokens is not None
    limit = found.spent.tokens + sum(row["unsettled"] for row in calls) * 20_000 + 30_000
    found = evo.resume(folder, budget=30, max_tokens=limit)
    assert found.stop_reason == "limit on tokens or dollars reached"
    assert 8 < found.spent.candidates < 30
    calls = rows(folder)
    assert sum(row["tokens_in"] + row["tokens_out"] for row in calls) == found.spent.tokens <= limit
    assert {row["model"] for row in calls} == {"parts", "whole"}
    assert all(row["tokens_out"] <= 64 * row["attempts"] for row in calls)
    verdicts = [trial.evaluation.verdict for trial in found.trials if trial.index]
    assert len(verdicts) == found.spent.candidates and set(verdicts) <= ANSWERS


def wait_while(run: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    while condition():
        assert run.poll() is None, "the run ended too early"
        time.sleep(0.02)

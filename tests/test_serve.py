"""`evo serve` and `evo mcp` with evo's own evaluator, without a GPU: cheats are found through them as without them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import evo
from evo.cli.main import main
from evo.core.records import Verdict
from fitness.tasks.task import BUILTIN_TASKS
from tests.service_support import path, real_service
from tests.test_hacks import CORPUS, header

TASK = "vector_sin"
KERNEL = (BUILTIN_TASKS / TASK / "kernel.py").read_text()
# Quick ones of three stages; `python -m tests.service_hacks` tries all of the corpus.
CHEATS = ("cooperative_beyond", "hints_of_runs", "compiled_unsigned", "order_of_cat")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_service(tmp_path_factory.mktemp("real"), "--workers", "2") as found:
        yield found


def file_of(name: str) -> Path:
    (file,) = [each for each in CORPUS if each.stem == name]
    assert header(file)["task"] == TASK, "one evaluator is opened for all of them"
    return file


def text_of(name: str) -> str:
    return file_of(name).read_text(encoding="utf-8")


async def searched(client: Client, budget: int) -> dict[str, Any]:
    """Has a search done, and returns its best kernel."""
    started = (await client.call_tool("start_search", {"task": TASK, "budget": budget})).structured_content
    while True:
        status = (await client.call_tool("search_status", {"search": started["search"]})).structured_content
        if status["state"] != "running":
            break
        await asyncio.sleep(0.2)
    assert (status["state"], status["candidates"], status["stop_reason"]) == ("ended", budget, "budget spent"), status
    best: dict[str, Any] = (await client.call_tool("best_kernel", {"search": started["search"]})).structured_content
    return best


def test_cheats_are_not_ok_over_http_and_the_seed_kernel_is(url: str):
    with evo.Client(url, TASK) as client:
        assert client.evaluate(KERNEL).verdict is Verdict.OK
        found = dict(zip(CHEATS, client.evaluate_many(map(text_of, CHEATS)), strict=True))
    for name, evaluation in found.items():
        expected = {each.strip() for each in header(file_of(name))["verdict"].split("|")}
        assert evaluation.verdict.value in expected, f"{name}: {evaluation.message}"
        assert evaluation.verdict is not Verdict.OK


def test_a_model_lists_evaluates_and_searches_over_http(url: str):
    async def run() -> None:
        async with Client(f"{url}/mcp") as client:
            described = (await client.call_tool("describe_task", {"task": TASK})).structured_content
            assert described["seed_kernel"] == KERNEL and "torch.sin(x" in described["reference"]
            assert any("H200" in fact for fact in described["hardware"].values()) and described["rules"]
            for name in CHEATS:
                arguments = {"task": TASK, "source": text_of(name)}
                found = (await client.call_tool("evaluate_kernel", arguments)).structured_content
                assert found["state"] == "done" and found["verdict"] != "ok", name
            best = await searched(client, 1)
            assert best["speedup"] >= 1 and best["estimated"]

    asyncio.run(run())


def test_a_model_lists_evaluates_and_searches_over_stdio(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": path()}
    command = ["-m", "evo", "mcp", "--gpus", "none", "--workers", "1"]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=tmp_path)

    async def run() -> None:
        async with Client(parameters) as client:
            tasks = (await client.call_tool("list_tasks", {})).structured_content["tasks"]
            assert TASK in [task["name"] for task in tasks]
            arguments = {"task": TASK, "source": KERNEL}
            ok = (await client.call_tool("evaluate_kernel", arguments)).structured_content
            assert (ok["verdict"], ok["speedup"]) == ("ok", 1.0)
            arguments["source"] = text_of(CHEATS[0])
            assert (await client.call_tool("evaluate_kernel", arguments)).structured_content["verdict"] != "ok"
            assert "def vector_sin" in (await searched(client, 1))["source"]

    asyncio.run(run())
    assert (tmp_path / "runs" / "mcp-001" / "searches" / "local" / "vector_sin-001" / "best" / "kernel.py").exists()


# --- starting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVO_SERVICE_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "0.0.0.0"], "expected a token"),
        (["--host", "::"], "expected a token"),
        (["--allow-task-code"], "expected a token"),
        (["--token-file", "nowhere"], "expected a file of tokens"),
        (["--token-file", "short"], "at least 16"),
        (["--token-file", "odd"], "line 2"),
        (["--token-file", "empty"], "got none"),
        (["--rate", "0"], "above 0"),
        (["--queue", "0"], "from 1"),
        (["--workers", "0"], "workers"),
        (["--task", "nowhere"], "expected a task folder"),
        (["--gpus", "9"], "--gpus"),
        (["--target", "sm_1"], "sm_1"),
        (["--host", "no.such.host.invalid"], "cannot listen"),
    ],
)
def test_a_service_that_cannot_start_says_why(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
):
    (here / "short").write_text("me abc\n")
    (here / "odd").write_text("# comment\nonly-a-name\n")
    (here / "empty").write_text("# nothing\n")
    token = [] if "token" in text or "--token-file" in options else ["--token-file", "tokens"]
    (here / "tokens").write_text("me a-token-that-is-long-enough\n")
    assert main(["serve", "--port", "0", *options, *token]) == 2
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


def test_a_port_that_is_taken_is_named(here: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port]) == 2
    assert f"--port {port}: cannot listen" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_a_missing_library_is_named_with_the_extra(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
):
    for module in [name for name in sys.modules if name.partition(".")[0] == "mcp" or name == "evo.service.mcp"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main([command]) == 2
    assert 'pip install -e ".[serve]"' in capsys.readouterr().err

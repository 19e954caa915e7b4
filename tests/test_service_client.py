"""evo.Client against services in processes of their own, with an instant evaluator."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import evo
from analysis.benchmarks.instant import InstantEvaluator
from evo.core.errors import ConfigError, ServiceError, TaskError
from evo.core.records import Candidate, Evaluation
from evo.service.work import evaluation_id
from tests.service_support import TOKENS, ServerProcess, source
from tests.test_service import times_executed

TASK = "softmax"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("client"), workers=2, queue=8) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[evo.Client]:
    with evo.Client(server.url, TASK) as opened:
        yield opened


def expected(number: int) -> Evaluation:
    return InstantEvaluator().evaluate(Candidate(source(number)), seed=0, known={})


class LossyProxy:
    """Stands between a client and a service, and drops the answers of the first connections."""

    def __init__(self, port: int, losses: int) -> None:
        self._port, self._left = port, losses
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.dropped = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(line,), daemon=True).start()

    def _forward(self, line: socket.socket) -> None:
        with line, socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=self._answer, args=(server, line), daemon=True)
            back.start()
            try:
                while data := line.recv(65536):
                    server.sendall(data)
            except OSError:
                pass
            back.join(30)

    def _answer(self, server: socket.socket, line: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                if self._left:
                    self._left, self.dropped = self._left - 1, self.dropped + 1
                    line.shutdown(socket.SHUT_RDWR)
                    return
                line.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


def test_an_evaluation_is_the_record_that_the_evaluator_made(client: evo.Client):
    assert client.evaluate(source(1)) == expected(1)


def test_many_come_in_their_order_and_are_read_as_there_is_room(server: ServerProcess):
    read = []

    def sources() -> Iterator[str]:
        for number in range(100, 130):
            read.append(number)
            yield source(number)

    with evo.Client(server.url, TASK, in_flight=4) as client:
        found = client.evaluate_many(sources())
        assert next(found) == expected(100)
        assert len(read) <= 5
        assert list(found) == [expected(number) for number in range(101, 130)]


def test_more_than_the_queue_takes_at_once_are_evaluated_all_the_same(server: ServerProcess):
    numbers = range(200, 260)
    with evo.Client(server.url, TASK, in_flight=60) as client:
        assert list(client.evaluate_many(map(source, numbers))) == [expected(number) for number in numbers]


def test_coroutines_have_the_same_methods(server: ServerProcess):
    async def ask() -> None:
        with evo.Client(server.url, TASK) as client:
            both = await asyncio.gather(client.aevaluate(source(300)), client.aevaluate(source(301)))
            assert both == [expected(300), expected(301)]
            assert [each async for each in client.aevaluate_many([source(302)])] == [expected(302)]

    asyncio.run(ask())


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_executed_twice(server: ServerProcess):
    proxy = LossyProxy(server.port, losses=3)
    with evo.Client(proxy.url, TASK) as client:
        assert client.evaluate(source(400)) == expected(400)
    proxy.close()
    assert proxy.dropped == 3
    assert times_executed(server.folder, 400) == 1


def test_a_client_waits_for_a_service_that_is_killed_and_started_again(tmp_path: Path):
    with ServerProcess(tmp_path, workers=1, sleep=0.05) as server, evo.Client(server.url, TASK) as client:
        found = client.evaluate_many(map(source, range(20)))
        first = next(found)
        server.kill()
        server.start()
        assert [first, *found] == [expected(number) for number in range(20)]
        again = [number for number in range(20) if times_executed(tmp_path, number) > 1]
        assert len(again) <= 1, "only what ran when it was killed"


def test_leaving_early_cancels_what_waits(tmp_path: Path):
    with ServerProcess(tmp_path, workers=1, sleep=1.0) as server, evo.Client(server.url, TASK) as client:
        client.submit([source(0)])  # requests overtake each other: this one is first for sure
        found = client.evaluate_many(map(source, range(12)))
        next(found)
        found.close()
        last = client.submit([source(50)])[0]
        while client.status(last, wait_s=30)["state"] != "done":
            pass
        assert sum(times_executed(tmp_path, number) for number in range(12)) < 12


def test_a_request_that_waits_answers_with_the_results(server: ServerProcess, client: evo.Client):
    request = {"task": TASK, "sources": [source(400), source(401)]}
    answer = httpx.post(f"{server.url}/v1/evaluations?wait=30", json=request).json()
    assert answer["ids"] == client.submit(request["sources"]) == [each["id"] for each in answer["statuses"]]
    assert [each["state"] for each in answer["statuses"]] == ["done", "done"]
    assert answer["statuses"][1]["evaluation"]["candidate"] == Candidate(source(401)).id
    assert "statuses" not in httpx.post(f"{server.url}/v1/evaluations", json=request).json()


def test_the_parts_of_an_evaluation_can_be_asked_for_one_by_one(client: evo.Client):
    ids = client.submit([source(500), source(501)])
    assert client.status(ids[0], wait_s=30)["state"] == "done"
    assert client.cancel(ids[0])["state"] == "done"
    assert "softmax" in [task["name"] for task in client.tasks()]


def test_a_task_is_uploaded_as_data(client: evo.Client):
    tensor = {"shape": [2, 8], "dtype": "float32", "rule": "quantiles", "values": [-1, 1]}
    kernel = (Path(evo.__file__).parents[1] / "fitness/tasks/builtin/softmax/kernel.py").read_text()
    name = client.upload_task("mine", kernel, "softmax", [{"arguments": [{"tensor": tensor}]}])
    assert client.evaluate(source(600), task=name) == expected(600)
    with pytest.raises(ServiceError, match="is not a function of kernel"):
        client.upload_task("mine", kernel, "sofmax", [{"arguments": [{"tensor": tensor}]}])


def test_what_cannot_be_evaluated_says_why(client: evo.Client):
    with pytest.raises(TaskError, match="evo failed: ValueError"):
        client.evaluate("broken = 0")
    with pytest.raises(ServiceError, match="did you mean softmax") as caught:
        client.evaluate(source(1), task="sofmax")
    assert caught.value.status == 404
    for bad, text in ((7, "as text"), ("\ud800", "half a character")):
        with pytest.raises(ConfigError, match=text):
            client.evaluate(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got none"):
        evo.Client(client.url).evaluate("x")


def test_a_service_that_is_not_there_is_named_when_patience_ends():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with evo.Client(f"http://127.0.0.1:{port}", TASK, patience_s=0.2) as client:
        with pytest.raises(ServiceError, match="evo serve") as caught:
            client.evaluate("x")
        assert caught.value.status == 0
    with pytest.raises(ConfigError, match="localhost:8321"):
        evo.Client("gpu-box:8321")


class FullService:
    """Refuses each request, as a service whose queue is full does; `paths`: of the requests."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.asked = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                service.paths.append(self.path)
                self.send_response(429)
                self.end_headers()
                service.asked.set()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_client_that_closes_asks_a_full_service_once_to_drop_what_waits():
    service = FullService()
    client = evo.Client(service.url, TASK, patience_s=30)

    def evaluate() -> None:
        with pytest.raises(CancelledError):
            client.evaluate(source(1))

    waiting = threading.Thread(target=evaluate)
    waiting.start()
    assert service.asked.wait(30)
    client.close()
    waiting.join()
    service.close()
    assert service.paths.count("/v1/evaluations") == 1, service.paths


def test_a_token_comes_from_the_environment_or_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EVO_SERVICE_TOKEN", TOKENS["default"])
    with ServerProcess(tmp_path) as server:
        with evo.Client(server.url, TASK) as client:
            assert client.evaluate(source(1)) == expected(1)
        with evo.Client(server.url, TASK, token="another") as client, pytest.raises(ServiceError, match="401"):
            client.evaluate(source(1))


def test_equal_requests_have_equal_ids():
    ids: dict[Any, str] = {key: evaluation_id(*key) for key in [("t", "a"), ("t", "b"), ("u", "a")]}
    assert len(set(ids.values())) == 3
    assert evaluation_id("t", "a") == ids["t", "a"]

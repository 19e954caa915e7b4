"""The service over real HTTP, with an instant evaluator in a process of its own (`tests/service_support.py`)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis.benchmarks.bench_service import HOLD, LOG, META
from analysis.benchmarks.instant import SEED_SOURCE
from evo.service.work import evaluation_id
from evo.storage.requests import RequestStore
from tests.service_support import TOKENS, ServerProcess, call, message, source, submit

WAIT = "?wait=30"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A service whose evaluations are instant; each test uses sources of its own."""
    with ServerProcess(tmp_path_factory.mktemp("quick"), workers=2) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a service of its own in `tmp_path`."""
    started: list[ServerProcess] = []

    def new(**options: Any) -> ServerProcess:
        started.append(ServerProcess(tmp_path, **{"workers": 1, **options}))
        return started[-1]

    yield new
    for server in started:
        server.__exit__()


def status(server: ServerProcess, evaluation: str, wait: str = WAIT) -> dict[str, Any]:
    answer = call(server, "GET", f"/v1/evaluations/{evaluation}{wait}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """No evaluation of the service in `folder` ends meanwhile."""
    (folder / HOLD).touch()
    yield
    (folder / HOLD).unlink()


def until_running(server: ServerProcess, evaluation: str) -> None:
    while status(server, evaluation, "")["state"] == "queued":
        time.sleep(0.01)


def executions(folder: Path) -> Counter[str]:
    """How often each source was executed, by the id that the log has."""
    log = folder / LOG
    return Counter(line.split()[0] for line in log.read_text().splitlines()) if log.exists() else Counter()


def times_executed(folder: Path, number: int) -> int:
    return executions(folder)[evaluation_id("instant", source(number))]


# --- evaluations -----------------------------------------------------------------------------------------------------


def test_one_request_is_evaluated_and_says_how_long_it_waited_and_ran(quick: ServerProcess):
    answer = call(quick, "POST", "/v1/evaluations", json={"task": "softmax", "source": source(1)})
    assert answer.status_code == 202
    (found,) = answer.json()["ids"]
    ended = status(quick, found)
    assert (ended["id"], ended["state"], ended["error"]) == (found, "done", "")
    assert ended["evaluation"]["verdict"] in ("ok", "wrong")
    assert ended["queue_s"] >= 0 and ended["execution_s"] >= 0


def test_a_batch_keeps_its_order_and_its_repetitions(quick: ServerProcess):
    ids = submit(quick, source(2), source(3), source(2))
    assert ids[0] == ids[2] != ids[1]
    assert status(quick, ids[1])["state"] == "done"


def test_the_same_request_is_the_same_evaluation_for_all_and_is_executed_once(quick: ServerProcess):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: submit(quick, source(4), client=f"c{n}")[0], range(24)))
    assert len(set(found)) == 1
    assert status(quick, found[0])["state"] == "done"
    assert submit(quick, source(4)) == found[:1]
    assert status(quick, found[0], "")["state"] == "done"
    assert times_executed(quick.folder, 4) == 1
    assert submit(quick, source(4), task="matmul") != found[:1], "another task is another evaluation"


def test_a_fault_of_evo_fails_one_evaluation_and_it_can_be_asked_for_again(quick: ServerProcess):
    broken = "no_genes = 1  # on which the instant evaluator stumbles\n" * 3
    found = next(
        each
        for each in (submit(quick, f"{broken}x = {number}")[0] for number in range(20))
        if status(quick, each)["state"] == "failed"
    )
    assert "evo failed: ValueError" in status(quick, found)["error"]
    assert status(quick, submit(quick, source(5))[0])["state"] == "done"


def test_what_waits_can_be_cancelled_and_what_runs_cannot(start: Callable[..., ServerProcess], tmp_path: Path):
    server = start()
    with held(tmp_path):
        running, waiting = submit(server, source(1), source(2))
        until_running(server, running)
        assert call(server, "DELETE", f"/v1/evaluations/{running}").json()["state"] == "running"
        assert call(server, "DELETE", f"/v1/evaluations/{waiting}").json()["state"] == "cancelled"
    assert status(server, running)["state"] == "done"
    assert status(server, waiting)["state"] == "cancelled"
    assert submit(server, source(2)) == [waiting]
    assert status(server, waiting)["state"] == "done"


def test_nobody_cancels_what_another_asked_for_too(start: Callable[..., ServerProcess], tmp_path: Path):
    server = start()
    headers = {"Evo-Client": "ann"}
    with held(tmp_path):
        first, shared = submit(server, source(1), source(2), client="ann")
        submit(server, source(2), client="bob")
        assert call(server, "DELETE", f"/v1/evaluations/{shared}", headers=headers).json()["state"] == "queued"
    assert status(server, shared)["state"] == "done"
    assert status(server, first)["state"] == "done"


def test_a_client_with_few_kernels_does_not_wait_for_one_with_many(start: Callable[..., ServerProcess], tmp_path: Path):
    server = start(sleep=0.05)  # all of "many" would take five seconds
    submit(server, *map(source, range(100)), client="many")
    for each in submit(server, source(1000), source(1001), client="few"):
        assert status(server, each)["state"] == "done"
    order = [line.split()[0] for line in (tmp_path / LOG).read_text().splitlines()]
    first, second = (order.index(evaluation_id("instant", source(number))) for number in (1000, 1001))
    assert second - first == 2, "one of the other client's lies between"


# --- surviving -------------------------------------------------------------------------------------------------------


def test_what_was_accepted_survives_kill_9_and_what_is_done_is_not_done_again(
    start: Callable[..., ServerProcess], tmp_path: Path
):
    server = start(sleep=0.05)
    ids = submit(server, *map(source, range(20)))
    for alive in (4, 10):
        assert status(server, ids[alive])["state"] == "done"
        server.kill()
        server.start()
    assert [status(server, each)["state"] for each in ids] == ["done"] * 20
    again = [number for number in range(20) if times_executed(tmp_path, number) > 1]
    assert len(again) <= 2, "only what ran when it was killed"
    assert all(number >= 4 for number in again)


def test_sigterm_finishes_what_runs_keeps_what_waits_and_answers_all(
    start: Callable[..., ServerProcess], tmp_path: Path
):
    server = start()
    with ThreadPoolExecutor(2) as pool:
        with held(tmp_path):
            running, *waiting = submit(server, source(1), source(2), source(3))
            until_running(server, running)
            of_running, of_waiting = (pool.submit(status, server, each) for each in (running, waiting[0]))
            until_waited_for(server, 2)
            assert server.process is not None
            server.process.terminate()
            assert of_waiting.result()["state"] == "queued"
        assert of_running.result()["state"] == "done"
        assert server.process.wait() == 0
    store = RequestStore(tmp_path, META)
    assert sorted(job.id for job in store.queued()) == sorted(waiting)
    store.close()
    server.start()
    assert [status(server, each)["state"] for each in waiting] == ["done", "done"]
    assert set(executions(tmp_path).values()) == {1}


def until_waited_for(server: ServerProcess, requests: int) -> None:
    """Until this number of requests wait for a result: they were sent and not answered."""
    while f"evo_waiting_requests {requests}.0" not in call(server, "GET", "/metrics").text:
        time.sleep(0.01)


def test_a_service_that_stops_takes_no_more_work(start: Callable[..., ServerProcess], tmp_path: Path):
    server = start()
    with httpx.Client(base_url=server.url) as client, held(tmp_path):
        (running,) = submit(server, source(1))
        client.get("/healthz")  # a connection that is open already
        waiting = threading.Thread(target=status, args=(server, running))
        waiting.start()
        until_waited_for(server, 1)
        assert server.process is not None
        server.process.terminate()
        try:
            answer = client.post("/v1/evaluations", json={"task": "softmax", "source": source(2)})
            assert answer.status_code == 503 and "stopping" in message(answer)
            assert answer.headers["retry-after"]
        except httpx.TransportError:
            pass  # it was closed already: the client asks again, too
    waiting.join()
    assert server.process.wait() == 0


# --- bad input -------------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}
BAD: dict[str, tuple[str, str, dict[str, Any], int, str]] = {
    "malformed JSON": ("POST", "/v1/evaluations", {"content": b'{"task": "soft', "headers": JSON}, 400, "JSON"),
    "binary": ("POST", "/v1/evaluations", {"content": bytes(range(256)) * 40, "headers": JSON}, 400, "expected JSON"),
    "nested": ("POST", "/v1/evaluations", {"content": b"[" * 100_000, "headers": JSON}, 400, "JSON"),
    "another type": ("POST", "/v1/evaluations", {"data": {"task": "softmax"}}, 415, "expected application/json"),
    "no body": ("POST", "/v1/evaluations", {"headers": JSON}, 422, "body"),
    "a list": ("POST", "/v1/evaluations", {"json": []}, 422, "body"),
    "unknown task": (
        "POST", "/v1/evaluations", {"json": {"task": "softmaks", "source": "x"}}, 404, "did you mean softmax"
    ),
    "a path as task": (
        "POST", "/v1/evaluations", {"json": {"task": "../../etc", "source": "x"}}, 404, "expected one of"
    ),
    "no source": ("POST", "/v1/evaluations", {"json": {"task": "softmax"}}, 422, "either source"),
    "both": (
        "POST", "/v1/evaluations", {"json": {"task": "softmax", "source": "x", "sources": ["y"]}}, 422, "either source"
    ),
    "no text": ("POST", "/v1/evaluations", {"json": {"task": "softmax", "source": 7}}, 422, "source"),
    "half a character": (
        "POST", "/v1/evaluations", {"content": rb'{"task": "softmax", "source": "\ud800"}', "headers": JSON},
        422, "source",
    ),
    "an empty batch": ("POST", "/v1/evaluations", {"json": {"task": "softmax", "sources": []}}, 422, "sources"),
    "a large batch": (
        "POST", "/v1/evaluations", {"json": {"task": "softmax", "sources": ["x"] * 257}}, 422, "at most 256"
    ),
    "an unknown field": (
        "POST", "/v1/evaluations", {"json": {"task": "softmax", "source": "x", "sede": 1}}, 422, "sede"
    ),
    "50 MB": (
        "POST", "/v1/evaluations", {"json": {"task": "softmax", "source": "x" * 50_000_000}}, 413, "at most 8388608"
    ),
    "50 MB in pieces": (
        "POST", "/v1/evaluations", {"content": (b"x" * 500_000 for _ in range(100)), "headers": JSON}, 413, "at most"
    ),
    "unknown id": ("GET", "/v1/evaluations/0123", {}, 404, "no evaluation '0123'"),
    "a long wait": ("GET", "/v1/evaluations/0123?wait=1e9", {}, 422, "wait"),
    "unknown path": ("GET", "/v2/evaluations", {}, 404, "/v2/evaluations"),
    "another method": ("PUT", "/v1/tasks", {"json": {}}, 405, "Method Not Allowed"),
    "a client's name": ("GET", "/v1/tasks", {"headers": {"Evo-Client": "x" * 99}}, 400, "Evo-Client"),
    "task code": (
        "POST", "/v1/tasks", {"json": {"name": "mine", "kernel": "x = 1", "task": "import os"}},
        403, "--allow-task-code",
    ),
    "a page of a browser": ("GET", "/v1/tasks", {"headers": {"Origin": "http://evil.example"}}, 403, "token"),
    "another host's name": ("GET", "/v1/tasks", {"headers": {"Host": "evil.example"}}, 403, "token"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_clear_error(quick: ServerProcess, name: str):
    method, path, more, expected, text = BAD[name]
    answer = call(quick, method, path, **more)
    assert answer.status_code == expected, answer.text
    assert text in message(answer)


@pytest.mark.parametrize(
    ("header", "got"),
    [({}, "got none"), ({"Authorization": "Bearer wrong"}, "not known"), ({"Authorization": "Basic abc"}, "not known")],
)
def test_without_the_right_token_nothing_is_said(
    start: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch, header: dict[str, str], got: str
):
    monkeypatch.setenv("EVO_SERVICE_TOKEN", TOKENS["default"])
    server = start()
    for path in ("/v1/tasks", "/metrics", "/mcp"):
        answer = call(server, "GET", path, headers=header)
        assert answer.status_code == 401 and got in message(answer)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert call(server, "GET", "/healthz").status_code == 200
    right = {"Authorization": f"Bearer {TOKENS['default']}", "Host": "gpu-box", "Origin": "http://gpu-box"}
    assert call(server, "GET", "/v1/tasks", headers=right).status_code == 200


def resident_mb(server: ServerProcess) -> float:
    assert server.process is not None
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def test_large_requests_at_once_are_refused_and_memory_stays_bounded(quick: ServerProcess):
    before = resident_mb(quick)

    def send(number: int) -> int:
        return call(quick, "POST", "/v1/evaluations", content=b"x" * 20_000_000, headers=JSON).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(send, range(24))) == {413}
    assert resident_mb(quick) - before < 100


def test_many_requests_at_once_are_all_answered(start: Callable[..., ServerProcess]):
    server = start(requests=20, sleep=0, workers=2)
    waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    head = f"POST /v1/evaluations HTTP/1.1\r\nHost: localhost\r\ncontent-type: {JSON['content-type']}\r\n"
    for line in waiting:  # each holds one of the 20 places: its body never comes
        line.sendall(f"{head}content-length: 100\r\n\r\n".encode())
    while (answer := call(server, "GET", "/v1/tasks")).status_code == 200:
        time.sleep(0.01)
    assert answer.status_code == 429 and "requests at once" in message(answer)
    assert int(answer.headers["retry-after"]) >= 1
    assert call(server, "GET", "/healthz").status_code == 200
    for line in waiting:
        line.close()
    while call(server, "GET", "/v1/tasks").status_code != 200:
        time.sleep(0.01)


def test_a_body_that_does_not_come_is_not_waited_for(start: Callable[..., ServerProcess]):
    server = start(**{"body-s": 0.3})
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(b"POST /v1/evaluations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        line.sendall(b"Content-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: line.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 408") and b"within 0.3 s" in answer


def test_a_full_queue_says_when_to_come_back_and_keeps_nothing_of_the_batch(
    start: Callable[..., ServerProcess], tmp_path: Path
):
    server = start(queue=3)
    with held(tmp_path):
        until_running(server, submit(server, source(0))[0])
        submit(server, *map(source, range(1, 4)))
        answer = call(server, "POST", "/v1/evaluations", json={"task": "softmax", "sources": [source(8), source(9)]})
        assert answer.status_code == 429 and "room for 0 and these are 2" in message(answer)
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert call(server, "GET", f"/v1/evaluations/{evaluation_id('x', source(8))}").status_code == 404
        assert submit(server, source(2)), "what waits already needs no room"


# --- the rest --------------------------------------------------------------------------------------------------------


def test_tasks_health_and_figures(quick: ServerProcess):
    tasks = call(quick, "GET", "/v1/tasks").json()["tasks"]
    (softmax,) = [each for each in tasks if each["name"] == "softmax"]
    assert softmax["title"].startswith("Softmax of each row") and len(softmax["hash"]) == 64
    assert not softmax["uploaded"]
    assert call(quick, "GET", "/healthz").json()["status"] == "ok"
    status(quick, submit(quick, source(77))[0])
    figures = call(quick, "GET", "/metrics").text
    assert 'evo_evaluations_total{verdict="ok"}' in figures
    assert "evo_queue_seconds_count" in figures and "evo_execution_seconds_bucket" in figures


def test_the_description_of_the_interface_names_all_of_it(quick: ServerProcess):
    paths = call(quick, "GET", "/openapi.json").json()["paths"]
    assert set(paths) == {"/v1/evaluations", "/v1/evaluations/{id}", "/v1/tasks", "/healthz", "/metrics"}
    assert call(quick, "GET", "/docs").status_code == 200


def test_the_evaluation_is_what_the_evaluator_returned(quick: ServerProcess):
    from analysis.benchmarks.instant import InstantEvaluator
    from evo.core.records import Candidate, evaluation_from_json

    ended = status(quick, submit(quick, SEED_SOURCE)[0])
    expected = InstantEvaluator().evaluate(Candidate(SEED_SOURCE), seed=0, known={})
    assert evaluation_from_json(json.dumps(ended["evaluation"])) == expected

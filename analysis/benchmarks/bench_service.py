"""Measures what the service costs an evaluation, and that it loses none: real HTTP, with an evaluator that is instant.

    python -m analysis.benchmarks.bench_service

32 clients in 4 processes ask for 2,000 evaluations at a given rate, while the service is killed by SIGKILL three times.
The overhead of an evaluation is the client's time from request to result; the evaluator takes next to nothing of it.
Evaluations that a kill touched are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from analysis.benchmarks.instant import SEED_SOURCE, InstantEvaluator
from evo.core.records import Bar, Candidate, Evaluation
from evo.service.client import Client
from evo.service.work import evaluation_id
from evo.storage.requests import RequestStore

CLIENTS, PROCESSES, EVALUATIONS, KILLS = 32, 4, 2000, 3
RATE = 60.0  # evaluations a second of all clients: more than eight GPUs measure
LIMIT_MS = 5.0
META = {"evaluator": "instant"}
LOG = "executed.log"  # in the folder of the service: a line for each execution, when it begins
HOLD = "hold"  # a file there; as long as it exists no evaluation ends


# --- a service with an instant evaluator -----------------------------------------------------------------------------


class LoggedEvaluator(InstantEvaluator):
    """Takes `sleep_s` for each evaluation, and notes its beginning."""

    def __init__(self, log: Path, sleep_s: float) -> None:
        self._log, self._sleep_s = log, sleep_s

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        with self._log.open("a") as file:
            file.write(f"{evaluation_id('instant', candidate.source)} {time.time()}\n")
        time.sleep(self._sleep_s)
        while (self._log.parent / HOLD).exists():
            time.sleep(0.01)
        return super().evaluate(candidate, seed=seed, known=known, bar=bar)

    def prepare(self) -> Evaluation:
        return InstantEvaluator.evaluate(self, Candidate(SEED_SOURCE), seed=0, known={})


class InstantFactory:
    """Opens them."""

    def __init__(self, log: Path, sleep_s: float) -> None:
        self._log, self._sleep_s = log, sleep_s

    def open(self, task: Any) -> LoggedEvaluator:
        return LoggedEvaluator(self._log, self._sleep_s)

    def close(self) -> None:
        pass


def serve_instant(arguments: argparse.Namespace) -> None:
    """Runs a service with the built-in tasks, whose evaluator is instant, until it is stopped."""
    from evo.service.app import listen, make_app, serve
    from evo.service.guard import Access, Limits, read_tokens
    from evo.service.mcp import make_server
    from evo.service.searches import SearchDevices, Searches
    from evo.service.tasks import TaskRegistry
    from evo.service.work import Service, Settings
    from fitness.frontend.target import get_target

    folder = Path(arguments.serve)
    store = RequestStore(folder, META)
    tasks = TaskRegistry(store, folder / "tasks", ())
    factory = InstantFactory(folder / LOG, arguments.sleep)
    settings = Settings(workers=arguments.workers, queue=arguments.queue)
    service = Service(store, factory, lambda task_hash: None, settings)  # type: ignore[arg-type, return-value]
    searches = Searches(folder / "searches", SearchDevices(gpus="none"), lambda: service.draining)
    server = make_server(service, tasks, searches, get_target("sm_90"))
    limits = Limits(requests=arguments.requests, body_s=arguments.body_s)
    app = make_app(service, tasks, Access(read_tokens(None, os.environ)), limits, server)
    with listen("127.0.0.1", arguments.port) as bound:
        serve(app, service, bound)
    service.draining = True
    searches.close()


class ServerProcess:
    """A process that serves.  `kill` and `start` may be called again and again; the port stays the same."""

    def __init__(self, folder: Path, **options: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.folder, self._options = folder, options
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = [text for name, value in self._options.items() for text in (f"--{name}", str(value))]
        command = [sys.executable, "-m", *self.module(), str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen([*command, *options])
        while not self._answers():
            if self.process.poll() is not None:
                raise RuntimeError(f"the service left with {self.process.returncode}")
            time.sleep(0.02)

    def module(self) -> tuple[str, ...]:
        """The module that serves, and its arguments up to the folder."""
        return __spec__.name, "--serve"

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and waits for the end; the exit code."""
        assert self.process is not None
        self.process.send_signal(by)
        return self.process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def source(number: int) -> str:
    """A kernel for each number, all different."""
    return SEED_SOURCE.replace("GENES=(100, 100, 100)", f"GENES=({number}, {number % 7}, {number % 11})")


# --- clients ---------------------------------------------------------------------------------------------------------


def run_clients(url: str, first: int, count: int, evaluations: int, rate: float) -> None:
    """`count` clients, which share `evaluations` from number `first` on; a line of JSON for each to stdout."""

    def run(client: int) -> list[dict[str, float]]:
        times = []
        with Client(url, "softmax", name=f"client-{first + client}") as asking:
            begin, step = time.monotonic(), count / rate if rate else 0.0
            for turn, number in enumerate(range(first + client, first + evaluations, count)):
                time.sleep(max(0.0, begin + (turn + client / count) * step - time.monotonic()))
                at, clock = time.time(), time.perf_counter()
                evaluation = asking.evaluate(source(number))
                seconds = time.perf_counter() - clock
                assert evaluation.candidate == Candidate(source(number)).id
                times.append({"at": at, "seconds": seconds})
        return times

    with ThreadPoolExecutor(count) as pool:
        for times in pool.map(run, range(count)):
            for each in times:
                print(json.dumps(each))


@contextlib.contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """Clients that send a byte of their request a second, and read nothing."""
    over = threading.Event()

    def dribble() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as line:
                head = "POST /v1/evaluations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                line.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())
                while not over.wait(1):
                    line.sendall(b" ")
            over.wait(0.2)

    threads = [threading.Thread(target=dribble, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


# --- the benchmark ---------------------------------------------------------------------------------------------------


def measure(folder: Path, *, kills: int, rate: float, slow: int, evaluations: int = EVALUATIONS) -> dict[str, Any]:
    """Runs the clients against a new service in `folder`; figures."""
    outages: list[tuple[float, float]] = []
    with ServerProcess(folder, workers=2) as server, slow_clients(server.port, slow):
        share, cpu_s = evaluations // PROCESSES, server.cpu_s()
        begin = time.perf_counter()
        clients = [
            subprocess.Popen(
                [sys.executable, "-m", __spec__.name, "--clients", server.url, str(number * share), str(share)]
                + [str(rate / PROCESSES)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(PROCESSES)
        ]
        for number in range(kills):
            while _executions(folder) < (number + 1) * evaluations // (kills + 1):
                time.sleep(0.05)
            down = time.time()
            server.kill()
            server.start()
            outages.append((down, time.time()))
        lines = [json.loads(line) for client in clients for line in client.communicate()[0].splitlines()]
        seconds = time.perf_counter() - begin
        failed = sum(client.returncode != 0 for client in clients)
        cpu = {} if kills else {"cpu_ms": round((server.cpu_s() - cpu_s) / evaluations * 1000, 2)}
        server.stop()
    return {**_figures(lines, outages, seconds), **cpu, **_checked(folder), "clients_failed": failed}


def _executions(folder: Path) -> int:
    log = folder / LOG
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _figures(lines: list[dict[str, float]], outages: list[tuple[float, float]], seconds: float) -> dict[str, Any]:
    """Percentiles of the overhead, without the evaluations that an outage touched."""
    calm = [
        line["seconds"] * 1000
        for line in lines
        if not any(line["at"] < up + 1 and line["at"] + line["seconds"] > down for down, up in outages)
    ]
    ordered = sorted(calm)
    return {
        "results": len(lines),
        "untouched": len(calm),
        "p50_ms": round(ordered[len(ordered) // 2], 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 2),
        "max_ms": round(ordered[-1], 2),
        "longest_s": round(max(line["seconds"] for line in lines), 2),
        "per_second": round(len(lines) / seconds, 1),
    }


def _checked(folder: Path) -> dict[str, Any]:
    """Counts, from the store and the log, what was stored, executed again, and executed after it had finished."""
    executed: dict[str, list[float]] = {}
    for line in (folder / LOG).read_text().splitlines():
        name, at = line.split()
        executed.setdefault(name, []).append(float(at))
    store = RequestStore(folder, META)
    try:
        ends = {name: found.ended for name in store.ids() if (found := store.find(name)) is not None}
        sources = {evaluation_id("instant", store.source(name)): name for name in ends}
    finally:
        store.close()
    late = Counter(name for name, times in executed.items() for at in times if at > (ends[sources[name]] or 0))
    return {
        "stored": sum(end is not None for end in ends.values()),
        "executed_again": sum(len(times) - 1 for times in executed.values()),
        "executed_after_the_end": late.total(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=RATE, help="evaluations a second; 0: as fast as it goes")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sleep", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--queue", type=int, default=4096, help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=1024, help=argparse.SUPPRESS)
    parser.add_argument("--body-s", type=float, default=30.0, dest="body_s", help=argparse.SUPPRESS)
    parser.add_argument("--clients", nargs=4, metavar=("URL", "FIRST", "N", "RATE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_instant(arguments)
        return 0
    if arguments.clients:
        url, first, count, rate = arguments.clients
        run_clients(url, int(first), CLIENTS // PROCESSES, int(count), float(rate))
        return 0
    good = True
    for kills, slow in ((0, 0), (0, 8), (KILLS, 8)):
        with tempfile.TemporaryDirectory(prefix="evo-bench-") as folder:
            found = measure(Path(folder), kills=kills, rate=arguments.rate, slow=slow)
        print(f"{kills} kills, {slow} slow clients: {json.dumps(found)}", flush=True)
        complete = found["results"] == found["stored"] == EVALUATIONS
        good &= complete and found["executed_after_the_end"] == 0 and found["p99_ms"] <= LIMIT_MS
    print(
        f"limit: p99 of {LIMIT_MS:g} ms, nothing lost, nothing executed after its end: {'kept' if good else 'MISSED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

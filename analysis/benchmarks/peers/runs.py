"""Makes the runs of the comparison: a service that evaluates, and for each run a model server and an engine's process.

A run's folder has `run.json` (its settings) and the engine's own files.  `answers.jsonl` has each answer of the model,
`evaluations.jsonl` what the engine asked the service.  `done.json` comes at the end; a run that has it is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.benchmarks.endpoint import Endpoint, Reply
from analysis.benchmarks.peers.evaluations import EVALUATIONS, HOLD, append, lines
from analysis.benchmarks.peers.model import AnswerShares, FixedModel
from analysis.benchmarks.peers.prompts import UnknownPromptError, marked, name_of
from evo.core.errors import ConfigError, EvoError
from fitness.tasks.task import BUILTIN_TASKS

ROOT = Path(__file__).parents[3]
ANSWERS, DONE, LOG = "answers.jsonl", "done.json", "engine.log"
RUN_LIMIT_S = 3600.0  # an engine that takes longer hangs.
QUIET_S = 1.0  # how long no evaluation may run before an engine with all its answers is ended.
HELD_S = 30.0  # an engine evaluates an answer that soon, or it did not read it


@dataclass(frozen=True)
class Contestant:
    """A search that is compared: the driver of its engine, and evo's strategy.

    checkpoint: OpenEvolve's interval of checkpoints; None: its default, 100.
    """

    name: str
    driver: str
    strategy: str = ""
    checkpoint: int | None = None


CONTESTANTS: Mapping[str, Contestant] = {
    c.name: c
    for c in (
        Contestant("evo", "evo", "evolve"),
        Contestant("openevolve", "openevolve"),
        Contestant("shinka", "shinka"),
        Contestant("best-of-n", "evo", "best-of-n"),
        Contestant("random", "evo", "random"),
    )
}
EVERY_ITERATION = Contestant("openevolve-checkpoints", "openevolve", checkpoint=1)  # for the test of kills alone


@dataclass(frozen=True)
class Run:
    """One search.

    kill_after: the engine's processes get SIGKILL while it evaluates the first kernel from that answer on; None: never.
    """

    contestant: Contestant
    task: str
    seed: int
    proposals: int
    kill_after: int | None = None

    @property
    def name(self) -> str:
        killed = "" if self.kill_after is None else ".killed"
        return f"{self.task}.{self.contestant.name}.{self.seed}{killed}"


@contextmanager
def service(folder: Path, gpus: str, workers: int) -> Iterator[str]:
    """Starts `evo serve` with its state in the folder; the address.  Raises EvoError if it does not start."""
    command = [sys.executable, "-m", "evo", "serve", "--port", "0", "--dir", str(folder), "--gpus", gpus]
    process = subprocess.Popen(
        [*command, "--workers", str(workers)],
        env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = next((m[1] for line in process.stdout if (m := re.search(r"serving on (http://\S+)", line))), None)
        if said is None:
            raise EvoError(f"expected `evo serve` to start, it ended with {process.wait()}; run it by hand")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield said
    finally:
        process.terminate()
        process.wait()


def execute(run: Run, folder: Path, url: str, python: str, habits: AnswerShares) -> dict[str, Any]:
    """Makes the run in the folder, or reads it if it is done; the content of `done.json`.

    url: of the service.  python: the interpreter of the peers' environment.  What an unfinished run left is removed.
    Raises EvoError if the engine fails.
    """
    if (folder / DONE).exists():
        found: dict[str, Any] = json.loads((folder / DONE).read_text(encoding="utf-8"))
        return found
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    seed_source = (BUILTIN_TASKS / run.task / "kernel.py").read_text(encoding="utf-8")
    (folder / "initial.py").write_text(marked(seed_source), encoding="utf-8")
    with _Host(run, folder, habits) as host:
        settings = {
            "driver": run.contestant.driver, "strategy": run.contestant.strategy, "task": run.task, "seed": run.seed,
            "checkpoint": run.contestant.checkpoint, "proposals": run.proposals, "service": url, "model": host.url,
        }  # fmt: skip
        (folder / "run.json").write_text(json.dumps(settings), encoding="utf-8")
        interpreter = sys.executable if run.contestant.driver == "evo" else python
        if run.kill_after is not None:
            host.engine(interpreter)
            host.go_on()
        host.engine(interpreter)
        result = host.result()
    (folder / DONE).write_text(json.dumps(result), encoding="utf-8")
    return result


@dataclass
class _Host:
    """The model server of a run, and the process of its engine."""

    run: Run
    folder: Path
    habits: AnswerShares
    cpu: list[float] = field(default_factory=list)  # of the engine's processes, when each request came.
    killed: bool = False
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._model = FixedModel(self.run.seed, self.habits)
        self._lock, self._answers = threading.Lock(), 0
        self._killing = threading.Event()  # the engine is to be killed.
        self._enough = threading.Event()  # one request more than the proposals has come.
        self._over = threading.Event()
        self._endpoint = Endpoint(self._reply)
        self.url = self._endpoint.url

    def _reply(self, body: dict[str, Any], _: int) -> Reply:
        """Answers, or waits if the engine is to be killed or has all its answers."""
        if self.process is not None:
            self.cpu.append(cpu_seconds(self.process.pid))
        with self._lock:
            # After a kill an engine may ask for some answers again, which shows in the number of answers.
            enough = self._answers >= self.run.proposals and self.run.kill_after is None
            if not enough and not self._killing.is_set():
                return self._answer(body)
        if enough:
            self._enough.set()
        self._over.wait()
        return Reply(status=503)

    def _answer(self, body: dict[str, Any]) -> Reply:
        number, came = self._answers, time.time()
        self._answers += 1
        try:
            answer = self._model.answer(body["messages"], number)
        except UnknownPromptError as error:
            append(self.folder / ANSWERS, {"number": number, "kind": "unknown prompt", "came": came, "sent": came})
            return Reply(status=400, body=json.dumps({"error": {"message": str(error)}}).encode())
        name = None if answer.source is None else name_of(answer.source)
        append(
            self.folder / ANSWERS,
            {
                "number": number, "kind": answer.kind, "note": answer.note, "parent": name_of(answer.parent),
                "id": name, "came": came, "sent": time.time() + answer.delay_s,
            },
        )  # fmt: skip
        if self.run.kill_after is not None and not self.killed and name and number + 1 >= self.run.kill_after:
            (self.folder / HOLD).touch()
            self._killing.set()
            threading.Thread(target=self._kill_within, args=(name,)).start()
        tokens = len(json.dumps(body["messages"])) // 4, len(answer.text) // 4
        return Reply(text=answer.text, finish=answer.finish, tokens=tokens, delay_s=answer.delay_s)

    def _kill_within(self, name: str) -> None:
        """Kills the engine while it evaluates a kernel, or later if it does not."""
        end = time.monotonic() + HELD_S
        path, before = self.folder / EVALUATIONS, len(lines(self.folder / EVALUATIONS))
        while time.monotonic() < end and not any(event.get("id") == name for event in lines(path)[before:]):
            time.sleep(0.05)
        self.killed = True
        self._kill()

    def engine(self, python: str) -> None:
        """Starts the engine and waits for its end, or until it has its answers and evaluated them."""
        command = [python, "-m", "analysis.benchmarks.peers.drive", str(self.folder)]
        with (self.folder / LOG).open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=_environment(), stdout=log, stderr=log, start_new_session=True
            )
        begin, was_killed = time.monotonic(), self.killed
        while (code := self.process.poll()) is None:
            if self._enough.is_set() and self._quiet():
                break
            if time.monotonic() - begin > RUN_LIMIT_S:
                self._kill()
                raise EvoError(f"{self.run.name}: the engine ran for more than {RUN_LIMIT_S:g} s; see {self.folder}")
            time.sleep(0.1)
        self._kill()  # also what an engine leaves behind
        self.process.wait()
        if code not in (None, 0) and self.killed == was_killed:
            raise EvoError(f"{self.run.name}: the engine ended with code {code}; see {self.folder / LOG}")

    def _quiet(self) -> bool:
        """Whether each evaluation that began is over, since a while."""
        events = lines(self.folder / EVALUATIONS)
        begun = sum(e["event"] == "begin" for e in events) - sum(e["event"] == "end" for e in events)
        return begun == 0 and bool(events) and time.time() - events[-1]["at"] > QUIET_S

    def _kill(self) -> None:
        assert self.process is not None
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def go_on(self) -> None:
        """Answers again, after the engine was killed.  Raises EvoError if it was not."""
        if not self.killed:
            raise EvoError(f"{self.run.name}: expected to kill the engine, it ended before; give more --proposals")
        append(self.folder / EVALUATIONS, {"event": "killed", "at": time.time(), "answers": self._answers})
        (self.folder / HOLD).unlink()
        self._killing.clear()

    def result(self) -> dict[str, Any]:
        return {"run": self.run.name, "cpu_s": self.cpu, "python": sys.version.split()[0]}

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.process is not None and self.process.poll() is None:
            self._kill()
        self._endpoint.close()


def cpu_seconds(session: int) -> float:
    """CPU seconds of all processes of a session, with their children that ended; from /proc (Linux)."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def find_python(given: Path | None) -> str:
    """The interpreter of the peers' environment.  Raises ConfigError if it does not exist."""
    path = given or ROOT / ".venv-peers" / "bin" / "python"
    if not path.exists():
        raise ConfigError(f"expected the peers' environment at {path}, got none; run `make peers`, or give --python")
    return str(path.absolute())


def _environment() -> dict[str, str]:
    """The environment of a process that imports evo from this checkout, with one thread for each library."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

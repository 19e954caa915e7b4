"""The evaluator of the comparison: a client of `evo serve` that writes down what an engine asks and when.

Each engine calls it by the function that evo has for it (`evo.adapters`); evo's own engine by `ServiceEvaluator`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.benchmarks.peers.prompts import name_of
from evo.core.records import Bar, Candidate, Certificate, Evaluation, Profile, Verdict
from evo.service.client import Client

if TYPE_CHECKING:
    from typing import Self

EVALUATIONS = "evaluations.jsonl"
HOLD = "hold"  # while a run's folder has this file, evaluations wait to be killed


class LoggedClient:
    """`evo.Client` for one task, with a line in a file when an evaluation begins and one when it ends."""

    def __init__(self, url: str, task: str, log: Path) -> None:
        self._client, self._log = Client(url, task), log

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """The client of the run whose `run.json` is in the folder."""
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return cls(run["service"], run["task"], folder / EVALUATIONS)

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
        for source in sources:
            yield self.evaluate(source)

    def evaluate(self, source: str) -> Evaluation:
        name = name_of(source)
        append(self._log, {"event": "begin", "id": name, "at": time.time()})
        while (self._log.parent / HOLD).exists():
            time.sleep(0.05)
        found = self._client.evaluate(source)
        speedup = found.speedup or 0.0
        append(self._log, {"event": "end", "id": name, "at": time.time(), "verdict": found.verdict, "speedup": speedup})
        return found

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServiceEvaluator:
    """The evaluator of evo's engine that asks the service.

    It cannot screen drafts or profile kernels: the settings of the runs ask for neither.
    """

    environment: Mapping[str, Any] = {"evaluator": "service"}

    def __init__(self, client: LoggedClient, seed_source: str) -> None:
        self._client, self._seed = client, seed_source

    def prepare(self) -> Evaluation:
        return self._client.evaluate(self._seed)

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        """The service's evaluation; a duplicate if the run has a kernel with the same work on the device.

        A service evaluates all the way: `bar` changes nothing.
        """
        found = self._client.evaluate(candidate.source)
        first = known.get(found.plan_hash, candidate.id) if found.verdict is Verdict.OK else candidate.id
        if first == candidate.id:
            return found
        message = f"same work on the device as {first}"
        return replace(
            Evaluation(candidate.id, Verdict.DUPLICATE, "screen", message=message, duplicate_of=first),
            plan_hash=found.plan_hash,
        )

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        return [None for _ in sources]

    def plan_hash(self, source: str) -> str:
        return ""

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        raise NotImplementedError("runs of the comparison have no profiles in their prompts")

    def certify(self, source: str, *, seed: int) -> Certificate:
        return Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, "the comparison certifies nothing")

    def close(self) -> None:
        self._client.close()


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Appends a line of JSON in one write, so that a killed process leaves no half of it."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(record) + "\n").encode())
    finally:
        os.close(handle)


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

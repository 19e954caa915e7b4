"""Verifies and times a process with a candidate in it from outside, beside one with the seed kernel.  Lives in the
runner process; the processes are sandboxed (`fitness/eager/serve.py`).

A sample is a round: inputs that nobody has seen are loaded by the process, the clock starts, the process is asked to
call the entry on each of them, and the clock stops when it names the digests of all outputs.  Nobody has those before
everything is computed, so there is no use in being done early, in lazy tensors or in work left to other streams and
threads.  Whether the digests are of right outputs is looked at afterwards, and the process does not know for which
samples.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from evo.core.records import Case, Timing, Verdict
from fitness.eager.channel import Asker, Ended
from fitness.frontend.stages import Stop
from fitness.gpu.eager_check import compare_answer, draw, raised
from fitness.gpu.runner import Report
from fitness.gpu.timing import paired_ratio
from fitness.gpu.verification import FRESH, VerificationSummary, inputs_of
from fitness.tasks.task import Task
from fitness.verify import oracle

OWN, SEED, DRAWN = "own", "seed", "drawn"  # folders: of the two processes, and where inputs are made
START_S = 120.0  # until a process is there: it may be the first fork of a zygote that still imports torch
PAIRS = 12
# Of the candidate's samples, those that are compared: more than half, so that cheating in half of them, without which
# no median moves, is seen.
LOOKED_AT = PAIRS // 2 + 1
# A round of short calls has several, each on inputs of its own: question and answer take some tens of microseconds.
MOST_CALLS, ROUND_BYTES = 32, 64 << 20


class _Process:
    """A process with a kernel in it, as seen from here."""

    def __init__(self, root: Path, name: str, wall_s: float) -> None:
        self._root, self._folder, self._wall_s = root, root / name, wall_s
        self.is_seed = name == SEED
        try:
            self._asker = Asker(self._folder)
        except OSError as error:  # it has been there for a while, and may have put something else in the pipe's place
            raise self._stop(Verdict.RUNTIME_ERROR, f"it cannot be asked: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asker.close()

    def begin(self) -> None:
        self._guarded(lambda: self._asker.begin(START_S))

    def load(self, sets: Sequence[Sequence[Mapping[str, Any]]], written: Sequence[int]) -> None:
        """Has it load the arguments, whose files are in `drawn` and are copied."""
        names = [described["file"] for one in sets for described in one if "file" in described]
        for name in names:
            self._hand_over(name)
        self._ask("load", sets=sets, written=written)
        _remove(self._folder / name for name in names)

    def _hand_over(self, name: str) -> None:
        """Renamed into its place: what a process may have put there is replaced, not followed or written to."""
        copy = self._root / DRAWN / f"{name}.copy"
        shutil.copyfile(self._root / DRAWN / name, copy)
        try:
            os.replace(copy, self._folder / name)
        except OSError as error:
            raise self._stop(Verdict.RUNTIME_ERROR, f"it is in the way of its own inputs: {error}") from error

    def call(self, count: int, *, watch: bool = False) -> tuple[list[list[str]], list[str], float]:
        """(digests of the outputs of each call, operators noted, seconds)."""
        answer, seconds = self._ask("call", watch=watch)
        found = [self._listed(one, str) for one in self._listed(answer.get("digests"), list, count)]
        return found, self._listed(answer.get("operators", []), str), seconds

    def give(self, name: str, count: int) -> list[dict[str, Any]]:
        """What each call of the round left, its outputs in files."""
        return self._listed(self._ask("give", name=name)[0].get("calls"), dict, count)

    def builds(self) -> list[dict[str, Any]]:
        """Resources of the kernels that were compiled, as the process tells them."""
        return self._listed(self._ask("builds")[0].get("builds"), dict)

    def _ask(self, what: str, **details: Any) -> tuple[dict[str, Any], float]:
        answer, seconds = self._guarded(lambda: self._asker.ask({"ask": what, **details}, self._wall_s))
        if "error" in answer:
            failed = raised("", answer["error"])
            raise self._stop(failed.verdict, failed.message)
        return answer, seconds

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except TimeoutError:
            message = f"not finished after {self._wall_s:g} s on the GPU: a kernel that does not end, or far too slow"
            raise self._stop(Verdict.TIMEOUT, message) from None
        except Ended:
            raise self._stop(Verdict.RUNTIME_ERROR, "its process ended") from None

    def _listed(self, value: Any, of: type, count: int | None = None) -> list[Any]:
        if isinstance(value, list) and all(isinstance(v, of) for v in value) and count in (None, len(value)):
            return value
        message = f"its process answered {value!r:.80}, expected {count or 'some'} of type {of.__name__}"
        raise self._stop(Verdict.RUNTIME_ERROR, message)

    def _stop(self, verdict: Verdict, message: str) -> Stop:
        if self.is_seed:  # which was right before
            return Stop("time", Verdict.INFRASTRUCTURE, f"the seed kernel's process: {message}")
        return Stop("verify", verdict, message)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # a process may have put something else there; its folder goes as a whole
            path.unlink()


@dataclass
class Comparison:
    """The process in `root`/own verified, and timed against the one in `root`/seed.

    too_fast: raises Stop where that many microseconds are impossible for a case.
    """

    task: Task
    device: torch.device
    root: Path
    wall_s: float  # of one question
    too_fast: Callable[[Case, float], None]

    def report(self, seed: str) -> Report:
        """`seed` keys the inputs.  Raises Stop with the verdict."""
        self._names, self._key = itertools.count(), oracle.key_of(seed)
        self._looked_at = random.SystemRandom()  # nobody can know which
        with ExitStack() as stack:
            own, base = (stack.enter_context(_Process(self.root, name, self.wall_s)) for name in (OWN, SEED))
            own.begin()
            tally = VerificationSummary()
            for case in self.task.cases:
                self._verify(own, case, tally)
            builds = own.builds()
            base.begin()
            timings = tuple(self._timed(own, base, case, tally) for case in self.task.cases if case.role == "tune")
        return Report(Verdict.OK, "done", check=tally.check(), timings=timings, compiled=tuple(builds))

    # --- verification ------------------------------------------------------------------------------------------------

    def _verify(self, own: _Process, case: Case, tally: VerificationSummary) -> None:
        for variant, number in inputs_of(self.task, case, self._key):
            where, key = f"{case.name} ({case.role}), inputs {variant!r}", self._key + number
            self._load(own, case, [key], variant)
            digests = self._watched(own)
            self._compare(own, case, [key], digests, where, tally, variant)
            if number == FRESH - 1 and self.task.deterministic:  # the same once more
                self._load(own, case, [key], variant)
                if own.call(1)[0] != digests:
                    message = f"{where}: calls on the same inputs differ: a race, or memory read before it is written"
                    raise Stop("verify", Verdict.WRONG, f"{message}; a task may say `deterministic = False`")

    def _watched(self, own: _Process) -> Sequence[Sequence[str]]:
        """Digests of a call in which operators are noted.  Raises Stop where they may not do the work."""
        digests, operators, _ = own.call(1, watch=True)
        if operators and not self.task.allow_delegation:
            message = f"work delegated to {', '.join(sorted(operators))}; compute it in the Triton kernel"
            raise Stop("verify", Verdict.REJECTED, message)
        return digests

    def _load(self, process: _Process, case: Case, keys: Sequence[int], variant: str = "normal") -> None:
        process.load([self._drawn(case, key, variant) for key in keys], self.task.written)
        self._forget()

    def _drawn(self, case: Case, key: int, variant: str = "normal") -> list[dict[str, Any]]:
        path = self.root / DRAWN / f"{next(self._names)}.in"
        return draw(self.task, case, key, path, self.device, variant)

    def _forget(self) -> None:
        _remove((self.root / DRAWN).iterdir())

    def _compare(
        self, own: _Process, case: Case, keys: Sequence[int], digests: Sequence[Sequence[str]], where: str,
        tally: VerificationSummary, variant: str = "normal",
    ) -> None:  # fmt: skip
        """Looks at the results of a round.  Raises Stop where they are wrong, or not those of the digests."""
        for key, answer, committed in zip(keys, own.give(str(next(self._names)), len(keys)), digests, strict=True):
            match = compare_answer(
                self.task, case, key, answer, self.root / OWN, self.device, variant=variant, committed=committed
            )
            if match.verdict is Verdict.INFRASTRUCTURE:
                continue  # the reference has no finite result for these inputs
            if match.verdict is not Verdict.OK:
                raise Stop("verify", match.verdict, f"{where}: {match.message}")
            tally.add(where, match.max_error, match.budget)
        _remove((self.root / OWN).glob("*.out"))

    # --- timing ------------------------------------------------------------------------------------------------------

    def _timed(self, own: _Process, base: _Process, case: Case, tally: VerificationSummary) -> Timing:
        """Pairs of samples of alternating order, each pair on inputs of its own, the same ones for both."""
        calls = self._calls(case)
        looked_at, watched = (set(self._looked_at.sample(range(PAIRS), LOOKED_AT)) for _ in range(2))
        for process in (own, base):  # what is compiled or tuned at the first call of a size
            self._load(process, case, [self._key + FRESH + PAIRS * calls + i for i in range(calls)])
            process.call(calls)
        own_us: list[float] = []
        seed_us: list[float] = []
        for pair in range(PAIRS):
            if pair in watched:  # who counts calls may delegate after the first ones
                self._load(own, case, [self._key + FRESH + (PAIRS + 1) * calls + pair])
                self._watched(own)
            keys = [self._key + FRESH + pair * calls + i for i in range(calls)]
            sets = [self._drawn(case, key) for key in keys]
            for process in (own, base) if pair % 2 else (base, own):
                process.load(sets, self.task.written)
                digests, _, seconds = process.call(calls)
                (seed_us if process is base else own_us).append(1e6 * seconds / calls)
                if process is own and pair in looked_at:
                    self._compare(own, case, keys, digests, f"{case.name}, a timed call", tally)
            self._forget()
        ratio = paired_ratio(own_us, seed_us)
        self.too_fast(case, sorted(own_us)[PAIRS // 2])
        terms = {"calls_per_sample": float(calls), "pairs": float(PAIRS)}
        return Timing(case.name, tuple(own_us), tuple(seed_us), ratio.ratio, (ratio.low, ratio.high), False, terms)

    def _calls(self, case: Case) -> int:
        """Calls of a round: by the size of the inputs alone, so that both processes have the same number."""
        sizes = [a.nbytes for a in oracle.make_inputs(self.task, case, 0, device=self.device) if torch.is_tensor(a)]
        return int(max(1, min(MOST_CALLS, ROUND_BYTES // max(1, sum(sizes)))))

"""The serve job: calls a candidate's entry on the GPU whenever the runner asks for it, and leaves the results in files.

Runs in a sandboxed child that sees the GPU (profile "gpu").  What is expected is never in this process, and no clock of
it counts.  Everything it says was written by a process with untrusted code in it: the runner (`fitness/eager/bench.py`)
believes nothing but outputs in files that have the digests it was told when its clock stopped.

A round is three questions, each {"ask": name, ...}, with an answer each; an answer {"error": {"verdict", "message",
"line"}} ends the round:

    load    "sets": arguments of each call, described as in `fitness.gpu.exchange`; "written": positions
            -> {}
    call    "watch": whether operators are noted
            -> {"digests": [of each call, those of its outputs], "operators": [where they are noted]}
    give    "name" -> {"calls": [as `fitness.certify.eager.job` describes them]}

and one at the end: builds -> {"builds": [the fields of `evo.core.records.Build`]}.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evo.core.records import Verdict
from fitness.certify.eager import blamed, full_precision, poison
from fitness.eager.channel import Answerer
from fitness.eager.digest import digests
from fitness.frontend.module import MODULE, compiled, earlier_modules, entry_of, returned, written_among
from fitness.frontend.recording.recorder import computes
from fitness.gpu.exchange import put, take
from fitness.sandbox.jobs import JobError, line_of_call

MEMORY_SHARE = 0.4  # of the device: two processes like this one and the runner use it at once
GRACE_S = 5  # for the runner to notice first that a call does not end


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Answers until nobody asks any more.

    payload: {"source", "entry", "device", "wall_s": of one round}.  Returns {}.  Raises JobError where the candidate
    cannot be imported.
    """
    full_precision()
    if payload["device"] != "cpu":
        torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    line = Answerer(scratch)
    # Of the process, not of Python, which does not run while a kernel does not end.  Where it fails, there is the
    # wall clock of the sandbox.
    alarm_s = int(payload["wall_s"]) + GRACE_S
    signal.alarm(alarm_s)
    with torch.no_grad(), earlier_modules():
        function = entry_of(compiled(payload["source"], scratch), payload["entry"])
        rounds = _Rounds(function, payload["device"], scratch)
        for question in _until_asked(line):
            signal.alarm(alarm_s)
            line.answer(_answer(rounds, question))
    return {}


def _until_asked(line: Answerer) -> Iterator[dict[str, Any]]:
    """The questions, with no alarm set while there is none."""
    signal.alarm(0)
    for question in line.questions():
        yield question
        signal.alarm(0)


def _answer(rounds: _Rounds, question: Mapping[str, Any]) -> dict[str, Any]:
    methods: dict[str, Callable[..., dict[str, Any]]] = {
        "load": rounds.load,
        "call": rounds.call,
        "give": rounds.give,
        "builds": builds,
    }
    arguments = {key: value for key, value in question.items() if key != "ask"}
    try:
        return methods[question["ask"]](**arguments)
    except JobError as error:
        return {"error": {"verdict": error.verdict, "message": error.message, "line": error.line}}


class _Rounds:
    """The entry, and what belongs to the round that is under way."""

    def __init__(self, function: Callable[..., Any], device: str, scratch: Path) -> None:
        self._function, self._device, self._scratch = function, device, scratch
        self._sets: list[list[Any]] = []
        self._written: list[int] = []
        self._before: list[list[str]] = []
        self._results: list[tuple[list[torch.Tensor], str]] = []

    def load(self, sets: list[list[Mapping[str, Any]]], written: list[int]) -> dict[str, Any]:
        self._sets, self._results, self._written = [], [], written
        self._sets = [[take(described, self._scratch, self._device) for described in one] for one in sets]
        self._before = [digests(self._untouched(one)) for one in self._sets]
        poison(self._device)
        return {}

    def call(self, watch: bool) -> dict[str, Any]:
        watcher = Watcher() if watch else nullcontext()
        with blamed("eager"):
            with watcher:
                results = [self._function(*arguments) for arguments in self._sets]
            self._results = [self._outputs(r, a) for r, a in zip(results, self._sets, strict=True)]
            found = digests([item for items, _ in self._results for item in items])
        each = iter(found)
        answer: dict[str, Any] = {"digests": [[next(each) for _ in items] for items, _ in self._results]}
        return answer | ({"operators": watcher.found} if isinstance(watcher, Watcher) else {})

    def give(self, name: str) -> dict[str, Any]:
        calls = []
        for number, ((items, structure), arguments) in enumerate(zip(self._results, self._sets, strict=True)):
            outputs = [put(t, self._scratch / f"{name}.{number}.{k}.out") for k, t in enumerate(items)]
            same = zip(self._before[number], digests(self._untouched(arguments)), strict=True)
            changed = [i for i, (a, b) in zip(self._positions(arguments), same, strict=True) if a != b]
            calls.append({"structure": structure, "outputs": outputs, "modified": changed})
        return {"calls": calls}

    def _outputs(self, result: Any, arguments: list[Any]) -> tuple[list[torch.Tensor], str]:
        items, structure = returned(result)
        if any(item.device.type != torch.device(self._device).type for item in items):
            raise JobError(Verdict.WRONG, "returned a tensor in host memory, expected one on the device")
        return items + written_among(arguments, self._written), structure

    def _positions(self, arguments: list[Any]) -> list[int]:
        """Of the tensors that must stay as they are."""
        return [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and i not in self._written]

    def _untouched(self, arguments: list[Any]) -> list[torch.Tensor]:
        return [arguments[i] for i in self._positions(arguments)]


class Watcher(TorchDispatchMode):
    """Notes the ATen operators that compute, as the recorder does: work that is left to others."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if computes(func, args, kwargs or {}, result):
            name = f"{func} (line {line_of_call()})"
            if name not in self.found:
                self.found.append(name)
        return result


def builds() -> dict[str, Any]:
    """Resources of the kernels that were compiled and loaded, as Triton has them."""
    return {"builds": [build for value in vars(sys.modules[MODULE]).values() for build in _builds_of(value)]}


def _builds_of(value: Any) -> Iterator[dict[str, Any]]:
    import triton  # in this process alone, and there it is loaded

    while not isinstance(value, triton.JITFunction) and hasattr(value, "fn"):
        value = value.fn  # of an autotuner or of heuristics
    if not isinstance(value, triton.JITFunction):
        return
    for cache, *_ in value.device_caches.values():
        for kernel in cache.values():
            if getattr(kernel, "n_regs", None) is not None:  # loaded, so it was launched
                yield {
                    "kernel": value.__name__,
                    "registers": kernel.n_regs,
                    "spill_bytes": 4 * kernel.n_spills,
                    "shared_bytes": kernel.metadata.shared,
                    "num_warps": kernel.metadata.num_warps,
                    "sass_hash": kernel.hash,
                }

"""Tries one file that calls, for each case, the kernel of a run that is the fastest there.

It is a candidate like any other: the evaluator verifies and times it beside the best single kernel.  It is taken only
if it is surely faster.  Shapes that are in no case run the original.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evo.core.errors import EvoError
from evo.core.records import (
    Candidate,
    Case,
    Certificate,
    Evaluation,
    Trial,
    Verdict,
    certificate_from_dict,
    evaluation_from_json,
    evaluation_to_json,
    surely_faster,
)
from evo.programs.guard import Part, part_of
from evo.programs.host_call import arguments_of, function_of
from evo.programs.origin import KERNEL, Origin
from evo.storage.best import Conclusion, best_source
from fitness.tasks.calls import Calls
from operators.combine import Form, Forms, WonCases, dispatcher
from operators.source import parameters

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.storage.queries import RunInfo
    from fitness.tasks.task import Task

FOLDER = "dispatcher"  # in that of the run: the source, and what its evaluation found
LEAST_GAIN = 1.05  # of another kernel in a case, to be worth its lines: within it, times of one kernel vary too
MOST = 4  # different kernels: a reader has to review them all


class KernelEvaluator(Protocol):
    """What is needed of `evo.Evaluator`."""

    measured: bool
    description: str

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]: ...
    def certify(self, source: str, evaluation: Evaluation | None = None) -> Certificate: ...


Opener = Callable[["Task", "RunConfig"], AbstractContextManager[KernelEvaluator]]  # as the settings of a run ask for


@dataclass(frozen=True)
class Dispatched:
    """A dispatcher that is surely faster than the best single kernel."""

    source: str
    evaluation: Evaluation
    certificate: Certificate


def find(
    run_folder: Path,
    info: RunInfo,
    task: Task,
    origin: Origin,
    conclusion: Conclusion,
    trials: Sequence[Trial],
    say: Callable[[str], None],
    opener: Opener,
) -> Dispatched | None:
    """Returns a dispatcher over the kernels of a run; None if one kernel is as good.

    It is evaluated once: its source and evaluation stay in the run's folder.
    """
    chosen = winners(trials, conclusion)
    if len({trial.index for trial in chosen.values()}) < 2:
        return None
    source = source_of(task, origin, conclusion.best, chosen, measured=info.config.device == "gpu")
    if source is None:
        say("no dispatcher over shapes: the kernels cannot be put into one file")
        return None
    found = _read(run_folder, source, conclusion)
    if found is None:
        say(f"evaluating a dispatcher over {len({t.index for t in chosen.values()})} kernels of the run")
        try:
            found = _evaluate(task, info, source, conclusion, opener)
        except EvoError as error:
            say(f"no dispatcher over shapes: {error}")
            return None
        _write(run_folder, source, found)
    return _if_faster(source, found, say)


def winners(trials: Sequence[Trial], conclusion: Conclusion) -> dict[str, Trial]:
    """Returns the trial to run in each tune case: the fastest there if it gains enough, else the best of the run.

    Those whose certificate failed are left out.  Of more than MOST kernels, those that gain least are left out.
    """
    refused, best = {index for index, _ in conclusion.refused}, conclusion.best
    right = [
        t for t in trials if t.evaluation.verdict is Verdict.OK and t.index not in refused and t.proposal.is_kernel
    ]
    found: dict[str, Trial] = {}
    gains: dict[int, float] = {}
    for timing in best.evaluation.timings:
        ratios = {t.index: _ratio(t, timing.case) for t in right}
        first = max(right, key=lambda t: ratios[t.index])
        gain = ratios[first.index] / timing.ratio
        found[timing.case] = first if gain >= LEAST_GAIN else best
        gains[first.index] = max(gain, gains.get(first.index, 0.0))
    others = sorted({t.index for t in found.values()} - {best.index}, key=lambda i: -gains[i])[: MOST - 1]
    return {case: trial if trial.index in others else best for case, trial in found.items()}


def _ratio(trial: Trial, case: str) -> float:
    return next((t.ratio for t in trial.evaluation.timings if t.case == case), 0.0)


def source_of(task: Task, origin: Origin, best: Trial, chosen: dict[str, Trial], *, measured: bool) -> str | None:
    """Returns the text of a dispatcher; None if the kernels cannot be combined.

    The captured function dispatches; of a launch alone, the task's entry.  Holdout cases are not timed: they run the
    best kernel, which was verified there.
    """
    target = task.entry if origin.kind == KERNEL else origin.last
    calls = {case.name: _sizes(task, origin, case, measured) for case in task.cases}
    every = [call for of in calls.values() for call in of]
    tensors = [name for name in every[0] if any(call[name][0] not in ("value", "parts") for call in every)]
    several = {call[name][0] for call in every for name in tensors} - {"value"}
    by_forms: dict[Forms, Trial] = {}
    for case in sorted(task.cases, key=lambda c: c.role == "holdout"):
        trial = chosen.get(case.name, best)
        for call in calls[case.name]:
            forms = tuple(_form(call[name], len(several) > 1) for name in tensors)
            if by_forms.setdefault(forms, trial) is not trial and case.role == "tune":
                by_forms[forms] = best  # two cases that shapes do not tell apart
    choices = [
        WonCases(best_source(trial), tuple(forms for forms, of in by_forms.items() if of is trial))
        for trial in {t.index: t for t in by_forms.values()}.values()
        if trial.index != 0
    ]
    return dispatcher(target, task.needed_seed, choices, tensors, "" if target == task.entry else task.entry)


def _sizes(task: Task, origin: Origin, case: Case, measured: bool) -> list[dict[str, Part]]:
    """Returns the arguments of a case by name; without a GPU also at the sizes that the interpreter executes."""
    found = []
    for size in (case,) if measured else (case, case.on_cpu()):
        if origin.kind == KERNEL:
            names = [p.name.value for p in parameters(function_of(task.needed_seed, task.entry))]
            given = dict(zip(names, Calls(task).arguments(size), strict=False))
        else:
            given = arguments_of(task, origin, size)
        found.append({name: part_of(value) for name, value in given.items()})
    return found


def _form(part: Part, with_dtype: bool) -> Form | None:
    return None if part[0] == "value" else (part[0] if with_dtype else None, part[1])


# --- evaluating it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Evaluated:
    """The dispatcher beside the best single kernel, evaluated by one evaluator."""

    dispatcher: Evaluation
    best: Evaluation
    certificate: Certificate


def _evaluate(task: Task, info: RunInfo, source: str, conclusion: Conclusion, opener: Opener) -> _Evaluated:
    """Evaluates both on what evaluated the run: on GPUs, or by estimates.  Raises EvoError if that is not here."""
    measured = info.config.device == "gpu"
    with opener(task, info.config) as evaluator:
        if evaluator.measured != measured:
            raise EvoError(f"the run was {'measured' if measured else 'estimated'}; here is {evaluator.description}")
        made, best = evaluator.evaluate_many([source, conclusion.source])
        return _Evaluated(made, best, evaluator.certify(source, made))


def _if_faster(source: str, found: _Evaluated, say: Callable[[str], None]) -> Dispatched | None:
    made, best = found.dispatcher.fitness, found.best.fitness
    if made is None:
        say(f"no dispatcher over shapes: it was found {found.dispatcher.verdict}: {found.dispatcher.message}")
        return None
    if best is not None and not surely_faster(made.speedup, made.ci95[0], best.speedup, best.ci95[1]):
        say(f"no dispatcher over shapes: {made} is not surely faster than one kernel, {best}")
        return None
    if found.certificate.verdict not in (Verdict.OK, Verdict.INFRASTRUCTURE):
        say(f"no dispatcher over shapes: it is not certified: {found.certificate.message}")
        return None
    return Dispatched(found.dispatcher.frozen_source or source, found.dispatcher, found.certificate)


# --- its files -------------------------------------------------------------------------------------------------------


def _write(run_folder: Path, source: str, evaluated: _Evaluated) -> None:
    folder = run_folder / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / "kernel.py").write_text(source, encoding="utf-8")
    raw = {
        "dispatcher": json.loads(evaluation_to_json(evaluated.dispatcher)),
        "best": json.loads(evaluation_to_json(evaluated.best)),
        "certificate": asdict(evaluated.certificate),
    }
    (folder / "evidence.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def _read(run_folder: Path, source: str, conclusion: Conclusion) -> _Evaluated | None:
    """Returns what was found before; None if nothing was, or of other kernels."""
    found = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        raw: dict[str, Any] = json.loads((run_folder / FOLDER / "evidence.json").read_text(encoding="utf-8"))
        made, best = (evaluation_from_json(json.dumps(raw[name])) for name in ("dispatcher", "best"))
        found = _Evaluated(made, best, certificate_from_dict(raw["certificate"]))
    same = found and (found.dispatcher.candidate, found.best.candidate) == (
        Candidate(source).id,
        Candidate(conclusion.source).id,
    )
    return found if same else None

"""Reads what a run found for a user's program: the kernel to put into it, and the words that say what was measured."""

from __future__ import annotations

import ast
import datetime
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libcst as cst

from evo.core import VERSION, syntax
from evo.core.errors import ConfigError, StoreError
from evo.core.records import GPU_FACTS, Case, Certificate, Evaluation, Fitness, Timing, score
from evo.core.text import plain
from evo.programs import dispatch
from evo.programs.guard import part_of
from evo.programs.host_call import arguments_of, function_of
from evo.programs.origin import KERNEL, Origin, read_origin
from evo.storage.best import Conclusion, read_result
from evo.storage.folders import kept_task
from evo.storage.queries import RunInfo, RunReader
from fitness.frontend.target import Target, from_spec
from fitness.tasks.task import ChangedTaskError, Task, load_task
from operators.source import code

Say = Callable[[str], None]
_WIDTH = 100  # characters of a line of the header


@dataclass(frozen=True)
class Appliable:
    """What a run found for a program.

    source: of the kernel file; evaluation: of it; trial: its number, None if it is a dispatcher over several.
    """

    run: Path
    date: datetime.date  # of the last event of the run
    info: RunInfo
    task: Task
    origin: Origin
    source: str
    evaluation: Evaluation
    certificate: Certificate
    trial: int | None

    @property
    def fitness(self) -> Fitness:
        found = score(self.evaluation)
        assert found is not None  # only right kernels are applied
        return found

    @property
    def target(self) -> Target:
        return from_spec(self.info.environment.get(GPU_FACTS, self.info.config.target))

    @property
    def triton(self) -> str:
        """The version of Triton with which it was evaluated."""
        return str(self.info.environment.get("triton") or self.info.config.triton)

    def check_entry(self) -> None:
        """Raises ConfigError if the new code changes how the captured function is called, not only the function."""
        task, origin = self.task, self.origin
        if origin.kind == KERNEL or task.entry == origin.last:
            return
        old, new = (function_of(source, task.entry) for source in (task.needed_seed, self.source))
        if meaning(old) != meaning(new):
            raise ConfigError(
                f"expected a new {origin.last}, but trial {self.trial} changes the call of it in {task.entry}, which "
                "stands for the program; apply another run"
            )


def meaning(node: cst.CSTNode) -> str:
    """Returns a text that is equal for functions, or bodies, that differ in layout, comments and docstrings alone."""
    if isinstance(node, cst.FunctionDef):
        node = node.with_changes(leading_lines=[])
    else:
        node = cst.FunctionDef(cst.Name("f"), cst.Parameters(), node)  # type: ignore[arg-type]  # a body
    tree = syntax.parse(code(node))
    for part in ast.walk(tree):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def doubts(finding: Appliable) -> list[str]:
    """Returns what a user has to know before the new code is used; [] for nothing."""
    fitness = finding.fitness
    found = []
    if fitness.estimated:
        found.append("its speedup is an estimate, no GPU measured it; search on the GPU that the program runs on")
    if fitness.ci95[0] <= 1:
        found.append("the interval of its speedup includes 1: it may be no faster")
    return found


def find(run_folder: Path, say: Say, *, opener: dispatch.Opener | None) -> Appliable | None:
    """Returns what to put into the program; None if the run found nothing faster than the original.

    say: hears what is done meanwhile.  opener: opens an evaluator, for a dispatcher over the kernels that are best in
    each case; None: one kernel for all.
    Raises StoreError if the run lacks what is needed, ConfigError if its task was not made of a program.
    """
    with RunReader(run_folder) as run:
        info, conclusion, trials = run.info, read_result(run), list(run.trials())
        events = run.events()
    if conclusion is None:
        raise StoreError(f"expected a run that ended in {run_folder}, got one without best/; continue it by evo resume")
    task, origin = _task(run_folder, info)
    date = datetime.datetime.fromtimestamp(events[-1][2], datetime.UTC).date()
    best = conclusion.best
    finding = Appliable(
        run_folder, date, info, task, origin, conclusion.source, best.evaluation, conclusion.certificate, best.index
    )
    if opener is not None:
        made = dispatch.find(run_folder, info, task, origin, conclusion, trials, say, opener)
        if made is not None:
            return replace(
                finding, source=made.source, evaluation=made.evaluation, certificate=made.certificate, trial=None
            )
    return None if conclusion.best.index == 0 or not _faster(conclusion) else finding


def _faster(conclusion: Conclusion) -> bool:
    fitness = conclusion.best.fitness
    return fitness is not None and fitness.speedup > 1


def _task(run_folder: Path, info: RunInfo) -> tuple[Task, Origin]:
    """Returns the task of a run, from the files that it keeps, and the program that it was made of."""
    folder = kept_task(run_folder)
    origin = read_origin(folder)
    if origin is None:
        raise ConfigError(
            f"expected a run of a task that was made of a program, got one of {info.config.task}, which has no "
            "origin.json; capture the program by `evo capture`, and make the task by `evo tasks new --from`"
        )
    try:
        task = load_task(folder, tried=True, expected=info.task_hash)
    except ChangedTaskError:
        raise StoreError(
            f"expected the task of the run in {folder}, but its files were changed; search again"
        ) from None
    return replace(task, name=Path(info.config.task).name), origin


# --- what was measured, in words -------------------------------------------------------------------------------------


def header(finding: Appliable) -> list[str]:
    """Returns the lines that stand above the new code, without a mark of comment: what was measured, and on what."""
    fitness, kind = finding.fitness, "estimated" if finding.fitness.estimated else "measured"
    what = "several trials, chosen by shape," if finding.trial is None else f"trial {finding.trial}"
    today = datetime.datetime.now(datetime.UTC).date()
    low, high = fitness.ci95
    evo = finding.info.versions.get("evo", "unknown")
    lines = [
        f"Written by `evo apply` of evo {VERSION} on {today}, in the place of {finding.origin.name}.",
        f"Source: {what} of run {finding.run.name} ({finding.date}, evo {evo}), task {finding.task.name}.",
        f"Speedup: {fitness.speedup:.2f}x [{low:.2f}, {high:.2f}] over the original, {kind} {_device(finding)}.",
    ]
    timings = {t.case: t for t in finding.evaluation.timings}
    lines += [f"  {_case_line(finding, case, timings.get(case.name))}" for case in finding.task.cases]
    lines += [
        f"Verdict: {finding.evaluation.verdict}; certificate: {finding.certificate.summary}",
        "Verified: exactly these arguments, with strides as the task has them. Nothing else was verified.",
    ]
    return [part for line in lines for part in _wrapped(plain(line))]


def _device(finding: Appliable) -> str:
    if finding.fitness.estimated:
        return f"by a model of the {finding.target.device_name}; no GPU measured it"
    return f"on {finding.evaluation.environment.get('gpu') or finding.target.device_name}"


def _case_line(finding: Appliable, case: Case, timing: Timing | None) -> str:
    arguments = arguments_of(finding.task, finding.origin, case)
    given = f"{case.name}: " + ", ".join(f"{name} {_argument(value)}" for name, value in arguments.items())
    if timing is None:
        return f"{given}: verified, not timed"
    low, high = timing.ci95
    noise = "" if timing.significant else ", within noise"
    times = f"{timing.baseline_median_us:.4g} us -> {timing.median_us:.4g} us"
    return f"{given}: {timing.ratio:.2f}x [{low:.2f}, {high:.2f}], {times}{noise}"


def _argument(value: Any) -> str:
    """Returns e.g. "float32[16, 96]" for a tensor."""
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_argument, value))})"
    part = part_of(value)
    return str(part[2]) if part[0] == "value" else f"{part[0]}{list(part[1])}"


def _wrapped(line: str) -> list[str]:
    indent = "  " if not line.startswith(" ") else "    "
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent, drop_whitespace=True) or [""]

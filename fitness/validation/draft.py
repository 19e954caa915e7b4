"""Decides whether a task.py that a model wrote can be used: its rules, a rehearsal in the sandbox, its seed kernel.

This process loads only a draft that broke no rule and passed the rehearsal in the sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError, TaskError
from evo.core.records import Verdict
from evo.core.settings import MIN_OWN_SHARE
from evo.core.text import plain
from fitness.evaluator import SeedError, TaskEvaluator
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import scratch_folder
from fitness.sandbox.zygote import Zygote
from fitness.tasks.scaffold import waivers
from fitness.tasks.task import Task, load_task
from fitness.validation import draft_rehearsal, vacuous
from fitness.validation.draft_rules import check_task

REHEARSAL = "fitness.validation.draft_rehearsal"
LEAST_CASES, MOST_CASES = 2, 5
# A tolerance makes wrong kernels right; a reference that needs more than this is another function.
MOST_TOLERANCE = 1e-2
LIMITS = Limits(wall_s=120.0, cpu_s=60)
FINDINGS = 8  # shown at once
# Verdicts that say that a case is too much for the machine or the evaluator, not that the task is wrong.
_LEAVE_OUT = {Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY, Verdict.UNSUPPORTED}


class Refused(Exception):
    """The draft cannot be used; the message is for its author."""


@dataclass(frozen=True)
class Accepted:
    """A draft whose seed kernel is right on all cases.  `left_out`: why, by name of a case that was taken out."""

    source: str  # of task.py
    task: Task  # its folder is gone
    left_out: Mapping[str, str]


class DraftChecker:
    """Checks drafts for one kernel file."""

    def __init__(
        self, kernel: str, target: Target, zygote: Zygote, open_evaluator: Callable[[Task], TaskEvaluator]
    ) -> None:
        """Keeps the settings.

        zygote: has the job REHEARSAL; open_evaluator: opens one with the settings of `evo run`.
        """
        self._kernel, self._target, self._zygote, self._open = kernel, target, zygote, open_evaluator

    def check(self, source: str) -> Accepted:
        """Returns the accepted draft.  Raises Refused, and EvoError if the machine cannot check anything."""
        findings = check_task(source)
        if findings:
            lines = [f"line {f.line}: {f.message} (rule {f.rule})" for f in findings[:FINDINGS]]
            raise Refused(plain("\n".join(["task.py breaks rules:", *lines])))
        with scratch_folder() as folder:
            self._rehearse(source, folder)
        with scratch_folder() as folder:  # not the folder in which the draft was executed
            task = self._load(source, folder)
            _check_cases(task)
            _check_settings(task)
            try:
                self._evaluate(task)
            except SeedError as error:
                if error.verdict is Verdict.INFRASTRUCTURE:
                    raise
                if error.verdict not in _LEAVE_OUT:
                    raise Refused(str(error)) from error
                return self._without_some(source, task, folder, error)
            self._check_idle(task)
        return Accepted(source, task, {})

    def _rehearse(self, source: str, scratch: Path) -> None:
        payload = {"task": source, "kernel": self._kernel}
        result = self._zygote.run(REHEARSAL, payload, scratch=scratch, limits=LIMITS)
        if result.verdict is Verdict.INFRASTRUCTURE:
            raise EvoError(f"expected to load the draft in the sandbox, got: {result.message}; try again")
        if result.status != "ok":
            raise Refused(f"task.py cannot be loaded: {result.message}")

    def _load(self, source: str, parent: Path) -> Task:
        folder = draft_rehearsal.write(parent, source, self._kernel)
        try:
            return load_task(folder)
        except TaskError as error:
            raise Refused(draft_rehearsal.without_path(str(error), folder)) from error

    def _evaluate(self, task: Task) -> None:
        with closing(self._open(task)) as evaluator:
            evaluator.prepare()

    def _check_idle(self, task: Task) -> None:
        """Raises Refused if a kernel that does not do its work would pass."""
        try:
            vacuous.check(vacuous.of_task(task, self._target, self._zygote, LIMITS))
        except Stop as stop:
            if stop.verdict is Verdict.INFRASTRUCTURE:
                raise EvoError(f"expected to try kernels that do nothing, got: {stop}; try again") from stop
            raise Refused(f"{stop}; choose inputs on which a kernel has to do its work") from stop

    def _without_some(self, source: str, task: Task, parent: Path, error: SeedError) -> Accepted:
        """Returns the draft with only those cases that pass; at least one of each role must."""
        kept: list[str] = []
        left_out: dict[str, str] = {}
        for case in sorted(task.cases, key=lambda c: c.role != "tune"):  # a holdout case needs a tune case beside it
            if case.role == "holdout" and not kept:
                break
            names = [case.name] if case.role == "tune" else [kept[0], case.name]
            try:
                self._evaluate(self._load(_only(source, names), parent))
                kept.append(case.name)
            except SeedError as one:
                if one.verdict not in _LEAVE_OUT:
                    raise Refused(str(one)) from one
                left_out[case.name] = str(one)
        roles = {case.role for case in task.cases if case.name in kept}
        if roles != {"tune", "holdout"}:
            raise Refused(str(error)) from error
        text = _only(source, [case.name for case in task.cases if case.name in kept])
        less = self._load(text, parent)
        with contextlib.suppress(SeedError):
            self._evaluate(less)
            self._check_idle(less)
            return Accepted(text, less, left_out)
        raise Refused(str(error)) from error


def weakened(task: Task) -> list[str]:
    """Returns the settings of a task that let candidates do more, as text of task.py."""
    usual: dict[str, Any] = {
        "tolerance": None,
        "stress": True,
        "deterministic": True,
        "allow_delegation": False,
        "min_own_share": MIN_OWN_SHARE,
        "lenient": False,
    }
    return [f"{name} = {value}" for name in usual if (value := getattr(task, name)) != usual[name]]


def _only(source: str, names: list[str]) -> str:
    return f"{source.rstrip()}\n\n\ncases = [case for case in cases if case.name in {tuple(names)!r}]\n"


def _check_cases(task: Task) -> None:
    roles = [case.role for case in task.cases]
    if not LEAST_CASES <= len(roles) <= MOST_CASES or "holdout" not in roles:
        raise Refused(
            f"expected {LEAST_CASES} to {MOST_CASES} cases, at least one with role='holdout' and one without, "
            f"got {roles.count('tune')} tune cases and {roles.count('holdout')} holdout cases"
        )
    if task.reference is None:
        raise Refused('expected a function reference in plain torch, got "seed"')


def _check_settings(task: Task) -> None:
    if (task.tolerance or 0.0) > MOST_TOLERANCE:
        raise Refused(
            f"expected a tolerance of at most {MOST_TOLERANCE}, got {task.tolerance}; a reference that is the same "
            "function needs less"
        )
    needed = waivers(task.needed_seed, task.entry)
    for name in ("allow_delegation", "lenient"):
        if getattr(task, name) != (name in needed):
            raise Refused(f"expected {name} = {name in needed}: so it is by what the rules find in kernel.py")

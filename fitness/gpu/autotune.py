"""Selects the configuration of autotuned kernels by timing all of them; the fastest is verified and timed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evo.core.records import Case
from fitness.cuda.launcher import DeviceError
from fitness.gpu.programs import Loaded, Programs, choices
from fitness.gpu.timer import Timer
from fitness.tasks.task import Task

SAMPLES = 5  # replays of each configuration


def select(task: Task, programs: Programs, timer: Timer, loaded: Loaded) -> dict[str, list[int]]:
    """Returns the configuration of each launch by case: for every autotuned kernel, the fastest one.

    Kernels are selected one after another, by their time over the tune cases.  A kernel that no tune case launches is
    selected by its time over the cases that launch it.  A kernel that is launched at several places, with as many
    configurations, is frozen to one setting.  An error that ends the process has a note of the configuration.
    """
    chosen: dict[tuple[str, int], int] = {}
    for plan in loaded.bundle.plans.values():
        chosen |= {(launch.kernel, len(launch.configs)): 0 for launch in plan.launches}
    tuned = [key for key in chosen if key[1] > 1]
    for kernel in tuned:
        cases = [(c, programs.inputs(c, 0)) for c in _cases_of(task, loaded, kernel)]
        scores = []
        for i in range(kernel[1]):
            try:
                scores.append(_score(programs, timer, loaded, {**chosen, kernel: i}, cases))
            except Exception as error:
                error.add_note(f"with the configuration {_label(loaded, kernel, i)} of {kernel[0]}")
                raise
        chosen[kernel] = min(range(kernel[1]), key=lambda i: (scores[i], i))
    return choices(loaded.bundle, chosen)


def _label(loaded: Loaded, kernel: tuple[str, int], number: int) -> str:
    launches = (launch for plan in loaded.bundle.plans.values() for launch in plan.launches)
    return next(s.configs[number].label for s in launches if (s.kernel, len(s.configs)) == kernel)


def _cases_of(task: Task, loaded: Loaded, kernel: tuple[str, int]) -> list[Case]:
    """Returns the cases on which a kernel with that number of configurations is timed."""
    plans = loaded.bundle.plans
    known = [case for case in task.cases if case.name in plans]
    launching = [c for c in known if kernel in {(s.kernel, len(s.configs)) for s in plans[c.name].launches}]
    return [c for c in launching if c.role == "tune"] or launching


def _score(
    programs: Programs,
    timer: Timer,
    loaded: Loaded,
    chosen: Mapping[tuple[str, int], int],
    cases: Sequence[tuple[Case, Sequence[Any]]],
) -> float:
    """Returns the sum over cases of the logarithm of the time, by their weights.

    Infinite if the device cannot launch the configuration.
    """
    trial = Loaded(dataclasses.replace(loaded.bundle, choices=choices(loaded.bundle, chosen)))
    total = 0.0
    try:
        for case, arguments in cases:
            program = programs.build(trial, case, [arguments])
            total += case.weight * math.log(timer.least(program, SAMPLES))
    except DeviceError as error:
        if error.fatal:
            raise
        return math.inf
    finally:
        trial.close()
    return total

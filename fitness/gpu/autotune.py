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


def race(task: Task, programs: Programs, stopwatch: Timer, loaded: Loaded) -> dict[str, list[int]]:
    """Returns the configuration of each launch by case: for every autotuned kernel, the fastest one.

    Kernels are selected one after another, by their time over the tune cases.  A kernel that no tune case launches is
    selected by its time over the cases that launch it.  A kernel that is launched at several places, with as many
    configurations, is frozen to one setting.
    """
    chosen: dict[tuple[str, int], int] = {}
    for plan in loaded.work.plans.values():
        chosen |= {(launch.kernel, len(launch.configs)): 0 for launch in plan.launches}
    racers = [key for key in chosen if key[1] > 1]
    for racer in racers:
        track = [(c, programs.inputs(c, 0)) for c in _track(task, loaded, racer)]
        scores = [_score(programs, stopwatch, loaded, {**chosen, racer: i}, track) for i in range(racer[1])]
        chosen[racer] = min(range(racer[1]), key=lambda i: (scores[i], i))
    return choices(loaded.work, chosen)


def _track(task: Task, loaded: Loaded, racer: tuple[str, int]) -> list[Case]:
    """Returns the cases on which a kernel with that number of configurations is timed."""
    plans = loaded.work.plans
    launching = [c for c in task.cases if racer in {(s.kernel, len(s.configs)) for s in plans[c.name].launches}]
    return [c for c in launching if c.role == "tune"] or launching


def _score(
    programs: Programs,
    stopwatch: Timer,
    loaded: Loaded,
    chosen: Mapping[tuple[str, int], int],
    track: Sequence[tuple[Case, Sequence[Any]]],
) -> float:
    """Returns the sum over cases of the logarithm of the time.

    Infinite if the device cannot launch the configuration.
    """
    contender = Loaded(dataclasses.replace(loaded.work, choices=choices(loaded.work, chosen)))
    total = 0.0
    try:
        for case, arguments in track:
            program = programs.build(contender, case, [arguments])
            total += math.log(stopwatch.least(program, SAMPLES))
    except DeviceError as error:
        if error.fatal:
            raise
        return math.inf
    finally:
        contender.close()
    return total

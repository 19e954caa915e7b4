"""Which configuration of an autotuned kernel is taken; times are told, programs are not built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evo.core.records import Case
from fitness.frontend.plan import Config, Launch, LaunchPlan

pytest.importorskip("cuda.bindings")

from fitness.cuda.launcher import DeviceError
from fitness.gpu.autotune import select
from fitness.gpu.programs import Loaded
from fitness.gpu.runner import LaunchBundle
from fitness.gpu.runner_process import _told

CASES = [Case("small", {"N": 1}), Case("large", {"N": 2}), Case("other", {"N": 3}, role="holdout")]


def launch(kernel: str, configs: int) -> Launch:
    return Launch(kernel, tuple(Config((1, 1, 1), {"config": i}, {}, f"BLOCK: {i}") for i in range(configs)), 1)


def chosen(
    times: dict[str, Any], *launches: Launch, plans: dict[str, Any] | None = None
) -> tuple[dict[str, list[int]], list[str]]:
    """The choices, and the cases that were tried; `times[case]`: microseconds of chosen configurations; `plans`: what
    each case launches, if not all of `launches`.
    """
    plans = plans or dict.fromkeys((case.name for case in CASES), launches)
    work = LaunchBundle({name: LaunchPlan((), (), (), "none", tuple(steps)) for name, steps in plans.items()}, {}, {})
    tried = []

    def least(program: tuple[Loaded, Case], samples: int) -> float:
        contender, case = program
        tried.append(case.name)
        found = times[case.name](*contender.choices[case.name])
        if isinstance(found, Exception):
            raise found
        return found

    programs: Any = SimpleNamespace(inputs=lambda case, key: (), build=lambda loaded, case, inputs: (loaded, case))
    task, timer = SimpleNamespace(cases=CASES), SimpleNamespace(least=least)
    return select(task, programs, timer, Loaded(work)), tried  # type: ignore[arg-type]


def test_a_kernel_with_one_configuration_does_not_race():
    choices, tried = chosen({}, launch("k", 1))
    assert choices == {"small": [0], "large": [0], "other": [0]} and not tried


def test_the_product_of_times_over_the_tune_cases_decides():
    """Not their sum: 8 x 30 is less than 10 x 28, and one configuration holds for all cases."""
    times = {"small": lambda i: [10, 8, 16][i], "large": lambda i: [28, 30, 20][i]}
    choices, tried = chosen(times, launch("k", 3))
    assert choices == {"small": [1], "large": [1], "other": [1]}
    assert set(tried) == {"small", "large"}


def test_the_first_of_equals_is_taken():
    choices, _ = chosen({"small": lambda i: 5, "large": lambda i: 5}, launch("k", 3))
    assert choices["large"] == [0]


def test_kernels_race_one_after_another_each_beside_the_winner_before():
    def time(first: int, second: int, again: int) -> float:
        assert first == again, "a kernel that is launched twice has one setting"
        return 10 - first - (second if first else -second)

    choices, _ = chosen({"small": time, "large": time}, launch("a", 2), launch("b", 2), launch("a", 2))
    assert choices["small"] == [1, 1, 1]


def test_what_the_device_cannot_launch_is_no_winner():
    refused = DeviceError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launching")
    assert not refused.fatal
    times = {name: lambda i: refused if i == 0 else 10 - i for name in ("small", "large")}
    assert chosen(times, launch("k", 3))[0]["small"] == [2]


def test_what_ends_the_process_is_told():
    fatal = DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS", "launching")
    with pytest.raises(DeviceError) as raised:
        chosen({name: lambda i: fatal if i == 1 else 5 for name in ("small", "large")}, launch("k", 3))
    told = "CUDA_ERROR_ILLEGAL_ADDRESS while launching, with the configuration BLOCK: 1 of k"
    assert _told(raised.value) == told


def test_a_kernel_that_no_tune_case_launches_races_where_it_is_launched():
    plans = {"small": [launch("a", 2)], "large": [], "other": [launch("b", 3), launch("a", 2)]}
    times = {"small": lambda a: 10 - a, "other": lambda b, a: [10, 8, 9][b]}
    choices, tried = chosen(times, plans=plans)
    assert choices == {"small": [1], "large": [], "other": [1, 1]}
    assert tried == ["small", "small", "other", "other", "other"]

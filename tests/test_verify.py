"""What verification makes of plans before anything is executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo.core.records import Verdict
from fitness.frontend.plan import Buffer, LaunchPlan, TensorRef
from fitness.frontend.stages import Stop
from fitness.sandbox.jobs import Limits
from fitness.tasks.task import load_task
from fitness.verify import oracle
from fitness.verify.verify import MOST_BYTES, TIMES_NEEDED, Executable, Jobs, _check_size, verify

TASK = load_task("softmax")


class Zygote:
    """One that no job gets by."""

    def run(self, job: str, payload: Any, *, scratch: Path, limits: Limits) -> Any:
        assert all((scratch / run["buffers"]).is_file() for run in payload["runs"])
        raise ChildProcessError(job)


def check(scratch: Path, forge: Callable[[list[Buffer], tuple[int, ...]], TensorRef]) -> None:
    """Verifies plans without a step, whose buffers and outputs are `forge`'s."""
    plans = {}
    for case in TASK.cases:
        [x] = oracle.make_inputs(TASK, case.on_cpu(), 0)
        buffers = [Buffer(x.nbytes, 0)]
        out = forge(buffers, tuple(x.shape))
        plans[case.name] = LaunchPlan(
            tuple(buffers), (TensorRef(0, "float32", tuple(x.shape), x.stride()),), (out,), "tensor", ()
        )
    what = Executable("", {}, plans, dict.fromkeys(plans, ()))
    verify(TASK, what, seed="any", jobs=Jobs(Zygote(), scratch, Limits()))  # type: ignore[arg-type]


def stopped(scratch: Path, forge: Callable[[list[Buffer], tuple[int, ...]], TensorRef]) -> Stop:
    """How that ends, which is before there is any file."""
    with pytest.raises(Stop) as caught:
        check(scratch, forge)
    assert not list(scratch.iterdir())
    return caught.value


def output(buffers: list[Buffer], shape: tuple[int, ...], nbytes: int = 0) -> TensorRef:
    buffers.append(Buffer(max(nbytes, 4 * shape[0] * shape[1])))
    return TensorRef(len(buffers) - 1, "float32", shape, (shape[1], 1))


def test_right_forms_and_scratch_buffers_are_executed(tmp_path: Path) -> None:
    def honest(buffers: list[Buffer], shape: tuple[int, ...]) -> TensorRef:
        buffers.append(Buffer(10 << 20))
        return output(buffers, shape)

    with pytest.raises(ChildProcessError, match="interpret"):
        check(tmp_path, honest)


def test_a_buffer_of_an_output_is_as_large_as_the_case_has_it_not_as_the_plan_says(tmp_path: Path) -> None:
    stop = stopped(tmp_path, lambda buffers, shape: output(buffers, shape, nbytes=1 << 30))
    assert stop.verdict is Verdict.OUT_OF_MEMORY and "its buffers take 1024 MiB" in stop.message


def test_all_files_together_have_a_limit_too(tmp_path: Path) -> None:
    stop = stopped(tmp_path, lambda buffers, shape: output(buffers, shape, nbytes=100 << 20))
    assert stop.verdict is Verdict.OUT_OF_MEMORY and stop.message.startswith("the buffers of ")


def test_an_output_of_another_form_is_found_before_anything_is_made(tmp_path: Path) -> None:
    stop = stopped(tmp_path, lambda buffers, shape: output(buffers, (shape[0], 2 * shape[1])))
    assert stop.verdict is Verdict.WRONG and "output must have shape" in stop.message


def test_what_a_small_case_may_take_ends_before_a_disk_does() -> None:
    _check_size("all", MOST_BYTES, MOST_BYTES // TIMES_NEEDED, 0, MOST_BYTES)
    with pytest.raises(Stop, match="1025 MiB, at most 1024 are allowed"):
        _check_size("all", MOST_BYTES + (1 << 20), MOST_BYTES // TIMES_NEEDED, 0, MOST_BYTES)


def test_a_large_case_may_always_take_what_it_needs_and_as_much_again() -> None:
    needed = 2 * MOST_BYTES
    _check_size("its buffers", 2 * needed, needed, 0, MOST_BYTES)
    with pytest.raises(Stop, match="are allowed"):
        _check_size("its buffers", 2 * needed + 1, needed, 0, MOST_BYTES)

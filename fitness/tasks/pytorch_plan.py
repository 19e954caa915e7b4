"""Records the reference of a task as a plan of PyTorch operators: what is known of a task without a seed kernel.

The reference is trusted, so it is called here, on fake tensors that have shapes and no values.  Operators are those
that PyTorch calls for tensors in host memory; some have another name on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo.core.records import Verdict
from fitness.frontend.module import returned
from fitness.frontend.plan import LaunchPlan
from fitness.frontend.recording.recorder import Recorder, argument_of, without_values
from fitness.frontend.stages import Stop
from fitness.sandbox.jobs import JobError
from fitness.tasks.calls import quiet
from fitness.tasks.task import Call, Task


def reference_call(task: Task, arguments: Sequence[Any]) -> Call:
    """Returns the reference and its arguments."""
    assert task.reference is not None  # callers have tasks with a function as the reference
    return task.reference, arguments


def recorded(
    task: Task, described: Sequence[Mapping[str, Any]], call: Callable[[Task, Sequence[Any]], Call]
) -> LaunchPlan:
    """Returns the plan of one call of PyTorch.

    described: the arguments, as `fitness.tasks.calls.Calls` describes them.  call: which call, `Task.timed_call`
    or `reference_call`.  Raises Stop(UNSUPPORTED) if it draws random numbers, or decides by values.
    """
    recorder = _TrustedRecorder()
    try:
        with quiet(), torch.no_grad(), FakeTensorMode():
            values = [without_values(a) for a in described]
            function, arguments = call(task, values)
            function(*arguments)  # a first call may make what a module keeps
            inputs = tuple(recorder.add_input(v, i) if isinstance(v, torch.Tensor) else v for i, v in enumerate(values))
            function, arguments = call(task, values)
            with recorder:
                items, structure = returned(function(*arguments))
            outputs = tuple(recorder.ref(item) for item in items)
    except JobError as error:
        raise Stop("record", Verdict.UNSUPPORTED, f"the reference, run on shapes alone: {error.message}") from error
    except Exception as error:  # the user's own code
        message = f"the reference cannot be run on shapes alone: {type(error).__name__}: {error}"
        raise Stop("record", Verdict.UNSUPPORTED, message) from error
    return LaunchPlan(tuple(recorder.buffers), inputs, outputs, structure, tuple(recorder.steps))


class _TrustedRecorder(Recorder):
    """Records a reference: attention without dropout draws nothing, though PyTorch's operator might."""

    def _draws(self, func: Any, args: Any, kwargs: Any) -> bool:
        attention = func.overloadpacket.__name__.startswith("_scaled_dot_product")
        return super()._draws(func, args, kwargs) and not (
            attention and argument_of(func, args, kwargs, "dropout_p") == 0
        )

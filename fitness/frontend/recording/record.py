"""The record job: runs a candidate's host code on fake tensors and returns what it asks the device to do.

Runs in a sandboxed child (`fitness/sandbox/forkserver.py`).  The module is executed anew for every call, so nothing a
call leaves behind can reach the next one.  The result comes out of a process with untrusted code in it: whoever reads
it checks it (`fitness.frontend.plan.from_json`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo.core.records import Verdict
from fitness.frontend.module import MODULE, compiled, entry_of, returned
from fitness.frontend.plan import LaunchPlan, TensorRef, to_json
from fitness.frontend.recording.constants import constants, merged
from fitness.frontend.recording.fakecuda import fake_cuda
from fitness.frontend.recording.launches import recorded
from fitness.frontend.recording.recorder import Recorder
from fitness.frontend.target import Target, from_spec
from fitness.sandbox.jobs import JobError, line_of_error


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Record every call of the entry.

    payload: {"source", "entry", "target", "calls": [{"name", "args": [{"tensor": {"shape", "strides", "dtype"}} |
    {"value": ...}]}]}.  Returns {"plans": {call name: plan as JSON}, "constants": {global name: value}}.

    Raises JobError with the verdict and the candidate's line: COMPILE_ERROR where the module cannot be executed,
    UNSUPPORTED where host code needs values, REJECTED for random numbers, WRONG where the entry returns no tensors,
    RUNTIME_ERROR where it raises.
    """
    target = from_spec(payload["target"])
    code = compiled(payload["source"], scratch)
    plans, found = {}, {}
    for call in payload["calls"]:
        plan, found[call["name"]] = _record(code, payload["entry"], call, target)
        plans[call["name"]] = to_json(plan)
    return {"plans": plans, "constants": merged(found)}


def _record(code: CodeType, entry: str, call: Mapping[str, Any], target: Target) -> tuple[LaunchPlan, dict[str, Any]]:
    """One call: its plan, and the globals its kernels use."""
    recorder = Recorder()
    with FakeTensorMode():
        values = [_fake(a["tensor"]) if "tensor" in a else a["value"] for a in call["args"]]
        inputs = tuple(recorder.add_input(v, i) if isinstance(v, torch.Tensor) else v for i, v in enumerate(values))
        with fake_cuda(target, recorder), recorded(recorder, MODULE) as kernels:
            try:
                function = entry_of(code, entry)
                result = _call(function, values, call["name"])
                outputs, structure = _outputs(result, recorder)
            except (JobError, MemoryError):
                raise recorder.failure or sys.exception() from None  # type: ignore[misc]
            if recorder.failure is not None:  # raised, and caught by the candidate
                raise recorder.failure
    plan = LaunchPlan(tuple(recorder.buffers), inputs, outputs, structure, tuple(recorder.steps))
    return plan, constants(kernels.values())


def _fake(tensor: Mapping[str, Any]) -> torch.Tensor:
    return torch.empty_strided(tensor["shape"], tensor["strides"], dtype=getattr(torch, tensor["dtype"]))


def _call(function: Any, values: list[Any], name: str) -> Any:
    try:
        return function(*values)
    except (JobError, MemoryError):
        raise
    except Exception as error:  # whatever the candidate raises is the candidate's
        message = f"{type(error).__name__}: {error} (call {name!r})"
        raise JobError(Verdict.RUNTIME_ERROR, message, line_of_error(error)) from error


def _outputs(result: Any, recorder: Recorder) -> tuple[tuple[TensorRef, ...], str]:
    """The returned tensors in order, and how they were returned."""
    items, structure = returned(result)
    for item in items:
        if recorder.on_host(item):
            raise JobError(Verdict.WRONG, "returned a tensor in host memory, expected one on the device")
    return tuple(recorder.ref(item) for item in items), structure

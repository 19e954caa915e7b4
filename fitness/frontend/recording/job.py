"""The record job: runs a candidate's host code on fake tensors and returns what it asks the device to do.

It runs in a sandboxed child (`fitness/sandbox/zygote_process.py`).  Every call executes the module anew, so a call
cannot leave anything for the next one.  The process has untrusted code in it, so readers must check its result
(`fitness.frontend.plan.from_json`).

The zygote calls `warm_up` before all that: it runs every job on a small candidate once.
"""

from __future__ import annotations

import ast
import dis
import functools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.jit import JITFunction

from evo.core import syntax
from evo.core.records import Verdict
from fitness.frontend.memory import Layout
from fitness.frontend.module import MODULE, compiled, entry_of, returned
from fitness.frontend.plan import LaunchPlan, TensorRef, from_json, to_json
from fitness.frontend.recording.fakecuda import fake_cuda
from fitness.frontend.recording.launches import recorded
from fitness.frontend.recording.recorder import Recorder, without_values
from fitness.frontend.target import Target, from_spec
from fitness.sandbox.jobs import JobError, line_of_error


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Records every call of the entry.

    payload: {"source", "entry", "target", "calls": [{"name", "args": [{"tensor": {"shape", "strides", "dtype"}} |
    {"value": ...}]}]}.  Returns {"plans": {call name: plan as JSON}, "constants": {global name: value}}.

    Raises JobError with a verdict and the candidate's line:
    - COMPILE_ERROR if the module cannot be executed
    - UNSUPPORTED if host code needs values
    - REJECTED for random numbers
    - WRONG if the entry returns anything but tensors
    - RUNTIME_ERROR if it raises
    """
    target = from_spec(payload["target"])
    code = compiled(payload["source"], scratch)
    plans, found = {}, {}
    for call in payload["calls"]:
        plan, found[call["name"]] = _record(code, payload["entry"], call, target)
        plans[call["name"]] = to_json(plan)
    return {"plans": plans, "constants": _merged(found)}


def _record(code: CodeType, entry: str, call: Mapping[str, Any], target: Target) -> tuple[LaunchPlan, dict[str, Any]]:
    """One call: its plan, and the globals its kernels use."""
    recorder = Recorder()
    with FakeTensorMode():
        values = [without_values(a) for a in call["args"]]
        inputs = tuple(recorder.add_input(v, i) if isinstance(v, torch.Tensor) else v for i, v in enumerate(values))
        with fake_cuda(target, recorder), recorded(recorder, MODULE) as kernels:
            try:
                function = entry_of(code, entry)
                result = _call(function, values, call["name"])
                outputs, structure = _outputs(result, recorder)
            except (JobError, MemoryError):
                raise recorder.failure or sys.exception() from None  # type: ignore[misc]
            if recorder.failure is not None:  # the candidate caught it
                raise recorder.failure
    plan = LaunchPlan(tuple(recorder.buffers), inputs, outputs, structure, tuple(recorder.steps))
    return plan, _constants(kernels.values())


def _call(function: Any, values: list[Any], name: str) -> Any:
    try:
        return function(*values)
    except (JobError, MemoryError):
        raise
    except Exception as error:  # the candidate may raise anything
        message = f"{type(error).__name__}: {error} (call {name!r})"
        raise JobError(Verdict.RUNTIME_ERROR, message, line_of_error(error)) from error


def _outputs(result: Any, recorder: Recorder) -> tuple[tuple[TensorRef, ...], str]:
    """The returned tensors in order, and how they were returned."""
    items, structure = returned(result)
    for item in items:
        if recorder.on_host(item):
            raise JobError(Verdict.WRONG, "returned a tensor in host memory, expected one on the device")
    return tuple(recorder.ref(item) for item in items), structure


# --- module globals that kernels use ---------------------------------------------------------------------------------

_PLAIN = (bool, int, float, str, tuple, list, dict)


def _constants(launched: Iterable[JITFunction]) -> dict[str, Any]:
    """Global name -> value, for the launched kernels and every helper they reach.

    Values are numbers, strings, None and lists of them, `{"dtype": "fp16"}` for tl.float16, `{"f": "inf"}` for numbers
    that JSON lacks, and `{"jit": "name"}` for another name of a helper.

    Raises JobError(COMPILE_ERROR) for a plain number in a kernel's body: Triton requires `NAME = tl.constexpr(...)`.
    A plain number in the body of a helper is left out.  The helper may be used only in branches that are never
    compiled; if it is compiled, the compiler reports the number.
    """
    found: dict[str, Any] = {}
    launched = list(launched)
    for kernel in _reachable(launched):
        if kernel in launched:
            _check_body(kernel)
        refused = _plain_in_body(kernel)
        for name in _used_globals(kernel):
            if name in refused:
                continue
            value = kernel.__globals__[name]
            encoded = _encode_constant(value)
            if encoded is not _NOT_CONSTANT and encoded != {"jit": name}:
                found[name] = encoded
    return found


def _reachable(launched: Iterable[JITFunction]) -> Iterator[JITFunction]:
    waiting, seen = list(launched), set()
    while waiting:
        kernel = waiting.pop()
        if id(kernel) in seen:
            continue
        seen.add(id(kernel))
        yield kernel
        used = (kernel.__globals__[name] for name in _used_globals(kernel))
        waiting += [v for v in used if isinstance(v, JITFunction) and v.__module__ == kernel.__module__]


def _used_globals(kernel: JITFunction) -> list[str]:
    """Names in the kernel's source (body, defaults, annotations) that are globals of its module."""
    return sorted(_names(kernel.src) & kernel.__globals__.keys())


@functools.cache  # each call executes the module anew: its text and its code are the same
def _names(source: str) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(syntax.parse(source)) if isinstance(n, ast.Name))


def _check_body(kernel: JITFunction) -> None:
    for name in _plain_in_body(kernel):
        raise JobError(
            Verdict.COMPILE_ERROR,
            f"kernel {kernel.__name__!r} uses the global {name!r}, which is not a constexpr; "
            f"write {name} = tl.constexpr({kernel.__globals__[name]!r})",
            _line_of_use(kernel, name),
        )


def _plain_in_body(kernel: JITFunction) -> list[str]:
    """Names of globals with plain Python values that the body uses, in order of use."""
    return [name for name in _loaded(kernel.fn.__code__) if isinstance(kernel.__globals__.get(name), _PLAIN)]


@functools.cache
def _loaded(code: CodeType) -> tuple[str, ...]:
    """Names of globals that code uses, in order of use."""
    return tuple(i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")


def _line_of_use(kernel: JITFunction, name: str) -> int:
    """The first line of the candidate's source at which `kernel` uses `name`."""
    tree = kernel.parse()
    inside = min(n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)
    first = next(i for i, line in enumerate(kernel.raw_src) if line.lstrip().startswith("def "))
    return int(kernel.starting_line_number) + first + inside - 1


_NOT_CONSTANT = object()


def _encode_constant(value: Any) -> Any:
    while isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tl.dtype):
        return {"dtype": value.name}
    if isinstance(value, JITFunction):
        return {"jit": value.__name__}
    if isinstance(value, (tuple, list)):
        items = [_encode_constant(v) for v in value]
        return _NOT_CONSTANT if any(i is _NOT_CONSTANT for i in items) else items
    return _NOT_CONSTANT


def _merged(per_call: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The constants of all calls.  Raises JobError(UNSUPPORTED) if a global differs between calls."""
    result: dict[str, Any] = {}
    for call, found in per_call.items():
        for name, value in found.items():
            if result.setdefault(name, value) != value:
                raise JobError(
                    Verdict.UNSUPPORTED,
                    f"global {name!r} is {value!r} in call {call!r} and {result[name]!r} in another; "
                    "pass it to the kernel as a constexpr argument",
                )
    return result


# --- warming up ------------------------------------------------------------------------------------------------------

_Job = Callable[[Mapping[str, Any], Path], Mapping[str, Any]]

_SAMPLE = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(v):
    return v + v

@triton.autotune([triton.Config({"BLOCK": 16}, num_warps=4)], key=["n"])
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    square = i[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        tile = tl.load(x + square, mask=(i < n)[:, None], other=0.0)
        total += tl.dot(tile, tl.trans(tile))
    total = tl.exp(total - tl.max(total, 1)[:, None])
    tl.store(y + i, double(tl.sum(total, 1)), mask=i < n)

def run(x):
    x = x[:, :16].contiguous().to(torch.float16)
    y = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, x.shape[0])
    return torch.zeros_like(y), y
"""


def warm_up(jobs: Mapping[str, _Job], target_name: str) -> None:
    """Runs `record`, then compile, interpret and trace as far as `jobs` has them, each on the results of `record`.

    It runs in the zygote, so no child pays for first use of fake tensors, of Triton's compiler and of its interpreter.
    That costs a second or two; forks inherit the result.
    """
    modules = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        argument = {"tensor": {"shape": [16, 20], "strides": [20, 1], "dtype": "float32"}}
        calls = [{"name": "warm", "args": [argument]}]
        payload = {"source": _SAMPLE, "entry": "run", "target": target_name, "calls": calls}
        recorded = jobs["record"](payload, scratch)
        common = {"source": _SAMPLE, "constants": recorded["constants"], "target": target_name}
        plan = recorded["plans"]["warm"]
        if "compile" in jobs:
            launches = [
                {"kernel": step["launch"], "args": config["args"], "options": config["options"]}
                for step in plan["steps"]
                if "launch" in step
                for config in step["configs"]
            ]
            jobs["compile"]({**common, "launches": launches}, scratch)
        if "interpret" in jobs:
            _interpret(jobs["interpret"], {**common, "plan": plan, "choice": [0]}, scratch)
        if "trace" in jobs:
            jobs["trace"]({**common, "samples": 1, "cases": [{"plan": plan, "integers": {}}]}, scratch)
    for name in set(sys.modules) - modules:
        if name.startswith("candidate"):
            del sys.modules[name]


def _interpret(job: _Job, payload: Mapping[str, Any], scratch: Path) -> None:
    memory = Layout(from_json(payload["plan"])).create(scratch)
    job(payload, scratch)
    memory.close()

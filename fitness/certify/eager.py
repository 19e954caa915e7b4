"""Runs the eager job: the candidate's real Python on the GPU, on inputs from files, its results into files.

Runs in a sandboxed child that sees the GPU (profile "gpu").  What is expected is never in this process.  Everything it
returns comes from a process with untrusted code in it.  So its results are compared elsewhere
(`fitness/gpu/eager_check.py`), and its times are only what it says about itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from evo.core.records import Verdict
from fitness.frontend.module import compiled, earlier_modules, entry_of, returned, written_among
from fitness.gpu.exchange import put, take
from fitness.sandbox.jobs import JobError, line_of_error
from fitness.verify.compare import same_bits

WARM_UP = 3  # calls before those that are timed
POISON_BYTES = 1 << 30  # of device memory that is not zero when a candidate allocates it


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Calls the entry once for each call on its own inputs.

    payload: {"source", "entry", "device", "calls": [{"name", "args": descriptions of `put`, "written": positions,
    "samples": calls to time}]}.

    Returns {"calls": [{"structure", "outputs": descriptions of the returned tensors and then of the written arguments,
    "modified": positions, "samples_us": [...]}]}; a failed call has {"error": {"verdict", "message", "line"}} instead.
    Raises JobError if the candidate cannot be imported.
    """
    _full_precision()
    _descriptor_memory(payload["device"])
    with torch.no_grad(), earlier_modules():
        function = entry_of(compiled(payload["source"], scratch), payload["entry"])
        return {"calls": [_called(function, call, payload["device"], scratch) for call in payload["calls"]]}


def _descriptor_memory(device: str) -> None:
    """Gives Triton memory for tensor descriptors that kernels make, as the runner does (`fitness/cuda/launcher.py`).

    Candidates cannot: the gate refuses `triton.set_allocator`.
    """
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))


def _full_precision() -> None:
    """Sets the precision of matrix products to that of the runner."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def _called(function: Callable[..., Any], call: Mapping[str, Any], device: str, scratch: Path) -> dict[str, Any]:
    try:
        return _results(function, call, device, scratch)
    except JobError as error:
        return {"error": {"verdict": error.verdict, "message": error.message, "line": error.line}}


def _results(function: Callable[..., Any], call: Mapping[str, Any], device: str, scratch: Path) -> dict[str, Any]:
    name, written = call["name"], call["written"]
    arguments = [take(described, scratch, device) for described in call["args"]]
    before = [a.clone() if isinstance(a, torch.Tensor) and i not in written else a for i, a in enumerate(arguments)]
    _poison(device)
    items, structure = returned(_guarded(function, arguments, device, name))
    items += written_among(arguments, written)
    # Written before anything else is called: a later call must not be able to change them.
    outputs = [put(item, scratch / f"{name}.{k}.out") for k, item in enumerate(items)]
    changed = [i for i, (a, b) in enumerate(zip(arguments, before, strict=True)) if a is not b and not same_bits(a, b)]
    samples = _timed(function, arguments, device, name, call["samples"]) if call["samples"] else []
    return {"structure": structure, "outputs": outputs, "modified": changed, "samples_us": samples}


def _guarded(function: Callable[..., Any], arguments: Sequence[Any], device: str, name: str) -> Any:
    """Returns the entry's result after all its work on the device is done."""
    with _blamed(name):
        result = function(*arguments)
        _wait(device)
        return result


@contextlib.contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Turns every error inside into a JobError with its line and the call's name: the candidate is at fault."""
    try:
        yield
    except (JobError, MemoryError):
        raise
    except torch.OutOfMemoryError as error:
        raise JobError(Verdict.OUT_OF_MEMORY, f"device memory (call {name!r})", line_of_error(error)) from error
    except Exception as error:  # any exception is the candidate's fault
        message = f"{type(error).__name__}: {error} (call {name!r})"
        raise JobError(Verdict.RUNTIME_ERROR, message, line_of_error(error)) from error


def _timed(function: Callable[..., Any], arguments: Sequence[Any], device: str, name: str, samples: int) -> list[float]:
    """Returns microseconds from the call to the end of its work on the device, the host's share included."""
    times = []
    for number in range(WARM_UP + samples):
        begin = time.perf_counter()
        _guarded(function, arguments, device, name)
        if number >= WARM_UP:
            times.append(1e6 * (time.perf_counter() - begin))
    return times


def _poison(device: str) -> None:
    """Leaves NaN in the memory that the next allocations get: fresh memory of a GPU is often zero."""
    torch.full((POISON_BYTES // 4,) if device != "cpu" else (1,), float("nan"), device=device)
    _wait(device)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()

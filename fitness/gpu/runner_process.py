"""Serves requests in a runner's process.

    python -m fitness.gpu.runner_process SOCKET TASK DEVICE LOOKS SETTINGS FACTS

Started by `fitness/gpu/runner.py`.  It answers one request after the other until the other side hangs up.  After an
error that leaves the CUDA context unusable it answers with `fault=True` and ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from evo.core.records import Verdict
from fitness.cuda import norms
from fitness.cuda.device import GpuWatch, device_facts, facts_if_same
from fitness.cuda.faults import verdict_of_text
from fitness.cuda.launcher import DeviceError
from fitness.frontend.stages import Stop
from fitness.gpu import timing
from fitness.gpu.benchmark import Benchmark
from fitness.gpu.gpu_lock import GpuLock
from fitness.gpu.runner import Report
from fitness.sandbox.jobs import JobError
from fitness.tasks.task import load_task

_PLAIN = ("facts", "take", "leave")  # requests that launch nothing; the last two take and release the GPU lock

SCARCE = 0.15  # of the device's memory, free: a runner may need that much beside what it keeps


def main(arguments: list[str]) -> None:
    """Serves the socket with file descriptor `arguments[0]`; the others are those of `fitness.gpu.runner.Runner`."""
    connection, index = Connection(int(arguments[0])), int(arguments[2])
    task = load_task(arguments[1], tried=True)  # by the other side
    if (settings := json.loads(arguments[4])) is not None:
        task = task.with_run_settings(settings)
    end_with(connection.fileno())
    stopping = timing.Stopping(tuple(int(look) for look in arguments[3].split(",")))
    torch.cuda.set_device(index)
    # The reference at the task's precision sets the budget, so it must not be less precise than it says.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    norms.prepare((case.dtype for case in task.cases), index)
    timing.median_interval([])  # loads scipy.stats
    lock = GpuLock(GpuWatch(index).uuid)
    facts = facts_if_same(index, json.loads(arguments[5]))
    if facts is None:
        with lock.held():
            facts = device_facts(index)
    while True:
        asked = _serve(connection, Benchmark(task, index, facts, stopping, lock.lent), lock)
        if asked is None:
            return
        task = load_task(asked, tried=True)
        gc.collect()
        torch.cuda.empty_cache()  # of the last task: this one has other sizes, and other processes may lack the memory
        connection.send(None)


def _serve(connection: Connection, bench: Benchmark, lock: GpuLock) -> str | None:
    """Answers requests.  Returns the next task if one is asked for; None after a fault or if the other side hung up.

    Before each answer it reports that this process has the GPU lock.
    """
    with torch.no_grad(), torch.cuda.stream(bench.stream):
        while True:
            try:
                kind, *request = connection.recv()
            except EOFError:
                return None
            answer: Any
            over = False
            if kind in _PLAIN:
                if kind != "facts":
                    getattr(lock, kind)()
                connection.send(None)
                answer = bench.facts.as_dict()
            else:
                bench.compile_ahead(kind)  # takes seconds, and hardly uses the GPU
                with lock.held():
                    connection.send(None)
                    if kind == "task":
                        return str(request[0])
                    answer = answered(bench, kind, request)
                    over = isinstance(answer, Report) and answer.fault
                    if not over:  # after a fault the device cannot be used
                        _leave_memory(bench)
            connection.send(answer)
            if over:
                return None


def answered(bench: Benchmark, kind: str, request: list[Any]) -> Any:
    """Returns the answer to one request; any error becomes a Report with a verdict: this is a process's boundary."""
    kinds = {
        "prepare": bench.prepare, "look": bench.look, "evaluate": bench.evaluate, "verify": bench.verify,
        "draw": bench.draw, "compare": bench.compare, "elsewhere": bench.elsewhere, "beside": bench.beside,
        "baselines": bench.baselines,
    }  # fmt: skip
    try:
        answer = kinds[kind](*request)  # type: ignore[operator]
        bench.stream.synchronize()  # a late error belongs to this request
        return answer
    except Stop as stop:
        report = Report(stop.verdict, stop.stage, stop.message)
    except JobError as error:
        report = Report(error.verdict, "verify", f"line {error.line}: {error.message}" if error.line else error.message)
    except DeviceError as error:
        report = Report(error.verdict, "verify", _told(error), fault=error.fatal)
    except torch.cuda.OutOfMemoryError as error:
        report = Report(Verdict.OUT_OF_MEMORY, "verify", f"device memory: {str(error).splitlines()[0]}")
    except Exception as error:
        report = _unexpected(error)
    return report if report.fault else _settled(bench, report)


def _told(error: Exception) -> str:
    """Returns the first line of an error and what was noted about it, such as the configuration that was timed."""
    return ", ".join([str(error).strip().splitlines()[0], *getattr(error, "__notes__", ())])


def _leave_memory(bench: Benchmark) -> None:
    """Gives cached memory back to the device if the next process might lack it."""
    free, total = torch.cuda.mem_get_info(bench.device)
    if free < SCARCE * total:
        torch.cuda.empty_cache()


def _unexpected(error: Exception) -> Report:
    """Returns a Report.

    CUDA errors appear as RuntimeError at PyTorch's next call; anything else is a bug of the evaluator.
    """
    text = str(error).strip()
    if isinstance(error, RuntimeError) and "CUDA error" in text:
        return Report(verdict_of_text(text), "verify", _told(error), fault=True)
    traceback.print_exc()
    return Report(Verdict.INFRASTRUCTURE, "verify", f"{type(error).__name__}: {text}", fault=True)


def _settled(bench: Benchmark, report: Report) -> Report:
    """Returns the report, or that of a CUDA error which was still on its way."""
    try:
        bench.stream.synchronize()
    except RuntimeError as error:
        return _unexpected(error)
    return report


def end_with(descriptor: int) -> None:
    """Ends this process when the other end of a connected socket is closed, as it is when its owner is killed.

    A process that waits for a kernel that never ends would not notice, and would keep the GPU.  Costs nothing until
    then: a thread sleeps in the kernel.
    """
    threading.Thread(target=_await_end, args=(descriptor,), name="orphan", daemon=True).start()


def _await_end(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # no requested event: the end of the connection is always reported
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Times PyTorch beside a kernel: the reference of a task called eagerly, and compiled by `torch.compile`.

Both are timed like kernels (`fitness/gpu/timer.py`): a CUDA graph that calls as often as the kernel's does, each time
on memory of its own.  It is replayed from cold caches in alternation with the kernel's.  So the time that PyTorch
spends on launching from Python is left out.  The precision is that of the reference: no TensorFloat-32.
`torch.compile` has its default mode and static shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fitness.gpu.cache import demote_all
from fitness.gpu.program import captured
from fitness.tasks.task import Task

EAGER, COMPILED = "eager", "torch.compile"
NAMES = (EAGER, COMPILED)
WARM_UP = 3  # calls before the capture: PyTorch compiles or chooses at the first calls


@dataclass(frozen=True)
class Baseline:
    """PyTorch against the seed kernel on one case.  `error`: why there are no times."""

    name: str
    case: str
    us: float = 0.0  # medians
    seed_us: float = 0.0
    ratio: float = 0.0  # of the pairs' times, PyTorch over seed: above 1 the seed is faster
    ci95: tuple[float, float] = (0.0, 0.0)
    error: str = ""


class BaselineCall:
    """The reference as a CUDA graph that calls it once on each copy of the arguments.

    Raises whatever PyTorch raises if it cannot be compiled, called or captured.
    """

    def __init__(self, task: Task, name: str, arguments: Sequence[Any], copies: int) -> None:
        self.copies = copies
        sets = [list(arguments), *([_copied(a) for a in arguments] for _ in range(copies - 1))]
        function, _ = _function(task, sets[0])
        if name == COMPILED:
            function = _compiled(function)
        given = [_function(task, one)[1] for one in sets]
        for _ in range(WARM_UP):
            function(*given[0])
        torch.cuda.current_stream().synchronize()
        self._kept = sets, given
        self._results: list[Any] = []  # while the graph is made, so that each call writes to memory of its own
        self._graph = captured(lambda: self._results.extend(function(*one) for one in given))

    def reset(self) -> None:
        """Enqueues: gives normal priority to all lines of the cache (`torch.compile`'s kernels ask some to stay)."""
        demote_all()

    def replay(self) -> None:
        """Enqueues the graph."""
        self._graph.replay()


def _function(task: Task, arguments: Sequence[Any]) -> tuple[Callable[..., Any], Sequence[Any]]:
    if task.baseline is not None:
        return task.baseline(*arguments)
    assert task.reference is not None  # only tasks with a reference get here
    return task.reference, arguments


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.compile_threads = 1  # no processes that could outlive this one
    return torch.compile(function, dynamic=False)  # type: ignore[no-any-return]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value

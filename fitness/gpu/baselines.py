"""Calls PyTorch as a CUDA graph, to be timed beside kernels: the reference of a task, eager or by `torch.compile`.

It is timed like a kernel (`fitness/gpu/timer.py`): a graph that calls as often as the kernel's does, each time on
memory of its own.  The graph is replayed from cold caches, in alternation with the kernel's.  So the time that
PyTorch spends on launching from Python is left out.  The precision is that of the reference: TensorFloat-32 is used
only if the baseline says so.  `torch.compile` has its default mode and static shapes.

What a kernel must not find or change is guarded like the memory of a program.  Inputs lie between guard zones, and are
compared by fingerprints.  All other memory of the graph (results, intermediate tensors, workspaces) is its own and is
poisoned after each replay.  The calls before the capture are on inputs that no candidate gets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from cuda.bindings import driver as cuda

from evo.core.baselines import BaselineKind
from fitness.cuda.launcher import check
from fitness.frontend.memory import POISONS, Poison
from fitness.frontend.plan import Buffer, LaunchPlan, TensorRef
from fitness.gpu.buffers import DeviceMemory, fill_bytes
from fitness.gpu.cache import demote_all
from fitness.gpu.program import Replayable, captured_alone
from fitness.tasks.task import Call, Task

EAGER, COMPILED, LIBRARY = "eager", "torch.compile", "library"
# What a task is timed by beside its seed kernel; the library's function is called as it is.
KINDS = {EAGER: BaselineKind.EAGER, COMPILED: BaselineKind.COMPILE, LIBRARY: BaselineKind.EAGER}
RECOMPILE_LIMIT = 64  # of one function: each case has shapes of its own
WARM_UP = 3  # calls before the capture: PyTorch compiles or chooses at the first calls


def names(task: Task) -> list[str]:
    """Returns the names of a task's baselines: without "library" if it names no function of a library."""
    return [name for name in KINDS if name != LIBRARY or task.library is not None]


def called(task: Task, name: str) -> Task:
    """Returns the task with the timed call of a baseline: the library's function in place of the reference."""
    library = task.library
    return task if name != LIBRARY or library is None else replace(task, baseline=lambda *given: (library, given))


@dataclass(frozen=True)
class Baseline:
    """PyTorch, or a library, against the seed kernel on one case.  `error`: why there are no times."""

    name: str
    case: str
    us: float = 0.0  # medians
    seed_us: float = 0.0
    ratio: float = 0.0  # of the pairs' times, PyTorch over seed: above 1 the seed is faster
    ci95: tuple[float, float] = (0.0, 0.0)
    error: str = ""


class BaselineCall(Replayable):
    """The call of PyTorch that a task is timed by, as a CUDA graph that calls it once on each copy of its arguments.

    It offers what `fitness.gpu.program.Program` offers to be timed, once it is built.  Write the arguments of each copy
    before the first replay.
    """

    def __init__(
        self,
        task: Task,
        kind: BaselineKind,
        first: Sequence[Any],
        device: torch.device,
        copies: int,
        compiled: Compiled | None = None,
    ) -> None:
        """first: arguments for the calls before the capture, on which nothing is timed or compared.

        compiled: what `torch.compile` made of the task's function before; None: nothing yet.
        """
        plan = _plan_of(first)
        super().__init__(DeviceMemory(plan, device, copies), (), plan.tensors_among(task.written), device)
        self._task, self._kind = task, kind
        self._compiled = (compiled or Compiled()) if kind.compiled else None
        self._results: list[Any] = []
        self.write_all([first])
        self._sets = [self._arguments(first, copy) for copy in range(copies)]

    def call(self) -> None:
        """Calls once, on the first copy; the first call compiles.  Raises whatever PyTorch raises."""
        with _precision(self._kind):
            _call(self._compiled, self._task.timed_call(self._sets[0]))
            torch.cuda.current_stream().synchronize()

    def build(self) -> None:
        """Calls until PyTorch has chosen and compiled all, then captures the graph.

        Raises whatever PyTorch raises if it cannot be compiled, called or captured.
        """
        with _precision(self._kind):
            for one in (*self._sets[:1] * (WARM_UP - 1), *self._sets):
                _call(self._compiled, self._task.timed_call(one))
            torch.cuda.current_stream().synchronize()
            self._graph, self._pieces = captured_alone(self._run)

    def _run(self) -> None:
        """Calls once for each copy; results stay, so that each call writes to memory of its own."""
        self._results[:] = [_call(self._compiled, self._task.timed_call(one)) for one in self._sets]

    def _arguments(self, first: Sequence[Any], copy: int) -> list[Any]:
        """Returns the arguments of a copy: tensors on its memory."""
        refs = zip(self.plan.inputs, first, strict=True)
        return [_alias(self.memory.window(r, copy)) if isinstance(r, TensorRef) else value for r, value in refs]

    @property
    def nbytes(self) -> int:
        """Returns the device memory of one copy, in bytes."""
        return self.memory.total + sum(size for _, size in self._pieces) // self.copies

    def reset(self, poison: Poison = POISONS[0]) -> None:
        """Enqueues: the graph's own memory poisoned, written arguments restored, no priorities left in the cache."""
        demote_all()  # `torch.compile`'s kernels ask some lines to stay
        self.memory.poison_owned(poison)  # between rows of the arguments
        stream = torch.cuda.current_stream().cuda_stream
        for address, size in self._pieces:
            check(cuda.cuMemsetD8Async(address, poison.floating, size, stream), "poisoning PyTorch's memory")
        for result in _outside(self._results, self._pieces, self.memory):
            fill_bytes(_bytes_of(result), poison.floating)
        self.restore_written()

    def replay(self) -> None:
        """Enqueues the graph."""
        self._graph.replay()


class Compiled:
    """Functions with what `torch.compile` made of them, so that each is compiled once."""

    def __init__(self) -> None:
        import torch._dynamo
        import torch._inductor.config

        torch._dynamo.reset()
        # Beyond the limit PyTorch would call the function eagerly, without a word.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        torch._inductor.config.compile_threads = 1  # no processes that could outlive this one
        self._made: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if id(function) not in self._made:
            self._made[id(function)] = function, torch.compile(function, dynamic=False)
        return self._made[id(function)][1]


def _call(compiled: Compiled | None, call: Call) -> Any:
    function, arguments = call
    return (function if compiled is None else compiled.of(function))(*arguments)


@contextlib.contextmanager
def _precision(kind: BaselineKind) -> Iterator[None]:
    """Lets PyTorch use TensorFloat-32 inside, if the baseline says so; a captured graph keeps the choice."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind.tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def _plan_of(arguments: Sequence[Any]) -> LaunchPlan:
    """Returns a plan without steps whose buffers hold these arguments."""
    buffers: list[Buffer] = []
    inputs: list[Any] = []
    for i, value in enumerate(arguments):
        if not isinstance(value, torch.Tensor):
            inputs.append(value)
            continue
        dtype = str(value.dtype).removeprefix("torch.")
        ref = TensorRef(len(buffers), dtype, tuple(value.shape), tuple(value.stride()))
        buffers.append(Buffer(ref.last_byte(), i))
        inputs.append(ref)
    return LaunchPlan(tuple(buffers), tuple(inputs), (), "none", ())


def _alias(window: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the same memory with a storage of its own, as arguments have in a program.

    `torch.compile` takes arguments of one storage for overlapping ones, and compiles other code if one is written.
    """
    if not window.numel():
        return torch.empty_strided(window.shape, window.stride(), dtype=window.dtype, device=window.device)
    size = window.itemsize
    last = 1 + sum((n - 1) * stride for n, stride in zip(window.shape, window.stride(), strict=True))
    own = torch.from_dlpack(_on(window.untyped_storage(), window, int(window.storage_offset()) * size, last * size))
    fresh = torch.empty(0, dtype=window.dtype, device=window.device)
    return fresh.set_(own.untyped_storage(), 0, window.shape, window.stride())  # type: ignore[call-overload,no-any-return]


def _on(storage: Any, like: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Returns bytes of a storage as a tensor on the device of `like`."""
    found = torch.empty(0, dtype=torch.uint8, device=like.device)
    return found.set_(storage, start, (count,), (1,))  # type: ignore[call-overload,no-any-return]


def reason(error: BaseException) -> str:
    """Returns what an error of PyTorch says, on one line: compilers put the cause below "raised:"."""
    said = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(said[: 1 + said[0].rstrip().endswith(':')]) if said else ''}"


def _outside(results: Any, pieces: Sequence[tuple[int, int]], memory: DeviceMemory) -> Iterator[torch.Tensor]:
    """Yields the tensors of results that lie neither in `pieces` nor in the arguments' memory."""
    if isinstance(results, torch.Tensor):
        start, given = results.untyped_storage().data_ptr(), memory.arenas.untyped_storage()
        known = (*pieces, (given.data_ptr(), given.nbytes()))
        if not any(first <= start < first + size for first, size in known):
            yield results
    elif isinstance(results, (list, tuple, dict)):
        for value in results.values() if isinstance(results, dict) else results:
            yield from _outside(value, pieces, memory)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all bytes of the storage of a tensor."""
    storage = tensor.untyped_storage()
    return _on(storage, tensor, 0, storage.nbytes())

"""A plan on a GPU: its memory, its steps, and the CUDA graph that is verified and timed.

A Program owns one or several copies of a plan's memory.  Its graph executes all steps once on each copy, one after the
other: a kernel of a few microseconds is timed by many launches on memory that no earlier launch has touched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from evo.records import Verdict
from fitness.gpu.bits import same_bits, words
from fitness.gpu.launcher import Kernel
from fitness.memory import DTYPES, GUARD, POISON_FLOAT, POISON_INTEGER, Layout
from fitness.plan import ITEMSIZE, Copy, Fill, Launch, LaunchPlan, Op, Step, TensorRef
from fitness.sandbox.jobs import JobError
from fitness.verification.delegation import Authors

# Guarded bytes before the first and after the last buffer; between buffers it is GUARD before and after each.
EDGE = 1 << 20


def _fill_bytes(zone: torch.Tensor, value: int) -> None:
    """Every byte of an aligned zone becomes `value`, eight at a time."""
    whole = zone.numel() // 8 * 8
    zone[:whole].view(torch.int64).fill_(int.from_bytes(bytes([value] * 8), "little", signed=True))
    if whole < zone.numel():
        zone[whole:].fill_(value)


Graph = torch.cuda.CUDAGraph


class DeviceMemory(Layout):
    """One allocation with all buffers of a plan: `fitness.memory.Layout` on a GPU.

    Every byte that belongs to no buffer is guarded: nothing can be left there for a later replay, and nothing that a
    store beyond a buffer may hit is nearer than EDGE.
    """

    def __init__(self, plan: LaunchPlan, device: torch.device) -> None:
        super().__init__(plan)
        whole = torch.empty(EDGE + self.total + EDGE, dtype=torch.uint8, device=device)
        self.arena = whole[EDGE : EDGE + self.total]
        self._floats = {r.buffer for r in plan.refs() if DTYPES[r.dtype].is_floating_point}
        self._guards = [(label, whole[start:end]) for label, start, end in self._gaps()]
        self._sizes = [zone.numel() for _, zone in self._guards]
        self._pattern = torch.randint(0, 256, (sum(self._sizes),), dtype=torch.uint8, device=device)
        for (_, zone), pattern in zip(self._guards, self._pattern.split(self._sizes), strict=True):
            zone.copy_(pattern)

    def _gaps(self) -> Iterator[tuple[str, int, int]]:
        """(label, start, end) of what lies before and after each buffer, in bytes of the allocation."""
        end = 0
        previous = ""
        for b, (offset, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            start = EDGE + offset
            if previous:
                yield previous, end, start - GUARD
                end = start - GUARD
            yield f"before {self.name(b)}", end, start
            end, previous = start + buffer.nbytes, f"after {self.name(b)}"
        yield previous or "in no buffer", end, EDGE + self.total + EDGE

    def address(self, ref: TensorRef) -> int:
        return self.arena.data_ptr() + self.offsets[ref.buffer] + ref.offset * ITEMSIZE[ref.dtype]

    def window(self, ref: TensorRef) -> torch.Tensor:
        """The window `ref` as a tensor that shares the memory."""
        return self.view(self.arena, ref)

    def view(self, mm: torch.Tensor, ref: TensorRef) -> torch.Tensor:
        if ref.numel == 0:
            return torch.empty_strided(ref.shape, ref.strides, dtype=DTYPES[ref.dtype], device=mm.device)
        size, start = ITEMSIZE[ref.dtype], self.offsets[ref.buffer]
        whole = self.plan.buffers[ref.buffer].nbytes // size * size
        flat = mm[start : start + whole].view(DTYPES[ref.dtype])
        return flat.as_strided(ref.shape, ref.strides, flat.storage_offset() + ref.offset)

    def poison_owned(self) -> None:
        """Fills the plan's own buffers with what no right answer is."""
        for b, (start, buffer) in enumerate(zip(self.offsets, self.plan.buffers, strict=True)):
            if buffer.input is None:
                value = POISON_FLOAT if b in self._floats else POISON_INTEGER
                _fill_bytes(self.arena[start : start + buffer.nbytes], value)

    def overwritten(self) -> list[str]:
        """One line per guard zone that was written to, as in "3 bytes after output 0 were overwritten"."""
        changed = torch.cat([zone for _, zone in self._guards]) != self._pattern
        if not bool(changed.any()):
            return []
        counts = [int(part.sum()) for part in changed.split(self._sizes)]
        return [
            f"{count} bytes {label} were overwritten"
            for (label, _), count in zip(self._guards, counts, strict=True)
            if count
        ]


class Program:
    """A plan with one configuration of each launch, captured as a CUDA graph.

    choice: index of the configuration of each launch; kernels: the loaded kernel of each launch for that choice;
    copies: how often the graph executes the plan, each time on memory of its own; written: positions of the arguments
    that the task declares as written; memory: how the buffers lie.  Everything runs on the current stream, which must
    not be the default one.  Inputs must be written before `build`: it executes the plan.

    Raises DeviceError where the driver refuses, JobError where a step cannot be executed.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        choice: Sequence[int],
        kernels: Sequence[Kernel],
        *,
        device: torch.device,
        copies: int = 1,
        written: Sequence[int] = (),
        memory: type[DeviceMemory] = DeviceMemory,
    ) -> None:
        self.plan, self._choice, self._kernels = plan, choice, kernels
        written = plan.tensors_among(written)
        self.outputs_of_plan = [*plan.outputs, *(plan.inputs[i] for i in written)]
        self._device = device
        self.memories = [memory(plan, device) for _ in range(copies)]
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}  # (copy, launch) -> what Triton's parameters ask for
        self._pristine = {i: self.memories[0].window(plan.inputs[i]).clone() for i in written}
        self._output_views = [[m.window(ref) for ref in self.outputs_of_plan] for m in self.memories]
        slots = torch.zeros(copies * len(self.outputs_of_plan), dtype=torch.int64, device=device)
        self._sums, self._known, self._differs = slots, slots.clone(), slots.bool()
        self._count, self._mismatches = slots.new_zeros(()), slots.new_zeros(())

    @property
    def copies(self) -> int:
        return len(self.memories)

    @property
    def nbytes(self) -> int:
        """Device memory of one copy."""
        return self.memories[0].total

    # --- memory ------------------------------------------------------------------------------------------------------

    def write_inputs(self, arguments: Sequence[Any]) -> None:
        """Writes the entry's arguments to every copy.  Raises PlanError where they are not those of the plan."""
        for memory in self.memories:
            memory.write_inputs(memory.arena, arguments)
        for i, kept in self._pristine.items():
            kept.copy_(arguments[i])

    def arguments(self) -> list[Any]:
        """The entry's arguments as they were written last."""
        memory = self.memories[0]
        return [
            self._pristine.get(i, memory.window(ref)) if isinstance(ref, TensorRef) else ref
            for i, ref in enumerate(self.plan.inputs)
        ]

    def outputs(self, copy: int = 0) -> list[torch.Tensor]:
        """What is compared: returned tensors in order, then written arguments; windows on the memory."""
        return self._output_views[copy]

    def modified_inputs(self, arguments: Sequence[Any]) -> list[int]:
        """Positions of tensor arguments, not declared as written, that differ from `arguments` on any copy."""
        tensors = [i for i, r in enumerate(self.plan.inputs) if isinstance(r, TensorRef) and i not in self._pristine]
        return [i for i in tensors if not all(self._holds(m, i, arguments[i]) for m in self.memories)]

    def _holds(self, memory: DeviceMemory, i: int, value: torch.Tensor) -> bool:
        return same_bits(memory.window(self.plan.inputs[i]), value)

    def broken_guards(self) -> list[str]:
        return [line for memory in self.memories for line in memory.overwritten()]

    # --- graphs ------------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Enqueues all steps on every copy, without a graph."""
        self._steps(self._numbered())

    def authors(self) -> Authors:
        """Executes all steps on the first copy, one by one; who wrote what."""
        memory = self.memories[0]
        found = Authors(memory, memory.arena, torch.zeros_like(memory.arena))
        self._reset()
        for number, step in self._numbered():
            found.follow(step, functools.partial(self._step, step, number, 0))
        return found

    def parts(self) -> tuple[Graph, Graph]:
        """Graphs of the launches alone and of all other steps alone.  To be replayed on what a replay left."""
        own, others = (
            [(n, s) for n, s in self._numbered() if isinstance(s, Launch) is launches] for launches in (True, False)
        )
        return captured(lambda: self._steps(own)), captured(lambda: self._steps(others))

    def build(self) -> None:
        """Executes the plan once, which finds what cannot be launched, then captures the graphs."""
        self._reset()
        self.execute()
        torch.cuda.current_stream().synchronize()
        self._reset_graph = captured(self._reset)
        self._graph = captured(self.execute)
        self._sum_graph = captured(self._sum)

    def reset(self) -> None:
        """Enqueues: the plan's own memory poisoned, written arguments restored."""
        self._reset_graph.replay()

    def replay(self) -> None:
        """Enqueues the graph: all steps, on every copy."""
        self._graph.replay()

    def remember_outputs(self) -> None:
        """Takes the present outputs, found right before, for what `compare_outputs` compares with."""
        self._sum_graph.replay()
        self._known.copy_(self._sums)
        self._mismatches.zero_()

    def compare_outputs(self) -> None:
        """Enqueues a comparison (of sums over the bits of each output) with the outputs remembered."""
        self._sum_graph.replay()

    def mismatches(self) -> int:
        """How many outputs differed in all calls of `compare_outputs`."""
        return int(self._mismatches)

    def _reset(self) -> None:
        for memory in self.memories:
            memory.poison_owned()
            for i, kept in self._pristine.items():
                memory.window(self.plan.inputs[i]).copy_(kept)
        for scratch in self._scratch.values():
            _fill_bytes(scratch, POISON_FLOAT)

    def _sum(self) -> None:
        views = [view for outputs in self._output_views for view in outputs]
        for slot, whole in enumerate(map(words, views)):
            torch.sum(whole, dtype=torch.int64, dim=tuple(range(whole.dim())), out=self._sums[slot])
        torch.ne(self._sums, self._known, out=self._differs)
        torch.sum(self._differs, dtype=torch.int64, dim=0, out=self._count)
        self._mismatches.add_(self._count)

    def _numbered(self) -> list[tuple[int, Step]]:
        """The steps, launches with their number."""
        count = itertools.count()
        return [(next(count) if isinstance(step, Launch) else -1, step) for step in self.plan.steps]

    def _steps(self, steps: Sequence[tuple[int, Step]]) -> None:
        for copy in range(self.copies):
            for number, step in steps:
                self._step(step, number, copy)

    def _step(self, step: Step, number: int, copy: int) -> None:
        memory = self.memories[copy]
        match step:
            case Fill():
                memory.window(step.dst).fill_(step.value)
            case Copy():
                memory.window(step.dst).copy_(memory.window(step.src))
            case Op():
                _delegate(step, memory)
            case Launch():
                self._launch(step, number, copy)

    def _launch(self, launch: Launch, number: int, copy: int) -> None:
        config, kernel, memory = launch.configs[self._choice[number]], self._kernels[number], self.memories[copy]
        addresses = []
        for position, needed in enumerate(kernel.scratch(config.grid)):
            key = (copy, 2 * number + position)
            if needed.nbytes and key not in self._scratch:
                size = needed.nbytes + needed.alignment
                self._scratch[key] = torch.empty(size, dtype=torch.uint8, device=self._device)
            start = self._scratch[key].data_ptr() if needed.nbytes else 0
            addresses.append(-(-start // needed.alignment) * needed.alignment)
        args = {name: _address(value, memory) for name, value in config.args.items()}
        try:
            kernel.launch(config.grid, args, addresses, torch.cuda.current_stream().cuda_stream)
        except (KeyError, ValueError) as error:  # the plan's arguments do not fit the compiled signature
            raise JobError(Verdict.RUNTIME_ERROR, f"kernel {launch.kernel}: {error}", launch.line) from error


def _address(value: Any, memory: DeviceMemory) -> Any:
    if isinstance(value, TensorRef):
        return memory.address(value)
    if isinstance(value, tuple):
        return tuple(_address(v, memory) for v in value)
    return value


@functools.cache
def _pool() -> Any:
    """Memory for temporaries of all graphs of the process.  They may share it: graphs run one after the other."""
    handle = torch.cuda.graph_pool_handle()
    # PyTorch refuses a pool whose graphs are all gone, so one graph stays.
    keeper = torch.cuda.CUDAGraph()
    keeper.capture_begin(pool=handle, capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    keeper.capture_end()
    _keepers.append(keeper)
    return handle


_keepers: list[torch.cuda.CUDAGraph] = []


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`work` as a graph.  (`torch.cuda.graph` would empty PyTorch's cache of memory each time: milliseconds.)"""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=_pool(), capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph


# --- delegated work, where the task allows it ------------------------------------------------------------------------


def _delegate(op: Op, memory: DeviceMemory) -> None:
    """An ATen operator on windows of the memory; its results go to the windows that the plan names."""
    parts = op.name.split(".")
    function: Any = torch.ops.aten if parts[0] == "aten" and len(parts) == 3 else None
    for part in parts[1:]:
        function = getattr(function, part, None)
    if function is None:
        raise JobError(Verdict.UNSUPPORTED, f"{op.name!r} is not an ATen operator with an overload", op.line)
    args = [_aten_argument(a, memory) for a in op.args]
    ignored = ("device", "layout", "pin_memory")
    kwargs: dict[str, Any] = {k: _aten_argument(v, memory) for k, v in op.kwargs.items() if k not in ignored}
    if any(parameter.name == "device" for parameter in function._schema.arguments):
        kwargs["device"] = memory.arena.device  # arange and the like make their result there, not in host memory
    try:
        result = function(*args, **kwargs)
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise JobError(Verdict.RUNTIME_ERROR, f"{op.name}: {error}", op.line) from error
    tensors = [result] if isinstance(result, torch.Tensor) else [t for t in result or () if t is not None]
    if len(tensors) != len(op.outputs):
        message = f"{op.name} gave {len(tensors)} tensors, the plan expects {len(op.outputs)}"
        raise JobError(Verdict.RUNTIME_ERROR, message, op.line)
    for ref, tensor in zip(op.outputs, tensors, strict=True):
        target = memory.window(ref)
        if target.data_ptr() != tensor.data_ptr():
            target.copy_(tensor)


def _aten_argument(value: Any, memory: DeviceMemory) -> Any:
    match value:
        case TensorRef():
            return memory.window(value)
        case tuple():
            return [_aten_argument(v, memory) for v in value]
        case {"dtype": str(name)} if name in DTYPES:
            return DTYPES[name]
    return value

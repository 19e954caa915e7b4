"""Runs a plan on a GPU: its memory, its steps, and the CUDA graph that is verified and timed.

A Program owns one or several copies of a plan's memory, each with inputs of its own.  Its graph executes all steps once
on each copy, one after the other.  So a kernel of a few microseconds is timed by many launches on memory that no
earlier launch has touched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evo.core.records import Verdict
from fitness.cuda.launcher import LoadedKernel
from fitness.frontend import aten
from fitness.frontend.memory import POISONS, Poison, assign
from fitness.frontend.plan import Copy, Fill, Launch, LaunchPlan, Op, Step, TensorRef
from fitness.gpu.buffers import DeviceMemory, fill_bytes
from fitness.gpu.cache import LINE, demote
from fitness.gpu.fingerprint import fingerprint
from fitness.interpreter.delegation import WriteTracker
from fitness.sandbox.jobs import JobError
from fitness.verify.compare import differing, same_bits

SLOW_US = 250_000.0  # so long an execution keeps the GPU from others: it is not repeated without need

Graph = torch.cuda.CUDAGraph


@dataclass(frozen=True)
class SwappedInputs:
    """Arguments that one copy is given just before it is executed, while the others have their usual ones.

    number: what they were drawn with; usual: the arguments that it has otherwise; right: fingerprints of the outputs on
    `arguments`, (outputs, 1), None if outputs may differ.
    """

    copy: int
    number: int
    arguments: Sequence[Any]
    usual: Sequence[Any]
    right: torch.Tensor | None


class Integrity:
    """Watches the memory of a program while it is timed: what is timed must be what was verified.

    Outputs and arguments that are only read are compared by fingerprints, which stay on the device.  Each comparison is
    enqueued like a kernel; its result is asked for in the end.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        read: Mapping[int, torch.Tensor],
        memory: DeviceMemory,
        device: torch.device,
    ) -> None:
        """outputs and read arguments (by position): windows on `memory`, the copies first."""
        self._outputs, self._read, self._memory = outputs, read, memory
        # Fingerprints of each copy of each output, then of each argument that is only read.
        self._found = torch.zeros((len(outputs) + len(read), memory.copies), dtype=torch.int64, device=device)
        self._known, self._differing = torch.zeros_like(self._found), self._found.new_zeros(len(self._found))
        self._kept: list[list[torch.Tensor]] = []
        self.swaps: Sequence[SwappedInputs] = ()  # some are executed, at random times
        self._kept_swapped: list[tuple[SwappedInputs, list[torch.Tensor]]] = []
        self._differs_swapped = torch.zeros((), dtype=torch.bool, device=device)

    @functools.cached_property
    def _guard_graph(self) -> Graph:
        return captured(self._memory.look_at_guards)

    @functools.cached_property
    def _output_graph(self) -> Graph | None:
        return captured(lambda: self._compare(self._outputs, 0)) if self._outputs else None

    @functools.cached_property
    def _input_graph(self) -> Graph | None:
        return captured(lambda: self._compare([*self._read.values()], len(self._outputs))) if self._read else None

    def _compare(self, watched: Sequence[torch.Tensor], first: int) -> None:
        chosen = slice(first, first + len(watched))
        for windows, found in zip(watched, self._found[chosen], strict=True):
            fingerprint(windows, found)
        self._differing[chosen].add_((self._found[chosen] != self._known[chosen]).sum(1))

    # --- what is remembered ------------------------------------------------------------------------------------------

    def remember_inputs(self) -> None:
        """Remembers the read arguments as they are, and forgets comparisons with earlier ones."""
        self.check_inputs()
        self._known[len(self._outputs) :] = self._found[len(self._outputs) :]
        self._differing.zero_()
        self._kept, self.swaps, self._kept_swapped = [], (), []
        self._differs_swapped.zero_()

    def remember_outputs(self) -> None:
        """Remembers the outputs as they are."""
        self.check_outputs()
        self._known[: len(self._outputs)] = self._found[: len(self._outputs)]
        self._differing[: len(self._outputs)].zero_()

    def remembers(self, fingerprints: torch.Tensor) -> bool:
        """Returns whether these fingerprints, (outputs and read arguments, copies), are the remembered ones."""
        return torch.equal(self._known, fingerprints)

    def fingerprints(self) -> torch.Tensor:
        """Returns the fingerprints of the latest checks, (outputs and read arguments, copies)."""
        return self._found.clone()

    def forget_differences(self) -> None:
        self._differing.zero_()

    # --- comparisons, which are enqueued -----------------------------------------------------------------------------

    def check_outputs(self) -> None:
        """Compares the outputs with the remembered ones."""
        if self._output_graph is not None:
            self._output_graph.replay()

    def check_inputs(self) -> None:
        """Compares the read arguments with the remembered ones."""
        if self._input_graph is not None:
            self._input_graph.replay()

    def check_inputs_and_guards(self) -> None:
        """Compares read arguments and guard zones.

        What one replay leaves there for the next is seen now, and might be gone at the end.
        """
        self.check_inputs()
        self._guard_graph.replay()

    def check_swapped(self, swap: SwappedInputs) -> None:
        """Compares the outputs of a copy that was executed on swapped arguments, or keeps them."""
        outputs = [windows[swap.copy : swap.copy + 1] for windows in self._outputs]
        if swap.right is None:
            self._kept_swapped.append((swap, [output[0].clone() for output in outputs]))
            return
        found = torch.zeros_like(swap.right)
        for windows, number in zip(outputs, found, strict=True):
            fingerprint(windows, number)
        self._differs_swapped |= (found != swap.right).any()

    # --- results -----------------------------------------------------------------------------------------------------

    def changed_inputs(self) -> list[int]:
        """Returns positions of arguments, not declared as written, that differ from the remembered ones.

        They differ now, or differed at a check.
        """
        self.check_inputs()
        counts = self._differing[len(self._outputs) :].tolist()
        return [i for i, count in zip(self._read, counts, strict=True) if count]

    def look_at_guards(self) -> None:
        """Enqueues a check of the guard zones."""
        self._guard_graph.replay()

    def broken_guards(self) -> list[str]:
        """Returns what was found in the guard zones, now or at a check; empty if they are whole."""
        self.look_at_guards()
        return self._memory.overwritten()

    def outputs_differed(self) -> bool:
        """Returns whether an output of any copy differed at any check."""
        return bool(self._differing[: len(self._outputs)].any())

    def swapped_outputs_differed(self) -> bool:
        """Returns whether an output on swapped arguments was ever wrong."""
        return bool(self._differs_swapped)

    # --- outputs that are kept, if a task has several right ones -----------------------------------------------------

    def keep_outputs(self) -> None:
        """Copies the current outputs of all copies: see `kept`."""
        self._kept.append([windows.clone() for windows in self._outputs])

    @property
    def times_kept(self) -> tuple[int, int]:
        """Returns how often the outputs of all copies were kept, and how many of copies with swapped arguments."""
        return len(self._kept), len(self._kept_swapped)

    def drop_outputs(self, since: tuple[int, int] = (0, 0)) -> None:
        """Forgets the kept outputs, except for the first `since` times."""
        del self._kept[since[0] :], self._kept_swapped[since[1] :]

    def kept(self, copy: int) -> list[list[torch.Tensor]]:
        """Returns the outputs of a copy, of each time they were kept."""
        return [[windows[copy] for windows in outputs] for outputs in self._kept]

    def kept_swapped(self, swap: SwappedInputs) -> list[list[torch.Tensor]]:
        """Returns the outputs of a copy on swapped arguments, of each time they were kept."""
        return [outputs for of, outputs in self._kept_swapped if of is swap]


class Replayable:
    """What the timer replays: memory with copies of a plan's arguments, those that are only read under watch.

    written: positions of the tensors among the arguments that each replay may change; `restore_written` puts them back.
    outputs: what must stay the same from replay to replay.
    """

    def __init__(
        self, memory: DeviceMemory, outputs: Sequence[TensorRef], written: Sequence[int], device: torch.device
    ) -> None:
        self.plan, self.copies, self.memory = memory.plan, memory.copies, memory
        self._pristine = {i: memory.windows(self.plan.inputs[i]).clone() for i in written}
        refs = ((i, ref) for i, ref in enumerate(self.plan.inputs) if isinstance(ref, TensorRef))
        self._read = {i: memory.windows(ref) for i, ref in refs if i not in self._pristine}
        self._outputs = [memory.windows(ref) for ref in outputs]
        self.integrity = Integrity(self._outputs, self._read, memory, device)

    def write_inputs(self, arguments: Sequence[Any], copy: int | slice = 0) -> None:
        """Writes the entry's arguments to one copy, or to several.  Raises PlanError if they do not fit the plan."""
        self.memory.write(arguments, copy)
        for i, kept in self._pristine.items():
            kept[copy].copy_(arguments[i])

    def write_all(self, inputs: Iterable[Sequence[Any]]) -> None:
        """Writes the entry's arguments for each copy, or those for all if there are no others.

        Raises PlanError if they do not fit the plan.
        """
        written = 0
        for written, arguments in enumerate(inputs, 1):
            self.write_inputs(arguments, written - 1)
        if written == 1 < self.copies:
            self.write_inputs(arguments, slice(1, None))

    def restore_written(self) -> None:
        """Enqueues: written arguments as they were given."""
        for i, kept in self._pristine.items():
            assign(self.memory.windows(self.plan.inputs[i]), kept)


class Program(Replayable):
    """A plan with one configuration of each launch, captured as a CUDA graph.

    choice: index of the configuration of each launch; kernels: the loaded kernel of each launch for that choice;
    copies: how often the graph executes the plan, each time on memory of its own; written: positions of the arguments
    that the task declares as written; memory: how the buffers lie.  Everything runs on the current stream, which must
    not be the default one.  Inputs must be written before `build`: it executes the plan.

    Raises DeviceError if the driver refuses, JobError if a step cannot be executed.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        choice: Sequence[int],
        kernels: Sequence[LoadedKernel],
        *,
        device: torch.device,
        copies: int = 1,
        written: Sequence[int] = (),
        memory: type[DeviceMemory] = DeviceMemory,
    ) -> None:
        self.outputs_of_plan = plan.compared(written)
        written = plan.tensors_among(written)
        super().__init__(memory(plan, device, copies), self.outputs_of_plan, written, device)
        self._choice, self._kernels, self._device = choice, kernels, device
        # (launch, which) -> memory that Triton's parameters ask for, (copies, bytes)
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}
        others = any(isinstance(step, Op) for step in plan.steps)  # whose kernels are not known
        self._sets_priorities = others or any(kernel.sets_priorities for kernel in kernels)

    @property
    def nbytes(self) -> int:
        """Returns the device memory of one copy, in bytes."""
        return self.memory.total

    # --- memory ------------------------------------------------------------------------------------------------------

    def outputs(self, copy: int = 0) -> list[torch.Tensor]:
        """Returns what is compared: returned tensors in order, then written arguments; windows on the memory."""
        return [windows[copy] for windows in self._outputs]

    def outputs_are(self, expected: Sequence[torch.Tensor]) -> bool:
        """Returns whether the outputs of the first copy equal these to the bit."""
        return all(same_bits(output, value) for output, value in zip(self.outputs(), expected, strict=True))

    def modified_inputs(self, arguments: Sequence[Any]) -> Callable[[], list[int]]:
        """Enqueues comparisons with the arguments before; the returned function waits.

        It gives the positions of tensor arguments that the first copy changed without declaring them as written.
        """
        modified = {i: differing(windows[0], arguments[i]) for i, windows in self._read.items()}
        return lambda: [i for i, differs in modified.items() if differs()]

    # --- graphs ------------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Enqueues all steps on every copy, without a graph."""
        self._steps(self._numbered(), range(self.copies))

    def tracked_writes(self) -> WriteTracker:
        """Executes all steps on the first copy, one by one, and returns which step wrote which bytes."""
        arena = self.memory.arenas[0]
        tracker = WriteTracker(self.memory, arena, torch.zeros_like(arena))
        self._reset()
        stream = torch.cuda.current_stream().cuda_stream
        for number, step in self._numbered():
            tracker.follow(step, functools.partial(self._step, step, number, 0, stream))
        return tracker

    def parts(self) -> tuple[Graph, Graph]:
        """Returns graphs of the launches alone and of all other steps alone.  Replay them on what a replay left."""
        own, others = (
            [(n, s) for n, s in self._numbered() if isinstance(s, Launch) is launches] for launches in (True, False)
        )
        every = range(self.copies)
        return captured(lambda: self._steps(own, every)), captured(lambda: self._steps(others, every))

    def build(self) -> None:
        """Executes the plan once, which finds what cannot be launched, then captures the graphs.

        `executed_us` is what the execution took, with what is loaded at first use.
        """
        self._reset()
        self.executed_us = timed_us(self.execute, torch.cuda.current_stream())
        self._reset_graph = captured(self._reset)
        self._graph = captured(self.execute)

    def reset(self, poison: Poison = POISONS[0]) -> None:
        """Enqueues: the plan's own memory poisoned, written arguments restored, no priorities left in the cache."""
        if poison == POISONS[0]:
            self._reset_graph.replay()
        else:
            self._reset(poison)

    def replay(self) -> None:
        """Enqueues the graph: all steps, on every copy."""
        self._graph.replay()

    # --- what was timed is what was verified -------------------------------------------------------------------------

    def fingerprints_on(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Returns the fingerprints of the first copy on `arguments`: of its outputs, and of the arguments only read."""
        self.write_inputs(arguments)
        self.integrity.check_inputs()
        self.reset()
        self.replay()
        self.integrity.check_outputs()
        return self.integrity.fingerprints()[:, 0]

    def inputs_are_equal(self) -> bool:
        """Returns whether two copies have the same arguments, if they were not executed since these were written."""
        self.integrity.check_outputs()
        self.integrity.check_inputs()
        given = self.integrity.fingerprints()[len(self.plan.outputs) :]
        self.integrity.forget_differences()
        return len(given) == 0 or given.unique(dim=1).shape[1] < self.copies

    def execute_swapped(self, swaps: Iterable[SwappedInputs]) -> None:
        """Enqueues all steps, copy after copy, like a replay.

        Some copies are given other arguments just before they run, and their outputs are checked just after.  So no
        other launch can do their work: an earlier one knows other arguments, and a later one comes too late.
        """
        steps, by_copy = self._numbered(), {swap.copy: swap for swap in swaps}
        for copy in range(self.copies):
            swap = by_copy.get(copy)
            if swap is None:
                self._steps(steps, [copy])
                continue
            # Nothing else runs in between: traces in memory would tell a kernel its position.
            self.write_inputs(swap.arguments, copy)
            self._steps(steps, [copy])
            self.integrity.check_swapped(swap)
            self.write_inputs(swap.usual, copy)
            self.integrity.check_inputs_and_guards()

    # --- steps -------------------------------------------------------------------------------------------------------

    def _reset(self, poison: Poison = POISONS[0]) -> None:
        if self._sets_priorities:
            for rows in (self.memory.arenas, *self._scratch.values()):
                demote(rows)
        self.memory.poison_owned(poison)
        self.restore_written()
        for rows in self._scratch.values():
            fill_bytes(rows, POISONS[0].floating)

    def _numbered(self) -> list[tuple[int, Step]]:
        """Returns the steps, launches with their number."""
        count = itertools.count()
        return [(next(count) if isinstance(step, Launch) else -1, step) for step in self.plan.steps]

    def _steps(self, steps: Sequence[tuple[int, Step]], copies: Iterable[int]) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for copy in copies:
            for number, step in steps:
                self._step(step, number, copy, stream)

    def _step(self, step: Step, number: int, copy: int, stream: int) -> None:
        window = functools.partial(self.memory.window, copy=copy)
        match step:
            case Fill():
                window(step.dst).fill_(step.value)
            case Copy():
                window(step.dst).copy_(window(step.src))
            case Op():
                aten.execute(step, window, self._device)
            case Launch():
                self._launch(step, number, copy, stream)

    def _launch(self, launch: Launch, number: int, copy: int, stream: int) -> None:
        config, kernel = launch.configs[self._choice[number]], self._kernels[number]
        addresses = []
        for which, needed in enumerate(kernel.scratch(config.grid)):
            key = (number, which)
            if needed.nbytes and key not in self._scratch:
                self._scratch[key] = _rows(self.copies, needed.nbytes, needed.alignment, self._device)
            addresses.append(self._scratch[key][copy].data_ptr() if needed.nbytes else 0)
        args = {name: _address(value, self.memory, copy) for name, value in config.args.items()}
        try:
            kernel.launch(config.grid, args, addresses, stream)
        except (KeyError, ValueError) as error:  # the plan's arguments do not fit the compiled signature
            raise JobError(Verdict.RUNTIME_ERROR, f"kernel {launch.kernel}: {error}", launch.line) from error


def _rows(rows: int, nbytes: int, alignment: int, device: torch.device) -> torch.Tensor:
    """Returns new memory, (rows, bytes): each row has at least `nbytes`, aligned to `alignment` and to cache lines."""
    unit = max(alignment, LINE)
    pitch = -(-nbytes // unit) * unit
    whole = torch.empty(rows * pitch + unit, dtype=torch.uint8, device=device)
    return whole[-whole.data_ptr() % unit :][: rows * pitch].view(rows, pitch)


def _address(value: Any, memory: DeviceMemory, copy: int) -> Any:
    if isinstance(value, TensorRef):
        return memory.address(value, copy)
    if isinstance(value, tuple):
        return tuple(_address(v, memory, copy) for v in value)
    return value


@functools.cache
def _pool() -> Any:
    """Returns memory for temporaries of all graphs of the process.

    They may share it: graphs run one after the other.
    """
    handle = torch.cuda.graph_pool_handle()
    # PyTorch refuses a pool whose graphs are all gone, so one graph stays.
    keeper = torch.cuda.CUDAGraph()
    keeper.capture_begin(pool=handle, capture_error_mode="thread_local")
    torch.zeros(1, device="cuda")
    keeper.capture_end()
    _keepers.append(keeper)
    return handle


_keepers: list[torch.cuda.CUDAGraph] = []


def timed_us(work: Callable[[], None], stream: torch.cuda.Stream) -> float:
    """Returns the microseconds of work that `work` enqueues on the stream, when it is done."""
    begin, end = two_events()
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def two_events() -> tuple[Any, Any]:
    """Returns two events, to time what is enqueued between them."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    return begin, end


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Captures `work` as a graph.

    (`torch.cuda.graph` would empty PyTorch's cache of memory each time: milliseconds.)
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=_pool(), capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    return graph


def captured_alone(work: Callable[[], None]) -> tuple[torch.cuda.CUDAGraph, list[tuple[int, int]]]:
    """Captures `work` as a graph whose memory is its own; returns the graph, and (address, bytes) of that memory."""
    handle = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=handle, capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()
    pieces = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(handle)]
    return graph, [(s["address"], s["total_size"]) for s in pieces]

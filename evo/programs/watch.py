"""Watches a program's launches of Triton kernels, in its own process, and writes down what it saw.

Nothing of the program's results changes: kernels get the same arguments, and nothing waits for the GPU except when a
distinct call is seen first and its values are described.  A fault of the watcher is noted and does not reach the
program.

Of launches that are alike the first are timed, and then a random share.  The others take the mean of those.

On a machine without a GPU the program runs on tensors in host memory that say they lie on a GPU.  Launches are noted
and not made.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from evo.programs import hosts
from evo.programs.environment import facts_of_process, package_of, sha256_of
from evo.programs.notes import (
    CallNotes,
    Describing,
    DistinctCalls,
    HostNotes,
    KernelNotes,
    LaunchTimes,
    Site,
    add_up,
    attribute_of,
    bound,
    has_tensor,
    key_of,
    structure_of,
)
from evo.programs.times import LaunchTimer, Spent
from fitness.suites.call_writer import tensor_paths
from fitness.suites.values import structure

VERSION = 1  # of the files
MOST = 64  # distinct calls that are kept of one host function or kernel
PRE_HOOK = "its tuner's configurations have a pre_hook, which a launch alone does not run"
IN_GRAPH = "it was first seen while a CUDA graph was captured, when values cannot be read"
WRITE_EVERY_S = 30.0  # a program that is killed leaves what it did until then
FIRST = 16  # of launches that are alike so many are timed at first
ONE_IN = 8  # of the later ones one in so many is timed, in the mean


class _Entered:
    """A call of a host function that is under way."""

    __slots__ = ("call", "host", "launches")

    def __init__(self, host: HostNotes, call: CallNotes) -> None:
        self.host, self.call = host, call
        self.launches = 0


@dataclass(slots=True)
class _Launch:
    """A launch that is under way: the kernel, and the call of a host function around it."""

    kernel: KernelNotes | None = None
    entered: _Entered | None = None
    in_graph: bool = False


class _Thread(threading.local):
    """What one thread is doing."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []
        self.under_way: tuple[int, types.CodeType, _Entered | None] | None = (
            None  # a call that began before it was watched
        )
        self.launch: _Launch | None = None
        self.trials = 0  # above 0 while a tuner measures


class Watcher:
    """Notes the launches of this process, between `start` and `stop`."""

    def __init__(self, folder: Path, keep_values: bool = False, values: bool = True) -> None:
        """Keeps the settings.

        folder: for the files of the capture.  keep_values: keep values that cannot be drawn.  values: describe the
        arguments of calls; without, launches are counted and timed alone.
        """
        self._folder, self._keep, self._values = folder, keep_values, values
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()
        self._kernels: dict[int, KernelNotes] = {}
        self._times: dict[tuple[int, ...], LaunchTimes] = {}  # by ids of the notes that they count for
        self._hosts: dict[int, HostNotes] = {}  # by id of the function, which is kept alive
        self._scanned: dict[int, tuple[ModuleType, int]] = {}  # with the number of names that it had
        self._replaced = hosts.Replaced()
        self._boundaries: dict[tuple[Site, int], bool] = {}
        self.troubles: list[str] = []
        self._begin = self._written = time.perf_counter()
        self._file = ""
        self._timer: LaunchTimer | None = None
        self._random = random.Random(0)  # its own: the program's numbers stay as they are
        self._fake: Any = None

    # --- begin and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to watch."""
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self.device = "interpreter" if interpreted else "gpu" if torch.cuda.is_available() else "none"
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.device == "gpu":
            self._timer = LaunchTimer(self._safely)
        elif self.device == "none":
            from evo.programs.no_gpu import without_gpu

            self._fake = self._stack.enter_context(without_gpu(lambda: bool(self._thread.entered)))
        for kind in (JITFunction, InterpretedFunction, Autotuner, Heuristics):
            self._patch(kind, "run", self._launched)
        self._patch(Autotuner, "_bench", self._tried)
        for module in list(sys.modules.values()):
            self.scan(module)
        os.register_at_fork(after_in_child=self._forked)

    def stop(self) -> None:
        """Ends, and writes the file of this process."""
        self.write()
        self._replaced.restore()
        self._stack.close()

    def _patch(self, kind: type, name: str, by: Callable[..., Any]) -> None:
        original = vars(kind)[name]

        @functools.wraps(original)
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return by(original, kernel, args, kwargs)

        self._stack.enter_context(mock.patch.object(kind, name, run))

    def _forked(self) -> None:
        """Begins anew in a process that was forked from this one."""
        self._kernels, self._times, self._thread, self._lock, self._file = {}, {}, _Thread(), threading.RLock(), ""
        self._timer = None if self._timer is None else LaunchTimer(self._safely)
        for host in self._hosts.values():
            host.calls, host.missed, host.kernels = DistinctCalls(MOST), 0, set()

    def scan(self, module: Any) -> None:
        """Watches the host functions of a module; and kernels that torch.compile wrote, if it is PyTorch's module."""
        if not isinstance(module, ModuleType) or self._is_scanned(module):
            return
        name = module.__name__
        if name == "torch._inductor.runtime.triton_heuristics" and hasattr(module, "CachingAutotuner"):
            if id(module) not in self._scanned:
                self._patch(module.CachingAutotuner, "run", self._launched_by_inductor)
        elif hosts.is_common(name):
            return
        self._scanned[id(module)] = module, len(vars(module))
        self._safely(self._replace, module)

    def _replace(self, module: ModuleType) -> None:
        for attribute, function in hosts.host_functions(module):
            if id(inner := getattr(function, "__wrapped__", None)) in self._hosts and inner is not None:
                continue  # it is watched already
            notes = HostNotes(module.__name__, attribute, function, DistinctCalls(MOST))
            self._hosts[id(function)] = notes
            watching = hosts.watched(notes, function, self._called)
            self._replaced.replace(function, watching, hosts.spaces_of_modules())

    def _is_scanned(self, module: ModuleType) -> bool:
        """Returns whether a module was scanned, and defines nothing new since: it may be under way then."""
        found = self._scanned.get(id(module))
        return found is not None and found[1] == len(vars(module))

    def _safely(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the watcher.  A fault of it is noted, gives None, and does not reach the program."""
        try:
            with torch._C.DisableTorchFunction():
                return function(*args)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in self.troubles and len(self.troubles) < 20:
                self.troubles.append(text)
            return None

    # --- host functions ----------------------------------------------------------------------------------------------

    def _called(self, host: HostNotes, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entered: _Entered | None = self._safely(self._enter, host, args, kwargs)
        if entered is None:
            return function(*args, **kwargs)
        under_way = self._thread.entered
        under_way.append(entered)
        try:
            result = function(*args, **kwargs)
        finally:
            under_way.pop()
        if entered.launches and entered.call.result is None:
            self._safely(self._returned, entered.call, result)
        return result

    def _enter(self, host: HostNotes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entered | None:
        key = key_of((*args, *kwargs.values()))
        if key is None:
            return None
        key = (key, tuple(kwargs))
        notes = host.calls.as_given.get(key)
        if notes is None:
            names, values, named = bound(host.function, args, kwargs)
            whole = key_of((*values, *named.values()))
            if whole is None or not has_tensor((*values, *named.values())):
                return None
            with self._lock:
                notes, new = host.calls.find(whole)
                if notes is not host.calls.rest:
                    host.calls.as_given[key] = notes
            if new and self._capturing():  # nothing may wait for the GPU now
                notes.trouble = IN_GRAPH
            elif new and self._values:
                self._describe(notes, host, names, values, named)
        return _Entered(host, notes)

    def _describe(
        self, notes: CallNotes, host: HostNotes, names: list[str], values: list[Any], named: dict[str, Any]
    ) -> None:
        space = hosts.inner_function(host.function).__globals__
        prefix = f"{os.getpid()}-{host.attribute}-{len(host.calls.by_key)}"
        with self._describing() as describing:
            describing.call(notes, space, prefix, host.attribute, names, values, named)

    @contextlib.contextmanager
    def _describing(self) -> Iterator[Describing]:
        """Sets the state in which values are looked at.  Modes of the program do not see that."""
        with torch.no_grad(), _disable_current_modes():
            yield Describing(self._folder if self._keep else None, self._rule)

    def _rule(self, tensor: torch.Tensor) -> Any:
        """Returns the rule for the values of a tensor, if more is known of them than that they are numbers."""
        made = None if self._fake is None else self._fake.rule(tensor)
        return made or structure(tensor)

    def _capturing(self) -> bool:
        """Returns whether launches go into a CUDA graph; asks nothing that would begin to use the GPU."""
        if self.device != "gpu" or not torch.cuda.is_initialized():
            return False
        return torch.cuda.is_current_stream_capturing()

    def _returned(self, notes: CallNotes, result: Any) -> None:
        notes.result = structure_of(result)
        if self._values and notes.form:
            paths = list(tensor_paths(result, "result"))
            whole = isinstance(result, (tuple, list)) and len(paths) == len(result)
            notes.form["result"] = "result" if whole else ", ".join(paths)

    # --- launches ----------------------------------------------------------------------------------------------------

    def _tried(self, original: Any, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the launches by which a tuner measures a configuration; none of them counts."""
        self._thread.trials += 1
        try:
            return original(tuner, *args, **kwargs)
        finally:
            self._thread.trials -= 1

    def _launched(self, original: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stands in for `run` of kernels, tuners and heuristics; the outermost of them is the launch."""
        thread = self._thread
        if thread.trials or kwargs.get("warmup"):
            return original(kernel, *args, **kwargs)
        if thread.launch is not None:
            return self._made(thread.launch, original, kernel, args, kwargs)
        launch = _Launch()
        self._safely(self._note, launch, kernel)
        thread.launch = launch
        try:
            return self._made(launch, original, kernel, args, kwargs)
        finally:
            thread.launch = None
            if isinstance(kernel, (Autotuner, Heuristics)):
                self._safely(self._note_config, launch, kernel)

    def _made(self, launch: _Launch, original: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls `run` of a kernel, a tuner or heuristics inside a launch, and times it if it is to be timed."""
        spent: Spent | None = self._safely(self._at_kernel, launch, kernel, args, kwargs)
        if self.device == "none":
            return types.SimpleNamespace(n_regs=0, n_spills=0, metadata=types.SimpleNamespace(shared=0))
        if spent is None or self._timer is None:
            return original(kernel, *args, **kwargs)
        with self._timer.launch(spent):
            return original(kernel, *args, **kwargs)

    def _launched_by_inductor(self, original: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stands in for `run` of kernels that torch.compile wrote, and of the program's kernels inside its code."""
        if self._thread.trials or kwargs.get("benchmark_run"):
            return original(kernel, *args, **kwargs)
        spent: Spent | None = self._safely(self._at_inductors, kernel)
        self._thread.trials += 1  # it tunes and launches inside
        try:
            if spent is None or self._timer is None:
                return original(kernel, *args, **kwargs)
            with self._timer.around(spent):
                return original(kernel, *args, **kwargs)
        finally:
            self._thread.trials -= 1

    def _at_inductors(self, kernel: Any) -> Spent | None:
        """Notes a launch of a kernel that torch.compile wrote; returns who gets its time, None if it is not timed."""
        notes = self._kernels.get(id(kernel))
        if notes is None:
            name = kernel.inductor_meta.get("kernel_name") or kernel.fn.__name__
            file = getattr(kernel, "filename", "") or ""
            notes = KernelNotes("torch.compile", name, kernel, "inductor", file, 0, DistinctCalls(MOST))
            self._kernels[id(kernel)] = notes
        notes.launches += 1
        if self._capturing():
            notes.in_graphs += 1
            return None
        compiled = getattr(kernel, "launchers", None)  # its first launch compiles and tunes
        return self._turn(notes) if compiled else None

    def _note(self, launch: _Launch, kernel: Any) -> None:
        """Notes the kernel of a launch, its place in the program, and the call of a host function around it."""
        notes = self._kernels.get(id(kernel)) or self._new_kernel(kernel)
        frame = hosts.outside(sys._getframe(1))
        site = ("", 0, "")
        entered = None
        if frame is not None:
            site = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
            entered = self._host_of(frame, site)
        launch.kernel, launch.entered, launch.in_graph = notes, entered, self._capturing()
        with self._lock:
            notes.launches += 1
            notes.sites[site] += 1
            notes.hosts[entered.host.name if entered else ""] += 1
            notes.in_graphs += launch.in_graph
            if entered is not None:
                entered.host.kernels.add(notes.name)
                entered.call.count += not entered.launches
                entered.launches += 1
                entered.call.launches += 1
        if time.perf_counter() - self._written > WRITE_EVERY_S:
            self.write(final=False)

    def _new_kernel(self, kernel: Any) -> KernelNotes:
        inner = kernel
        while not isinstance(inner, (JITFunction, InterpretedFunction)):
            inner = inner.fn
        function = inner.fn
        code = function.__code__
        name = attribute_of(kernel, function)
        notes = KernelNotes(
            function.__module__, name, kernel, "triton", code.co_filename, code.co_firstlineno, DistinctCalls(MOST)
        )
        self._kernels[id(kernel)] = notes
        return notes

    def _host_of(self, frame: types.FrameType, site: Site) -> _Entered | None:
        if not self._thread.entered:
            return self._under_way(frame)
        entered = self._thread.entered[-1]
        key = site, id(entered.host)
        if key not in self._boundaries:
            code = hosts.inner_function(entered.host.function).__code__
            self._boundaries[key] = all(f.f_code is not code for f in hosts.frames(frame))
        return None if self._boundaries[key] else entered

    def _under_way(self, frame: types.FrameType) -> _Entered | None:
        """Returns the call of a host function in a module that was not scanned yet: the program's main file."""
        before = self._thread.under_way
        for outer in hosts.frames(frame):
            if before is not None and before[:2] == (id(outer), outer.f_code):
                return before[2]
        module = sys.modules.get(frame.f_globals.get("__name__", ""))
        if module is None or self._is_scanned(module):
            return None
        self.scan(module)
        codes = {hosts.inner_function(h.function).__code__: h for h in self._hosts.values()}
        for outer in hosts.frames(frame):
            host = codes.get(outer.f_code)
            if host is None or hosts.inner_function(host.function) is not host.function:
                continue
            arguments = hosts.arguments_at_begin(outer)
            if arguments is None:
                host.missed += 1
                entered = None
            else:
                entered = self._enter(host, (), dict(arguments))
            self._thread.under_way = id(outer), outer.f_code, entered
            return entered
        return None

    def _note_config(self, launch: _Launch, kernel: Any) -> None:
        """Notes which configuration the tuner of a launch chose."""
        while isinstance(kernel, Heuristics):
            kernel = kernel.fn
        config = getattr(kernel, "best_config", None)
        if config is not None and launch.kernel is not None:
            launch.kernel.configs[str(config)] += 1

    def _at_kernel(self, launch: _Launch, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spent | None:
        """Notes the arguments of a kernel that is launched next, with all that tuners and heuristics gave it.

        Returns who gets its time, None if it is not timed.
        """
        grid, given = kwargs.get("grid"), {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}
        while self.device == "none" and isinstance(kernel, (Autotuner, Heuristics)):  # they do not run
            given |= kernel.configs[0].all_kwargs() if isinstance(kernel, Autotuner) else {}
            for name, rule in kernel.values.items() if isinstance(kernel, Heuristics) else ():
                given[name] = rule({**dict(zip(kernel.arg_names, args, strict=False)), **given})
            kernel = kernel.fn
        if launch.kernel is None or not isinstance(kernel, (JITFunction, InterpretedFunction)):
            return None
        key = key_of((*args, *given.values()))
        with self._lock:
            call, new = launch.kernel.calls.find((key, tuple(given), None if callable(grid) else tuple(grid or ())))
            call.count += 1
            call.launches += 1
        if new and launch.in_graph:
            call.trouble = IN_GRAPH
        elif new and self._values:
            self._safely(self._describe_launch, call, launch.kernel, kernel, grid, args, given)
            if _has_pre_hook(launch.kernel.kernel):
                call.trouble = PRE_HOOK
        if launch.in_graph:
            return None
        if launch.entered is None:
            return self._turn(launch.kernel, call)
        return self._turn(launch.kernel, call, launch.entered.call)

    def _describe_launch(
        self, call: CallNotes, notes: KernelNotes, kernel: Any, grid: Any, args: tuple[Any, ...], given: dict[str, Any]
    ) -> None:
        space = kernel.fn.__globals__
        values = {**dict(zip(kernel.arg_names, args, strict=False)), **given}
        sizes = tuple(grid(values)) if callable(grid) else tuple(grid)
        sizes = tuple(int(size) for size in (*sizes, 1, 1)[:3])
        named = {n: v for n, v in given.items() if n in kernel.arg_names}
        options = "".join(f", {n}={v!r}" for n, v in given.items() if n not in kernel.arg_names and v is not None)
        prefix = f"{os.getpid()}-{notes.attribute}-{len(notes.calls.by_key)}"
        names = ["grid_0", "grid_1", "grid_2", *kernel.arg_names]
        with self._describing() as describing:
            writer = describing.call(call, space, prefix, "", names, (*sizes, *args), named)
        inside = writer.text[1:-1].split(", ", 3)
        slots = f"({', '.join(inside[:3])})"
        call.form = {
            "slots": writer.slots, "call": f"{kernel.fn.__name__}[{slots}]({inside[3]}{options})", "result": "",
        }  # fmt: skip

    # --- times -------------------------------------------------------------------------------------------------------

    def _turn(self, *of: KernelNotes | CallNotes) -> Spent | None:
        """Counts a launch for these notes.  Returns who gets its time if it is its turn to be timed."""
        if self._timer is None:
            return None
        key = tuple(map(id, of))
        with self._lock:
            times = self._times.get(key)
            if times is None:
                times = self._times[key] = LaunchTimes(of)
            times.launches += 1
        if times.launches <= FIRST:
            return functools.partial(self._spent, times, 1)
        if self._random.random() * ONE_IN < 1:
            return functools.partial(self._spent, times, ONE_IN)
        return None

    def _spent(self, times: LaunchTimes, stands_for: int, microseconds: float) -> None:
        """Notes the time of a launch.  It stands for as many as one over the probability that it was timed."""
        with self._lock:
            times.us += microseconds * stands_for
            times.stood_for += stands_for

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, *, final: bool = True) -> None:
        """Writes the file of this process, if it launched a kernel.  final: wait for times that are not known yet."""
        self._written = time.perf_counter()
        if not self._kernels:
            return
        if final and self._timer is not None:
            self._safely(self._timer.finish)
        with self._lock, torch._C.DisableTorchFunction():
            add_up(self._times.values())
            data = self._data()
        self._file = self._file or f"process-{os.getpid()}-{time.time_ns()}.json"
        temporary = self._folder / f".{self._file}"
        temporary.write_text(json.dumps(data), encoding="utf-8")
        temporary.replace(self._folder / self._file)

    def _data(self) -> dict[str, Any]:
        launching = [host for host in self._hosts.values() if host.kernels or host.missed]
        return {
            "version": VERSION,
            **facts_of_process(self.device),
            "wall_s": time.perf_counter() - self._begin,
            "troubles": self.troubles,
            "kernels": [self._kernel_data(notes) for notes in self._kernels.values()],
            "hosts": [self._host_data(notes) for notes in launching],
        }

    def _kernel_data(self, notes: KernelNotes) -> dict[str, Any]:
        fields = ("module", "attribute", "kind", "file", "line", "in_graphs", "launches", "timed", "us")
        found = {name: getattr(notes, name) for name in fields}
        found |= {"hosts": dict(notes.hosts), "configs": dict(notes.configs), **notes.calls.data()}
        found["sites"] = [{"file": f, "line": n, "function": q, "count": c} for (f, n, q), c in notes.sites.items()]
        if notes.kind == "inductor":
            return found
        return found | package_of(notes.module, notes.file) | self._cut(notes.kernel, True, notes)

    def _host_data(self, notes: HostNotes) -> dict[str, Any]:
        function = hosts.inner_function(notes.function)
        file = function.__code__.co_filename
        found = {"module": notes.module, "attribute": notes.attribute, "file": file, "missed": notes.missed}
        found |= {"line": function.__code__.co_firstlineno, "kernels": sorted(notes.kernels), **notes.calls.data()}
        return found | package_of(notes.module, file) | self._cut(notes.function, False, notes)

    def _cut(self, function: Any, bare: bool, notes: Any) -> dict[str, Any]:
        """Returns the source that stands alone, or why there is none; and the hash of the file it is from."""
        from evo.core.errors import TaskError
        from fitness.tasks.cut import KernelWriter

        writer = KernelWriter(self._original)
        found: dict[str, Any] = {"sha256": sha256_of(getattr(notes, "file", "") or _file_of(function))}
        try:
            writer.function(notes.attribute, function, bare=bare)
        except TaskError as error:
            return found | {"source": "", "not_cut": str(error), "left_out": []}
        return found | {"source": writer.text(), "not_cut": "", "left_out": writer.left_out}

    def _original(self, value: Any) -> Any:
        """Returns the function that a watching one stands for; other values as they are."""
        inner = getattr(value, "__wrapped__", None)
        return inner if inner is not None and id(inner) in self._hosts else value


def _has_pre_hook(kernel: Any) -> bool:
    """Returns whether a tuner around a kernel does something before a launch, such as filling the output with zeros."""
    while not isinstance(kernel, (JITFunction, InterpretedFunction)):
        if isinstance(kernel, Autotuner) and any(config.pre_hook is not None for config in kernel.configs):
            return True
        kernel = kernel.fn
    return False


def _file_of(function: Any) -> str:
    return str(hosts.inner_function(function).__code__.co_filename)

"""Builds programs of one task on a GPU, with inputs that follow from keys; keeps those of the seed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from evo.core.baselines import BaselineKind
from evo.core.records import Case, Verdict
from fitness.cuda.launcher import DeviceError, LoadedKernel
from fitness.frontend.plan import PlanError
from fitness.frontend.stages import Stop
from fitness.gpu.baselines import BaselineCall, Compiled, reason
from fitness.gpu.program import Program
from fitness.gpu.runner import LaunchBundle
from fitness.tasks.task import Task
from fitness.verify import oracle

WARM_UP = "warm-up"  # keys the inputs of calls of PyTorch that come before all timing


class Loaded:
    """A launch bundle with its chosen kernels loaded on the device."""

    def __init__(self, bundle: LaunchBundle) -> None:
        self.bundle = bundle
        self.choices = {name: list(choice) for name, choice in bundle.choices.items()}
        self._kernels: dict[str, LoadedKernel] = {}

    def kernels(self, case: str) -> list[LoadedKernel]:
        """Returns the kernel of each launch of a case, in the chosen configuration."""
        found = []
        for by_config, i in zip(self.bundle.builds[case], self.choices[case], strict=True):
            build = by_config[i]
            if build["key"] not in self._kernels:
                self._kernels[build["key"]] = LoadedKernel(self.bundle.cubins[build["cubin"]], build)
            found.append(self._kernels[build["key"]])
        return found

    def close(self) -> None:
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels = {}


class Programs:
    """The programs of one task.  Use it within the stream that they run on."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device = task, device
        self.start_over()

    def start_over(self) -> None:
        """Forgets the baseline and its programs."""
        self.seed: Loaded | None = None
        self._of_seed: dict[tuple[str, int], Program] = {}
        self._of_pytorch: dict[tuple[str, int], BaselineCall] = {}
        self.baseline_us: dict[str, float] = {}  # of one execution, by case

    @functools.cached_property
    def compiled(self) -> Compiled:
        """What `torch.compile` made of the task's calls, for all baselines of this process."""
        return Compiled()

    def compile_ahead(self, kinds: Iterable[BaselineKind]) -> None:
        """Has `torch.compile` compile the calls of the tune cases: seconds in which others may use the GPU.

        Each is called once.  A call that fails is tried again when it is timed, which says why.
        """
        for kind in (kind for kind in kinds if kind.compiled):
            for case in (case for case in self.task.cases if case.role == "tune"):
                with contextlib.suppress(Exception):  # compilers raise all kinds
                    self.call(self.task, kind, case).call()

    def inputs(self, case: Case, key: int, variant: str = "normal") -> tuple[Any, ...]:
        return oracle.make_inputs(self.task, case, key, variant, device=self.device)

    def build(self, loaded: Loaded, case: Case, inputs: Iterable[Sequence[Any]], copies: int = 1) -> Program:
        """Returns the program of a case.

        inputs: the entry's arguments for each copy, or for all.  Raises Stop if they do not fit.
        """
        program = Program(
            loaded.bundle.plans[case.name],
            loaded.choices[case.name],
            loaded.kernels(case.name),
            device=self.device,
            copies=copies,
            written=self.task.written,
        )
        try:
            program.write_all(inputs)
        except PlanError as error:
            raise Stop("verify", Verdict.RUNTIME_ERROR, f"case {case.name}: {error}") from error
        program.build()
        return program

    def write(self, case: Case, program: Program | BaselineCall, keys: Sequence[int]) -> None:
        """Writes the inputs of each key to a copy."""
        program.write_all(self.inputs(case, key) for key in keys)

    def of_seed(self, case: Case, inputs: Iterable[Sequence[Any]], copies: int = 1) -> Program:
        """Returns the seed's program for a case, on these inputs.

        The program repairs what a candidate may have stored into its memory.
        """
        assert self.seed is not None
        program = self._of_seed.get((case.name, copies))
        if program is None or program.integrity.broken_guards():
            program = self._of_seed[case.name, copies] = self.build(self.seed, case, inputs, copies)
            program.replay()  # the first replay takes longer and is not timed
            program.reset()
        else:
            program.write_all(inputs)
        return program

    def baseline(self, case: Case, inputs: Iterable[Sequence[Any]], copies: int = 1) -> Program | BaselineCall:
        """Returns what is timed beside candidates on a case, on these inputs: the seed's program, or PyTorch's call.

        It repairs what a candidate may have stored into its memory.
        """
        if self.task.seed_source is not None:
            return self.of_seed(case, inputs, copies)
        call = self._of_pytorch.get((case.name, copies))
        if call is None or call.integrity.broken_guards():
            call = self._of_pytorch[case.name, copies] = self._call(case, inputs, copies)
        else:
            call.write_all(inputs)
        return call

    def another_baseline(self, case: Case, inputs: Iterable[Sequence[Any]], copies: int) -> Program | BaselineCall:
        """Returns the same as `baseline` in other memory, to compare it with itself."""
        if self.task.seed_source is None:
            return self._call(case, inputs, copies)
        assert self.seed is not None
        return self.build(self.seed, case, inputs, copies)

    def _call(self, case: Case, inputs: Iterable[Sequence[Any]], copies: int) -> BaselineCall:
        """Raises Stop if PyTorch cannot be called, compiled or captured."""
        kind = self.task.timed_against
        try:
            call = self.call(self.task, kind, case, copies)
            call.build()
            call.write_all(inputs)
            call.replay()  # the first replay takes longer and is not timed
            call.reset()
        except (Stop, DeviceError):
            raise
        except Exception as error:  # compilers and captures raise all kinds
            message = f"case {case.name}: {kind.text} cannot be timed: {reason(error)}"
            raise Stop("time", Verdict.UNSUPPORTED, message) from error
        return call

    def call(self, task: Task, kind: BaselineKind, case: Case, copies: int = 1) -> BaselineCall:
        """Returns a call of PyTorch that is not built yet, on inputs that no candidate gets.

        task: this one, maybe with another timed call.
        """
        first = self.inputs(case, oracle.key_of(WARM_UP))
        return BaselineCall(task, kind, first, self.device, copies, self.compiled if kind.compiled else None)

    def is_of_seed(self, program: Program) -> bool:
        return self.seed is not None and any(program.plan is plan for plan in self.seed.bundle.plans.values())


def choices(bundle: LaunchBundle, chosen: Mapping[tuple[str, int], int]) -> dict[str, list[int]]:
    """Returns for each case the configuration of each launch.

    chosen: that of (kernel, number of its configurations).
    """
    return {
        name: [chosen[launch.kernel, len(launch.configs)] for launch in plan.launches]
        for name, plan in bundle.plans.items()
    }

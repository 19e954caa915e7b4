"""Starts the two processes of a comparison, a candidate's and the seed's, and has the runner look at them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError
from evo.core.records import Build, Verdict
from evo.core.text import plain
from fitness.certify import certify
from fitness.eager.bench import DRAWN, OWN, SEED
from fitness.eager.channel import make_pipes, mark_ended, release
from fitness.frontend.screen import occupancy
from fitness.frontend.stages import Stop, expect_ok
from fitness.frontend.target import Target, get_target, machine, sm_name
from fitness.gpu.runner import Report, Runner
from fitness.sandbox.jobs import JobResult
from fitness.sandbox.scratch import remove, scratch_folder, scratch_root
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task

# Of one process, from the first case to the last pair: a minute or two where the inputs are hundreds of megabytes.
LIMITS = replace(certify.LIMITS, wall_s=900.0, cpu_s=900)
DEVICE = "cuda"
MOST_BYTES = 1 << 30  # and registers, of a build: no kernel has as many
RELEASE_S = 0.05  # between attempts to tell a process that nobody asks any more


class Host:
    """Compares candidates of one task with its seed, one after the other."""

    def __init__(self, task: Task, runner: Runner, *, wall_s: float) -> None:
        """The runner is shared with others and not closed here.  wall_s: the most that a call may take."""
        self._task, self._runner, self._wall_s = task, runner, wall_s
        compiled_for = sm_name(runner.facts["capability"])
        target = get_target(compiled_for)
        self.target = machine(target, runner.facts)
        self._zygote = Zygote(target.spec, ("serve",), runner.facts["uuid"])
        self._root = scratch_root()
        self._lock = threading.Lock()

    def close(self) -> None:
        self._zygote.close()
        remove(self._root)

    def compare(self, source: str, *, key: str) -> tuple[Report, tuple[str, ...]]:
        """The report, and the layers of the sandbox.  `key` keys the inputs."""
        with self._lock, scratch_folder(self._root) as root, ThreadPoolExecutor(2) as threads:
            (root / DRAWN).mkdir()
            jobs = {}
            for name, text in ((OWN, source), (SEED, self._task.seed_source)):
                (root / name).mkdir()
                make_pipes(root / name)
                jobs[name] = threads.submit(self._serve, text, root / name)
            try:
                report = self._runner.eager(root, seed=key, wall_s=LIMITS.wall_s)
            finally:
                _let_go(root, jobs)
            own, base = jobs[OWN].result(), jobs[SEED].result()
        if report.verdict is Verdict.RUNTIME_ERROR:
            report = _better_told(report, own)
        if report.verdict is Verdict.INFRASTRUCTURE and base.status != "ok":
            report = replace(report, message=f"{report.message}: {base.message}")
        return report, own.layers

    def _serve(self, source: str, scratch: Path) -> JobResult:
        payload = {"source": source, "entry": self._task.entry, "device": DEVICE, "wall_s": self._wall_s}
        try:
            return self._zygote.run("serve", payload, scratch=scratch, limits=LIMITS)
        except EvoError as error:  # no such process can be had here
            return JobResult("infrastructure", None, Verdict.INFRASTRUCTURE, str(error))
        finally:
            mark_ended(scratch)


def _better_told(report: Report, result: JobResult) -> Report:
    """Where the process ended by itself, its end says why."""
    # It compiles nothing itself but the candidate's top level.
    stage = "compile" if result.verdict is Verdict.COMPILE_ERROR else report.stage
    try:
        expect_ok(stage, result)
    except Stop as stop:
        return replace(report, verdict=stop.verdict, stage=stop.stage, message=stop.message)
    return report


def _let_go(root: Path, jobs: Mapping[str, Future[JobResult]]) -> None:
    """Until both ended: by themselves, by an alarm in a call that does not end, or by the sandbox."""
    while wait(jobs.values(), RELEASE_S).not_done:
        for name in jobs:
            release(root / name)


def builds_of(told: Any, target: Target) -> tuple[Build, ...]:
    """Builds from what a process with untrusted code told; they serve the niches of the archive alone.

    Raises Stop where it makes no sense.
    """
    found: dict[str, Build] = {}
    try:
        for one in told:
            registers, spills, shared, warps = (
                int(one[name]) for name in ("registers", "spill_bytes", "shared_bytes", "num_warps")
            )
            amounts = registers, spills, shared
            if min(amounts) < 0 or max(amounts) > MOST_BYTES or not 1 <= warps <= target.warps_per_multiprocessor:
                raise ValueError(f"{registers} registers, {spills} and {shared} bytes, {warps} warps")
            _, resident = occupancy(registers, shared, warps, target)
            name, code = plain(str(one["kernel"])[:200]), plain(str(one["sass_hash"])[:64])
            build = Build(name, registers, spills, shared, warps, resident, code)
            found.setdefault(build.sass_hash, build)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise Stop("verify", Verdict.RUNTIME_ERROR, f"what it told of its kernels makes no sense: {error!r}") from error
    return tuple(found.values())

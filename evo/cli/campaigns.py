"""Carries out a campaign, for `evo ablate` and `evo bench`: options, processes, what is printed as runs end."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evo.cli import common
from evo.cli.search import notify
from evo.core.errors import ConfigError, EvoError
from evo.core.text import counted

if TYPE_CHECKING:
    from evo.campaign.runner import Conclude, Done, Work
    from evo.campaign.spec import Campaign, CampaignRun, Spec
    from evo.campaign.suite import Checking
    from evo.search.evaluators import Devices
    from evo.search.profiling import Profiler
    from evo.storage.store import Store
    from fitness.cluster.pool import ClusterEvaluatorFactory
    from fitness.evaluator_factory import EvaluatorFactory
    from fitness.suites import SuiteFile
    from fitness.tasks.task import Task

CORES_A_PROCESS = 4  # of a campaign over a suite on a GPU: the others compile
LOOK_S = 0.2  # between looks at the processes that share the runs
MOST_PROPOSING = 64  # runs that only propose at once: they wait for models, and need no processor
_LIMITS = {
    "max_candidates": "candidates",
    "max_tokens": "tokens",
    "max_usd": "usd",
    "gpu_seconds": "gpu_seconds",
}


# --- options ----------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what both commands take."""
    parser.add_argument("--workers", type=int, metavar="W", help="runs at once (default: as CPUs and GPUs allow)")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="P",
        help="processes that share the runs: one uses one core for operators, and one GPU (default: one a GPU; for a "
        f"suite on GPUs one for {CORES_A_PROCESS} cores)",
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--best",
        action="store_true",
        help="write the best kernel of each run to best/ in its folder, also without a GPU, which certifies nothing",
    )
    end.add_argument(
        "--no-certify",
        action="store_true",
        help="on a GPU: leave out the full certificate and the second timing of the best kernel of each run, which "
        "are done by default, also of runs that are finished",
    )
    parser.add_argument("--helper", action="store_true", help=argparse.SUPPRESS)  # one of the processes
    common.add_new_versions(parser)
    common.add_ray(parser)
    limits = parser.add_argument_group(
        "limits of the whole campaign", "kept in its folder, for all processes and calls; a call may raise them"
    )
    limits.add_argument("--max-candidates", type=int, metavar="N", help="most candidates of all runs")
    limits.add_argument("--max-tokens", type=int, metavar="N", help="most tokens, of prompts and answers")
    limits.add_argument("--max-usd", type=float, metavar="X", help="most dollars; needs prices")
    limits.add_argument("--gpu-seconds", type=float, metavar="X", help="most seconds in which GPUs measure candidates")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--propose-only", type=int, metavar="N", help="store N candidates of each run, evaluate none")
    half.add_argument("--evaluate-only", action="store_true", help="evaluate what is pending, propose nothing")


def _proposals(arguments: argparse.Namespace) -> int | None:
    if arguments.propose_only is not None and arguments.propose_only < 1:
        raise ConfigError(f"--propose-only: expected a number from 1, got {arguments.propose_only}")
    return 0 if arguments.evaluate_only else arguments.propose_only


def _processes(arguments: argparse.Namespace, devices: Devices | None, suite: bool) -> int:
    """Returns how many processes execute runs; each drives one GPU, or none."""
    from evo.search import evaluators

    gpus = devices.choice.gpus if devices is not None and devices.cluster is None else 0
    a_gpu = max(1, evaluators.workers(None) // CORES_A_PROCESS // gpus) if gpus and suite else 1
    wanted: int = max(1, gpus) * a_gpu if arguments.processes is None else arguments.processes
    if wanted < max(gpus, 1):
        raise ConfigError(f"--processes: expected at least {max(gpus, 1)}, one a GPU, got {wanted}; leave it out")
    if wanted > 1 and (devices is None or devices.cluster is not None):
        raise ConfigError(f"--processes: expected 1 for runs that only propose, or on a cluster, got {wanted}")
    return wanted


# --- a campaign -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a call ended.  `failed`: runs that were named already; `lines`: of code, by kernel."""

    code: int
    failed: tuple[CampaignRun, ...]
    lines: Mapping[str, int]


def carry_out(spec: Spec, folder: Path, arguments: argparse.Namespace) -> Ended:
    """Executes the runs of a campaign that are left, in this process or several, and says how it ended.

    Raises EvoError before anything is executed if something is wrong with the arguments.
    """
    from evo.search.assemble import check_models
    from evo.search.options import check_workers

    check_workers(arguments.workers)
    proposals = _proposals(arguments)
    if proposals != 0:
        check_models(spec.models)
    devices = None if proposals else _devices(arguments, spec.target)
    processes = _processes(arguments, devices, spec.suite is not None)
    if devices is not None and not arguments.helper:
        common.say("\n".join(devices.lines))
        if devices.choice.device != "gpu":
            common.say("without a GPU the best kernels are neither certified nor timed again")
    call = _Call(spec, folder, arguments, devices, proposals, processes)
    with closing(call):
        return call.run()


def _devices(arguments: argparse.Namespace, target: str) -> Devices:
    """What evaluates: a Ray cluster, or GPUs of this machine with a process each, or none."""
    from evo.search import evaluators
    from fitness.devices import resolve

    if arguments.ray_address is not None:
        return evaluators.find_devices(arguments.gpus, arguments.ray_address, target)
    choice = resolve(arguments.gpus, lambda: evaluators.find_gpus(target))
    return evaluators.Devices(choice, None, evaluators.on_estimates(choice, target))


class _Call:
    """One call of a command on the campaign in its folder."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        arguments: argparse.Namespace,
        devices: Devices | None,
        proposals: int | None,
        processes: int,
    ) -> None:
        from evo.campaign.limits import CampaignLimits, check_limits
        from evo.campaign.runner import Work
        from evo.campaign.spec import Campaign
        from evo.core import versions
        from evo.search.listener import Terminal

        device = devices.choice.device if devices is not None else ""
        given = {kind: getattr(arguments, option) for option, kind in _LIMITS.items()}
        limits = {kind: limit for kind, limit in given.items() if limit is not None}
        check_limits(limits, spec.models, device)
        self.spec, self.folder, self.arguments, self.devices = spec, folder, arguments, devices
        self.processes = processes
        self.files: list[SuiteFile] = spec.suite.files() if spec.suite is not None else []
        if spec.suite is not None:
            spec.suite.check_same(folder)
        self.tasks = {} if spec.suite is not None else _load(spec)
        alone = [name for name, task in self.tasks.items() if task.seed_source is None]
        if alone and not spec.models:
            raise ConfigError(
                f"tasks: expected a kernel.py of each to start from, or a model that writes the first kernels, got "
                f"neither for {', '.join(alone)}; add a model (docs/llm.md), or kernels"
            )
        known = versions.versions() if devices is not None else versions.own_versions()
        hashes = {name: task.hash for name, task in self.tasks.items()}
        self.campaign = Campaign.open(folder, spec, device, hashes, known, new_versions=arguments.new_versions)
        if spec.suite is not None:
            spec.suite.note(folder)
        measures = device == "gpu" and not arguments.no_certify
        conclude = _conclude(measures) if devices is not None and (measures or arguments.best) else None
        self.work = Work(
            CampaignLimits(folder, limits), known, proposals, conclude=conclude, listener=Terminal(),
            new_versions=arguments.new_versions,
        )  # fmt: skip

    def close(self) -> None:
        self.work.limits.close()

    def runs(self) -> list[CampaignRun]:
        """All runs that there may be: of all files of a suite."""
        names = [source.name for source in self.files] or list(self.tasks)
        return [run for name in names for run in self.campaign.runs_of(name)]

    def total(self) -> int:
        """Returns how many runs there are, as far as is known."""
        from evo.campaign.suite import read_checked

        known = read_checked(self.folder)
        models = bool(self.spec.models)
        out = sum(f.name in known and not known[f.name].searchable(models=models) for f in self.files)
        names = len(self.files) or len(self.tasks)
        return (names - out) * len(self.spec.variants) * len(self.spec.seeds)

    def run(self) -> Ended:
        from evo.search import evaluators

        workers = self._workers()
        self._say_what(workers)
        if self.arguments.helper:  # its parent checks files, and sums up
            code, failed = self._executed(workers, functools.partial(_lives, os.getppid()))
            return Ended(code, failed, {})
        failed = ()
        with ExitStack() as stack:
            checking = self._checking(evaluators.workers(self.arguments.workers))
            look = checking.raise_error if checking is not None else _nothing
            if checking is not None:
                common.one_thread_each()
                stack.enter_context(checking)
            for _ in self._rounds():
                if self.processes > 1:
                    code = self._shared(-(-workers // self.processes), checking)
                else:
                    code, failed = self._executed(workers, look)
                if code in (common.EXIT_INTERRUPTED, common.EXIT_LIMIT):
                    break
            if code == common.EXIT_INTERRUPTED and checking is not None:
                checking.stop()
        return Ended(self._code(code), failed, self._lines())

    def _rounds(self) -> Iterator[None]:
        """Yields once; with an allocation again for each round in which runs get more candidates."""
        from evo.campaign import allocation
        from evo.campaign.runner import progress

        yield
        while self.campaign.budgets is not None:
            number = self.campaign.budgets.round_number + 1
            found = {run.key: progress(self.folder, run) for run in self.runs()}
            known = {run: made for run, made in found.items() if made is not None}
            more = allocation.next_budgets(known, self.spec.trials, number)
            if not more:
                return
            budgets = {run: self.campaign.budgets.budget(run) for run in known} | more
            self.campaign.budgets = dataclasses.replace(self.campaign.budgets, round_number=number, of=budgets)
            allocation.write_budgets(self.folder, self.campaign.budgets)
            common.say(f"round {number} of {allocation.ROUNDS}: {counted(len(more), 'run')} get more candidates")
            yield

    def _lines(self) -> dict[str, int]:
        """Returns the lines of code of each kernel."""
        from analysis.suite import code_lines

        sources = {file.name: file.kernels for file in self.files}
        sources |= {name: task.seed_source or "" for name, task in self.tasks.items()}
        return {name: code_lines(source) for name, source in sources.items()}

    def _workers(self) -> int:
        if self.devices is not None:
            return self.devices.workers(self.arguments.workers)
        return self.arguments.workers or max(1, min(MOST_PROPOSING, len(self.runs())))

    def _say_what(self, workers: int) -> None:
        from evo.campaign.runner import counter
        from evo.search.assemble import describe_models
        from evo.search.budget import in_words

        spec = self.spec
        if self.arguments.helper:
            return
        names = counted(len(self.files), "file") if self.files else counted(len(self.tasks), "task")
        runs = self.runs()
        common.say(
            f"campaign {self.folder}: {counted(len(spec.variants), 'variant')} x {names} x "
            f"{counted(len(spec.seeds), 'seed')} = {counted(len(runs), 'run')} of "
            f"{in_words(spec.trials, spec.gpu_seconds)}; {counter(self.folder, runs)()} finished; {workers} at once"
        )
        if spec.models and self.work.proposals != 0:
            common.say("\n".join(describe_models(spec.config("", spec.variants[0], 0, self.campaign.device))[:-1]))
        common.say(f"limits of the campaign: {self.work.limits.in_words() or 'none'}")

    def _checking(self, workers: int) -> Checking | None:
        """What checks the files of a suite meanwhile; None without a suite, and if nothing is evaluated."""
        from evo.campaign.suite import Checking, read_checked

        if self.spec.suite is None:
            return None
        if self.devices is None:
            if not any(f.name in read_checked(self.folder) for f in self.files):
                raise ConfigError(
                    f"--propose-only: expected files that were checked, got none in {self.folder}; on the machine that "
                    f"evaluates, give the same command with --evaluate-only first: it makes tasks of them"
                )
            return None
        gpus = self.devices.choice.gpus if self.devices.choice.device == "gpu" else 0
        return Checking(
            self.spec.suite,
            self.folder,
            target=self.spec.target,
            gpus=gpus,
            workers=workers,
            models=bool(self.spec.models),
            say=common.say,
        )

    def _arriving(self, look: Callable[[], None]) -> Iterator[Task | None]:
        """The tasks of the campaign: those of the spec, or those of files as they are verified."""
        from evo.campaign.suite import TASKS, arriving

        if self.spec.suite is None:
            yield from self.tasks.values()
            return
        models, wait = bool(self.spec.models), self.devices is not None
        for task in arriving(self.folder, self.files, look, models=models, wait=wait):
            if task is not None:
                self.campaign.add(task.name, str((self.folder / TASKS / task.name).resolve()), task.hash)
            yield task

    def _executed(self, workers: int, look: Callable[[], None]) -> tuple[int, tuple[CampaignRun, ...]]:
        """Executes the runs that no other process executes; returns the exit code, and the runs that failed."""
        from evo.campaign.runner import counter

        runs, work = self.runs(), self.work
        if self.campaign.budgets is not None:
            work = dataclasses.replace(work, budget=self.campaign.budget)
        done = counter(self.folder, runs, work.done)
        if work.proposals == 0 and self.campaign.device == "gpu":  # fewer runs than workers evaluate several at once
            work = dataclasses.replace(work, each=max(1, workers // max(1, len(runs) - done())))
        ended = run_campaign(self.campaign, self._arriving(look), workers, work, done, self.total, self._factory)
        return ended.code, tuple(done.run for done in ended.failed)

    def _factory(self) -> EvaluatorFactory | ClusterEvaluatorFactory | None:
        if self.devices is None:
            return None
        if self.spec.suite is None:
            return self.devices.open_factory(self.spec.target)
        from fitness.suites.check import LIMITS

        return self.devices.open_factory(self.spec.target, LIMITS)

    def _shared(self, workers: int, checking: Checking | None) -> int:
        """Starts processes that execute the runs, spread over the GPUs, and returns the exit code."""
        from evo.search.interrupt import Interrupt
        from fitness.cuda.gpus import visible

        assert self.devices is not None  # runs that only propose have one process
        gpus = self.devices.choice.gpus
        names = visible(gpus)
        own = ("--gpus", "1" if gpus else "none", "--workers", str(workers), "--processes", "1", "--helper")
        command = [sys.executable, "-m", "evo", *self.arguments.argv, *own]
        helpers = []
        for number in range(self.processes):
            device = {"CUDA_VISIBLE_DEVICES": names[number % gpus]} if gpus else {}
            # In a session of their own: Ctrl-C is for this process, which passes it on.
            helpers.append(subprocess.Popen(command, env={**os.environ, **device}, start_new_session=True))

        def pass_on() -> None:
            if checking is not None:
                checking.stop()
            for helper in helpers:
                helper.send_signal(signal.SIGINT)

        try:
            with Interrupt(pass_on) as interrupted:
                while any(helper.poll() is None for helper in helpers):
                    if checking is not None:
                        checking.raise_error()
                    time.sleep(LOOK_S)
        finally:
            for helper in helpers:
                helper.kill()  # after a second Ctrl-C; what is finished is stored
        if interrupted():
            return common.EXIT_INTERRUPTED
        codes = {helper.returncode for helper in helpers}
        if codes != {0} and checking is not None:
            checking.stop()  # unless all files are checked, and some runs failed or came to the limits
        return 0 if codes == {0} else common.EXIT_LIMIT if common.EXIT_LIMIT in codes else common.EXIT_NOT_OK

    def _code(self, code: int) -> int:
        """Says how the campaign ended, and returns the exit code."""
        from evo.campaign.suite import read_checked

        if code == common.EXIT_INTERRUPTED:
            common.say(f"interrupted; the same command continues ({self.folder} keeps what is finished)")
        elif code == common.EXIT_LIMIT:
            limits = self.work.limits
            common.say(
                f"limit of the campaign reached: {limits.in_words()}; the same command with a higher "
                f"{limits.to_raise()} continues"
            )
        elif self.files and not any(
            outcome.searchable(models=bool(self.spec.models)) for outcome in read_checked(self.folder).values()
        ):
            return common.EXIT_NOT_OK
        if self.work.proposals and not code:
            common.say("evaluate them: the same command with --evaluate-only in place of --propose-only")
        return code


def _nothing() -> None:
    pass


def _lives(parent: int) -> None:
    if os.getppid() != parent:
        raise EvoError("the parent process, which distributes the runs, is gone")


def _load(spec: Spec) -> Mapping[str, Task]:
    from evo.api import load_task

    loaded = [load_task(name) for name in spec.tasks]
    tasks = {task.name: task for task in loaded}
    if len(tasks) < len(loaded):
        raise ConfigError(f"tasks: expected different names, got {', '.join(t.name for t in loaded)}; rename a folder")
    return tasks


def _conclude(again: bool) -> Conclude:
    """Returns what ends each run; again: it times the best kernel a second time, in a new process."""
    from evo.campaign.champions import conclude
    from evo.search.listener import Terminal

    def end(store: Store, evaluator: Profiler, fresh: Callable[[], Profiler]) -> None:
        conclude(store, evaluator, Terminal(), fresh if again else None)

    return end


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunsEnded:
    failed: list[Done]
    limited: int  # runs that the limits of the campaign stopped
    interrupted: bool

    @property
    def code(self) -> int:
        if self.interrupted:
            return common.EXIT_INTERRUPTED
        return common.EXIT_LIMIT if self.limited else common.EXIT_NOT_OK if self.failed else 0


def run_campaign(
    campaign: Campaign,
    tasks: Iterable[Task | None],
    workers: int,
    work: Work,
    finished: Callable[[], int],
    total: Callable[[], int],
    open_factory: Callable[[], EvaluatorFactory | ClusterEvaluatorFactory | None],
) -> RunsEnded:
    """Executes the runs that are left and prints each result.

    tasks: see `execute_runs`; finished: counts finished runs, those of other processes too; total: counts the runs
    known so far; open_factory: returns None if nothing is evaluated.
    """
    from evo.campaign.runner import ELSEWHERE, execute_runs
    from evo.core.records import StopReason
    from evo.search.assemble import how_it_begins
    from evo.search.interrupt import Interrupt

    failed: list[Done] = []
    begin, before, elsewhere, limited = time.monotonic(), finished(), 0, 0
    with ExitStack() as stack:
        factory = open_factory()
        if factory is not None:
            stack.enter_context(closing(factory))
        interrupt = stack.enter_context(Interrupt(notify))

        def open_evaluator(task: Task) -> Profiler:
            assert factory is not None  # else nothing is evaluated
            common.say(f"preparing {task.name}: {how_it_begins(task)}")
            return factory.open(task)

        running = execute_runs(
            campaign, tasks, open_evaluator, workers, dataclasses.replace(work, stop=interrupt)
        )  # fmt: skip
        with closing(running), _forced_exit(campaign):
            for done in running:
                elsewhere += done.reason == ELSEWHERE
                limited += done.reason == StopReason.CAMPAIGN_LIMIT
                if done.reason in (StopReason.INTERRUPTED, ELSEWHERE):
                    continue
                failed += [done] if done.reason == "failed" else []
                ended, runs = finished() + len(failed), total()
                left = round((time.monotonic() - begin) / max(ended - before, 1) * max(runs - ended, 0))
                ahead = f"; ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}" if work.proposals is None else ""
                common.say(f"[{ended}/{runs}] {done.run}: {_in_words(campaign, done)}{ahead}")
        if elsewhere:
            common.say(f"{elsewhere} runs are left to other processes that run this campaign")
        for done in failed:
            common.say(f"failed: {done.run}: {_first_line(done)} ({done.run.folder(campaign.folder)}/failure.txt)")
        return RunsEnded(failed, limited, interrupt())


def _in_words(campaign: Campaign, done: Done) -> str:
    from evo.storage.folders import FILE
    from evo.storage.queries import RunReader

    if done.reason == "failed":
        return f"failed: {_first_line(done)}"
    folder = done.run.folder(campaign.folder)
    if not (folder / FILE).exists():  # the limits of the campaign had no room for it
        return done.reason
    with RunReader(folder) as reader:
        best, pending = reader.best(), reader.pending_count()
    waiting = f", {counted(pending, 'candidate')} pending" if pending else ""
    return f"{done.reason}{waiting}" + (f", best {best.fitness}" if best is not None else "")


def _first_line(done: Done) -> str:
    return done.message.partition("\n")[0]


@contextmanager
def _forced_exit(campaign: Campaign) -> Iterator[None]:
    """Exits at once on a second Ctrl-C: what is finished is stored, and child processes end with this one."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"evo: interrupted; the same command continues {campaign.folder}", file=sys.stderr, flush=True)
        os._exit(common.EXIT_INTERRUPTED)

"""`evo bench`: searches over a whole benchmark suite, as one campaign that can be stopped and continued."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, suite
from evo.cli.campaigns import run_campaign
from evo.cli.suite_checks import TASKS, Checking, adding, read, rows
from evo.core.errors import ConfigError, EvoError, StoreError, how_to_install
from evo.search import evaluators

if TYPE_CHECKING:
    from analysis.suite import SuiteKernel
    from evo.campaign.spec import Campaign, CampaignRun
    from evo.search.profiling import Profiler
    from evo.storage.store import Store
    from fitness.suites import SuiteFile
    from fitness.suites.check import CheckOutcome
    from fitness.tasks.task import Task

BASELINES = "baselines.jsonl"  # PyTorch's times beside each seed kernel
VARIANT = "full"
# On a GPU.  An estimate takes a core for a second, a measurement takes the GPU for a tenth of one: many searches at
# once lack cores.
UNSCREENED = {"screen_budget": 0}
CORES_A_PROCESS = 4  # the others compile
LOOK_S = 0.2  # between looks at the processes that search


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="search over a whole benchmark suite",
        description="Makes a task of every file of the suite (as `evo suite check` does), runs a search on each "
        "as soon as it is known to run here, and sums up; on a GPU, PyTorch is timed beside seed kernels. The same "
        "command continues a stopped campaign, and several processes of it may run at once: they share the work. Exit "
        "code 0: all searches are finished or another process's; 1: some failed; 2: misuse.",
    )
    suite.add_suite(bench)
    bench.add_argument("--out", type=Path, metavar="DIR", help="folder of the campaign (default: runs/ and the suite)")
    bench.add_argument(
        "--budget",
        type=int,
        default=64,
        metavar="N",
        help="candidates a kernel (default: 64); 0: seed kernels beside PyTorch alone",
    )
    bench.add_argument("--strategy", default="evolve", help="evolve (default), random or hillclimb")
    bench.add_argument("--seed", type=int, default=0, metavar="S", help="of all randomness (default: 0)")
    bench.add_argument("--workers", type=int, metavar="W", help="files and searches at once (default: one a CPU)")
    bench.add_argument(
        "--processes",
        type=int,
        metavar="P",
        help="processes that share the searches: one uses one core for operators, and one GPU (default: on GPUs one "
        f"for {CORES_A_PROCESS} cores, at least one a GPU)",
    )
    bench.add_argument(
        "--best",
        action="store_true",
        help="certify the best kernel of each file in full and write it to best/ in its run, also if the search is "
        "finished (about 11 s of a GPU each); else only champions are certified, and at no other sizes",
    )
    bench.add_argument("--helper", action="store_true", help=argparse.SUPPRESS)  # one of the processes
    common.add_target(bench)
    bench.set_defaults(command=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from evo.search.options import check_seed, check_workers
    from fitness.devices import resolve
    from fitness.suites.registry import find_suite

    check_workers(arguments.workers)
    check_seed(arguments.seed)
    chosen = suite.read(arguments)
    folder = (arguments.out or Path("runs", arguments.suite)).resolve()
    _check_settings(arguments)
    choice = resolve(arguments.gpus, lambda: evaluators.find_gpus(arguments.target))
    processes = _processes(arguments, choice.gpus)
    if not arguments.helper:
        common.say(choice.line)
    common.one_thread_each()
    device, workers = choice.device, evaluators.workers(arguments.workers)
    if device != "gpu" and not arguments.budget:
        raise ConfigError("--budget 0: expected a GPU, for it measures PyTorch there, got none; set a budget")
    _check_same_files(arguments, folder)
    campaign = _campaign(folder, arguments, device) if arguments.budget else None
    _note_files(arguments, folder)  # once the folder is known to be this campaign's

    def measure_baselines(checked: Mapping[str, CheckOutcome]) -> None:
        if device == "gpu" and find_suite(arguments.suite).seed_kernel:
            _measure_baselines(folder, [s.name for s in chosen if checked[s.name].verified], arguments.target, workers)

    if arguments.helper and campaign is not None:  # its parent checks
        return _searched(arguments, campaign, chosen, workers, functools.partial(_lives, os.getppid()))
    code = 0
    with Checking(arguments, chosen, folder, choice.gpus, workers, measure_baselines) as checking:
        if campaign is not None and processes > 1:
            code = _shared(arguments, folder, choice.gpus, processes, -(-workers // processes), checking)
        elif campaign is not None:
            code = _searched(arguments, campaign, chosen, workers, checking.raise_error)
        if code == common.EXIT_INTERRUPTED:
            checking.stop()
    checked = read(folder)
    _sum_up(arguments, folder, chosen, checked)
    if code == common.EXIT_INTERRUPTED:
        common.say(f"interrupted; the same command continues ({folder} keeps what is finished)")
    elif not any(outcome.verified for outcome in checked.values()):
        return common.EXIT_NOT_OK
    return code


def _processes(arguments: argparse.Namespace, gpus: int) -> int:
    """Returns how many processes search; each drives one GPU, or none."""
    default = gpus * max(1, evaluators.workers(None) // CORES_A_PROCESS // gpus) if gpus else 1
    wanted: int = default if arguments.processes is None else arguments.processes
    if wanted < max(gpus, 1):
        raise ConfigError(f"--processes: expected at least {max(gpus, 1)}, one a GPU, got {wanted}; leave it out")
    return wanted


def _searched(
    arguments: argparse.Namespace,
    campaign: Campaign,
    chosen: Sequence[SuiteFile],
    workers: int,
    look: Callable[[], None],
) -> int:
    """Runs the searches that no other process runs, as files get verified, and returns the exit code.

    look: called while waiting for a file; raises if no other file will be verified.
    """
    from evo.campaign.runner import concluded, counter, finished
    from fitness.suites.check import LIMITS

    done = concluded if arguments.best else finished
    failed, interrupted = run_campaign(
        campaign,
        _arriving(campaign, chosen, look),
        workers,
        counter(campaign.folder, (_run_of(arguments, source) for source in chosen), done),
        lambda: _able(campaign.folder, chosen),
        lambda: evaluators.open_factory(arguments.target, campaign.device, LIMITS),
        _write_best if arguments.best else None,
    )
    return common.EXIT_INTERRUPTED if interrupted else common.EXIT_NOT_OK if failed else 0


def _write_best(store: Store, evaluator: Profiler) -> None:
    from evo.search.assemble import conclude
    from evo.search.listener import Terminal

    conclude(store, evaluator, "", Terminal())


def _able(folder: Path, chosen: Sequence[SuiteFile]) -> int:
    """Returns how many files can be searched, as far as is known."""
    known = read(folder)
    return sum(source.name not in known or known[source.name].verified for source in chosen)


def _arriving(campaign: Campaign, chosen: Sequence[SuiteFile], look: Callable[[], None]) -> Iterator[Task | None]:
    """Yields the tasks of the files as they are verified; None while no other one is known."""
    from fitness.tasks.task import load_task

    waiting = {source.name for source in chosen}
    while waiting:
        look()
        new = [outcome for name, outcome in read(campaign.folder).items() if name in waiting]
        # The file that compiles longest begins: a search is serial, so a long one at the end would run alone.
        outcome = max(new, key=_compiling, default=None)
        if outcome is None:
            yield None
            continue
        waiting.remove(outcome.name)
        if outcome.verified:
            path = campaign.folder / TASKS / outcome.name
            task = load_task(path, tried=True)  # when it was made
            campaign.add(task.name, str(path), task.hash)
            yield task


def _lives(parent: int) -> None:
    if os.getppid() != parent:
        raise EvoError("the parent process, which distributes the searches, is gone")


def _shared(
    arguments: argparse.Namespace, folder: Path, gpus: int, processes: int, workers: int, checking: Checking
) -> int:
    """Starts `processes` processes that run the campaign, spread over the GPUs, and returns the exit code."""
    from evo.search.interrupt import Interrupt

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    helpers = []
    for number in range(processes):
        own = {"CUDA_VISIBLE_DEVICES": visible[number % gpus]} if gpus else {}
        # In a session of their own: Ctrl-C is for this process, which passes it on.
        command = _command(arguments, folder, workers, "1" if gpus else "none")
        helpers.append(subprocess.Popen(command, env={**os.environ, **own}, start_new_session=True))

    def pass_on() -> None:
        checking.stop()
        for helper in helpers:
            helper.send_signal(signal.SIGINT)

    try:
        with Interrupt(pass_on) as interrupted:
            while any(helper.poll() is None for helper in helpers):
                checking.raise_error()
                time.sleep(LOOK_S)
    finally:
        for helper in helpers:
            helper.kill()  # after a second Ctrl-C; what is finished is stored
    if interrupted():
        return common.EXIT_INTERRUPTED
    if any(helper.returncode for helper in helpers):
        checking.stop()  # unless all files are checked, and some searches failed
        return common.EXIT_NOT_OK
    return 0


def _command(arguments: argparse.Namespace, folder: Path, workers: int, gpus: str) -> list[str]:
    """Returns the command of a process that shares the searches."""
    options = {
        "--path": arguments.path,
        "--only": arguments.only,
        "--seeds": arguments.seeds,
        "--gib": arguments.gib,
        "--out": folder,
        "--budget": arguments.budget,
        "--strategy": arguments.strategy,
        "--seed": arguments.seed,
        "--workers": workers,
        "--processes": 1,
        "--target": arguments.target,
        "--gpus": gpus,
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    given += [part for file in arguments.plugin for part in ("--plugin", str(file))]
    flags = ["--best"] * arguments.best
    return [sys.executable, "-m", "evo", "bench", arguments.suite, *given, *flags, "--helper"]


def _check_settings(arguments: argparse.Namespace) -> None:
    """Checks strategy and budget before files are checked for minutes."""
    from evo.search.strategies import find_strategy
    from fitness.suites.registry import find_suite

    if find_strategy(arguments.strategy).asks:
        raise ConfigError(
            f"--strategy: expected one that asks no model, got {arguments.strategy!r}; choose evolve, random or "
            f"hillclimb"
        )
    least = 0 if find_suite(arguments.suite).seed_kernel else 1
    if arguments.budget < least:
        raise ConfigError(f"--budget: expected a number from {least}, got {arguments.budget}")


def _check_same_files(arguments: argparse.Namespace, folder: Path) -> None:
    """Raises StoreError if the folder has results of another suite, size or seed kernels, which share file names."""
    if not (folder / suite.FILE).exists():
        return
    now, then = suite.settings_of(arguments), suite.read_settings(folder)
    if then != now:
        changed = ", ".join(f"{key} was {then[key]}" for key in now if then[key] != now[key])
        raise StoreError(f"cannot continue in {folder}: {changed}; restore it, or choose another folder by --out")


def _note_files(arguments: argparse.Namespace, folder: Path) -> None:
    path = folder / suite.FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps(suite.settings_of(arguments)) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"expected to write to {folder}, got: {error}; choose another folder by --out") from error


def _compiling(outcome: CheckOutcome) -> float:
    return outcome.seconds.get("compiled", 0.0)


def _measure_baselines(folder: Path, names: Sequence[str], target: str, workers: int) -> None:
    """Measures PyTorch's times beside the seed kernels, except those that an earlier call measured."""
    from fitness.frontend.target import get_target
    from fitness.suites.baselines import measure
    from fitness.tasks.task import load_task

    known = _baselines(folder)
    new = [load_task(folder / TASKS / name, tried=True) for name in names if name not in known]
    with adding(folder / BASELINES) as add:
        for task, found in measure(new, get_target(target), workers) if new else ():
            add({"kernel": task.name, "hash": task.hash, "baselines": [dataclasses.asdict(b) for b in found]})
            said = (f"{b.name} {b.us:.1f} us, {b.ratio:.2f}x" if not b.error else f"{b.name}: {b.error}" for b in found)
            common.say(f"{task.name:30} {found[0].seed_us:.1f} us; {'; '.join(said)}")


def _baselines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the known times of PyTorch, by kernel."""
    return {row["kernel"]: row["baselines"] for row in rows(folder / BASELINES, ("kernel", "baselines"))}


def _campaign(folder: Path, arguments: argparse.Namespace, device: str) -> Campaign:
    """Returns the campaign, without tasks: these are added as they are verified."""
    from evo.campaign.spec import Campaign, Spec
    from evo.core.versions import versions

    spec = Spec(
        tasks=(),
        seeds=(arguments.seed,),
        variants=(VARIANT,),
        trials=arguments.budget,
        tokens=None,
        target=arguments.target,
        models=(),
        base={"strategy": arguments.strategy, **({} if device == "cpu" else UNSCREENED)},
        own={},
    )
    return Campaign.open(folder, spec, device, {}, versions())


def _run_of(arguments: argparse.Namespace, source: SuiteFile) -> CampaignRun:
    from evo.campaign.spec import CampaignRun

    return CampaignRun(source.name, VARIANT, arguments.seed)


def _sum_up(
    arguments: argparse.Namespace, folder: Path, chosen: Sequence[SuiteFile], checked: Mapping[str, CheckOutcome]
) -> None:
    from analysis.suite import markdown

    timed = _baselines(folder)
    kernels = [
        _kernel(source, checked.get(source.name), folder, _run_of(arguments, source), timed.get(source.name, []))
        for source in chosen
    ]
    try:
        text = markdown(kernels, with_pytorch=suite.settings_of(arguments)["with_pytorch"])
    except ValueError as error:
        common.say(f"nothing to sum up: {error}")
        return
    (folder / "summary.md").write_text(text, encoding="utf-8")
    common.say(f"\n{text}\nin {folder}: summary.md{_parquet(folder, kernels)}")


def _parquet(folder: Path, kernels: list[SuiteKernel]) -> str:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        return f"; for kernels.parquet: {how_to_install()}"
    from analysis.suite_kernels import FILE, write_kernels

    write_kernels(folder / FILE, kernels)
    return f", {FILE}"


def _kernel(
    source: SuiteFile, outcome: CheckOutcome | None, folder: Path, run: CampaignRun, timed: list[dict[str, Any]]
) -> SuiteKernel:
    """Returns the summary of one file.  `outcome`: None if it was not checked yet."""
    from analysis.outcomes import outcome_of
    from analysis.suite import SuiteBaseline, SuiteKernel, code_lines
    from evo.campaign.runner import finished, why_failed

    lines = code_lines(source.kernels)
    if outcome is None or not outcome.verified:
        return SuiteKernel(source.name, lines, reason=outcome.reason if outcome else "")
    if why := why_failed(folder, run):
        return SuiteKernel(source.name, lines, reason=f"its search failed: {why}")
    baselines = {
        b["name"]: SuiteBaseline(b["us"], b["seed_us"], b["ratio"], tuple(b["ci95"]), b["error"]) for b in timed
    }
    found = outcome_of(run.folder(folder), VARIANT) if finished(folder, run) else None
    return SuiteKernel(source.name, lines, outcome=found, baselines=baselines, note=outcome.note)

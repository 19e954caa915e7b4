"""`evo suite check`: finds the files of a benchmark suite that this machine can take as tasks, and why not the others.

`evo suite summary`: what searches over a suite came to, from the figures that campaigns left.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError, StoreError
from evo.core.text import counted
from evo.search import evaluators

if TYPE_CHECKING:
    from analysis.suite import SuiteKernel
    from fitness.suites import SuiteFile
    from fitness.suites.check import CheckOutcome

FILE = "suite.json"  # in a campaign's folder: which files at which sizes
LOOK_S = 0.5  # between looks whether to stop


def add(commands: Any) -> None:
    subcommands = commands.add_parser("suite", help="read a benchmark suite from a checkout").add_subparsers(
        required=True, metavar="COMMAND"
    )
    check = subcommands.add_parser(
        "check",
        help="take every file through record, compile and verify",
        description="Makes a task of every file and verifies its kernel, or a seed kernel if it has none: on a GPU if "
        "the machine has one, else by Triton's interpreter. Exit code 0: all verified; 1: not all.",
    )
    add_suite(check)
    check.add_argument("--tasks", type=Path, metavar="DIR", help="keep the task folders here (default: thrown away)")
    check.add_argument("--workers", type=int, metavar="W", help="files at once (default: one a CPU)")
    check.add_argument("--json", action="store_true", help="one JSON object a line and file")
    common.add_target(check)
    check.set_defaults(command=_check)
    summary = subcommands.add_parser(
        "summary",
        help="what campaigns over a suite came to, in one table",
        description="Prints the summary of evo bench from the kernels.parquet of its campaigns; no checkout and no run "
        "folder is needed. A file that several campaigns searched counts as the first of them found it.",
    )
    summary.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="folder of a campaign (evo bench --out)")
    summary.set_defaults(command=_summary)


def add_suite(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a suite and its files."""
    parser.add_argument("suite", metavar="SUITE", help="tritonbench, tritonbench-t, kernelbench, or that of a plug-in")
    parser.add_argument("--path", type=Path, required=True, metavar="DIR", help="the checkout")
    parser.add_argument("--only", metavar="A,B", help="these files alone, by name without .py; * stands for anything")
    parser.add_argument(
        "--seeds",
        type=Path,
        metavar="DIR",
        help="KernelBench, TritonBench-T: seed kernels NAME.py (go before evo's own)",
    )
    parser.add_argument(
        "--gib",
        type=float,
        metavar="G",
        help="KernelBench: problems with more inputs, state and outputs are made smaller (default: 2)",
    )


def read(arguments: argparse.Namespace) -> list[SuiteFile]:
    """The chosen files.  Raises ConfigError for options of another suite, too."""
    from fitness.suites.registry import find_suite

    suite = find_suite(arguments.suite)
    for option, taken in (("seeds", bool(suite.seed_kernel)), ("gib", suite.sized)):
        if getattr(arguments, option) is not None and not taken:
            raise ConfigError(f"--{option}: expected a suite that takes it, got {suite.name}; leave it out")
    if arguments.gib is not None and not arguments.gib > 0:
        raise ConfigError(f"--gib: expected a number above 0, got {arguments.gib:g}")
    found = suite.files(arguments.path)
    if arguments.seeds is not None:
        from fitness.suites.seeded import check_seeds

        check_seeds(arguments.seeds, found, suite.seed_kernel)
    return chosen(found, arguments.only)


def _check(arguments: argparse.Namespace) -> int:
    from evo.search.options import check_workers
    from fitness.devices import choose
    from fitness.frontend.target import get_target
    from fitness.suites.registry import find_suite

    check_workers(arguments.workers)
    workers = evaluators.workers(arguments.workers)
    common.one_thread_each()
    target = get_target(arguments.target)
    files = read(arguments)
    device, _ = choose(arguments.gpus, lambda: evaluators.find_gpus(arguments.target))
    where = "verifying on the GPU" if device == "gpu" else "verifying by Triton's interpreter, no GPU is used"
    print(f"{counted(len(files), 'file')} for {target.name}, {where}", file=sys.stderr, flush=True)
    found = []
    with _tasks_folder(arguments.tasks) as folder:
        for outcome in outcomes(arguments, files, folder, int(device == "gpu"), workers):
            found.append(outcome)
            common.say(json.dumps(dataclasses.asdict(outcome)) if arguments.json else line(outcome))
    if not arguments.json:
        common.say("\n" + _totals(found, find_suite(arguments.suite).stages))
    return 0 if all(outcome.searchable(models=True) for outcome in found) else common.EXIT_NOT_OK


def _summary(arguments: argparse.Namespace) -> int:
    from analysis.suite import markdown

    settings = {folder: read_settings(folder) for folder in arguments.folders}
    suites = {folder: found["suite"] for folder, found in settings.items()}
    if len(set(suites.values())) > 1:
        got = ", ".join(f"{suite} in {folder}" for folder, suite in suites.items())
        raise ConfigError(f"expected campaigns over one suite, got {got}; sum them up one by one")
    kernels = _kernels(arguments.folders)
    if len({k.outcome.estimated for k in kernels if k.outcome}) > 1:
        raise ConfigError(
            "expected campaigns that measured, or campaigns that estimated, got both; speedups of one kind are not "
            "compared with the other's: sum them up apart"
        )
    try:
        text = markdown(kernels, with_pytorch=settings[arguments.folders[0]]["with_pytorch"])
    except ValueError as error:
        raise StoreError(f"nothing to sum up: {error}; go on with evo bench") from None
    common.say(text.removesuffix("\n"))
    return 0


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns which files the campaign in `folder` has, from `settings_of`.  Raises StoreError if it does not say."""
    from fitness.suites.registry import built_in

    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(
            f"expected a folder of evo bench, which has a {FILE}, got {folder} ({error.strerror}); name what evo bench "
            f"was given as --out"
        ) from None
    except ValueError as error:
        raise _damaged(path, f"no JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("suite"), str):
        raise _damaged(path, f"{found!r:.100}")
    known = built_in().get(found["suite"])
    if known is None and "with_pytorch" not in found:  # written by an earlier version, which knew no plug-ins
        raise _damaged(path, f"{found!r:.100}")
    defaults = {"gib": None, "seeds": None, "plugin": None, "with_pytorch": bool(known and known.seed_kernel)}
    return {**defaults, **found}


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Which files a campaign is of, as its folder keeps it.

    plugin: the hash of the plug-in that has the suite, None for evo's own; with_pytorch: whether the summary compares
    with PyTorch.
    """
    from evo.core.plugins import resolve

    suite, seeds = resolve("suites", arguments.suite), arguments.seeds
    return {
        "suite": arguments.suite,
        "gib": arguments.gib,
        "seeds": seeds and str(seeds.resolve()),
        "plugin": suite.record.hash if suite.record else None,
        "with_pytorch": bool(suite.value.seed_kernel),
    }


def _damaged(path: Path, found: str) -> StoreError:
    return StoreError(
        f"{path} is damaged: expected the suite as evo bench wrote it, got {found}; restore it from a "
        f"copy, or delete it and call evo bench as before, which writes it again"
    )


def _kernels(folders: Sequence[Path]) -> list[SuiteKernel]:
    with common.pyarrow_for("the figures of campaigns, which are read with it"):
        from analysis import suite_kernels as stored
    return stored.merged(stored.read_kernels(folder / stored.FILE) for folder in folders)


def chosen(sources: Sequence[SuiteFile], only: str | None) -> list[SuiteFile]:
    if only is None:
        return list(sources)
    wanted = [name.removesuffix(".py") for name in only.split(",") if name]
    unknown = sorted(w for w in set(wanted) if not any(fnmatch.fnmatchcase(s.name, w) for s in sources))
    if unknown or not wanted:
        raise ConfigError(f"--only: expected names of files of the suite, got {', '.join(unknown) or 'none'}")
    return [source for source in sources if any(fnmatch.fnmatchcase(source.name, w) for w in wanted)]


@contextmanager
def _tasks_folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="evo-suite-") as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--tasks: expected a folder to write to, got: {error}; choose another") from error
    yield wanted.resolve()


def outcomes(
    arguments: argparse.Namespace,
    files: Sequence[SuiteFile],
    folder: Path,
    gpus: int,
    workers: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[CheckOutcome]:
    """Yields outcomes in the order in which files are finished, until all are or `stop` returns True.

    `gpus`: how many verify; with 0 Triton's interpreter does.
    """
    from fitness.frontend.target import get_target
    from fitness.suites.base import CheckSettings
    from fitness.suites.check import gpu_verifier, new_zygote
    from fitness.suites.registry import find_suite

    target = get_target(arguments.target)
    if gpus:
        from fitness.cuda.gpus import measuring

        target = measuring(target)
    with ExitStack() as stack:
        zygote = stack.enter_context(new_zygote(target))
        verifier = stack.enter_context(gpu_verifier(gpus)) if gpus else None
        most = None if arguments.gib is None else int(arguments.gib * 2**30)
        settings = CheckSettings(arguments.seeds, most)
        checker = find_suite(arguments.suite).checker(folder, target, zygote, verifier, settings)
        pool = ThreadPoolExecutor(workers)
        try:
            running = {pool.submit(checker.check, source) for source in files}
            while running and not stop():
                done, running = wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def line(outcome: CheckOutcome) -> str:
    calls = counted(outcome.calls, "call")
    if outcome.verified:
        why = f"; {outcome.left_out} left out: {outcome.why_left_out}" if outcome.why_left_out else ""
        return f"{outcome.name:30} verified, {calls}{', ' * bool(outcome.note)}{outcome.note}{why}"
    if outcome.alone:
        return f"{outcome.name:30} recorded, {calls}; {outcome.reason}"
    reached = ", ".join([outcome.stages[-1], *([calls] if outcome.calls else [])]) if outcome.stages else "not begun"
    return f"{outcome.name:30} {reached}, then: {outcome.reason}"


def _totals(outcomes: Sequence[CheckOutcome], stages: Sequence[str]) -> str:
    count = Counter(stage for outcome in outcomes for stage in outcome.stages)
    reached = ", ".join(f"{count[stage]} {stage}" for stage in stages)
    alone = sum(outcome.alone for outcome in outcomes)
    return f"{counted(len(outcomes), 'file')}: {reached}" + (f", {alone} of a reference alone" if alone else "")

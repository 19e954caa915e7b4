"""`evo suite check`: which files of a benchmark suite this machine can take as tasks, and why not the others."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.commands import parts
from evo.errors import ConfigError

if TYPE_CHECKING:
    from fitness.suites.check import Outcome
    from fitness.suites.tritonbench import Source

SUITES = ("tritonbench",)


def add(commands: Any) -> None:
    suite = commands.add_parser("suite", help="read a benchmark suite from a checkout")
    check = suite.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "check",
        help="take every file through record, compile and verify",
        description="Makes a task of every file, with inputs from the file's own tests, and verifies it against "
        "itself: on the GPU where there is one, else by Triton's interpreter. Exit code 0: all verified; 1: not all.",
    )
    check.add_argument("suite", choices=SUITES)
    check.add_argument("--path", type=Path, required=True, metavar="DIR", help="the checkout")
    check.add_argument("--only", metavar="A,B", help="these files alone, by name without .py")
    check.add_argument("--tasks", type=Path, metavar="DIR", help="keep the task folders here (default: thrown away)")
    check.add_argument("--workers", type=int, metavar="W", help="files at once (default: one a CPU)")
    check.add_argument("--json", action="store_true", help="one JSON object a line and file")
    parts.add_target(check)
    check.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> int:
    from evo.device import choose
    from fitness.compilation.target import get_target
    from fitness.suites.tritonbench import sources

    parts.check_workers(arguments.workers)
    workers = parts.workers(arguments.workers)
    target = get_target(arguments.target)
    files = chosen(sources(arguments.path), arguments.only)
    device, _ = choose(arguments.gpus, lambda: parts.find_gpus(arguments.target))
    where = "verifying on the GPU" if device == "gpu" else "verifying by Triton's interpreter, no GPU is used"
    print(f"{len(files)} files for {target.name}, {where}", file=sys.stderr, flush=True)
    found = []
    with _tasks_folder(arguments.tasks) as folder:
        for outcome in outcomes(files, folder, target, device, workers):
            found.append(outcome)
            parts.say(json.dumps(dataclasses.asdict(outcome)) if arguments.json else line(outcome))
    if not arguments.json:
        parts.say("\n" + _totals(found))
    return 0 if all(outcome.verified for outcome in found) else parts.EXIT_NOT_OK


def chosen(sources: Sequence[Source], only: str | None) -> list[Source]:
    if only is None:
        return list(sources)
    wanted = [name.removesuffix(".py") for name in only.split(",") if name]
    unknown = sorted(set(wanted) - {source.name for source in sources})
    if unknown or not wanted:
        raise ConfigError(f"--only: expected names of files of the suite, got {', '.join(unknown) or 'none'}")
    return [source for source in sources if source.name in wanted]


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


def outcomes(files: Sequence[Source], folder: Path, target: Any, device: str, workers: int) -> Iterator[Outcome]:
    """In the order in which files are finished."""
    from fitness.suites.check import Checker, gpu_verifier, new_zygote

    with ExitStack() as stack:
        zygote = stack.enter_context(new_zygote(target))
        verifier = stack.enter_context(gpu_verifier()) if device == "gpu" else None
        checker = Checker(folder, target, zygote, verifier)
        pool = ThreadPoolExecutor(workers)
        try:
            for future in as_completed([pool.submit(checker.check, source) for source in files]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def line(outcome: Outcome) -> str:
    calls = f"{outcome.calls} call{'s' if outcome.calls != 1 else ''}"
    if outcome.verified:
        why = f"; {outcome.left_out} left out: {outcome.why_left_out}" if outcome.why_left_out else ""
        return f"{outcome.name:30} verified, {calls}{why}"
    reached = f"{outcome.stages[-1]}, {calls}" if outcome.stages else "not captured"
    return f"{outcome.name:30} {reached}, then: {outcome.reason}"


def _totals(outcomes: Sequence[Outcome]) -> str:
    from fitness.suites.check import STAGES

    count = Counter(stage for outcome in outcomes for stage in outcome.stages)
    reached = ", ".join(f"{count[stage]} {stage}" for stage in STAGES)
    return f"{len(outcomes)} files: {reached}"

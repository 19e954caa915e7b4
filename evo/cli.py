"""The command line: reads arguments, puts the parts together, prints.

Imports what is heavy (torch, DEAP, rich) inside the commands: `--help` must answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo import __version__
from evo.errors import ConfigError, EvoError

if TYPE_CHECKING:
    from evo.config import RunConfig
    from evo.device import Gpus
    from evo.engine import Evaluator, Outcome, Score
    from evo.records import Evaluation
    from evo.store import Store
    from fitness.task import Task

DEFAULT_TASK = "softmax"
DEFAULT_BUDGET = 32
EXIT_NOT_OK, EXIT_MISUSE, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a kernel is not ok, 2 misuse, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except EvoError as error:
        print(f"evo: {error}", file=sys.stderr)
        return EXIT_MISUSE
    except KeyboardInterrupt:
        print("evo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOT_OK


# --- arguments -------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evo", description="Evolutionary search for Triton GPU kernels.")
    parser.add_argument("--version", action="version", version=f"evo {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_evaluate(commands)
    _add_resume(commands)
    _add_show(commands)
    _add_tasks(commands)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser("run", help="search for a faster kernel")
    run.add_argument("task", nargs="?", default=DEFAULT_TASK, metavar="TASK", help="a built-in task or a task folder")
    run.add_argument("--budget", type=int, default=DEFAULT_BUDGET, metavar="N", help="candidates to evaluate")
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="where to store the run (default: runs/TASK-NUMBER)")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="of all randomness (default: 0)")
    run.add_argument("--strategy", default="evolve", help="evolve (default), random or hillclimb")
    run.add_argument("--operators", metavar="A,B", help="names of operators (default: the strategy's)")
    run.add_argument("--islands", type=int, default=3, metavar="K", help="populations in a ring (default: 3)")
    run.add_argument("--workers", type=int, metavar="W", help="evaluations at once (default: one a CPU); 1: repeatable")
    _add_target(run)
    run.set_defaults(command=_run)


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="judge kernels without a search",
        description="Judges each kernel on its own. Exit code 0: all are ok; 1: not all; 2: misuse.",
    )
    evaluate.add_argument("task", metavar="TASK", help="a built-in task or a task folder")
    evaluate.add_argument("kernels", nargs="+", type=Path, metavar="KERNEL.py")
    evaluate.add_argument("--json", action="store_true", help="one JSON object a line and kernel")
    evaluate.add_argument("--seed", type=int, default=0, metavar="S", help="of the random inputs (default: 0)")
    evaluate.add_argument("--workers", type=int, metavar="W", help="evaluations at once (default: one a CPU)")
    _add_target(evaluate)
    evaluate.set_defaults(command=_evaluate)


def _add_resume(commands: Any) -> None:
    resume = commands.add_parser("resume", help="go on with a run that was stopped")
    resume.add_argument("folder", type=Path, metavar="DIR")
    resume.add_argument("--budget", type=int, metavar="N", help="candidates in total (default: as the run was started)")
    resume.set_defaults(command=_resume)


def _add_show(commands: Any) -> None:
    show = commands.add_parser("show", help="look at a run or at one trial, also while it runs")
    show.add_argument("folder", type=Path, metavar="DIR")
    show.add_argument("trial", nargs="?", type=int, metavar="TRIAL")
    show.set_defaults(command=_show)


def _add_tasks(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="list the built-in tasks, or start a new one")
    tasks.set_defaults(command=_tasks)
    new = tasks.add_subparsers(metavar="COMMAND").add_parser("new", help="make a task folder from a kernel")
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("kernel", type=Path, metavar="KERNEL.py")
    new.set_defaults(command=_new_task)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="sm_90", help="GPU to compile for (default: sm_90)")
    parser.add_argument(
        "--gpus", metavar="N|all|none", help="measure on GPUs, or estimate (default: the first GPU, if it is a target)"
    )


# --- parts -----------------------------------------------------------------------------------------------------------


def load_task(name_or_folder: str) -> Task:
    from fitness.task import load_task as load

    return load(name_or_folder)


def find_gpus(target: str) -> Gpus:
    from fitness.gpus import find_gpus as find
    from fitness.target import get_target

    return find(get_target(target))


def open_evaluator(task: Task, target: str, device: str) -> Evaluator:
    """`device`: "gpu" measures on the first GPU, "cpu" estimates."""
    from fitness.evaluator import CpuEvaluator
    from fitness.gpu_evaluator import GpuEvaluator
    from fitness.target import get_target

    return (GpuEvaluator if device == "gpu" else CpuEvaluator)(task, get_target(target))


def scorer() -> Score:
    from fitness.score import score

    return score


def _workers(wanted: int | None) -> int:
    return len(os.sched_getaffinity(0)) if wanted is None else wanted


def _say(text: str) -> None:
    print(text, flush=True)


# --- run and resume --------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from evo.device import choose
    from evo.store import RunInfo, Store, check_vacant
    from evo.versions import versions

    config = _config(arguments)
    if arguments.run_dir is not None:
        check_vacant(arguments.run_dir)
    task = load_task(config.task)
    device, line = choose(arguments.gpus, lambda: find_gpus(config.target))
    config = config.with_device(device)
    _say(line)
    _say(f"preparing {task.name}: evaluating its seed kernel")
    with closing(open_evaluator(task, config.target, config.device)) as evaluator:
        first = evaluator.prepare()
        folder = arguments.run_dir or _new_folder(task.name)
        info = RunInfo(config, task.hash, versions(), evaluator.environment)
        with Store.create(folder, info) as store:
            return _search(store, task.seed_source, first, evaluator)


def _config(arguments: argparse.Namespace) -> RunConfig:
    from evo.config import RunConfig
    from evo.strategies import STRATEGIES
    from fitness.target import get_target
    from fitness.task import task_names
    from operators.registry import get_operators

    if arguments.strategy not in STRATEGIES:
        raise ConfigError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {arguments.strategy!r}")
    names: Sequence[str] = STRATEGIES[arguments.strategy].operators
    if arguments.operators is not None:
        names = [n.strip() for n in arguments.operators.split(",")]
    get_operators(names)
    get_target(arguments.target)
    return RunConfig(
        task=arguments.task if arguments.task in task_names() else str(Path(arguments.task).resolve()),
        operators=tuple(names),
        budget=arguments.budget,
        seed=arguments.seed,
        strategy=arguments.strategy,
        islands=arguments.islands,
        workers=_workers(arguments.workers),
        target=arguments.target,
    )


def _new_folder(task: str) -> Path:
    """runs/TASK-NNN with the first free number, made now so that two runs started at once do not meet."""
    number = 1
    while True:
        folder = Path("runs") / f"{task}-{number:03}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(f"expected to make {folder}, got: {error}; name another folder by --run-dir") from error


def _resume(arguments: argparse.Namespace) -> int:
    from evo.device import again
    from evo.store import RunReader, Store
    from evo.versions import versions

    with RunReader(arguments.folder) as run:
        config = run.info.config
    task = load_task(config.task)
    with Store.resume(arguments.folder, task_hash=task.hash, versions=versions()) as store:
        spent = max(0, sum(store.verdicts().values()) - 1)
        if arguments.budget is not None:
            if arguments.budget < spent:
                raise ConfigError(f"budget: expected at least the {spent} candidates spent, got {arguments.budget}")
            store.set_config(config.with_budget(arguments.budget))
        if spent >= store.info.config.budget and not store.pending():
            _say(f"all {spent} candidates are evaluated; `evo resume {arguments.folder} --budget N` goes further")
            return _conclude(store)
        _say(f"resuming {arguments.folder} at {spent} of {store.info.config.budget} candidates")
        _say(again(config.device, lambda: find_gpus(config.target)))
        with closing(open_evaluator(task, config.target, config.device)) as evaluator:
            return _search(store, task.seed_source, evaluator.prepare(), evaluator)


def _search(store: Store, seed_source: str, first: Evaluation, evaluator: Evaluator) -> int:
    """Runs the engine under a progress display, then writes and prints the result."""
    from rich.console import Console

    from evo.engine import Engine
    from evo.interrupt import Interrupt
    from evo.progress import Progress
    from operators.registry import get_operators

    config = store.info.config
    operators = {o.name: o for o in get_operators(config.operators)}
    with _forced_exit(store, evaluator), Interrupt(_notify) as interrupt, Progress(config, Console()) as progress:
        engine = Engine(store, first, seed_source, evaluator, scorer(), operators, [progress], interrupt)
        outcome = engine.run()
    return _conclude(store, outcome)


def _notify() -> None:
    print("\nevo: stopping when what is being evaluated is done; Ctrl-C again drops it", file=sys.stderr, flush=True)


@contextmanager
def _forced_exit(store: Store, evaluator: Evaluator) -> Iterator[None]:
    """A second Ctrl-C: everything finished is stored already, so leave at once, without waiting for worker threads."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"evo: interrupted; go on by `evo resume {store.folder}`", file=sys.stderr, flush=True)
        evaluator.close()
        store.close()
        os._exit(EXIT_INTERRUPTED)


def _conclude(store: Store, outcome: Outcome | None = None) -> int:
    """Writes the best kernel and prints what there is to know."""
    from evo.records import Trial
    from evo.result import speedup_text, write_best

    folder = store.folder
    interrupted = outcome is not None and outcome.reason == "interrupted"
    if outcome is not None:
        _say(f"ended: {outcome.reason}, {outcome.spent} candidates evaluated")
    best = store.best()
    if best is None or best.fitness is None:
        _say(f"interrupted before the seed was evaluated; go on by `evo resume {folder}`")
        return EXIT_INTERRUPTED
    seed = store.trial(0)
    assert isinstance(seed, Trial)  # it is the first to finish
    patch = write_best(folder, store.info, seed, best)
    if best.index == 0:
        _say("nothing faster than the seed was found; best/kernel.py is the seed")
    else:
        _say(f"\n{patch}")
        _say(f"best: {speedup_text(best.fitness)} against the seed, trial {best.index}")
        if best.fitness.estimated:
            _say("      estimated: a model of the target computed it, no GPU measured it")
        if best.fitness.ci95[0] <= 1:
            _say("      the interval includes 1: it may be no faster")
    _say(f"kernel: {folder / 'best' / 'kernel.py'} (diff.patch and result.json beside it)")
    _say(f"look closer: evo show {folder}, evo show {folder} {best.index}")
    if interrupted:
        _say(f"go on: evo resume {folder}")
    return EXIT_INTERRUPTED if interrupted else 0


# --- evaluate --------------------------------------------------------------------------------------------------------


def _evaluate(arguments: argparse.Namespace) -> int:
    from evo.device import choose
    from evo.records import Candidate, Verdict
    from fitness.target import get_target

    workers = _workers(arguments.workers)
    if workers < 1:
        raise ConfigError(f"workers: expected at least 1, got {workers}; set --workers")
    if not 0 <= arguments.seed < 2**63:
        raise ConfigError(f"seed: expected an integer from 0 to {2**63 - 1}, got {arguments.seed}; set --seed")
    get_target(arguments.target)
    candidates = [Candidate(_read_kernel(path)) for path in arguments.kernels]
    score = scorer()
    ok = True
    task = load_task(arguments.task)
    device, line = choose(arguments.gpus, lambda: find_gpus(arguments.target))
    print(line, file=sys.stderr, flush=True)  # standard output is for the results
    with closing(open_evaluator(task, arguments.target, device)) as evaluator:
        evaluator.prepare()
        pool = ThreadPoolExecutor(workers)
        try:
            results = pool.map(lambda c: evaluator.evaluate(c, seed=arguments.seed, known={}), candidates)
            for path, evaluation in zip(arguments.kernels, results, strict=True):
                ok &= evaluation.verdict is Verdict.OK
                facts = _facts(path, evaluation, score)
                _say(json.dumps(facts) if arguments.json else _in_words(facts))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return 0 if ok else EXIT_NOT_OK


def _read_kernel(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a kernel file in UTF-8 at {path}, got: {error}; check the path") from error


def _facts(path: Path, evaluation: Evaluation, score: Score) -> dict[str, Any]:
    fitness = score(evaluation)
    return {
        "kernel": str(path),
        "verdict": evaluation.verdict.value,
        "stage": evaluation.stage,
        "message": evaluation.message,
        "findings": [{"rule": f.rule, "line": f.line, "message": f.message} for f in evaluation.findings],
        "speedup": fitness.speedup if fitness else None,
        "ci95": list(fitness.ci95) if fitness else None,
        "estimated": evaluation.estimated,
    }


def _in_words(facts: dict[str, Any]) -> str:
    if facts["speedup"] is not None:
        low, high = facts["ci95"]
        kind = " estimated" if facts["estimated"] else ""
        return f"{facts['kernel']}: ok, {facts['speedup']:.2f}x [{low:.2f}, {high:.2f}]{kind} against the seed"
    lines = [f"{facts['kernel']}: {facts['verdict']} at stage {facts['stage']}: {facts['message']}"]
    lines += [f"  line {f['line']}: {f['rule']}: {f['message']}" for f in facts["findings"]]
    return "\n".join(lines)


# --- show and tasks --------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from evo.show import show_run, show_trial
    from evo.store import RunReader

    # Where there is no terminal to fit, lines may be long: better for grep than folded cells.
    console = Console(width=None if sys.stdout.isatty() else 160)
    with RunReader(arguments.folder) as run:
        if arguments.trial is None:
            show_run(run, console)
        else:
            show_trial(run, arguments.trial, console)
    return 0


def _tasks(arguments: argparse.Namespace) -> int:
    from fitness.task import task_names, task_title

    for name in task_names():
        _say(f"{name}: {task_title(name)}")
        for case in load_task(name).cases:
            axes = ", ".join(f"{axis}={size}" for axis, size in case.axes.items())
            _say(f"    {case.name} ({case.role}): {axes}, {case.dtype}")
    return 0


def _new_task(arguments: argparse.Namespace) -> int:
    from fitness.task import task_skeleton

    source = _read_kernel(arguments.kernel)
    folder: Path = arguments.folder
    texts = {"task.py": task_skeleton(source), "kernel.py": source}
    taken = [name for name in texts if (folder / name).exists()]
    if taken:
        raise ConfigError(f"expected a new folder, but {folder} has {' and '.join(taken)}; choose another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"expected to write to {folder}, got: {error}; choose another folder") from error
    _say(f"wrote {folder / 'task.py'} and {folder / 'kernel.py'}; mend what is marked EDIT in task.py, then")
    _say(f"evo run {folder}")
    return 0

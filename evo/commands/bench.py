"""`evo bench`: searches over a whole benchmark suite, as one campaign that can be stopped and gone on with."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.commands import parts, suite
from evo.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from analysis.suite import Kernel
    from evo.campaign import Campaign, Spec
    from fitness.suites.check import Outcome
    from fitness.suites.tritonbench import Source
    from fitness.task import Task

CHECKED = "checked.jsonl"  # in the campaign's folder: how far each file came
ARM = "full"


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="search over a whole benchmark suite",
        description="Makes a task of every file of the suite (as `evo suite check` does), runs a search on each that "
        "can be run here, and sums up. The same command goes on where it was stopped. Exit code 0: all searches are "
        "finished; 1: some failed; 2: misuse.",
    )
    bench.add_argument("suite", choices=suite.SUITES)
    bench.add_argument("--path", type=Path, required=True, metavar="DIR", help="the checkout")
    bench.add_argument("--out", type=Path, metavar="DIR", help="folder of the campaign (default: runs/ and the suite)")
    bench.add_argument("--only", metavar="A,B", help="these files alone, by name without .py")
    bench.add_argument("--budget", type=int, default=64, metavar="N", help="candidates a kernel (default: 64)")
    bench.add_argument("--strategy", default="evolve", help="evolve (default), random or hillclimb")
    bench.add_argument("--seed", type=int, default=0, metavar="S", help="of all randomness (default: 0)")
    bench.add_argument("--workers", type=int, metavar="W", help="files and searches at once (default: one a CPU)")
    parts.add_target(bench)
    bench.set_defaults(command=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from evo.commands.ablate import run_campaign
    from evo.device import choose
    from fitness.suites.tritonbench import sources

    parts.check_workers(arguments.workers)
    parts.check_seed(arguments.seed)
    workers = parts.workers(arguments.workers)
    chosen = suite.chosen(sources(arguments.path), arguments.only)
    folder = (arguments.out or Path("runs", arguments.suite)).resolve()
    _check_settings(arguments)
    device, line = choose(arguments.gpus, lambda: parts.find_gpus(arguments.target))
    parts.say(line)
    checked = _checked(chosen, folder, arguments.target, device, workers)
    tasks = {s.name: parts.load_task(str(folder / "tasks" / s.name)) for s in chosen if checked[s.name].verified}
    parts.say(f"{len(tasks)} of {len(chosen)} files can be searched")
    if not tasks:
        return parts.EXIT_NOT_OK
    campaign = _campaign(folder, _spec(arguments, folder, list(tasks)), device, tasks)
    failed, interrupted = run_campaign(campaign, tasks, workers, lambda: parts.open_workshop(arguments.target, device))
    _sum_up(folder, campaign, chosen, checked)
    if interrupted:
        parts.say(f"interrupted; go on by the same command ({folder} keeps what is finished)")
        return parts.EXIT_INTERRUPTED
    return parts.EXIT_NOT_OK if failed else 0


def _check_settings(arguments: argparse.Namespace) -> None:
    """Before files are checked for minutes."""
    from evo.strategies import STRATEGIES

    able = [name for name, strategy in STRATEGIES.items() if not strategy.asks]
    if arguments.strategy not in able:
        raise ConfigError(f"--strategy: expected one of {', '.join(able)}, got {arguments.strategy!r}")
    if arguments.budget < 1:
        raise ConfigError(f"--budget: expected a number from 1, got {arguments.budget}")


def _checked(chosen: list[Source], folder: Path, target: str, device: str, workers: int) -> dict[str, Outcome]:
    """How far each file comes; what an earlier call found out is not done again."""
    from fitness.compilation.target import get_target
    from fitness.suites.check import Outcome

    path = folder / CHECKED
    try:
        (folder / "tasks").mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        # A line that was cut off by a kill is of a file that is checked again.
        known = {o.name: o for o in (Outcome(**json.loads(line)) for line in lines if line.endswith("}"))}
        new = [source for source in chosen if source.name not in known]
        with open(path, "a", encoding="utf-8") as file:
            if lines and not lines[-1].endswith("}"):
                file.write("\n")
            for outcome in suite.outcomes(new, folder / "tasks", get_target(target), device, workers) if new else ():
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
                file.flush()
                known[outcome.name] = outcome
                parts.say(suite.line(outcome))
    except OSError as error:
        raise StoreError(f"expected to write to {folder}, got: {error}; choose another folder by --out") from error
    return known


def _spec(arguments: argparse.Namespace, folder: Path, names: list[str]) -> Spec:
    from evo.campaign import Spec

    return Spec(
        tasks=tuple(str(folder / "tasks" / name) for name in names),
        seeds=(arguments.seed,),
        arms=(ARM,),
        trials=arguments.budget,
        tokens=None,
        target=arguments.target,
        models=(),
        base={"strategy": arguments.strategy},
        own={},
    )


def _campaign(folder: Path, spec: Spec, device: str, tasks: dict[str, Task]) -> Campaign:
    from evo.campaign import Campaign
    from evo.versions import versions

    return Campaign.open(folder, spec, device, {name: task.hash for name, task in tasks.items()}, versions())


def _sum_up(folder: Path, campaign: Campaign, chosen: list[Source], checked: dict[str, Outcome]) -> None:
    from analysis.suite import markdown

    kernels = [_kernel(source, checked[source.name], campaign) for source in chosen]
    try:
        text = markdown(kernels)
    except ValueError as error:
        parts.say(f"nothing to sum up: {error}")
        return
    (folder / "summary.md").write_text(text, encoding="utf-8")
    parts.say(f"\n{text}\nin {folder}: summary.md{_parquet(folder, kernels)}")


def _parquet(folder: Path, kernels: list[Kernel]) -> str:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        return '; for kernels.parquet: pip install -e ".[analysis]"'
    from analysis.suite import write_parquet

    write_parquet(folder / "kernels.parquet", kernels)
    return ", kernels.parquet"


def _kernel(source: Source, outcome: Outcome, campaign: Campaign) -> Kernel:
    from analysis.outcomes import outcome_of
    from analysis.suite import Kernel, code_lines
    from evo.cells import finished

    lines = code_lines(source.kernels)
    if not outcome.verified:
        return Kernel(source.name, lines, reason=outcome.reason)
    runs = [campaign.folder / cell.path for cell in campaign.cells() if cell.task == source.name]
    return Kernel(source.name, lines, outcome=outcome_of(runs[0], ARM) if finished(runs[0]) else None)

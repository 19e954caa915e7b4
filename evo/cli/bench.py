"""`evo bench`: searches over tasks or a whole benchmark suite, as one campaign that can be stopped and continued."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.campaign import allocation
from evo.cli import campaigns, common, suite, summaries
from evo.core.errors import ConfigError
from evo.core.settings import STOP_AT

if TYPE_CHECKING:
    from evo.campaign.spec import Spec
    from evo.campaign.suite import SuiteSelection
    from evo.core.models import Model


def add(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="search over tasks or a whole benchmark suite",
        description="Searches on every task, or on every file of a suite as soon as it is known to run here (as `evo "
        "suite check` finds out), by each strategy and seed, and sums up; on a GPU, PyTorch is timed beside seed "
        "kernels of suites. The same command continues a stopped campaign, and several processes of it may run at "
        "once: they share the work. Exit code 0: all searches are finished or another process's; 1: some failed; 2: "
        "misuse; 3: a limit of the campaign is reached.",
    )
    bench.add_argument(
        "tasks",
        nargs="+",
        metavar="TASK",
        help="built-in tasks and task folders; or a suite with --path: tritonbench, tritonbench-t, kernelbench, or "
        "that of a plug-in",
    )
    suite.add_selection(bench, required=False)
    bench.add_argument("--out", type=Path, metavar="DIR", help="folder of the campaign (default: runs/ and the names)")
    bench.add_argument(
        "--budget",
        type=int,
        default=64,
        metavar="N",
        help="candidates a search (default: 64); 0: seed kernels of a suite beside PyTorch alone",
    )
    bench.add_argument(
        "--allocation",
        default=allocation.EQUAL,
        metavar="KIND",
        help="equal (default): --budget candidates for each search; headroom: as many in the mean, more for searches "
        "that progress and are far from the attainable speed",
    )
    common.add_stop(bench, f"{STOP_AT:g}; off with several strategies, which have equal budgets")
    bench.add_argument(
        "--strategy",
        default="evolve",
        metavar="A,B",
        help="evolve (default), random, hillclimb; best-of-n and tritonforge ask models; several are variants, "
        "compared with the first",
    )
    bench.add_argument("--seed", default="0", metavar="S,T", help="of all randomness (default: 0); several are repeats")
    common.add_target(bench)
    common.add_models(bench)
    common.add_baseline(bench)
    common.add_full(bench)
    campaigns.add_options(bench)
    bench.set_defaults(command=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from evo.campaign.spec import read_plan

    chosen = _selection(arguments)
    name = chosen.name if chosen is not None else "-".join(Path(task).resolve().name for task in arguments.tasks)
    folder = (arguments.out or Path("runs", name)).resolve()
    if not arguments.budget:
        return _time_seeds(arguments, chosen, folder)
    ended = campaigns.carry_out(_spec(arguments, chosen), folder, arguments)
    if arguments.helper or arguments.propose_only is not None:
        return ended.code
    plan = read_plan(folder)
    summaries.sum_up(folder, ended.lines, plan, aloud=True)
    if len(plan.variants) > 1:
        summaries.compare_variants(folder, figures=False, named=ended.failed)
    return ended.code


def _selection(arguments: argparse.Namespace) -> SuiteSelection | None:
    """Returns the files of the suite that is named, None for tasks."""
    from evo.core import plugins
    from fitness.tasks.task import task_names

    if arguments.path is not None:
        if len(arguments.tasks) > 1:
            raise ConfigError(f"--path: expected one suite, got {', '.join(arguments.tasks)}; name one")
        return suite.selection(arguments, arguments.tasks[0])
    suites = [name for name in arguments.tasks if name in plugins.names("suites") and name not in task_names()]
    if suites and not Path(suites[0]).is_dir():
        raise ConfigError(f"{suites[0]}: expected the checkout of this suite, got none; add --path DIR")
    for option in ("only", "seeds", "gib", "no_seeds"):
        if getattr(arguments, option) not in (None, False):
            name = option.replace("_", "-")
            raise ConfigError(f"--{name}: expected a suite with its checkout, got tasks; leave it out")
    return None


def _spec(arguments: argparse.Namespace, chosen: SuiteSelection | None) -> Spec:
    """Returns the campaign that the arguments describe: each strategy is a variant."""
    from evo.campaign.spec import Spec
    from evo.core.baselines import check_baseline
    from evo.core.settings import OFF, check_share, out_of_range, share_to_stop
    from evo.llm.models import read_models
    from evo.search.strategies import find_strategy

    check_baseline(arguments.baseline)
    check_share(arguments.allow_delegation)
    models = read_models(arguments.model, arguments.models)
    strategies = _names("--strategy", arguments.strategy)
    given = arguments.stop_at_attainable
    stop = share_to_stop(given if given is not None else STOP_AT if len(strategies) == 1 else OFF)
    for strategy in strategies:
        if find_strategy(strategy).asks and not models:
            raise ConfigError(
                f"--strategy: expected a model for {strategy} to ask, got none; add --model NAME@BASE_URL, or choose "
                f"evolve, random or hillclimb"
            )
    for option, given in (("budget", arguments.budget), ("llm_slots", arguments.llm_concurrency or 1)):
        if problem := out_of_range(option, given):
            raise ConfigError(f"{'--budget' if option == 'budget' else '--llm-concurrency'}: {problem}")
    return Spec(
        tasks=() if chosen is not None else tuple(arguments.tasks),
        seeds=_seeds(arguments.seed),
        variants=strategies,
        trials=arguments.budget,
        tokens=None,
        target=arguments.target,
        models=models,
        base={
            **_guidance(arguments.guidance, models),
            "stop_at_attainable": stop,
            **({} if arguments.progressive else {"progressive": False}),
        },
        own={strategy: {"strategy": strategy} for strategy in strategies},
        suite=chosen,
        llm_slots=arguments.llm_concurrency or 1,
        baseline=arguments.baseline,
        allow_delegation=arguments.allow_delegation,
        allocation=_allocation(arguments, strategies),
    )


def _allocation(arguments: argparse.Namespace, strategies: tuple[str, ...]) -> str:
    chosen: str = arguments.allocation
    if chosen not in allocation.ALLOCATIONS:
        raise ConfigError(f"--allocation: expected {' or '.join(allocation.ALLOCATIONS)}, got {chosen!r}")
    if chosen != allocation.EQUAL and len(strategies) > 1:
        raise ConfigError(
            f"--allocation {chosen}: expected one strategy, got {', '.join(strategies)}: strategies are compared at "
            f"equal budgets; leave it out"
        )
    if chosen != allocation.EQUAL and (arguments.propose_only is not None or arguments.evaluate_only):
        raise ConfigError(f"--allocation {chosen}: expected whole searches, got halves; leave it out")
    return chosen


def _guidance(given: str | None, models: tuple[Model, ...]) -> Mapping[str, str]:
    if given is not None and not models:
        raise ConfigError(
            "--guidance: expected a model whose prompts have profiles, got none; add --model, or leave it out"
        )
    return {} if given is None else {"guidance": given}


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option}: expected different names, separated by commas, got {text!r}")
    return names


def _seeds(text: str) -> tuple[int, ...]:
    from evo.search.options import check_seed

    try:
        seeds = tuple(int(name) for name in _names("--seed", text))
    except ValueError:
        raise ConfigError(f"--seed: expected integers, separated by commas, got {text!r}") from None
    for seed in seeds:
        check_seed(seed)
    return seeds


def _time_seeds(arguments: argparse.Namespace, chosen: SuiteSelection | None, folder: Path) -> int:
    """Checks the files of a suite and times PyTorch beside their seed kernels; searches nothing."""
    from analysis.suite import code_lines
    from evo.campaign.suite import Checking, read_checked
    from evo.search import evaluators
    from evo.search.options import check_workers
    from fitness.devices import resolve

    check_workers(arguments.workers)
    if chosen is None or not chosen.suite.seed_kernel:
        raise ConfigError("--budget: expected a number from 1, got 0, which only suites in PyTorch take")
    files = chosen.files()
    choice = resolve(arguments.gpus, lambda: evaluators.find_gpus(arguments.target))
    common.say(choice.line)
    if choice.device != "gpu":
        raise ConfigError("--budget 0: expected a GPU, for it measures PyTorch there, got none; set a budget")
    common.one_thread_each()
    chosen.check_same(folder)
    chosen.note(folder)
    workers = evaluators.workers(arguments.workers)
    with Checking(
        chosen, folder, target=arguments.target, gpus=choice.gpus, workers=workers, models=False, say=common.say
    ):
        pass
    summaries.sum_up(folder, {file.name: code_lines(file.kernels) for file in files}, None, aloud=True)
    return 0 if any(outcome.verified for outcome in read_checked(folder).values()) else common.EXIT_NOT_OK

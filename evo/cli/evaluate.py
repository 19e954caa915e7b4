"""`evo evaluate`: evaluates kernels without a search."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.text import of_attainable

if TYPE_CHECKING:
    from evo.core.records import Evaluation


def add(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate kernels without a search",
        description="Judges each kernel on its own. Exit code 0: all are ok; 1: not all; 2: misuse.",
    )
    evaluate.add_argument("task", metavar="TASK", help="a built-in task or a task folder")
    evaluate.add_argument("kernels", nargs="+", type=Path, metavar="KERNEL.py")
    evaluate.add_argument("--json", action="store_true", help="one JSON object a line and kernel")
    evaluate.add_argument("--seed", type=int, default=0, metavar="S", help="of the random inputs (default: 0)")
    evaluate.add_argument(
        "--workers", type=int, metavar="W", help="evaluations at once (default: as the CPUs and GPUs take)"
    )
    common.add_devices(evaluate)
    common.add_baseline(evaluate)
    evaluate.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from evo.core.records import Verdict
    from evo.search.options import check_seed, check_workers
    from fitness.frontend.target import get_target

    check_workers(arguments.workers)
    check_seed(arguments.seed)
    get_target(arguments.target)
    sources = [common.read_kernel(path) for path in arguments.kernels]
    ok = True
    with common.open_evaluator(arguments, workers=arguments.workers) as evaluator:
        evaluations = evaluator.evaluate_many(sources)
        for path, evaluation in zip(arguments.kernels, evaluations, strict=True):
            ok &= evaluation.verdict is Verdict.OK
            kind = evaluator.task.timed_against
            facts = _facts(path, evaluation, kind.text)
            common.say(json.dumps(facts) if arguments.json else _in_words(facts, kind.compared))
    return 0 if ok else common.EXIT_NOT_OK


def _facts(path: Path, evaluation: Evaluation, baseline: str) -> dict[str, Any]:
    fitness = evaluation.fitness
    return {
        "kernel": str(path),
        "verdict": evaluation.verdict.value,
        "stage": evaluation.stage,
        "message": evaluation.message,
        "findings": [{"rule": f.rule, "line": f.line, "message": f.message} for f in evaluation.findings],
        "speedup": fitness.speedup if fitness else None,
        "ci95": list(fitness.ci95) if fitness else None,
        "estimated": evaluation.estimated,
        "baseline": baseline,
        "attained": evaluation.attained,
        "own_share": evaluation.check.own_share if evaluation.check else None,
    }


def _in_words(facts: dict[str, Any], compared: str) -> str:
    if facts["speedup"] is not None:
        low, high = facts["ci95"]
        kind = " estimated" if facts["estimated"] else ""
        own = "" if facts["own_share"] == 1 else f"; own kernels wrote {facts['own_share']:.0%} of the outputs"
        speedup = f"{facts['speedup']:.2f}x [{low:.2f}, {high:.2f}]{kind} {compared}"
        return f"{facts['kernel']}: ok, {speedup}{of_attainable(facts['attained'])}{own}"
    lines = [f"{facts['kernel']}: {facts['verdict']} at stage {facts['stage']}: {facts['message']}"]
    lines += [f"  line {f['line']}: {f['rule']}: {f['message']}" for f in facts["findings"]]
    return "\n".join(lines)

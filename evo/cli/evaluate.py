"""`evo evaluate`: evaluates kernels without a search."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common

if TYPE_CHECKING:
    from evo.core.records import Evaluation
    from evo.search.engine import Score


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
    evaluate.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from evo.core.records import Candidate, Verdict
    from fitness.frontend.target import get_target

    common.check_workers(arguments.workers)
    common.check_seed(arguments.seed)
    get_target(arguments.target)
    candidates = [Candidate(common.read_kernel(path)) for path in arguments.kernels]
    score = common.scorer()
    ok = True
    task = common.load_task(arguments.task)
    devices = common.find_devices(arguments.gpus, arguments.ray_address, arguments.target)
    devices.say(sys.stderr)  # standard output is for the results
    with closing(devices.open(task, arguments.target)) as evaluator:
        evaluator.prepare()
        pool = ThreadPoolExecutor(devices.workers(arguments.workers))
        try:
            results = pool.map(lambda c: evaluator.evaluate(c, seed=arguments.seed, known={}), candidates)
            for path, evaluation in zip(arguments.kernels, results, strict=True):
                ok &= evaluation.verdict is Verdict.OK
                facts = _facts(path, evaluation, score)
                common.say(json.dumps(facts) if arguments.json else _in_words(facts))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return 0 if ok else common.EXIT_NOT_OK


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
        "eager": evaluation.eager,
    }


def _in_words(facts: dict[str, Any]) -> str:
    from evo.core.records import kind_of

    if facts["speedup"] is not None:
        low, high = facts["ci95"]
        kind = kind_of(facts["estimated"], facts["eager"])
        kind = "" if kind == "measured" else f" {kind}"
        return f"{facts['kernel']}: ok, {facts['speedup']:.2f}x [{low:.2f}, {high:.2f}]{kind} against the seed"
    lines = [f"{facts['kernel']}: {facts['verdict']} at stage {facts['stage']}: {facts['message']}"]
    lines += [f"  line {f['line']}: {f['rule']}: {f['message']}" for f in facts["findings"]]
    return "\n".join(lines)

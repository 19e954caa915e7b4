"""`evo certify`: evaluates a kernel and runs its own Python on the GPU."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common

if TYPE_CHECKING:
    from evo.core.records import Certificate, Evaluation


def add(commands: Any) -> None:
    certify = commands.add_parser(
        "certify",
        help="evaluate a kernel, then run its own Python on the GPU",
        description="Judges a kernel as `evo evaluate` does; then runs its Python eagerly in a sandbox with the GPU, "
        "on inputs and sizes not used before, and its kernels under compute-sanitizer. "
        "Exit code 0: certified; 1: not, or not possible without a GPU; 2: misuse.",
    )
    certify.add_argument("task", metavar="TASK", help="a built-in task or a task folder")
    certify.add_argument("kernel", type=Path, metavar="KERNEL.py")
    certify.add_argument("--json", action="store_true", help="one JSON object")
    certify.add_argument("--seed", type=int, default=0, metavar="S", help="of the random inputs (default: 0)")
    common.add_devices(certify)
    common.add_baseline(certify)
    certify.set_defaults(command=_certify)


def _certify(arguments: argparse.Namespace) -> int:
    from evo.core.records import Verdict
    from evo.search.options import check_seed
    from fitness.frontend.target import get_target

    check_seed(arguments.seed)
    get_target(arguments.target)
    source = common.read_kernel(arguments.kernel)
    certificate = None
    with common.open_evaluator(arguments) as evaluator:
        evaluation = evaluator.evaluate(source)
        if evaluation.verdict is Verdict.OK:
            certificate = evaluator.certify(source, evaluation)
    common.say(_json(arguments.kernel, evaluation, certificate) if arguments.json else _words(evaluation, certificate))
    return 0 if certificate is not None and certificate.verdict is Verdict.OK else common.EXIT_NOT_OK


def _json(path: Path, evaluation: Evaluation, certificate: Certificate | None) -> str:
    return json.dumps(
        {
            "kernel": str(path),
            "verdict": evaluation.verdict,
            "stage": evaluation.stage,
            "message": evaluation.message,
            "certificate": None if certificate is None else dataclasses.asdict(certificate),
        }
    )


def _words(evaluation: Evaluation, certificate: Certificate | None) -> str:
    if certificate is None:
        return f"not certified: {evaluation.verdict} at stage {evaluation.stage}: {evaluation.message}"
    lines = [f"{check.what}: {check.outcome}{_more(check.detail, check.figures)}" for check in certificate.checks]
    return "\n".join([*lines, f"certificate: {certificate.summary}"])


def _more(detail: str, figures: Any) -> str:
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    text = "; ".join(part for part in (detail, numbers) if part)
    return f", {text}" if text else ""

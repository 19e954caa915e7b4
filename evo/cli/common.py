"""What commands share: arguments, output and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evo.core.errors import ConfigError, how_to_install
from evo.search.listener import Listener

if TYPE_CHECKING:
    from evo.api import Evaluator

EXIT_NOT_OK, EXIT_MISUSE, EXIT_INTERRUPTED = 1, 2, 130


def add_target(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--target",
        default="sm_90",
        help="what to compile for: sm_90 (default) or h100; estimates are of an H200 or an H100",
    )
    add_gpus(parser)


def add_gpus(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--gpus",
        metavar="N|all|none",
        help="measure on that many GPUs, or estimate (default: the first GPU, if it is a target)",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """`add_target` for commands that drive several GPUs."""
    add_target(parser)
    add_ray(parser)


def add_ray(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="spread evaluations over a Ray cluster, by default all its GPUs: HOST:PORT, auto or local",
    )


def open_evaluator(arguments: argparse.Namespace, *, workers: int | None = None) -> Evaluator:
    """The evaluator that TASK, --seed and the options of `add_devices` ask for; what evaluates is said on stderr."""
    from evo.api import Evaluator

    return Evaluator(
        arguments.task,
        gpus=arguments.gpus,
        target=arguments.target,
        workers=workers,
        ray_address=arguments.ray_address,
        seed=arguments.seed,
        progress=Aside(),
    )


class Aside(Listener):
    """Says what it hears on stderr: standard output is for results."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def one_thread_each() -> None:
    """For work in many threads: with threads of PyTorch's own for all cores in each they would be thousands."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def pyarrow_for(what: str) -> Iterator[None]:
    """Around an import that needs pyarrow.  Raises ConfigError if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ConfigError(f"expected pyarrow to be installed, for {what}; {how_to_install()}") from error


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # one write: threads would come between a line and its end


def read_kernel(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a kernel file in UTF-8 at {path}, got: {error}; check the path") from error

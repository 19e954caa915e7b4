"""What commands share: arguments, output and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evo.core.errors import ConfigError, how_to_install
from evo.core.settings import MIN_OWN_SHARE, STOP_AT
from evo.core.text import quoted
from evo.search.listener import Listener

if TYPE_CHECKING:
    from evo.api import Evaluator

EXIT_NOT_OK, EXIT_MISUSE, EXIT_LIMIT, EXIT_INTERRUPTED = 1, 2, 3, 130


def add_target(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--target",
        default="sm_90",
        help="what to compile for: sm_90, an H200 (default); h100; sm_80, an A100; sm_89, an L4; rtx4090; sm_100, a "
        "B200; or the sm_NN of a GPU that measures",
    )
    add_gpus(parser)
    add_plugins(parser)


def add_gpus(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--gpus",
        metavar="N|all|none",
        help="measure on that many GPUs, or estimate (default: the first GPU, if it is a target)",
    )


def add_plugins(parser: argparse._ActionsContainer) -> None:
    """`--plugin`, which `evo.cli.main` loads before the command runs."""
    parser.add_argument(
        "--plugin",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file that registers operators, strategies, ... of yours; may be repeated (docs/plugins.md)",
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


def add_models(
    parser: argparse.ArgumentParser, *, concurrency: str = "questions in flight of one search (default: 1)"
) -> argparse._ArgumentGroup:
    """The models to ask, and how; returns the group, for more options.  concurrency: help of --llm-concurrency."""
    group = parser.add_argument_group("language models", "see docs/llm.md")
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME@BASE_URL",
        help="a model at an OpenAI-compatible endpoint; or NAME@mailbox:DIR, replay:RUN; may be repeated. "
        "Its key comes from the environment: EVO_API_KEY_NAME or OPENAI_API_KEY",
    )
    group.add_argument("--models", type=Path, metavar="FILE.toml", help="prices and settings of models")
    group.add_argument("--llm-concurrency", type=int, metavar="K", help=concurrency)
    group.add_argument(
        "--guidance", metavar="KIND", help="what prompts tell of profiles: digest (default), raw or none"
    )
    return group


def add_full(parser: argparse.ArgumentParser) -> None:
    """Whether candidates that are too slow at a first look are evaluated all the way."""
    parser.add_argument(
        "--full",
        dest="progressive",
        action="store_false",
        help="evaluate each candidate all the way, also if a first look shows that it is slow",
    )


def add_baseline(parser: argparse.ArgumentParser) -> None:
    """What a task without a seed kernel is timed against, and whether PyTorch may do part of the work."""
    parser.add_argument(
        "--baseline",
        metavar="KIND",
        help="of a task without kernel.py: PyTorch eager (default), compile, eager-tf32 or compile-tf32; compile needs "
        "a GPU",
    )
    parser.add_argument(
        "--allow-delegation",
        nargs="?",
        type=float,
        const=MIN_OWN_SHARE,
        metavar="SHARE",
        help="PyTorch may do part of the work; own kernels do at least SHARE of it (without a number: "
        f"{MIN_OWN_SHARE})",
    )


def add_new_versions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--new-versions",
        action="store_true",
        help="go on although evo, PyTorch or Triton differ from when it was started; its history names all",
    )


def add_stop(parser: argparse._ActionsContainer, said: str = f"{STOP_AT:g}") -> None:
    """When the attainable speed ends a search; said: what holds without the option."""
    parser.add_argument(
        "--stop-at-attainable",
        metavar="SHARE",
        help="a search ends once its best kernel has this share of the attainable speed in every tune case; off: it "
        f"goes on (default: {said})",
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
        baseline=arguments.baseline,
        allow_delegation=arguments.allow_delegation,
        progress=Aside(),
    )


def task_argument(folder: Path) -> str:
    """Returns a task folder as the TASK of a command that a user copies: never the name of a built-in task."""
    from fitness.tasks.task import task_names

    return quoted(f"./{folder}" if str(folder) in task_names() else folder)


class Aside(Listener):
    """Says what it hears on stderr: standard output is for results."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def one_thread_each() -> None:
    """Limits PyTorch to one thread for work in many threads: its own threads for all cores would be thousands."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def pyarrow_for(what: str) -> Iterator[None]:
    """Wraps an import that needs pyarrow.  Raises ConfigError if that is missing."""
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

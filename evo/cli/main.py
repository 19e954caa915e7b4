"""Runs the command line: reads arguments, runs a command, turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

from evo import __version__
from evo.cli import (
    ablate,
    apply,
    bench,
    calls,
    capture,
    certify,
    compare,
    doctor,
    evaluate,
    export,
    mcp,
    replay,
    report,
    reproduce,
    resume,
    run,
    serve,
    show,
    suite,
    tasks,
    watch,
)
from evo.cli.common import EXIT_INTERRUPTED, EXIT_MISUSE, EXIT_NOT_OK
from evo.core.errors import EvoError, EvoWarning
from evo.core.plugins import load_file
from evo.core.text import did_you_mean

COMMANDS = (
    run,
    evaluate,
    certify,
    resume,
    show,
    watch,
    apply,
    tasks,
    suite,
    bench,
    capture,
    export,
    doctor,
    report,
    ablate,
    compare,
    calls,
    replay,
    reproduce,
    serve,
    mcp,
)

# New objects after which Python looks for garbage.  The default, 700, takes a quarter of the time to import PyTorch.
COLLECTED_AFTER = 5000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a kernel is not ok, 2 misuse, 3 limit reached, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another encoding shows what it can
    gc.set_threshold(COLLECTED_AFTER)
    parser = _parser()
    argv = sys.argv[1:] if argv is None else argv
    _check_command(parser, argv)
    arguments = parser.parse_args(argv)
    arguments.argv = tuple(argv)  # for commands that start processes of themselves
    try:
        with _warnings_in_words():
            for path in getattr(arguments, "plugin", ()):
                load_file(path)
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
        _drop_output()  # whoever read it has gone (`| head`): nothing is left to say
        return EXIT_NOT_OK
    except OSError as error:
        print(f"evo: {error}; check the disk, its permissions and the destination of the output", file=sys.stderr)
        _drop_output()
        return EXIT_MISUSE


@contextlib.contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Prints each of evo's own warnings as one line, without the place in its source."""

    usual = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        if issubclass(category, EvoWarning):
            print(f"warning: {message}", file=sys.stderr, flush=True)
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", EvoWarning)
        warnings.showwarning = show
        yield


def _check_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Leaves with a message for an unknown command, which names one that resembles it."""
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    if argv and not argv[0].startswith("-") and argv[0] not in names:
        hint = did_you_mean(argv[0], names)
        parser.error(f"argument COMMAND: invalid choice: {argv[0]!r} (choose from {', '.join(names)}){hint}")


def _drop_output() -> None:
    """Drops output that is not written yet, which would fail again at exit."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):  # it may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evo", description="Evolutionary search for Triton GPU kernels.")
    parser.add_argument("--version", action="version", version=f"evo {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser

"""Runs the command line: reads arguments, runs a command, turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from evo import __version__
from evo.cli import (
    ablate,
    bench,
    calls,
    certify,
    compare,
    doctor,
    evaluate,
    export,
    replay,
    report,
    resume,
    run,
    show,
    suite,
    tasks,
    watch,
)
from evo.cli.common import EXIT_INTERRUPTED, EXIT_MISUSE, EXIT_NOT_OK
from evo.core.errors import EvoError

COMMANDS = (
    run,
    evaluate,
    certify,
    resume,
    show,
    watch,
    tasks,
    suite,
    bench,
    export,
    doctor,
    report,
    ablate,
    compare,
    calls,
    replay,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code: 0 done, 1 a kernel is not ok, 2 misuse, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another encoding shows what it can
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
        _drop_output()  # whoever read it has gone (`| head`): nothing is left to say
        return EXIT_NOT_OK
    except OSError as error:
        print(f"evo: {error}; check the disk, its permissions and the destination of the output", file=sys.stderr)
        _drop_output()
        return EXIT_MISUSE


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

"""The command line: reads arguments, runs a command, turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from evo import __version__
from evo.commands import (
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
from evo.commands.parts import EXIT_INTERRUPTED, EXIT_MISUSE, EXIT_NOT_OK
from evo.errors import EvoError

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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="evo", description="Evolutionary search for Triton GPU kernels.")
    parser.add_argument("--version", action="version", version=f"evo {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser

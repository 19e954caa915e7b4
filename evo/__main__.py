"""`python -m evo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _leave_current_folder() -> None:
    """Takes the current folder off the path of modules, unless evo itself is in it.

    `python -m` puts it there first, and a file of the user's called operators.py would be imported in place of evo's.
    Child processes inherit the same: PYTHONSAFEPATH.
    """
    home = Path(__file__).resolve().parents[1]
    if sys.path and sys.path[0] in ("", os.getcwd()) and Path.cwd().resolve() != home:
        del sys.path[0]
        os.environ["PYTHONSAFEPATH"] = "evo"  # says who set it: a user's program must not inherit it


def main() -> int:
    """Runs the command line; the exit code."""
    from evo.cli.main import main as run

    return run()


if __name__ == "__main__":
    _leave_current_folder()
    sys.exit(main())

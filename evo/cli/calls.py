"""`evo calls`: prints the answers of a run's models, one JSON object a line, for `--model replay:FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from evo.cli import common
from evo.storage.folders import run_folder


def add(commands: Any) -> None:
    calls = commands.add_parser("calls", help="print the answers of a run's language models, to be replayed")
    calls.add_argument("folder", type=run_folder, metavar="DIR")
    calls.set_defaults(command=_calls)


def _calls(arguments: argparse.Namespace) -> int:
    from evo.storage.store import RunReader

    with RunReader(arguments.folder) as run:
        answers = run.answers()
    for answer in answers:
        common.say(json.dumps(answer))
    if not answers:
        print(f"no language model answered in {arguments.folder}; see evo run --model", file=sys.stderr)
    return 0

"""`evo replay`: makes the decisions of a run again, from its store, and says whether they are the same."""

from __future__ import annotations

import argparse
from typing import Any

from evo.cli import common
from evo.storage.folders import run_folder


def add(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="make a run's decisions again from its store, offline",
        description="Exit code 0: every question, proposal and reading of an answer is the same again; 1: not all are. "
        "The texts of prompts are compared if this version of evo's code made the run.",
    )
    replay.add_argument("folder", type=run_folder, metavar="DIR")
    common.add_plugins(replay)
    replay.set_defaults(command=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from evo import api
    from evo.search.replay import PROMPT

    redone = api.replay(arguments.folder)
    differences = [r for r in redone if not r.same]
    for r in differences:
        common.say(r.difference())
    questions = [r for r in redone if r.name.startswith("call")]
    asked = len(questions)
    if any(PROMPT not in r.stored for r in questions):
        common.say("the texts of prompts are not compared: another version of evo's code wrote them")
    common.say(
        f"{asked} questions and {len(redone) - asked} proposals made again: "
        f"{f'{len(differences)} differ' if differences else 'all the same'}"
    )
    return common.EXIT_NOT_OK if differences else 0

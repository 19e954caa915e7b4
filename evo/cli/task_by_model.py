"""`evo tasks new --model`: has a model write task.py, checks it, tries it on its own kernel and freezes it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evo.cli import common
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from evo.core.models import Model
    from evo.llm.task_drafts import Drafting, Round
    from fitness.evaluator import TaskEvaluator
    from fitness.tasks.task import Task
    from fitness.validation.draft import Accepted, DraftChecker

ANSWERS, DRAFTS = "answers.jsonl", "drafts"
NAMES = ("task.py", "kernel.py", "task.json", ANSWERS, DRAFTS)  # of what a folder may hold after this command


def add_options(new: argparse.ArgumentParser) -> None:
    group = new.add_argument_group("by a language model", "see docs/llm.md")
    group.add_argument(
        "--model",
        metavar="NAME@BASE_URL",
        help="the model that writes task.py; or NAME@mailbox:DIR, replay:FILE (an answers.jsonl of this command)",
    )
    group.add_argument("--models", type=Path, metavar="FILE.toml", help="prices and settings of models")
    group.add_argument("--max-tokens", type=int, metavar="N", help="hard limit on tokens, of prompts and answers")
    group.add_argument("--max-usd", type=float, metavar="X", help="hard limit on dollars; needs prices")
    common.add_target(group)


def make(arguments: argparse.Namespace, kernel: str) -> int:
    """Makes the task folder; the exit code."""
    from evo.llm.budget import ModelBudget
    from evo.llm.task_drafts import Dialogue, draft, first_prompt
    from evo.search.evaluators import find_devices
    from fitness.frontend.target import get_target

    folder: Path = arguments.folder
    model = _model(arguments)
    get_target(arguments.target)
    first_prompt(kernel)  # raises if the kernel has nothing to ask about, before anything is started
    devices = find_devices(arguments.gpus, None, arguments.target)
    print(devices.choice.line, file=sys.stderr, flush=True)
    write(folder, {})
    limits = ModelBudget(arguments.max_tokens, arguments.max_usd)
    common.say(f"asking {model.name} ({model.endpoint}) for a task of {arguments.kernel}")
    with (
        Dialogue(model, os.environ, limits, folder / ANSWERS) as dialogue,
        _open_checker(kernel, arguments.target, devices.choice.device) as checker,
    ):
        found = draft(kernel, dialogue.ask, checker.check, lambda done: _keep(folder, done))
    if found.accepted is None:
        return _failed(folder, found)
    _freeze(folder, kernel, model, found, found.accepted, devices.choice.device)
    return 0


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes files into a folder, which is made if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"expected to write to {folder}, got: {error}; choose another folder") from error


def _model(arguments: argparse.Namespace) -> Model:
    """Returns the one model to ask.  Raises ConfigError if there are several, or if the limits cannot be kept."""
    from evo.core.settings import check_limit
    from evo.llm.models import read_models

    models = read_models([arguments.model], arguments.models)
    if len(models) != 1:
        raise ConfigError(f"--model: expected one model, got {', '.join(m.name for m in models)}; name one of them")
    (model,) = models
    for name, limit in (("--max-tokens", arguments.max_tokens), ("--max-usd", arguments.max_usd)):
        check_limit(name, limit)
    if arguments.max_usd is not None and model.costs and model.usd_in is None:
        raise ConfigError(
            f"--max-usd: expected a price of {model.name}, got none; give usd_in and usd_out in --models FILE "
            "(docs/llm.md), or limit tokens by --max-tokens"
        )
    return model


@contextmanager
def _open_checker(kernel: str, target_name: str, device: str) -> Iterator[DraftChecker]:
    from evo.search import evaluators
    from fitness.frontend.target import get_target
    from fitness.sandbox.zygote import JOBS, Zygote
    from fitness.validation.draft import REHEARSAL, DraftChecker

    target = get_target(target_name)
    with Zygote(target_name, (*JOBS, REHEARSAL)) as zygote:

        def open_evaluator(task: Task) -> TaskEvaluator:
            return evaluators.open_evaluator(task, target_name, device, zygote)

        missing = [f"{name}: {state}" for name, state in zygote.layers.items() if state != "active"]
        if missing:
            print(f"warning: the sandbox lacks layers here: {'; '.join(missing)}", file=sys.stderr, flush=True)
        yield DraftChecker(kernel, target, zygote, open_evaluator)


def _keep(folder: Path, done: Round) -> None:
    """Prints a round; keeps an unusable answer under a name that no command takes for a task."""
    number = len(list((folder / DRAFTS).glob("*.reason.txt"))) + 1
    if not done.reason:
        common.say(f"answer {number}: the task holds")
        return
    texts = {f"{DRAFTS}/{number}.py": done.source} if done.source else {}
    write(folder, {**texts, f"{DRAFTS}/{number}.reason.txt": done.reason + "\n"})
    common.say(f"answer {number} cannot be used: {' '.join(done.reason.split())[:500]}")


def _failed(folder: Path, found: Drafting) -> int:
    reason = f"; the last reason: {found.rounds[-1].reason}" if found.rounds else ""
    kept = f" The drafts are in {folder / DRAFTS}, the answers in {folder / ANSWERS}." if found.rounds else ""
    print(f"evo: no task was made: {found.ended}{reason}\n{kept.strip()}".rstrip(), file=sys.stderr, flush=True)
    return common.EXIT_NOT_OK


def _freeze(folder: Path, kernel: str, model: Model, found: Drafting, accepted: Accepted, device: str) -> None:
    from fitness.tasks.task import FROZEN_FILE, freeze_task
    from fitness.validation.draft import weakened

    task = accepted.task
    about = {
        "model": model.name,
        "prompt": found.rounds[-1].prompt.hash,
        "rounds": len(found.rounds),
        "validated": "measured on a GPU" if device == "gpu" else "by the interpreter, times estimated",
        "left_out": dict(accepted.left_out),
    }
    write(folder, {"task.py": accepted.source, "kernel.py": kernel})
    freeze_task(folder, task.hash, about)
    for case in task.cases:
        axes = ", ".join(f"{axis}={size}" for axis, size in case.axes.items())
        common.say(f"    {case.name} ({case.role}): {axes}, {case.dtype}")
    for name, why in accepted.left_out.items():
        common.say(f"    {name}: left out: {why}")
    if less := weakened(task):
        common.say(f"its settings let candidates do more than usual: {', '.join(less)}")
    common.say(
        f"wrote {folder / 'task.py'}, {folder / 'kernel.py'}, {folder / FROZEN_FILE} (frozen) and {folder / ANSWERS}"
    )
    common.say(f"task.py was written by the model {model.name}. It passed static rules, a sandbox and its own kernel,")
    common.say("but from now on it is trusted and says what is right: read it before you rely on it, then")
    common.say(f"evo run {common.task_argument(folder)}")

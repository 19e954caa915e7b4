"""`evo tasks`: lists the built-in tasks, starts a new one, or checks that a task refuses kernels that do nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common, task_by_model, task_times
from evo.core.errors import ConfigError

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.sandbox.zygote import Zygote
    from fitness.tasks.task import Task
    from fitness.validation.vacuous import VacuousFinding


def add(commands: Any) -> None:
    tasks = commands.add_parser("tasks", help="list the built-in tasks, start a new one, or check one")
    tasks.set_defaults(command=_tasks)
    subcommands = tasks.add_subparsers(metavar="COMMAND")
    subcommands.add_parser("list", help="list the built-in tasks (so does `evo tasks`)")
    new = subcommands.add_parser(
        "new",
        help="make a task folder from a kernel, or from a reference in PyTorch",
        description="Writes DIR/kernel.py and DIR/task.py, with EDIT at each place that needs your decision. With "
        "--model, a model writes task.py, and evo validates and freezes it (docs/llm.md). With --reference, task.py is "
        "made of a PyTorch file, and there is no kernel: a search writes the first one (docs/own-kernel.md). "
        "Exit code 0: done; 1: no answer of the model could be used; 2: misuse.",
    )
    new.add_argument("folder", type=Path, metavar="DIR")
    new.add_argument("kernel", type=Path, nargs="?", metavar="KERNEL.py")
    new.add_argument(
        "--reference",
        type=Path,
        metavar="MODEL.py",
        help="instead of a kernel: class Model, get_inputs and get_init_inputs; or a function and get_inputs",
    )
    new.add_argument("--function", metavar="NAME", help="the function of MODEL.py, if it has several")
    new.add_argument(
        "--from",
        dest="capture",
        nargs=2,
        metavar=("CAPTURE", "KERNEL"),
        help="instead of KERNEL.py: a folder of `evo capture`, and a kernel or host function in it; --reference "
        "FILE.py:FUNCTION then says what is right (default: the kernel itself)",
    )
    new.add_argument(
        "--launch", action="store_true", help="with --from: of the launch alone, without the host function around it"
    )
    task_by_model.add_options(new)
    new.set_defaults(command=_new_task)
    task_times.add(subcommands)
    check = subcommands.add_parser(
        "check",
        help="whether kernels that do not do their work fail a task",
        description="Verifies the seed kernel by Triton's interpreter, at the sizes for a CPU; then, in place of each "
        "of its kernels, one that does nothing, one that copies an input and one that stores zeros: in no case may "
        "they pass. Exit code 0: none does; 1: one does, or the seed fails; 2: misuse.",
    )
    check.add_argument(
        "tasks", nargs="*", metavar="TASK", help="built-in names or folders (default: all built-in tasks)"
    )
    check.add_argument("--target", default="sm_90", help="GPU to compile for: sm_90, an H200 (default), or h100")
    check.add_argument("--json", action="store_true", help="one JSON object a line and task")
    check.set_defaults(command=_check)


def _tasks(arguments: argparse.Namespace) -> int:
    from evo.api import load_task
    from fitness.tasks.task import task_names, task_title

    for name in task_names():
        common.say(f"{name}: {task_title(name)}")
        for case in load_task(name).cases:
            axes = ", ".join(f"{axis}={size}" for axis, size in case.axes.items())
            common.say(f"    {case.name} ({case.role}): {axes}, {case.dtype}")
    return 0


def _new_task(arguments: argparse.Namespace) -> int:
    from evo.search.options import check_limited
    from fitness.tasks.scaffold import parse_kernel

    if arguments.capture is not None:
        return _new_from_capture(arguments)
    if (arguments.kernel is None) == (arguments.reference is None):
        got = "neither" if arguments.kernel is None else "both"
        raise ConfigError(f"expected a KERNEL.py, or a --reference MODEL.py, got {got}; name one of them")
    folder: Path = arguments.folder
    taken = [name for name in task_by_model.NAMES if (folder / name).exists()]
    if taken:
        raise ConfigError(f"expected a new folder, but {folder} has {' and '.join(taken)}; choose another")
    if arguments.reference is not None:
        return _new_reference(arguments)
    source = common.read_kernel(arguments.kernel)
    parse_kernel(source, str(arguments.kernel))  # the error for invalid Python names this file
    if arguments.model is not None:
        return task_by_model.make(arguments, source)
    check_limited((), arguments.max_tokens, arguments.max_usd)
    from fitness.tasks.scaffold import entries, task_skeleton

    task_by_model.write(folder, {"task.py": task_skeleton(source), "kernel.py": source})
    entry, *others = (function.name for function in entries(source))
    beside = f" (others that launch: {', '.join(others)}; change entry in task.py for one of them)" if others else ""
    common.say(f"wrote {folder / 'task.py'} and {folder / 'kernel.py'}; the entry is {entry}{beside}")
    common.say("edit what is marked EDIT in task.py, then")
    common.say(f"evo run {common.task_argument(folder)}")
    return 0


def _new_from_capture(arguments: argparse.Namespace) -> int:
    """Makes a task of a kernel in a capture."""
    from evo.programs.capture import read
    from evo.programs.task import make_task

    folder: Path = arguments.folder
    if arguments.kernel is not None or arguments.model is not None:
        got = "KERNEL.py" if arguments.kernel is not None else "--model"
        raise ConfigError(f"--from: expected a capture and a kernel in it alone, got {got} beside them; leave it out")
    if folder.exists():
        raise ConfigError(f"expected a new folder, but {folder} exists; choose another")
    source, kernel = arguments.capture
    made = make_task(read(Path(source)), kernel, folder, _reference_function(arguments), launch=arguments.launch)
    calls = "" if made.entry == made.host.attribute else f"{made.entry} calls "
    common.say(f"wrote {folder}: {calls}{made.host.name}, {made.tune} tune and {made.holdout} holdout cases")
    for note in made.notes:
        common.say(note)
    common.say(f"evo tasks check {common.task_argument(folder)}")
    common.say(f"evo run {common.task_argument(folder)}")
    return 0


def _reference_function(arguments: argparse.Namespace) -> tuple[str, str] | None:
    """Returns the text of the file of --reference and the name of its function; None without."""
    if arguments.reference is None:
        return None
    file, _, function = str(arguments.reference).rpartition(":")
    function = function if file else arguments.function
    if not function:
        raise ConfigError(f"--reference: expected FILE.py:FUNCTION with --from, got {arguments.reference}")
    return common.read_kernel(Path(file or arguments.reference)), function


def _new_reference(arguments: argparse.Namespace) -> int:
    """Makes a task of a reference alone from a PyTorch file."""
    from evo.search.options import check_limited
    from fitness.suites.kernelbench.user_file import task_of_file

    if arguments.model is not None:
        raise ConfigError("--model: expected a KERNEL.py whose task.py a model writes, got --reference; leave it out")
    check_limited((), arguments.max_tokens, arguments.max_usd)
    text, task = task_of_file(arguments.reference, common.read_kernel(arguments.reference), arguments.function)
    folder: Path = arguments.folder
    task_by_model.write(folder, {"task.py": text})
    for case in task.cases:
        axes = ", ".join(f"{axis}={size}" for axis, size in case.axes.items()) or "no sizes at the file's top level"
        common.say(f"    {case.name} ({case.role}): {axes}, {case.dtype}")
    common.say(f"wrote {folder / 'task.py'}; kernels define {task.entry}({', '.join(task.parameters)})")
    common.say("there is no kernel yet, so a search needs a model, which writes the first one:")
    common.say(f"evo run {common.task_argument(folder)} --model NAME@BASE_URL")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from evo.api import load_task
    from fitness.frontend.target import get_target
    from fitness.sandbox.zygote import Zygote
    from fitness.tasks.task import task_names

    target = get_target(arguments.target)
    tasks = [load_task(name) for name in arguments.tasks or task_names()]
    common.one_thread_each()
    good = True
    with Zygote(target.spec) as zygote:
        for task in tasks:
            reason, found = _idle(task, target, zygote)
            good = good and not reason
            if arguments.json:
                findings = [dataclasses.asdict(finding) for finding in found]
                common.say(json.dumps({"name": task.name, "reason": reason, "idle": findings}))
            else:
                common.say(f"{task.name}: {reason or 'kernels that do not do their work are found wrong'}")
                for finding in found:
                    common.say(f"    {finding.what}: {finding}")
    return 0 if good else common.EXIT_NOT_OK


def _idle(task: Task, target: Target, zygote: Zygote) -> tuple[str, list[VacuousFinding]]:
    """Returns why a task is not usable ("" if it is), and the results of idle kernels."""
    from fitness.frontend.stages import Stop
    from fitness.validation import vacuous

    found: list[VacuousFinding] = []
    try:
        found = vacuous.of_task(task, target, zygote)
        vacuous.check(found)
    except Stop as stop:
        return f"{stop.stage}: {stop.verdict.value}: {stop}", found
    return "", found

"""The right kernels of `bench_checker`, by group, and which of them are kept for a final test.

    built-in        seeds of the built-in tasks, kernels beside this module, and the variants of the tests
    tritonbench-g   files of a checkout of TritonBench, drawn by their names; `evo suite check` makes their tasks
    kernelbench     evo's seed kernels, one problem of a checkout of KernelBench for each pattern of kernels
    answers         kernels that language models wrote in recorded runs (`runs/reference/`)

Nothing of a checkout is kept outside the benchmark's folder.  Of an autotuned kernel the first configuration is taken:
Triton's interpreter cannot choose one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.benchmarks.mutants import RightKernel, Text, first_configuration
from evo.core.errors import TaskError
from fitness.tasks.task import BUILTIN_TASKS, task_names

KERNELS = Path(__file__).parent / "kernels"  # TASK__NAME.py
CHECKOUT = Path(__file__).parents[2]
VARIANTS = CHECKOUT / "tests" / "variants"  # more of them, in a checkout
ANSWERS = CHECKOUT / "runs" / "reference"
PROBLEMS = "kernelbench-claude"  # the recorded answers for KernelBench

GROUPS = ("built-in", "tritonbench-g", "kernelbench", "answers")
SPLITS = ("development", "final", "all")
FILES = 30  # of TritonBench-G; those that cannot be tasks here are left out
MOST_BYTES = 1 << 28  # of a case of KernelBench
FINAL_PERCENT = 34

Say = Callable[[str], None]


def split_of(kernel: RightKernel) -> str:
    """Returns "final" for about a third of the kernels, by the hash of task and name, else "development".

    Built-in kernels are all of "development": the checker was improved with them.
    """
    if kernel.group == GROUPS[0]:
        return SPLITS[0]
    return SPLITS[1] if _draw(f"split {Path(kernel.task).name} {kernel.name}") % 100 < FINAL_PERCENT else SPLITS[0]


def _draw(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


# --- groups ----------------------------------------------------------------------------------------------------------


def built_in(only: Sequence[str] = ()) -> list[RightKernel]:
    """Returns the kernels of the built-in tasks, or of those asked for.  Raises ValueError for any other name.

    None is autotuned.
    """
    unknown = sorted(set(only) - set(task_names()))
    if unknown:
        raise ValueError(f"expected built-in tasks ({', '.join(task_names())}), got {', '.join(unknown)}")
    return [kernel for task in task_names() if not only or task in only for kernel in _of_task(task)]


def _of_task(task: str) -> list[RightKernel]:
    paths = {"seed": BUILTIN_TASKS / task / "kernel.py"}
    for folder in (KERNELS, VARIANTS):
        paths |= {path.stem.partition("__")[2]: path for path in sorted(folder.glob(f"{task}__*.py"))}
    sources = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    return [RightKernel(task, name, GROUPS[0], text) for name, text in sources.items() if "autotune" not in text]


def tritonbench(checkout: Path, folder: Path, *, gpus: int, jobs: int, say: Say) -> list[RightKernel]:
    """Returns kernels of TritonBench-G, with task folders in `folder`.

    gpus: how many check the tasks, at the sizes that the suite times; 0: none, at the sizes of its tests.  What was
    checked before is not checked again.  Raises ConfigError for a folder that is not a checkout.
    """
    from evo.campaign.suite import SuiteSelection, outcomes
    from fitness.suites.tritonbench import sources

    files = sorted(sources(checkout), key=lambda file: _draw(file.name))[:FILES]
    folder.mkdir(parents=True, exist_ok=True)
    tests = tests_of(folder / "any").parent
    tests.mkdir(exist_ok=True)
    for file in files:
        tests_of(folder / file.name).write_text(file.tests, encoding="utf-8")
    checked = folder / "checked.jsonl"
    known = set(_checked(checked))
    waiting = [file for file in files if file.name not in known]
    if waiting:
        chosen = SuiteSelection("tritonbench", checkout)
        for outcome in outcomes(chosen, waiting, folder, "sm_90", gpus, jobs):
            with open(checked, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"name": outcome.name, "ok": outcome.verified, "why": outcome.reason}) + "\n")
            say(f"{outcome.name}: {outcome.reason or 'checked'}")
    right = _checked(checked)
    return [_kernel(folder / file.name, GROUPS[1]) for file in files if right.get(file.name)]


def _checked(path: Path) -> dict[str, bool]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {found["name"]: found["ok"] for found in map(json.loads, lines)}


def tests_of(task: Path) -> Path:
    """Returns the file with the suite's own tests of a task folder."""
    return task.parent / "tests" / f"{task.name}.txt"


def kernelbench(checkout: Path, folder: Path, say: Say) -> list[RightKernel]:
    """Returns evo's seed kernels for one problem of each pattern of kernels, with task folders in `folder`.

    Raises ConfigError for a folder that is not a checkout.
    """
    from fitness.suites.kernelbench.checkout import sources
    from fitness.suites.kernelbench.seeds import FAMILIES, seed_kernel

    by_pattern: dict[str, Any] = {}
    for file in sorted(sources(checkout), key=lambda file: _draw(file.name)):
        if file.family in FAMILIES and seed_kernel(file) is not None:
            by_pattern.setdefault(FAMILIES[file.family][0], file)
    made = [(file, seed_kernel(file)) for file in by_pattern.values()]
    return [_kernel(path, GROUPS[2]) for path in _problems(made, folder, say)]


def answers(checkout: Path | None, folder: Path, say: Say) -> list[RightKernel]:
    """Returns the best kernels of recorded runs with models: for built-in tasks, and for KernelBench with a checkout.

    Those for KernelBench are for tasks of a reference alone, with folders in `folder`.  [] outside of a repository.
    """
    found = []
    for path in sorted(ANSWERS.glob("*claude*/*/best_kernel.py")):
        if path.parent.name in task_names():
            found.append(_answer(path.parent.name, path.parent.parent.name, path))
    if checkout is None:
        return found
    from fitness.suites.kernelbench.checkout import sources

    best = {path.stem: path for path in sorted((ANSWERS / PROBLEMS / "best").glob("*.py"))}
    problems = [(file, None) for file in sources(checkout) if file.name in best]
    return found + [_answer(str(task), PROBLEMS, best[task.name]) for task in _problems(problems, folder, say)]


def _answer(task: str, name: str, path: Path) -> RightKernel:
    return RightKernel(task, name, GROUPS[3], first_configuration(path.read_text(encoding="utf-8")))


def _kernel(task: Path, group: str) -> RightKernel:
    source = (task / "kernel.py").read_text(encoding="utf-8")
    return RightKernel(str(task.resolve()), "seed", group, first_configuration(source))


def _problems(made: Sequence[tuple[Any, str | None]], folder: Path, say: Say) -> list[Path]:
    """Writes task folders of problems, unless they are there; returns those that can be tasks."""
    from fitness.suites.kernelbench.folder import write_folder

    found = []
    for file, kernel in made:
        path = folder / file.name
        try:
            if not (path / "task.py").exists():
                write_folder(path, file, kernel, MOST_BYTES)
            found.append(path.resolve())
        except TaskError as error:
            say(f"{file.name}: {error}")
    return found


def has_kernels(kernel: RightKernel) -> bool:
    """Returns whether mutants can be made: a kernel at the top level of the source."""
    return bool(Text(kernel.source).kernels)

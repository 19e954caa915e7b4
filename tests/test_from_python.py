"""fitness.tasks.from_python: tasks made in Python become folders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import relu

from evo.api import load_task
from evo.core.errors import TaskError
from evo.core.records import Case
from fitness.tasks.from_python import task_source, write_task
from fitness.tasks.task import Task
from tests import engine_support
from tests.llm_support import SOURCE

HALF = 0.5
DTYPE = torch.float32
SHARED = torch.zeros(2)
tolerance = 0.25
CASES = [
    Case("long", {"N": 4096}, cpu_axes={"N": 64}, weight=2.5),
    Case("odd", {"N": 77}, dtype="float16", role="holdout"),
]


def draw(case, generator):
    count = _count(case)
    return (torch.randn(count, generator=generator, device=generator.device, dtype=DTYPE),)


def _count(case):
    return int(math.prod(case.axes.values()))


@torch.no_grad()
def twice(x, factor=HALF):
    return sum(x * part for part in (1 / factor, 0 * factor)) + 0 * relu(x)


def moved(case) -> float:
    return 8.0 * _count(case)


def with_tensor(x):
    return x + SHARED


def with_module(x):
    return x if engine_support else 2 * x


def with_option(x):
    return x * tolerance


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(**changes: Any) -> Task:
    values: dict[str, Any] = {"cases": CASES, "inputs": draw, "reference": twice, "seed_source": SOURCE}
    return Task(**{"entry": "double", **values, **changes})


def test_a_task_made_in_python_is_loaded_like_one_of_a_folder(cache: Path) -> None:
    task = load_task(made(bytes=moved, tolerance=1e-3, stress=False, certify=[Case("prime", {"N": 13})]))
    assert task.folder.parent.parent == cache / "evo/tasks" and task.folder.name == task.name == "double"
    assert task.cases == tuple(CASES) and task.certify == (Case("prime", {"N": 13}),)
    assert (task.tolerance, task.stress, task.deterministic, task.flops) == (1e-3, False, True, None)
    assert task.bytes is not None and task.bytes(CASES[0]) == 8 * 4096
    (x,) = task.inputs(CASES[0].on_cpu(), torch.Generator().manual_seed(0))
    assert task.reference is not None and torch.equal(task.reference(x), 2 * x)
    again = load_task(task.folder)
    assert (again.hash, again.seed_source) == (task.hash, SOURCE)
    assert load_task(task) is task


def test_the_same_task_has_the_same_folder_and_another_one_another() -> None:
    first = write_task(made())
    assert write_task(made()) == first
    assert write_task(made(tolerance=0.5)).parent != first.parent
    assert sorted(path.name for path in first.parent.iterdir()) == ["double"], "nothing is left of writing it"


def test_the_seed_may_be_the_reference() -> None:
    task = load_task(made(reference=None, name="mine"))
    assert task.reference is None and task.name == "mine"


def test_what_functions_use_is_copied_once() -> None:
    text = task_source(made(bytes=moved))
    assert text.count("def _count(") == 1 and text.count("import torch\n") == 1
    assert "HALF = 0.5\n" in text and "from torch import float32 as DTYPE" in text
    assert "from torch.nn.functional import relu\n" in text and "@torch.no_grad()\ndef twice(" in text
    assert "inputs = draw\n" in text and "reference = twice" in text and "SHARED" not in text


def closure() -> Any:
    factor = 2

    def reference(x):
        return factor * x

    return reference


def executed() -> Any:
    names: dict[str, Any] = {}
    exec("def reference(x):\n    return 2 * x\n", names)
    return names["reference"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reference": lambda x: 2 * x}, "reference: expected a function with a name, got a lambda; write it as `def`"),
        ({"reference": closure()}, "reference: expected a function that stands on its own, got one that uses factor"),
        ({"reference": executed()}, "reference: expected a function whose source can be read"),
        ({"reference": torch.nn.ReLU()}, "reference: expected a function, got ReLU()"),
        ({"reference": with_tensor}, "reference uses SHARED: expected a module, a function"),
        ({"reference": with_module}, "the module tests.engine_support, which is no part of an installed package"),
        ({"reference": with_option}, "expected the name tolerance to stand for one thing in the task, got two"),
        ({"inputs": None}, "task.py lacks inputs"),
        ({"cases": [{"N": 3}]}, "expected cases to be a list of evo.Case, got [{'N': 3}]"),
        ({"cases": []}, "expected at least one case with role='tune'"),
        ({"entry": "triple"}, "entry 'triple' is not a function of kernel.py, which defines double"),
        ({"entry": 3}, "expected entry to be a text, got 3"),
        ({"seed_source": Path("kernel.py")}, "expected seed_source to be a text"),
        ({"name": "../mine"}, "task '../mine': expected a name of letters"),
        ({"tolerance": 7}, "tolerance must be a relative error between 0 and 1"),
    ],
)
def test_what_cannot_be_written_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError) as raised:
        load_task(made(**changes))
    assert words in str(raised.value)


def test_a_cache_that_cannot_be_written_is_said(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(TaskError, match=r"expected to write the task to .*; set XDG_CACHE_HOME"):
        load_task(made())


def test_a_folder_in_the_cache_that_was_changed_is_not_taken_for_the_task() -> None:
    folder = write_task(made())
    (folder / "kernel.py").write_text(SOURCE + "\n")
    with pytest.raises(TaskError, match="was changed: expected the files of hash"):
        load_task(made())

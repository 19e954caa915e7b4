"""evo.service.tasks: tasks by name, and uploads as data, which load_task accepts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.core.errors import ConfigError, ServiceError, TaskError
from evo.service.tasks import MOST_UPLOADS, TaskRegistry
from evo.storage.requests import RequestStore
from fitness.tasks.task import BUILTIN_TASKS

KERNEL = (BUILTIN_TASKS / "softmax" / "kernel.py").read_text()
X = {"shape": [4, 6], "dtype": "float32", "rule": "quantiles", "values": [-1.0, 0.0, 2.0]}
GIVEN: dict[str, Any] = {
    "name": "mine",
    "kernel": KERNEL,
    "entry": "softmax",
    "writes": [],
    "calls": [{"role": "tune", "arguments": [{"tensor": X}]}],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RequestStore]:
    opened = RequestStore(tmp_path, {})
    yield opened
    opened.close()


@pytest.fixture
def tasks(store: RequestStore, tmp_path: Path) -> TaskRegistry:
    return TaskRegistry(store, tmp_path / "tasks", ())


def with_tensor(**fields: Any) -> dict[str, Any]:
    """An upload whose only tensor has other fields; None leaves one out."""
    given = copy.deepcopy(GIVEN)
    tensor = {name: value for name, value in {**X, **fields}.items() if value is not None}
    given["calls"][0]["arguments"] = [{"tensor": tensor}]
    return given


def inputs(tasks: TaskRegistry, given: dict[str, Any], seed: int = 0) -> tuple[Any, ...]:
    """What the uploaded task draws for its first case."""
    task = tasks.load(tasks.upload(given, "ann").hash)
    return task.inputs(task.cases[0], torch.Generator().manual_seed(seed))


def test_built_in_tasks_and_named_folders_are_found(store: RequestStore, tmp_path: Path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "task.py").write_text('"""A title."""\nraise RuntimeError("not before it is used")\n')
    tasks = TaskRegistry(store, tmp_path / "tasks", [folder])
    assert tasks.find("own", "ann").title == "A title."
    assert tasks.find("softmax", "ann").folder == BUILTIN_TASKS / "softmax"
    assert tasks.load(tasks.find("softmax", "").hash).name == "softmax"
    with pytest.raises(TaskError, match="not before it is used"):
        tasks.load(tasks.find("own", "ann").hash)


def test_a_task_that_was_changed_after_the_start_is_not_used(store: RequestStore, tmp_path: Path):
    folder = tmp_path / "own"
    folder.mkdir()
    for file in ("kernel.py", "task.py"):
        (folder / file).write_text((BUILTIN_TASKS / "softmax" / file).read_text())
    tasks = TaskRegistry(store, tmp_path / "tasks", [folder])
    (folder / "kernel.py").write_text("x = 1\n")
    with pytest.raises(TaskError, match="was changed"):
        tasks.load(tasks.find("own", "").hash)


@pytest.mark.parametrize(("name", "text"), [("softmax", "softmax twice"), ("missing", "task.py"), ("broken", "Python")])
def test_a_folder_that_cannot_be_used_is_named_at_the_start(store: RequestStore, tmp_path: Path, name: str, text: str):
    folder = tmp_path / name
    folder.mkdir()
    if name != "missing":
        (folder / "kernel.py").write_text(KERNEL)
        (folder / "task.py").write_text("def (" if name == "broken" else "entry = 1")
    with pytest.raises(ConfigError, match=text):
        TaskRegistry(store, tmp_path / "tasks", [folder])


def test_an_upload_is_a_task_of_its_client_also_after_a_restart(store: RequestStore, tmp_path: Path):
    tasks = TaskRegistry(store, tmp_path / "tasks", ())
    entry = tasks.upload(GIVEN, "ann")
    assert entry.name.startswith("mine-")
    assert tasks.upload(GIVEN, "ann") == entry, "the same again is the same task"
    task = tasks.load(entry.hash)
    assert task.reference is None and [case.role for case in task.cases] == ["tune"]
    with pytest.raises(ServiceError, match="expected one of") as caught:
        tasks.find(entry.name, "bob")
    assert caught.value.status == 404
    shared = tasks.upload(GIVEN, "bob")
    assert shared.hash == entry.hash and shared.name != entry.name
    again = TaskRegistry(store, tmp_path / "tasks", ())
    assert again.find(entry.name, "ann").hash == entry.hash
    assert again.load(entry.hash).seed_source == KERNEL
    assert [path.name for path in (tmp_path / "tasks").iterdir() if path.name.startswith(".")] == []


def test_tensors_are_drawn_as_described(tasks: TaskRegistry):
    given = copy.deepcopy(GIVEN)
    kernel = KERNEL.replace("def softmax(x):", "def softmax(x, index, mask, order, scale, eps=1e-5, name=None):")
    given["kernel"] = kernel
    given["calls"][0]["arguments"] = [
        {"tensor": {**X, "strides": [8, 1]}},
        {"tensor": {"shape": [5], "dtype": "int32", "rule": "randint", "low": 3, "high": 9}},
        {"tensor": {"shape": [4], "dtype": "bool", "rule": "kept", "values": [1, 0, 0, 1]}},
        {"tensor": {"shape": [7], "dtype": "int64", "rule": "randperm"}},
        {"tensor": {"shape": [], "dtype": "float16", "rule": "constant", "value": 0.5}},
        {"value": 0.25},
        {"value": "text"},
    ]
    x, index, mask, order, scale, eps, name = inputs(tasks, given)
    assert x.shape == (4, 6) and x.stride() == (8, 1) and -1 <= x.min() < x.max() <= 2
    assert index.dtype is torch.int32 and 3 <= index.min() <= index.max() < 9
    assert mask.tolist() == [True, False, False, True]
    assert sorted(order.tolist()) == list(range(7))
    assert scale.item() == 0.5 and (eps, name) == (0.25, "text")


BAD = {
    "the name is a path": ({**GIVEN, "name": "../up"}, "name: expected a letter"),
    "the entry is code": ({**GIVEN, "entry": 'x"\nimport os\n"'}, "entry: expected a name of Python"),
    "a keyword": ({**GIVEN, "writes": ["lambda"]}, "writes: expected a name of Python"),
    "no calls": ({**GIVEN, "calls": []}, "1 to 16 calls"),
    "another role": ({**GIVEN, "calls": [{"role": "test", "arguments": []}]}, "tune or holdout"),
    "an argument that is neither": (
        {**GIVEN, "calls": [{"role": "tune", "arguments": [{"value": [1, 2]}]}]}, "a number, text, true, false or null"
    ),
    "an unknown rule": (with_tensor(rule="pickle"), "rule: expected one of"),
    "an attribute of torch": (with_tensor(dtype="nn"), "dtype: expected one of"),
    "a file": (with_tensor(rule="kept", values=None, file="/etc/passwd"), "expected the fields"),
    "a shape with a fraction": (with_tensor(shape=[2.5]), "whole numbers"),
    "a negative stride": (with_tensor(strides=[-1, 1]), "whole numbers from 0"),
    "too few strides": (with_tensor(strides=[1]), "2 strides"),
    "too large": (with_tensor(shape=[1 << 20, 1 << 20]), "bytes at most"),
    "too large by its strides": (with_tensor(strides=[1 << 40, 1]), "bytes at most"),
    "too many axes": (with_tensor(shape=[1] * 9), "at most 8"),
    "falling quantiles": (with_tensor(values=[1.0, 0.0]), "rising"),
    "quantiles that are no numbers": (with_tensor(values=[float("nan"), 1.0]), "finite"),
    "quantiles of whole numbers": (with_tensor(dtype="int32"), "floating dtype"),
    "kept floats": (with_tensor(rule="kept", values=[0.5] * 24), "whole numbers with this rule"),
    "too few kept values": (with_tensor(dtype="int8", rule="kept", values=[1, 2]), "24 whole numbers"),
    "kept values out of range": (with_tensor(dtype="int8", rule="kept", values=[300] * 24), "int8 can hold"),
    "an empty range": (with_tensor(dtype="int8", rule="randint", values=None, low=3, high=3), "low < high"),
    "code without leave": ({**GIVEN, "task": "import os"}, "--allow-task-code"),
    "half a character": ({**GIVEN, "kernel": "# \ud800"}, "half a character"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_description_that_is_not_data_is_refused_and_leaves_nothing(tasks: TaskRegistry, tmp_path: Path, name: str):
    given, text = BAD[name]
    with pytest.raises(ServiceError, match=text) as caught:
        tasks.upload(given, "ann")
    assert caught.value.status in (403, 422)
    assert list((tmp_path / "tasks").glob("*")) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({**GIVEN, "entry": "sofmax"}, "is not a function of kernel.py"),
        ({**GIVEN, "kernel": "def ("}, "kernel.py"),
        (with_tensor(rule="constant", value=1.0, values=None), "same values for two seeds"),
        ({**GIVEN, "writes": ["y"]}, "writes must name"),
    ],
)
def test_a_task_that_does_not_work_is_refused_and_leaves_nothing(
    tasks: TaskRegistry, tmp_path: Path, given: dict[str, Any], text: str
):
    with pytest.raises(TaskError, match=text):
        tasks.upload(given, "ann")
    assert list((tmp_path / "tasks").glob("*")) == []
    assert [entry for entry in tasks.seen_by("ann") if entry.token] == []


def test_the_kernel_of_an_upload_is_not_executed_here(tasks: TaskRegistry, tmp_path: Path):
    mark = tmp_path / "executed"
    given = {**GIVEN, "kernel": f"{KERNEL}\nopen({str(mark)!r}, 'w')\n"}
    tasks.load(tasks.upload(given, "ann").hash)
    assert not mark.exists()


def test_a_task_py_of_a_client_is_taken_if_the_service_allows_it(store: RequestStore, tmp_path: Path):
    tasks = TaskRegistry(store, tmp_path / "tasks", (), allow_code=True)
    given = {"name": "coded", "kernel": KERNEL, "task": (BUILTIN_TASKS / "softmax" / "task.py").read_text()}
    assert len(tasks.load(tasks.upload(given, "ann").hash).cases) == 4


def test_a_client_uploads_so_many_tasks_and_no_more(tasks: TaskRegistry, store: RequestStore, tmp_path: Path):
    entry = tasks.upload(GIVEN, "ann")
    for number in range(MOST_UPLOADS - 1):
        tasks._entries[f"more-{number}"] = entry
    with pytest.raises(ServiceError, match=f"at most {MOST_UPLOADS}") as caught:
        tasks.upload({**GIVEN, "name": "another"}, "ann")
    assert caught.value.status == 409
    assert tasks.upload({**GIVEN, "name": "another"}, "bob").token == "bob"


def test_calls_are_kept_as_they_were_given(tasks: TaskRegistry):
    entry = tasks.upload(GIVEN, "ann")
    (call,) = json.loads((entry.folder / "calls.json").read_text())
    assert call["arguments"] == [{"tensor": {**X, "strides": [6, 1]}}]
    assert call["dtype"] == "float32"

"""The tasks of a service: built-in ones, folders named at its start, and uploads.

An upload is data: the text of a kernel, which runs in sandboxes only, and calls of its entry.  Tensors are described by
shape, dtype and the rule for their values (`fitness.suites.values`).  The reference is the kernel itself.  evo writes
the `task.py`.  A `task.py` of a client is code that this process runs: it needs `allow_code`.
"""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import math
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core import syntax
from evo.core.errors import ConfigError, ServiceError
from evo.core.text import did_you_mean, short
from evo.service.work import check_text
from evo.storage.requests import RequestStore

if TYPE_CHECKING:
    from fitness.tasks.task import Task

MOST_UPLOADS = 64  # of one token
MOST_CALLS = 16  # of an uploaded task
MOST_DIMENSIONS = 8
MOST_BYTES = 1 << 28  # of the tensors of one call: this process draws them
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}")
_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
# For each rule the fields beside shape, strides and dtype.
RULES: Mapping[str, tuple[str, ...]] = {
    "constant": ("value",),
    "quantiles": ("values",),
    "randint": ("low", "high"),
    "randperm": (),
    "kept": ("values",),
}
_STORED = {"bool": "uint8", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64"}


@dataclass(frozen=True)
class Entry:
    """A task of the service: enough to accept requests, without loading it."""

    name: str
    hash: str
    folder: Path
    title: str
    token: str = ""  # of the client that uploaded it; "" for tasks of all


class TaskRegistry:
    """Finds tasks by name or hash, and loads each once."""

    def __init__(self, store: RequestStore, folder: Path, folders: Iterable[Path], *, allow_code: bool = False) -> None:
        """folder: for uploads; folders: task folders named at the start.  Raises ConfigError for a name used twice."""
        from fitness.tasks.task import BUILTIN_TASKS, task_names

        self._store, self._folder, self._allow_code = store, folder, allow_code
        self._loaded: dict[str, Task] = {}
        self._loading = threading.Lock()
        self._entries: dict[str, Entry] = {}
        for path in [*(BUILTIN_TASKS / name for name in task_names()), *folders]:
            entry = _entry(path.resolve())
            if entry.name in self._entries:
                raise ConfigError(f"--task: expected names that differ, got {entry.name} twice; rename the folder")
            self._entries[entry.name] = entry
        for name, task_hash, token in store.tasks():
            if (folder / name / "task.py").is_file():
                self._entries[name] = _entry(folder / name, token=token, expected=task_hash)
        self._by_hash = {entry.hash: entry for entry in self._entries.values()}

    def seen_by(self, token: str) -> list[Entry]:
        """The tasks that a client may name: those of all, and its own uploads."""
        return [entry for entry in list(self._entries.values()) if entry.token in ("", token)]

    def find(self, name: str, token: str) -> Entry:
        """The task of that name.  Raises ServiceError (404) for an unknown one."""
        entry = self._entries.get(name)
        if entry is None or entry.token not in ("", token):
            known = [each.name for each in self.seen_by(token)]
            raise ServiceError(
                f"task: expected one of {', '.join(known[:40])}, got {short(name[:100])!r}{did_you_mean(name, known)}; "
                "GET /v1/tasks lists them",
                404,
            )
        return entry

    def load(self, task_hash: str) -> Task:
        """The validated task of that hash.  Raises TaskError if it is gone, was changed or is at fault."""
        from evo.api import load_task
        from evo.core.errors import TaskError

        with self._loading:
            if task_hash not in self._loaded:
                entry = self._by_hash.get(task_hash)
                if entry is None:
                    raise TaskError("the task is no longer registered; start the service with its folder (--task DIR)")
                self._loaded[task_hash] = load_task(entry.folder, expected=task_hash)
            return self._loaded[task_hash]

    def upload(self, given: Mapping[str, Any], token: str) -> Entry:
        """Adds the task that a client describes, validated; the same one again is the same task.

        Raises ServiceError for a bad description, TaskError if the task does not work.
        """
        from fitness.tasks.task import hash_task, task_texts

        if "task" in given and not self._allow_code:
            raise ServiceError(
                "task: this service takes no task.py, because it would run as the service itself; describe the calls "
                "as data (`calls`), or start the service with --allow-task-code",
                403,
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            _write(new, given)
            task_hash = hash_task(*task_texts(new))
            known = [entry for entry in self.seen_by(token) if entry.hash == task_hash]
            if known:
                return known[0]
            if sum(entry.token == token for entry in self.seen_by(token)) >= MOST_UPLOADS:
                raise ServiceError(f"expected at most {MOST_UPLOADS} uploaded tasks of a token; use those", 409)
            return self._keep(new, f"{given['name']}-{_short_hash(task_hash, token)}", task_hash, token)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _keep(self, new: Path, name: str, task_hash: str, token: str) -> Entry:
        """Moves a written task to its place and loads it there; what cannot be loaded is removed."""
        from evo.api import load_task

        place = self._folder / name
        shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed
        new.rename(place)
        try:
            task = load_task(place, expected=task_hash)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self._store.add_task(name, task_hash, token, time.time())
        entry = _entry(place, token=token)
        self._loaded.setdefault(task_hash, task)
        self._by_hash.setdefault(task_hash, entry)
        self._entries[name] = entry
        return entry


def _short_hash(task_hash: str, token: str) -> str:
    return hashlib.sha256(f"{task_hash}\0{token}".encode()).hexdigest()[:12]


def _entry(folder: Path, *, token: str = "", expected: str = "") -> Entry:
    """The entry of a folder.  Nothing is executed."""
    from fitness.tasks.task import hash_task, task_texts

    try:
        text, kernel = task_texts(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--task: expected a task folder with task.py at {folder}, got: {error}") from error
    try:
        title = (ast.get_docstring(syntax.parse(text)) or "").partition("\n")[0]
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"--task: expected Python in {folder / 'task.py'}, got: {error}; correct the file") from error
    return Entry(folder.name, expected or hash_task(text, kernel), folder, short(title), token)


# --- uploads ---------------------------------------------------------------------------------------------------------


def _write(folder: Path, given: Mapping[str, Any]) -> None:
    """Writes the files of an uploaded task.  Raises ServiceError (422) for a bad description."""
    from fitness.suites.folder import write_task

    if not _NAME.fullmatch(given["name"]):
        raise _bad("name", "a letter, then letters, digits, '_' and '-', 41 at most", given["name"])
    for place in ("kernel", "task"):
        check_text(place, given.get(place, ""))
    (folder / "kernel.py").write_text(given["kernel"], encoding="utf-8")
    if "task" in given:
        (folder / "task.py").write_text(given["task"], encoding="utf-8")
        return
    for place, name in [("entry", given["entry"]), *(("writes", name) for name in given["writes"])]:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise _bad(place, "a name of Python", name)
    if not 1 <= len(given["calls"]) <= MOST_CALLS:
        raise _bad("calls", f"1 to {MOST_CALLS} calls", len(given["calls"]))
    calls = [_call(folder, number, call) for number, call in enumerate(given["calls"])]
    (folder / "calls.json").write_text(json.dumps(calls), encoding="utf-8")
    facts = {"title": given["name"], "entry": given["entry"], "deterministic": "atomic" not in given["kernel"]}
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    write_task(folder, given["writes"])


def _call(folder: Path, number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """One call as `fitness.suites.folder.CapturedCalls` reads it."""
    if call["role"] not in ("tune", "holdout"):
        raise _bad(f"calls[{number}].role", "tune or holdout", call["role"])
    arguments: list[dict[str, Any]] = []
    dtypes, total = [], 0
    for index, argument in enumerate(call["arguments"]):
        where = f"calls[{number}].arguments[{index}]"
        if set(argument) == {"value"} and isinstance(argument["value"], (bool, int, float, str, type(None))):
            arguments.append({"value": argument["value"]})
        elif set(argument) == {"tensor"} and isinstance(argument["tensor"], dict):
            form, size = _tensor(folder, f"{number}-{index}", argument["tensor"], f"{where}.tensor")
            arguments.append({"tensor": form})
            dtypes.append(form["dtype"])
            total += size
        else:
            raise _bad(where, '{"tensor": {...}} or {"value": a number, text, true, false or null}', argument)
    if total > MOST_BYTES:
        raise _bad(f"calls[{number}]", f"tensors of {MOST_BYTES} bytes at most", total)
    floating = [dtype for dtype in dtypes if dtype in _FLOATS]
    return {"arguments": arguments, "dtype": floating[0] if floating else "float32", "role": call["role"]}


def _tensor(folder: Path, name: str, given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], int]:
    """The form of a tensor for `fitness.suites.values.draw`, and its size in bytes."""
    from fitness.frontend.plan import ITEMSIZE

    rule = given.get("rule")
    if not isinstance(rule, str) or rule not in RULES:
        raise _bad(f"{where}.rule", f"one of {', '.join(RULES)}", rule)
    fields = {"shape", "dtype", "rule", *RULES[rule]}
    if set(given) - {"strides"} != fields:
        raise _bad(where, f"the fields {', '.join(sorted(fields))}, and perhaps strides", sorted(given))
    shape, dtype = _numbers(given["shape"], f"{where}.shape"), given["dtype"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise _bad(f"{where}.dtype", f"one of {', '.join(ITEMSIZE)}", dtype)
    strides = _numbers(given["strides"], f"{where}.strides") if "strides" in given else _contiguous(shape)
    if len(strides) != len(shape):
        raise _bad(f"{where}.strides", f"{len(shape)} strides, one for each axis", len(strides))
    elements = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if elements * ITEMSIZE[dtype] > MOST_BYTES:
        raise _bad(where, f"a tensor of {MOST_BYTES} bytes at most", elements * ITEMSIZE[dtype])
    form = {"shape": shape, "strides": strides, "dtype": dtype, "rule": rule}
    return {**form, **_values(folder, name, given, where, elements)}, elements * ITEMSIZE[dtype]


def _values(folder: Path, name: str, given: Mapping[str, Any], where: str, elements: int) -> dict[str, Any]:
    """The fields of a tensor's rule, checked; kept values go to a file."""
    rule, dtype = given["rule"], given["dtype"]
    if rule == "constant":
        if not _finite(given["value"]):
            raise _bad(f"{where}.value", "a finite number", given["value"])
        return {"value": given["value"]}
    if rule == "quantiles":
        values = given["values"]
        fits = isinstance(values, list) and 2 <= len(values) <= 1024 and all(map(_finite, values))
        if not fits or sorted(values) != values or dtype not in _FLOATS:
            raise _bad(where, "2 to 1024 finite rising values, and a floating dtype", f"{dtype}, {values!r:.80}")
        return {"values": values}
    if dtype in _FLOATS:
        raise _bad(where, "a dtype of whole numbers with this rule", dtype)
    if rule == "randint":
        low, high = given["low"], given["high"]
        least, most = _range(dtype)
        if not _whole(low) or not _whole(high) or not least <= low < high <= most + 1:
            raise _bad(where, f"whole numbers low < high that {dtype} can hold", f"{low!r:.40}, {high!r:.40}")
        return {"low": low, "high": high}
    if rule == "kept":
        _keep_values(folder / f"{name}.npy", given["values"], dtype, elements, where)
        return {"file": f"{name}.npy"}
    return {}


def _keep_values(path: Path, values: Any, dtype: str, elements: int, where: str) -> None:
    import numpy as np

    least, most = _range(dtype)
    if not isinstance(values, list) or len(values) != elements:
        raise _bad(f"{where}.values", f"{elements} whole numbers, one for each element", f"{values!r:.60}")
    if not all(_whole(value) and least <= value <= most for value in values):
        raise _bad(f"{where}.values", f"whole numbers that {dtype} can hold", f"{values!r:.60}")
    np.save(path, np.array(values, dtype=_STORED[dtype]))


def _range(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    bits = int(_STORED[dtype].lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _numbers(given: Any, where: str) -> list[int]:
    if not isinstance(given, list) or len(given) > MOST_DIMENSIONS or not all(_whole(n) and n >= 0 for n in given):
        raise _bad(where, f"a list of at most {MOST_DIMENSIONS} whole numbers from 0", given)
    return given


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 3e38


def _bad(where: str, expected: str, got: Any) -> ServiceError:
    text = got if isinstance(got, str) else repr(got)
    return ServiceError(f"{where}: expected {expected}, got {short(text[:100])}", 422)

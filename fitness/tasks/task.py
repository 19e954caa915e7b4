"""Loads and checks tasks: what a kernel has to compute, on which inputs, and the seed kernel to start from.

A task is a folder with `task.py` and mostly `kernel.py`.  `task.py` is the user's own code: it is trusted and runs in
this process.  `kernel.py` is the seed.  It is read as text and never imported here: the host code of candidates runs in
sandboxed processes only.  A task without it is one of a reference alone: models write its kernels, and speedups are
over PyTorch (`Task.timed_against`).

`task.py` defines

    entry       name of the host function in kernel.py, or that kernels have to define
    cases       list of `fitness.Case`, at least one with role "tune"
    inputs      inputs(case, generator) -> tuple of tensors and plain values, drawn from `generator`
    reference   reference(*inputs) -> tensor, tuple, list or dict of tensors (None if everything goes to `writes`),
                or "seed": the seed kernel's own results are right (`fitness.verify.seed_oracle`)

and optionally:

    writes              names of parameters that are written in place: of `reference`, which gets copies and mutates
                        those, or of the entry if the seed is the reference
    flops, bytes        functions of a case
    tolerance           relative error that widens the budget
    stress = False      no stressed inputs
    deterministic = False
    allow_delegation, min_own_share, certify, baseline: see below
    lenient = True      candidates may break the rules that the seed kernel breaks: for seeds that were written
                        without these rules in mind

`allow_delegation = True` lets a candidate leave part of the work to PyTorch operators.  Its own kernels must then do
`min_own_share` of it (0.5 by default).  The share counts the bytes of the outputs that own kernels wrote last, not
operators; measured on a GPU, also the time of all steps.  With 0, operators may finish what kernels began.

`certify` is a list of `Case`: sizes at which the result of a search is tried once more
(`fitness/certify/certify.py`).  Without it they are derived from the smallest case.

`baseline(*inputs)` returns a function (or module) and its arguments: PyTorch's times are those of this call
(`fitness/gpu/baselines.py`).  Without it `reference` is timed on the inputs.  A result of it that is not what
`reference` returns is not noticed.

A reference must work in float64 too, so it should not name a dtype: take it from its arguments.

A task may be frozen: a `task.json` beside `task.py` says which files were validated, and who wrote them.

    {"model": who wrote task.py, "prompt": hash of the prompt it answered, "rounds": answers it took,
     "validated": how, "left_out": {case: why}, "task": the task's hash, "files": {file: SHA-256}}

A frozen task can still be changed; its users then get a warning (`changed_since_frozen`).
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core import syntax
from evo.core.baselines import BaselineKind, chosen_baseline
from evo.core.errors import TaskError
from evo.core.records import Case
from evo.core.settings import MIN_OWN_SHARE
from evo.core.text import did_you_mean
from fitness.frontend.plan import ITEMSIZE
from fitness.tasks.scaffold import is_kernel, launchers, parse_kernel
from fitness.tasks.user_code import blamed, execute

if TYPE_CHECKING:
    import torch

BUILTIN_TASKS = Path(__file__).parent / "builtin"
FROZEN_FILE = "task.json"
LIBRARY_FILE = "library.py"  # not part of the task's hash: it decides no result
_HASHED_FILES = ("task.py", "kernel.py")

SEED = "seed"  # as `reference`.
# Options that are not functions.
_SWITCHES = ("stress", "deterministic", "allow_delegation", "lenient")
_VALUES = ("tolerance", "min_own_share", "certify", "writes")


Call = tuple[Callable[..., Any], Sequence[Any]]  # a function of PyTorch and its arguments


@dataclass(frozen=True, eq=False)
class Task:
    """What a kernel has to compute.  One from `load_task` is validated and has a folder and a hash.

    A task made in Python has neither; whoever uses it loads it first, which writes its functions to a folder
    (`fitness.tasks.from_python`).  So each function must be a `def` whose source can be read, at the top level of a
    file or a notebook cell.  It may use modules and names of installed packages, other such functions, and plain
    constants (numbers, texts, dtypes, tuples, lists, dicts); no lambda, and nothing of a function around it.
    """

    entry: str  # the host function in `seed_source` that is called
    cases: Sequence[Case]  # sizes; at least one of role "tune"
    inputs: Callable[[Case, torch.Generator], tuple[Any, ...]] = field(repr=False)  # arguments of the entry for a case
    reference: Callable[..., Any] | None = field(repr=False)  # the right result for inputs; None: the seed kernel's
    seed_source: str | None = field(default=None, repr=False)  # the text of kernel.py; None: a reference alone
    name: str = ""  # "": the entry's
    folder: Path = Path()  # of task.py and kernel.py, once loaded
    hash: str = ""  # of the text of both; "": not loaded
    writes: Sequence[str] = ()
    flops: Callable[[Case], float] | None = field(default=None, repr=False)
    bytes: Callable[[Case], float] | None = field(default=None, repr=False)
    tolerance: float | None = None
    stress: bool = True
    deterministic: bool = True
    allow_delegation: bool = False
    min_own_share: float = MIN_OWN_SHARE
    certify: Sequence[Case] = ()
    lenient: bool = False
    baseline: Callable[..., tuple[Callable[..., Any], Sequence[Any]]] | None = field(default=None, repr=False)
    timed_against: BaselineKind = BaselineKind.SEED  # what speedups are over; see `with_baseline`

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.entry)

    def with_baseline(self, wanted: str | None) -> Task:
        """Returns the task with speedups over another baseline; None for the default (`chosen_baseline`)."""
        kind = chosen_baseline(wanted, has_kernel=self.seed_source is not None, task=self.name)
        return replace(self, timed_against=kind)

    def with_own_share(self, share: float | None) -> Task:
        """Returns the task with work that PyTorch may do: all but `share`.  None: as the task says."""
        return self if share is None else replace(self, allow_delegation=True, min_own_share=float(share))

    @property
    def run_settings(self) -> dict[str, Any]:
        """What a run may set beside the task's files; it travels with the folder to other processes."""
        return {name: getattr(self, name) for name in ("timed_against", "allow_delegation", "min_own_share")}

    def with_run_settings(self, settings: Mapping[str, Any]) -> Task:
        """Returns the task, loaded from its files, with the `run_settings` of another process."""
        return replace(self, **{**settings, "timed_against": BaselineKind(settings["timed_against"])})

    @property
    def needed_seed(self) -> str:
        """The text of kernel.py, for what works only with one.  Raises TaskError for a task of a reference alone."""
        if self.seed_source is None:
            raise TaskError(f"task {self.name}: expected a task with kernel.py for this, got one of a reference alone")
        return self.seed_source

    def timed_call(self, arguments: Sequence[Any]) -> Call:
        """Returns the function that PyTorch is timed by, with its arguments: that of `baseline`, else the reference."""
        if self.baseline is not None:
            return self.baseline(*arguments)
        assert self.reference is not None  # only tasks with a function as the reference get here
        return self.reference, arguments

    @functools.cached_property
    def library(self) -> Callable[..., Any] | None:
        """The function `library` of library.py beside task.py, None without the file.  Raises TaskError if it has none.

        It takes the arguments of the reference, returns what that returns, and calls what a library offers for it.
        """
        path = self.folder / LIBRARY_FILE
        if not path.exists():
            return None
        found = execute(path, _read(path)).get("library")
        if not callable(found):
            raise TaskError(f"{path}: library must be a function of the reference's arguments; got {found!r:.80}")
        return found

    @functools.cached_property
    def weights(self) -> dict[str, float]:
        """The weight of each case, by its name."""
        return {case.name: case.weight for case in self.cases}

    @functools.cached_property
    def first_source(self) -> str:
        """The text of trial 0: the seed kernel, or task.py below a line that names the call of PyTorch."""
        if self.seed_source is not None:
            return self.seed_source
        return f"# {self.timed_against.text}: the reference of this task, and no kernel\n" + _read(
            self.folder / "task.py"
        )

    @functools.cached_property
    def written(self) -> tuple[int, ...]:
        """Positions of the written arguments, in the order of `writes`."""
        return tuple(self.parameters.index(name) for name in self.writes)

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments: those of the reference, or of the entry if the seed is the reference."""
        if self.reference is not None:
            return tuple(inspect.signature(self.reference).parameters)
        arguments = _entry_node(self.needed_seed, self.entry).args
        return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))


class ChangedTaskError(TaskError):
    """A task's files do not have the expected hash."""


def task_names() -> list[str]:
    """Names of the built-in tasks, sorted."""
    return sorted(path.parent.name for path in BUILTIN_TASKS.glob("*/task.py"))


def task_title(name: str) -> str:
    """First line of the docstring of a built-in task's task.py, "" without one.  Nothing is executed."""
    docstring = ast.get_docstring(syntax.parse(_read(BUILTIN_TASKS / name / "task.py"))) or ""
    return docstring.partition("\n")[0]


def load_task(name_or_folder: str | os.PathLike[str], *, tried: bool = False, expected: str = "") -> Task:
    """The task of that built-in name or folder, validated: its reference runs on the CPU inputs of every case.

    tried: the same files were loaded before, so inputs and reference do not run again (large ones take seconds).
    expected: its hash.  If the files have another one, nothing is executed and ChangedTaskError is raised.
    Raises TaskError, which says what is wrong with the task.
    """
    folder = _find(name_or_folder)
    task_source = _read(folder / "task.py")
    seed_source = _read(folder / "kernel.py") if (folder / "kernel.py").exists() else None
    found = hash_task(task_source, seed_source)
    if expected and found != expected:
        raise ChangedTaskError(
            f"task {folder} was changed: expected the files of hash {expected}, got {found}; restore it"
        )
    names = execute(folder / "task.py", task_source)
    task = Task(
        name=folder.name,
        folder=folder,
        seed_source=seed_source,
        hash=found,
        timed_against=chosen_baseline(None, has_kernel=seed_source is not None, task=folder.name),
        **_required(folder, names),
        **_optional(folder, names),
    )
    _check_cases(task)
    _check_kernel(task)
    _check_writes(task)
    for case in () if tried else (*task.cases, *task.certify):
        _check_case(task, case)
    return task


# --- finding and reading ---------------------------------------------------------------------------------------------


def _find(name_or_folder: str | os.PathLike[str]) -> Path:
    name = os.fspath(name_or_folder)
    if name in task_names():
        if (Path(name) / "task.py").exists():
            raise TaskError(
                f"{name!r} is a built-in task, and a task folder is here too: say ./{name} for the folder, or "
                f"{BUILTIN_TASKS / name} for the built-in one"
            )
        return BUILTIN_TASKS / name
    folder = Path(name).resolve()
    if not folder.is_dir():
        raise TaskError(
            f"no task {name!r}: expected a folder with task.py and kernel.py, or one of the built-in tasks "
            f"({', '.join(task_names())}); `evo tasks new DIR KERNEL.py` makes a folder from a kernel"
            f"{did_you_mean(name, task_names())}"
        )
    return folder


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(
            f"{path} is missing: a task folder holds task.py (inputs and reference) and mostly kernel.py (the seed "
            "kernel)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read as UTF-8 text: {error}") from error


def task_texts(folder: Path) -> tuple[str, str | None]:
    """The texts of task.py and kernel.py in a folder; None without the latter.  Raises OSError, UnicodeDecodeError."""
    kernel = folder / "kernel.py"
    text = (folder / "task.py").read_text(encoding="utf-8")
    return text, kernel.read_text(encoding="utf-8") if kernel.exists() else None


def hash_task(task_source: str, seed_source: str | None) -> str:
    """The hash of a task: 64 hex digits of its task.py and, if it has one, its kernel.py."""
    digest = hashlib.sha256()
    for text in (text for text in (task_source, seed_source) if text is not None):
        data = text.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


# --- frozen tasks ----------------------------------------------------------------------------------------------------


def freeze_task(folder: Path, task_hash: str, about: Mapping[str, Any]) -> None:
    """Writes task.json.  about: what it holds besides the hashes."""
    there = [name for name in _HASHED_FILES if (folder / name).exists()]
    frozen = {**about, "task": task_hash, "files": {name: _digest(folder / name) for name in there}}
    (folder / FROZEN_FILE).write_text(json.dumps(frozen, indent=2) + "\n", encoding="utf-8")


def changed_since_frozen(folder: Path) -> str:
    """A warning for the users of a task that changed since it was frozen; "" if it did not, or is not frozen."""
    path = folder / FROZEN_FILE
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        differs = [name for name in _HASHED_FILES if files.get(name) != _digest(folder / name)]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return (
            f"{path} cannot be read ({type(error).__name__}), so changes since it was frozen cannot be seen; delete it"
        )
    if not differs:
        return ""
    return (
        f"{' and '.join(differs)} in {folder} changed since the task was validated and frozen; results before and "
        f"after do not compare. Delete {path} once you take the task for your own"
    )


def _digest(path: Path) -> str | None:
    """Returns the SHA-256 of a file; None if there is none."""
    if not path.exists():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- names -----------------------------------------------------------------------------------------------------------


def _required(folder: Path, names: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {
        "entry": 'the name of the host function in kernel.py, e.g. entry = "softmax"',
        "cases": 'a list of sizes, e.g. cases = [Case("square", {"M": 64, "N": 512})]',
        "inputs": "a function inputs(case, generator) that returns a tuple of tensors and plain values",
        "reference": 'a function of these inputs that returns the expected result, or "seed"',
    }
    missing = [name for name in wanted if name not in names]
    if missing:
        raise TaskError(
            f"{folder / 'task.py'} lacks {', '.join(missing)}; add " + "; ".join(f"{m}: {wanted[m]}" for m in missing)
        )
    entry, cases = names["entry"], names["cases"]
    if not isinstance(entry, str) or not entry.isidentifier():
        raise _wrong_type(folder, "entry", wanted["entry"], entry)
    if not isinstance(cases, (list, tuple)) or not all(isinstance(case, Case) for case in cases):
        raise _wrong_type(folder, "cases", wanted["cases"], cases)
    by_seed = isinstance(names["reference"], str) and names["reference"] == SEED
    for name in ("inputs",) if by_seed else ("inputs", "reference"):
        if not inspect.isfunction(names[name]):
            raise _wrong_type(folder, name, wanted[name], names[name])
    reference = None if by_seed else names["reference"]
    return {"entry": entry, "cases": tuple(cases), "inputs": names["inputs"], "reference": reference}


def _optional(folder: Path, names: Mapping[str, Any]) -> dict[str, Any]:
    _check_spelling(folder, names)
    if names.get("eager") is True:  # an option of earlier versions
        raise TaskError(
            f"{folder / 'task.py'}: expected a task whose candidates can be recorded, got eager = True, which evo no "
            "longer has; delete it, and let host code use shapes and dtypes, not values that the device computed"
        )
    found: dict[str, Any] = {}
    for name in _SWITCHES:
        if name in names:
            if not isinstance(names[name], bool):
                raise _wrong_type(folder, name, "True or False", names[name])
            found[name] = names[name]
    for name in ("flops", "bytes"):
        if names.get(name) is not None:
            if not callable(names[name]):
                raise _wrong_type(folder, name, f"a function {name}(case) that returns a number", names[name])
            found[name] = names[name]
    if names.get("baseline") is not None:
        if not callable(names["baseline"]):
            meaning = "a function baseline(*inputs) that returns a function and its arguments"
            raise _wrong_type(folder, "baseline", meaning, names["baseline"])
        found["baseline"] = names["baseline"]
    for name, meaning in (
        ("tolerance", "a relative error between 0 and 1, e.g. 1e-3"),
        ("min_own_share", "a share of the work between 0 and 1, e.g. 0.5"),
    ):
        if names.get(name) is not None:
            number = names[name]
            least = 0 if name == "min_own_share" else math.ulp(0.0)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number < 1:
                raise _wrong_type(folder, name, meaning, number)
            found[name] = float(number)
    if "certify" in names:
        cases = names["certify"]
        if not isinstance(cases, (list, tuple)) or not all(isinstance(case, Case) for case in cases):
            raise _wrong_type(folder, "certify", 'a list of sizes, e.g. certify = [Case("prime", {"N": 509})]', cases)
        found["certify"] = tuple(cases)
    if "writes" in names:
        found["writes"] = _writes(folder, names["writes"])
    return found


def _check_spelling(folder: Path, names: Mapping[str, Any]) -> None:
    """Refuses a value whose name is close to an option that is not set: it would be ignored in silence."""
    left = [option for option in (*_SWITCHES, *_VALUES) if option not in names]
    for name, value in names.items():
        near = difflib.get_close_matches(name, left, n=1, cutoff=0.85)
        if near and isinstance(value, (bool, int, float, str, tuple, list)) and not name.startswith("_"):
            raise TaskError(
                f"{folder / 'task.py'}: {name!r} is no option of a task; did you mean {near[0]}? "
                f"Otherwise give it another name, e.g. _{name}"
            )


def _writes(folder: Path, writes: Any) -> tuple[str, ...]:
    if not isinstance(writes, (list, tuple)) or not all(isinstance(name, str) for name in writes):
        raise _wrong_type(folder, "writes", 'a tuple of parameter names of reference, e.g. writes = ("out",)', writes)
    return tuple(writes)


def _wrong_type(folder: Path, name: str, expected: str, got: Any) -> TaskError:
    return TaskError(f"{folder / 'task.py'}: {name} must be {expected}; got {type(got).__name__} {got!r:.80}")


# --- checks ----------------------------------------------------------------------------------------------------------


def _check_writes(task: Task) -> None:
    unknown = [name for name in task.writes if name not in task.parameters]
    if unknown or len(set(task.writes)) != len(task.writes):
        raise TaskError(
            f"{task.folder / 'task.py'}: writes must name different parameters of reference "
            f"({', '.join(task.parameters)}), got {', '.join(task.writes)}"
        )


def _check_cases(task: Task) -> None:
    names = [case.name for case in (*task.cases, *task.certify)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TaskError(f"task {task.name}: case names must differ, got {', '.join(twice)} more than once; rename them")
    if not any(case.role == "tune" for case in task.cases):
        raise TaskError(
            f"task {task.name}: expected at least one case with role='tune' (they guide the search), "
            f"got {len(task.cases)} cases without one; leave role out for at least one case"
        )
    for case in (*task.cases, *task.certify):
        if case.dtype not in ITEMSIZE:
            raise TaskError(
                f"task {task.name}, case {case.name!r}: unknown dtype {case.dtype!r}; known: {', '.join(ITEMSIZE)}"
            )


def _check_kernel(task: Task) -> None:
    """Checks that kernel.py is Python and defines the entry at its top level.  It is parsed, not run.

    Without kernel.py the reference must be a function, and nothing may depend on a seed kernel.
    """
    if task.seed_source is None:
        problem = 'reference = "seed"' if task.reference is None else "lenient = True" if task.lenient else ""
        if problem:
            raise TaskError(
                f"{task.folder / 'task.py'}: expected a kernel.py beside it for {problem}, got none; add the kernel, "
                "or give the reference as a function and leave lenient out"
            )
        return
    tree = parse_kernel(task.seed_source, str(task.folder / "kernel.py"))
    functions = {node.name: is_kernel(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    if functions.get(task.entry) is False:
        return
    hosts = [name for name, of_device in functions.items() if not of_device]
    if task.entry in functions:
        by = launchers(tree, task.entry)
        what, choices = "is a kernel, not a host function", f"which is launched by {', '.join(by)}" if by else ""
    else:
        what, choices = "is not a function of kernel.py", f"which defines {', '.join(hosts) or 'no host function'}"
    raise TaskError(
        f"task {task.name}: entry {task.entry!r} {what}{', ' if choices else ''}{choices}; "
        "set entry to the host function that launches the kernels"
    )


def _check_case(task: Task, case: Case) -> None:
    import torch

    small = case.on_cpu()
    where = f"task {task.name}, case {case.name!r}"
    first, again, other = (_draw(task, small, where, seed) for seed in (0, 0, 1))
    check_arguments(task, case, first)
    if not _same(first, again):
        raise TaskError(
            f"{where}: inputs() gave different values for the same seed; draw all random numbers with "
            "generator=generator (and device=generator.device)"
        )
    if any(isinstance(a, torch.Tensor) and a.numel() for a in first) and _same(first, other):
        raise TaskError(
            f"{where}: inputs() gave the same values for two seeds, so a kernel could learn the answer by heart; "
            "draw them with generator=generator"
        )
    if task.reference is not None:
        _check_reference(task, first, where)
    _check_counts(task, case, where)


def _check_reference(task: Task, first: Sequence[Any], where: str) -> None:
    import torch

    structure, outputs = run_reference(task, first, where=where)
    wide_structure, wide = run_reference(task, first, double=True, where=where)
    if not outputs:
        raise TaskError(f"{where}: reference returns no tensor and writes is empty; return one or declare writes")
    if (structure, [o.shape for o in outputs]) != (wide_structure, [o.shape for o in wide]):
        raise TaskError(f"{where}: reference gives other shapes for float64 inputs; it must not depend on the dtype")
    if not all(bool(torch.isfinite(output.double()).all()) for output in (*outputs, *wide)):
        raise TaskError(
            f"{where}: reference gives NaN or infinity on its own inputs, nothing can be compared with that; "
            "change inputs() so that the result is finite"
        )


def _draw(task: Task, case: Case, where: str, seed: int) -> tuple[Any, ...]:
    import torch

    with blamed(task.folder / "task.py", f"{where}: inputs(case, generator) raised"):
        drawn = task.inputs(case, torch.Generator().manual_seed(seed))
    if not isinstance(drawn, tuple):
        raise TaskError(
            f"{where}: inputs must return a tuple, one item per argument of {task.entry}; got {type(drawn).__name__}"
            + ("; write `return (x,)` for a single tensor" if isinstance(drawn, torch.Tensor) else "")
        )
    return drawn


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(type(x) is type(y) and _equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(x: Any, y: Any) -> bool:
    """Whether two inputs are equal; NaN equals NaN here."""
    import torch

    if not isinstance(x, torch.Tensor):
        return bool(x == y or (x != x and y != y))
    if torch.equal(x, y):
        return True
    alike = x.is_floating_point() and (x.shape, x.dtype) == (y.shape, y.dtype)
    return alike and torch.allclose(x.double(), y.double(), rtol=0, atol=0, equal_nan=True)


def check_arguments(task: Task, case: Case, arguments: Sequence[Any]) -> None:
    """Raises TaskError unless the arguments of a case fit the entry and can be in a plan."""
    import torch

    where = f"task {task.name}, case {case.name!r}"
    for position, value in enumerate(arguments):
        if isinstance(value, torch.Tensor):
            if _dtype_name(value) not in ITEMSIZE or value.device.type != "cpu":
                raise TaskError(
                    f"{where}: input {position} must be on generator.device with one of the dtypes "
                    f"{', '.join(ITEMSIZE)}; got {value.dtype} on {value.device}"
                )
        elif value is not None and not isinstance(value, (bool, int, float, str)):
            raise TaskError(
                f"{where}: input {position} must be a tensor, a number, a string or None, got {type(value).__name__}"
            )
    counts = {} if task.reference is None else {"reference": _parameters(task.reference)}
    if task.seed_source is not None:
        counts["kernel.py"] = _entry_parameters(_entry_node(task.seed_source, task.entry))
    for label, (least, most) in counts.items():
        if not least <= len(arguments) <= most:
            raise TaskError(
                f"{where}: inputs returns {len(arguments)} values, but {label} "
                f"takes {least if least == most else f'{least} to {most}'} positional arguments; make them agree"
            )
    for name, position in zip(task.writes, task.written, strict=True):
        optional = position < len(arguments) and arguments[position] is None
        if not optional and (position >= len(arguments) or not isinstance(arguments[position], torch.Tensor)):
            raise TaskError(f"{where}: writes names {name!r}, which must be a tensor among the inputs")


def _parameters(function: Callable[..., Any]) -> tuple[int, float]:
    """Least and most number of positional arguments."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 0, math.inf
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional), len(positional)


def _entry_parameters(entry: ast.FunctionDef) -> tuple[int, float]:
    positional = len(entry.args.posonlyargs) + len(entry.args.args)
    return positional - len(entry.args.defaults), math.inf if entry.args.vararg else positional


def _entry_node(source: str, entry: str) -> ast.FunctionDef:
    return next(n for n in syntax.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == entry)


def _check_counts(task: Task, case: Case, where: str) -> None:
    for name, count in (("flops", task.flops), ("bytes", task.bytes)):
        if count is None:
            continue
        with blamed(task.folder / "task.py", f"{where}: {name}(case) raised"):
            value = count(case)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise TaskError(f"{where}: {name}(case) must return a non-negative number, got {value!r}")


# --- the reference ---------------------------------------------------------------------------------------------------


def run_reference(
    task: Task, arguments: Sequence[Any], *, double: bool = False, copy: bool = True, where: str = ""
) -> tuple[str, list[torch.Tensor]]:
    """Structure and tensors of `task.reference` on copies of `arguments`: what it returns, then what it writes.

    double: floating tensors are upcast to float64 first.
    copy: without it the reference works on the arguments themselves, which must not be used afterwards.
    `where` begins the messages of errors.

    The structure is "tensor", "tuple", "list", "none" or "dict:k1,k2", as in a LaunchPlan.  Raises TaskError if the
    reference raises or returns anything but tensors.
    """
    import torch

    where = where or f"task {task.name}"
    if task.reference is None:
        raise TaskError(f"{where}: its reference is the seed kernel, which this process cannot call")
    copies = [_copy(a, double) if isinstance(a, torch.Tensor) and (copy or double) else a for a in arguments]
    precision = " in float64" if double else ""
    hint = "; take dtypes from the arguments, the float64 oracle upcasts them" if double else ""
    with (
        blamed(task.folder / "task.py", f"{where}: reference failed{precision} on its own inputs:", hint),
        torch.no_grad(),
    ):
        result = task.reference(*copies)
    structure, outputs = _flatten(result, where)
    return structure, outputs + [copies[i] for i in task.written if copies[i] is not None]


def _copy(tensor: torch.Tensor, double: bool) -> torch.Tensor:
    import torch

    return tensor.to(torch.float64 if double and tensor.is_floating_point() else tensor.dtype, copy=True)


def _flatten(result: Any, where: str) -> tuple[str, list[torch.Tensor]]:
    import torch

    outputs: Sequence[Any]
    if result is None:
        structure, outputs = "none", ()
    elif isinstance(result, torch.Tensor):
        structure, outputs = "tensor", (result,)
    elif isinstance(result, (tuple, list)):
        structure, outputs = ("tuple" if isinstance(result, tuple) else "list"), result
    elif isinstance(result, dict):
        structure, outputs = "dict:" + ",".join(map(str, result)), list(result.values())
    else:
        structure, outputs = "", (result,)
    for output in outputs:
        if not isinstance(output, torch.Tensor) or _dtype_name(output) not in ITEMSIZE:
            got = output.dtype if isinstance(output, torch.Tensor) else type(output).__name__
            raise TaskError(
                f"{where}: reference must return a tensor, or a tuple, list or dict of tensors "
                f"({', '.join(ITEMSIZE)}); got {got}"
            )
    return structure, list(outputs)


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

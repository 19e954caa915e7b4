"""Writes task folders from captured calls: the kernel part of a file, an entry that makes the calls, and their inputs.

    kernel.py    the kernel part as it is, and below it the entry: one function that makes any of the captured calls.
                 If a function of the kernel part does that already, it is the entry
    calls.json   the calls: the arguments of the entry, and how tensors are drawn
    *.npy        values that are kept
    task.py      reads calls.json; the reference is the seed kernel, or a PyTorch function with an entry like it

The text of task.py holds the digest of the other files, so that the task's hash covers them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core import syntax
from evo.core.errors import TaskError
from evo.core.records import Case
from evo.core.settings import MIN_OWN_SHARE
from fitness.frontend.plan import ITEMSIZE
from fitness.suites.values import draw, is_fresh

if TYPE_CHECKING:
    import torch

HOLDOUT_FROM = 3  # calls; from this many on the last is a holdout

_BY_SEED = """reference = "seed"
allow_delegation = True
min_own_share = {min_own_share}
lenient = True"""

_TASK = '''"""{title}; right is what {right} computes.  Generated."""

from pathlib import Path

from fitness.suites.folder import CapturedCalls

{reference}

calls = CapturedCalls(Path(__file__).parent, "{digest}")
entry = "{entry}"
cases = calls.cases
writes = {writes!r}
stress = {stress}
deterministic = {deterministic}


def inputs(case, generator):
{says}    return calls.inputs(case, generator)
'''


class CapturedCalls:
    """What a generated task.py reads: its cases, and the arguments of each."""

    def __init__(self, folder: Path, digest: str) -> None:
        """Reads `folder`.  Raises TaskError if its files are not those that `digest` was taken of."""
        self._folder = folder
        found = _digest(folder)
        if found != digest:
            raise TaskError(
                f"{folder}: calls.json or a file of values changed since task.py was generated (digest {digest} then, "
                f"{found} now); generate the folder again"
            )
        self._calls = json.loads((folder / "calls.json").read_text(encoding="utf-8"))

    @property
    def cases(self) -> list[Case]:
        return [
            Case(
                f"call{number}",
                {"call": number},
                dtype=call["dtype"],
                role=call["role"],
                cpu_axes={"call": call["on_cpu"]} if "on_cpu" in call else None,
                weight=call.get("weight", 1.0),
            )
            for number, call in enumerate(self._calls)
        ]

    def inputs(self, case: Case, generator: torch.Generator) -> tuple[Any, ...]:
        arguments = self._calls[case.axes["call"]]["arguments"]
        return tuple(draw(a["tensor"], generator, self._folder) if "tensor" in a else a["value"] for a in arguments)


def write_folder(
    folder: Path, title: str, kernels: str, calls: Sequence[Mapping[str, Any]], values: Path, function: str = ""
) -> None:
    """Makes `folder` (emptied before) from captured calls.

    calls: a call may say its "role", "weight", and by "on_cpu" the number of the call that stands for it on a CPU.
    values: the folder of their kept values; function: the source of the function that is the reference; "" if the seed
    kernel is the reference.  Raises TaskError if none of the calls has an input that can be drawn again.
    """
    if function:  # a kernel could do without what is the same for all seeds
        calls = [_with(_scaled, call) for call in calls]
    usable = drawable(calls)
    if not usable:
        raise TaskError("no call has an input that may be drawn afresh: all are constants, indices or tables")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    forms: list[Mapping[str, Any]] = []
    for call in usable:
        if call["form"] not in forms:
            forms.append(call["form"])
    entry = _called(kernels, forms) if kernels else "entry"
    if not entry:
        entry = "entry"
        while entry in kernels:
            entry += "_"
        kernels = _with_entry(kernels, forms, entry)
    if kernels:  # else it is a task of a reference alone
        (folder / "kernel.py").write_text(kernels, encoding="utf-8")
    for call in usable:
        for file in (a["tensor"]["file"] for a in call["arguments"] if "file" in a.get("tensor", {})):
            shutil.copy(values / file, folder / file)
    written = [_call(number, call, usable, forms) for number, call in enumerate(usable)]
    (folder / "calls.json").write_text(json.dumps(written), encoding="utf-8")
    fields = {"title": title, "entry": entry, "deterministic": "atomic" not in kernels}
    if function:
        fields["reference"] = _with_entry(function, forms, "reference")
    (folder / "facts.json").write_text(json.dumps(fields), encoding="utf-8")
    write_task(folder, ())


def write_task(
    folder: Path, writes: Sequence[str], *, stress: bool = False, min_own_share: float = MIN_OWN_SHARE, says: str = ""
) -> None:
    """Writes task.py of a folder made by `write_folder`.

    writes: names of the arguments written in place.  says: what prompts say of the task; the docstring of its inputs.
    """
    fields = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    by_seed = {"reference": _BY_SEED.format(min_own_share=min_own_share)}
    right = "its function" if "reference" in fields else "the kernel itself"
    fields = by_seed | fields | {"right": right, "writes": tuple(writes), "stress": stress}
    fields["says"] = f'    """{says}"""\n' if says else ""
    text = _TASK.format(**fields, digest=_digest(folder))
    (folder / "task.py").write_text(text, encoding="utf-8")


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in [folder / "calls.json", *sorted(folder.glob("*.npy"))]:
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


# --- calls -----------------------------------------------------------------------------------------------------------


def drawable(calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the calls of which a task can be made: with inputs that differ between seeds."""
    return [fresh for call in calls if (fresh := _with_fresh_input(call)) is not None]


def _with_fresh_input(call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the call with at least one argument that differs between seeds, None if it cannot have one.

    If nothing was random, constant floating tensors are drawn from half to one and a half of the constant.  Without
    such tensors, kept values are shuffled.
    """
    for candidate in (call, _with(_scaled, call), _with(_shuffled, call)):
        if any(is_fresh(a["tensor"]) for a in candidate["arguments"] if "tensor" in a):
            return candidate
    return None


def _with(changed: Callable[[Mapping[str, Any]], Mapping[str, Any]], call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the call with its tensors changed, except for empty ones."""
    arguments = [
        {"tensor": changed(a["tensor"])} if "tensor" in a and 0 not in a["tensor"]["shape"] else a
        for a in call["arguments"]
    ]
    return {**call, "arguments": arguments}


def _scaled(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    if tensor["rule"] != "constant" or "float" not in tensor["dtype"]:
        return tensor
    value = float(tensor["value"]) or 1.0
    return {**tensor, "rule": "quantiles", "values": sorted((0.5 * value, 1.5 * value))}


def _shuffled(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**tensor, "rule": "shuffled"} if tensor["rule"] == "kept" else tensor


def _call(
    number: int, call: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], forms: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns one call in the form that `CapturedCalls` reads; the arguments are those of the entry."""
    mine = forms.index(call["form"])
    arguments: list[Mapping[str, Any]] = [{"value": mine}] if len(forms) > 1 else []
    for index, form in enumerate(forms):
        arguments += call["arguments"] if index == mine else [{"value": None}] * len(form["slots"])
    dtypes = [a["tensor"]["dtype"] for a in call["arguments"] if "tensor" in a]
    floating = [d for d in dtypes if "float" in d and d in ITEMSIZE]
    if any(other.get("timed") for other in calls):
        holdout = not call.get("timed")  # the tests' own calls are small, and say whether a kernel is right
    else:
        repeated = any(other["form"] == call["form"] for other in calls[:number])
        holdout = number == len(calls) - 1 and len(calls) >= HOLDOUT_FROM and repeated
    found = {
        "arguments": arguments,
        "dtype": floating[0] if floating else "float32",
        "role": call.get("role") or ("holdout" if holdout else "tune"),
    }
    return found | {name: call[name] for name in ("weight", "on_cpu") if name in call}


# --- the entry -------------------------------------------------------------------------------------------------------


def _called(kernels: str, forms: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of the function whose own arguments and result are those of all calls; "" if there is none."""
    (form, *others) = forms
    if others or form["result"] != "result":
        return ""
    for node in syntax.parse(kernels).body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            given = node.args
            names = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
            plain = not (given.vararg or given.kwonlyargs or given.kwarg) and names == form["slots"]
            if plain and form["call"] == f"{node.name}({', '.join(names)})":
                return node.name
    return ""


def _with_entry(kernels: str, forms: Sequence[Mapping[str, Any]], name: str) -> str:
    """Returns the source with an entry of that name."""
    if len(forms) == 1:
        header, body = ", ".join(forms[0]["slots"]), _body(forms[0], 0, "    ")
    else:
        slots = [slot for index, form in enumerate(forms) for slot in _slots(form, index)]
        header = ", ".join(["form", *slots])
        body = ""
        for index, form in enumerate(forms[:-1]):
            body += f"    if form == {index}:\n{_body(form, index, '        ')}"
        body += _body(forms[-1], len(forms) - 1, "    ")
    imported = "" if "import torch\n" in kernels else "import torch\n"
    return f"{imported}{kernels.rstrip()}\n\n\ndef {name}({header}):\n{body}"


def _slots(form: Mapping[str, Any], index: int) -> list[str]:
    """Returns the names of the slots of one form among those of all forms."""
    return [f"{slot}_{index}" for slot in form["slots"]]


def _body(form: Mapping[str, Any], index: int, indent: str) -> str:
    call = form["call"] if indent == "    " and index == 0 else _renamed(form, index)
    if not form["result"]:
        return f"{indent}{call}\n{indent}return None\n"
    if form["result"] == "result":
        return f"{indent}return {call}\n"
    return f"{indent}result = {call}\n{indent}return {form['result']}\n"


def _renamed(form: Mapping[str, Any], index: int) -> str:
    names = dict(zip(form["slots"], _slots(form, index), strict=True))
    tree = syntax.parse_expression(form["call"])
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
    return ast.unparse(tree)

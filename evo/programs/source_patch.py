"""Puts a kernel that a run found into the user's source file; every other byte of the file stays.

The task's kernel file was made of the user's source, so definitions of one name correspond.  The function that was
captured gets the new body.  Kernels and helpers that differ are replaced if nothing else uses them; else the new ones
get new names and stand above the function.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst

from evo.core.errors import ConfigError
from evo.core.text import quoted
from evo.programs.apply import Appliable, header, meaning
from evo.programs.host_call import function_of
from evo.programs.origin import FUNCTION, Origin
from evo.storage.best import diff
from operators.combine import Definition, bound_names, definitions, global_names, renamed, unused
from operators.source import bindings, code, names, parameters, walk

IMPORT_S = 300.0  # importing torch, Triton and the user's package takes seconds, on a busy machine more
_OTHERWISE = "use --package DIR, which replaces it while the program runs"


def patched(finding: Appliable, file: Path) -> tuple[bytes, bytes]:
    """Returns the bytes of the user's file before and after.

    Raises ConfigError if the file is not the captured one, or if the new kernel cannot be put into it.  Also if the
    result cannot be imported, or lacks a public name.
    """
    before = _captured(finding.origin, file)
    module = cst.parse_module(before)
    seed = cst.parse_module(finding.task.needed_seed)
    _check_same(finding, module, seed)
    after = _Patch(finding, module, seed, file).bytes()
    _check_names(before, after, file)
    if finding.origin.module != "__main__":
        _check_import(finding.origin, file, after)
    return before, after


def diff_of(file: Path, before: bytes, after: bytes) -> str:
    """Returns the unified diff of a file, as `patch -p1` and `git apply` take it."""
    old, new = (text.decode("utf-8", "surrogateescape") for text in (before, after))
    return diff(old, new, f"a/{file.name}", f"b/{file.name}")


def write_file(file: Path, after: bytes) -> None:
    """Writes the new bytes in one step, with the file's permissions.  Raises ConfigError if it cannot be written."""
    new = file.with_name(f".{file.name}.evo")
    try:
        new.write_bytes(after)
        shutil.copymode(file, new)
        new.replace(file)
    except OSError as error:
        raise ConfigError(f"--write: expected to write {file}, got: {error}; check its permissions") from error


def _captured(origin: Origin, file: Path) -> bytes:
    try:
        before = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--to: expected the file that was captured, got: {error}; it was {origin.file}") from error
    if hashlib.sha256(before).hexdigest() != origin.sha256:
        raise ConfigError(
            f"--to: expected {origin.file} as it was captured, got {file}, which is another file or was changed since; "
            "restore it, or capture the program again and search again"
        )
    return before


# --- what corresponds ------------------------------------------------------------------------------------------------


def _check_same(finding: Appliable, module: cst.Module, seed: cst.Module) -> None:
    """Raises ConfigError if what was captured is not, word for word, in the task's kernel file."""
    origin, task = finding.origin, finding.task
    name = origin.last
    theirs = _function(module, origin.attribute)
    ours = _function(seed, name)
    if theirs is None or ours is None or meaning(theirs.body) != meaning(ours.body):
        raise ConfigError(
            f"--to: expected {name} in the task's kernel.py as in {origin.file}, but the task has it in another form; "
            f"{_OTHERWISE}"
        )
    if origin.kind == FUNCTION:
        finding.check_entry()
        _check_values(finding)
        return
    new = function_of(finding.source, task.entry)
    if meaning(new) != meaning(function_of(task.needed_seed, task.entry)):
        raise ConfigError(
            f"--to: expected a new {name} and the launch around it as it was, but the launch differs too, and it is in "
            f"code that was not captured; {_OTHERWISE}"
        )


def _check_values(finding: Appliable) -> None:
    """Raises ConfigError if the new function may return other plain values: only its tensors were verified.

    Such values (a block size for the backward pass) must come from the same statements, and from functions that stay.
    """
    wanted = {i for call in finding.origin.calls for i in _value_positions(call.result)}
    if not wanted:
        return
    sources = finding.task.needed_seed, finding.source
    seen = []
    for source in sources:
        function = function_of(source, finding.origin.last)
        results = [n.value for n in walk(function) if isinstance(n, cst.Return) and n.value is not None]
        parts = [_element(result, i) for result in results for i in sorted(wanted)]
        lines = {name: _assigned(function, name) for part in parts for name in names(part)}
        used = {name for of in lines.values() for line in of for name in names(line)}
        own = {name: d.text for d in definitions(cst.parse_module(source)) for name in d.names}
        reached = _reached({n: d for d in definitions(cst.parse_module(source)) for n in d.names}, used)
        texts = {name: [code(line) for line in of] for name, of in lines.items()}
        seen.append((list(map(code, parts)), texts, {name: own[name] for name in reached}))
    if seen[0] != seen[1]:
        raise ConfigError(
            f"--to: {finding.origin.last} returns plain values too, and the new one computes them otherwise; "
            f"{_OTHERWISE} and returns them as the original did"
        )


def _value_positions(result: Any) -> list[int]:
    """Returns the positions of plain values in the structure of a result; 0 for one that is nested or alone."""
    if not result or "tensor" in result:
        return []
    parts = next((result[kind] for kind in ("tuple", "list") if kind in result), None)
    if parts is None:
        return [] if result == {"value": None} else [0]
    return [i for i, part in enumerate(parts) if "tensor" not in part and part != {"value": None}]


def _element(result: cst.BaseExpression, position: int) -> cst.CSTNode:
    """Returns an element of a returned tuple; all of another expression."""
    if isinstance(result, (cst.Tuple, cst.List)) and position < len(result.elements):
        return result.elements[position].value
    return result


def _assigned(function: cst.FunctionDef, name: str) -> list[cst.CSTNode]:
    """Returns the statements of a function that bind a name."""
    kinds = (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr)
    return [n for n in walk(function) if isinstance(n, kinds) and name in bindings(_scope(n))]


def _scope(node: Any) -> cst.Module:
    statement = cst.SimpleStatementLine([cst.Expr(node) if isinstance(node, cst.NamedExpr) else node])
    return cst.Module([node if isinstance(node, cst.For) else statement])


def _function(module: cst.Module, attribute: str) -> cst.FunctionDef | None:
    """Returns the function of that qualified name; None without one, or with several."""
    body: Sequence[Any] = module.body
    *classes, name = attribute.split(".")
    for owner in classes:
        found = [n for n in body if isinstance(n, cst.ClassDef) and n.name.value == owner]
        if len(found) != 1:
            return None
        body = found[0].body.body
    functions = [n for n in body if isinstance(n, cst.FunctionDef) and n.name.value == name]
    return functions[0] if len(functions) == 1 else None


# --- the patch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """The new kernel file as it is used: what stays the user's, what replaces it, what is added."""

    replaced: dict[str, cst.FunctionDef]  # by name in the user's file
    added: list[cst.BaseStatement]
    imports: list[str]


class _Patch:
    def __init__(self, finding: Appliable, module: cst.Module, seed: cst.Module, file: Path) -> None:
        self._finding, self._module, self._file = finding, module, file
        self._target = finding.origin.attribute.rpartition(".")[2]
        self._users = {name: d for d in definitions(module) for name in d.names}
        self._seeds = {name: d for d in definitions(seed) for name in d.names}

    def bytes(self) -> bytes:
        """Returns the file with the new code."""
        new = self._renamed()
        use = self._use(new)
        if not use.replaced:
            raise ConfigError(f"--to: the new kernel is the one in {self._file} already; nothing is to be changed")
        return self._module.visit(_Writer(self._finding, use)).bytes

    def _renamed(self) -> cst.Module:
        """Returns the new kernel file with names that mean something else in the user's file made different."""
        new = cst.parse_module(self._finding.source)
        taken = {n.value for n in walk(self._module) if isinstance(n, cst.Name)}
        taken |= {n.value for n in walk(new) if isinstance(n, cst.Name)}
        table = {}
        for name, definition in self._needed(new).items():
            if name in self._users and not self._stays(name, definition) and not self._replaces(name, definition):
                if definition.is_import:
                    raise ConfigError(
                        f"--to: the new code imports {name}, which means something else in {self._file}; {_OTHERWISE}"
                    )
                table[name] = unused(f"{name}_evo", taken)
        return cst.parse_module(renamed(self._finding.source, table))

    def _use(self, new: cst.Module) -> _Use:
        use = _Use({}, [], [])
        for name, definition in self._needed(new).items():
            if self._stays(name, definition):
                continue
            if self._replaces(name, definition):
                assert isinstance(definition.node, cst.FunctionDef)
                use.replaced[name] = definition.node
            elif definition.is_import:
                use.imports.append(definition.text)
            elif definition.node not in use.added:
                use.added.append(definition.node)  # type: ignore[arg-type]  # a statement
        return use

    def _needed(self, new: cst.Module) -> dict[str, Definition]:
        """Returns the definitions that what was captured uses, in the order of the file, by name."""
        own = {name: d for d in definitions(new) for name in d.names}
        seen = _reached(own, {self._target})
        return {name: d for name, d in own.items() if name in seen}

    def _stays(self, name: str, definition: Definition) -> bool:
        """Whether the user's file has it already: unchanged by the search, or the same import."""
        if name not in self._users:
            return False
        if definition.is_import:
            theirs = self._users[name]
            return name in self._seeds or _imported(theirs.node, name) == _imported(definition.node, name)
        return name in self._seeds and self._seeds[name].text == definition.text

    def _replaces(self, name: str, definition: Definition) -> bool:
        """Whether it takes the place of the user's definition: the captured function, or what only that uses."""
        if name == self._target:
            return True
        theirs = self._users.get(name)
        both = theirs is not None and isinstance(theirs.node, cst.FunctionDef) and name in self._seeds
        return both and isinstance(definition.node, cst.FunctionDef) and name in self._exclusive

    @functools.cached_property
    def _exclusive(self) -> set[str]:
        """Names of the user's file that only the captured function uses, directly or not."""
        target = _function(self._module, self._finding.origin.attribute)
        inner = {id(n) for n in walk(target)} if target is not None else set()
        words = set(re.findall(r"\w+", " ".join(map(_text, _package_files(self._finding.origin, self._file)))))
        used = _reached(self._users, global_names(target) if target is not None else set())
        found = {name for name in used if isinstance(self._users[name].node, cst.FunctionDef)} - words - {self._target}
        while found:
            own = inner | {id(n) for name in found for n in walk(self._users[name].node)}
            outside = {n.value for n in walk(self._module) if isinstance(n, cst.Name) and id(n) not in own}
            if not found & outside:
                break
            found -= outside
        return found


def _reached(own: Mapping[str, Definition], begin: Iterable[str]) -> set[str]:
    """Returns the names among `own` that these names, and what they stand for, use."""
    waiting, seen = list(begin), set()
    while waiting:
        name = waiting.pop()
        if name in own and name not in seen:
            seen.add(name)
            waiting += global_names(own[name].node)
    return seen


def _package_files(origin: Origin, file: Path) -> Iterator[Path]:
    """Yields the other Python files of the package that a file belongs to."""
    depth = origin.module.count(".") - (0 if file.name == "__init__.py" else 1)
    if depth >= 0 and "." in origin.module:
        root = file.resolve().parents[max(depth, 0)]
        yield from (path for path in sorted(root.rglob("*.py")) if path != file.resolve())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _imported(node: cst.CSTNode, name: str) -> str:
    """Returns what an import binds to a name, e.g. "triton.language"; "" for no import of it."""
    for part in walk(node):
        if isinstance(part, (cst.Import, cst.ImportFrom)) and not isinstance(part.names, cst.ImportStar):
            base = (
                "." * len(part.relative) + (code(part.module) if part.module else "")
                if isinstance(part, cst.ImportFrom)
                else ""
            )
            for alias in part.names:
                whole = code(alias.name)
                if (code(alias.asname.name) if alias.asname else whole.partition(".")[0]) == name:
                    return f"{base}.{whole}" if base else (whole if alias.asname else name)
    return ""


class _Writer(cst.CSTTransformer):
    """Writes the new code into the user's file."""

    def __init__(self, finding: Appliable, use: _Use) -> None:
        self._finding, self._use = finding, use
        self._path: list[str] = []
        *self._classes, self._target = finding.origin.attribute.split(".")

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._path.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._path.pop()
        return updated_node

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._path.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._path.pop()
        name = original_node.name.value
        new = self._use.replaced.get(name)
        if new is None or self._path != (self._classes if name == self._target else []):
            return updated_node
        if name == self._target and self._finding.origin.kind == FUNCTION:
            _check_parameters(updated_node, new)
            return updated_node.with_changes(body=new.body)
        if name == self._target:
            _check_parameters(updated_node, new)
        return updated_node.with_changes(body=new.body, params=new.params, **self._decorators(name, new))

    def _decorators(self, name: str, new: cst.FunctionDef) -> dict[str, Any]:
        """Returns the new decorators, if the search changed them: the task may lack those of the user's file."""
        old = function_of(self._finding.task.needed_seed, name)
        same = list(map(code, old.decorators)) == list(map(code, new.decorators))
        return {} if same else {"decorators": new.decorators}

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        changed = {*self._use.replaced, *self._classes[:1]} - ({self._target} if self._classes else set())
        first = next(i for i, node in enumerate(original_node.body) if changed & set(bound_names(node)))
        body: list[Any] = list(updated_node.body)
        comments = [cst.EmptyLine(comment=cst.Comment(f"# {line}".rstrip())) for line in header(self._finding)]
        added = self._use.added
        block = [_spaced(added[0], comments)] + [_spaced(n) for n in added[1:]] if added else []
        if not added:
            old = body[first].leading_lines
            body[first] = body[first].with_changes(leading_lines=[*old, *comments])
        body[first:first] = block
        imports = [cst.parse_statement(text) for text in dict.fromkeys(self._use.imports)]
        at = _after_imports(body, first)
        body[at:at] = imports
        return updated_node.with_changes(body=body)


def _spaced(node: Any, comments: Sequence[cst.EmptyLine] = ()) -> Any:
    """Returns a new top-level statement with two empty lines above it."""
    own = [line for line in node.leading_lines if line.comment is not None]
    empty = cst.EmptyLine(indent=False)
    return node.with_changes(leading_lines=[empty, empty, *comments, *own])


def _after_imports(body: Sequence[cst.CSTNode], before: int) -> int:
    """Returns the position after the last import above the position `before`, or after the docstring."""
    found = 0
    for i, node in enumerate(body[:before]):
        line = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        docstring = i == 0 and not bound_names(node) and isinstance(line, cst.Expr)
        if docstring or isinstance(line, (cst.Import, cst.ImportFrom)):
            found = i + 1
    return found


def _check_parameters(old: cst.FunctionDef, new: cst.FunctionDef) -> None:
    theirs, ours = ([p.name.value for p in parameters(f)] for f in (old, new))
    if theirs != ours:
        raise ConfigError(
            f"--to: expected {old.name.value}({', '.join(theirs)}), got a new one with ({', '.join(ours)}); "
            + _OTHERWISE
        )


# --- the result ------------------------------------------------------------------------------------------------------


def _check_names(before: bytes, after: bytes, file: Path) -> None:
    old, new = ({n for d in definitions(cst.parse_module(text)) for n in d.names} for text in (before, after))
    if lost := sorted(old - new):
        raise ConfigError(f"--to: the patched {file} would lack {', '.join(lost)}; {_OTHERWISE}")


_IMPORT = """
import importlib, importlib.util, json, sys
module, file, new, path = json.loads(sys.stdin.read())
sys.path[:0] = path
def names(source):
    parent = module.rpartition(".")[0]
    if parent:
        importlib.import_module(parent)
    sys.modules.pop(module, None)
    inside = [__import__("os").path.dirname(file)] if file.endswith("__init__.py") else None
    spec = importlib.util.spec_from_file_location(module, source, submodule_search_locations=inside)
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    spec.loader.exec_module(made)
    return {n for n in vars(made) if not n.startswith("_")}
print("before", flush=True)
old = names(file)
print("after", flush=True)
print(json.dumps(sorted(old - names(new))))
"""


def _check_import(origin: Origin, file: Path, after: bytes) -> None:
    """Imports the file as it is and as it would be, in a process of its own.

    Raises ConfigError if the patched file cannot be imported, or lacks a public name.
    """
    root = file.resolve().parents[origin.module.count(".") + (file.name == "__init__.py")]
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / file.name
        new.write_bytes(after)
        request = json.dumps([origin.module, str(file.resolve()), str(new), [str(root)]])
        try:
            done = subprocess.run(
                [sys.executable, "-c", _IMPORT], input=request, capture_output=True, text=True, timeout=IMPORT_S
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"--to: importing {origin.module} took more than {IMPORT_S:.0f} s; {_OTHERWISE}"
            ) from None
    printed = done.stdout.splitlines()
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        unpatched = "after" not in printed
        raise ConfigError(
            f"--to: expected that {origin.module} ({quoted(file)}) can be imported "
            f"{'as it is' if unpatched else 'with the new code'}, got: {error}; "
            + ("run evo apply with the Python of the program" if unpatched else _OTHERWISE)
        )
    if lost := json.loads(printed[-1]):
        raise ConfigError(f"--to: the patched {file} would lack {', '.join(lost)}; {_OTHERWISE}")

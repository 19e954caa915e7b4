"""Puts several kernels of one task into one file: a dispatcher calls one of them by the shapes of its arguments.

Names that stand for different things in two sources are made different; what is the same in both stays once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import Access, Assignment, MetadataWrapper, ScopeProvider

from operators.source import bindings, code, names, parameters, replace, walk

Form = tuple[str | None, tuple[int, ...]]  # of an argument: dtype (None: not looked at) and shape
Forms = tuple[Form | None, ...]  # of the arguments that are looked at; None for None


@dataclass(frozen=True)
class WonCases:
    """A kernel source, and the forms of arguments at which the dispatcher calls it."""

    source: str
    forms: tuple[Forms, ...]


@dataclass(frozen=True)
class Definition:
    """What a top-level statement binds, and its text without comments above it."""

    names: tuple[str, ...]
    text: str
    node: cst.CSTNode
    is_import: bool


def definitions(module: cst.Module) -> list[Definition]:
    """Returns the top-level statements that bind names, in order: imports, constants, functions and classes."""
    found = []
    for node in module.body:
        bound = bound_names(node)
        if bound:
            line = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
            is_import = isinstance(line, (cst.Import, cst.ImportFrom)) or isinstance(node, cst.Try)
            found.append(Definition(tuple(bound), _bare_text(node), node, is_import))
    return found


def bound_names(node: cst.CSTNode) -> list[str]:
    """Returns the names that a top-level statement binds: [] for a docstring or `if __name__ == "__main__"`."""
    match node:
        case cst.FunctionDef() | cst.ClassDef():
            return [node.name.value]
        case cst.SimpleStatementLine():
            return [name for small in node.body for name in _bound_by(small)]
        case cst.Try():
            return [name for inner in node.body.body for name in bound_names(inner)]
    return []


def _bound_by(node: cst.CSTNode) -> Iterable[str]:
    match node:
        case cst.Import() | cst.ImportFrom() if not isinstance(node.names, cst.ImportStar):
            return [code(a.asname.name if a.asname else a.name).partition(".")[0] for a in node.names]
        case cst.Assign():
            return [n for t in node.targets for n in sorted(names(t.target))]
        case cst.AnnAssign(target=cst.Name(value=name)) if node.value is not None:
            return [name]
    return []


def global_names(node: cst.CSTNode) -> set[str]:
    """Returns the names that a top-level statement reads or calls, or may: those that a function binds itself aside."""
    if not isinstance(node, cst.FunctionDef):
        return names(node)
    outside: list[cst.CSTNode] = [d.decorator for d in node.decorators]
    for parameter in parameters(node):
        outside += filter(None, (parameter.default, parameter.annotation and parameter.annotation.annotation))
    return (names(node.body) - bindings(node).keys()).union(*map(names, outside))


def _bare_text(node: cst.CSTNode) -> str:
    """Returns the text of a statement without the lines above it."""
    if "leading_lines" in node.__dataclass_fields__:
        node = node.with_changes(leading_lines=[])
    return code(node)


def renamed(source: str, table: Mapping[str, str]) -> str:
    """Returns the source with top-level names renamed, wherever they mean the top-level one."""
    if not table:
        return source
    wrapper = MetadataWrapper(cst.parse_module(source))
    scopes = [scope for scope in set(wrapper.resolve(ScopeProvider).values()) if scope is not None]
    top = next(scope.globals for scope in scopes)
    found: dict[int, tuple[cst.CSTNode, cst.CSTNode]] = {}
    for old, new in table.items():
        for assignment in top[old]:
            if isinstance(assignment, Assignment):
                _note(found, assignment.node, old, new)
            for access in assignment.references:
                if isinstance(access, Access):
                    _note(found, access.node, old, new)
    # A function is renamed below its other replacements: they are made first.
    return str(replace(wrapper.module, list(found.values())).code)


def _note(found: dict[int, tuple[cst.CSTNode, cst.CSTNode]], node: cst.CSTNode, old: str, new: str) -> None:
    """Notes the replacement of the name in an assignment or access."""
    while isinstance(node, cst.Attribute):
        node = node.value
    name = node.name if isinstance(node, (cst.FunctionDef, cst.ClassDef)) else node
    if isinstance(name, cst.Name) and name.value == old:
        found[id(name)] = (name, name.with_changes(value=new))


def unused(name: str, taken: set[str]) -> str:
    """Returns `name`, or with the first number behind it that makes it new; adds it to `taken`."""
    number, made = 2, name
    while made in taken:
        made, number = f"{name}_{number}", number + 1
    taken.add(made)
    return made


def dispatcher(
    entry: str, original: str, choices: Sequence[WonCases], arguments: Sequence[str], caller: str = ""
) -> str | None:
    """Returns one source: `entry` calls the kernel that is chosen for the forms of its arguments, else the original.

    arguments: the parameters that are looked at, in the order of the forms.  caller: a function that calls `entry`; the
    one of the original is kept.
    Returns None if the sources cannot be combined: an entry with `*args`, or one name imported from two modules.
    """
    taken: set[str] = {entry}
    blocks: list[str] = []
    imports: dict[str, str] = {"torch": "import torch"}  # by name: the text that binds it
    shared: dict[str, str] = {}  # text of the original's definitions, by name
    targets = []
    for position, source in enumerate([original, *(choice.source for choice in choices)]):
        module = cst.parse_module(source)
        taken |= {n.value for n in walk(module) if isinstance(n, cst.Name)} - {entry}
        table = {entry: unused(f"{entry}_original" if position == 0 else f"{entry}_{position}", taken)}
        same = _same(module, shared) - {entry}
        for definition in definitions(module):
            for name in definition.names:
                if definition.is_import:
                    if imports.setdefault(name, definition.text) != definition.text:
                        return None
                elif position and name not in same and name != entry:
                    table[name] = unused(f"{name}_{position}", taken)
        if position == 0:
            shared = {d.names[0]: d.text for d in definitions(module) if not d.is_import and len(d.names) == 1}
        targets.append(table[entry])
        text = cst.parse_module(renamed(source, table))
        kept = {table.get(name, name) for name in _bound(module)} - (same if position else set())
        kept.discard(caller)
        blocks += [_bare_text(d.node) for d in definitions(text) if not d.is_import and set(d.names) & kept]
    header = "\n".join(dict.fromkeys(imports.values()))
    dispatch = _dispatch(entry, original, choices, arguments, targets)
    calling = [d.text for d in definitions(cst.parse_module(original)) if d.names == (caller,)]
    return None if dispatch is None else "\n\n\n".join([header, *blocks, dispatch, *calling]) + "\n"


def _bound(module: cst.Module) -> set[str]:
    return {name for d in definitions(module) if not d.is_import for name in d.names}


def _same(module: cst.Module, shared: Mapping[str, str]) -> set[str]:
    """Returns the names that mean the same in the original: in their definitions, and in all that those use."""
    own = {d.names[0]: d for d in definitions(module) if not d.is_import and len(d.names) == 1}
    same = {name for name, d in own.items() if shared.get(name) == d.text}
    while lost := {name for name in same if (global_names(own[name].node) & own.keys()) - same}:
        same -= lost
    return same


def _dispatch(
    entry: str, original: str, choices: Sequence[WonCases], arguments: Sequence[str], targets: Sequence[str]
) -> str | None:
    """Returns the text of the shapes and of the function that chooses by them."""
    function = next(
        n for n in cst.parse_module(original).body if isinstance(n, cst.FunctionDef) and n.name.value == entry
    )
    given = function.params
    if isinstance(given.star_arg, cst.Param) or given.star_kwarg is not None:
        return None
    by_name = {p.name.value for p in given.kwonly_params}
    call = ", ".join(f"{n}={n}" if n in by_name else n for n in (p.name.value for p in parameters(function)))
    with_dtype = any(form and form[0] for choice in choices for forms in choice.forms for form in forms)
    optional = {i for choice in choices for forms in choice.forms for i, form in enumerate(forms) if form is None}
    looked_at = ", ".join(_looked_at(name, with_dtype, i in optional) for i, name in enumerate(arguments))
    constants = [f"{entry.upper()}_FORMS_{i} = {_forms(choice.forms)}" for i, choice in enumerate(choices, 1)]
    lines = [f"def {entry}({code(given)}):", f"    forms = ({looked_at},)"]
    for i, target in enumerate(targets[1:], 1):
        lines += [f"    if forms in {entry.upper()}_FORMS_{i}:", f"        return {target}({call})"]
    lines.append(f"    return {targets[0]}({call})")
    return "\n".join(constants) + "\n\n\n" + "\n".join(lines)


def _looked_at(name: str, with_dtype: bool, optional: bool) -> str:
    form = f"({name}.dtype, tuple({name}.shape))" if with_dtype else f"tuple({name}.shape)"
    return f"None if {name} is None else {form}" if optional else form


def _forms(forms: Sequence[Forms]) -> str:
    """Returns the forms as a tuple in Python."""
    texts = []
    for one in forms:
        parts = [
            "None" if form is None else f"(torch.{form[0]}, {form[1]!r})" if form[0] else repr(form[1]) for form in one
        ]
        texts.append(f"    ({', '.join(parts)},),\n")
    return "(\n" + "".join(texts) + ")"

"""Lets an answer keep definitions of its parents by name, and shows a parent without what its entry does not reach.

A line `# keep: NAME, NAME` at the left margin of an answer's code stands for the definitions of these names in kernel
A.  The definitions and imports that they need, and the answer lacks, come along.  Names are those of functions,
kernels, classes and constants at the top level.  If two parents define a name differently, `A.NAME` or `B.NAME` says
which.  A sentence that happens to begin with `keep:` is a comment.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator, Mapping, Sequence

from evo.core import syntax
from operators.llm.base import Unreadable

_KEEP = re.compile(r"^#[ \t]*keep[ \t]*:[ \t]*(?P<names>.*?)[ \t.]*$", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(r"(?:([A-Z])\.)?(\w+)")


class Source:
    """The top level of a parent: its definitions and imports by name, as they are written."""

    def __init__(self, text: str) -> None:
        """Raises SyntaxError and the like if `text` is not Python."""
        self.lines = text.split("\n")
        self.body = syntax.parse(text).body
        self.defined: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, ast.stmt] = {}
        for node in self.body:
            table = self.imports if isinstance(node, (ast.Import, ast.ImportFrom, ast.Try)) else None
            for name in _bound(node):
                if table is None:
                    self.defined.setdefault(name, []).append(node)
                else:
                    table.setdefault(name, node)

    def text(self, node: ast.stmt) -> str:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        return "\n".join(self.lines[first - 1 : node.end_lineno])

    def reached(self, names: Sequence[str], without: frozenset[str] = frozenset()) -> list[ast.stmt]:
        """Returns the statements that define `names` and all they need, except for names `without`, in their order."""
        found: set[int] = set()
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in seen or name in without:
                continue
            seen.add(name)
            nodes = self.defined.get(name, []) + ([self.imports[name]] if name in self.imports else [])
            for node in nodes:
                found.add(id(node))
                waiting += _mentioned(node) if node not in self.imports.values() else []
        return [node for node in self.body if id(node) in found]


def shown(source: str, entry: str) -> str:
    """Returns `source` without the top-level definitions that `entry` does not reach, and a line that names them.

    Imports, texts and statements that define nothing stay.  A source that is not Python is returned as it is.
    """
    try:
        parsed = Source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    if entry not in parsed.defined:
        return source
    reached = {id(node) for node in parsed.reached([entry])}
    dead = [
        (name, node)
        for name, nodes in parsed.defined.items()
        for node in nodes
        if id(node) not in reached and isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign))
    ]
    if not dead:
        return source
    drop = {line for _, node in dead for line in _lines(node)}
    kept = [line for number, line in enumerate(parsed.lines, 1) if number not in drop]
    names = ", ".join(dict.fromkeys(name for name, _ in dead))
    text = re.sub(r"\n{3,}", "\n\n\n", "\n".join(kept)).rstrip("\n")
    return f"{text}\n\n# Left out, because `{entry}` does not use it: {names}\n"


def fill_in(code: str, parents: Sequence[str]) -> str | Unreadable:
    """Returns `code` with what it keeps of `parents` (their sources, kernel A first), or why that is not clear."""
    if not _KEEP.search(code):
        return code
    try:
        answer = Source(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Unreadable(f"the code cannot be parsed ({error}), so what its `# keep:` lines stand for is not clear")
    own = frozenset({*answer.defined, *answer.imports})
    sources = _parsed(parents)
    imports: list[str] = []
    problems: list[str] = []
    there: set[str] = set(own)
    texts = {match["names"] for match in _KEEP.finditer(code)}
    named = {text: list(_names(text)) for text in texts if not _is_sentence(text, sources)}
    wanted = {name for names in named.values() for _, name in names}

    def definitions(match: re.Match[str]) -> str:
        if match["names"] not in named:
            return match[0]
        parts: list[str] = []
        for label, name in named[match["names"]]:
            if name in there and name not in own:  # named twice
                continue
            source = _source_of(label, name, sources, own)
            if isinstance(source, str):
                problems.append(source)
                continue
            # What another line or another kernel is named for is not taken along.
            for node in source.reached([name], frozenset(there | wanted) - {name}):
                text = source.text(node)
                there.update(_bound(node))
                (imports if node in source.imports.values() else parts).append(text)
        return "\n\n\n".join(parts)

    filled = _KEEP.sub(definitions, code)
    if problems:
        return Unreadable("; ".join(dict.fromkeys(problems)))
    return _with_imports(filled, list(dict.fromkeys(imports)))


def _is_sentence(text: str, sources: Mapping[str, Source | None]) -> bool:
    """Returns whether the text of a keep line is several words in a row, none of them defined by a parent."""
    in_a_row = any(len(part.split()) > 1 for part in text.split(","))
    return in_a_row and not any(s and name in s.defined for _, name in _names(text) for s in sources.values())


def _source_of(label: str, name: str, sources: Mapping[str, Source | None], own: frozenset[str]) -> Source | str:
    """Returns the parent whose definition of `name` is kept, or what is wrong with keeping it."""
    if name in own:
        return f"`# keep: {name}`: the answer defines {name} too; do one of both"
    if label and label not in sources:
        return f"`# keep: {label}.{name}`: there is no kernel {label}"
    having = {k: s for k, s in sources.items() if s is not None and name in s.defined and label in ("", k)}
    if not having:
        known = sorted({n for k, s in sources.items() if s is not None and label in ("", k) for n in s.defined})
        return f"`# keep: {name}`: no kernel defines {name}; they define {', '.join(known) or 'nothing'}"
    texts = {tuple(s.text(node) for node in s.defined[name]) for s in having.values()}
    if len(texts) > 1:
        choices = " or ".join(f"{k}.{name}" for k in having)
        return f"`# keep: {name}`: the kernels define it differently; write {choices}"
    return next(iter(having.values()))


def _parsed(parents: Sequence[str]) -> dict[str, Source | None]:
    """Returns the parents by their letters; None for one that is not Python."""
    found: dict[str, Source | None] = {}
    for letter, text in zip(string.ascii_uppercase, parents, strict=False):
        try:
            found[letter] = Source(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            found[letter] = None
    return found


def _names(text: str) -> Iterator[tuple[str, str]]:
    """Yields (letter of a kernel or "", name) of each name in a keep line."""
    for part in filter(None, re.split(r"[,\s`]+", text)):
        match = _NAME.fullmatch(part)
        yield (match[1] or "", match[2]) if match else ("", part)


def _with_imports(code: str, imports: Sequence[str]) -> str:
    """Returns `code` with imports before all others; behind those of `__future__`."""
    if not imports:
        return code
    lines = code.split("\n")
    at = 0
    for node in syntax.parse(code).body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not (text or future):
            break
        at = node.end_lineno or at
    return "\n".join([*lines[:at], *imports, *lines[at:]])


def _bound(node: ast.stmt) -> list[str]:
    """Returns the names that a top-level statement binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case ast.Try(body=body):
            return [name for part in body for name in _bound(part)]
        case ast.Assign(targets=targets):
            return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _mentioned(node: ast.stmt) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _lines(node: ast.stmt) -> range:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return range(first, (node.end_lineno or first) + 1)

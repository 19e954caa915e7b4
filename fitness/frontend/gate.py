"""Applies the static rules to a candidate's syntax tree, before any of its code runs.

The rules keep honest searches honest: they name the line and the fix, which a later stage cannot.  They are not a
sandbox.  What they let pass runs in one (`fitness/frontend/recording/job.py`), and its results are checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from evo.core import syntax
from evo.core.records import Finding
from fitness.frontend.rules.host import check_host
from fitness.frontend.rules.kernel import check_kernels
from fitness.frontend.rules.module import read_module
from fitness.frontend.rules.names import RULES
from fitness.frontend.rules.state import check_state
from fitness.frontend.rules.tensor import check_tensors

__all__ = ["RULES", "gate", "not_inherited"]

MAX_CHARACTERS = 200_000  # fifty times the longest kernel file we know.
MAX_NUMBER = 2**64  # Python refuses to print numbers of more than 4300 digits.
MAX_DEPTH = 100  # levels of the syntax tree; 40 branches of an elif chain need 40.

# Characters that can make a file read differently from what it runs: control characters other than tab and newline,
# lone carriage returns, line separators that Python does not count as lines; zero-width and direction marks, tags.
_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
# A coding line makes Python decode the file in another way than the gate read it (PEP 263: first two lines).
_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def gate(source: str, *, entry: str, allow_delegation: bool) -> list[Finding]:
    """The rules that `source` breaks, in the order of lines; empty if it passes.

    entry: the host function that the task calls.
    allow_delegation: permits torch operators on the host.
    The names of the rules are the keys of RULES.
    """
    tree = read_tree(source)
    if isinstance(tree, Finding):
        return [tree]

    findings: list[Finding] = []

    def report(rule: str, where: ast.AST, message: str) -> None:
        findings.append(Finding(rule, getattr(where, "lineno", 0), message))

    module = read_module(tree, entry)
    check_host(module, report, allow_delegation=allow_delegation)
    check_state(module, report)
    check_kernels(module, report)
    if not allow_delegation:
        check_tensors(module, report)
    return sorted(set(findings), key=lambda f: (f.line, f.rule, f.message))


def not_inherited(findings: Sequence[Finding], seed: Sequence[Finding]) -> list[Finding]:
    """The `findings` that the seed kernel does not have as well, on whichever line."""
    inherited = {(f.rule, f.message) for f in seed}
    # The message of "no-launch" lists the kernels, and a candidate may add some: so its message is not compared.
    launches = any(f.rule == "no-launch" for f in seed)
    return [f for f in findings if (f.rule, f.message) not in inherited and not (launches and f.rule == "no-launch")]


def read_tree(source: str) -> ast.Module | Finding:
    """The syntax tree of an untrusted source, or a Finding that says why it is not read."""
    if unreadable := _check_text(source):
        return unreadable
    try:
        tree = syntax.parse(source)
    except SyntaxError as error:
        return Finding("syntax", error.lineno or 0, f"not Python: {error.msg}")
    except (RecursionError, MemoryError):  # the parser's own limits
        return Finding("size", 0, "nested too deeply for Python's parser; flatten the expressions")
    # All readers of the tree recurse, and Python's versions differ in how deep they can.
    if (depth := _depth(tree)) > MAX_DEPTH:
        return Finding("size", 0, f"nested {depth} levels deep, at most {MAX_DEPTH} are read; flatten the expressions")
    return _check_literals(tree) or tree


def _check_literals(tree: ast.Module) -> Finding | None:
    """A literal that Python parses but cannot write back as text; later readers of the tree need that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > MAX_NUMBER:
            return Finding("size", node.lineno, "a number above 2**64; no kernel needs one")
        if isinstance(node, ast.JoinedStr):
            try:
                ast.unparse(node)
            except ValueError:  # Python 3.11: quotes or line ends inside the braces
                return Finding("syntax", node.lineno, "this f-string cannot be read back; simplify what it formats")
    return None


def _check_text(source: str) -> Finding | None:
    """Why a source is refused before it is parsed: its size, a character or its coding."""
    if len(source) > MAX_CHARACTERS:
        return Finding("size", 0, f"{len(source)} characters, at most {MAX_CHARACTERS} are read; shorten the source")
    lines = source.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if found := _ODD.search(line):
            return Finding("encoding", number, f"the character {found.group()!a} is not allowed; remove it")
        coding = _CODING.match(line) if number <= 2 else None
        if coding and coding.group(1).lower().replace("_", "-") not in ("utf-8", "utf8", "ascii"):
            return Finding("encoding", number, f"coding {coding.group(1)!r}: sources are UTF-8; remove the line")
    return None


def _depth(tree: ast.AST) -> int:
    """Levels of the tree, counted without recursion."""
    deepest, waiting = 0, [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    return deepest

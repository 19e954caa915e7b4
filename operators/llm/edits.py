"""Reads, writes and applies search/replace blocks, by which a model changes a long file.

    <<<<<<< SEARCH
    lines of the file
    =======
    lines that replace them
    >>>>>>> REPLACE

Blocks are applied in order.  The searched lines must be found at one place: as they are, else without regard to white
space at the ends of lines, else to how far all of them are indented.  What is found at several places is refused, never
guessed.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evo.core.records import candidate_id
from operators.llm.base import Unreadable

Lines = list[str]

_SEARCH = re.compile(r"^[ \t]*<{5,9} ?SEARCH[ \t]*:?[ \t]*\r?$", re.MULTILINE)
_DIVIDER = re.compile(r"^[ \t]*={5,9}[ \t]*\r?$", re.MULTILINE)
_REPLACE = re.compile(r"^[ \t]*>{5,9} ?REPLACE[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    search: Lines
    replace: Lines


@dataclass(frozen=True)
class Edits:
    """The blocks of an answer, and the characters from the first mark to the last."""

    edits: tuple[Edit, ...]
    span: tuple[int, int]


def has_edits(text: str) -> bool:
    return _SEARCH.search(text) is not None


def read_edits(text: str, start: int = 0) -> Edits | Unreadable:
    """The search/replace blocks in `text` from `start` on, of which there must be one at least."""
    found: list[Edit] = []
    opened = _SEARCH.search(text, start)
    assert opened is not None  # the caller saw one
    first = end = opened.start()
    while opened is not None:
        number = len(found) + 1
        divider = _DIVIDER.search(text, opened.end())
        closed = _REPLACE.search(text, divider.end()) if divider else None
        if divider is None or closed is None:
            missing = "=======" if divider is None else ">>>>>>> REPLACE"
            return Unreadable(f"edit {number} has no line `{missing}`: it is incomplete, or the answer was cut off")
        following = _SEARCH.search(text, opened.end())
        if following is not None and following.start() < closed.start():
            return Unreadable(f"edit {number} is not closed by `>>>>>>> REPLACE` before the next one begins")
        found.append(Edit(_between(text, opened, divider), _between(text, divider, closed)))
        end, opened = closed.end(), following
    return Edits(tuple(found), (first, end))


def apply_edits(source: str, edits: Sequence[Edit]) -> str | Unreadable:
    """`source` after all edits, or the reason why one of them cannot be applied without guessing."""
    lines = source.split("\n")
    for number, edit in enumerate(edits, 1):
        search = _trimmed(edit.search)
        if not search:
            return Unreadable(f"edit {number} searches for nothing; give the lines it replaces")
        place = _place(lines, search)
        if isinstance(place, str):
            return Unreadable(f"edit {number}: its lines ({_shown(search)}) {place}")
        start, shift = place
        lines[start : start + len(search)] = [shift(line) for line in _trimmed(edit.replace)]
    return "\n".join(lines)


def write_edits(source: str, result: str) -> str | None:
    """The shortest blocks that turn `source` into `result`; None if no blocks do."""
    lines, wanted = source.split("\n"), result.split("\n")
    matcher = difflib.SequenceMatcher(None, lines, wanted, autojunk=False)
    context = 1
    while True:
        groups = matcher.get_grouped_opcodes(context)
        text = "\n".join(_block(lines[g[0][1] : g[-1][2]], wanted[g[0][3] : g[-1][4]]) for g in groups)
        edits = read_edits(text) if text else None
        made = apply_edits(source, edits.edits) if isinstance(edits, Edits) else None
        if isinstance(made, str) and candidate_id(made) == candidate_id(result):
            return text
        if context >= len(lines):
            return None
        context *= 2


def _block(search: Lines, replace: Lines) -> str:
    return "\n".join(["<<<<<<< SEARCH", *search, "=======", *replace, ">>>>>>> REPLACE"])


# --- finding ---------------------------------------------------------------------------------------------------------

Shift = Callable[[str], str]  # from the indentation of the answer to that of the file.


def _place(lines: Lines, search: Lines) -> tuple[int, Shift] | str:
    """(first line, the shift that the replacement's lines need), or why there is no such place."""
    for same in (_equal, _equal_but_ends):
        places = [i for i in range(len(lines) - len(search) + 1) if same(lines[i : i + len(search)], search)]
        if len(places) == 1:
            return places[0], str
        if places:
            return f"are found at {len(places)} places; add lines around them until they are unique"
    shifted = [
        (i, shift)
        for i in range(len(lines) - len(search) + 1)
        if (shift := _shift(search, lines[i : i + len(search)])) is not None
    ]
    if len(shifted) == 1:
        return shifted[0]
    if shifted:
        return f"are found, otherwise indented, at {len(shifted)} places; copy them with their indentation"
    return "are not in the file; copy them from it exactly"


def _equal(found: Lines, search: Lines) -> bool:
    return found == search


def _equal_but_ends(found: Lines, search: Lines) -> bool:
    return [line.rstrip() for line in found] == [line.rstrip() for line in search]


def _shift(search: Lines, found: Lines) -> Shift | None:
    """Returns the change of indentation, the same for all lines, that makes `search` equal `found`."""
    ours = [line.rstrip() for line in textwrap.dedent("\n".join(search)).split("\n")]
    theirs = [line.rstrip() for line in textwrap.dedent("\n".join(found)).split("\n")]
    if ours != theirs:
        return None
    was, becomes = _indent(search), _indent(found)
    if becomes.startswith(was):
        more = becomes[len(was) :]
        return lambda line: more + line if line.strip() else line
    less = was[len(becomes) :]
    return lambda line: line.removeprefix(less)


def _indent(lines: Lines) -> str:
    """The indentation of the least indented line."""
    return min((line[: len(line) - len(line.lstrip())] for line in lines if line.strip()), key=len, default="")


def _between(text: str, one: re.Match[str], two: re.Match[str]) -> Lines:
    part = text[one.end() : two.start()].replace("\r\n", "\n")
    return part.removeprefix("\n").removesuffix("\n").split("\n") if part.strip("\n") else []


def _trimmed(lines: Lines) -> Lines:
    """Without blank lines at both ends."""
    filled = [i for i, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _shown(search: Lines) -> str:
    first = next(line.strip() for line in search if line.strip())
    return f"`{textwrap.shorten(first, 60, placeholder=' ...')}`" + (f" and {len(search) - 1} more" * (len(search) > 1))

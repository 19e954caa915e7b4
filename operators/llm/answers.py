"""Splits a model's answer into its reasoning, its plan and one block of code.

The rules, which `docs/prompts.md` states for those who write prompts or answers:

1. Reasoning before the answer (`<think>...</think>`, also with only the closing tag) is passed over.
2. A Markdown block around the whole answer is opened.
3. Blocks are fenced by three or more backticks or tildes; a block ends at a line of at least as many of the same and
   nothing else.  An open block at the end means that the answer was cut off.
4. Blocks in Python (`python`, `py`, `python3`, `triton`, or no language) count.  Of several, the last one with a Triton
kernel is taken, or the last one if none has a kernel.
5. Without any block the whole answer is taken, if it is Python and holds a Triton kernel.
6. The plan is the text before the code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from evo.core import syntax
from operators.llm.base import Unreadable

Span = tuple[int, int]  # first character, one past the last

_REASONING = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_REASONING_END = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_MARKDOWN = ("markdown", "md")
_PYTHON = ("", "python", "py", "python3", "py3", "triton")
_KERNEL = re.compile(r"@(?:triton\.)?jit\b")

_HINT = re.compile(r"\bhint[*_`]*:[\s*_`\[\"']*([a-z]+(?:-[a-z]+)*)", re.IGNORECASE)
_PLAN_MARK = re.compile(r"^[#>*_\-\s]*(?:plan|idea|approach|change)?[*_]*\s*:?[*_]*\s*", re.IGNORECASE)
NOTE_CHARACTERS = 400


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block: its language in lower case, and the place of its content."""

    language: str
    text: str
    span: Span


@dataclass(frozen=True)
class ParsedAnswer:
    """The parts of an answer, with their places in its text."""

    plan: str
    plan_span: Span
    code: str  # ends with a newline
    code_span: Span


def take_apart(text: str, wanted: re.Pattern[str] = _KERNEL) -> ParsedAnswer | Unreadable:
    """Plan and code of an answer that was to hold a whole file; `wanted` matches that file and no other code."""
    body = body_of(text)
    if isinstance(body, Unreadable):
        return body
    body = _opened_up(text, body)
    found = blocks(text, body)
    if isinstance(found, Unreadable):
        return found
    chosen = _chosen(found, text, body, wanted)
    if isinstance(chosen, Unreadable):
        return chosen
    start = _line_before(text, chosen.span[0]) if found else chosen.span[0]
    plan_span = _stripped(text, (body[0], start))
    return ParsedAnswer(text[slice(*plan_span)], plan_span, chosen.text, chosen.span)


def body_of(text: str) -> Span | Unreadable:
    """The place of the answer itself: behind the reasoning."""
    if not text.strip():
        return Unreadable("the answer is empty")
    ends = list(_REASONING_END.finditer(text))
    opened = _REASONING.match(text)
    if opened and not ends:
        return Unreadable("the answer ends within its reasoning: it was cut off")
    start = ends[-1].end() if ends else 0  # the last one: reasoning may speak of tags
    if not text[start:].strip():
        return Unreadable("the answer holds nothing but reasoning")
    return start, len(text)


def blocks(text: str, body: Span) -> list[CodeBlock] | Unreadable:
    """The fenced blocks in order."""
    found: list[CodeBlock] = []
    opened: re.Match[str] | None = None
    begin = 0
    for start, line in _lines(text, body):
        fence = _FENCE.fullmatch(line.rstrip())
        if fence is None:
            continue
        mark, info = fence["fence"], fence["info"].strip()
        if opened is None:
            if not (mark[0] == "`" and "`" in info):  # ```code``` on one line is not a fence
                opened, begin = fence, start + len(line)
        elif mark[0] == opened["fence"][0] and len(mark) >= len(opened["fence"]) and not info:
            found.append(_block(opened, text, begin, start))
            opened = None
    if opened is not None:
        return Unreadable("a block of code is never closed: the answer was cut off")
    return found


def note_of(plan: str) -> str:
    """The first line of a plan that says something, without its decoration, for the record of the proposal."""
    for line in plan.splitlines():
        words = _PLAN_MARK.sub("", line, count=1).strip().strip("*_").strip()
        if words and not _HINT.match(words):
            return shortened(words)
    return ""


def shortened(note: str, characters: int = NOTE_CHARACTERS) -> str:
    """A note of at most so many characters, cut between words."""
    return textwrap.shorten(note, characters, placeholder=" ...")


def hint_of(plan: str) -> str:
    """The id of the hint that a plan says it follows, "" if it names none."""
    found = _HINT.search(plan)
    return found[1].lower() if found and found[1].lower() != "none" else ""


# --- parts -----------------------------------------------------------------------------------------------------------


def _chosen(found: list[CodeBlock], text: str, body: Span, wanted: re.Pattern[str]) -> CodeBlock | Unreadable:
    python = [b for b in found if b.language in _PYTHON and b.text.strip()]
    if python:
        return next((b for b in reversed(python) if wanted.search(b.text)), python[-1])
    if found:
        languages = ", ".join(sorted({b.language or "none" for b in found}))
        return Unreadable(f"no block of Python code among the blocks of the answer (languages: {languages})")
    span = _stripped(text, body)
    code = _normal(text[slice(*span)])
    if wanted.search(code) and _parses(code):
        return CodeBlock("", code, span)
    return Unreadable("no block of code in the answer; put the code between ```python and ```")


def _block(opened: re.Match[str], text: str, begin: int, end: int) -> CodeBlock:
    language = opened["info"].strip().lower().split(" ")[0].strip("{}.:")
    code = text[begin:end]
    indent = opened["indent"]
    if indent:  # in a list; the block is indented as its fence
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
    return CodeBlock(language, _normal(code), (begin, end))


def _opened_up(text: str, body: Span) -> Span:
    """The body without a Markdown block around all of it."""
    lines = [(start, line) for start, line in _lines(text, body) if line.strip()]
    first, last = lines[0], lines[-1]
    opening = _FENCE.fullmatch(first[1].rstrip())
    if len(lines) > 1 and opening and opening["info"].strip().lower() in _MARKDOWN:
        if last[1].strip() != opening["fence"]:
            return body
        # Fences of equal length inside: the last line closes the outer block only if all others come in pairs.
        inner = (first[0] + len(first[1]), last[0])
        if sum(_FENCE.fullmatch(line.rstrip()) is not None for _, line in _lines(text, inner)) % 2 == 0:
            return inner
    return body


def _lines(text: str, span: Span) -> Iterator[tuple[int, str]]:
    """(start, line with its end) of each line in `span`; lines end at newlines only."""
    at = span[0]
    while at < span[1]:
        end = text.find("\n", at, span[1])
        end = span[1] if end < 0 else end + 1
        yield at, text[at:end]
        at = end


def _line_before(text: str, position: int) -> int:
    """Start of the line before the one that starts at `position`: that of the fence."""
    return text.rfind("\n", 0, max(position - 1, 0)) + 1


def _stripped(text: str, span: Span) -> Span:
    """`span` without the white space at its ends."""
    part = text[slice(*span)]
    start = span[0] + len(part) - len(part.lstrip())
    return start, max(start, span[0] + len(part.rstrip()))


def _normal(code: str) -> str:
    """Unix line ends, no blank lines around, a newline at the end."""
    return code.replace("\r\n", "\n").strip("\n").rstrip() + "\n"


def _parses(code: str) -> bool:
    try:
        syntax.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True

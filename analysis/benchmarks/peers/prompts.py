"""Reads which kernel the prompt of an engine asks to change, and writes answers in the form that it asks for.

Prompts of evo, OpenEvolve (0.4.1) and ShinkaEvolve (0.0.7) are known.  Of each, only headings, fenced blocks and the
marks of the answer's form are read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.core.records import candidate_id

START, END = "# EVOLVE-BLOCK-START", "# EVOLVE-BLOCK-END"  # the part of a program that both peers change
FILE, EDITS = "file", "edits"

_FENCE = re.compile(r"^(?P<fence>`{3,})[^\n`]*\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)


class UnknownPromptError(ValueError):
    """A prompt in which no kernel was found."""


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt's kernel, and the form of the answer.

    engine: "evo", "openevolve" or "shinka".  source: the kernel to change, without marks of its evolving part.
    other: a second kernel, if the prompt asks to combine two.  form: FILE, or EDITS as search/replace blocks.
    """

    engine: str
    source: str
    other: str | None
    form: str


def marked(source: str) -> str:
    """Returns the source with the marks between which engines may change a program: all of it."""
    return f"{START}\n{source.strip(chr(10))}\n{END}\n"


def unmarked(source: str) -> str:
    """Returns the source without these marks."""
    lines = source.strip("\n").split("\n")
    return "\n".join(line for line in lines if line.strip() not in (START, END)) + "\n"


def name_of(source: str) -> str:
    """Returns the id of a kernel, whether it has the marks or not."""
    return candidate_id(unmarked(source))


def read_question(messages: Sequence[Mapping[str, Any]]) -> ReadPrompt:
    """Returns what the messages of a chat ask for.  Raises UnknownPromptError if they show no kernel to change.

    If an engine asks again in the same chat, the latest message that shows a kernel counts.
    """
    system = "\n".join(m["content"] for m in messages if m["role"] == "system")
    for message in reversed(messages):
        if message["role"] == "user":
            for read in (_evo, _openevolve, _shinka):
                if (found := read(system, message["content"])) is not None:
                    return found
    raise UnknownPromptError("expected a prompt of evo, OpenEvolve or ShinkaEvolve that shows a kernel")


def _evo(system: str, user: str) -> ReadPrompt | None:
    if not re.search(r"^# Kernel A\b", user, re.MULTILINE):
        return None
    seed = _block(system, r"^The seed kernel:$")
    source = _block(user, r"^# Kernel A\b.*$", until=r"^# ") or seed
    other = None
    if re.search(r"^# Kernel B\b", user, re.MULTILINE):
        other = _block(user, r"^# Kernel B\b.*$", until=r"^# ") or seed
    form = EDITS if "Then give edits of kernel A" in user else FILE
    return ReadPrompt("evo", source, other, form) if source is not None else None


def _openevolve(system: str, user: str) -> ReadPrompt | None:
    source = _block(user, r"^# Current Program$", until=r"^# Task$")
    if source is None:
        return None
    return ReadPrompt("openevolve", unmarked(source), None, EDITS if "<<<<<<< SEARCH" in user else FILE)


def _shinka(system: str, user: str) -> ReadPrompt | None:
    source = _block(user, r"^# (?:Current program|Incorrect Program to Fix)$")
    if source is None:
        return None
    other = _block(user, r"^# Crossover Inspiration Programs$")
    form = EDITS if "<DIFF>" in system else FILE
    return ReadPrompt("shinka", unmarked(source), None if other is None else unmarked(other), form)


def _block(text: str, heading: str, until: str | None = None) -> str | None:
    """The first fenced block below the last line that is `heading`, and above the next that is `until`."""
    *_, last = [None, *re.finditer(heading, text, re.MULTILINE)]
    if last is None:
        return None
    found = _FENCE.search(text, last.end())
    if found is None:
        return None
    between = text[last.end() : found.start()]
    if until is not None and re.search(until, between, re.MULTILINE):
        return None
    return found["body"].strip("\n") + "\n"


# --- answers ---------------------------------------------------------------------------------------------------------


def write_answer(question: ReadPrompt, note: str, source: str) -> str:
    """Returns an answer with a new source, in the form and with the tags that the engine's prompt asks for."""
    if question.form == EDITS:
        blocks = (f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE" for old, new in edits(question, source))
        code = "\n".join(blocks)
    else:
        code = f"```python\n{marked(source) if question.engine != 'evo' else source.strip(chr(10)) + chr(10)}```"
    if question.engine == "shinka":
        tag = "DIFF" if question.form == EDITS else "CODE"
        return f"<NAME>\nchange\n</NAME>\n\n<DESCRIPTION>\n{note}\n</DESCRIPTION>\n\n<{tag}>\n{code}\n</{tag}>\n"
    return f"{note}\n\n{code}\n"


def edits(question: ReadPrompt, source: str) -> list[tuple[str, str]]:
    """Returns (old, new) texts of whole lines that make `source` of the question's kernel, one after the other.

    Each old text occurs once when its turn comes, and begins and ends with a line that is not blank.
    """
    before, after = (text.strip("\n").split("\n") for text in (question.source, source))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    changes = [code[1:] for code in matcher.get_opcodes() if code[0] != "equal"]
    # From the bottom up, so places above stay as they are.
    made: list[tuple[str, str]] = []
    lines = list(before)
    for first, last, new_first, new_last in reversed(changes):
        new = after[new_first:new_last]
        low, high = _unique(lines, first, last)
        made.append(("\n".join(lines[low:high]), "\n".join([*lines[low:first], *new, *lines[last:high]])))
        lines[first:last] = new
    if lines != after:
        raise AssertionError("the edits do not make the new source")
    return made


def _unique(lines: Sequence[str], first: int, last: int) -> tuple[int, int]:
    """The range around first..last whose text occurs once among the lines and has no blank line at its ends."""
    text = "\n".join(lines)
    while True:
        part = "\n".join(lines[first:last])
        if first < last and lines[first].strip() and lines[last - 1].strip() and text.count(part) == 1:
            return first, last
        if first == 0 and last == len(lines):
            return first, last
        first, last = max(0, first - 1), min(len(lines), last + 1)

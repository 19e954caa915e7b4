"""Asks a model for the task of a kernel, with prompts and answers of the same kind as operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from operators.llm.answers import take_apart
from operators.llm.base import Message, Prompt, Unreadable
from operators.llm.render import render

NAME = "task"
_TASK = re.compile(r"^def inputs\b", re.MULTILINE)


def ask_for_task(kernel: str, entries: Sequence[str], waivers: Sequence[str], limits: Mapping[str, Any]) -> Prompt:
    """The first question.

    kernel: the file's text; entries: host functions that launch kernels; waivers: names that task.py has to set to
    True for it; limits: "least" and "most" cases, "gib" of inputs, "dtypes", the largest "tolerance".
    """
    system = render("task_system.md.j2", **limits)
    user = render("task.md.j2", kernel=kernel, entries=entries, waivers=waivers)
    return Prompt(NAME, (Message("system", system), Message("user", user)))


def ask_to_correct(prompt: Prompt, answer: str, reason: str) -> Prompt:
    """The next question, after `answer` to `prompt` could not be used for `reason`."""
    correction = render("task_mend.md.j2", reason=reason)
    return Prompt(NAME, (*prompt.messages, Message("assistant", answer), Message("user", correction)))


def read_task(answer: str) -> str | Unreadable:
    """The text of task.py in an answer: its last Python block that defines inputs()."""
    parts = take_apart(answer, _TASK)
    return parts if isinstance(parts, Unreadable) else parts.code

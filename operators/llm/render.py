"""Renders prompts from the templates in `operators/llm/templates`.

Sources, messages and notes come from candidates, that is, from models: whatever they say, it is material.  They reach a
prompt only through the filters here: `data` (a fence longer than any inside) and `line` (one short line of code).
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
MESSAGE_CHARACTERS = 2000  # of an error: compilers repeat themselves, the beginning and the end tell
LINE_CHARACTERS = 200

# Marks with which chat formats separate speakers (`<|im_start|>`, `<｜User｜>`, `</s>`): some servers read them in any
# text.  No kernel needs them.
_MARKS = re.compile(r"<(?=[|｜][^\n|｜]{1,40}[|｜]>|/?s>)")


def render(template: str, **values: Any) -> str:
    """The text of a template, tidied up: outside of blocks there are no two blank lines in a row.

    Names that a template uses must be given.
    """
    return _tidy(_environment().get_template(template).render(**values))


def data(text: str, language: str = "") -> str:
    """`text` as a fenced block that nothing inside can close."""
    safe = _MARKS.sub("< ", text.replace("\r", "")).rstrip("\n")
    fence = "`" * max(3, 1 + _longest(safe))
    return f"{fence}{language}\n{safe}\n{fence}"


def line(text: str, characters: int = LINE_CHARACTERS) -> str:
    """`text` as code within a line: shortened, without line ends, nothing inside can close it."""
    safe = textwrap.shorten(_MARKS.sub("< ", text), characters, placeholder=" ...")
    if not safe:
        return "(nothing)"
    mark = "`" * (1 + _longest(safe))
    pad = " " if safe[0] == "`" or safe[-1] == "`" else ""
    return f"{mark}{pad}{safe}{pad}{mark}"


def clipped(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """A long text without its middle."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def number(value: float) -> str:
    """Three significant digits; large numbers whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _tidy(text: str) -> str:
    kept: list[str] = []
    fence = ""
    for row in text.strip().split("\n"):
        if fence:
            fence = "" if row == fence else fence
        elif opening := re.match("`{3,}", row):
            fence = opening[0]
        else:
            row = row.rstrip()
            if not row and not kept[-1]:
                continue
        kept.append(row)
    return "\n".join(kept) + "\n"


def _longest(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    # No escaping: the texts are Markdown for a model, not HTML.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {"data": data, "line": line, "clipped": clipped, "number": number}
    return environment

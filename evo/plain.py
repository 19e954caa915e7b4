"""Text as it may be shown: of untrusted origin (on a terminal, in a report, to a model), counts, commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

# Control characters but tab and newline, halves of surrogate pairs, and marks that turn the direction of a line.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

MOST = 4000  # characters of a message: names in it may be of any length
_KEPT = MOST - 50  # of a longer one, beside what is said of the rest


def short(text: str) -> str:
    """`plain(text)`, of a long one its beginning and how much was left out.  What is short is given back as it is."""
    head = plain(text[:MOST])
    if len(text) <= MOST and len(head) <= MOST:
        return head
    left = len(head) - _KEPT + max(0, len(text) - MOST)
    return f"{head[:_KEPT]} ... ({left} characters left out)"


def plain(text: str) -> str:
    r"""`text` with what would not be seen as itself written out, as in \x1b and \u202e."""
    return _HIDDEN.sub(lambda found: _written(ord(found[0])), text)


def quoted(path: Path | str) -> str:
    """A path as a shell reads it, for commands that are printed to be copied."""
    return shlex.quote(str(path))


def counted(number: int, noun: str) -> str:
    """E.g. "1 run", "2 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _written(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

"""Makes text safe to show on a terminal, in a report or to a model; formats counts and commands."""

from __future__ import annotations

import difflib
import re
import shlex
import unicodedata
from collections.abc import Iterable
from pathlib import Path

_DOUBTFUL = re.compile("[^\t\n -~]")  # the rest is seen as itself
# Unicode's categories of what is not: control and format characters (directions, zero widths, tags), halves of
# surrogate pairs, private use, unassigned, and separators of lines and paragraphs.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
# Letters and marks that show nothing, the rest of what Unicode calls "default ignorable": variation selectors, fillers.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")

MOST = 4000  # characters of a message: names in it may be of any length
_KEPT = MOST - 50  # of a longer one, beside the note on the rest


def short(text: str) -> str:
    """Returns `plain(text)`; of a long text its beginning and how much was left out."""
    head = plain(text[:MOST])
    if len(text) <= MOST and len(head) <= MOST:
        return head
    left = len(head) - _KEPT + max(0, len(text) - MOST)
    return f"{head[:_KEPT]} ... ({left} characters left out)"


def plain(text: str) -> str:
    r"""Returns `text` with invisible or misleading characters written out, as in \x1b, \u202e and \U000e0041."""
    return _DOUBTFUL.sub(lambda found: _seen(found[0]), text)


def storable(text: str) -> str:
    """`text` with what UTF-8 cannot hold (lone surrogates in a candidate's messages) made visible."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def quoted(path: Path | str) -> str:
    """Returns a path quoted for a shell, for commands that a user copies."""
    return shlex.quote(str(path))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean softmax?" for an unknown name that resembles a known one, else ""."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def of_attainable(share: float | None) -> str:
    """Returns e.g. ", 83% of attainable", to follow a speedup; "" if the share is not known."""
    return "" if share is None else f", {share:.0%} of attainable"


def counted(number: int, noun: str) -> str:
    """Returns e.g. "1 run", "2 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _seen(character: str) -> str:
    hidden = unicodedata.category(character) in _HIDDEN or _BLANK.match(character)
    return _written(ord(character)) if hidden else character


def _written(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

"""Text of untrusted origin as it is shown."""

from __future__ import annotations

import pytest

from evo.plain import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tab\t and line\n stay, ü and 好 too", "tab\t and line\n stay, ü and 好 too"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\r\x00\x7f\x9b31m", "\\x0d\\x00\\x7f\\x9b31m"),
        ("half \ud800", "half \\ud800"),
        ("\u202eright to left\u2066\u200f\u061c", "\\u202eright to left\\u2066\\u200f\\u061c"),
    ],
)
def test_what_would_not_be_seen_is_written_out(text, shown):
    assert plain(text) == shown
    assert plain(shown) == shown
    shown.encode()

"""Text of untrusted origin as it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.core.text import MOST, counted, plain, quoted, short


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tab\t and line\n stay, ü and 好 too", "tab\t and line\n stay, ü and 好 too"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\r\x00\x7f\x9b31m", "\\x0d\\x00\\x7f\\x9b31m"),
        ("half \ud800", "half \\ud800"),
        ("\u202eright to left\u2066\u200f\u061c", "\\u202eright to left\\u2066\\u200f\\u061c"),
        ("cafe\u0301, no\u00a0break, 😀 and \U00020000", "cafe\u0301, no\u00a0break, 😀 and \U00020000"),
        ("tags \U000e0001\U000e0041\U000e007f", "tags \\U000e0001\\U000e0041\\U000e007f"),
        ("widths \u200b\u200c\u200d\u2060\ufeff", "widths \\u200b\\u200c\\u200d\\u2060\\ufeff"),
        ("operators \u2061\u2064\u180e\u00ad", "operators \\u2061\\u2064\\u180e\\xad"),
        ("selectors \ufe00\ufe0f\U000e0100\U000e01ef", "selectors \\ufe00\\ufe0f\\U000e0100\\U000e01ef"),
        ("fillers \u034f\u115f\u3164\uffa0", "fillers \\u034f\\u115f\\u3164\\uffa0"),
        ("private \ue000\U000f0000 nothing \uffff\U000e0fff", "private \\ue000\\U000f0000 nothing \\uffff\\U000e0fff"),
        ("lines\u2028\u2029", "lines\\u2028\\u2029"),
    ],
)
def test_what_would_not_be_seen_is_written_out(text, shown):
    assert plain(text) == shown
    assert plain(shown) == shown
    shown.encode()


def test_of_a_long_text_the_beginning_stays():
    assert short("a" * MOST) == "a" * MOST
    for text in ("a" * (MOST + 1), "ab" * 10_000_000, "\x1b" * MOST):
        shown = short(text)
        assert len(shown) <= MOST and shown[:100] == plain(text[:100])[:100]
        assert short(shown) == shown
    assert short("a" * 5000) == "a" * (MOST - 50) + " ... (1050 characters left out)"


def test_paths_are_quoted_where_a_shell_would_split_them() -> None:
    assert quoted("runs/softmax-001") == "runs/softmax-001"
    assert quoted(Path("my runs/$x")) == "'my runs/$x'"


def test_one_is_singular() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]

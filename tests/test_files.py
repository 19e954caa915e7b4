"""Small files that are written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.core.errors import StoreError
from evo.core.files import write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    for text in ("one\n", "two ×\n"):
        write_whole(tmp_path / "a.json", text)
        assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"expected to write .*missing/a\.json"):
        write_whole(tmp_path / "missing" / "a.json", "text")

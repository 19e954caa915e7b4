"""evo.cli.suite_checks: with the other process's lock, and what ends it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo.cli import suite
from evo.cli.suite_checks import CHECKED, LOCK, Checking, read
from evo.core.errors import ConfigError, StoreError
from evo.core.locks import try_lock
from fitness.suites.check import STAGES, CheckOutcome

FILES: Any = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]


def checking(folder: Path, afterwards: Any = lambda known: None) -> Checking:
    return Checking(Namespace(), FILES, folder, 0, 1, afterwards)


def verified(_: Any, files: Any, *rest: Any) -> Any:
    return (CheckOutcome(file.name, list(STAGES)) for file in files)


def test_each_file_is_checked_once_by_whoever_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "outcomes", verified)
    seen: list[Any] = []
    # Another process checks; leaving does not wait for it.
    with try_lock(tmp_path / LOCK), pytest.raises(KeyError), checking(tmp_path, seen.append):
        raise KeyError
    assert seen == [] and read(tmp_path) == {}
    with checking(tmp_path, seen.append):
        pass
    assert [sorted(known) for known in seen] == [["a", "b"]]
    assert all(outcome.verified for outcome in read(tmp_path).values())
    monkeypatch.setattr(suite, "outcomes", lambda *_: pytest.fail("checked again"))
    with checking(tmp_path):
        pass


@pytest.mark.parametrize("line", ["[1]", "7", "{}", '{"name": "a"}'])
def test_a_line_that_is_none_of_its_own_is_refused_in_words(tmp_path: Path, line: str) -> None:
    (tmp_path / CHECKED).write_text('{"name": "b", "stages": []}\n' + line + "\n")
    with pytest.raises(StoreError, match=r"checked.jsonl, line 2: expected name, stages .*; delete the line"):
        read(tmp_path)


def test_what_ends_it_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ConfigError("no zygote")

    monkeypatch.setattr(suite, "outcomes", fails)
    with pytest.raises(ConfigError, match="no zygote"), checking(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="expected to write to"), checking(tmp_path / "file"):
        pass

"""evo.campaign.suite: files checked with the other process's lock, and what ends it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo.campaign import suite
from evo.campaign.suite import CHECKED, LOCK, Checking, read_checked
from evo.core.errors import ConfigError, StoreError
from evo.core.locks import try_lock
from fitness.suites.check import STAGES, CheckOutcome

FILES: Any = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]


SELECTION: Any = SimpleNamespace(files=lambda: FILES, suite=SimpleNamespace(seed_kernel="a function"))


def checking(folder: Path, gpus: int = 0) -> Checking:
    return Checking(SELECTION, folder, target="sm_90", gpus=gpus, workers=1, models=False, say=lambda text: None)


def verified(_: Any, files: Any, *rest: Any) -> Any:
    return (CheckOutcome(file.name, list(STAGES)) for file in files)


def test_each_file_is_checked_once_by_whoever_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "outcomes", verified)
    seen: list[Any] = []
    monkeypatch.setattr(suite, "measure_baselines", lambda folder, names, *_: seen.append(names))
    # Another process checks; leaving does not wait for it.
    with try_lock(tmp_path / LOCK), pytest.raises(KeyError), checking(tmp_path, 1):
        raise KeyError
    assert seen == [] and read_checked(tmp_path) == {}
    with checking(tmp_path, 1):
        pass
    assert seen == [["a", "b"]]  # timed beside PyTorch, after all
    assert all(outcome.verified for outcome in read_checked(tmp_path).values())
    monkeypatch.setattr(suite, "outcomes", lambda *_: pytest.fail("checked again"))
    with checking(tmp_path):
        pass


@pytest.mark.parametrize("line", ["[1]", "7", "{}", '{"name": "a"}'])
def test_a_line_that_is_none_of_its_own_is_refused_in_words(tmp_path: Path, line: str) -> None:
    (tmp_path / CHECKED).write_text('{"name": "b", "stages": []}\n' + line + "\n")
    with pytest.raises(StoreError, match=r"checked.jsonl, line 2: expected name, stages .*; delete the line"):
        read_checked(tmp_path)


def test_what_ends_it_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ConfigError("no zygote")

    monkeypatch.setattr(suite, "outcomes", fails)
    with pytest.raises(ConfigError, match="no zygote"), checking(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="expected to write to"), checking(tmp_path / "file"):
        pass

"""The tutorial docs/faster-model.md: its files and its commands, as far as a machine without a GPU goes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.cli.main import main
from tests.capture_programs import run
from tests.test_docs import ROOT, Block, split


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return split(ROOT / "docs" / "faster-model.md")[1]


@pytest.fixture(scope="module")
def folder(blocks: list[Block], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    layers, train = [block.text for block in blocks if block.info == "python"]
    (folder / "layers.py").write_text(layers)
    (folder / "train.py").write_text(train)
    return folder


def words_of(line: str) -> list[str]:
    """The words of a command line after `evo`; `python` is the one that runs this test."""
    return [sys.executable if word == "python" else word for word in shlex.split(line)[1:]]


@pytest.fixture
def said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`said(*words)`: what evo says to these words in the folder, in this process, where zygotes are warm."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def execute(*words: str) -> str:
        capsys.readouterr()
        code = main(list(words))
        told = capsys.readouterr()
        assert code == 0, told.err
        return told.out

    return execute


def test_the_commands_of_the_tutorial_work(blocks: list[Block], folder: Path, said: Callable[..., str]) -> None:
    """In the order of the tutorial; with half of its budget, and one pair of runs in place of several."""
    lines = [line for block in blocks if block.info == "console" for line in block.text.splitlines()]
    capture, new, check, search, apply, compare = [words_of(line) for line in lines]
    done = run(folder, *capture, interpreted=False)
    assert done.returncode == 0 and "rms_norm_kernel       4        2    unknown" in done.stdout, done.stderr
    assert "wrote rms: layers.rms_norm_forward, " in said(*new)
    assert "kernels that do not do their work are found wrong" in said(*check)
    said(*search[:-1], "4")
    assert (folder / "runs" / "rms-001").is_dir()
    said(*apply)
    assert (folder / "fast_rms" / "patch.py").is_file()
    done = run(folder, compare[0], "--repeats", "1", *compare[1:])
    assert done.returncode == 0 and "outputs are the same within 0.0001" in done.stdout, done.stderr
    assert "layers.rms_norm_forward: the new code ran 4 times" in done.stdout
    assert "rms_norm_kernel: unknown in 4 calls; unknown in 4 calls" in done.stdout

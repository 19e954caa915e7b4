"""The tutorial docs/faster-model.md: its files and its commands, as far as a machine without a GPU goes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

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


def test_the_commands_of_the_tutorial_work(blocks: list[Block], folder: Path) -> None:
    """In the order of the tutorial; with half of its budget, and one pair of runs in place of several."""
    lines = [line for block in blocks if block.info == "console" for line in block.text.splitlines()]
    capture, new, check, search, apply, compare = [words_of(line) for line in lines]
    done = run(folder, *capture, interpreted=False)
    assert done.returncode == 0 and "rms_norm_kernel       4        2    unknown" in done.stdout, done.stderr
    done = run(folder, *new, interpreted=False)
    assert done.returncode == 0 and "wrote rms: entry calls layers.rms_norm_forward" in done.stdout, done.stderr
    done = run(folder, *check, interpreted=False)
    assert done.returncode == 0 and "kernels that do not do their work are found wrong" in done.stdout, done.stderr
    done = run(folder, *search[:-1], "4", interpreted=False)
    assert done.returncode == 0 and (folder / "runs" / "rms-001").is_dir(), done.stderr
    done = run(folder, *apply, interpreted=False)
    assert done.returncode == 0 and (folder / "fast_rms" / "patch.py").is_file(), done.stderr
    done = run(folder, compare[0], "--repeats", "1", *compare[1:])
    assert done.returncode == 0 and "outputs are the same within 0.0001" in done.stdout, done.stderr
    assert "layers.rms_norm_forward: the new code ran 4 times" in done.stdout
    assert "rms_norm_kernel: unknown in 4 calls; unknown in 4 calls" in done.stdout

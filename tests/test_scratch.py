"""Folders of scratch files after whoever was in them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fitness.sandbox import scratch
from fitness.sandbox.scratch import LeftError, created, opened, remove, scratch_folder, scratch_root, taken

DEEP = 1500  # beyond Python's recursion; twice the letters of a path are beyond the longest path


def make_deep(folder: Path) -> None:
    """In another process: it changes its folder."""
    program = f"import os\nfor _ in range({DEEP}): os.mkdir('deep'); os.chdir('deep')\nopen('file', 'w').close()"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


def test_a_file_is_read_as_it_was_left(tmp_path):
    (tmp_path / "file").write_bytes(b"code")
    with opened(tmp_path / "file") as file:
        assert file.read() == b"code"
    with opened(tmp_path / "file", 4, writable=True) as file:
        file.write(b"C")
    assert (tmp_path / "file").read_bytes() == b"Code"


@pytest.mark.parametrize("name", ["absent", "folder", "link", "pipe", "large", "other size", "null\0"])
def test_what_is_no_plain_file_of_the_right_size_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr(scratch, "MOST_BYTES", 10)
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_bytes(b"code")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(11))
    (tmp_path / "other size").write_bytes(bytes(5))
    with (
        pytest.raises(LeftError, match="expected a file"),
        opened(tmp_path / name, 4 if name == "other size" else None),
    ):
        pass


def test_a_new_file_is_not_what_was_there(tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    os.link(tmp_path / "other", tmp_path / "same")
    for name in ("link", "same"):
        with created(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"other"


def test_whatever_is_in_a_folder_it_goes(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with scratch_folder(tmp_path) as folder:
        make_deep(folder)
        (folder / "link").symlink_to(tmp_path / "kept")
        (folder / "closed" / "inner").mkdir(parents=True)
        (folder / "closed" / "file").touch()
        (folder / "closed").chmod(0)
        folder.chmod(0o500)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept" / "file").exists()


def test_what_is_not_there_or_no_folder_is_left_alone(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("absent", "link"):
        remove(tmp_path / name)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "kept").is_dir()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive, unlocked = scratch_root(), tmp_path / "evo-scratch-unlocked"
    unlocked.mkdir()
    program = "import os; from fitness.sandbox.scratch import scratch_root; print(scratch_root()); input(); os._exit(1)"
    other = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    left = Path(other.stdout.readline().strip())
    assert left.parent == tmp_path
    make_deep(left)
    root = scratch_root()
    assert all(folder.is_dir() for folder in (left, alive, unlocked, root))
    other.communicate("end\n")
    assert scratch_root().parent == tmp_path and not left.exists()
    assert all(folder.is_dir() for folder in (alive, unlocked, root))
    remove(root)
    assert not root.exists()


def test_what_files_take_is_their_size_or_their_blocks(tmp_path):
    assert taken(tmp_path, 10) == 0
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 20)
    assert taken(tmp_path, 10) == 1 << 20
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_bytes(b"x")
    (tmp_path / "folder" / "link").symlink_to("/usr")
    assert 1 << 20 < taken(tmp_path, 10) < 2 << 20
    assert taken(tmp_path, 3) == math.inf
    assert taken(tmp_path / "gone", 3) == 0

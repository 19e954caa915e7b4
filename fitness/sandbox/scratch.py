"""Makes, reads and removes scratch folders, safely after untrusted jobs wrote to them.

Every job gets a folder of its own.  Once untrusted code has run, whatever is there may be a link or a pipe, of any size
or any depth.  So files are read through `opened`, folders are removed by `remove`, and nothing is written there again.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from evo.core.errors import EvoError

NO_SPACE = os.strerror(errno.ENOSPC)
_LOCK = "lock"
_held: dict[Path, BinaryIO] = {}  # locks of this process, by folder

MOST_BYTES = 64 << 20  # of a file of unknown size: machine code has some ten kilobytes.


def no_space() -> EvoError:
    """The error that says that the disk with the scratch files is full."""
    return EvoError(
        f"expected room for scratch files in {tempfile.gettempdir()}, got: {NO_SPACE}; free some there, or set TMPDIR "
        f"to a folder with more"
    )


class LeftError(ValueError):
    """A file in a job's folder is not what the job should have left there."""


@contextmanager
def opened(path: Path, size: int | None = None, *, writable: bool = False) -> Iterator[BinaryIO]:
    """Opens a file in a job's folder: regular, not a link, of exactly `size` bytes (without it: MOST_BYTES at most).

    Raises LeftError for any other.
    """
    access = os.O_RDWR if writable else os.O_RDONLY
    try:
        handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise LeftError(f"expected a file {path.name!r}: {error}") from error
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or (found.st_size > MOST_BYTES if size is None else found.st_size != size):
        os.close(handle)
        wanted = f"at most {MOST_BYTES}" if size is None else size
        raise LeftError(f"expected a file {path.name!r} of {wanted} bytes, got {found.st_size}")
    with os.fdopen(handle, "r+b" if writable else "rb") as file:
        yield file


def taken(top: Path, most_files: int) -> float:
    """Bytes of all files below `top`; infinite if there are more than `most_files`, or folders that cannot be read.

    A file counts by its size or its blocks, whichever is more: some file systems store equal bytes in no block.
    """
    found, files, left = 0, 0, [top]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    size, folder = _size(entry)
                    found, files = found + size, files + 1
                    if files > most_files:
                        return math.inf
                    if folder:
                        left.append(Path(entry.path))
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            return math.inf
    return found


def _size(entry: os.DirEntry[str]) -> tuple[int, bool]:
    """Bytes of a file, and whether it is a folder."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0, False  # it was removed meanwhile, and others in its folder were not
    return max(found.st_size, found.st_blocks * 512), stat.S_ISDIR(found.st_mode)


def created(path: Path) -> BinaryIO:
    """Opens a new file; an existing one of that name is removed first, never written through."""
    path.unlink(missing_ok=True)
    return open(path, "x+b")


@contextmanager
def scratch_folder(root: Path | None = None) -> Iterator[Path]:
    """A new folder, in `root` or among the system's temporary files, that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        yield folder
    finally:
        remove(folder)


def scratch_root() -> Path:
    """A new folder for scratch files; folders of processes that were killed before they removed theirs are removed.

    A process that uses such a folder holds a lock on a file in it.  A process id would not do: other hosts and
    containers, whose processes cannot be seen from here, may have folders in the same place.
    """
    for folder in Path(tempfile.gettempdir()).glob("evo-scratch-*"):
        if _abandoned(folder / _LOCK):
            remove(folder)
    folder = Path(tempfile.mkdtemp(prefix="evo-scratch-"))
    with suppress(OSError):  # A file system without locks: then no other process removes the folder.
        new = folder / f"{_LOCK}.new"
        _held[folder] = open(new, "wb")  # noqa: SIM115 - as long as the folder is used
        fcntl.flock(_held[folder], fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder / _LOCK)  # The file is locked before it has that name.
    return folder


def _abandoned(path: Path) -> bool:
    """Whether no process holds the lock on that file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def remove(top: Path) -> None:
    """Removes a folder of this user's with all that is in it, as far as possible; raises nothing.

    `shutil.rmtree` recurses, so deep enough folders of a job would stop it, as would the length of a path.  So folders
    are moved up to `top` before they are emptied.
    """
    with suppress(OSError):
        found = os.lstat(top)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return  # It may be another user's link in a folder that all users can write to.
    if (held := _held.pop(top, None)) is not None:
        held.close()
    left = [top]
    while left:
        folder = left.pop()
        with suppress(OSError):
            left += _emptied(folder, top)
            if folder != top:
                folder.rmdir()
    with suppress(OSError):
        top.rmdir()


def _emptied(folder: Path, top: Path) -> list[Path]:
    """Removes the files of a folder, moves its folders up and returns their new paths."""
    folder.chmod(0o700)
    moved = []
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # else its parent could not be changed
                moved.append(Path(entry.path).rename(top / uuid.uuid4().hex))
            else:
                os.unlink(entry.path)
    return moved

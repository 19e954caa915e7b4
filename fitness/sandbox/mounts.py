"""Mounts that only one process sees: a folder in memory, and a read-only view of all file systems but one folder, the
stand-in for Landlock where the kernel has none.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

# linux/mount.h and linux/sched.h
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_CLONE_NEWNS = 0x00020000
BYTES_A_FILE = 1 << 14  # of a folder in memory, on average: it takes so many files, as what a file is takes memory too

_libc = ctypes.CDLL(None, use_errno=True)


def in_memory(scratch: Path, most_bytes: int, owner: tuple[int, int]) -> None:
    """Lays an empty folder over `scratch`, of that size for all files together; this process alone sees it.

    Needs a new user namespace.  `owner`: the process's user and group outside of it.  Raises OSError.
    """
    user, group = owner
    # Who creates a file has to be known in the namespace that the file system belongs to.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_bytes(text.encode())
    _new_namespace()
    options = f"size={most_bytes},nr_inodes={most_bytes // BYTES_A_FILE},mode=700"
    _mount("tmpfs", str(scratch), _KEPT["nosuid"] | _KEPT["nodev"], "tmpfs", options)
    os.chdir(scratch)


def only_writable(scratch: Path) -> None:
    """Make every mount read-only for this process, except `scratch`.

    Needs CAP_SYS_ADMIN in its user namespace.  Raises OSError where one mount resists: a half-closed view is none.
    """
    _new_namespace()
    _mount(str(scratch), str(scratch), _MS_BIND)
    for point, options in _mounts():
        if point != str(scratch):
            _mount(None, point, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | options)
    os.chdir(scratch)  # the folder of the same name on the old mount is read-only now


def _new_namespace() -> None:
    """Of mounts, of which nothing gets out."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _error("a mount namespace")
    _mount(None, "/", _MS_REC | _MS_PRIVATE)


def _mounts() -> Iterator[tuple[str, int]]:
    """Mount points with the options that a remount must not drop.  The last one at a point is the visible one."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        found[point] = sum(_KEPT.get(option, 0) for option in fields[5].split(","))
    yield from found.items()


def _mount(source: str | None, point: str, flags: int, kind: str | None = None, options: str | None = None) -> None:
    name, fstype, data = (None if text is None else os.fsencode(text) for text in (source, kind, options))
    if _libc.mount(name, os.fsencode(point), fstype, ctypes.c_ulong(flags), data) != 0:
        raise _error(point)


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)

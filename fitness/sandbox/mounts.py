"""Makes mounts that only one process sees.

They are a root that holds little but what the process needs, a folder in memory, and a read-only view of all file
systems but one folder.  The read-only view replaces Landlock if the kernel does not have it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Constants of linux/mount.h and linux/sched.h.
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_CLONE_NEWNS = 0x00020000
_MNT_DETACH = 2
ROOT_BYTES = 1 << 20  # of the new root itself: it holds empty folders and links.
BYTES_A_FILE = 1 << 14  # limits the number of files of a folder in memory, as each file takes kernel memory too.

_libc = ctypes.CDLL(None, use_errno=True)


def in_memory(scratch: Path, most_bytes: int, owner: tuple[int, int]) -> None:
    """Mounts an empty folder in memory over `scratch`, for this process only.

    most_bytes: for all files together.  owner: the process's user and group outside of its new user namespace, which
    it needs.  Raises OSError.
    """
    _map_owner(owner)
    _new_namespace()
    options = f"size={most_bytes},nr_inodes={most_bytes // BYTES_A_FILE},mode=700"
    _mount("tmpfs", str(scratch), _KEPT["nosuid"] | _KEPT["nodev"], "tmpfs", options)
    os.chdir(scratch)


def only_visible(paths: Iterable[str], scratch: Path, owner: tuple[int, int]) -> None:
    """Makes `paths`, /proc and `scratch` all that exists for this process, with the folders and links on the way there.

    owner: the process's user and group outside of its new user namespace, which it needs.  Raises OSError; then
    everything is visible as before.
    """
    _map_owner(owner)
    _new_namespace()
    own = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    root = str(scratch)  # The new root begins here; any folder would do.
    try:
        _mount("tmpfs", root, _KEPT["nosuid"] | _KEPT["nodev"], "tmpfs", f"size={ROOT_BYTES},mode=755")
        try:
            _make_visible(root, paths)
            os.makedirs(root + root, exist_ok=True)
            _mount(f"/proc/self/fd/{own}", root + root, _MS_BIND)  # The descriptor leads below the new root.
            _pivot_to(root)
        except OSError:
            _libc.umount2(os.fsencode(root), _MNT_DETACH)
            raise
    finally:
        os.close(own)
    os.chdir(scratch)


def _make_visible(root: str, paths: Iterable[str]) -> None:
    """Makes what is at `paths` visible below `root`; each link on the way stays the link that it is."""
    waiting, real = ["/proc", *paths], set[str]()
    while waiting:
        path = waiting.pop()
        link = _first_link(path)
        if link is None:
            real.add(path)
            continue
        target = os.readlink(link)
        if not os.path.lexists(root + link):
            os.makedirs(os.path.dirname(root + link), exist_ok=True)
            os.symlink(target, root + link)
        waiting.append(os.path.normpath(os.path.join(os.path.dirname(link), target) + path[len(link) :]))
    shown: list[str] = []
    for path in sorted(real, key=len):
        if not any(path.startswith(f"{folder}/") for folder in shown):
            _bind(root, path)
            shown.append(path)


def _bind(root: str, path: str) -> None:
    """Makes a file, or a folder with all that is in it, visible below `root`."""
    if os.path.isdir(path):
        os.makedirs(root + path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        Path(root + path).touch()
    _mount(path, root + path, _MS_BIND | _MS_REC)


def _first_link(path: str) -> str | None:
    """The shortest beginning of an absolute path that is a symbolic link."""
    parts = path.split("/")
    return next((b for n in range(2, len(parts) + 1) if os.path.islink(b := "/".join(parts[:n]))), None)


def _pivot_to(root: str) -> None:
    """Makes the mount at `root` the root of this process, and unmounts the old root."""
    if not hasattr(_libc, "pivot_root"):
        raise OSError(errno.ENOSYS, "this C library has no pivot_root")
    before = f"{root}/before"
    os.mkdir(before)
    if _libc.pivot_root(os.fsencode(root), os.fsencode(before)) != 0:
        raise _error("a new root")
    os.chdir("/")
    if _libc.umount2(b"/before", _MNT_DETACH) != 0:
        raise _error("the root before")
    os.rmdir("/before")


def _map_owner(owner: tuple[int, int]) -> None:
    """Maps the process's user and group into its new user namespace: files need an owner that exists there."""
    user, group = owner
    if Path("/proc/self/uid_map").read_bytes().strip():
        return  # done before
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_bytes(text.encode())


def only_writable(scratch: Path) -> None:
    """Makes every mount read-only for this process, except `scratch`.

    Needs CAP_SYS_ADMIN in its user namespace.  Raises OSError if one mount cannot be made read-only.
    """
    _new_namespace()
    _mount(str(scratch), str(scratch), _MS_BIND)
    for point, options in _mounts():
        if point != str(scratch):
            _mount(None, point, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | options)
    os.chdir(scratch)  # the folder of the same name on the old mount is read-only now


def _new_namespace() -> None:
    """Gives this process a mount namespace of its own; other processes do not see its mounts."""
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

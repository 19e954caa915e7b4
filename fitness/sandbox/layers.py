"""Confinement of the process that is about to run untrusted code.

`confine` is called once, in a freshly forked single-threaded child.  It applies every layer that the kernel offers.  A
layer that is not available is reported with its reason, never skipped in silence.

| layer | prevents |
|---|---|
| userns | privileges of the caller: the child has none, even if the caller is root. |
| view | finding other files: the root has only what the job may read, and /proc.  Not in profile "gpu". |
| tmpfs | full disks: the scratch folder is in memory, of limited size.  Only for jobs whose files are not read. |
| mounts | writes outside the scratch folder: all other mounts are read-only.  Only without Landlock. |
| netns, ipcns | use of network interfaces (loopback too), System V and POSIX message queues of others. |
| capabilities | what root could do without a user namespace. |
| rlimits | excess of memory, CPU time, file size, open files, processes; core dumps. |
| landlock | reads of all but Python, its packages and system libraries; writes outside the scratch folder. |
| seccomp | sockets, signals to others, tracing, mounts, namespaces, io_uring, file watches; processes if "strict". |

Profile "gpu" is "compiler" without the view, plus what the CUDA driver needs: its device files, names for its threads,
anonymous files and the scheduling of threads.  CUDA reserves more address space than any machine has.  So "gpu" limits
the data that is mapped writable, not the address space.

Nothing here imports torch; `python -m fitness.sandbox.layers` prints the layers of this machine as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import importlib
import json
import os
import resource
import signal
import site
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from fitness.sandbox.jobs import Limits
from fitness.sandbox.mounts import in_memory, only_visible, only_writable

PROFILES = ("strict", "compiler", "gpu")
ACTIVE = "active"
PROJECT = Path(__file__).resolve().parents[2]  # the folder that holds the packages evo and fitness.

# Enough for the shared libraries and cache files of a compile; a CUDA context opens a hundred more.
OPEN_FILES = {"strict": 256, "compiler": 256, "gpu": 1024}
# Enough for ptxas, the disassembler and a C compiler, one after the other; "gpu" also has the threads of CUDA.
PROCESSES = {"strict": 64, "compiler": 64, "gpu": 256}

# Constants of linux/sched.h and linux/prctl.h.
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_CLONE_NEW_ANY = 0x7E020080  # every CLONE_NEW* flag: time, mount, cgroup, uts, ipc, user, pid, net.
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x20080522

_DENIED = (
    # The network.
    "socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
    # Other processes and their memory.
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_open", "pidfd_getfd",
    "pidfd_send_signal", "setsid", "setpgid",
    # Namespaces, mounts, privileges, the kernel itself.
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsmount",
    "mount_setattr", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key", "init_module",
    "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
    "settimeofday", "clock_settime", "adjtimex", "sethostname", "setdomainname", "syslog", "open_by_handle_at",
    # Attributes of a file, which its owner may change anywhere under Landlock.
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
    "truncate",  # by path, which Landlock restricts only since Linux 6.2.
    # Watches on files, which need no right to read them.
    "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "fanotify_init", "fanotify_mark",
    # Ways around the filter and around the memory limit.
    "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "shmget", "shmat",
    "msgget", "mq_open",
)  # fmt: skip
# cuInit fails without these (error 304, "OS call failed").  It listens on a socket in the network namespace, which no
# other process shares.  To connect to another process, or to send to a path, stays denied.
_NEEDED_BY_CUDA = {"memfd_create", "socket", "bind", "listen"}
_DENIED_STRICT = ("fork", "vfork", "clone", "execve", "execveat")
# Calls that an older libseccomp does not know by name.  Since 424 a number is the same on every architecture.
_NUMBERS = {
    "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
    "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip

# Requests that make a file send signals to any process (F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP).  A
# filter of kill() does not see those signals.  The kernel reads the lower half of the argument only.
_SIGNALS_BY_FILE = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}
# FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: they change attributes of a file that is open for reading.
_ATTRIBUTES_BY_FILE = {"ioctl": (0x40086602, 0x401C5820)}
_LOW_HALF = 0xFFFFFFFF
# Calls that change limits and scheduling of any process of the same user; only these first arguments mean the caller.
# PRIO_PROCESS is 0, IOPRIO_WHO_PROCESS is 1.
_OF_A_PROCESS = {
    "prlimit64": (0,),
    "sched_setaffinity": (0,),
    "sched_setscheduler": (0,),
    "sched_setparam": (0,),
    "sched_setattr": (0,),
    "setpriority": (0, 0),
    "ioprio_set": (1, 0),
}

_libc = ctypes.CDLL(None, use_errno=True)


def confine(profile: str, scratch: Path, limits: Limits, shared: str | None = None) -> tuple[str, ...]:
    """Confine this process for good and return the names of the active layers.

    profile: "strict" (no processes, no threads), "compiler" (may start the assembler) or "gpu" (and use CUDA).
    scratch: the only folder that stays writable; absolute, existing.  shared: another one that may be read.

    The process must be single-threaded.  It can still exit and send signals to itself.  Anything else that a layer
    prevents fails with EPERM or EACCES.
    """
    return tuple(name for name, state in _confine(profile, scratch, limits, shared).items() if state == ACTIVE)


@functools.cache
def available_layers() -> dict[str, str]:
    """Each layer with "active", or the reason why this machine does not offer it; a new process tries them."""
    run = subprocess.run(
        [sys.executable, "-P", "-m", "fitness.sandbox.layers"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    layers: dict[str, str] = json.loads(run.stdout)
    return layers


def clean_environment() -> dict[str, str]:
    """The environment for processes that lead to untrusted code: what Python needs to find its packages, no keys."""
    carried = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return {
        **carried,
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": python_path(),
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONHASHSEED": "0",  # sets of names iterate in the same order in every run
    }


def python_path() -> str:
    """Returns the PYTHONPATH of evo's own processes: the folder of its packages, then what this process has."""
    packages = (p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    return os.pathsep.join([str(PROJECT), *packages])


def preload() -> None:
    """Does once, before the first fork, what is the same for every child.  `confine` reports what is missing."""
    _readable_paths()
    _visible_paths()
    _landlock_abi()
    for package in ("landlock", "pyseccomp"):
        with contextlib.suppress(ImportError, RuntimeError):
            importlib.import_module(package)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which forked it, ends for whatever reason."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call


def _confine(profile: str, scratch: Path, limits: Limits, shared: str | None = None) -> dict[str, str]:
    if profile not in PROFILES:
        raise ValueError(f"unknown sandbox profile {profile!r}; expected one of: {', '.join(PROFILES)}")
    parent, owner = os.getppid(), (os.getuid(), os.getgid())
    layers: dict[str, str] = {}

    def attempt(name: str, enter: Callable[[], None]) -> None:
        try:
            enter()
            layers[name] = ACTIVE
        except (OSError, RuntimeError, ImportError) as error:  # the kernel and the two packages raise these
            layers[name] = f"{type(error).__name__}: {error}".splitlines()[0]

    attempt("userns", lambda: _unshare(_CLONE_NEWUSER))
    attempt("netns", lambda: _unshare(_CLONE_NEWNET))
    attempt("ipcns", lambda: _unshare(_CLONE_NEWIPC))
    if profile != "gpu":  # CUDA reads more files than are listed here.
        attempt("view", lambda: only_visible((*_visible_paths(), *([shared] if shared else ())), scratch, owner))
    if limits.scratch_bytes:
        attempt("tmpfs", lambda: in_memory(scratch, limits.scratch_bytes, owner))
    if not _landlock_abi():
        attempt("mounts", lambda: only_writable(scratch))
    attempt("capabilities", _drop_capabilities)
    attempt("rlimits", lambda: _set_rlimits(profile, limits, layers["userns"] == ACTIVE))
    # Changing credentials clears the parent-death signal, so it is set after them.
    die_with_parent(parent)
    attempt("landlock", lambda: _restrict_files(scratch, profile == "gpu", shared))
    attempt("no_new_privs", lambda: _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    if profile != "gpu":  # CUDA names its threads through /proc; only a dumpable process may do that.
        attempt("not_dumpable", lambda: _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)))
    attempt("seccomp", lambda: _filter_syscalls(profile))
    return layers


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _unshare(flag: int) -> None:
    _check(_libc.unshare(flag))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def _drop_capabilities() -> None:
    """Drops all effective, permitted and inheritable capabilities, in whichever user namespace this is."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()  # (effective, permitted, inheritable) twice.
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)))


def _set_rlimits(profile: str, limits: Limits, own_user_namespace: bool) -> None:
    pages = Path("/proc/self/statm").read_text().split()
    which, mapped = (resource.RLIMIT_DATA, pages[5]) if profile == "gpu" else (resource.RLIMIT_AS, pages[0])
    _lower(which, int(mapped) * resource.getpagesize() + limits.memory_bytes)
    _lower(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)  # SIGXCPU, then SIGKILL if that is ignored.
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES[profile])
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_MSGQUEUE, 0)
    _lower(resource.RLIMIT_MEMLOCK, 0)
    if own_user_namespace and _kernel_version() >= (5, 14):
        # Counted per user namespace since Linux 5.14; before, the user's other processes would count too.
        _lower(resource.RLIMIT_NPROC, PROCESSES[profile])


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, but never above one that is in force already."""
    _, ceiling = resource.getrlimit(which)
    wanted = (soft, soft if hard is None else hard)
    if ceiling != resource.RLIM_INFINITY:
        wanted = (min(wanted[0], ceiling), min(wanted[1], ceiling))
    resource.setrlimit(which, wanted)


def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split("-")[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


@functools.cache
def _system_paths() -> tuple[str, ...]:
    """Existing files and folders that a Python process with torch and Triton reads; none is in a user's home folder.

    Some of them are links, or lie behind links.
    """
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    paths |= {p for p in sys.path if p and p != str(PROJECT)}
    paths |= {str(PROJECT / package) for package in ("evo", "fitness", "operators")}
    paths |= {"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"}
    paths |= {"/etc/localtime", "/dev/zero", "/dev/urandom", "/dev/random", "/sys/devices/system/cpu", "/proc/cpuinfo"}
    paths |= {str(Path(sys.executable).resolve().parent), "/proc/meminfo", "/proc/stat"}
    return tuple(sorted(p for p in paths if os.path.exists(p)))


@functools.cache
def _readable_paths() -> tuple[str, ...]:
    """The system paths with all links resolved."""
    return tuple(sorted({os.path.realpath(p) for p in _system_paths()}))


@functools.cache
def _visible_paths() -> tuple[str, ...]:
    """The paths that exist for a job: what it reads and writes, and links from one program to another."""
    others = ("/sbin", "/dev/null", "/etc/alternatives", sys.executable)
    return tuple(sorted({os.path.abspath(p) for p in (*_system_paths(), *others) if os.path.exists(p)}))


# What libcuda reads besides its device files; the last one lists the nodes of a NUMA machine.
_READ_BY_CUDA = ("/proc/driver/nvidia", "/proc/driver/nvidia-uvm", "/proc/devices", "/sys/devices/system/node")


def _restrict_files(scratch: Path, gpu: bool, shared: str | None) -> None:
    import landlock  # Linux only.

    ctypes.set_errno(0)  # The package reads errno also after calls that succeeded.
    rights = landlock.FSAccess
    rules = landlock.Ruleset()
    look, read = rights.READ_FILE | rights.EXECUTE, rights.READ_FILE | rights.EXECUTE | rights.READ_DIR
    own = f"/proc/{os.getpid()}"
    given = (shared,) if shared else ()
    for path in (*_readable_paths(), own, *given, *(filter(os.path.exists, _READ_BY_CUDA) if gpu else ())):
        rules.allow(path, rules=read if os.path.isdir(path) else look)
    if gpu:
        # A thread's name is written by a truncating open.  Older kernels restrict neither that nor ioctl.
        truncate = rights.TRUNCATE if _landlock_abi() >= 3 else rights(0)
        control = rights.IOCTL_DEV if _landlock_abi() >= 5 else rights(0)
        rules.allow(f"{own}/task", rules=read | rights.WRITE_FILE | truncate)
        for device in glob.glob("/dev/nvidia*"):
            if not os.path.isdir(device):
                rules.allow(device, rules=rights.READ_FILE | rights.WRITE_FILE | control)
    rules.allow("/dev/null", rules=rights.READ_FILE | rights.WRITE_FILE)
    rules.allow(scratch, rules=_writable(rights))
    rules.apply()


def _landlock_abi() -> int:
    """The version of Landlock, 0 if the kernel does not have it."""
    try:
        import landlock

        ctypes.set_errno(0)
        return int(landlock.landlock_abi_version())
    except (ImportError, OSError):
        return 0


def _writable(rights: type) -> object:
    """Everything a scratch folder needs: files and folders, no devices, sockets or pipes."""
    special = rights.MAKE_CHAR | rights.MAKE_BLOCK | rights.MAKE_SOCK | rights.MAKE_FIFO  # type: ignore[attr-defined]
    return rights.all() & ~special  # type: ignore[attr-defined]


def _filter_syscalls(profile: str) -> None:
    import pyseccomp  # Raises RuntimeError if libseccomp is missing.

    deny, arg = pyseccomp.ERRNO(errno.EPERM), pyseccomp.Arg
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)

    def add(action: int, name: str, *conditions: object) -> None:
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number == -1:
            number = _NUMBERS[name]
        if number >= 0:  # Other negative numbers: this architecture has no such call (aarch64 has no fork).
            rules.add_rule(action, number, *conditions)

    for name in _DENIED + _DENIED_STRICT if profile == "strict" else _DENIED:
        if profile != "gpu" or name not in _NEEDED_BY_CUDA:
            add(deny, name)
    if profile == "gpu":
        add(deny, "socket", arg(0, pyseccomp.NE, socket.AF_UNIX))
    # The flags of clone3 are in memory, which no filter can read.  On ENOSYS the C library falls back to clone.
    add(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    if profile != "gpu":
        # fallocate fills a disk faster than the zygote measures it.  On EOPNOTSUPP the C library writes instead.
        add(pyseccomp.ERRNO(errno.EOPNOTSUPP), "fallocate")
    if profile != "strict":
        for bit in (1 << b for b in range(32) if _CLONE_NEW_ANY >> b & 1):
            add(deny, "clone", arg(0, pyseccomp.MASKED_EQ, bit, bit))
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        # A process may signal itself, as abort() and faults do, but no other process.
        add(deny, name, arg(0, pyseccomp.NE, os.getpid()))
    for name, values in (*_SIGNALS_BY_FILE.items(), *_ATTRIBUTES_BY_FILE.items()):
        for value in values:
            add(deny, name, arg(1, pyseccomp.MASKED_EQ, _LOW_HALF, value))
    for name, own in _OF_A_PROCESS.items():
        if profile == "gpu" and name.startswith("sched_"):
            continue  # CUDA may place its own threads, by their ids; whether it needs to is not tested.
        for number, value in enumerate(own):
            add(deny, name, arg(number, pyseccomp.NE, value))
    rules.load()


def _probe() -> dict[str, str]:
    """Each layer with "active" or the reason why it is not, as a confined child of this process found it."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps(_confine("strict", Path(scratch), Limits(scratch_bytes=1 << 20))).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            layers: dict[str, str] = json.loads(stream.read())
        os.waitpid(pid, 0)
    return layers


if __name__ == "__main__":
    print(json.dumps(_probe()))

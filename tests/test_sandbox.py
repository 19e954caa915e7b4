"""Confinement, tried from inside: every test forks, confines the child, and has it try something."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fitness.sandbox.jobs import Limits
from fitness.sandbox.layers import ACTIVE, PROFILES, available_layers, clean_environment, confine

ROOT = Path(__file__).parent.parent
LAYERS = available_layers()
IN_MEMORY = "Limits(scratch_bytes=1 << 20)"  # with which there is every layer


def inside(code: str, scratch: Path, profile: str = "strict", limits: str = "Limits()", before: str = "") -> Any:
    """What `code` leaves in `answer` in a confined process; the name of the exception where it raises one."""
    program = f"""
import json, os, sys
from pathlib import Path
from fitness.sandbox.jobs import Limits
from fitness.sandbox.layers import confine, preload
scratch = Path({str(scratch)!r})
{before}
preload()
pid = os.fork()
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)
layers = confine({profile!r}, scratch, {limits})
answer = None
try:
    exec({textwrap.dedent(code)!r})
except BaseException as error:
    answer = type(error).__name__
os.write(1, json.dumps(answer).encode())
os._exit(0)
"""
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return json.loads(run.stdout) if run.stdout else f"exit {run.returncode}: {run.stderr}"


def needs(*layers: str) -> pytest.MarkDecorator:
    missing = {name: LAYERS[name] for name in layers if LAYERS[name] != ACTIVE}
    return pytest.mark.skipif(bool(missing), reason=f"this machine lacks {missing}")


def test_each_layer_is_active_or_has_a_reason() -> None:
    assert set(LAYERS) >= {"userns", "netns", "rlimits", "landlock", "seccomp", "no_new_privs"}
    assert all(LAYERS.values())
    assert LAYERS["rlimits"] == LAYERS["no_new_privs"] == ACTIVE  # every Linux has these


def test_confine_returns_the_active_layers(tmp_path: Path) -> None:
    active = [name for name, state in LAYERS.items() if state == ACTIVE]
    assert inside("answer = layers", tmp_path, limits=IN_MEMORY) == active


def test_an_unknown_profile_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="strict, compiler, gpu"):
        confine("lax", tmp_path, Limits())


def test_the_environment_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in clean_environment().values()


@needs("landlock")
@pytest.mark.parametrize("profile", PROFILES)
def test_writes_only_in_the_scratch_folder(tmp_path: Path, profile: str) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    scratch.mkdir()
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (scratch / "link").symlink_to(outside / "file")
    code = f"""
    tries = [
        lambda: open(scratch / "own", "w").write("x"),
        lambda: (scratch / "folder").mkdir(),
        lambda: open("/dev/null", "w").write("x"),
        lambda: open({str(outside / "file")!r}, "w"),
        lambda: open(scratch / "link", "w"),
        lambda: open({str(outside / "new")!r}, "w"),
        lambda: os.unlink({str(outside / "file")!r}),
        lambda: os.rename({str(outside / "file")!r}, scratch / "stolen"),
        lambda: os.truncate({str(outside / "file")!r}, 0),
        lambda: open({str(outside / "file")!r}).read(),
        lambda: os.listdir({str(outside)!r}),
        lambda: open("/etc/shadow").read(),
        lambda: os.mkfifo(scratch / "pipe"),
    ]
    answer = []
    for attempt in tries:
        try:
            attempt()
            answer.append("ok")
        except OSError as error:
            answer.append(type(error).__name__)
    """
    answer = inside(code, scratch, profile)
    assert answer[:3] == ["ok"] * 3
    if LAYERS["view"] == ACTIVE and profile != "gpu":
        hidden = ["FileNotFoundError"]  # but for calls that are refused whatever the path
        assert answer[3:] == hidden * 5 + ["PermissionError"] + hidden * 3 + ["PermissionError"]
    else:
        assert (
            set(answer[3:]) == {"PermissionError"}
            or answer[3:] == ["PermissionError"] * 4 + ["OSError"] + ["PermissionError"] * 5
        )
    assert (outside / "file").read_text() == "untouched" and len(list(outside.iterdir())) == 1


SIGHT = """
def sees(path):
    tries = [
        lambda: os.stat(path),
        lambda: os.lstat(path),
        lambda: os.statvfs(path),
        lambda: os.open(path, os.O_PATH),
        lambda: os.stat(os.path.join(path, "..")),
        lambda: os.getxattr(path, "user.x"),
    ]
    found = [os.access(path, os.F_OK)]
    for attempt in tries:
        try:
            attempt()
            found.append(True)
        except FileNotFoundError:
            found.append(False)
        except OSError:
            found.append(True)
    return sorted(set(found))
"""


@needs("view")
@pytest.mark.parametrize("limits", ["Limits()", IN_MEMORY])
@pytest.mark.parametrize("profile", ["strict", "compiler"])
def test_a_job_does_not_see_which_other_files_there_are(tmp_path: Path, profile: str, limits: str) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    scratch.mkdir()
    outside.write_text("x")
    (scratch / "link").symlink_to(outside)
    hidden = [str(outside), str(ROOT / "README.md"), str(ROOT / "tests"), "/etc/passwd", "/boot"]
    code = f"""
    {textwrap.indent(SIGHT, "    ").strip()}
    answer = [sees(path) for path in {hidden!r}] + [os.path.exists(scratch / "link")]
    """
    assert inside(code, scratch, profile, limits) == [[False]] * len(hidden) + [False]


@needs("view")
@pytest.mark.parametrize("profile", ["strict", "compiler"])
def test_a_job_finds_what_it_needs(tmp_path: Path, profile: str) -> None:
    code = """
    import sqlite3, torch.fft, triton.backends.nvidia.driver, xml.dom.minidom
    from fitness.frontend.recording import job

    needed = [sys.executable, os.path.realpath(sys.executable), torch.__file__, job.__file__]
    needed += ["/bin/sh", "/usr/bin/env", "/lib", "/dev/null", "/dev/urandom", "/proc/self/maps", "/etc/ld.so.cache"]
    answer = [path for path in needed if not os.path.exists(path)], os.getcwd() == str(scratch)
    """
    assert inside(code, tmp_path, profile, "Limits(memory_bytes=8 << 30)") == [[], True]


@needs("view", "landlock")
def test_what_a_job_writes_is_there_for_others(tmp_path: Path) -> None:
    inside("(scratch / 'folder').mkdir()\n(scratch / 'folder' / 'file').write_text('x')", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    assert (tmp_path / "folder" / "file").read_text() == "x"


@needs("view")
def test_where_there_can_be_no_new_root_a_job_has_its_folder(tmp_path: Path) -> None:
    before = """
import fitness.sandbox.mounts as mounts
def fails(root):
    raise OSError(22, "no new root", root)
mounts._pivot_to = fails
"""
    (tmp_path / "file").write_text("x")
    code = "answer = [layers, (scratch / 'file').read_text(), os.listdir(scratch), os.getcwd()]"
    layers, *found = inside(code, tmp_path, before=before)
    assert "view" not in layers and {"landlock", "seccomp"} & set(layers) == {
        name for name in ("landlock", "seccomp") if LAYERS[name] == ACTIVE
    }
    assert found[:2] == ["x", ["file"]]


@needs("seccomp")
@pytest.mark.parametrize("profile", PROFILES)
def test_nobody_watches_files(tmp_path: Path, profile: str) -> None:
    code = """
    import ctypes, errno
    libc = ctypes.CDLL(None, use_errno=True)
    calls = {"inotify_init": (), "inotify_init1": (0,), "inotify_add_watch": (0, b"/usr", 2), "fanotify_init": (0, 0)}
    calls["fanotify_mark"] = (0, 1, 2, 0, -100, b"/usr")
    answer = {name: (getattr(libc, name)(*a), errno.errorcode[ctypes.get_errno()]) for name, a in calls.items()}
    """
    assert set(map(tuple, inside(code, tmp_path, profile).values())) == {(-1, "EPERM")}


@needs("userns", "seccomp")
@pytest.mark.parametrize("limits", ["Limits()", IN_MEMORY])
def test_without_landlock_all_mounts_but_the_scratch_folder_are_read_only(tmp_path: Path, limits: str) -> None:
    before = """
import errno, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for landlock in (444, 445, 446):
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), landlock)
rules.load()
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f"""
    answer = {{"layers": layers}}
    open(scratch / "own", "w").write("x")
    open("relative", "w").write("x")
    open("/dev/null", "w").write("x")
    for path in ({str(tmp_path / "new")!r}, "/tmp/new", "/dev/shm/new", "/proc/self/comm"):
        try:
            open(path, "w")
            answer[path] = "written"
        except OSError as error:
            answer[path] = error.strerror
    """
    answer = inside(code, scratch, limits=limits, before=before + "os.chdir(scratch)")
    layers = answer.pop("layers")
    if "mounts" not in layers:
        pytest.skip("mounts of this machine cannot be changed in a user namespace")
    if "view" in layers:
        assert answer.pop("/dev/shm/new") == "No such file or directory"
    assert "landlock" not in layers and set(answer.values()) == {"Read-only file system"}
    assert sorted(p.name for p in scratch.iterdir()) == ([] if "tmpfs" in layers else ["own", "relative"])


@needs("seccomp")
@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.socket()",
        "import socket\nsocket.socketpair()",
        "os.kill(os.getppid(), 0)",
        "os.kill(-1, 0)",
        "os.kill(0, 0)",
        "os.setsid()",
        "import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import fcntl\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import fcntl\nfcntl.fcntl(os.pipe()[0], 10, 9)",  # F_SETSIG
        "import fcntl, struct\nfcntl.fcntl(os.pipe()[0], 15, struct.pack('ii', 1, os.getppid()))",  # F_SETOWN_EX
        "import fcntl, struct\nfcntl.ioctl(os.pipe()[0], 0x8901, struct.pack('i', os.getppid()))",  # FIOSETOWN
        "os.sched_setaffinity(os.getppid(), {0})",
        "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setparam(os.getppid(), os.sched_param(0))",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        "os.setpriority(os.PRIO_PGRP, 0, 19)",
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_denied_system_calls(tmp_path: Path, code: str, profile: str) -> None:
    assert inside(code, tmp_path, profile) == "PermissionError"


@needs("seccomp")
@pytest.mark.parametrize("profile", PROFILES)
def test_modes_owners_times_and_attributes_of_files_stay(tmp_path: Path, profile: str) -> None:
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    scratch.mkdir()
    outside.write_text("x")
    os.utime(outside, (1, 1))
    readable = "/usr/bin/env"  # may be opened, so there are calls on a descriptor too
    code = f"""
    import fcntl
    path, file = {str(outside)!r}, os.open({readable!r}, os.O_RDONLY)
    tries = {{
        "chmod": lambda: os.chmod(path, 0o4777),
        "fchmod": lambda: os.chmod(file, 0o4755),
        "folder": lambda: os.chmod(os.path.dirname(path), 0o777),
        "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
        "lchown": lambda: os.lchown(path, os.getuid(), os.getgid()),
        "fchown": lambda: os.fchown(file, -1, -1),
        "utime": lambda: os.utime(path, (0, 0)),
        "futimens": lambda: os.utime(file),
        "setxattr": lambda: os.setxattr(path, "user.x", b"y"),
        "removexattr": lambda: os.removexattr(path, "user.x"),
        "truncate": lambda: os.truncate(path, 0),
        "flags": lambda: fcntl.ioctl(file, 0x40086602, b"\\0" * 8),
        "fsxattr": lambda: fcntl.ioctl(file, 0x401C5820, b"\\0" * 28),
    }}
    answer = {{}}
    for name, attempt in tries.items():
        try:
            attempt()
            answer[name] = "done"
        except OSError as error:
            answer[name] = type(error).__name__
    """
    found, mode = inside(code, scratch, profile), outside.stat().st_mode
    assert {name for name, said in found.items() if said != "PermissionError"} == set()
    assert outside.stat().st_mtime == 1 and outside.read_text() == "x" and mode == outside.stat().st_mode


@needs("seccomp")
def test_what_the_kernel_does_not_look_at_hides_no_request(tmp_path: Path) -> None:
    code = """
    import ctypes, errno
    libc = ctypes.CDLL(None, use_errno=True)
    fcntl = {"x86_64": 72, "aarch64": 25}[os.uname().machine]
    upper = ctypes.c_long(1 << 32 | 8)  # F_SETOWN, to the kernel
    answer = libc.syscall(fcntl, ctypes.c_long(os.pipe()[0]), upper, ctypes.c_long(os.getppid())), ctypes.get_errno()
    """
    assert inside(code, tmp_path) == [-1, errno.EPERM]


@needs("seccomp")
@pytest.mark.parametrize("profile", PROFILES)
def test_its_own_scheduling_and_files_are_its_own_business(tmp_path: Path, profile: str) -> None:
    code = """
    import fcntl
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, os.O_NONBLOCK)
    answer = os.getpriority(os.PRIO_PROCESS, 0)
    """
    assert inside(code, tmp_path, profile) == 19


NEEDED_BY_CUDA = ("import socket\nsocket.socket(socket.AF_UNIX)", "os.memfd_create('x')")


@needs("seccomp")
@pytest.mark.parametrize("code", NEEDED_BY_CUDA)
def test_what_cuda_needs_nobody_else_gets(tmp_path: Path, code: str) -> None:
    assert [inside(code, tmp_path, profile) for profile in PROFILES] == ["PermissionError"] * 2 + [None]


@needs("seccomp")
def test_a_process_with_a_gpu_can_listen_and_talk_to_nobody(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "service"))
        server.listen()
        code = f"""
        import socket
        own = socket.socket(socket.AF_UNIX)
        own.bind("\\0evo-test")
        own.listen()
        answer = []
        for family, act in (
            (socket.AF_UNIX, lambda s: s.connect({str(tmp_path / "service")!r})),
            (socket.AF_UNIX, lambda s: s.connect("\\0evo-test")),
            (socket.AF_UNIX, lambda s: s.bind(str(scratch / "socket"))),
            (socket.AF_UNIX, lambda s: s.sendto(b"x", {str(tmp_path / "service")!r})),
            (socket.AF_INET, lambda s: None),
        ):
            try:
                act(socket.socket(family))
                answer.append("ok")
            except OSError as error:
                answer.append(type(error).__name__)
        """
        assert inside(code, tmp_path, "gpu") == ["PermissionError"] * 5


@needs("rlimits")
def test_a_process_with_a_gpu_may_reserve_but_not_use_all_memory(tmp_path: Path) -> None:
    code = """
    import mmap
    reserved = mmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | 0x4000, prot=0)  # MAP_NORESERVE
    try:
        bytearray(2 << 30)
    except MemoryError:
        answer = len(reserved)
    """
    assert inside(code, tmp_path, "gpu", "Limits(memory_bytes=1 << 30)") == 1 << 42
    assert inside(code, tmp_path, "compiler", "Limits(memory_bytes=1 << 30)") == "OSError"


@needs("seccomp")
def test_more_denied_system_calls(tmp_path: Path) -> None:
    code = """
    import ctypes, errno
    libc = ctypes.CDLL(None, use_errno=True)
    calls = {"ptrace": (0, 0, 0, 0), "unshare": (0x10000000,), "mount": (None, b"/", None, 0, None)}
    calls |= {"process_vm_readv": (os.getppid(), None, 0, None, 0, 0)}
    answer = {name: (getattr(libc, name)(*a), errno.errorcode[ctypes.get_errno()]) for name, a in calls.items()}
    """
    assert inside(code, tmp_path) == {
        name: [-1, "EPERM"] for name in ("ptrace", "unshare", "mount", "process_vm_readv")
    }


@needs("seccomp")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os.fork()", "PermissionError"),
        ("import subprocess\nsubprocess.run(['/bin/true'])", "PermissionError"),
        ("os.execv('/bin/true', ['true'])", "PermissionError"),
        ("os.posix_spawn('/bin/true', ['true'], {})", "PermissionError"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
    ],
)
def test_strict_makes_no_process_and_no_thread(tmp_path: Path, code: str, error: str) -> None:
    assert inside(code, tmp_path) == error


def test_the_compiler_may_start_programs(tmp_path: Path) -> None:
    code = "import subprocess\nanswer = subprocess.run(['/bin/echo', 'hello'], capture_output=True, text=True).stdout"
    assert inside(code, tmp_path, "compiler") == "hello\n"


def test_the_compiler_can_have_a_library_built(tmp_path: Path) -> None:
    code = """
    import ctypes, subprocess
    (scratch / "one.c").write_text("int one(void) { return 1; }")
    os.chdir(scratch)
    os.environ["TMPDIR"] = str(scratch)
    command = ["gcc", "-shared", "-fPIC", "one.c", "-o", "one.so"]
    done = subprocess.run(command, capture_output=True, text=True)
    answer = done.stderr or ctypes.CDLL(str(scratch / "one.so")).one()
    """
    assert inside(code, tmp_path, "compiler") == 1


@needs("seccomp")
def test_what_a_compiler_starts_is_confined_too(tmp_path: Path) -> None:
    code = """
    import subprocess
    tries = "import socket\\ntry: socket.socket()\\nexcept OSError as e: print(type(e).__name__)"
    answer = subprocess.run([sys.executable, "-S", "-c", tries], capture_output=True, text=True).stdout
    """
    assert inside(code, tmp_path, "compiler") == "PermissionError\n"


@needs("userns", "capabilities")
def test_root_has_no_privilege(tmp_path: Path) -> None:
    code = """
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    answer = [int(status[k], 16) for k in ("CapEff", "CapPrm", "CapInh")] + [status["NoNewPrivs"].strip()]
    """
    assert inside(code, tmp_path) == [0, 0, 0, "1"]


@needs("netns")
def test_there_is_no_network(tmp_path: Path) -> None:
    assert inside("answer = os.readlink('/proc/self/ns/net')", tmp_path) != os.readlink("/proc/self/ns/net")


def test_limits(tmp_path: Path) -> None:
    code = """
    import resource
    answer = {}
    try:
        bytearray(1 << 30)
    except MemoryError:
        answer["memory"] = True
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(scratch / "big", "wb", buffering=0) as file:
        file.seek((10 << 20) - 1)
        file.write(b"x")
        try:
            file.write(b"x")
        except OSError as error:
            answer["file"] = error.strerror
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
    except ValueError:
        answer["raise"] = "refused"
    answer["core"] = resource.getrlimit(resource.RLIMIT_CORE)
    """
    limits = "Limits(memory_bytes=512 << 20, file_bytes=10 << 20, cpu_s=5)"
    expected = {"memory": True, "file": "File too large", "raise": "refused", "core": [0, 0]}
    assert inside(code, tmp_path, limits=limits) == expected


@needs("tmpfs")
def test_a_job_whose_files_nobody_reads_cannot_fill_a_disk(tmp_path: Path) -> None:
    code = """
    answer = []
    for what in (lambda: os.posix_fallocate(os.open("large", os.O_CREAT | os.O_WRONLY), 0, 2 << 20),
                 lambda: [open(f"small{number}", "w").close() for number in range(10_000)]):
        try:
            what()
        except OSError as error:
            answer.append(error.strerror)
    """
    assert inside(code, tmp_path, limits=IN_MEMORY) == ["No space left on device"] * 2
    assert list(tmp_path.iterdir()) == []


@needs("seccomp")
@pytest.mark.parametrize("profile", ["strict", "compiler"])
def test_files_take_no_more_of_a_disk_than_is_written(tmp_path: Path, profile: str) -> None:
    """Blocks are not to be had faster than by writing them, but who asks for some by the C library gets them."""
    code = """
    import ctypes
    with open(scratch / "file", "wb") as file:
        asked = ctypes.CDLL(None).fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(1 << 20))
        os.posix_fallocate(file.fileno(), 0, 1 << 16)
        answer = [asked, os.fstat(file.fileno()).st_size]
    """
    assert inside(code, tmp_path, profile) == [-1, 1 << 16]


@needs("tmpfs", "landlock")
def test_a_folder_in_memory_is_the_only_one_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    code = f"""
    layers = set(layers)
    try:
        open({str(tmp_path / "file")!r}, "w")
    except OSError as error:
        answer = [type(error).__name__, {{"tmpfs", "landlock", "capabilities", "seccomp"}} <= layers]
    """
    answer = inside(code, tmp_path / "own", limits=IN_MEMORY)
    assert answer == ["PermissionError", True]


def test_signals_to_itself_still_work(tmp_path: Path) -> None:
    assert inside("os.abort()", tmp_path).startswith("exit 250")  # -SIGABRT, modulo 256


def test_a_missing_layer_is_reported_and_the_others_stay(tmp_path: Path) -> None:
    before = """
import builtins
real = builtins.__import__
def without(name, *args):
    if name == "landlock":
        raise ImportError("No module named 'landlock'")
    if name == "pyseccomp":
        raise RuntimeError("Unable to find libseccomp")
    return real(name, *args)
builtins.__import__ = without
"""
    layers = inside("answer = layers", tmp_path, limits=IN_MEMORY, before=before)
    assert "rlimits" in layers and not {"landlock", "seccomp"} & set(layers)
    active = {name for name, state in LAYERS.items() if state == ACTIVE}
    assert set(layers) - {"mounts"} == active - {"landlock", "seccomp", "mounts"}

"""Checks what this machine can do, and how to fix what it cannot, for `evo doctor`.

A check is a function that looks and returns what it found, without assumptions.  A check that raises is reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from evo.core.errors import EvoError, how_to_install
from evo.core.models import Model
from fitness.cuda.gpus import Gpus

OK, MISSING, UNUSABLE = "ok", "missing", "not usable"

PACKAGE = "evo-triton"
RUN_FOLDER = Path("runs")
# A candidate measured on a GPU takes about 20 kB in the store: enough for ten thousand.
RUN_BYTES = 256 << 20
RAY_S = 30.0  # to start Ray's client and reach a cluster

_FIX_VERSIONS = how_to_install()
_FIX_COUNTERS = (
    "let users read them (module option NVreg_RestrictProfilingToAdminUsers=0, then reboot), run as root, or give the "
    "container --cap-add SYS_ADMIN; without, profiles rest on times and compiled code"
)
_FIX_TOOLS = {
    "ncu": "install NVIDIA Nsight Compute (CUDA toolkit); without, profiles rest on times and compiled code",
    "compute-sanitizer": "install it (CUDA toolkit); without, the best kernel is not run under it",
}
_FIX_LAYERS = {
    "userns": "allow user namespaces: sysctl user.max_user_namespaces=10000, kernel.apparmor_restrict_unprivileged_"
    "userns=0; in a container --security-opt seccomp=unconfined",
    "landlock": "Linux 5.13 or newer with landlock among the lsm= of the kernel's command line",
    "seccomp": "install libseccomp (Debian, Ubuntu: apt install libseccomp2)",
    "view": "allow user namespaces, and mounts in them",
    "tmpfs": "allow user namespaces, and mounts in them",
    "mounts": "needed only if Landlock is missing; allow user namespaces",
}


@dataclass(frozen=True)
class Probe:
    """The result of a check: a state (OK, MISSING, UNUSABLE), what was found, and how to fix it ("": nothing to fix).

    A run does not work if a check that is `needed` is not ok.
    """

    name: str
    state: str
    found: str
    fix: str = ""
    needed: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Machine:
    """What to check: how a run would start, and functions that get its parts."""

    find_gpus: Callable[[], Gpus]
    try_run: Callable[
        [], str
    ]  # evaluates a seed as `evo run` would, returns a line on it; raises EvoError if that fails
    ray_address: str | None = None
    models: Sequence[Model] = ()


def examine(machine: Machine) -> Iterator[Probe]:
    """Yields all checks, the quick ones first, each as soon as it is known."""
    yield from _guard("Python", lambda: [_python()], needed=True)
    yield from _guard("packages", _packages, needed=True)
    yield from _guard("disk", lambda: [_disk(RUN_FOLDER, RUN_BYTES), _scratch()], needed=True)
    yield from _guard("sandbox", _sandbox)
    gpus: list[Gpus] = []

    def look() -> list[Probe]:
        gpus.append(machine.find_gpus())
        return [_driver(), *_gpu(gpus[0])]

    yield from _guard("GPU", look)
    usable = bool(gpus) and not gpus[0].problem
    for name in _FIX_TOOLS:
        yield from _guard(name, lambda name=name: [_tool(name, usable)])  # type: ignore[misc]
    yield from _guard("Ray", lambda: _ray(machine.ray_address))
    for model in machine.models:
        yield from _guard(f"model {model.name}", lambda model=model: [_model(model)], needed=True)  # type: ignore[misc]
    yield from _guard("evo run", lambda: [_run(machine)], needed=True)


def _guard(name: str, check: Callable[[], list[Probe]], *, needed: bool = False) -> list[Probe]:
    try:
        return check()
    except Exception as error:
        found = f"the check itself failed: {type(error).__name__}: {error}".partition("\n")[0]
        return [Probe(name, UNUSABLE, found, "report this line", needed)]


# --- Python and its packages -----------------------------------------------------------------------------------------


def _project() -> tuple[str, list[str]]:
    """Returns the supported versions of Python and all requirements; of the source tree if evo is not installed."""
    try:
        return metadata.metadata(PACKAGE)["Requires-Python"], metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        path = Path(__file__).resolve().parents[2] / "pyproject.toml"
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        optional = project["optional-dependencies"].items()
        extras = [f'{text}; extra == "{extra}"' for extra, texts in optional for text in texts]
        return project["requires-python"], [*project["dependencies"], *extras]


def _python() -> Probe:
    from packaging.specifiers import SpecifierSet

    version, supported = ".".join(map(str, sys.version_info[:3])), _project()[0]
    found = f"{version} on {len(os.sched_getaffinity(0))} processors"
    if SpecifierSet(supported).contains(version):
        return Probe("Python", OK, found, needed=True)
    return Probe("Python", UNUSABLE, f"{found}; supported: {supported}", f"use Python {supported}", True)


def _packages() -> list[Probe]:
    """torch and triton on their own, the other packages that every run needs on one line."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in _project()[1]]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    alone = [_package(r.name, r.specifier) for r in needed if r.name in ("torch", "triton")]
    others = [_package(r.name, r.specifier) for r in needed if r.name not in ("torch", "triton")]
    broken = [check for check in others if check.state != OK]
    fine = Probe("other packages", OK, f"{len(others)} of {len(others)} in supported versions", needed=True)
    return [*alone, *(broken or [fine])]


def _package(name: str, supported: Any, *, needed: bool = True) -> Probe:
    """`supported`: a packaging.specifiers.SpecifierSet."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Probe(name, MISSING, f"supported: {supported}", _FIX_VERSIONS, needed)
    if supported.contains(version, prereleases=True):
        return Probe(name, OK, version, needed=needed)
    return Probe(name, UNUSABLE, f"{version}; supported: {supported}", _FIX_VERSIONS, needed)


def _optional(extra: str, name: str) -> Probe:
    """A package of one of the extras."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, _project()[1]):
        if requirement.name == name and requirement.marker and requirement.marker.evaluate({"extra": extra}):
            check = _package(name, requirement.specifier, needed=False)
            if check.state == OK:
                return check
            return Probe(name, check.state, check.found, how_to_install(extra))
    return Probe(name, UNUSABLE, f"{PACKAGE} as it is installed here knows no extra {extra} with it", _FIX_VERSIONS)


# --- disk and sandbox ------------------------------------------------------------------------------------------------


def _scratch() -> Probe:
    from fitness.sandbox.jobs import Limits

    return _disk(
        Path(tempfile.gettempdir()), Limits().file_bytes, " (a candidate may write that much before it is ended)"
    )


def _disk(folder: Path, wanted: int, why: str = "") -> Probe:
    """Checks that files can be written in `folder` (or its nearest parent), and that `wanted` bytes are free."""
    name = f"disk, {folder}"
    there = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"evo")
    except OSError as error:
        return Probe(name, UNUSABLE, f"{there} cannot be written: {error}", "go to a folder of your own", True)
    free = shutil.disk_usage(there).free
    if free < wanted:
        found = f"{free / 2**30:.1f} GiB free, {wanted / 2**30:.2g} GiB needed{why}"
        return Probe(name, UNUSABLE, found, "free disk space, or use another folder (TMPDIR, --run-dir)", True)
    return Probe(name, OK, f"{free / 2**30:.1f} GiB free", needed=True)


def _sandbox() -> list[Probe]:
    from fitness.sandbox.layers import ACTIVE, available_layers

    checks = []
    for layer, state in available_layers().items():
        if state == ACTIVE:
            checks.append(Probe(f"sandbox {layer}", OK, "active"))
        else:
            fix = _FIX_LAYERS.get(layer, "a newer Linux, or a container with fewer restrictions")
            checks.append(Probe(f"sandbox {layer}", MISSING, state, f"{fix}; candidates run without it"))
    return checks


# --- GPU -------------------------------------------------------------------------------------------------------------


def _driver() -> Probe:
    from fitness.cuda.nvidia import driver_version

    version = driver_version()
    if version:
        return Probe("NVIDIA driver", OK, version)
    return Probe(
        "NVIDIA driver", MISSING, "none", "on a machine with a GPU, install it; times are estimated without one"
    )


def _gpu(gpus: Gpus) -> list[Probe]:
    """Checks the GPU that torch sees, and the packages that drive it."""
    import torch

    if gpus.problem and not gpus.count:
        fix = "" if torch.version.cuda else "on a machine with a GPU, install a CUDA build of torch"
        gpu = Probe("GPU", MISSING, gpus.problem, fix or "check the driver: nvidia-smi")
    elif gpus.problem:
        gpu = Probe("GPU", UNUSABLE, gpus.problem, "choose a --target it can run, or install what is missing")
    else:
        gpu = Probe("GPU", OK, f"{gpus.count}, {gpus.name}, CUDA {torch.version.cuda}")
    return [gpu, *(_optional("gpu", name) for name in ("nvidia-ml-py", "cuda-bindings"))]


def _tool(name: str, gpu: bool) -> Probe:
    from fitness.cuda.nvidia import find_tool, tool_problem, tool_version

    path = find_tool(name)
    if not path:
        return Probe(name, MISSING, "not found", _FIX_TOOLS[name])
    version = tool_version(path)
    if not gpu:
        return Probe(
            name, UNUSABLE, f"{version} at {path}, but this machine has no GPU for it", "use a machine with one"
        )
    problem = tool_problem(name, path)
    if problem:
        fix = _FIX_COUNTERS if "counters" in problem else _FIX_TOOLS[name]
        return Probe(name, UNUSABLE, f"{version} at {path}: {problem}", fix)
    return Probe(name, OK, f"{version}, works on GPU 0")


# --- Ray, models and a run -----------------------------------------------------------------------------------------


def _ray(address: str | None) -> list[Probe]:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return [Probe("Ray", MISSING, "needed for several GPUs", how_to_install())]
    installed = Probe("Ray", OK, version)
    return [installed] if address is None else [installed, _cluster(address)]


def _cluster(address: str) -> Probe:
    """Joins the cluster in a process of its own: Ray's client may wait for long, and works once a process."""
    code = (
        "import json, ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error'); "
        "print(json.dumps(ray.cluster_resources()))"
    )
    fix = "start it (`ray start --head`), or correct --ray-address HOST:PORT"
    try:
        run = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, timeout=RAY_S)
    except subprocess.TimeoutExpired:
        return Probe(f"Ray at {address}", UNUSABLE, f"no answer within {RAY_S:g} s", fix, True)
    if run.returncode:
        found = (run.stderr.strip() or f"exit code {run.returncode}").splitlines()[-1]
        return Probe(f"Ray at {address}", UNUSABLE, found, fix, True)
    resources = json.loads(run.stdout.splitlines()[-1])
    found = f"reachable, {resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
    return Probe(f"Ray at {address}", OK, found, needed=True)


def _model(model: Model) -> Probe:
    """Checks that `model` can be asked, without a request that costs money."""
    from evo.llm.base import Failed
    from evo.llm.providers import open_provider

    name, fix = f"model {model.name}", "correct --model, the network or the key (docs/llm.md)"
    try:
        provider = open_provider(model, os.environ)
        if model.provider == "mailbox":
            return replace(_disk(model.path, 0), name=name)
        if model.provider == "replay":
            return Probe(name, OK, f"answers of {model.path}", needed=True)
        if model.provider != "openai":
            return Probe(name, OK, f"of the plug-in for {model.provider!r}; it is not asked", needed=True)
        served = asyncio.run(provider.served())  # type: ignore[attr-defined]  # the provider of endpoints has it
    except (EvoError, Failed) as error:
        return Probe(name, UNUSABLE, f"{model.endpoint}: {error}", fix, True)
    wanted = model.sent_as or model.name
    if served is None:
        return Probe(name, OK, f"{model.endpoint} answers; it keeps no list of its models", needed=True)
    if wanted not in served:
        names = ", ".join(sorted(served)[:5]) + (", …" if len(served) > 5 else "")
        return Probe(name, UNUSABLE, f"{model.endpoint} serves {names or 'no models'}, not {wanted}", fix, True)
    return Probe(name, OK, f"served by {model.endpoint}", needed=True)


def _run(machine: Machine) -> Probe:
    try:
        return Probe("evo run", OK, machine.try_run(), needed=True)
    except EvoError as error:
        found = " ".join(str(error).split())
        return Probe("evo run", UNUSABLE, found, "fix what is not ok above; --gpus none needs no GPU", True)

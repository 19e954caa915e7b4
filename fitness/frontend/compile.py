"""Compiles a candidate's launches for the target GPU, without a GPU.

A replaced driver names the device that Triton compiles for.  Triton specialises on dtypes, on divisibility by 16 and on
the value 1; it reads those from stand-ins for the tensors.  Resources and machine code are read from the cubin.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import re
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
from elftools.elf.elffile import ELFFile
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.errors import TritonError
from triton.runtime import cache as triton_cache
from triton.runtime import driver
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction, MockTensor

from evo.core.records import Verdict
from fitness.frontend import screen
from fitness.frontend.kernels import argument, get_kernel, load_kernels
from fitness.frontend.memory import DTYPES
from fitness.frontend.plan import ITEMSIZE, TensorRef, decode
from fitness.frontend.target import Target, from_spec
from fitness.sandbox.jobs import JobError

# What Triton raises for a kernel that it cannot compile, besides its own errors.
_AT_FAULT = (
    TritonError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError, NameError, IndexError,
    RecursionError, ArithmeticError, SyntaxError,
)  # fmt: skip

# For these errors Triton's autotuner skips the configuration instead of failing (`Autotuner._bench`).  A static_assert
# in a function that the kernel calls is not among them: Triton wraps it.
_SKIPPED_BY_TUNER = (OutOfResources, CompileTimeAssertionFailure, PTXASError)

# Options that a launch may set.  Others (`ir_override`, `extern_libs`, `ptx_options`, ...) add code that the
# interpreter does not check.
OPTIONS = {
    "num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid",
    "debug", "sanitize_overflow",
}  # fmt: skip

# Attributes of .nv.info records (CUDA's EIATTR_*); (symbol, value) follows each.
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F


def job(payload: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Compiles payload["launches"] one after the other and returns {"builds": [...]} in their order.

    payload: "source", "constants", "target" (`Target.spec`), "launches": [{"kernel", "args", "options", "line"?}] with
    arguments encoded as in plans.  "cache_dir" (optional): a folder for Triton's cache instead of `scratch`.
    "build_s" (optional): CPU seconds that one build may take, whole ones counted from the process's start.
    "machine_code" (optional): false if it is enough to know that launches compile, and with how much shared memory.
    Their builds then end at LLVM's IR, unless CUDA limits the launch by its registers (a cooperative one).

    A build has the fields of `evo.core.records.Build` and:
    - "parameters": names of the runtime parameters, in order
    - "launch": see `_launch_needs`
    - "resident": programs on a multiprocessor
    - "key": Triton's name of the build; equal builds are compiled once
    - "ptx_features": see `ptx_features`
    - "cubin": file name in `scratch`

    A build that ends at LLVM's IR has "kernel", "shared_bytes", "num_warps", "compile_s" and "key" only.

    A launch that Triton's autotuner would skip has {"problem", "line"} instead: why, and the line within the kernel,
    from 1 (0: unknown).  Raises JobError(COMPILE_ERROR) for all other errors.
    """
    target = from_spec(payload["target"])
    kernels = load_kernels(payload["source"], payload["constants"], scratch)
    cache = Path(payload.get("cache_dir") or scratch / "triton")
    by_hash: dict[str, dict[str, Any]] = {}
    builds = []
    most_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
    with _compiling_for(target, cache, scratch):
        for launch in payload["launches"]:
            if build_s := payload.get("build_s"):
                _end_after(build_s, most_s)
            kernel = get_kernel(kernels, launch["kernel"], launch.get("line", 0))
            args = {name: _stand_in(decode(value), kernels) for name, value in launch["args"].items()}
            options = {name: decode(value) for name, value in launch["options"].items()}
            _check_options(launch, options)
            code = payload.get("machine_code", True) or bool(options.get("launch_cooperative_grid"))
            begin = time.perf_counter()
            try:
                with contextlib.nullcontext() if code else _until_llvm():
                    compiled = _compile(kernel, args, options, kernels, scratch)
            except _SkippedConfiguration as error:
                builds.append({"problem": error.message, "line": _own_line(kernel, error.line)})
                continue
            if compiled.hash not in by_hash:
                seconds = time.perf_counter() - begin
                found = {"kernel": launch["kernel"], "compile_s": seconds, "key": compiled.hash}
                found |= {"shared_bytes": compiled.metadata.shared, "num_warps": compiled.metadata.num_warps}
                by_hash[compiled.hash] = found | (_describe_code(compiled, target, scratch) if code else {})
            builds.append(by_hash[compiled.hash])
    return {"builds": builds}


def _end_after(build_s: float, most_s: int) -> None:
    """Has a signal end this process once it has used `build_s` CPU seconds more.

    ptxas has the same limit, and its own time begins at 0.  most_s: CPU seconds of the whole job.
    """
    until_s = math.ceil(time.process_time() + build_s)
    _, hardest_s = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(until_s, most_s), hardest_s))


class _SkippedConfiguration(JobError):
    """A configuration does not compile, but another one of the same launch may."""


def _own_line(kernel: JITFunction, line: int) -> int:
    """A line of the candidate's source counted from the kernel's first line, from 1; 0 if it is outside the kernel."""
    own = line - kernel.fn.__code__.co_firstlineno + 1
    return own if 1 <= own <= kernel.src.count("\n") + 1 else 0


def _check_options(launch: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    foreign = sorted(set(options) - OPTIONS)
    if foreign:
        message = f"launch option {', '.join(foreign)} is not allowed; allowed: {', '.join(sorted(OPTIONS))}"
        raise JobError(Verdict.REJECTED, message, launch.get("line", 0))
    stages = options.get("num_stages")
    if stages is not None and (type(stages) is not int or not 0 <= stages <= screen.MOST_STAGES):
        # Triton compiles any number.  It ignores numbers below 2, and all numbers if there is nothing to pipeline.
        message = f"num_stages={stages!r} is not allowed; give an integer from 0 to {screen.MOST_STAGES}"
        raise JobError(Verdict.REJECTED, message, launch.get("line", 0))


# --- Triton without a device -----------------------------------------------------------------------------------------


class _Device:
    """The part of a Triton driver that compiling asks for."""

    def __init__(self, target: Target) -> None:
        self._target = GPUTarget("cuda", target.arch, screen.WARP)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


class _StandIn(MockTensor):
    """A tensor that has only a dtype and an address for Triton."""

    def __init__(self, dtype: torch.dtype, address: int) -> None:
        super().__init__(dtype)
        self._address = address

    def data_ptr(self) -> int:  # type: ignore[override]
        return self._address


def _stand_in(value: Any, kernels: Mapping[str, JITFunction]) -> Any:
    if isinstance(value, TensorRef):  # Buffers are aligned, so the offset decides about divisibility by 16.
        return _StandIn(DTYPES[value.dtype], value.offset * ITEMSIZE[value.dtype])
    if isinstance(value, tuple):
        return tuple(_stand_in(v, kernels) for v in value)
    return argument(value, kernels)


@contextlib.contextmanager
def _compiling_for(target: Target, cache: Path, scratch: Path) -> Iterator[None]:
    """Makes Triton compile for `target`, and write its files to `cache` and `scratch` only."""
    before, folder, name = driver._active, tempfile.tempdir, triton_cache.triton_key
    cache.mkdir(parents=True, exist_ok=True)
    driver.set_active(_Device(target))  # type: ignore[arg-type]
    tempfile.tempdir = str(scratch)
    # Triton names itself by a hash of all its files, 500 MB.  Its version says the same here.
    triton_cache.triton_key = lambda: triton.__version__
    try:
        with knobs.cache.scope():
            knobs.cache.dir = str(cache)
            yield
    finally:
        driver._active, tempfile.tempdir, triton_cache.triton_key = before, folder, name


@contextlib.contextmanager
def _until_llvm() -> Iterator[None]:
    """Leaves out the last stages, PTX and machine code, which take most of the time of a large kernel.

    Triton finds all errors in a kernel before.
    """

    def leave_out(backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str]:
        if stages is not None:
            stages["ptx"] = lambda module, metadata: metadata.setdefault("name", "")
            stages["cubin"] = lambda module, metadata: b""
        return "until LLVM", "until LLVM"  # part of Triton's keys of builds

    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = leave_out
        yield


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirects file descriptor 2, to which MLIR and LLVM write too, to the file `path`."""
    saved = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _compile(
    kernel: JITFunction,
    args: Mapping[str, Any],
    options: Mapping[str, Any],
    kernels: Mapping[str, JITFunction],
    scratch: Path,
) -> Any:
    """Triton's CompiledKernel.

    Raises JobError(COMPILE_ERROR) with the candidate's line if it is known, or _SkippedConfiguration if Triton's
    autotuner would skip the configuration.
    """
    log = scratch / "compiler.log"
    try:
        with _stderr_to(log):
            return kernel.run(grid=(1,), warmup=True, **{**args, **options})
    except _AT_FAULT as error:
        if isinstance(error, PTXASError) and f"error code {-signal.SIGXCPU}" in str(error):
            message = f"kernel {kernel.__name__}: ptxas used all the CPU time that compiling may take"
            raise JobError(Verdict.TIMEOUT, message) from error
        message, line = _explain(error, kernels, log.read_text(errors="replace"))
        kind = _SkippedConfiguration if isinstance(error, _SKIPPED_BY_TUNER) else JobError
        raise kind(Verdict.COMPILE_ERROR, f"kernel {kernel.__name__}: {message}", line) from error


def _explain(error: BaseException, kernels: Mapping[str, JITFunction], log: str) -> tuple[str, int]:
    """Message and line of the innermost compilation error in the candidate's own source.

    log: what the compiler wrote to stderr.
    """
    sources = {kernel.src: kernel.fn.__code__.co_firstlineno for kernel in kernels.values()}
    message, line, text = "", 0, ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CompilationError):
            message = cause.error_message or message
            if cause.src in sources and hasattr(cause.node, "lineno"):
                line = sources[cause.src] + cause.node.lineno - 1
                text = cause.src.split("\n")[cause.node.lineno - 1].strip()
        else:
            message = str(cause) or type(cause).__name__
        cause = cause.__cause__
    diagnosis = re.search(r"(?:kernels\.py:(\d+):\d+: )?error: (.*)", log)
    if diagnosis and not isinstance(error, CompilationError):
        message, line = f"{diagnosis[2]} ({message.splitlines()[0]})", line or int(diagnosis[1] or 0)
    return f"{message.strip()}{f' in `{text}`' if text else ''}", line


# --- what was built --------------------------------------------------------------------------------------------------


def _describe_code(compiled: Any, target: Target, scratch: Path) -> dict[str, Any]:
    cubin: bytes = compiled.asm["cubin"]
    name = f"{compiled.hash[:16]}.cubin"
    (scratch / name).write_bytes(cubin)
    registers, spill_bytes = resources(cubin)
    resident, share = screen.occupancy(registers, compiled.metadata.shared, compiled.metadata.num_warps, target)
    return {
        "registers": registers,
        "spill_bytes": spill_bytes,
        "occupancy": share,
        "resident": resident,
        "sass_hash": sass_hash(cubin),
        "parameters": [p for p, kind in compiled.src.signature.items() if kind != "constexpr"],
        "ptx_features": ptx_features(compiled.asm["ptx"]),
        "cubin": name,
        "launch": _launch_needs(compiled),
    }


def _launch_needs(compiled: Any) -> dict[str, Any]:
    """What is needed to launch the cubin without Triton.

    - "name": of the function in it
    - "signature": [parameter, type] in order; "constexpr" if the machine code has no such parameter, a list for a tuple
    - "num_ctas", "cooperative"
    - "scratch": [bytes of one CTA, alignment] of the two pointers that Triton appends to the parameters (global scratch
      memory, then the profiler's)
    """
    metadata = compiled.metadata
    return {
        "name": metadata.name,
        "signature": [[parameter, kind] for parameter, kind in compiled.src.signature.items()],
        "num_ctas": metadata.num_ctas,
        "cooperative": bool(metadata.launch_cooperative_grid),
        "scratch": [
            [metadata.global_scratch_size or 0, metadata.global_scratch_align or 1],
            [metadata.profile_scratch_size or 0, metadata.profile_scratch_align or 1],
        ],
    }


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory), both per thread, of the one kernel in `cubin`.

    Triton keeps no arrays in local memory, so it holds spilled registers only.
    """
    section = ELFFile(io.BytesIO(cubin)).get_section_by_name(".nv.info")
    if section is None:
        raise ValueError("not the cubin of a kernel: it has no section .nv.info")
    values = dict.fromkeys((_FRAME_SIZE, _REGISTER_COUNT), 0)
    data, at = section.data(), 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != 0x04:  # Only EIFMT_SVAL has a payload of `size` bytes; others hold the value in the header.
            continue
        if attribute in values and size == 8:
            values[attribute] = max(values[attribute], struct.unpack_from("<II", data, at)[1])
        at += size
    return values[_REGISTER_COUNT], values[_FRAME_SIZE]


def sass_hash(cubin: bytes) -> str:
    """Hash of machine code and constants, 32 hex digits; names, comments and line numbers do not count."""
    digest = hashlib.sha256()
    kept = (".text.", ".nv.constant", ".nv.global.init", ".rodata")
    parts = []
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        if section.name.startswith(kept):
            kind = next(k for k in kept if section.name.startswith(k))
            content = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
            parts.append((kind, section["sh_size"], content))
    for kind, size, content in sorted(parts):
        digest.update(f"{kind} {size}\n".encode())
        digest.update(content)
    digest.update(repr(resources(cubin)).encode())
    return digest.hexdigest()[:32]


_PTX = {
    "wgmma": r"\bwgmma\.mma_async",
    "tcgen05": r"\btcgen05\.mma",  # in the place of wgmma from compute capability 10.0 on
    "mma_sync": r"\bmma\.sync",
    "ldmatrix": r"\bldmatrix\.",
    "cp_async": r"\bcp\.async\.(?:ca|cg)\.",
    "tma": r"\bcp\.async\.bulk\.",
    "barriers": r"\b(?:bar|barrier)\.(?:cta\.)?(?:sync|red)",
    "shuffles": r"\bshfl\.sync",
    "atomics": r"\b(?:atom|red)\.(?:\w+\.)*global",
    "special": r"\b(?:ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx",
    "loads": r"\bld\.global",
    "stores": r"\bst\.global",
    "priorities": r"evict_|cache_hint|createpolicy|applypriority",  # of lines in the L2 cache.
}
_VECTOR = re.compile(r"\b(ld|st)\.global(?:\.\w+|::\w+)*?(?:\.v(\d))?\.[a-z]+(\d+)\s")


def ptx_features(ptx: str) -> dict[str, Any]:
    """Counts of instructions in the text of the PTX (not executions), and the widest global access in bytes.

    The keys are those of `_PTX`, and load_bytes and store_bytes: the widest global load and store of one thread, 0
    without any.
    """
    features: dict[str, Any] = {name: len(re.findall(pattern, ptx)) for name, pattern in _PTX.items()}
    widest = {"ld": 0, "st": 0}
    for kind, lanes, bits in _VECTOR.findall(ptx):
        widest[kind] = max(widest[kind], int(lanes or 1) * int(bits) // 8)
    return {**features, "load_bytes": widest["ld"], "store_bytes": widest["st"]}

"""Loads cubins and launches them through the CUDA driver, without Triton.

Triton's own launcher needs Python objects of the kernel and, in some versions, a C compiler.  A launch is little: the
function, the grid, and the values of the parameters in the layout of the signature.  The caller must have a current
CUDA context (PyTorch makes one with its first tensor).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda

from fitness.cuda.faults import HARMLESS, verdict_of

WARP = 32
SHARED_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory; beyond, a function must opt in
PORTABLE_CLUSTER = 8  # programs; CUDA C++ Programming Guide, "Thread Block Clusters"

# How a scalar of Triton's type travels (struct format); bfloat16 is the upper half of a float32.
_FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


class DeviceError(Exception):
    """The driver refused a call.  `fatal`: the process must end, its CUDA context is unusable."""

    def __init__(self, name: str, doing: str) -> None:
        super().__init__(f"{name} while {doing}")
        self.name, self.fatal = name, name not in HARMLESS
        self.verdict = verdict_of(name)


def check(result: tuple, doing: str) -> Any:
    """Returns what a driver call returned beside its status.  Raises DeviceError."""
    status, *values = result
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise DeviceError(status.name, doing)
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class Scratch:
    """Memory that a launch needs beside its arguments."""

    nbytes: int
    alignment: int


class LoadedKernel:
    """One loaded cubin.  `build` is an item of "builds" that `fitness.frontend.compile.job` returns."""

    def __init__(self, cubin: bytes, build: Mapping[str, Any]) -> None:
        launch = build["launch"]
        self._threads = WARP * build["num_warps"]
        self._shared = build["shared_bytes"]
        self._num_ctas = launch["num_ctas"]
        self._cooperative = launch["cooperative"]
        self._scratch = [Scratch(*s) for s in launch["scratch"]]
        self.signature: list[tuple[str, Any]] = [(name, kind) for name, kind in launch["signature"]]
        self._name = launch["name"]
        # Whether it can give cache lines a priority; if the build does not say, assume so.
        self.sets_priorities = bool(build.get("ptx_features", {}).get("priorities", True))
        self._module = check(cuda.cuModuleLoadData(cubin), f"loading {self._name}")
        self._function = check(cuda.cuModuleGetFunction(self._module, self._name.encode()), f"finding {self._name}")
        self._prepare()

    def _prepare(self) -> None:
        attributes = cuda.CUfunction_attribute
        if self._shared > SHARED_WITHOUT_ASKING:
            # As Triton does: all of the on-chip memory that is not needed as a cache is shared memory.
            prefer = cuda.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
            check(cuda.cuFuncSetCacheConfig(self._function, prefer), f"configuring {self._name}")
            most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            doing = f"asking for {self._shared} bytes of shared memory for {self._name}"
            check(cuda.cuFuncSetAttribute(self._function, most, self._shared), doing)
        if self._num_ctas > PORTABLE_CLUSTER:
            allowed = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(cuda.cuFuncSetAttribute(self._function, allowed, 1), f"asking for a large cluster for {self._name}")

    def scratch(self, grid: tuple[int, int, int]) -> list[Scratch]:
        """Returns the memory for the two pointers that Triton appends to the parameters; 0 bytes if it is not used."""
        programs = grid[0] * grid[1] * grid[2] * self._num_ctas
        return [Scratch(s.nbytes * programs, s.alignment) for s in self._scratch]

    def launch(self, grid: tuple[int, int, int], args: Mapping[str, Any], scratch: Sequence[int], stream: int) -> None:
        """Enqueues one launch on `stream` (a handle).

        args: the kernel's arguments by name, tensors as addresses; scratch: the addresses of the memory that
        `scratch(grid)` asks for.  An empty grid launches nothing, like in Triton.  Raises DeviceError.
        """
        if 0 in grid:
            return
        values = pack(self.signature, args) + [struct.pack("Q", address) for address in scratch]
        cells = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid[0] * self._num_ctas, grid[1], grid[2]
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes = self._shared
        config.hStream = cuda.CUstream(stream)
        attributes = self._attributes()
        config.attrs, config.numAttrs = attributes, len(attributes)
        # The driver copies the parameters before it returns.
        result = cuda.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0)
        check(result, f"launching {self._name} with grid {grid}")

    def _attributes(self) -> list[Any]:
        ids, found = cuda.CUlaunchAttributeID, []
        if self._cooperative:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            found.append(attribute)
        if self._num_ctas > 1:
            cluster = cuda.CUlaunchAttribute()
            cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = self._num_ctas, 1, 1
            spread = cuda.CUlaunchAttribute()
            spread.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            policy = cuda.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
            spread.value.clusterSchedulingPolicyPreference = policy
            found += [cluster, spread]
        return found

    def close(self) -> None:
        """Unloads the machine code; no graph that launches it may be replayed afterwards.

        The status says nothing new: if the context is unusable, an earlier call has said so.
        """
        cuda.cuModuleUnload(self._module)


def pack(signature: Sequence[tuple[str, Any]], args: Mapping[str, Any]) -> list[bytes]:
    """The parameters of the machine code in order, each as the bytes the driver takes.

    Raises KeyError if an argument is missing, ValueError if a value does not fit its type.
    """
    packed: list[bytes] = []
    for name, kind in signature:
        if kind != "constexpr":
            _pack(name, kind, args[name], packed)
    return packed


def _pack(name: str, kind: Any, value: Any, packed: list[bytes]) -> None:
    if isinstance(kind, (list, tuple)):
        for inner, item in zip(kind, value, strict=True):
            _pack(name, inner, item, packed)
    elif kind == "constexpr":
        return
    elif kind.startswith("*"):
        packed.append(struct.pack("Q", value))
    elif kind == "bf16":
        packed.append(_bfloat16(value))
    elif kind in _FORMATS:
        try:
            packed.append(struct.pack(_FORMATS[kind], value))
        except (struct.error, OverflowError) as error:
            raise ValueError(f"argument {name!r}: {value!r} is no {kind}: {error}") from error
    else:
        raise ValueError(f"argument {name!r}: parameters of type {kind} cannot be launched from a plan")


def _bfloat16(value: float) -> bytes:
    """`value` as a bfloat16, rounded to nearest even (NaN and infinity keep their upper half)."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if bits & 0x7F800000 != 0x7F800000:
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16).to_bytes(2, "little")

"""The GPUs that kernels are compiled and estimated for: facts from data sheets, measured ones marked."""

from __future__ import annotations

from dataclasses import dataclass

from evo.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """A GPU as the compiler and the estimate see it.  Rates are peaks of the whole device."""

    name: str
    arch: int  # compute capability times ten, as Triton's GPUTarget takes it
    device_name: str
    multiprocessors: int
    clock_hz: float  # boost clock of the multiprocessors
    dram_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_s: float
    shared_per_program: int  # largest dynamic shared memory of one program, bytes
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    warps_per_multiprocessor: int
    programs_per_multiprocessor: int
    tensor_flops: dict[str, float]  # dense rate by operand dtype
    fp32_lanes: int  # float32 operations a clock and multiprocessor (an FMA counts once)
    special_lanes: int  # exp2, sin, rsqrt ... a clock and multiprocessor

    @property
    def registers_per_program(self) -> int:
        return 65536


_HOPPER = {
    "arch": 90,
    "multiprocessors": 132,
    "clock_hz": 1.98e9,
    "l2_bytes": 50 * 2**20,
    # An estimate from public microbenchmarks of the H100 (about 5.5 to 7 TB/s); not in the data sheet.
    "l2_bytes_per_s": 5.5e12,
    "shared_per_program": 232448,
    "shared_per_multiprocessor": 233472,
    "registers_per_multiprocessor": 65536,
    "warps_per_multiprocessor": 64,
    "programs_per_multiprocessor": 32,
    "tensor_flops": {"float16": 989e12, "bfloat16": 989e12, "float32": 494e12, "int8": 1979e12, "float8": 1979e12},
    "fp32_lanes": 128,
    "special_lanes": 16,
}

TARGETS: dict[str, Target] = {
    # NVIDIA H200 data sheet: 4.8 TB/s HBM3e.
    "sm_90": Target(name="sm_90", device_name="NVIDIA H200", dram_bytes_per_s=4.8e12, **_HOPPER),  # type: ignore[arg-type]
    # NVIDIA H100 SXM data sheet: 3.35 TB/s HBM3.
    "h100": Target(name="h100", device_name="NVIDIA H100 80GB HBM3", dram_bytes_per_s=3.35e12, **_HOPPER),  # type: ignore[arg-type]
}


def get_target(name: str) -> Target:
    """The target called `name`.  Raises ConfigError, listing the known ones."""
    if name not in TARGETS:
        raise ConfigError(f"unknown target {name!r}; expected one of: {', '.join(TARGETS)}")
    return TARGETS[name]

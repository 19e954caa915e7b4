"""Describes the GPUs that kernels are compiled and estimated for, with numbers from data sheets (estimates are marked).

A compile target (sm_90) and a machine (H100, H200) are two things: GPUs of one compute capability differ in
multiprocessors, memory and caches.  Without a GPU a target has the numbers of the machine that its name stands for.  If
a GPU measures, `machine` gives the target the numbers of that GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evo.core import plugins


@dataclass(frozen=True)
class Target:
    """A GPU as the compiler and the estimate see it.  Rates are peaks of the whole device.

    `name` and `arch` are the compile target; `device_name` is the machine that the other fields describe.
    """

    name: str
    arch: int  # Compute capability times ten, as Triton's GPUTarget takes it.
    device_name: str
    multiprocessors: int
    clock_hz: float  # Boost clock of the multiprocessors.
    dram_bytes_per_s: float
    l2_bytes: int
    l2_bytes_per_s: float
    shared_per_program: int  # Largest dynamic shared memory of one program, in bytes.
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    warps_per_multiprocessor: int
    programs_per_multiprocessor: int
    tensor_flops: dict[str, float]  # Dense rate by operand dtype.
    fp32_lanes: int  # Float32 operations per clock and multiprocessor (an FMA counts once).
    special_lanes: int  # Operations like exp2, sin, rsqrt per clock and multiprocessor.
    l1_bytes: int = 256 * 1024  # L1 and shared memory of a multiprocessor together.
    calibrated: bool = False  # Whether the constants of the time model were measured on this machine.

    @property
    def spec(self) -> str:
        """The target as a text for jobs: `from_spec` reads it."""
        return self.name if TARGETS.get(self.name) == self else json.dumps(asdict(self))

    @property
    def registers_per_program(self) -> int:
        """The most registers that one program may use."""
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

# NVIDIA A100 80GB SXM data sheet, and the whitepaper of the Ampere architecture: rates dense, 2,039 GB/s HBM2e.
_A100: dict[str, Any] = {
    "arch": 80,
    "multiprocessors": 108,
    "clock_hz": 1.41e9,
    "dram_bytes_per_s": 2.039e12,
    "l2_bytes": 40 * 2**20,
    "shared_per_program": 163 * 1024,
    "shared_per_multiprocessor": 164 * 1024,
    "registers_per_multiprocessor": 65536,
    "warps_per_multiprocessor": 64,
    "programs_per_multiprocessor": 32,
    "tensor_flops": {"float16": 312e12, "bfloat16": 312e12, "float32": 156e12, "int8": 624e12},
    "fp32_lanes": 64,
    "special_lanes": 16,
    "l1_bytes": 192 * 1024,
}
# Compute capability 8.9: CUDA C++ Programming Guide, and the whitepaper of the Ada architecture.
_ADA: dict[str, Any] = {
    **_A100,
    "arch": 89,
    "shared_per_program": 99 * 1024,
    "shared_per_multiprocessor": 100 * 1024,
    "warps_per_multiprocessor": 48,
    "programs_per_multiprocessor": 24,
    "fp32_lanes": 128,
    "l1_bytes": 128 * 1024,
}
# NVIDIA L4 data sheet: half of the rates with sparsity; 58 multiprocessors, 300 GB/s GDDR6.
_L4: dict[str, Any] = {
    **_ADA,
    "multiprocessors": 58,
    "clock_hz": 2.04e9,
    "dram_bytes_per_s": 0.3e12,
    "l2_bytes": 48 * 2**20,
    "tensor_flops": {"float16": 121e12, "bfloat16": 121e12, "float32": 60e12, "int8": 242e12, "float8": 242e12},
}
# NVIDIA Ada whitepaper, GeForce RTX 4090: dense, with sums in float32; 1,008 GB/s GDDR6X.
_RTX_4090: dict[str, Any] = {
    **_ADA,
    "multiprocessors": 128,
    "clock_hz": 2.52e9,
    "dram_bytes_per_s": 1.008e12,
    "l2_bytes": 72 * 2**20,
    "tensor_flops": {"float16": 165e12, "bfloat16": 165e12, "float32": 82.6e12, "int8": 660e12, "float8": 330e12},
}
# NVIDIA HGX B200 data sheet, an eighth of it, half of the rates with sparsity: 148 multiprocessors, 8 TB/s HBM3e.
# Compute capability 10.0 has the limits of 9.0 for a multiprocessor.
_B200: dict[str, Any] = {
    **_HOPPER,
    "arch": 100,
    "multiprocessors": 148,
    "clock_hz": 1.965e9,
    "dram_bytes_per_s": 8e12,
    "l2_bytes": 126 * 2**20,
    "tensor_flops": {
        "float16": 2250e12, "bfloat16": 2250e12, "float32": 1125e12, "int8": 4500e12, "float8": 4500e12,
    },
}  # fmt: skip


def _target(name: str, device_name: str, facts: Mapping[str, Any], **more: Any) -> Target:
    """The target; its L2 rate, if no source has it, is the H100's, scaled by multiprocessors and clock."""
    hopper = _HOPPER["multiprocessors"] * _HOPPER["clock_hz"]  # type: ignore[operator]
    l2 = _HOPPER["l2_bytes_per_s"] * facts["multiprocessors"] * facts["clock_hz"] / hopper  # type: ignore[operator]
    return Target(**{"l2_bytes_per_s": l2, **facts, "name": name, "device_name": device_name, **more})


TARGETS: dict[str, Target] = {
    # NVIDIA H200 data sheet: 4.8 TB/s HBM3e.
    "sm_90": _target("sm_90", "NVIDIA H200", _HOPPER, dram_bytes_per_s=4.8e12, calibrated=True),
    # NVIDIA H100 SXM data sheet: 3.35 TB/s HBM3.
    "h100": _target("h100", "NVIDIA H100 80GB HBM3", _HOPPER, dram_bytes_per_s=3.35e12),
    "sm_80": _target("sm_80", "NVIDIA A100-SXM4-80GB", _A100),
    "sm_89": _target("sm_89", "NVIDIA L4", _L4),
    "rtx4090": _target("rtx4090", "NVIDIA GeForce RTX 4090", _RTX_4090),
    "sm_100": _target("sm_100", "NVIDIA B200", {**_B200, "l2_bytes_per_s": 5.5e12 * 148 * 1.965 / (132 * 1.98)}),
}

# NVIDIA H100 PCIe data sheet: 114 multiprocessors, boost 1755 MHz, 2.0 TB/s HBM2e, 756 TFLOP/s dense in 16 bits.
_H100_PCIE: dict[str, Any] = {
    **_HOPPER,
    "multiprocessors": 114,
    "clock_hz": 1.755e9,
    "l2_bytes_per_s": 5.5e12 * 114 * 1.755 / (132 * 1.98),  # The SXM's rate, scaled by multiprocessors and clock.
    "tensor_flops": {"float16": 756e12, "bfloat16": 756e12, "float32": 378e12, "int8": 1513e12, "float8": 1513e12},
}
# Machines by their names in CUDA.
_MACHINES: dict[str, Target] = {
    machine.device_name: machine
    for machine in (
        *TARGETS.values(),
        _target("sm_90", "NVIDIA H100 PCIe", _H100_PCIE, dram_bytes_per_s=2.0e12),
    )
}


# Fields of a target that a driver reports under the same names.
LIMITS = (
    "shared_per_program", "shared_per_multiprocessor", "registers_per_multiprocessor", "warps_per_multiprocessor",
)  # fmt: skip


def sm_name(capability: Sequence[int]) -> str:
    """The compile target of a GPU of that compute capability (major, minor), e.g. "sm_90"."""
    major, minor = capability
    return f"sm_{major}{minor}"


def machine(target: Target, gpu: Mapping[str, Any]) -> Target:
    """`target` with the numbers of the GPU that measures.

    gpu: name, multiprocessors, max_clock_hz, l2_bytes, dram_bytes_per_s, as in `fitness.cuda.device.DeviceFacts`.

    A GPU in the table has the numbers of its data sheet.  Any other has the numbers that its driver reports; the rates
    that the driver does not report are the target's, scaled by multiprocessors and clock.  A part of a GPU (MIG) counts
    as another GPU.  Limits of a multiprocessor are the driver's too, if `gpu` has them.
    """
    listed = _MACHINES.get(gpu["name"])
    if listed is not None and (listed.arch, listed.multiprocessors) == (target.arch, gpu["multiprocessors"]):
        return replace(listed, name=target.name)
    scale = gpu["multiprocessors"] * gpu["max_clock_hz"] / (target.multiprocessors * target.clock_hz)
    limits = {name: gpu[name] for name in LIMITS if name in gpu}
    return replace(
        target,
        calibrated=False,
        **limits,
        device_name=gpu["name"],
        multiprocessors=gpu["multiprocessors"],
        clock_hz=gpu["max_clock_hz"],
        dram_bytes_per_s=gpu["dram_bytes_per_s"],
        l2_bytes=gpu["l2_bytes"],
        l2_bytes_per_s=scale * target.l2_bytes_per_s,
        tensor_flops={kind: scale * rate for kind, rate in target.tensor_flops.items()},
    )


def from_spec(spec: str) -> Target:
    """The target that `Target.spec` describes.  Raises ConfigError for an unknown name."""
    return Target(**json.loads(spec)) if spec.startswith("{") else get_target(spec)


def get_target(name: str) -> Target:
    """The target of that name.  Raises ConfigError, which lists the targets there are.

    "sm_86" and other compute capabilities from 8.0 on that no machine is listed for have the facts of the nearest one
    below.  They are for GPUs that measure, whose own facts take their place.
    """
    if name not in plugins.names("targets") and (relative := _relative(name)):
        return relative
    found: Target = plugins.resolve("targets", name).value
    return found


def _relative(name: str) -> Target | None:
    """Returns a target for a compute capability without a listed machine; None for other names."""
    arch = int(name[3:]) if re.fullmatch(r"sm_\d{2,3}", name) else 0
    below = [target for target in TARGETS.values() if target.name == f"sm_{target.arch}" and target.arch < arch]
    if not below:
        return None
    nearest = max(below, key=lambda target: target.arch)
    device = f"a GPU of compute capability {arch / 10:.1f}"
    return replace(nearest, name=name, arch=arch, device_name=device, calibrated=False)


def narrowest_rate(capability: Sequence[int]) -> float:
    """Returns how many times as fast as bfloat16 a GPU of that capability multiplies its narrowest type, at most.

    GeForce halves the rate of products with sums in float32, so it is 4 unless a data sheet here says less.
    """
    major, minor = capability
    peaks = [machine.tensor_flops for machine in _MACHINES.values() if machine.arch == 10 * major + minor]
    return max((round(max(rates.values()) / rates["bfloat16"], 1) for rates in peaks), default=4.0)


def built_in() -> Mapping[str, Target]:
    """Evo's own targets, by name."""
    return TARGETS


def missing(plugin: Any) -> str:
    """What a plug-in lacks to be a target, in words; "" for nothing."""
    return "" if isinstance(plugin, Target) else f"expected an instance of Target, got {type(plugin).__name__}"

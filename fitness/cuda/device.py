"""Reads what the GPU is, what it reaches, and whether its clocks stayed the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pynvml
import torch
from cuda.bindings import driver as cuda

from fitness.cuda.launcher import WARP, check

COPY_BYTES = 2 << 30  # far beyond any L2.
MATMUL_SIZE = 8192
REPEATS = 10
REST_S = 0.002  # before each: a GPU that multiplies without a pause is slowed down by its power limit
CLOCK_CHANGE = 0.02  # relative change of the multiprocessor clock that disturbs a comparison.

# Reasons for which a GPU runs slower than asked that come and go with temperature, power supply or other users.  The
# software power cap is not among them: a GPU that multiplies matrices always reaches it.
_DISTURBING = {
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
}


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU. Rates are of the whole device; `copy_bytes_per_s` counts bytes read and bytes written."""

    name: str
    uuid: str
    driver: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    max_clock_hz: float
    shared_per_program: int  # these four as `fitness.frontend.target.Target` has them
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    warps_per_multiprocessor: int
    dram_bytes_per_s: float  # memory clock, double data rate, times the width of the bus: a limit of physics
    copy_bytes_per_s: float  # measured
    matmul_flops: float  # measured, bfloat16 on random data

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Clocks:
    """State of the clocks at one moment."""

    multiprocessor_mhz: int
    memory_mhz: int
    reasons: frozenset[str]  # of those that disturb


class GpuWatch:
    """Reads clocks and reasons for throttling of one GPU through NVML."""

    def __init__(self, index: int) -> None:
        pynvml.nvmlInit()
        self.uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)

    def read(self) -> Clocks:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)
        return Clocks(
            multiprocessor_mhz=pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM),
            memory_mhz=pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_MEM),
            reasons=frozenset(name for name, bit in _DISTURBING.items() if reasons & bit),
        )


def disturbance(before: Clocks, after: Clocks) -> str | None:
    """Returns why times taken between the two moments are not comparable with others, or None."""
    appeared = sorted(before.reasons | after.reasons)
    if appeared:
        return f"the GPU is throttled: {', '.join(appeared)}"
    if before.memory_mhz != after.memory_mhz:
        return f"the memory clock changed from {before.memory_mhz} to {after.memory_mhz} MHz"
    change = abs(after.multiprocessor_mhz - before.multiprocessor_mhz)
    if change > CLOCK_CHANGE * before.multiprocessor_mhz:
        return f"the clock changed from {before.multiprocessor_mhz} to {after.multiprocessor_mhz} MHz"
    return None


def facts_if_same(index: int, measured: Mapping[str, Any]) -> DeviceFacts | None:
    """Returns what another process measured, None unless it was of this very GPU."""
    if measured.get("uuid") != GpuWatch(index).uuid:
        return None
    return DeviceFacts(**{**measured, "capability": tuple(measured["capability"])})


def device_facts(index: int = 0) -> DeviceFacts:
    """Returns the properties of CUDA device `index`; measures its two ceilings (a second and 6 GB of its memory)."""
    device = torch.device("cuda", index)
    return DeviceFacts(**reported_facts(index), copy_bytes_per_s=_copy_rate(device), matmul_flops=_matmul_rate(device))


def reported_facts(index: int = 0) -> dict[str, Any]:
    """Returns what CUDA device `index` says of itself: all fields of DeviceFacts that are not measured."""
    properties, watch = torch.cuda.get_device_properties(index), GpuWatch(index)
    bus_bits = pynvml.nvmlDeviceGetMemoryBusWidth(watch.handle)
    memory_hz = 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(watch.handle, pynvml.NVML_CLOCK_MEM)
    return {
        "name": properties.name,
        "uuid": watch.uuid,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "capability": (properties.major, properties.minor),
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        **_limits(index),
        "memory_bytes": properties.total_memory,
        "max_clock_hz": 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(watch.handle, pynvml.NVML_CLOCK_SM),
        "dram_bytes_per_s": 2 * memory_hz * bus_bits / 8,
    }


def _limits(index: int) -> dict[str, int]:
    """Returns the limits of a multiprocessor of CUDA device `index`, by the names of `Target`."""
    device = check(cuda.cuDeviceGet(index), "finding the GPU")
    names = cuda.CUdevice_attribute

    def of(attribute: cuda.CUdevice_attribute) -> int:
        return int(check(cuda.cuDeviceGetAttribute(attribute, device), "asking for a property of the GPU"))

    return {
        "shared_per_program": of(names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        "shared_per_multiprocessor": of(names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        "registers_per_multiprocessor": of(names.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
        "warps_per_multiprocessor": of(names.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) // WARP,
    }


def _copy_rate(device: torch.device) -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(lambda: target.copy_(source))


def _matmul_rate(device: torch.device) -> float:
    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    return 2 * MATMUL_SIZE**3 / _seconds(lambda: torch.mm(a, b, out=out))


def _seconds(work: Any) -> float:
    """Returns the least time of `work` on the device, after warming up."""
    warm_until = time.perf_counter() + 0.2
    while time.perf_counter() < warm_until:
        work()
        torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        time.sleep(REST_S)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)

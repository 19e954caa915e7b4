"""What CUDA's errors mean: whose fault they are, and whether the process can go on.

Names as in the CUDA driver API, "Data types used by CUDA driver" (CUresult).
"""

from __future__ import annotations

from evo.core.records import Verdict

OUT_OF_RESOURCES = {"CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}

# Errors after which the context still works; all others leave it unusable.
HARMLESS = OUT_OF_RESOURCES | {
    "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_INVALID_CLUSTER_SIZE",
}  # fmt: skip

# The machine's fault, whatever was launched: with the texts that PyTorch gives instead of the names.
MACHINE = {
    "CUDA_ERROR_ECC_UNCORRECTABLE": "uncorrectable ECC error",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "uncorrectable NVLink error",
    "CUDA_ERROR_CONTAINED": "contained error",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "busy or unavailable",
    "CUDA_ERROR_SYSTEM_NOT_READY": "system not yet initialized",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "system has unsupported display driver",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable device",
}


def verdict_of(name: str) -> Verdict:
    """The verdict on a candidate at whose work the driver gave the error `name`."""
    if name in MACHINE:
        return Verdict.INFRASTRUCTURE
    return Verdict.OUT_OF_MEMORY if name in OUT_OF_RESOURCES else Verdict.RUNTIME_ERROR


def verdict_of_text(text: str) -> Verdict:
    """`verdict_of` for an error that PyTorch puts into words."""
    machine = any(words in text for words in MACHINE.values())
    return Verdict.INFRASTRUCTURE if machine else Verdict.RUNTIME_ERROR

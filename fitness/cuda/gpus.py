"""Finds which GPUs of this machine can measure for a target."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from evo.core.errors import EvoError
from fitness.frontend.target import Target, machine, sm_name

LEAST = 8  # major compute capability: the runner and the rules of its machine code need Ampere
_PACKAGES = {"pynvml": "nvidia-ml-py", "cuda": "cuda-bindings"}  # module: what installs it


@dataclass(frozen=True)
class Gpus:
    """What torch sees.  `problem` says why the first GPU cannot be used; "" if it can."""

    count: int
    name: str
    problem: str


def visible(count: int) -> list[str]:
    """Returns the names of this process's GPUs, `count` of them, as CUDA_VISIBLE_DEVICES takes them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")


def find_gpus(target: Target) -> Gpus:
    """Returns the GPUs of this machine; it inspects the first one."""
    import torch

    if not torch.cuda.is_available():
        return Gpus(0, "", "torch sees no CUDA GPU")
    count, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
    major, minor = capability = torch.cuda.get_device_capability(0)
    if 10 * major + minor != target.arch:
        fix = f"--target {sm_name(capability)} measures on it" if major >= LEAST else f"evo needs sm_{LEAST}0 or later"
        return Gpus(count, name, f"GPU 0 ({name}) is {sm_name(capability)}, the target is {target.name}: {fix}")
    missing = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        return Gpus(count, name, f"GPU 0 ({name}) cannot be driven without {' and '.join(missing)}")
    return Gpus(count, name, "")


def measuring(target: Target, index: int = 0) -> Target:
    """Returns `target` with the properties of CUDA device `index`, which will measure.

    Raises EvoError if no GPU can.
    """
    if problem := find_gpus(target).problem:
        raise EvoError(
            f"expected a GPU that measures for {target.name}, but {problem}; --gpus none estimates without one"
        )
    from fitness.cuda.device import reported_facts

    return machine(target, reported_facts(index))

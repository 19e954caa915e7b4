"""The benchmark suites by name: evo's own, and those of plug-ins."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from evo.core import plugins
from fitness.suites.base import Suite

_PARTS = ("stages", "seed_kernel", "sized", "files", "checker")


@functools.cache
def built_in() -> Mapping[str, Suite]:
    """Evo's own suites, by name."""
    from fitness.suites.kernelbench.suite import KernelBench
    from fitness.suites.tritonbench_g import TritonBenchG
    from fitness.suites.tritonbench_t.suite import TritonBenchT

    return {suite.name: suite for suite in (TritonBenchG(), TritonBenchT(), KernelBench())}


def missing(plugin: Any) -> str:
    """What a plug-in lacks to be a suite, in words; "" for nothing."""
    lacks = [name for name in _PARTS if not hasattr(plugin, name)]
    if lacks:
        return f"expected what fitness.suites.base.Suite has, got an object without {', '.join(lacks)}"
    if "verified" not in plugin.stages:
        return f"expected stages with 'verified', got {', '.join(map(str, plugin.stages))}"
    return ""


def find_suite(name: str) -> Suite:
    """The suite of that name.  Raises ConfigError, listing the known ones."""
    found: Suite = plugins.resolve("suites", name).value
    return found

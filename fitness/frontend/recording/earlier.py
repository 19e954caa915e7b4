"""`triton.ops.matmul_perf_model`, which earlier versions of Triton had, for host code that still imports it.

It chose among the configurations of an autotuned kernel before they were measured.  Here nothing is pruned and all are
estimated alike, so that the first ones stay, as many as the kernel's `top_k` says.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from fitness.frontend.kernels import EARLIER

_MODEL = "matmul_perf_model"


def early_config_prune(configs: Sequence[Any], named_args: Any, **_: Any) -> list[Any]:
    return list(configs)


def estimate_matmul_time(*_: Any, **__: Any) -> float:
    """Milliseconds, the same for every configuration."""
    return 0.0


@contextlib.contextmanager
def earlier_modules() -> Iterator[None]:
    """Imports of `triton.ops.matmul_perf_model` succeed."""
    package, model = ModuleType(EARLIER), ModuleType(f"{EARLIER}.{_MODEL}")
    package.__path__ = []
    model.early_config_prune, model.estimate_matmul_time = early_config_prune, estimate_matmul_time  # type: ignore
    package.matmul_perf_model = model  # type: ignore[attr-defined]
    # Put in and taken out by name: restoring all of sys.modules would have each call import anew what the last one did.
    found = {package.__name__: package, model.__name__: model}
    sys.modules.update(found)
    try:
        yield
    finally:
        for name in found:
            sys.modules.pop(name, None)

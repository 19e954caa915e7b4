"""evo: evolutionary search for Triton GPU kernels."""

from evo.core import plugins
from evo.core.plugins import (
    register_operator,
    register_provider,
    register_strategy,
    register_suite,
    register_target,
)

__version__ = "0.1.0"

__all__ = [
    "plugins",
    "register_operator",
    "register_provider",
    "register_strategy",
    "register_suite",
    "register_target",
]

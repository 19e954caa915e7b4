"""evo: evolutionary search for Triton GPU kernels."""

from evo.core import VERSION as __version__  # noqa: F401

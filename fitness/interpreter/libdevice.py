"""Implements CUDA's libdevice in numpy for the interpreter: functions such as `__nv_expf`, by name.

Results have the precision of the arguments.  The `fast_` variants are computed exactly: a CPU cannot reproduce the
errors of the device's approximations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special


def _round_half_away(x: np.ndarray) -> np.ndarray:
    return np.trunc(x + np.copysign(x.dtype.type(0.5), x))


def _bits(dtype: type) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.ascontiguousarray(x).view(dtype)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x - np.rint(x / y) * y


def _popc(x: np.ndarray) -> np.ndarray:
    octets = np.ascontiguousarray(x)[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1).sum(-1)


def _clz(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    unsigned = np.ascontiguousarray(x).view(f"uint{bits}")
    return np.asarray(np.sum([unsigned < (1 << k) for k in range(bits)], axis=0, dtype=np.int32))


_EXACT: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(x.dtype.type(10), x), "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "rcbrt": lambda x: 1 / np.cbrt(x),
    "pow": np.power, "powi": np.power, "hypot": np.hypot, "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": special.erf, "erfc": special.erfc, "erfcx": special.erfcx, "erfinv": special.erfinv,
    "erfcinv": special.erfcinv, "normcdf": special.ndtr, "normcdfinv": special.ndtri,
    "tgamma": special.gamma, "lgamma": special.gammaln, "j0": special.j0, "j1": special.j1, "y0": special.y0,
    "y1": special.y1, "cyl_bessel_i0": special.i0, "cyl_bessel_i1": special.i1,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint,
    "round": _round_half_away, "llrint": np.rint, "llround": _round_half_away, "ilogb": lambda x: np.frexp(x)[1] - 1,
    "abs": np.abs, "fabs": np.abs, "llabs": np.abs, "copysign": np.copysign, "nextafter": np.nextafter,
    "fmod": np.fmod, "remainder": _remainder, "fdim": lambda x, y: np.fmax(x - y, 0), "ldexp": np.ldexp,
    "scalbn": np.ldexp, "saturate": lambda x: np.clip(np.nan_to_num(x), 0, 1), "fma": lambda x, y, z: x * y + z,
    "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite, "isfinited": np.isfinite, "signbit": np.signbit,
    "fast_exp": np.exp, "fast_exp10": lambda x: np.power(x.dtype.type(10), x), "fast_log": np.log,
    "fast_log2": np.log2, "fast_log10": np.log10, "fast_pow": np.power, "fast_sin": np.sin, "fast_cos": np.cos,
    "fast_tan": np.tan, "fast_tanh": np.tanh, "fast_fdivide": np.divide,
    "popc": _popc, "popcll": _popc, "clz": _clz, "clzll": _clz,
    "float_as_int": _bits(np.int32), "float_as_uint": _bits(np.uint32), "int_as_float": _bits(np.float32),
    "uint_as_float": _bits(np.float32), "double_as_longlong": _bits(np.int64), "longlong_as_double": _bits(np.float64),
}  # fmt: skip

# Operations with the rounding mode in their name; numpy rounds to nearest only.
_NEAREST: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x), "fma": lambda x, y, z: x * y + z,
}  # fmt: skip
for _name, _function in _NEAREST.items():
    _EXACT |= {f"{prefix}{_name}_rn": _function for prefix in ("f", "d")}
_EXACT |= {"fma_rn": _NEAREST["fma"], "fmaf_rn": _NEAREST["fma"]}
for _source in ("float", "double"):
    for _target in ("int", "uint", "ll", "ull"):
        _EXACT |= {
            f"{_source}2{_target}_{mode}": function
            for mode, function in (("rn", np.rint), ("rz", np.trunc), ("rd", np.floor), ("ru", np.ceil))
        }
_EXACT |= {f"{s}2{t}_rn": lambda x: x for s in ("int", "uint", "ll", "ull", "double") for t in ("float", "double")}


def find(symbol: str) -> Callable[..., Any] | None:
    """The numpy function for a libdevice symbol such as `__nv_expf`, or None.

    Arguments are arrays of equal shape; the caller casts the result to the symbol's return type.
    """
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        if candidate in _EXACT:
            return _EXACT[candidate]
    return None

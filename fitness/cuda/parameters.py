"""The parameters of a kernel's machine code, from the arguments of a plan."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

# How a scalar of Triton's type travels (struct format); bfloat16 is the upper half of a float32.
_FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


def pack(signature: Sequence[tuple[str, Any]], args: Mapping[str, Any]) -> list[bytes]:
    """The parameters of the machine code in order, each as the bytes the driver takes.

    Raises KeyError where an argument is missing, ValueError where a value does not fit its type.
    """
    packed: list[bytes] = []
    for name, kind in signature:
        if kind != "constexpr":
            _pack(name, kind, args[name], packed)
    return packed


def _pack(name: str, kind: Any, value: Any, packed: list[bytes]) -> None:
    if isinstance(kind, (list, tuple)):
        for inner, item in zip(kind, value, strict=True):
            _pack(name, inner, item, packed)
    elif kind == "constexpr":
        return
    elif kind.startswith("*"):
        packed.append(struct.pack("Q", value))
    elif kind == "bf16":
        packed.append(_bfloat16(value))
    elif kind in _FORMATS:
        try:
            packed.append(struct.pack(_FORMATS[kind], value))
        except (struct.error, OverflowError) as error:
            raise ValueError(f"argument {name!r}: {value!r} is no {kind}: {error}") from error
    else:
        raise ValueError(f"argument {name!r}: parameters of type {kind} cannot be launched from a plan")


def _bfloat16(value: float) -> bytes:
    """`value` as a bfloat16, rounded to nearest even (NaN and infinity keep their upper half)."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if bits & 0x7F800000 != 0x7F800000:
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16).to_bytes(2, "little")

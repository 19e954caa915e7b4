"""Rotary embedding of float16 queries, halves rotated against each other; the seed's programs take one head each."""

import torch

from fitness import Case

entry = "rotary"
cases = [
    Case("decode-heads", {"B": 4, "S": 2048, "H": 32, "D": 128}, dtype="float16",
         cpu_axes={"B": 2, "S": 4, "H": 4, "D": 32}),
    Case("small-heads", {"B": 8, "S": 4096, "H": 16, "D": 64}, dtype="float16",
         cpu_axes={"B": 1, "S": 6, "H": 4, "D": 64}),
    Case("odd", {"B": 3, "S": 77, "H": 5, "D": 80}, dtype="float16", role="holdout",
         cpu_axes={"B": 3, "S": 5, "H": 3, "D": 20}),
]  # fmt: skip


def inputs(case, generator):
    """x: (B, S, H, D), contiguous, D even; cos, sin: (S, D/2)."""
    B, S, H, D = (case.axes[axis] for axis in "BSHD")
    dtype = getattr(torch, case.dtype)
    x = torch.randn(B, S, H, D, generator=generator, device=generator.device)
    position = torch.arange(S, device=generator.device)[:, None]
    angles = position * 10000.0 ** (-2 * torch.arange(D // 2, device=generator.device) / D)
    return x.to(dtype), angles.cos().to(dtype), angles.sin().to(dtype)


def reference(x, cos, sin):
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, dim=-1)
    c, s = cos[None, :, None, :].to(wide), sin[None, :, None, :].to(wide)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def flops(case):
    B, S, H, D = (case.axes[axis] for axis in "BSHD")
    return 3 * B * S * H * D


def bytes(case):
    B, S, H, D = (case.axes[axis] for axis in "BSHD")
    return 2 * (2 * B * S * H * D + S * D)

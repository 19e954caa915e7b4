"""Causal attention, forward, float16; the seed visits masked blocks too and has small tiles."""

import torch

from fitness import Case

entry = "attention"
cases = [
    Case("prefill-2k", {"Z": 4, "H": 16, "S": 2048, "D": 64}, dtype="float16",
         cpu_axes={"Z": 1, "H": 2, "S": 64, "D": 32}),
    Case("prefill-4k", {"Z": 1, "H": 16, "S": 4096, "D": 128}, dtype="float16",
         cpu_axes={"Z": 1, "H": 1, "S": 80, "D": 64}),
    Case("odd", {"Z": 2, "H": 3, "S": 333, "D": 64}, dtype="float16", role="holdout",
         cpu_axes={"Z": 2, "H": 1, "S": 45, "D": 32}),
]  # fmt: skip


def inputs(case, generator):
    """q, k, v: (Z, H, S, D), contiguous; D is a power of two."""
    shape = tuple(case.axes[axis] for axis in "ZHSD")
    dtype = getattr(torch, case.dtype)
    return tuple(torch.randn(shape, generator=generator, device=generator.device).to(dtype) for _ in range(3))


def reference(q, k, v):
    wide = torch.promote_types(q.dtype, torch.float32)  # scores in float16 would be worse than what is asked for
    scores = q.to(wide) @ k.to(wide).transpose(-2, -1) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ v.to(wide)).to(q.dtype)


def flops(case):
    Z, H, S, D = (case.axes[axis] for axis in "ZHSD")
    return 2 * Z * H * S * (S + 1) * D  # the lower triangle of two products


def bytes(case):
    Z, H, S, D = (case.axes[axis] for axis in "ZHSD")
    return 2 * 4 * Z * H * S * D

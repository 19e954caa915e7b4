"""float16 activations times int8 weights with a scale per column; the seed dequantises into a workspace first."""

import torch

from fitness import Case

entry = "int8_matmul"
cases = [
    Case("prefill", {"M": 2048, "N": 4096, "K": 4096}, dtype="float16", cpu_axes={"M": 64, "N": 64, "K": 64}),
    Case("decode", {"M": 16, "N": 11008, "K": 4096}, dtype="float16", cpu_axes={"M": 16, "N": 128, "K": 64}),
    Case("odd", {"M": 45, "N": 777, "K": 333}, dtype="float16", role="holdout", cpu_axes={"M": 21, "N": 45, "K": 37}),
]


def inputs(case, generator):
    """x: (M, K), w: (K, N) int8, both row-major; scale: (N,)."""
    M, N, K = (case.axes[axis] for axis in "MNK")
    dtype, device = getattr(torch, case.dtype), generator.device
    x = torch.randn(M, K, generator=generator, device=device)
    w = torch.randint(-127, 128, (K, N), generator=generator, device=device, dtype=torch.int8)
    scale = (0.5 + torch.rand(N, generator=generator, device=device)) / (64 * K**0.5)
    return x.to(dtype), w, scale.to(dtype)


def reference(x, w, scale):
    wide = torch.promote_types(x.dtype, torch.float32)
    return ((x.to(wide) @ w.to(wide)) * scale.to(wide)).to(x.dtype)


def flops(case):
    return 2 * case.axes["M"] * case.axes["N"] * case.axes["K"]


def bytes(case):
    M, N, K = (case.axes[axis] for axis in "MNK")
    return 2 * M * K + K * N + 2 * N + 2 * M * N

"""Batched matrix-vector product by a 3-D broadcast; the seed holds whole rows instead of streaming them."""

import torch

from fitness import Case

entry = "gemv_batched"
cases = [
    Case("square", {"B": 4, "M": 4096, "K": 4096}, cpu_axes={"B": 3, "M": 32, "K": 256}),
    Case("batch", {"B": 32, "M": 1024, "K": 2048}, cpu_axes={"B": 6, "M": 24, "K": 128}),
    Case("many", {"B": 256, "M": 512, "K": 256}, cpu_axes={"B": 8, "M": 16, "K": 64}),
    Case("odd", {"B": 5, "M": 333, "K": 777}, role="holdout", cpu_axes={"B": 3, "M": 13, "K": 77}),
]


def inputs(case, generator):
    """a: (B, M, K), row-major; x: (B, K)."""
    B, M, K = (case.axes[axis] for axis in "BMK")
    a = torch.randn(B, M, K, generator=generator, device=generator.device)
    return a, torch.randn(B, K, generator=generator, device=generator.device)


def reference(a, x):
    return torch.einsum("bmk,bk->bm", a, x)


def flops(case):
    return 2 * case.axes["B"] * case.axes["M"] * case.axes["K"]


def bytes(case):
    B, M, K = (case.axes[axis] for axis in "BMK")
    return 4 * (B * M * K + B * K + B * M)

"""Backward pass of a batched float16 matrix product: dA = dC Bᵀ and dB = Aᵀ dC; the seed has small tiles."""

import torch

from fitness import Case

entry = "matmul_backward"
cases = [
    Case("heads", {"B": 32, "M": 1024, "N": 1024, "K": 128}, dtype="float16",
         cpu_axes={"B": 2, "M": 32, "N": 48, "K": 32}),
    Case("square", {"B": 4, "M": 2048, "N": 2048, "K": 2048}, dtype="float16",
         cpu_axes={"B": 1, "M": 64, "N": 32, "K": 64}),
    Case("odd", {"B": 3, "M": 333, "N": 257, "K": 129}, dtype="float16", role="holdout",
         cpu_axes={"B": 2, "M": 37, "N": 19, "K": 35}),
]  # fmt: skip


def inputs(case, generator):
    """a: (B, M, K), b: (B, K, N), dc: (B, M, N), all row-major."""
    B, M, N, K = (case.axes[axis] for axis in "BMNK")

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=generator.device)

    dtype = getattr(torch, case.dtype)
    return normal(B, M, K).to(dtype), normal(B, K, N).to(dtype), (normal(B, M, N) / 16).to(dtype)


def reference(a, b, dc):
    return dc @ b.transpose(1, 2), a.transpose(1, 2) @ dc


def flops(case):
    B, M, N, K = (case.axes[axis] for axis in "BMNK")
    return 4 * B * M * N * K


def bytes(case):
    B, M, N, K = (case.axes[axis] for axis in "BMNK")
    return 2 * B * (2 * M * K + 2 * K * N + M * N)

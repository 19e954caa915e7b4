"""float16 matrix product with float32 accumulation; the seed has small tiles and one stage."""

import torch

from fitness import Case

entry = "matmul"
cases = [
    Case("square-4096", {"M": 4096, "N": 4096, "K": 4096}, dtype="float16", cpu_axes={"M": 64, "N": 96, "K": 64}),
    Case("square-2048", {"M": 2048, "N": 2048, "K": 2048}, dtype="float16", cpu_axes={"M": 64, "N": 64, "K": 96}),
    Case("skinny", {"M": 64, "N": 8192, "K": 4096}, dtype="float16", cpu_axes={"M": 32, "N": 128, "K": 64}),
    Case("odd", {"M": 777, "N": 1234, "K": 333}, dtype="float16", role="holdout", cpu_axes={"M": 41, "N": 70, "K": 53}),
]


def inputs(case, generator):
    """a: (M, K), b: (K, N), both row-major."""
    M, N, K = (case.axes[axis] for axis in "MNK")
    dtype = getattr(torch, case.dtype)
    a = torch.randn(M, K, generator=generator, device=generator.device)
    b = torch.randn(K, N, generator=generator, device=generator.device)
    return a.to(dtype), (b / K**0.5).to(dtype)


def reference(a, b):
    return a @ b


def flops(case):
    return 2 * case.axes["M"] * case.axes["N"] * case.axes["K"]


def bytes(case):
    M, N, K = (case.axes[axis] for axis in "MNK")
    return 2 * (M * K + K * N + M * N)

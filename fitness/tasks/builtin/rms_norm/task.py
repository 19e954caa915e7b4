"""RMS norm of float16 activations; the seed uses two kernels with a workspace in between."""

import torch

from fitness import Case

entry = "rms_norm"
cases = [
    Case("hidden-4096", {"M": 8192, "N": 4096}, dtype="float16", cpu_axes={"M": 8, "N": 128}),
    Case("hidden-8192", {"M": 2048, "N": 8192}, dtype="float16", cpu_axes={"M": 4, "N": 256}),
    Case("odd", {"M": 333, "N": 2880 + 7}, dtype="float16", role="holdout", cpu_axes={"M": 7, "N": 149}),
]


def inputs(case, generator):
    """x: (M, N), row-major; weight: (N,); eps."""
    M, N = case.axes["M"], case.axes["N"]
    dtype = getattr(torch, case.dtype)
    x = torch.randn(M, N, generator=generator, device=generator.device)
    weight = 1 + 0.2 * torch.randn(N, generator=generator, device=generator.device)
    return x.to(dtype), weight.to(dtype), 1e-6


def reference(x, weight, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # float16 squares would overflow above 256
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight).to(x.dtype)


def flops(case):
    return 4 * case.axes["M"] * case.axes["N"]


def bytes(case):
    return 2 * (2 * case.axes["M"] * case.axes["N"] + case.axes["N"])

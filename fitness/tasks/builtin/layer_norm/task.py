"""Layer norm with weight and bias over the rows of a float32 matrix; the seed makes three passes."""

import torch

from fitness import Case

entry = "layer_norm"
cases = [
    Case("hidden-4096", {"M": 4096, "N": 4096}, cpu_axes={"M": 6, "N": 256}),
    Case("hidden-1024", {"M": 16384, "N": 1024}, cpu_axes={"M": 10, "N": 128}),
    Case("hidden-12288", {"M": 1024, "N": 12288}, cpu_axes={"M": 3, "N": 384}),
    Case("odd", {"M": 517, "N": 1337}, role="holdout", cpu_axes={"M": 5, "N": 167}),
]


def inputs(case, generator):
    """x: (M, N), row-major; weight, bias: (N,); eps."""
    M, N = case.axes["M"], case.axes["N"]

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=generator.device)

    return normal(M, N) + 0.5, 1 + 0.2 * normal(N), normal(N), 1e-5


def reference(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def flops(case):
    return 8 * case.axes["M"] * case.axes["N"]


def bytes(case):
    return 4 * (2 * case.axes["M"] * case.axes["N"] + 2 * case.axes["N"])

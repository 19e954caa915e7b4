"""Element-wise sine of a float32 vector; the seed's programs take four elements each."""

import torch

from fitness import Case

entry = "vector_sin"
cases = [
    Case("16M", {"N": 1 << 24}, cpu_axes={"N": 128}),
    Case("4M", {"N": 1 << 22}, cpu_axes={"N": 96}),
    Case("odd", {"N": 1_000_003}, role="holdout", cpu_axes={"N": 131}),
]


def inputs(case, generator):
    """x: (N,), angles of several turns."""
    return (4 * torch.randn(case.axes["N"], generator=generator, device=generator.device),)


def reference(x):
    return torch.sin(x)


def flops(case):
    return case.axes["N"]


def bytes(case):
    return 2 * 4 * case.axes["N"]

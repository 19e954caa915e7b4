"""Softmax of each row of a float32 matrix; the seed reads every row three times in small blocks."""

import torch

from fitness import Case

entry = "softmax"
cases = [
    Case("square", {"M": 4096, "N": 4096}, cpu_axes={"M": 6, "N": 256}),
    Case("wide", {"M": 1024, "N": 16384}, cpu_axes={"M": 3, "N": 512}),
    Case("tall", {"M": 32768, "N": 512}, cpu_axes={"M": 12, "N": 64}),
    Case("odd", {"M": 1003, "N": 777}, role="holdout", cpu_axes={"M": 5, "N": 205}),
]


def inputs(case, generator):
    """x: (M, N), row-major."""
    M, N = case.axes["M"], case.axes["N"]
    return (torch.randn(M, N, generator=generator, device=generator.device),)


def reference(x):
    return torch.softmax(x, dim=-1)


def flops(case):
    return 5 * case.axes["M"] * case.axes["N"]


def bytes(case):
    return 2 * 4 * case.axes["M"] * case.axes["N"]

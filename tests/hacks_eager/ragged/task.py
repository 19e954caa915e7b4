"""x * 2 + row sum of x in the first n rows, 0 in the others; n is on the device."""

import torch

from fitness import Case

entry = "ragged"
eager = True
cases = [
    Case("small", {"M": 256, "N": 1024}, cpu_axes={"M": 4, "N": 128}),
    Case("large", {"M": 4096, "N": 4096}, cpu_axes={"M": 8, "N": 256}),
    Case("odd", {"M": 77, "N": 1003}, role="holdout", cpu_axes={"M": 3, "N": 99}),
]


def inputs(case, generator):
    m, device = case.axes["M"], generator.device
    x = torch.randn(m, case.axes["N"], generator=generator, device=device)
    return x, torch.randint(m // 2 + 1, m + 1, (1,), generator=generator, device=device)


def reference(x, n):
    rows = torch.arange(len(x), device=x.device) < n
    return torch.where(rows[:, None], x * 2 + x.sum(1, keepdim=True), 0.0)


def bytes(case):
    return 4 * case.axes["M"] * case.axes["N"]

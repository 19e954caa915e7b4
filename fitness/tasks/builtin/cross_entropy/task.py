"""Cross entropy of float32 logits and class indices, one loss a row; the seed makes two passes in small blocks."""

import torch

from fitness import Case

entry = "cross_entropy"
cases = [
    Case("vocab-32k", {"M": 1024, "V": 32000}, cpu_axes={"M": 4, "V": 500}),
    Case("vocab-128k", {"M": 256, "V": 128256}, cpu_axes={"M": 2, "V": 1002}),
    Case("classes-1k", {"M": 16384, "V": 1000}, cpu_axes={"M": 10, "V": 100}),
    Case("odd", {"M": 77, "V": 5003}, role="holdout", cpu_axes={"M": 5, "V": 301}),
]


def inputs(case, generator):
    """logits: (M, V), row-major; targets: (M,), int64, in [0, V)."""
    M, V = case.axes["M"], case.axes["V"]
    logits = 2 * torch.randn(M, V, generator=generator, device=generator.device)
    return logits, torch.randint(V, (M,), generator=generator, device=generator.device)


def reference(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def flops(case):
    return 4 * case.axes["M"] * case.axes["V"]


def bytes(case):
    return 4 * case.axes["M"] * case.axes["V"] + (8 + 4) * case.axes["M"]

"""Masked gather and scatter of table rows by index, in place; the seed walks down columns in narrow strips."""

import torch

from fitness import Case

entry = "scatter"
writes = ("table",)
cases = [
    Case("embedding", {"M": 16384, "R": 65536, "N": 512}, cpu_axes={"M": 20, "R": 32, "N": 64}),
    Case("wide-rows", {"M": 2048, "R": 4096, "N": 4096}, cpu_axes={"M": 8, "R": 12, "N": 128}),
    Case("odd", {"M": 1001, "R": 1777, "N": 203}, role="holdout", cpu_axes={"M": 13, "R": 21, "N": 43}),
]


def inputs(case, generator):
    """table: (R, N), update: (M, N), row-major; slots: (M,), int64: distinct rows of the table, or -1 for "skip"."""
    M, R, N = (case.axes[axis] for axis in "MRN")
    device = generator.device
    table = torch.randn(R, N, generator=generator, device=device)
    update = torch.randn(M, N, generator=generator, device=device)
    slots = torch.randperm(R, generator=generator, device=device)[:M]
    skipped = torch.rand(M, generator=generator, device=device) < 0.25
    return table, update, slots.masked_fill(skipped, -1), 0.125


def reference(table, update, slots, rate):
    """Old rows (zero where skipped); `table[slots] += rate * update` in place."""
    used = (slots >= 0)[:, None]
    rows = torch.where(slots >= 0, slots, torch.arange(len(slots), device=slots.device) % len(table))
    old = torch.where(used, table[rows], 0)
    table.index_add_(0, rows, torch.where(used, rate * update, 0))  # a mask as an index would wait for the GPU
    return old


def flops(case):
    return 2 * case.axes["M"] * case.axes["N"]


def bytes(case):
    M, N = case.axes["M"], case.axes["N"]
    return 4 * 4 * M * N + 8 * M  # all rows counted as used

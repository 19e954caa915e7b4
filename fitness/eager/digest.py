"""A digest of a tensor's bits: what a process commits itself to when it says that its work is done."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from fitness.verify.compare import words

COLUMNS = 1024  # sums that the digest is made of: a value that moves to another column changes it


def digests(tensors: Sequence[torch.Tensor]) -> list[str]:
    """One digest each, of the elements in row-major order, whatever the strides.

    Every element enters it, so nobody has the digest before all of them are computed.  They are read once, and the
    device is waited for once.
    """
    if not tensors:
        return []
    sums = torch.stack([_sums(t) for t in tensors]).cpu().numpy()
    return [hashlib.sha256(row.tobytes()).hexdigest()[:32] for row in sums]


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Sums over the columns of the words laid out in rows of COLUMNS, and over those left; int64, wrapping around."""
    flat = words(tensor.detach().contiguous()).reshape(-1)
    whole = flat.numel() // COLUMNS * COLUMNS
    columns = flat[:whole].view(-1, COLUMNS).sum(0, dtype=torch.int64)
    return torch.cat([columns, flat[whole:].sum(dtype=torch.int64).reshape(1)])

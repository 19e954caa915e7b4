"""fitness.gpu.bits."""

from __future__ import annotations

import pytest
import torch

from fitness.gpu.bits import same_bits

LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.T.contiguous().T,
    "odd address": lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("a", LAYOUTS)
@pytest.mark.parametrize("b", LAYOUTS)
def test_bits_are_compared_whatever_the_layout(dtype: torch.dtype, a: str, b: str) -> None:
    x = (torch.arange(12).view(3, 4) % 5 - 2).to(dtype)
    assert same_bits(LAYOUTS[a](x), LAYOUTS[b](x))
    other = x.clone()
    other[2, 3] = not other[2, 3] if dtype is torch.bool else other[2, 3] + 1
    assert not same_bits(LAYOUTS[a](x), LAYOUTS[b](other))


def test_bits_are_not_values() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))

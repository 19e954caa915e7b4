"""Norms: the one pass on a GPU gives what PyTorch gives."""

from __future__ import annotations

import math

import pytest
import torch

from fitness.cuda.norms import Norms, largest_magnitude, norms

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]


def expected(exact: torch.Tensor, other: torch.Tensor) -> Norms:
    x, d = exact.cpu(), other.cpu().double() - exact.cpu()
    return Norms(float(x.square().mean().sqrt()), float(x.abs().max()), float(d.square().mean().sqrt()),
                 float(d.abs().max()))  # fmt: skip


def values(found: Norms) -> list[float]:
    return [found.rms, found.largest, found.error_rms, found.error_largest]


@DEVICES
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (1023,), (33, 1025), (257, 4099)])
def test_sizes_and_errors(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    exact = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    other = (exact * 1.01).to(dtype)
    assert values(norms(exact, other)) == pytest.approx(values(expected(exact, other)), rel=1e-12)


@DEVICES
def test_windows_that_are_not_contiguous_or_not_aligned(device: str) -> None:
    exact = torch.randn(64, 65, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device)
    for a, b in (
        (exact.T, exact.float().T),
        (exact[1:, :], exact.float()[1:, :]),
        (exact[:, 1:], exact.float()[:, 1:]),
    ):
        assert values(norms(a, b)) == pytest.approx(values(expected(a, b)), rel=1e-12)


@DEVICES
@pytest.mark.parametrize("scale", [1e200, 1e-200, 0.0])
def test_squares_beyond_the_range_of_float64(device: str, scale: float) -> None:
    exact = scale * torch.linspace(1, 2, 1000, dtype=torch.float64, device=device)
    rms = scale * float(torch.linspace(1, 2, 1000, dtype=torch.float64).square().mean().sqrt())
    found = norms(exact, exact * 2)
    assert values(found) == pytest.approx([rms, 2 * scale, rms, 2 * scale], rel=1e-9)


@DEVICES
@pytest.mark.parametrize("where", [0, 1500, 4098])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_strange_element_is_seen(device: str, where: int, value: float) -> None:
    exact = torch.ones(4099, dtype=torch.float64, device=device)
    other = exact.float()
    other[where] = value
    assert not math.isfinite(norms(exact, other).error_largest)
    assert math.isfinite(norms(exact, other).largest)
    assert not math.isfinite(norms(other.double(), exact).largest)


def test_the_largest_magnitude_of_narrow_types() -> None:
    assert largest_magnitude(torch.tensor([1.5, -4.0]).to(torch.float8_e4m3fn)) == 4.0
    assert math.isnan(largest_magnitude(torch.tensor([1.0, math.nan])))

"""Fingerprints: whatever changes is seen, on every copy, and a GPU gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fitness.frontend.plan import Buffer, LaunchPlan, TensorRef
from fitness.gpu import fingerprint as module
from fitness.gpu.buffers import DeviceMemory
from fitness.gpu.fingerprint import fingerprint

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])


def of(windows: torch.Tensor) -> list[int]:
    out = torch.zeros(len(windows), dtype=torch.int64, device=windows.device)
    fingerprint(windows, out)
    return out.tolist()


def rows(device: str, shape: tuple[int, ...] = (3, 4100), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Copies that are equal."""
    one = torch.randn(shape[1:], generator=torch.Generator().manual_seed(0))
    return one.expand(shape).contiguous().to(device, dtype)


def swap(x: torch.Tensor) -> None:
    x[1, :2], x[1, 2:4] = x[1, 2:4].clone(), x[1, :2].clone()


def negate(x: torch.Tensor) -> None:
    x[1, [7, 4001]] *= -1


def last(x: torch.Tensor) -> None:
    x[1, -1] += 1


def nan(x: torch.Tensor) -> None:
    x[1, 5] = float("nan")


@DEVICES
@pytest.mark.parametrize("change", [swap, negate, last, nan])
def test_what_changes_on_one_copy_is_seen_there(device: str, change: Callable[[torch.Tensor], None]) -> None:
    windows = rows(device)
    before = of(windows)
    assert len(set(before)) == 1
    assert of(windows) == before
    change(windows)
    after = of(windows)
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]


@DEVICES
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.int32, torch.int64, torch.float64], ids=str
)
@pytest.mark.parametrize("shape", [(2,), (1, 1), (2, 1003), (2, 33, 1025), (32, 64, 128)])
def test_any_type_and_size(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    windows = rows(device, shape, dtype)
    before = of(windows)
    assert len(set(before)) == 1
    flat = windows[-1].view(-1) if windows.dim() > 1 else windows[-1:]
    flat[-1:].view(torch.uint8)[-1] ^= 1
    assert [a == b for a, b in zip(of(windows), before, strict=True)] == [True] * (len(windows) - 1) + [False]


@DEVICES
def test_nothing_has_a_fingerprint_too(device: str) -> None:
    assert of(torch.empty((2, 0, 4), device=device)) == [0, 0]


@DEVICES
@pytest.mark.parametrize(
    "ref",
    [TensorRef(0, "float32", (3, 5), (5, 1)), TensorRef(0, "float32", (3,), (5,), 2),
     TensorRef(0, "float32", (2, 4), (4, 1)), TensorRef(0, "float32", (), ()), TensorRef(0, "float32", (2, 3), (0, 1)),
     TensorRef(0, "float32", (2,), (1,), 2)],
)  # fmt: skip
def test_of_windows_on_a_plan_only_what_they_hold_counts(device: str, ref: TensorRef) -> None:
    plan = LaunchPlan((Buffer(60, 0),), (TensorRef(0, "float32", (3, 5), (5, 1)),), (), "none", ())
    memory = DeviceMemory(plan, torch.device(device), 3)
    for copy in range(3):
        memory.write([torch.arange(15.0, device=device).reshape(3, 5)], copy)
    windows = memory.windows(ref)
    before = of(windows)
    assert len(set(before)) == 1
    held = windows[1].clone()
    memory.windows(plan.inputs[0])[1].fill_(-1.0)  # type: ignore[arg-type]
    windows[1].copy_(held) if ref.strides[:1] != (0,) else windows[1][0].copy_(held[0])
    assert of(windows) == before
    windows[1].fill_(-2.0) if ref.strides[:1] != (0,) else windows[1][0].fill_(-2.0)
    assert [a == b for a, b in zip(of(windows), before, strict=True)] == [True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [(1, 1 << 22), (2, 33, 1026), (32, 4096), (3, 2)])
def test_the_kernel_adds_up_what_pytorch_does(shape: tuple[int, ...]) -> None:
    windows = rows("cuda", shape)
    assert module._kernel(windows.device.index) is not None
    assert of(windows) == of(windows.cpu())

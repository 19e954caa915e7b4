"""Imitates the target GPU for host code, on a machine without one.

Tensors are fake CPU tensors.  `AsCuda` answers the candidate as if they were on `cuda:0` and maps device arguments to
the CPU.  Tensors that would be in host memory on the target appear there, because a kernel cannot take them.
`fake_device` replaces what torch.cuda and Triton's driver say about the device.  All of it is undone on exit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from evo.core.records import Verdict
from fitness.frontend.module import earlier_modules
from fitness.frontend.recording.recorder import Recorder
from fitness.frontend.target import Target
from fitness.sandbox.jobs import JobError

CUDA, HOST = torch.device("cuda", 0), torch.device("cpu")
_WARP = 32


class Refusing(Protocol):
    """Something that records failures of host code."""

    def fail(self, verdict: Verdict, message: str) -> JobError:
        """The error to raise for the candidate's current line."""


class AsCuda(TorchFunctionMode):
    """Answers questions about devices as a GPU would, and redirects device arguments to the CPU."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        tensor = torch.Tensor
        # Attributes arrive as the getters of their descriptors.
        self._answers: dict[Any, Callable[..., Any]] = {
            tensor.is_cuda.__get__: lambda t: not recorder.on_host(t),  # type: ignore[attr-defined]
            tensor.is_cpu.__get__: recorder.on_host,  # type: ignore[attr-defined]
            tensor.device.__get__: self.device,  # type: ignore[attr-defined]
            tensor.get_device: lambda t: -1 if recorder.on_host(t) else 0,
            tensor.data_ptr: recorder.address,
            tensor.is_pinned: lambda t, *_: False,
            tensor.pin_memory: lambda t, *_: t,
            tensor.record_stream: lambda t, *_: None,
            tensor.cuda: lambda t, device=CUDA, *_, **__: self._move(t, _as_device(CUDA if device is None else device)),
            tensor.cpu: lambda t, *_, **__: self._move(t, HOST),
            tensor.to: self._to,
            tensor.type: self._type,
            tensor.__repr__: self._needs_values,
            tensor.__format__: self._needs_values,
            tensor.numpy: self._needs_values,
            tensor.__array__: self._needs_values,
            tensor.__dlpack__: self._needs_values,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = self._answers.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        requested = _requested_device(args, kwargs)
        if requested is None and func in _device_constructors():
            requested = HOST
        if requested is None and func == torch.Tensor.new_tensor:
            requested = self.device(args[0])
        if requested is None:
            return func(*args, **kwargs)
        before = self._recorder.factory_on_host
        self._recorder.factory_on_host = requested.type == "cpu"
        try:
            args = tuple(HOST if isinstance(a, torch.device) else a for a in args)
            return func(*args, **{k: HOST if k == "device" and v is not None else v for k, v in kwargs.items()})
        finally:
            self._recorder.factory_on_host = before

    def device(self, tensor: torch.Tensor) -> torch.device:
        """The device that the candidate sees the tensor on."""
        return HOST if self._recorder.on_host(tensor) else CUDA

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`tensor.to(device)`, `.to(dtype)`, `.to(device, dtype)`, `.to(other)`."""
        target = kwargs.pop("device", None)
        if args and (isinstance(args[0], (str, torch.device)) or type(args[0]) is int):
            target, args = args[0], args[1:]
        elif args and isinstance(args[0], torch.Tensor):
            target, args = self.device(args[0]), (args[0].dtype, *args[1:])
        if target is not None:
            tensor = self._move(tensor, _as_device(target))
        kwargs.pop("non_blocking", None)
        if args[:1] == (None,):  # Module.to: (device, None, non_blocking) for tensors that keep their dtype
            args = args[2:]
        if not args and not kwargs:
            return tensor
        return tensor.to(*args, **kwargs)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *_: Any, **__: Any) -> Any:
        """`tensor.type()`, a text, and `.type(dtype)`."""
        if isinstance(dtype, torch.dtype):
            return tensor.to(dtype)
        if dtype is not None:
            raise self._recorder.fail(Verdict.UNSUPPORTED, f"Tensor.type({dtype!r}): convert by Tensor.to(dtype)")
        module = "torch" if self._recorder.on_host(tensor) else "torch.cuda"
        return f"{module}.{torch.empty(0, dtype=tensor.dtype).type().rpartition('.')[2]}"

    def _move(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        if self.device(tensor).type == target.type:
            return tensor
        if target.type == "cpu":
            self._needs_values(tensor)
        return self._recorder.to_device(tensor)

    def _needs_values(self, *_: Any, **__: Any) -> NoReturn:
        message = "copies device memory to the host; decide in the kernel, or from shapes and dtypes"
        raise self._recorder.fail(Verdict.UNSUPPORTED, message)


def _requested_device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device that a call names, or None."""
    if kwargs.get("device") is not None:
        return _as_device(kwargs["device"])
    return next((_as_device(a) for a in args if isinstance(a, torch.device)), None)


def _as_device(value: Any) -> torch.device:
    device = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    if device.type not in ("cpu", "cuda") or device.index not in (None, 0):
        raise RuntimeError(f"expected device 'cuda' or 'cpu', got {str(device)!r}: there is one GPU")
    return device


@contextlib.contextmanager
def fake_cuda(target: Target, recorder: Recorder) -> Iterator[None]:
    """Enters the modes and replacements under which a candidate's host code runs; needs a FakeTensorMode around it."""
    as_cuda = AsCuda(recorder)
    plain = FakeTensor.device.fget  # type: ignore[attr-defined]
    # No function mode sees this property of fake tensors.  Torch itself must continue to see the CPU.
    device = property(lambda t: plain(t) if recorder.depth else as_cuda.device(t))
    with mock.patch.object(FakeTensor, "device", device), fake_device(target, recorder), as_cuda, recorder:
        yield


@contextlib.contextmanager
def fake_device(target: Target, recorder: Refusing) -> Iterator[None]:
    """Makes torch.cuda and Triton's driver describe the target, whatever this machine has."""
    with (
        earlier_modules(),
        mock.patch.multiple(torch.cuda, **_torch_cuda(target, recorder)),
        mock.patch.object(torch, "set_default_device", lambda device: None),
        mock.patch.object(driver, "_active", _Driver(target, recorder)),
        # Files that torch.compile wrote call these two; builds of torch without CUDA lack the first.
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, create=True),
        mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided),
    ):
        yield


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=CUDA)


def _torch_cuda(target: Target, recorder: Refusing) -> dict[str, Any]:
    """Replacements of attributes of torch.cuda, by name."""
    properties = SimpleNamespace(
        name=target.device_name,
        major=target.arch // 10,
        minor=target.arch % 10,
        multi_processor_count=target.multiprocessors,
        max_threads_per_multi_processor=target.warps_per_multiprocessor * _WARP,
        max_threads_per_block=1024,  # as every NVIDIA GPU.
        warp_size=_WARP,
        regs_per_multiprocessor=target.registers_per_multiprocessor,
        shared_memory_per_block=48 << 10,  # without opting in to more, as every NVIDIA GPU.
        shared_memory_per_block_optin=target.shared_per_program,
        shared_memory_per_multiprocessor=target.shared_per_multiprocessor,
        L2_cache_size=target.l2_bytes,
        clock_rate=int(target.clock_hz / 1000),
    )

    def unsupported(what: str) -> type:
        class Refused:  # a class, as annotations and checks of instances need one
            def __new__(cls, *_: Any, **__: Any) -> NoReturn:
                raise recorder.fail(
                    Verdict.UNSUPPORTED, f"torch.cuda.{what} has no place in a candidate; launch and return"
                )

        return Refused

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: contextlib.nullcontext(),
        "device_of": lambda tensor: contextlib.nullcontext(),
        "_DeviceGuard": lambda index: contextlib.nullcontext(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_name": lambda device=None: properties.name,
        "is_bf16_supported": lambda *_, **__: target.arch >= 80,
        **{name: unsupported(name) for name in ("Event", "Stream", "stream", "CUDAGraph", "graph", "mem_get_info")},
    }


class _Driver:
    """A driver of Triton's that answers from the target's data sheet."""

    def __init__(self, target: Target, recorder: Refusing) -> None:
        self._target, self._recorder = target, recorder
        self.utils = SimpleNamespace(get_device_properties=lambda device: self._properties())

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._target.arch, _WARP)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """Does nothing: there is only one device."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> NoReturn:
        raise self._recorder.fail(Verdict.UNSUPPORTED, "a candidate cannot time itself; use @triton.autotune")

    def get_empty_cache_for_benchmark(self) -> NoReturn:
        self.get_benchmarker()

    def _properties(self) -> dict[str, int]:
        """Device properties under the names of Triton's CUDA driver; clocks in kHz."""
        bus_bits = 1024  # Nominal: its product with the memory clock is the rate in the data sheet.
        return {
            "max_shared_mem": self._target.shared_per_program,
            "max_num_regs": self._target.registers_per_multiprocessor,
            "multiprocessor_count": self._target.multiprocessors,
            "warpSize": _WARP,
            "sm_clock_rate": int(self._target.clock_hz / 1000),
            "mem_clock_rate": int(self._target.dram_bytes_per_s / (2 * bus_bits / 8) / 1000),
            "mem_bus_width": bus_bits,
        }

"""Runs code for a GPU on a machine without one: tensors are real ones in host memory that say they lie on the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from evo.core.records import Verdict
from fitness.frontend.recording.fakecuda import AsCuda
from fitness.sandbox.jobs import JobError, line_of_call
from fitness.suites.values import COMPUTED

_ENGINE = torch.autograd._engine_run_backward  # every backward pass calls it
_SAME_VALUES = {
    torch.Tensor.to, torch.Tensor.int, torch.Tensor.long, torch.Tensor.short, torch.Tensor.char, torch.Tensor.clone,
    torch.Tensor.contiguous, torch.Tensor.cuda, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16,
}  # fmt: skip
_ALLOCATE = {
    torch.empty, torch.empty_like, torch.empty_strided, torch.zeros, torch.zeros_like, torch.full, torch.full_like,
    torch.ones, torch.ones_like, torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_full,
    torch.Tensor.new_ones, torch.Tensor.new_empty_strided,
}  # fmt: skip
_UNWRITTEN = {
    torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
}  # fmt: skip


class _GeneratorType(type):
    """The type of a class that stands for another one in annotations and checks of instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _GENERATOR)


_GENERATOR = torch.Generator


class _HostGenerator(metaclass=_GeneratorType):
    """Makes generators of the host, whatever device is asked for."""

    def __new__(cls, device: Any = None) -> Any:
        return _GENERATOR()


@contextlib.contextmanager
def seeds_on_host() -> Iterator[None]:
    """Ignores seeds for the GPU's generators: the host's generators replace them."""
    nothing: dict[str, Any] = dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all"), lambda *_: None)
    with mock.patch.multiple(torch.cuda, **nothing), mock.patch.object(torch, "Generator", _HostGenerator):
        yield


class OnHost(AsCuda):
    """The function mode under which such code runs; knows how values were made, if that decides how to draw them."""

    def __init__(self) -> None:
        super().__init__(self)  # type: ignore[arg-type]
        for needing_values in (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__):
            del self._answers[needing_values]
        self._drawn: dict[int, tuple[Any, dict[str, Any]]] = {}  # by address of the storage, which is kept alive
        self._backward = False  # whether autograd is in a backward pass
        self.factory_on_host: bool | None = None

    def computing(self) -> bool:
        """Returns whether memory that is allocated now is for the results of kernels."""
        raise NotImplementedError

    # --- in place of the recorder ------------------------------------------------------------------------------------

    def on_host(self, tensor: torch.Tensor) -> bool:
        return False

    def address(self, tensor: torch.Tensor) -> int:
        with torch._C.DisableTorchFunction():
            return tensor.data_ptr()

    def fail(self, verdict: Verdict, message: str) -> JobError:
        return JobError(verdict, message, line_of_call())

    def _move(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        return tensor

    # --- where values come from --------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, torch.Tensor):
            with torch._C.DisableTorchFunction():
                self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: torch.Tensor) -> None:
        if func in (torch.randint, torch.randint_like):
            numbers = [a for a in args if type(a) is int]
            low = kwargs.get("low", numbers[0] if len(numbers) > 1 else 0)
            high = kwargs.get("high", numbers[1] if len(numbers) > 1 else next(iter(numbers), None))
            if high is not None:
                self._remember(result, {"rule": "randint", "low": int(low), "high": int(high)})
        elif func is torch.randperm:
            self._remember(result, {"rule": "randperm"})
        elif func in _ALLOCATE:
            if func in _UNWRITTEN and result.dtype.itemsize:
                result.zero_()
            if self.computing():
                self._remember(result, COMPUTED)
        elif func in _SAME_VALUES and args and isinstance(args[0], torch.Tensor):
            other = self._drawn.get(args[0].untyped_storage()._cdata)
            if other is not None and result.numel() == args[0].numel():
                self._remember(result, other[1])

    def _remember(self, tensor: torch.Tensor, rule: dict[str, Any]) -> None:
        storage = tensor.untyped_storage()
        self._drawn[storage._cdata] = storage, rule

    def rule(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        _, rule = self._drawn.get(tensor.untyped_storage()._cdata, (None, None))
        if rule is not None and (rule["rule"] == "quantiles") != tensor.dtype.is_floating_point:
            return None
        return rule

    # --- backward passes ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_backward(self) -> Iterator[None]:
        """Keeps this mode on in backward passes."""
        with mock.patch.object(torch.autograd, "_engine_run_backward", self._noticed(_ENGINE)):
            yield

    def _noticed(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        """Returns autograd's engine with this mode on: PyTorch turns it off before `Tensor.backward` is executed."""

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._backward = self._backward, True
            try:
                with self:
                    return engine(*args, **kwargs)
            finally:
                self._backward = before

        return run

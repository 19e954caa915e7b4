"""Turns the tensor operations of a candidate's host code into steps of a plan.

`Recorder` is a dispatch mode above fake tensors: it sees every ATen operator with tensors that have a shape and a
storage but no values.  The storage identifies a tensor, so views need no step.  Operators become:

    allocation (empty, empty_like, ...)         a buffer, no step
    view (output shares its input's storage)    nothing
    zeros, ones, full, fill_, zero_             Fill
    clone, contiguous, to(dtype), copy_         Copy
    random numbers                              JobError(REJECTED)
    a result that depends on values             JobError(UNSUPPORTED)
    anything else                               Op: work delegated to ATen
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from evo.core.records import Verdict
from fitness.frontend.aten import MOVING, written_arguments
from fitness.frontend.plan import ITEMSIZE, Buffer, Copy, Fill, Op, Step, TensorRef
from fitness.sandbox.jobs import JobError, line_of_call

MEMORY_BYTES = 64 << 30  # of a plan's own buffers: the smallest target has 80 GB, and the inputs need room too.
STEPS = 10_000  # of one call; a candidate with more has an endless loop on the host.
UPLOAD = 64  # elements of a host list that may become one Fill each.

_ALLOCATE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_FILL = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "zero_": 0,
    "ones": 1, "ones_like": 1, "new_ones": 1,
    "full": "fill_value", "full_like": "fill_value", "new_full": "fill_value",
    "fill": "value", "fill_": "value", "scalar_tensor": "s",
}  # fmt: skip
_COPY = {"clone": "self", "_to_copy": "self", "copy": "src", "copy_": "src", "lift_fresh_copy": "self"}
# Arguments that place an operator's results; a plan has the windows of the outputs instead.
_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@dataclass
class _Memory:
    """A storage that has a buffer in the plan.  The reference to it prevents that its address is used again."""

    storage: Any
    buffer: int
    on_host: bool


class Recorder(TorchDispatchMode):
    """Collects the buffers and steps of one call of the entry while it is the active dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.failure: JobError | None = None  # The first one, even if the candidate caught it.
        self.depth = 0  # Above 0, torch's own code runs, not the candidate's.
        # Whether the current call asks for host memory; None: it uses the device of its inputs.
        self.factory_on_host: bool | None = None
        self._memory: dict[int, _Memory] = {}  # by address of the storage.
        self._constants: dict[int, tuple[str, list[Any]]] = {}  # dtype and host values that no step has used yet.
        self._owned_bytes = 0

    # --- for the other parts of recording ----------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, index: int) -> TensorRef:
        """Registers `tensor` as argument `index` of the entry and returns its window."""
        with self.inside():
            self._register(tensor, on_host=False, index=index)
            return self._window(tensor)

    def ref(self, tensor: torch.Tensor) -> TensorRef:
        """The window on the plan's memory that stands for `tensor`."""
        with self.inside():
            self._upload(tensor)
            return self._window(tensor)

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor would be in host memory on the target."""
        with self.inside():
            memory = self._memory.get(_address(tensor))
        return memory is not None and memory.on_host

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor in device memory."""
        self.factory_on_host = False
        try:
            return tensor.clone()
        finally:
            self.factory_on_host = None

    def address(self, tensor: torch.Tensor) -> int:
        """A number for `data_ptr` that points nowhere, aligned like the real pointer."""
        ref = self.ref(tensor)
        return ((ref.buffer + 1) << 40) + ref.offset * ITEMSIZE[ref.dtype]

    def add(self, step: Step) -> None:
        """Appends a step to the plan; raises JobError(UNSUPPORTED) for too many."""
        if len(self.steps) >= STEPS:
            raise self.fail(Verdict.UNSUPPORTED, f"more than {STEPS} steps in one call; launch fewer kernels")
        self.steps.append(step)

    def fail(self, verdict: Verdict, message: str) -> JobError:
        """A JobError at the candidate's current line.  The first one decides the job, even if it is caught."""
        error = JobError(verdict, message, line_of_call())
        self.failure = self.failure or error
        return error

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Marks code inside as torch's own, not the candidate's; function modes do not see it."""
        self.depth += 1
        try:
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self.depth -= 1

    # --- operators ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self.inside():
            if self._draws(func, args, kwargs):
                message = f"random numbers ({func}); a candidate must be deterministic: use tl.rand with a fixed seed"
                raise self.fail(Verdict.REJECTED, message)
            try:
                result = func(*args, **kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                message = (
                    f"host code needs a value computed on the device ({func}); "
                    "decide in the kernel, or from shapes and dtypes"
                )
                raise self.fail(Verdict.UNSUPPORTED, message) from error
            self._record(func, args, kwargs, result)
        return result

    def _draws(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether an operator draws random numbers."""
        return torch.Tag.nondeterministic_seeded in func.tags

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.overloadpacket.__name__
        if name == "lift_fresh":
            self._remember_constant(result, args[0])
            return
        inputs, written = list(_tensors((args, kwargs))), _written(func, args, kwargs)
        existing = {_address(t) for t in inputs}
        outputs = list(_tensors(result))
        created = [t for t in outputs if _address(t) not in existing]
        if not created and not written:
            return
        if name in MOVING:
            raise self.fail(Verdict.UNSUPPORTED, f"{func} moves a tensor to other memory; allocate a new tensor")
        on_host = self._creates_on_host(inputs)
        for tensor in created:
            self._register(tensor, on_host)
        if name not in _ALLOCATE:
            self._add_step(func, name, args, kwargs, outputs)

    def _add_step(self, func: Any, name: str, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
        """Adds the step of an operator.  outputs: the tensors it returned; those it wrote to are among them."""
        if name in _FILL:
            value = _FILL[name] if isinstance(_FILL[name], int) else argument_of(func, args, kwargs, str(_FILL[name]))
            self._fill(outputs[0], value)
        elif name in _COPY:
            self._copy(outputs[0], argument_of(func, args, kwargs, _COPY[name]))
        else:
            refs = tuple(self.ref(t) for t in outputs)
            encoded = self._encode(args), {k: self._encode(v) for k, v in kwargs.items() if k not in _PLACEMENT}
            self.add(Op(str(func), *encoded, refs, line_of_call()))

    def _fill(self, target: torch.Tensor, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._copy(target, value)
        elif isinstance(value, (bool, int, float)):
            self.add(Fill(self.ref(target), value))
        else:
            raise self.fail(Verdict.UNSUPPORTED, f"a tensor filled with {value!r}; expected a real number")

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        _, values = self._constants.get(_address(source), ("", []))
        if len(values) == 1:  # x[...] = 0
            self._fill(target, values[0])
        else:
            self.add(Copy(self.ref(target), _broadcast(self.ref(source), tuple(target.shape))))

    def _encode(self, value: Any) -> Any:
        """An operator's argument for a plan: tensors as windows, dtypes as {"dtype": torch's name}."""
        if isinstance(value, torch.Tensor):
            return self.ref(value)
        if isinstance(value, (tuple, list)):
            return tuple(self._encode(v) for v in value)
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise self.fail(Verdict.UNSUPPORTED, f"an operator with an argument of type {type(value).__name__}")

    # --- memory ------------------------------------------------------------------------------------------------------

    def _creates_on_host(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an operator with these inputs creates tensors in host memory."""
        if self.factory_on_host is not None:
            return self.factory_on_host
        registered = [self._memory[a] for t in inputs if (a := _address(t)) in self._memory]
        return all(m.on_host for m in registered)

    def _register(self, tensor: torch.Tensor, on_host: bool, index: int | None = None) -> None:
        if tensor.layout is not torch.strided or _dtype(tensor) not in ITEMSIZE:
            message = f"a tensor of {tensor.layout} and {tensor.dtype}; expected a dense one of {', '.join(ITEMSIZE)}"
            raise self.fail(Verdict.UNSUPPORTED, message)
        storage = tensor.untyped_storage()
        if storage._cdata in self._memory:
            return
        self._memory[storage._cdata] = _Memory(storage, len(self.buffers), on_host)
        self.buffers.append(Buffer(int(storage.nbytes()), index))
        if index is None:
            self._owned_bytes += int(storage.nbytes())
            if self._owned_bytes > MEMORY_BYTES:
                message = f"allocates {self._owned_bytes >> 30} GiB; a call may own {MEMORY_BYTES >> 30} GiB"
                raise self.fail(Verdict.OUT_OF_MEMORY, message)

    def _window(self, tensor: torch.Tensor) -> TensorRef:
        if _address(tensor) not in self._memory:  # Legacy constructors make tensors without an operator.
            self._register(tensor, on_host=True)
        buffer = self._memory[_address(tensor)].buffer
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        if _dtype(tensor) not in ITEMSIZE:
            raise self.fail(Verdict.UNSUPPORTED, f"a tensor of {tensor.dtype}; expected one of {', '.join(ITEMSIZE)}")
        return TensorRef(buffer, _dtype(tensor), shape, strides, int(tensor.storage_offset()))

    def _remember_constant(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Keeps the host values of a tensor.  They become steps only if something uses it as a tensor.

        tensor: the fake tensor that stands for `real`.
        """
        self._register(tensor, on_host=self.factory_on_host is not False)
        with _disable_current_modes():
            if not real.is_contiguous():
                raise self.fail(Verdict.UNSUPPORTED, "a strided host array becomes a tensor; make it contiguous before")
            self._constants[_address(tensor)] = _dtype(real), real.flatten()[: UPLOAD + 1].tolist()

    def _upload(self, tensor: torch.Tensor) -> None:
        dtype, values = self._constants.pop(_address(tensor), ("", []))
        if len(values) > UPLOAD:
            message = f"more than {UPLOAD} host values become a tensor of {tensor.dtype}; compute them in a kernel"
            raise self.fail(Verdict.UNSUPPORTED, message)
        buffer = self._memory[_address(tensor)].buffer if values else 0
        for i, value in enumerate(values):
            self.add(Fill(TensorRef(buffer, dtype, (1,), (1,), i), value))


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from _tensors(v)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that the operator's schema says it writes to."""
    return list(_tensors(written_arguments(func, args, kwargs)))


def without_values(argument: Mapping[str, Any]) -> Any:
    """Returns an argument as `fitness.tasks.calls` describes it: a tensor (fake, in a FakeTensorMode), or its value."""
    if "tensor" not in argument:
        return argument["value"]
    tensor = argument["tensor"]
    return torch.empty_strided(tensor["shape"], tensor["strides"], dtype=getattr(torch, tensor["dtype"]))


def argument_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """An operator's argument by its name in the schema."""
    for i, parameter in enumerate(func._schema.arguments):
        if parameter.name == name:
            return args[i] if i < len(args) else kwargs.get(name, parameter.default_value)
    raise AssertionError(f"{func} has no argument {name!r}")


def _broadcast(ref: TensorRef, shape: tuple[int, ...]) -> TensorRef:
    """`ref` as a window of `shape`, repeated along axes of length 1 as copy_ does."""
    missing = len(shape) - len(ref.shape)
    if missing < 0:  # copy_ ignores leading axes of length 1
        ref = replace(ref, shape=ref.shape[-missing:], strides=ref.strides[-missing:])
        missing = 0
    lengths = (1,) * missing + ref.shape
    strides = (0,) * missing + ref.strides
    moved = tuple(0 if n == 1 and m != 1 else s for n, m, s in zip(lengths, shape, strides, strict=True))
    return replace(ref, shape=shape, strides=moved)

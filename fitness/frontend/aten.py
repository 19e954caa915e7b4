"""The ATen operators of a plan: work that its host code leaves to PyTorch.

They are executed elsewhere than the candidate's Python, by processes that trust nothing of a plan.  So they are such as
make tensors of tensors, and nothing else: others of ATen's read and write files, move a tensor to other memory, reach
beyond the window that they are given, or draw random numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from evo.core.records import Verdict
from fitness.frontend.memory import DTYPES
from fitness.frontend.plan import Op, TensorRef
from fitness.sandbox.jobs import JobError

_TYPES = frozenset(["Optional", "List", "Tensor", "number", "int", "float", "bool", "str", "Device"])
# The only ones without a tensor among their arguments.
_FACTORIES = frozenset(
    ["arange", "eye", "full", "linspace", "logspace", "scalar_tensor", "tril_indices", "triu_indices"]
)
# What changes a tensor's storage under its feet.
MOVING = frozenset(
    ["resize", "resize_", "resize_as", "resize_as_", "set", "set_", "set_data", "_resize_output", "_resize_output_"]
)
# What takes a tensor for more than its window: all of its storage, which is the memory of the whole plan and of others.
# Views are windows in a plan, so no host code needs them here.
_REACHING = re.compile("as_strided|sparse|nested|reinterpret|resize|_set_storage")
_PLACEMENT = ("device", "layout", "pin_memory")


def tensor_function(name: str) -> OpOverload | None:
    """The operator called, for example, "aten.mm.default"; None where there is none that makes tensors of tensors."""
    parts = name.split(".")
    found: Any = torch.ops.aten if parts[0] == "aten" and len(parts) == 3 else None
    for part in parts[1:]:
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) and _harmless(parts[1], found) else None


def _harmless(name: str, function: OpOverload) -> bool:
    schema = function._schema
    given, made = ([str(value.type) for value in values] for values in (schema.arguments, schema.returns))
    taken = {word for kind in given for word in re.findall(r"\w+", kind)}
    return (
        taken <= _TYPES
        and all(kind in ("Tensor", "List[Tensor]") for kind in made)
        and ("Tensor" in taken or name in _FACTORIES)
        and name not in MOVING
        and not _REACHING.search(name)
        and torch.Tag.nondeterministic_seeded not in function.tags
    )


def execute(op: Op, window: Callable[[TensorRef], torch.Tensor], device: torch.device) -> None:
    """The operator on windows of the memory; its results go to the windows that the plan names.

    Raises JobError where it cannot be executed, torch.OutOfMemoryError.
    """
    function = tensor_function(op.name)
    if function is None:
        message = (
            f"{op.name!r} is not an ATen operator with an overload, as aten.mm.default, that makes tensors of tensors"
        )
        raise JobError(Verdict.UNSUPPORTED, message, op.line)
    args = [_argument(a, window) for a in op.args]
    kwargs: dict[str, Any] = {k: _argument(v, window) for k, v in op.kwargs.items() if k not in _PLACEMENT}
    # An operator makes what it is to write to larger where that is too small, with all memory that it is part of.
    outs = [p.name for _, p in _written(function) if p.kwarg_only]
    own = {k: torch.empty_like(kwargs[k]) for k in outs if isinstance(kwargs.get(k), torch.Tensor)}
    if any(parameter.name == "device" for parameter in function._schema.arguments):
        kwargs["device"] = device  # arange and the like make their result there, not in host memory
    try:
        result = function(*args, **{**kwargs, **own})
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        message = str(error).strip() or type(error).__name__
        raise JobError(Verdict.RUNTIME_ERROR, f"{op.name}: {message}", op.line) from error
    for name, made in own.items():
        if made.shape != kwargs[name].shape:
            message = f"{op.name} made {list(made.shape)} of {name}, which is {list(kwargs[name].shape)}"
            raise JobError(Verdict.RUNTIME_ERROR, message, op.line)
        kwargs[name].copy_(made)
    there = {made.data_ptr(): kwargs[name].data_ptr() for name, made in own.items()}
    tensors = [result] if isinstance(result, torch.Tensor) else [t for t in result or () if t is not None]
    if len(tensors) != len(op.outputs):
        message = f"{op.name} gave {len(tensors)} tensors, the plan expects {len(op.outputs)}"
        raise JobError(Verdict.RUNTIME_ERROR, message, op.line)
    for ref, tensor in zip(op.outputs, tensors, strict=True):
        target = window(ref)
        if target.data_ptr() not in (tensor.data_ptr(), there.get(tensor.data_ptr())):
            target.copy_(tensor)


def written(op: Op) -> list[TensorRef]:
    """The windows that the operator writes to: its results, and arguments that its schema says it changes."""
    function = tensor_function(op.name)
    found = [ref for ref in op.outputs if isinstance(ref, TensorRef)]
    for value in written_arguments(function, op.args, op.kwargs) if function else ():
        found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, TensorRef)]
    return found


def written_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that the operator's schema says it writes to."""
    return [args[i] if i < len(args) else kwargs.get(p.name) for i, p in _written(function)]


def _written(function: Any) -> list[tuple[int, Any]]:
    """Parameters that the operator writes to, with their places."""
    parameters = enumerate(function._schema.arguments)
    return [(i, p) for i, p in parameters if p.alias_info is not None and p.alias_info.is_write]


def _argument(value: Any, window: Callable[[TensorRef], torch.Tensor]) -> Any:
    match value:
        case TensorRef():
            return window(value)
        case tuple():
            return [_argument(v, window) for v in value]
        case {"dtype": str(name)} if name in DTYPES:
            return DTYPES[name]
    return value

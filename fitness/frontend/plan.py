"""Defines LaunchPlan: what a candidate's host code asks the device to do, as plain data.

The recorder (untrusted) writes plans.  The compiler, the interpreter and the runner execute them without ever running
the candidate's host code.  A plan says *what* to launch, not how it is compiled: trusted code makes machine code from
the source (`fitness/frontend/kernels.py`, `fitness/frontend/compile.py`).  Everything is JSON, so that a plan can be
stored, hashed and checked field by field before it is executed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Bytes per element of every dtype a plan may mention (torch's names without "torch.").
ITEMSIZE = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip


MOST_BYTES = 1 << 48  # of a buffer: what a process can address.
MOST_DIMENSIONS = 64  # of a window: PyTorch's limit.
NAME_CHARACTERS = 200  # in the name of a kernel or operator.
LABEL_CHARACTERS = 4000  # in the label of a configuration.
MOST_TUNED = 1024  # autotune configurations of all launches together: each is compiled, and tried or traced.


class PlanError(ValueError):
    """A plan is malformed or inconsistent; from an untrusted recorder this is a verdict, not a bug."""


@dataclass(frozen=True)
class TensorRef:
    """A strided window on a buffer.  `offset` and `strides` count elements of `dtype`."""

    buffer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def numel(self) -> int:
        """Number of elements, repeated ones too."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, repeated ones too."""
        return self.numel * ITEMSIZE[self.dtype]

    def last_byte(self) -> int:
        """One past the last byte the window touches."""
        if self.numel == 0:
            return 0
        reach = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (reach + 1) * ITEMSIZE[self.dtype]


# A kernel argument: a tensor, a number, None, a string (constexpr), or a tagged value that JSON cannot carry:
# {"dtype": "fp16"} (tl.float16) or {"jit": "name"} (another @triton.jit function of the candidate); tuples are lists.
Argument = TensorRef | int | float | bool | None | str | dict | tuple


@dataclass(frozen=True)
class Buffer:
    """Memory of the plan.  `input` is the index of the entry's argument it holds, None for memory the plan owns."""

    nbytes: int
    input: int | None = None


@dataclass(frozen=True)
class Fill:
    """`dst[...] = value`."""

    dst: TensorRef
    value: float | int | bool


@dataclass(frozen=True)
class Copy:
    """`dst[...] = src`, converting the dtype."""

    dst: TensorRef
    src: TensorRef


@dataclass(frozen=True)
class Op:
    """Work delegated to an ATen operator, e.g. `name` "aten.mm.default"; it is counted, and rejected unless allowed."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[TensorRef, ...]
    line: int = 0  # line of the candidate's source


@dataclass(frozen=True)
class Config:
    """One way to make a launch: an autotune configuration, or the only one."""

    grid: tuple[int, int, int]
    args: Mapping[str, Argument]  # every parameter of the kernel by name, constexprs too
    options: Mapping[str, Any]  # num_warps, num_stages, num_ctas, maxnreg, ...
    label: str = ""  # the autotune configuration's text, "" for a plain launch


@dataclass(frozen=True)
class Launch:
    """A kernel launch.  If the candidate autotunes, it has several configs, of which the evaluator chooses one."""

    kernel: str  # name of the top-level @triton.jit function
    configs: tuple[Config, ...]
    line: int = 0


Step = Fill | Copy | Op | Launch


@dataclass(frozen=True)
class LaunchPlan:
    """All steps of one call of the entry, on one case.

    `inputs` has one item per argument of the entry (a TensorRef or a plain number/None/str); `outputs` are the returned
    tensors in order, `structure` says how they were returned: "tensor", "tuple", "list", "none" or "dict:k1,k2".
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[TensorRef, ...]
    structure: str
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for buffer in self.buffers:
            if not 0 <= buffer.nbytes <= MOST_BYTES:
                raise PlanError(f"impossible buffer of {buffer.nbytes} bytes")
        for ref in self.refs():
            _check_ref(ref, self.buffers)
        self._check_inputs()
        for step in self.steps:
            _check_step(step)

    def _check_inputs(self) -> None:
        """Checks that each buffer holds exactly one argument, or is the plan's own.

        Any other buffer would not be refilled, and could keep results for the next replay.
        """
        held = {ref.buffer: i for i, ref in enumerate(self.inputs) if isinstance(ref, TensorRef)}
        for b, buffer in enumerate(self.buffers):
            if buffer.input != held.get(b):
                raise PlanError(f"buffer {b} says that it holds argument {buffer.input}, and holds {held.get(b)}")
        for i, ref in enumerate(self.inputs):
            if isinstance(ref, TensorRef) and (held[ref.buffer] != i or ref.last_byte() != self.nbytes(ref)):
                raise PlanError(f"argument {i} shares its buffer of {self.nbytes(ref)} bytes, or is smaller than it")

    def nbytes(self, ref: TensorRef) -> int:
        """Bytes of the whole buffer that `ref` is a window on."""
        return self.buffers[ref.buffer].nbytes

    def refs(self) -> Iterator[TensorRef]:
        """Every window that the plan mentions."""
        yield from (i for i in self.inputs if isinstance(i, TensorRef))
        yield from self.outputs
        for step in self.steps:
            match step:
                case Fill():
                    yield step.dst
                case Copy():
                    yield from (step.dst, step.src)
                case Op():
                    yield from refs_of((step.args, dict(step.kwargs), step.outputs))
                case Launch():
                    for config in step.configs:
                        yield from refs_of(dict(config.args))

    def tensors_among(self, arguments: Iterable[int]) -> list[int]:
        """The positions among `arguments` at which `inputs` holds a tensor."""
        return [i for i in arguments if i < len(self.inputs) and isinstance(self.inputs[i], TensorRef)]

    def compared(self, written: Iterable[int]) -> list[TensorRef]:
        """What is compared: returned tensors in order, then the tensors among the arguments `written`."""
        return [*self.outputs, *(self.inputs[i] for i in self.tensors_among(written))]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that are kernel launches, in order."""
        return tuple(s for s in self.steps if isinstance(s, Launch))

    @property
    def tuned(self) -> int:
        """Configurations to choose from, of all launches together."""
        return sum(len(launch.configs) for launch in self.launches if len(launch.configs) > 1)

    @property
    def delegated(self) -> tuple[Op, ...]:
        """The steps that are left to PyTorch operators, in order."""
        return tuple(s for s in self.steps if isinstance(s, Op))


def refs_of(value: Any) -> Iterator[TensorRef]:
    """Every window among arguments, also in nested tuples and dicts."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from refs_of(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from refs_of(v)


def _check_ref(ref: TensorRef, buffers: tuple[Buffer, ...]) -> None:
    if ref.dtype not in ITEMSIZE:
        raise PlanError(f"unknown dtype {ref.dtype!r}; known: {', '.join(ITEMSIZE)}")
    if not 0 <= ref.buffer < len(buffers):
        raise PlanError(f"tensor on buffer {ref.buffer}, but the plan has {len(buffers)} buffers")
    if len(ref.shape) > MOST_DIMENSIONS:
        raise PlanError(f"window of {len(ref.shape)} dimensions, at most {MOST_DIMENSIONS} are possible")
    if len(ref.shape) != len(ref.strides) or ref.offset < 0 or any(n < 0 for n in (*ref.shape, *ref.strides)):
        raise PlanError(f"impossible window shape={ref.shape} strides={ref.strides} offset={ref.offset}")
    if ref.last_byte() > buffers[ref.buffer].nbytes:
        raise PlanError(f"window ends at byte {ref.last_byte()} of a buffer of {buffers[ref.buffer].nbytes} bytes")


def _check_step(step: Step) -> None:
    match step:
        case Fill() if not isinstance(step.value, (int, float)):
            raise PlanError(f"expected a number to fill with, got {type(step.value).__name__}")
        case Op():
            _check_name(step.name)
            if not isinstance(step.outputs, tuple) or not all(isinstance(o, TensorRef) for o in step.outputs):
                raise PlanError(f"expected tensors as outputs of {step.name}")
        case Launch():
            _check_launch(step)


def _check_name(name: str) -> None:
    if len(name) > NAME_CHARACTERS:
        raise PlanError(f"a name of {len(name)} characters: {name[:40]}...; at most {NAME_CHARACTERS} are read")


def _check_launch(launch: Launch) -> None:
    _check_name(launch.kernel)
    if not launch.configs:
        raise PlanError(f"launch of {launch.kernel!r} without a configuration")
    for config in launch.configs:
        if len(config.grid) != 3 or any(not isinstance(g, int) or g < 0 for g in config.grid):
            raise PlanError(f"grid of {launch.kernel!r} must be three non-negative integers, got {config.grid}")
        if len(config.label) > LABEL_CHARACTERS:
            raise PlanError(
                f"a configuration of {launch.kernel!r} whose text has {len(config.label)} characters, at most "
                f"{LABEL_CHARACTERS} are read"
            )


def too_many_tuned(count: int) -> str:
    """The message for a plan with `count` autotune configurations, which are too many."""
    return (
        f"{count} autotune configurations in all launches together, at most {MOST_TUNED} are tried; launch autotuned "
        "kernels less often, or shorten their lists"
    )


# --- JSON ------------------------------------------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    if isinstance(value, TensorRef):
        return {"t": [value.buffer, value.dtype, list(value.shape), list(value.strides), value.offset]}
    if isinstance(value, (tuple, list)):
        return [_encode(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _encode(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"f": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise PlanError(f"a plan cannot carry a value of type {type(value).__name__}")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if isinstance(value, dict):
        if set(value) == {"t"}:
            buffer, dtype, shape, strides, offset = value["t"]
            return TensorRef(int(buffer), str(dtype), _ints(shape), _ints(strides), int(offset))
        if set(value) == {"f"}:
            return float(value["f"])
        return {k: _decode(v) for k, v in value.items()}
    return value


def decode(value: Any) -> Any:
    """One argument from a plan's JSON: windows become TensorRef, lists become tuples."""
    return _decode(value)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def to_json(plan: LaunchPlan) -> dict[str, Any]:
    """A JSON-ready dict; `from_json` is its inverse."""
    steps: list[dict[str, Any]] = []
    for s in plan.steps:
        match s:
            case Fill():
                steps.append({"fill": _encode(s.dst), "value": _encode(s.value)})
            case Copy():
                steps.append({"copy": _encode(s.dst), "src": _encode(s.src)})
            case Op():
                steps.append({"op": s.name, "args": _encode(s.args), "kwargs": _encode(s.kwargs),
                              "outputs": _encode(s.outputs), "line": s.line})  # fmt: skip
            case Launch():
                configs = [{"grid": list(c.grid), "args": _encode(c.args), "options": _encode(c.options),
                            "label": c.label} for c in s.configs]  # fmt: skip
                steps.append({"launch": s.kernel, "configs": configs, "line": s.line})
    return {
        "buffers": [[b.nbytes, b.input] for b in plan.buffers],
        "inputs": _encode(plan.inputs),
        "outputs": _encode(plan.outputs),
        "structure": plan.structure,
        "steps": steps,
    }


def from_json(raw: Mapping[str, Any]) -> LaunchPlan:
    """The plan in `raw`.  Raises PlanError on anything malformed: the writer is not trusted."""
    try:
        return LaunchPlan(
            buffers=tuple(Buffer(int(n), None if i is None else int(i)) for n, i in raw["buffers"]),
            inputs=_decode(raw["inputs"]),
            outputs=_decode(raw["outputs"]),
            structure=str(raw["structure"]),
            steps=tuple(_step(s) for s in raw["steps"]),
        )
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise PlanError(f"malformed plan: {error!r}") from error


def _three(values: Any) -> tuple[int, int, int]:
    x, y, z = _ints(values)
    return x, y, z


def _step(raw: Mapping[str, Any]) -> Step:
    if "fill" in raw:
        return Fill(_decode(raw["fill"]), _decode(raw["value"]))
    if "copy" in raw:
        return Copy(_decode(raw["copy"]), _decode(raw["src"]))
    if "op" in raw:
        outputs = _decode(raw["outputs"])
        return Op(str(raw["op"]), _decode(raw["args"]), _decode(raw["kwargs"]), outputs, int(raw["line"]))
    configs = tuple(
        Config(_three(c["grid"]), decode(c["args"]), decode(c["options"]), str(c["label"])) for c in raw["configs"]
    )
    return Launch(str(raw["launch"]), configs, int(raw["line"]))

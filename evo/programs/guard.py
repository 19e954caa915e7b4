"""Replaces a function or kernel of a program while it runs; the original runs outside of what was verified.

`evo apply RUN --package DIR` copies this file into DIR.  It needs PyTorch and Triton, and nothing of evo.

A call is inside the verified domain if

- dtype, shape and strides of all tensors, and all plain values, are exactly those of one verified case;
- each tensor starts at a multiple of 16 bytes, and no two of them share memory, unless they are one in that case too;
- all tensors are plain ones on one GPU of the verified compute capability (or in host memory, if Triton interprets);
- autograd does not record the call: no tensor requires a gradient, or gradients are off;
- deterministic algorithms are not asked for, and torch.compile does not trace the call.

Nothing is generalised: a size between two verified ones is outside.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import itertools
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, KernelInterface

ALIGNMENT = 16  # bytes; Triton compiles other code for other pointers.
# Arguments of a launch that choose how a kernel is compiled, and change nothing of its results.
OPTIONS = frozenset(("num_warps", "num_stages", "num_ctas", "maxnreg"))
Part = tuple[Any, ...]  # what is compared of one argument
New = Callable[[Sequence[Any], "Sequence[Any] | None"], Any]  # of values and slots
_MARK = "__evo_patch__"
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = {d: str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}


class PatchWarning(UserWarning):
    """The original stays, because what it would be replaced by was not verified here."""


def part_of(value: Any) -> Part:
    """Returns what is compared of an argument: dtype, shape and strides of a tensor; type and text of a plain value."""
    if isinstance(value, torch.Tensor):
        return _DTYPES[value.dtype], tuple(value.shape), value.stride()
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return "parts", type(value).__name__, tuple(map(part_of, value))
    return "value", type(value).__name__, repr(value)


def parts_of(values: Sequence[Any]) -> tuple[Part, ...]:
    """Returns the parts of the arguments of a call.

    The part of a tensor that is an earlier one, or a window of the same elements, says which.
    """
    found: list[Part] = []
    windows: dict[Any, int] = {}
    for i, value in enumerate(values):
        part = part_of(value)
        if isinstance(value, torch.Tensor):
            place = value.data_ptr() if type(value) in _PLAIN and value.numel() else id(value)
            first = windows.setdefault((place, part), i)
            part = part if first == i else (*part, first)
        found.append(part)
    return tuple(found)


def _tuple(raw: Any) -> Any:
    return tuple(map(_tuple, raw)) if isinstance(raw, list) else raw


@dataclass(frozen=True)
class Domain:
    """The calls that were verified.

    names: of the arguments.  calls: each verified call by the parts of all its arguments.  Its "result" is the
    structure of what the original returned, None if that is not known.  Its "slots" say what the parameters of the new
    code get of a launch; None for a function.  capability: of the GPU.
    """

    names: tuple[str, ...]
    calls: Mapping[tuple[Part, ...], Mapping[str, Any]]
    capability: tuple[int, int]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Domain:
        """Returns the domain that domain.json describes."""
        major, minor = raw["capability"]
        calls = {_tuple(call["arguments"]): call for call in raw["calls"]}
        return cls(tuple(raw["names"]), calls, (int(major), int(minor)))

    def why_not(self, parts: tuple[Part, ...], values: Sequence[Any]) -> str:
        """Returns why a call with these arguments is outside of the domain, "" if it is inside.

        parts: those of `values`.
        """
        if torch.are_deterministic_algorithms_enabled():
            return "deterministic algorithms are asked for"
        if parts not in self.calls:
            return self._difference(parts)
        tensors = _tensors(parts, values)
        return _kind(tensors) or _device(tensors, self.capability) or _memory(tensors)

    def _difference(self, parts: Sequence[Part]) -> str:
        """Returns the first property of an argument that no verified call has."""
        for position, (name, part) in enumerate(zip(self.names, parts, strict=True)):
            known = {call[position] for call in self.calls}
            if part[0] not in {k[0] for k in known}:
                return f"{name}: {'verified as a tensor only' if part[0] == 'value' else 'dtype not verified'}"
            if part[0] in ("value", "parts"):
                if part not in known:
                    return f"{name}: value not verified"
                continue
            same = {k for k in known if k[0] == part[0]}
            for what, of in (("rank", lambda k: len(k[1])), ("shape", lambda k: k[1]), ("strides", lambda k: k[2])):
                if of(part) not in {of(k) for k in same}:
                    return f"{name}: {what} not verified"
                same = {k for k in same if of(k) == of(part)}
        return "these arguments were verified, but not together"


def _tensors(parts: Sequence[Part], values: Sequence[Any]) -> list[torch.Tensor]:
    """Returns the tensors among arguments, each once, and all in lists; the parts say which were given before."""
    found = [v for part, v in zip(parts, values, strict=True) if isinstance(v, torch.Tensor) and len(part) == 3]
    lists = [v for part, v in zip(parts, values, strict=True) if part[0] == "parts"]
    return [*found, *(v for items in lists for v in items if isinstance(v, torch.Tensor))]


def _kind(tensors: Sequence[torch.Tensor]) -> str:
    if any(type(t) not in _PLAIN for t in tensors):
        return "a tensor is a subclass, such as a fake tensor"
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "autograd records the call"
    return ""


def _device(tensors: Sequence[torch.Tensor], capability: tuple[int, int]) -> str:
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        return "tensors are on several devices"
    for device in devices:
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
            continue
        if device.type != "cuda" or _capability(device.index or 0) != capability:
            return "the device is not one of the verified compute capability"
    return ""


@functools.cache
def _capability(index: int) -> tuple[int, int] | None:
    return None if torch.version.hip else torch.cuda.get_device_capability(index)


def _memory(tensors: Sequence[torch.Tensor]) -> str:
    if any(t.data_ptr() % ALIGNMENT for t in tensors):
        return f"a tensor does not start at a multiple of {ALIGNMENT} bytes"
    ranges = sorted(_bytes(t) for t in tensors if t.numel())
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(ranges)):
        return "tensors share memory"
    return ""


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the addresses of the first byte of a tensor, and of the one after its last."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


# --- what stands in the place of the original ------------------------------------------------------------------------


class Switch:
    """Decides for each call whether the new code runs or the original, and counts.

    new: runs the new code, on the arguments that the domain names and the slots of the call.  new_runs: calls of it.
    original_runs: calls of the original, by reason.  Calls that torch.compile traces are not counted.
    """

    def __init__(self, name: str, new: New, domain: Domain) -> None:
        self.name, self._new, self._domain = name, new, domain
        self.new_runs = 0
        self.original_runs: Counter[str] = Counter()

    def call(self, values: Sequence[Any] | None, why: str, original: Callable[[], Any]) -> Any:
        """Calls the new code with `values`, or the original if they are outside of the domain.

        why: why there are no values.
        """
        parts: tuple[Part, ...] = ()
        if values is not None:
            try:
                parts = parts_of(values)
                why = self._domain.why_not(parts, values)
            except Exception:  # a tensor without strides or memory (sparse, of torch.func), or an odd value
                why = "an argument cannot be compared"
        if why or values is None:
            self.original_runs[why] += 1
            return original()
        self.new_runs += 1
        call = self._domain.calls[parts]
        try:
            return returned(call["result"], self._new(values, call["slots"]))
        except Exception as error:
            error.add_note(f"raised by the code that evo put in the place of {self.name}; undo() of the patch restores")
            raise


def returned(structure: Any, new: Any) -> Any:
    """Returns what the program gets: the new tensors, and in other places what the original returned there.

    A host function may return plain values, such as a block size for the backward pass.  Only tensors were verified.
    Raises TypeError if the new code returned something of another structure.
    """
    if structure is None:
        return new
    ((kind, inner),) = structure.items()
    if kind == "value":
        return inner
    if kind == "other":
        return new
    if kind == "tensor" and isinstance(new, torch.Tensor):
        return new
    if kind == "dict" and isinstance(new, dict) and [str(key) for key in new] == list(inner):
        return {key: returned(inner[str(key)], value) for key, value in new.items()}
    if kind not in ("tensor", "dict") and type(new).__name__ == kind and len(new) == len(inner):
        items = [returned(part, value) for part, value in zip(inner, new, strict=True)]
        return type(new)(*items) if hasattr(new, "_fields") else type(new)(items)
    raise TypeError(f"expected a result like {structure}, got {type(new).__name__}")


def replaced_function(original: Callable[..., Any], switch: Switch, domain: Domain) -> Callable[..., Any]:
    """Returns a function that runs the new code inside the domain, and `original` outside."""
    signature = inspect.signature(original)
    parameters = signature.parameters
    if missing := [name for name in domain.names if name not in parameters]:
        raise TypeError(f"expected a function with parameters {', '.join(missing)}, got {signature}")

    same = tuple(parameters) == domain.names and all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())

    def bound(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any] | None, str]:
        if same and not kwargs and len(args) == len(domain.names):
            return args, ""  # binding would take microseconds
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return None, "the arguments do not fit"  # the original says how
        given.apply_defaults()
        for name, value in given.arguments.items():
            if name not in domain.names and not _is_default(parameters[name], value):
                return None, f"{name}: it is not its default"
        return [given.arguments[name] for name in domain.names], ""

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return switch.call(*bound(args, kwargs), lambda: original(*args, **kwargs))

    setattr(replaced, _MARK, True)
    return replaced


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return not value
    return value is parameter.default or part_of(value) == part_of(parameter.default)


class KernelProxy(KernelInterface):
    """A kernel that is launched as the original is, `proxy[grid](...)`; it runs the new code inside the domain."""

    def __init__(self, original: Any, switch: Switch, domain: Domain) -> None:
        self._original, self._switch, self._domain = original, switch, domain
        self._parameters = inspect.signature(python_function(original)).parameters
        setattr(self, _MARK, True)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the original: `torch.library.wrap_triton` takes instances of Triton's own classes alone."""
        return type(vars(self).get("_original", self))

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Launches the kernel, as Triton's own `run` does; the new code returns nothing."""

        def original() -> Any:
            return self._original.run(*args, grid=grid, warmup=warmup, **kwargs)

        if warmup or torch.compiler.is_compiling():
            return original()
        return self._switch.call(*self._bound(args, grid, kwargs), original)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        return self._original.warmup(*args, **kwargs)

    def _bound(self, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> tuple[list[Any] | None, str]:
        names = self._domain.names
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        if strange := [name for name in given if name not in names and name not in OPTIONS]:
            return None, f"{strange[0]}: value not verified"
        for name, parameter in self._parameters.items():
            if name in names and name not in given and parameter.default is not parameter.empty:
                given[name] = parameter.default
        given |= self._chosen(given)
        try:
            given["grid"] = grid_of(grid(given) if callable(grid) else grid)
        except KeyError:
            return None, "grid: it depends on what the original chooses"
        if lost := [name for name in names if name not in given]:
            return None, f"{lost[0]}: not given"
        return [given[name] for name in names], ""

    def _chosen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that a tuner of the original chooses, as in the verified call like this one."""
        if isinstance(self._original, (JITFunction, InterpretedFunction)):
            return {}
        names = self._domain.names
        parts = {name: part_of(value) for name, value in given.items()}
        for call in self._domain.calls:
            verified = dict(zip(names, call, strict=True))
            if all(verified[n][:3] == parts[n] for n in names if n in parts):
                missing = {n: p for n, p in verified.items() if n not in parts and n != "grid"}
                if all(part[0] == "value" for part in missing.values()):
                    return {n: ast.literal_eval(part[2]) for n, part in missing.items()}
        return {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._original, name)


def grid_of(grid: Any) -> tuple[int, ...]:
    """Returns a grid as three numbers."""
    sizes = [int(n) for n in (grid if isinstance(grid, (tuple, list)) else (grid,))]
    return (*sizes, 1, 1)[:3] if len(sizes) < 3 else tuple(sizes)


def python_function(kernel: Any) -> FunctionType:
    """Returns the Python function of a kernel, below its tuner and heuristics."""
    while not isinstance(kernel, FunctionType):
        kernel = kernel.fn
    return kernel


# --- the patch -------------------------------------------------------------------------------------------------------


class Patch:
    """The patch of a package, applied as far as the program is the captured one.

    active: whether the original is replaced.  why_not: why it is not, "" if it is.  places: the names that stand for
    the new code: the attribute itself, and each global of a loaded module that held the original.
    """

    def __init__(self, folder: Path, kernel: ModuleType) -> None:
        """Applies it.  folder: of the package, with domain.json and origin.json; kernel: its kernel.py.

        Warns if the program is not the captured one, or Triton not the one that was used for verifying.
        """
        raw = json.loads((folder / "domain.json").read_text(encoding="utf-8"))
        origin = json.loads((folder / "origin.json").read_text(encoding="utf-8"))
        self.name = f"{origin['module']}.{origin['attribute']}"
        self._domain = Domain.from_json(raw)
        self._switch = Switch(self.name, _new_code(kernel, raw), self._domain)
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, before, after
        self.places: list[str] = []
        module = importlib.import_module(origin["module"])
        self.why_not = _other_program(module, origin) or _other_triton(raw["triton"])
        if not self.why_not:
            self.why_not = self._replace(module, origin["attribute"], origin["kind"])
        if self.why_not:
            warnings.warn(f"the original {self.name} stays: {self.why_not}", PatchWarning, stacklevel=4)

    @property
    def active(self) -> bool:
        return bool(self._replaced)

    def counts(self) -> dict[str, Any]:
        """Returns how often the new code ran, and by reason how often the original did."""
        return {"new": self._switch.new_runs, "original": dict(self._switch.original_runs)}

    def report(self) -> str:
        """Returns the counts in words, one line for each reason."""
        lines = [f"{self.name}: the new code ran {self._switch.new_runs} times"]
        lines += [f"  the original {n} times: {why}" for why, n in self._switch.original_runs.most_common()]
        return "\n".join(lines)

    def undo(self) -> None:
        """Puts the original back wherever it was replaced, except for names that got another value since."""
        for owner, name, before, after in self._replaced:
            if vars(owner).get(name) is after:
                setattr(owner, name, before)
        self._replaced.clear()
        self.places.clear()

    def _replace(self, module: ModuleType, attribute: str, kind: str) -> str:
        """Replaces the original, and returns "", or why that is not possible."""
        *path, last = attribute.split(".")
        owner = functools.reduce(getattr, path, module)
        before = vars(owner)[last]
        original = before.__func__ if isinstance(before, staticmethod) else before
        if getattr(original, _MARK, False):
            return "another package replaced it already"
        if kind == "kernel":
            if caller := _calling_kernel(original, last):
                return f"the kernel {caller} calls it"
            new: Any = KernelProxy(original, self._switch, self._domain)
        else:
            new = replaced_function(original, self._switch, self._domain)
        places = [(owner, last), *((m, n) for m, n in _globals_with(original) if (m, n) != (owner, last))]
        for place, name in places:
            kept = vars(place)[name]
            after = staticmethod(new) if isinstance(kept, staticmethod) else new
            setattr(place, name, after)
            self._replaced.append((place, name, kept, after))
            self.places.append(f"{self.name if place is owner and name == last else f'{place.__name__}.{name}'}")
        return ""


def _new_code(kernel: ModuleType, raw: Mapping[str, Any]) -> New:
    """Returns a function of the arguments that the domain names; for a launch, kernel.py has an entry of its own."""
    function, names = getattr(kernel, raw["function"]), raw["names"]

    def run(values: Sequence[Any], slots: Sequence[Any] | None) -> Any:
        given = dict(zip(names, values, strict=True))
        if slots is None:
            return function(**given)
        return function(*[_slot(given, kind, which) for kind, which in slots])

    return run


def _slot(given: Mapping[str, Any], kind: str, which: Any) -> Any:
    """Returns what a parameter of an entry gets: an argument of the launch, a size of its grid, or a fixed value."""
    if kind == "value":
        return which
    return given["grid"][which] if kind == "grid" else given[which]


def _globals_with(value: Any) -> Iterator[tuple[ModuleType, str]]:
    """Yields module and name of each global variable of a loaded module that is this very object."""
    for module in [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]:
        yield from ((module, name) for name, found in list(vars(module).items()) if found is value)


def _calling_kernel(kernel: Any, name: str) -> str:
    """Returns the name of a kernel that calls this one as a function, which a proxy cannot be; "" if none does."""
    for module, _ in _globals_with(kernel):
        for other in list(vars(module).values()):
            if isinstance(other, KernelInterface) and other is not kernel and not hasattr(other, _MARK):
                function = python_function(other)
                if function is not python_function(kernel) and name in function.__code__.co_names:
                    return function.__name__
    return ""


def _other_program(module: ModuleType, origin: Mapping[str, Any]) -> str:
    """Returns how the program differs from the captured one, "" if it does not."""
    file = inspect.getsourcefile(module)
    if file is None or hashlib.sha256(Path(file).read_bytes()).hexdigest() != origin["sha256"]:
        return f"{file} is not the file that was captured; capture the program again"
    package, wanted = origin["package"], origin["package_version"]
    if package is None:
        return ""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    return "" if found == wanted else f"expected {package} {wanted}, got {found}; capture the program again"


def _other_triton(wanted: str) -> str:
    if triton.__version__ == wanted:
        return ""
    return f"verified with Triton {wanted}, this is {triton.__version__}, which may compile it otherwise"

"""Executes kernels with numpy on a CPU, with the numerics of the device: Triton's interpreter, corrected.

Triton ships an interpreter (`triton.runtime.interpreter`).  It runs here with these differences:
- bfloat16 and float8 values, which it keeps as integers, are decoded before every operation and rounded to nearest even
  after it; float-to-integer conversions saturate as PTX's do;
- `tl.dot` and reductions run on whole blocks in the precision of the device; custom combine functions too;
- libdevice is available (`fitness/interpreter/libdevice.py`);
- helper functions, `and`/`or`/`not`, loop variables and scalar arguments mean what they mean to the compiler;
- `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy` are checked, as `tl.assume` is;
- what the device does not define has unfavourable values here: the order of elements in `tl.cat` and `tl.reduce`, and
  the lanes that a load leaves out (`fitness/interpreter/bounds.py`);
- each access is compared with the array that its pointer comes from;
- the language is patched once for any number of launches, and arguments are never copied.

Anything still missing raises NotImplementedError: a gap is an error, never a wrong number.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import triton.compiler.code_generator  # noqa: F401 - Imported before builtins are patched, because it keeps them.
import triton.language as tl
from triton.language.extra import cuda as cuda_extra
from triton.language.extra import libdevice as libdevice_stubs
from triton.runtime import interpreter as triton_interpreter
from triton.runtime.interpreter import TensorHandle
from triton.runtime.jit import JITFunction, mangle_type

from evo.core import syntax
from fitness.frontend.kernels import BUILTINS
from fitness.interpreter.blocks import Semantic, Types, bound
from fitness.interpreter.bounds import Arrays, led_by
from fitness.interpreter.numerics import encode, numpy_dtype
from fitness.interpreter.operations import Builder, reduce, scan, unwrap
from fitness.interpreter.rewriter import HELPERS, rewritten, truth
from fitness.interpreter.validity import Abandoned, Validity

Program = tuple[int, int, int]

# Functions of `triton.language` that are replaced as a whole; the others only need their `_semantic`.
_REPLACED = {
    "range", "static_range", "condition", "reduce", "associative_scan", "static_print", "static_assert", "multiple_of",
    "max_contiguous", "max_constancy",
}  # fmt: skip


def _scalar(value: int | bool, dtype: tl.dtype) -> tl.tensor:
    return tl.tensor(TensorHandle(np.array([value], numpy_dtype(dtype)), dtype), dtype)


def _range(semantic: Any, start: Any, stop: Any = None, step: Any = 1, **_: Any) -> Iterator[tl.tensor]:
    """`tl.range`: the loop variable is a tensor, of the common type of start, stop and step.

    Raises ValueError for a computed step that is not positive: the compiler knows only the sign of a constant.
    """
    if stop is None:
        start, stop = 0, start
    bounds = [unwrap(b) for b in (start, stop, 1 if step is None else step)]
    types = [semantic.to_tensor(b).dtype.scalar for b in bounds]
    kind = functools.reduce(semantic.integer_promote_impl, types)
    numbers = [int(b.__index__()) for b in bounds]
    if isinstance(bounds[2], tl.tensor) and numbers[2] <= 0:
        raise ValueError(f"a loop whose step is computed to be {numbers[2]}; it must be positive, or a constant")
    for i in builtins.range(*numbers):
        yield _scalar(i, kind)


def _static_range(start: Any, stop: Any = None, step: Any = 1, **_: Any) -> range:
    if stop is None:
        start, stop = 0, start
    return builtins.range(*(int(unwrap(b)) for b in (start, stop, 1 if step is None else step)))


def _least(*values: Any) -> Any:
    return _extreme(values, tl.minimum, builtins.min)


def _greatest(*values: Any) -> Any:
    return _extreme(values, tl.maximum, builtins.max)


def _extreme(values: Sequence[Any], on_tensors: Callable[..., Any], on_numbers: Callable[..., Any]) -> Any:
    unwrapped = [unwrap(v) for v in values]
    if not any(isinstance(v, tl.tensor) for v in unwrapped):
        return on_numbers(*unwrapped)
    result = unwrapped[0]
    for value in unwrapped[1:]:
        result = on_tensors(result, value)
    return result


def _multiple_of(block: Any, values: Any) -> Any:
    """Checks that along an axis runs of consecutive numbers begin at a multiple; the compiler relies on that."""
    for axis, factor in _hints(block, values):
        data = np.moveaxis(block.handle.data, axis, -1).astype(np.int64)
        run_begins = np.ones(data.shape, np.bool_)
        run_begins[..., 1:] = np.diff(data) != 1
        if (data[run_begins] % factor).any():
            raise ValueError(f"tl.multiple_of: not a multiple of {factor}")
    return block


def _max_contiguous(block: Any, values: Any) -> Any:
    """Checks that runs of this length along an axis are consecutive.

    A run may also restart at the smallest number.  That breaks the promise, but it is harmless in the usual `% M` for
    rows behind the last one.
    """
    for axis, length in _hints(block, values):
        data = np.moveaxis(block.handle.data, axis, -1).astype(np.int64)
        goes_on = (np.diff(data) == 1) | (data[..., 1:] == data.min(-1, keepdims=True))
        goes_on |= np.arange(1, data.shape[-1]) % length == 0
        if not goes_on.all():
            raise ValueError(f"tl.max_contiguous: not all runs of {length} elements are consecutive")
    return block


def _max_constancy(block: Any, values: Any) -> Any:
    """Checks that runs of this length along an axis have one value each."""
    for axis, length in _hints(block, values):
        data = np.moveaxis(block.handle.data, axis, -1)
        length = builtins.min(length, data.shape[-1])
        if data.shape[-1] % length == 0 and np.ptp(data.reshape(-1, length).astype(np.int64), axis=1).any():
            raise ValueError(f"tl.max_constancy: not all runs of {length} elements are of one value")
    return block


def _hints(block: Any, values: Any) -> list[tuple[int, int]]:
    """(axis, number) for each axis with a number above 1; empty for plain numbers and floating-point blocks."""
    if not isinstance(block, tl.tensor) or block.handle.data.dtype.kind not in "biu":
        return []
    values = unwrap(values)
    numbers = [int(unwrap(v)) for v in (values if isinstance(values, (list, tuple, tl.tuple)) else [values])]
    if len(numbers) != builtins.max(1, len(block.shape)):
        raise ValueError("a hint has a number for each axis")
    return [(axis, number) for axis, number in enumerate(numbers) if number > 1]


class Interpreter:
    """Runs kernels.  As a context manager it patches `triton.language`, for the whole process."""

    def __init__(self, builder: Builder | None = None) -> None:
        self.builder = builder or Builder()
        self.semantic = Semantic(self.builder)
        self._rewritten: dict[Any, Callable[..., Any]] = {}  # by the original function.
        self._spaces: dict[int, dict[str, Any]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Interpreter:
        stack = self._stack
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        replaced = {
            "interpreter_builder": self.builder,
            "interpreter_semantic": self.semantic,
            "_get_np_dtype": numpy_dtype,  # The original makes a dictionary on every call.
            "_patch_attr": self._patch_attr,
        }
        for name, value in replaced.items():
            stack.callback(setattr, triton_interpreter, name, getattr(triton_interpreter, name))
            setattr(triton_interpreter, name, value)
        language = FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
        stack.callback(triton_interpreter._patch_lang(language).restore)
        for owner, name, value in self._patches():
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def launch(self, kernel: JITFunction, args: Mapping[str, Any], grid: Program, programs: Iterable[Program]) -> int:
        """Runs `programs` of the launch one after the other; returns their number.

        args: every parameter by name; tensors must be CPU tensors, and are written in place.
        A program that needs results of others that do not run is abandoned (`fitness.interpreter.validity`).
        """
        function = self._rewrite(kernel)
        values = {p.name: _parameter(p, args[p.name], self.builder.arrays) for p in kernel.params if p.name in args}
        self.builder.set_grid_dim(*grid)
        conflicts = self.builder.conflicts
        if conflicts is not None:
            conflicts.begin_launch()
        count = 0
        for program in programs:
            self.builder.set_grid_idx(*program)
            if conflicts is not None:
                conflicts.begin_program()
            try:
                function(**values)
            except Abandoned:
                assert isinstance(conflicts, Validity)
                conflicts.abandon()
            count += 1
        if conflicts is not None:
            conflicts.end_launch()
        return count

    def _patch_attr(self, owner: Any, name: str, member: Callable[..., Any], builder: Any, scope: Any) -> None:
        scope.set_attr(owner, name, bound(member, self.semantic))

    def _patches(self) -> Iterator[tuple[Any, str, Any]]:
        """(owner, attribute, value) for everything that Triton's own patches leave out or get wrong."""
        for module in (tl, tl.core):
            yield module, "range", functools.partial(_range, self.semantic)
            yield module, "static_range", _static_range
            yield module, "reduce", reduce
            yield module, "associative_scan", scan
            yield module, "static_print", lambda *args, **kwargs: None
            yield module, "multiple_of", _multiple_of
            yield module, "max_contiguous", _max_contiguous
            yield module, "max_constancy", _max_constancy
            if hasattr(module, "condition"):
                yield module, "condition", lambda arg, **kwargs: arg
        yield tl.tensor, "__index__", lambda block: int(block.handle.data.reshape(-1)[0])
        for name, member in list(vars(tl.tensor).items()):
            if isinstance(member, JITFunction):
                yield tl.tensor, name, self._bound(member)
        call = self._call
        yield from Types().patches()
        yield JITFunction, "__call__", lambda kernel, *args, **kwargs: call(kernel, *args, **kwargs)
        for name, member in list(vars(cuda_extra.libdevice).items()):
            if tl.core.is_builtin(member):
                yield cuda_extra.libdevice, name, self._with_semantic(member)
                if hasattr(libdevice_stubs, name):
                    yield libdevice_stubs, name, self._with_semantic(member)

    def _bound(self, member: JITFunction) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._call(member, *args, **kwargs)

    def _call(self, kernel: JITFunction, *args: Any, **kwargs: Any) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("_semantic", "_generator")}
        return self._rewrite(kernel)(*args, **kwargs)

    def _with_semantic(self, member: Callable[..., Any]) -> Callable[..., Any]:
        return bound(member, self.semantic)

    def _rewrite(self, kernel: JITFunction) -> Callable[..., Any]:
        fn = kernel.fn
        if fn not in self._rewritten:
            tree = syntax.parse(kernel.src)
            (definition,) = tree.body
            assert isinstance(definition, ast.FunctionDef)
            tree.body = [rewritten(definition, fn.__globals__)]
            ast.increment_lineno(ast.fix_missing_locations(tree), fn.__code__.co_firstlineno - 1)
            code = compile(tree, fn.__code__.co_filename, "exec", dont_inherit=True)
            found: dict[str, Any] = {}
            exec(code, self._space(fn.__globals__), found)
            function = found[definition.name]
            function.__defaults__ = tuple(map(unwrap, fn.__defaults__ or ())) or None
            self._rewritten[fn] = function
        return self._rewritten[fn]

    def _space(self, original: dict[str, Any]) -> dict[str, Any]:
        """The globals of rewritten functions: those of the original, with the patched versions of Triton's builtins."""
        if id(original) not in self._spaces:
            allowed = {name: getattr(builtins, name) for name in BUILTINS}
            counted = tl.range  # The compiler ignores keywords of the builtin `range`.
            allowed |= {
                "range": lambda *bounds: counted(*bounds),
                "min": _least,
                "max": _greatest,
                "print": lambda *args, **kwargs: None,
            }
            space = {name: self._global(value) for name, value in original.items()}
            space |= {
                "__builtins__": allowed, "__to_tensor": self._to_tensor, "__unwrap": unwrap, "__either": self._either,
                **HELPERS,
            }  # fmt: skip
            self._spaces[id(original)] = space
        return self._spaces[id(original)]

    def _global(self, value: Any) -> Any:
        if isinstance(value, tl.constexpr):
            return value.value
        if isinstance(value, (ModuleType, JITFunction)) or not callable(value):
            return value
        if getattr(value, "__module__", None) == libdevice_stubs.__name__:
            return getattr(libdevice_stubs, value.__name__)
        name = getattr(value, "__name__", "")
        if name in _REPLACED and value.__module__.startswith("triton.language"):  # `from triton.language import range`
            return getattr(tl, name)
        return self._with_semantic(value) if tl.core.is_builtin(value) else value

    def _either(self, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The value of a conditional expression: a tensor if a tensor decides."""
        condition = unwrap(truth(condition))
        chosen = (then if condition else otherwise)()
        return self.semantic.to_tensor(chosen) if isinstance(condition, tl.tensor) else chosen

    def _to_tensor(self, value: Any) -> Any:
        """A plain number as a tensor, as an assignment makes it; tuples and lists by their items."""
        if type(value) in (tuple, list, tl.tuple):
            return type(value)([self._to_tensor(v) for v in value])
        return self.semantic.to_tensor(value, check_type=False)


def _parameter(parameter: Any, value: Any, arrays: Arrays | None) -> Any:
    """A kernel's argument in the form in which the launcher passes it."""
    if parameter.is_constexpr or value is None or isinstance(value, (str, JITFunction, tl.dtype)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(_parameter(parameter, v, arrays) for v in value)
    if isinstance(value, torch.Tensor):
        address = value.data_ptr()
        kind = led_by(tl.str_to_ty(mangle_type(value), None), arrays and arrays.at(address))
        return tl.tensor(TensorHandle(np.array([address], np.uint64), kind), kind)
    name = parameter.annotation_type
    if not name and not parameter.do_not_specialize and mangle_type(value, specialize=True) == "constexpr":
        return value  # 1 is a constant to the compiler.
    if not name:
        name = "u1" if isinstance(value, bool) else "fp32" if isinstance(value, float) else mangle_type(value)
    kind = tl.int1 if name in ("u1", "i1") else tl.str_to_ty(name, None)
    return tl.tensor(TensorHandle(encode(np.array([value]), kind), kind), kind)


def programs_of(grid: Program, order: str = "forward") -> Iterator[Program]:
    """All programs of a grid, x fastest as on the device; order "reverse": exactly the other way round.

    "at once" is reversed too, so that the stores of the first programs remain in the end.
    """
    if order not in ("forward", "reverse", "at once"):
        raise ValueError(f"order must be 'forward', 'reverse' or 'at once', got {order!r}")
    axes = [builtins.range(n) if order == "forward" else builtins.range(n - 1, -1, -1) for n in grid]
    return ((x, y, z) for z, y, x in itertools.product(axes[2], axes[1], axes[0]))

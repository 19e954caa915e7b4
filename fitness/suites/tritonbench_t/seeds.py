"""Finds seed kernels for functions, written for evo: simple, right for some of their calls, and to be improved.

A seed is a pattern, one of KernelBench's or of `kernels/`, with expressions for its words in capitals.  Below it is a
function with the name of the file's.  It passes its arguments on to the pattern's entry, and refuses those that the
pattern does not support.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from evo.core import syntax
from fitness.suites.kernelbench import seeds as kernelbench
from fitness.suites.kernelbench.seeds import filled
from fitness.suites.seeded import given
from fitness.suites.tritonbench import TritonBenchFile

KERNELS = Path(__file__).parent / "kernels"

_REFUSED = {  # arguments that a seed does not support, and when they ask for something.
    "out": "out is not None",
    "out_tensor": "out_tensor is not None",
    "inplace": "inplace",
    "training": "training",
    "dtype": "dtype is not None",
    "dim": "dim is not None",
    "rounding_mode": "rounding_mode is not None",
    "approximate": "approximate != 'none'",
}
_ERF = "0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))"
_HALF_ERF = "0.5 * x * tl.erf(x * 0.7071067811865476)"  # so two files of the suite compute it
_TANH = "0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"

_ELEMENTWISE = {  # of the first argument
    "abs": "tl.abs(x)",
    "asin": "libdevice.asin(x)",
    "bessel_j1": "libdevice.j1(x)",
    "cos": "libdevice.cos(x)",
    "erf": "tl.erf(x)",
    "exp": "tl.exp(x)",
    "exp_sqrt": "tl.sqrt(tl.exp(x))",
    "floor": "tl.floor(x)",
    "gammaln": "libdevice.lgamma(x)",
    "i0": "libdevice.cyl_bessel_i0(x)",
    "log": "tl.log(x)",
    "log1p": "libdevice.log1p(x)",
    "log_tanh": "libdevice.tanh(tl.log(x))",
    "reciprocal": "1.0 / x",
    "relu": "tl.maximum(x, 0.0)",
    "relu_sqrt": "tl.sqrt(tl.maximum(x, 0.0))",
    "rsqrt": "1.0 / tl.sqrt(x)",
    "selu": "1.0507009873554805 * (tl.maximum(x, 0.0) + tl.minimum(x, 1.6732632423543772 * libdevice.expm1(x)))",
    "sigmoid": "tl.sigmoid(x)",
    "sqrt": "tl.sqrt(x)",
    "sqrt_exp": "tl.exp(tl.sqrt(x))",
    "sqrt_tanh": "libdevice.tanh(tl.sqrt(x))",
    "tanh": "libdevice.tanh(x)",
    "trunc": "libdevice.trunc(x)",
}

_GELU = f"({_TANH}) if MODE == 'tanh' else ({_ERF})"
_BROADCAST = {  # `x` of `a`, `b` and `scale`, the result of `x`, and what the entry is called with
    "add": ("a + scale * b", "x", "input, other, alpha"),
    "add_gelu": ("(a + scale * b).to(tl.float32)", _GELU, "input, other, alpha, approximate"),
    "bitwise_and": ("a & b", "x", "input, other"),
    "div": ("a / b", "x", "input, other"),
    "fused_hardshrink_dropout": ("tl.where(tl.abs(a) > b, a, 0.0)", "x", "input, lambd"),
    "gelu": ("a.to(tl.float32)", _GELU, "input, mode=approximate"),
    "leaky_relu": ("tl.where(a > 0, a, b * a)", "x", "input, negative_slope"),
    "logit": (
        "tl.where(scale > 0, tl.minimum(tl.maximum(a, b), 1.0 - b), a)",
        "tl.log(x / (1.0 - x))",
        "input, eps or 0.0, 0.0 if eps is None else 1.0",
    ),
    "mul": ("a * b", "x", "input, other"),
    "mul_relu": ("a * b", "tl.maximum(x, 0.0)", "input, other"),
    "pow": ("libdevice.pow(a, b)", "x", "input_tensor, exponent"),
    "sub": ("a - scale * b", "x", "input, other, alpha"),
    "sub_gelu": ("(a - scale * b).to(tl.float32)", _GELU.replace(_ERF, _HALF_ERF), "input, other, alpha, approximate"),
}

_MEAN = "tl.sum(found, axis=0) / n_rows"
_LEAST = ('float("inf")', f"tl.minimum(found, {_HALF_ERF})", "tl.min(found, axis=0)", "input, None")
_REDUCTIONS = {  # the start, a step, the result, what is reduced along which dimension.
    "exp_mean": ("0.0", "found + tl.where(mask, tl.exp(x), 0.0)", _MEAN, "input, dim"),
    "gelu_min": _LEAST,
    "mean": ("0.0", "found + x", _MEAN, "input_tensor, dim"),
    "min_gelu": _LEAST,
    "sum": ("0.0", "found + x", "tl.sum(found, axis=0)", "input, dim"),
}
_ARGUMENTS_OF_LARGEST = {
    "argmax": ("x > best", "input_tensor, dim"),
    "sigmoid_argmax": ("tl.sigmoid(x) > tl.sigmoid(best)", "input, dim"),
}
_SOFTMAX = {"softmax": "x", "softmax_log": "tl.log(x)"}

_LINEAR = "input[None], weight.t()[None], bias"
_MATMULS = {  # `x` of `total` and `c`, the result of `x`, the entry's arguments, its result
    "addmm": ("s * total + t * c", "x", "mat1[None], mat2[None], input, alpha, beta", "[0]"),
    "dropout_sigmoid_linear": ("total + c", "tl.sigmoid(x)", _LINEAR, "[0]"),
    "elu_linear": ("total + c", "tl.where(x > 0, x, s * libdevice.expm1(x))", f"{_LINEAR}, alpha", "[0]"),
    "fused_bmm_dropout_gelu": ("total", _ERF, "input1, input2", ""),
    "fused_mv_sigmoid_sub": (
        "tl.sigmoid(total) - t * c", "x", "input[None], vec[None, :, None], other[:, None], t=alpha", ".view(-1)",
    ),
    "matmul": (
        "total", "x", "tensor1.view(-1, *tensor1.shape[-2:]), tensor2.view(-1, *tensor2.shape[-2:])",
        ".view(*tensor1.shape[:-1], tensor2.shape[-1])",
    ),
    "softplus_linear": (
        "total + c", "tl.where(x > t, x, tl.log(1.0 + tl.exp(s * x)) / s)",
        f"{_LINEAR}, beta, threshold", "[0]",
    ),
    "tanh_linear": ("total + c", "libdevice.tanh(x)", _LINEAR, "[0]"),
}  # fmt: skip

_CONVOLUTIONS = {  # the result of `x` and `s`, further arguments
    "conv2d": ("x", ""),
    "gelu_conv2d": (_ERF, ""),
    "leaky_relu_conv2d": ("tl.where(x > 0, x, s * x)", ", negative_slope"),
    "relu_conv2d": ("tl.maximum(x, 0.0)", ""),
    "sigmoid_conv2d": ("tl.sigmoid(x)", ""),
}

_NORMS = {
    "batch_norm": "x",
    "fused_hardsigmoid_batch_norm": "tl.minimum(tl.maximum(x / 6.0 + 0.5, 0.0), 1.0)",
    "sigmoid_batch_norm": "tl.sigmoid(x)",
    "silu_batch_norm": "x * tl.sigmoid(x)",
}

_REDUCED = "entry(batch_of({0})).view(reduced({0}, keepdim))"
_BATCH_OF = '''

def batch_of(x, dim):
    """As matrices whose rows are counted along `dim`; None: along all dimensions."""
    if dim is None:
        return x.view(1, -1, 1)
    dim = dim % x.dim()
    return x.view(math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :]))


def reduced(x, dim, keepdim):
    """The shape of a result."""
    at = [True] * x.dim() if dim is None else [i == dim % x.dim() for i in range(x.dim())]
    return [1 if gone else size for gone, size in zip(at, x.shape) if keepdim or not gone]
'''


def _seeds() -> dict[str, tuple[Path, dict[str, str], str]]:
    """Returns name -> pattern, the replacement of its words in capitals, and what its function returns."""
    found: dict[str, tuple[Path, dict[str, str], str]] = {}
    ready = kernelbench.KERNELS
    for name, value in _ELEMENTWISE.items():
        found[name] = (ready / "elementwise.py", {"VALUE": value}, "entry(FIRST)")
    for name, (x, value, arguments) in _BROADCAST.items():
        found[name] = (KERNELS / "broadcast.py", {"TERM": x, "VALUE": value}, f"entry({arguments})")
    for name, (start, step, finish, along) in _REDUCTIONS.items():
        words = {"START": start, "STEP": step, "FINISH": finish, "SHAPE": "(batch, n_columns)"}
        found[name] = (ready / "reduction.py", words, _REDUCED.format(along))
    for name, (better, along) in _ARGUMENTS_OF_LARGEST.items():
        words = {"START": '-float("inf")', "BETTER": better}
        found[name] = (ready / "arg_reduction.py", words, _REDUCED.format(along))
    for name, term in _SOFTMAX.items():
        found[name] = (KERNELS / "softmax.py", {"TERM": term}, "entry(batch_of(input, dim)).view(input.shape)")
    for name, (x, value, arguments, result) in _MATMULS.items():
        found[name] = (KERNELS / "linear.py", {"TERM": x, "VALUE": value}, f"entry({arguments}){result}")
    for name, (value, more) in _CONVOLUTIONS.items():
        arguments = f"input, weight, bias, stride, padding, dilation, groups{more}"
        found[name] = (KERNELS / "conv2d.py", {"VALUE": value}, f"entry({arguments})")
    for name, value in _NORMS.items():
        arguments = "FIRST, running_mean, running_var, weight, bias, eps"
        found[name] = (KERNELS / "batch_norm.py", {"VALUE": value}, f"entry({arguments})")
    return found


SEEDS: Mapping[str, tuple[Path, Mapping[str, str], str]] = _seeds()


def seed_kernel(source: TritonBenchFile, folder: Path | None = None) -> str | None:
    """Returns the seed of a function: `NAME.py` of `folder` if it exists, else evo's, else None."""
    if (kernel := given(source.name, folder)) is not None:
        return kernel
    if source.name not in SEEDS:
        return None
    pattern, words, result = SEEDS[source.name]
    text = filled(pattern, words)
    if "batch_of" in result:
        text = f"import math\n\n{text}{_BATCH_OF}"
    return f"{text}\n\n{_function(source, result)}"


def _function(source: TritonBenchFile, result: str) -> str:
    """Returns a function that is called like the file's, without its annotations: their names are not imported here."""
    tree = syntax.parse(source.kernels)
    arguments = next(n.args for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == source.name)
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in named:
        argument.annotation = None
    lines = [f"def {source.name}({ast.unparse(arguments)}):"]
    for name in (a.arg for a in named if a.arg in _REFUSED and not re.search(rf"\b{a.arg}\b", result)):
        lines += [f"    if {_REFUSED[name]}:", f"        raise NotImplementedError({name!r})"]
    lines.append(f"    return {result.replace('FIRST', named[0].arg)}")
    return "\n".join(lines) + "\n"

"""Finds seed kernels for problems, written for evo: simple, right and to be improved.

A file of `kernels/` is for a family of problems of level 1; words in capitals in it are replaced per family.  One of
`kernels/level2/` is for a problem; words in capitals stand for kernels of `kernels/parts/`.  A problem is known by its
name without level, number and case, so that it is found in other editions of the suite too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fitness.suites.kernelbench.checkout import KernelBenchFile
from fitness.suites.seeded import given

KERNELS = Path(__file__).parent / "kernels"
LEVEL_2, PARTS = KERNELS / "level2", KERNELS / "parts"

_ELEMENTWISE = {
    "relu": "tl.maximum(x, 0.0)",
    "leakyrelu": "tl.where(x > 0, x, 0.01 * x)",
    "sigmoid": "tl.sigmoid(x)",
    "tanh": "libdevice.tanh(x)",
    "swish": "x * tl.sigmoid(x)",
    "gelu": "0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))",
    "selu": "1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * libdevice.expm1(x))",
    "hardsigmoid": "tl.minimum(tl.maximum(x / 6.0 + 0.5, 0.0), 1.0)",
    "softplus": "tl.where(x > 20.0, x, libdevice.log1p(tl.exp(x)))",
    "softsign": "x / (1.0 + tl.abs(x))",
    "elu": "tl.where(x > 0, x, libdevice.expm1(x))",
    "hardtanh": "tl.minimum(tl.maximum(x, -1.0), 1.0)",
    "mingptnewgelu": "0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
}

_LOWEST, _HIGHEST = '-float("inf")', 'float("inf")'
_REDUCTIONS = {
    "sum": ("0.0", "found + x", "tl.sum(found, axis=0)", "(batch, 1, n_columns)"),
    "mean": ("0.0", "found + x", "tl.sum(found, axis=0) / n_rows", "(batch, n_columns)"),
    "max": (_LOWEST, "tl.maximum(found, x)", "tl.max(found, axis=0)", "(batch, n_columns)"),
    "min": (_HIGHEST, "tl.minimum(found, x)", "tl.min(found, axis=0)", "(batch, n_columns)"),
}

_FORWARD, _SUM = "start + columns", "before + tl.cumsum(x, axis=0)"
_SCANS = {
    "cumsum": ("0.0", _FORWARD, _SUM, "before + tl.sum(x, axis=0)"),
    "cumprod": ("1.0", _FORWARD, "before * tl.cumprod(x, axis=0)", "before * tl.reduce(x, 0, multiplied)"),
    "cumsum_reverse": ("0.0", "n_columns - 1 - start - columns", _SUM, "before + tl.sum(x, axis=0)"),
    "cumsum_exclusive": ("0.0", _FORWARD, f"{_SUM} - x", "before + tl.sum(x, axis=0)"),
}
_MULTIPLIED = "\n\n@triton.jit\ndef multiplied(a, b):\n    return a * b\n"

_SMOOTH = "tl.where(tl.abs(p - t) < 1.0, 0.5 * (p - t) * (p - t), tl.abs(p - t) - 0.5)"
_LOSSES = {
    "mseloss": ("(p - t) * (p - t)", "offsets", "n"),
    "huberloss": (_SMOOTH, "offsets", "n"),
    "hingeloss": ("tl.maximum(1.0 - p * t, 0.0)", "offsets % n_columns", "n"),
    "kldivloss": ("t * (tl.log(t) - tl.log(p))", "offsets", "n_rows"),
}

_ONE, _MATRIX = "A[None], B[None]", "(M, N)"
_MATMULS = {  # operands as batches of matrices, the result's shape, the result
    "square_matrix_multiplication": (_ONE, _MATRIX, "total"),
    "standard_matrix_multiplication": (_ONE, _MATRIX, "total"),
    "batched_matrix_multiplication": ("A, B", "(batch, M, N)", "total"),
    "matmul_with_large_k_dimension": (_ONE, _MATRIX, "total"),
    "matmul_with_small_k_dimension": (_ONE, _MATRIX, "total"),
    "matmul_with_irregular_shapes": (_ONE, _MATRIX, "total"),
    "tall_skinny_matrix_multiplication": (_ONE, _MATRIX, "total"),
    "3d_tensor_matrix_multiplication": ("A.view(1, -1, A.shape[2]), B[None]", "(A.shape[0], A.shape[1], N)", "total"),
    "4d_tensor_matrix_multiplication": (
        "A.view(1, -1, A.shape[3]), B[None]", "(A.shape[0], A.shape[1], A.shape[2], N)", "total",
    ),
    "matmul_for_symmetric_matrices": (_ONE, _MATRIX, "total"),
    "matmul_for_upper_triangular_matrices": (_ONE, _MATRIX, "tl.where(rows <= columns, total, 0.0)"),
    "matmul_for_lower_triangular_matrices": (_ONE, _MATRIX, "tl.where(rows >= columns, total, 0.0)"),
    "matmul_with_transposed_a": ("A.t()[None], B[None]", _MATRIX, "total"),
    "matmul_with_transposed_b": ("A[None], B.t()[None]", _MATRIX, "total"),
    "matmul_with_transposed_both": ("A.t()[None], B.t()[None]", _MATRIX, "total"),
    "conv_pointwise_2d": (
        "weight.view(1, weight.shape[0], -1).expand(x.shape[0], -1, -1), x.view(x.shape[0], x.shape[1], -1)",
        "(x.shape[0], M, x.shape[2], x.shape[3])", "total",
    ),
}  # fmt: skip


def _families() -> dict[str, tuple[str, dict[str, str]]]:
    """Returns family -> file, and the replacement of its words in capitals."""
    found: dict[str, tuple[str, dict[str, str]]] = {
        "matrix_scalar_multiplication": ("scale", {}),
        "matmul_with_diagonal_matrices": ("diagonal", {}),
        "matrix_vector_multiplication": ("matvec", {}),
        "softmax": ("softmax", {"VALUE": "tl.exp(x - top) / total"}),
        "logsoftmax": ("softmax", {"VALUE": "x - top - tl.log(total)"}),
        "l1norm": ("row_norm", {"TERM": "tl.abs(x)", "NORM": "total / n_columns"}),
        "l2norm": ("row_norm", {"TERM": "x * x", "NORM": "tl.sqrt(total)"}),
        "rmsnorm": ("channel_norm", {}),
        "frobeniusnorm": ("whole_norm", {}),
        "instancenorm": ("instance_norm", {}),
        "groupnorm": ("group_norm", {"GROUPS": "8"}),
        "layernorm": ("group_norm", {"GROUPS": "1"}),
        "batchnorm": ("batch_norm", {}),
        "argmax_over_a_dimension": ("arg_reduction", {"START": _LOWEST, "BETTER": "x > best"}),
        "argmin_over_a_dimension": ("arg_reduction", {"START": _HIGHEST, "BETTER": "x < best"}),
        "masked_cumsum": ("masked_scan", {}),
        "crossentropyloss": ("cross_entropy", {}),
        "tripletmarginloss": ("triplet_margin", {}),
    }
    found |= {name: ("elementwise", {"VALUE": value}) for name, value in _ELEMENTWISE.items()}
    for name, values in _REDUCTIONS.items():
        words = dict(zip(("START", "STEP", "FINISH", "SHAPE"), values, strict=True))
        found[f"{name}_reduction_over_a_dimension"] = ("reduction", words)
    for name, values in _SCANS.items():
        found[name] = ("scan", dict(zip(("NEUTRAL", "PLACES", "SCANNED", "NEXT"), values, strict=True)))
    for name, three in _LOSSES.items():
        found[name] = ("loss", dict(zip(("TERM", "TARGET", "DIVISOR"), three, strict=True)))
    for name, three in _MATMULS.items():
        words = dict(zip(("OPERANDS", "SHAPE", "RESULT"), three, strict=True))
        found[name] = ("matmul", {**words, "PARAMETERS": "x, weight" if "weight" in words["OPERANDS"] else "A, B"})
    return found


FAMILIES: Mapping[str, tuple[str, Mapping[str, str]]] = _families()


def seed_kernel(source: KernelBenchFile, folder: Path | None = None) -> str | None:
    """Returns the seed of a problem: `NAME.py` of `folder` if it exists, else of its family, else None."""
    if (kernel := given(source.name, folder)) is not None:
        return kernel
    if source.name.startswith("level2_"):
        path = LEVEL_2 / f"{source.family}.py"
        return filled(path, _parts()) if path.exists() else None
    if source.family not in FAMILIES or not source.name.startswith("level1_"):
        return None
    file, words = FAMILIES[source.family]
    return filled(KERNELS / f"{file}.py", words)


@cache
def _parts() -> Mapping[str, str]:
    """Returns the kernels that several seeds have, each by the word that stands for it."""
    parts = ((path.stem.upper(), path.read_text(encoding="utf-8")) for path in PARTS.glob("*.py"))
    return {word: text[text.index("@triton.jit") :].strip() for word, text in parts}


def filled(pattern: Path, words: Mapping[str, str]) -> str:
    """Returns the text of a pattern with its words in capitals replaced."""
    text = pattern.read_text(encoding="utf-8")
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", lambda _, value=value: value, text)  # type: ignore[misc]
    if "multiplied" in text:
        text = text.replace("\n\n@triton.jit", f"{_MULTIPLIED}\n\n@triton.jit", 1)
    return text

"""Kernels mean to the interpreter what they mean to the compiler, or are refused.

What the compiler makes of them was read from its intermediate code (Triton 3.8), where it is said below.
"""

from __future__ import annotations

import pytest
import torch

from fitness.frontend.kernels import load_kernels
from fitness.interpreter.interpreter import Interpreter, programs_of

HEADER = """
import triton
import triton.language as tl
from triton.language import constexpr as fixed, static_assert as make_sure

@triton.jit
def sign(n):
    if n > 0:
        return {returned} 1
    else:
        return {returned} 3

@triton.jit
def by_name(a, {star} b):
    return a - b

@triton.jit
def kernel(x, o, n, one, minus, s, B: tl.constexpr{more}):
    i = tl.arange(0, B)
    v = tl.load(x + i)
"""
N = 16


def execute(scratch, body: str, *, returned: str = "tl.sum(tl.arange(0, 2), 0) *", star: str = "", more: str = ""):
    """`o` after the kernel with this body, in which `n` is 16, `one` 1, `minus` -1, `s` 0.5, `x` is 1, 2, 3 …"""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    source = HEADER.format(returned=returned, star=star, more=more) + lines + "\n"
    kernels = load_kernels(source, {"two": 2}, scratch)
    out = torch.zeros(N)
    args = {"x": torch.arange(1.0, N + 1), "o": out, "n": N, "one": 1, "minus": -1, "s": 0.5, "B": N}
    with Interpreter() as interpreter:
        interpreter.launch(kernels["kernel"], args, (1, 1, 1), programs_of((1, 1, 1)))
    return out[0].item()


def value(expression: str) -> str:
    return f"tl.store(o + i, v * ({expression}))"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("one // -2", -1.0),  # an argument that is 1 is a constant: Python's division
        ("n // -3", -5.0),  # others are tensors: C's
        ("(1 if n > 0 else 2) // -2", 0.0),  # what a tensor chooses is one
        ("(1 if B > 0 else 2) // -2", -1.0),
        ("sign(n) // -2", 0.0),
        ("min(1, 2) // -2", -1.0),
        ("two + [2 * k for k in (2.0, 3.0)][0]", 6.0),
        ("(n > 0) * 1.0 if minus is not None else 7.0", 1.0),
    ],
)
def test_numbers_are_constants_where_the_compiler_has_constants(tmp_path, expression, expected):
    assert execute(tmp_path, value(expression)) == expected


def test_what_is_assigned_is_a_tensor_but_for_constexprs(tmp_path):
    body = f"a: tl.constexpr = 1\nb = 1\n{value('10 * (a // -2) + b // -2')}"
    assert execute(tmp_path, body) == -10.0
    assert execute(tmp_path, body.replace("tl.constexpr", "fixed")) == -10.0


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("0, n, 5", [0, 5, 10, 15]),
        ("n, 0, -5", [16, 11, 6, 1]),
        ("one, 4, one", [1, 2, 3]),
        ("tl.load(x).to(tl.int32), 7, 3", [1, 4]),
    ],
)
def test_loops_over_tensors_and_constants(tmp_path, bounds, expected):
    body = f"a = v * 0\nfor t in range({bounds}):\n    a = a * 20 + t\ntl.store(o + i, a)"
    total = 0.0
    for t in expected:
        total = total * 20 + t
    assert execute(tmp_path, body) == total


def test_a_loop_variable_is_unsigned_where_a_bound_is(tmp_path):
    """Below zero it is a large number: `arith.cmpi ult` to the compiler."""
    loop = "a = v * 0\nfor t in range(0, tl.full((), 3, tl.uint32), 2):\n    a += tl.where(t - 1 < 0, 1.0, 2.0)"
    assert execute(tmp_path, f"{loop}\ntl.store(o + i, a)") == 4.0
    assert execute(tmp_path, f"{loop.replace('uint32', 'int32')}\ntl.store(o + i, a)") == 3.0


def test_operands_of_assertions_are_evaluated(tmp_path):
    assert execute(tmp_path, "assert tl.atomic_xchg(o, 3.0) == 0.0, 'no'") == 3.0


REFUSED = {
    "an annotation that is no constexpr": "a: tl.float32 = v\ntl.store(o + i, a)",  # evaluated twice
    "a constexpr in quotes": 'a: "constexpr" = 1\n' + value("a // -2"),
    "a bare annotation": "a: tl.constexpr\na = 1\n" + value("a // -2"),
    "for and else": "for t in tl.static_range(2):\n    pass\nelse:\n    v = v * 2\n" + value("1"),
    "while and else": "t = 0\nwhile t < 2:\n    t += 1\nelse:\n    v = v * 2\n" + value("1"),
    "a variable of a comprehension": "k = 1.0\na = [k for k in (2.0, 3.0)]\n" + value("k"),
    "a condition of a comprehension": value("[k for k in (5.0, 1.0) if k < 2.0][0]"),
    "a comprehension over something global": value("[two for two in (5.0, 1.0)][0]"),
    "an assignment in an expression": value("(a := 1) // -2"),
    "identity of numbers": value("1.0 if 1024 is 1024 else 2.0"),
    "a message that does something": "tl.static_assert(B > 0, tl.store(o + i, v))",
    "the same by another name": "make_sure(B > 0, tl.store(o + i, v))",
    "a constant that one branch hides": "if n > 0:\n    two = 5\n" + value("two"),
    "a builtin that one branch hides": "if n > 0:\n    max = 5\n" + value("max"),
    "keywords of the builtin range": "for t in range(4, step=2):\n    tl.store(o, t.to(tl.float32))",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_reads_otherwise_is_refused(tmp_path, name):
    with pytest.raises((NotImplementedError, TypeError)):
        execute(tmp_path, REFUSED[name])


def test_a_computed_step_is_positive(tmp_path):
    """The device would not enter the loop."""
    with pytest.raises(ValueError, match="a loop whose step is computed to be -1"):
        execute(tmp_path, "for t in range(4, 0, minus):\n    tl.store(o, t.to(tl.float32))")


@pytest.mark.parametrize("returned", ["-", "", "2.0 *"])
def test_numbers_that_a_tensor_chooses_between_are_refused(tmp_path, returned):
    with pytest.raises(NotImplementedError, match="several `return`s gives the number"):
        execute(tmp_path, value("sign(n) // -2"), returned=returned)


@pytest.mark.parametrize(("star", "call"), [("*,", "by_name(5.0, b=2.0)"), ("/,", "by_name(5.0, 2.0)")])
def test_parameters_that_the_compiler_binds_otherwise_are_refused(tmp_path, star, call):
    with pytest.raises(NotImplementedError, match=r"before `/`, after `\*`"):
        execute(tmp_path, value(call), star=star)
    assert execute(tmp_path, value("by_name(5.0, b=2.0)")) == 3.0


def test_a_constant_may_be_hidden_everywhere(tmp_path):
    assert execute(tmp_path, "two = 5.0\nif n > 0:\n    two = 6.0\n" + value("two")) == 6.0
    assert execute(tmp_path, "max = 5.0\n" + value("max")) == 5.0

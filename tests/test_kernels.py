"""Extraction of kernels: what is kept, what is dropped, and that no host code runs."""

from __future__ import annotations

import pytest
import triton.language as tl

from evo.core.records import Verdict
from fitness.frontend.kernels import argument, get_kernel, kernel_sources, load_kernels
from fitness.sandbox.jobs import JobError

SOURCE = '''"""A candidate."""
import os, triton as tr
import triton.language as tl
from triton import jit
try:
    from triton.language.extra.nowhere import libdevice
except ImportError:
    from triton.language.extra.cuda import libdevice

raise RuntimeError("host code ran")
SCALE = 2.0

@jit
def double(x):
    return x * SCALE

class Wrapper:
    kernel = None

@tr.autotune(configs=[tr.Config({"BLOCK": os.cpu_count()})], key=["n"])
@tr.jit(
    do_not_specialize=["n"],
    launch_metadata=lambda *a: None,
)
def scale(x, o, n: "tl.int32", flag: os.PathLike, BLOCK: tl.constexpr = 128, KIND: tl.constexpr[int] = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, double(tl.load(x + i, mask=i < n)), mask=i < n)

def run(x):
    return scale[(1,)](x)
'''


def test_keeps_only_kernels_imports_and_constants(tmp_path):
    kernels = load_kernels(SOURCE, {"SCALE": 2.0, "DT": {"dtype": "fp16"}, "alias": {"jit": "double"}}, tmp_path)
    assert list(kernels) == ["double", "scale"]
    space = kernels["scale"].fn.__globals__
    assert space["SCALE"].value == 2.0 and space["DT"].value == tl.float16 and space["alias"] is kernels["double"]
    assert "libdevice" in space and "os" not in space and "run" not in space and "Wrapper" not in space
    assert "open" not in space["__builtins__"] and "__import__" not in space["__builtins__"]


def test_line_numbers_annotations_and_options_survive(tmp_path):
    scale = load_kernels(SOURCE, {"SCALE": 2.0}, tmp_path)["scale"]
    lines = SOURCE.split("\n")
    assert lines[scale.fn.__code__.co_firstlineno - 1].startswith("def scale(")
    assert (
        (tmp_path / "kernels.py").read_text().split("\n")[scale.fn.__code__.co_firstlineno - 1].startswith("def scale")
    )
    by_name = {p.name: p for p in scale.params}
    assert by_name["BLOCK"].is_constexpr and by_name["KIND"].is_constexpr and by_name["BLOCK"].default == 128
    assert by_name["n"].annotation_type == "i32" and by_name["n"].do_not_specialize
    assert by_name["flag"].annotation == ""


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("def f(:", "not Python"),
        ("import triton\n@triton.jit\ndef f(x, n=open('/etc/passwd')):\n    pass", "must be a literal"),
        ("import triton\n@triton.jit(version=print())\ndef f(x):\n    pass", "must be literals"),
        ("from triton import nothing_of_the_kind", "nothing_of_the_kind"),
        ("import triton\n@triton.jit\ndef f(x, n=1 // 0):\n    pass", "zero"),
    ],
)
def test_what_cannot_be_extracted_is_a_compile_error_with_its_line(tmp_path, source, part):
    with pytest.raises(JobError, match=part) as caught:
        load_kernels(source, {}, tmp_path)
    assert caught.value.verdict is Verdict.COMPILE_ERROR
    assert caught.value.line >= 1


HEAD = """
import triton
import triton.language as tl
from triton import language
from triton.language import core, math
from triton.language.core import static_assert
from triton.language.extra import libdevice
from triton.runtime import driver
from torch._inductor.runtime import triton_helpers

@triton.jit
def helper(x):
    return x

"""


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(x, tl.load(x).to(tl.float32))",
        "tl.store(x, tl.math.exp(math.log(libdevice.tanh(tl.load(x)))))",
        "tl.store(x, tl.extra.cuda.libdevice.tanh(helper(tl.load(x))))",
        "tl.store(x, triton_helpers.maximum(tl.load(x), triton.cdiv(n, 2) + triton.next_power_of_2(n)))",
        "static_assert(n == core.constexpr(4)); language.store(x, tl.max(tl.load(x).type.element_ty, 0))",
    ],
)
def test_kernels_reach_the_language(tmp_path, body):
    assert load_kernels(f"{HEAD}@triton.jit\ndef f(x, n: tl.constexpr = 4):\n    {body}", {}, tmp_path)["f"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("tl.core.builtins.exec('pass', {})", "tl.core.builtins"),
        ("core.builtins.print(1)", "core.builtins"),
        ("x = core.wraps", "core.wraps"),
        ("x = triton.runtime.driver", "triton.runtime"),
        ("x = driver.active", "driver"),
        ("y = tl", "`tl`"),
        ("y = tl.core", "tl.core"),
        ("y = getattr(x, 'value')", "getattr"),
        ("y = tl.load.__globals__", "__globals__"),
        ("y = x._private", "_private"),
        ("y = tl.max\n    y.used_global_vals", "used_global_vals"),
        ("y = helper.fn", "fn"),
        ("pass", "core.builtins.exec"),
    ],
)
def test_kernels_reach_nothing_else(tmp_path, body, text):
    default = "core.builtins.exec" if body == "pass" else "4"
    with pytest.raises(JobError, match="is not part of") as caught:
        load_kernels(f"{HEAD}@triton.jit\ndef f(x, n={default}):\n    {body}", {}, tmp_path)
    assert text in caught.value.message and caught.value.verdict is Verdict.REJECTED and caught.value.line >= 15


def test_a_parameter_may_be_called_like_a_module(tmp_path):
    source = f"{HEAD}@triton.jit\ndef f(x, math):\n    tl.store(x, math.value)"
    assert load_kernels(source, {}, tmp_path)["f"]


def test_whether_a_module_is_there_does_not_depend_on_who_imported_it(monkeypatch):
    """A package has as attributes those of its modules that somebody imported."""
    source = """
import triton
try:
    from triton.runtime import interpreter
except ImportError:
    from triton.language import math as interpreter

@triton.jit
def f(x):
    pass
"""
    import triton.runtime.interpreter

    known = kernel_sources(source)["f"].digest
    monkeypatch.delattr(triton.runtime, "interpreter")
    assert kernel_sources(source)["f"].digest == known
    assert kernel_sources(source.replace("triton.runtime", "triton.nowhere"))["f"].digest != known


def test_arguments(tmp_path):
    kernels = load_kernels(SOURCE, {}, tmp_path)
    assert argument({"dtype": "bf16"}, kernels) == tl.bfloat16
    assert argument({"jit": "double"}, kernels) is kernels["double"]
    assert argument((1, {"dtype": "fp32"}), kernels) == (1, tl.float32)
    assert argument("relu", kernels) == "relu"
    for unknown in ({"dtype": "fp99"}, {"jit": "nothing"}):
        with pytest.raises(JobError, match="names neither"):
            argument(unknown, kernels)


def test_an_unknown_kernel_lists_the_known_ones(tmp_path):
    kernels = load_kernels(SOURCE, {}, tmp_path)
    assert get_kernel(kernels, "scale") is kernels["scale"]
    with pytest.raises(JobError, match="found: double, scale") as caught:
        get_kernel(kernels, "wrapped", 7)
    assert caught.value.verdict is Verdict.UNSUPPORTED and caught.value.line == 7


CALLS = """
import triton
import triton.language as tl
FACTOR = 2
@triton.jit
def f(x):
    return g(x) + FACTOR
def host():
    return 1
@triton.jit
def g(x):
    return f(h(x))
@triton.jit
def h(x):
    return x
@triton.jit
def beside(x):
    return h(x)
"""


def test_what_a_kernel_calls_is_part_of_it():
    found = kernel_sources(CALLS)
    assert list(found) == ["f", "g", "h", "beside"] and "host" not in found
    assert found["f"].names == {"f", "g", "h", "x", "FACTOR", "triton"} and found["h"].names == {"x", "triton"}
    changed = kernel_sources(CALLS.replace("    return x\n", "    return x + 1\n"))
    assert all(changed[name].digest != found[name].digest for name in found)
    changed = kernel_sources(CALLS.replace("return h(x)\n", "return h(x) + 1\n").replace("return 1\n", "return 2\n"))
    assert [name for name in found if changed[name].digest != found[name].digest] == ["beside"]


def test_of_thousands_of_functions_those_launched_are_followed():
    """To follow each of a chain of calls as far as it goes would take minutes."""
    chain = "".join(f"@triton.jit\ndef a{i}():a{i + 1}()\n" for i in range(5000))
    found = kernel_sources(f"import triton\n{chain}")
    assert len(found) == 5000 and "a4999" in found
    assert len(found["a0"].names) == 5001 and found["a4999"].names == {"a5000", "triton"}
    assert found["a0"] is found["a0"]


def test_parameters_are_known_as_constexpr_by_their_annotation():
    found = kernel_sources(SOURCE)
    assert found["scale"].constexprs == {"BLOCK", "KIND"} and found["double"].constexprs == set()
    assert SOURCE.splitlines()[found["scale"].line - 1].startswith("def scale(")
    source = """
import triton
from triton.language import constexpr as fixed
@triton.jit
def f(a, /, b: fixed, c: "tl.constexpr", d: "fp32", *, e: fixed = 2):
    pass
"""
    assert kernel_sources(source)["f"].constexprs == {"b", "c", "e"}

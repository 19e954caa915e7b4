"""Several kernels in one file: names stay apart, what is the same stays once, and shapes choose."""

from __future__ import annotations

import pytest

from fitness.frontend.gate import gate
from operators.combine import WonCases, dispatcher, renamed, unused

ORIGINAL = """import torch
import triton
import triton.language as tl

BLOCK = 16  # for all


@triton.jit
def helper(x):
    return x * 2


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    x = tl.arange(0, BLOCK)
    tl.store(x_ptr + x, helper(tl.load(x_ptr + x)))


def double(x, *, times=1):
    kernel[(x.numel() // BLOCK,)](x, BLOCK=BLOCK)
    return x
"""
OTHER_BLOCK = ORIGINAL.replace("BLOCK = 16", "BLOCK = 32")
OTHER_HELPER = ORIGINAL.replace("x * 2", "x + x")
FORMS = (((None, (16,)),), ((None, (64,)),))


def test_a_name_is_renamed_only_if_it_means_the_top_level_one():
    made = renamed(ORIGINAL, {"BLOCK": "SIZE", "helper": "aid", "x": "never"})
    assert "SIZE = 16  # for all" in made and "(x.numel() // SIZE,)](x, BLOCK=SIZE)" in made
    assert "def kernel(x_ptr, BLOCK: tl.constexpr):\n    x = tl.arange(0, BLOCK)" in made
    assert "def aid(x):" in made and "aid(tl.load(" in made and "never" not in made
    assert renamed(ORIGINAL, {}) == ORIGINAL


def test_unused_names_are_counted():
    taken = {"a"}
    assert [unused("a", taken), unused("a", taken), unused("b", taken)] == ["a_2", "a_3", "b"]


def test_what_is_the_same_stays_once_and_what_differs_gets_another_name():
    made = dispatcher("double", ORIGINAL, [WonCases(OTHER_BLOCK, FORMS[:1]), WonCases(OTHER_HELPER, FORMS[1:])], ["x"])
    assert made is not None
    # The first differs in a constant that its host uses; the second in a helper that its kernel uses.
    assert made.count("def kernel") == 2 and made.count("def helper") == 2
    assert "BLOCK_1 = 32" in made and "kernel[(x.numel() // BLOCK_1,)](x, BLOCK=BLOCK_1)" in made
    assert "def kernel_2(" in made and "helper_2(tl.load(" in made
    assert made.count("import torch\n") == 1
    assert gate(made, entry="double", allow_delegation=False) == []


@pytest.mark.parametrize(
    ("shape", "expected"), [((16,), "first"), ((64,), "second"), ((63,), "original"), ((16, 1), "original")]
)
def test_shapes_choose_and_unknown_ones_run_the_original(shape, expected):
    import torch

    source = "import torch\n\n\ndef which(x, bias=None):\n    return '{}'\n"
    choices = [
        WonCases(source.format("first"), (((None, (16,)), None),)),
        WonCases(source.format("second"), (((None, (64,)), (None, (2,))),)),
    ]
    made = dispatcher("which", source.format("original"), choices, ["x", "bias"])
    assert made is not None
    space: dict = {}
    exec(made, space)
    bias = torch.ones(2) if expected == "second" else None
    assert space["which"](torch.ones(shape), bias) == expected
    assert space["which"](torch.ones(shape), torch.ones(3)) == "original"


def test_dtypes_choose_if_they_are_given():
    import torch

    source = "import torch\n\n\ndef which(x):\n    return '{}'\n"
    made = dispatcher("which", source.format("old"), [WonCases(source.format("new"), ((("float16", (4,)),),))], ["x"])
    assert made is not None
    space: dict = {}
    exec(made, space)
    assert [space["which"](torch.ones(4, dtype=d)) for d in (torch.float16, torch.float32)] == ["new", "old"]


def test_what_cannot_be_combined_is_none():
    other = ORIGINAL.replace("import triton.language as tl", "from other import language as tl")
    assert dispatcher("double", ORIGINAL, [WonCases(other, FORMS)], ["x"]) is None
    starred = ORIGINAL.replace("*, times=1", "*times")
    assert dispatcher("double", starred, [WonCases(OTHER_BLOCK, FORMS)], ["x"]) is None

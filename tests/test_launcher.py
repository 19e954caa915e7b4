"""fitness.cuda.launcher: arguments of a plan as the bytes a kernel's machine code takes."""

import math
import struct

import pytest
import torch

pytest.importorskip("cuda.bindings")

from fitness.cuda.launcher import pack

BF16 = [0.0, -0.0, 1.0, 1 / 3, -2.718281828, 65504.0, 3.0e38, 1e-40, 1.00390625, 1.01171875]


def test_parameters_come_in_the_order_of_the_signature_without_constants():
    signature = [("x", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr"), ("eps", "fp32"), ("flag", "u1"), ("big", "i64")]
    packed = pack(signature, {"big": -(2**40), "x": 0x7F00_0000_1000, "n": -3, "BLOCK": 128, "eps": 0.5, "flag": True})
    expected = [("Q", 0x7F00_0000_1000), ("i", -3), ("f", 0.5), ("B", 1), ("q", -(2**40))]
    assert packed == [struct.pack(kind, value) for kind, value in expected]


def test_tuples_are_flattened_and_their_constants_left_out():
    signature = [("pair", ["*fp16", ["constexpr", "i32"]]), ("n", "i32")]
    assert pack(signature, {"pair": (16, (1, 7)), "n": 9}) == [
        struct.pack(f, v) for f, v in (("Q", 16), ("i", 7), ("i", 9))
    ]


@pytest.mark.parametrize("value", BF16)
def test_bfloat16_is_rounded_as_torch_rounds(value):
    expected = torch.tensor(value, dtype=torch.float32).bfloat16().view(torch.int16).item() & 0xFFFF
    assert int.from_bytes(pack([("v", "bf16")], {"v": value})[0], "little") == expected


def test_bfloat16_keeps_what_is_not_finite():
    for value in (math.inf, -math.inf, math.nan):
        bits = int.from_bytes(pack([("v", "bf16")], {"v": value})[0], "little")
        back = torch.tensor(bits - (bits >> 15 << 16), dtype=torch.int16).view(torch.bfloat16).item()
        assert back == value or (math.isnan(back) and math.isnan(value))


def test_half_precision_and_double():
    assert pack([("v", "fp16")], {"v": 1.5}) == [struct.pack("e", 1.5)]
    assert pack([("v", "fp64")], {"v": 1 / 3}) == [struct.pack("d", 1 / 3)]


@pytest.mark.parametrize(("kind", "value"), [("i32", 2**31), ("i32", 0.5), ("u8", -1), ("fp16", 1e6), ("i32", "four")])
def test_values_that_do_not_fit_are_refused(kind, value):
    with pytest.raises(ValueError, match="'v'"):
        pack([("v", kind)], {"v": value})


def test_host_side_tensor_descriptors_are_refused():
    with pytest.raises(ValueError, match="cannot be launched"):
        pack([("v", "tensordesc<fp16[64,64]>")], {"v": 0})


def test_a_missing_argument_is_named():
    with pytest.raises(KeyError, match="n"):
        pack([("n", "i32")], {})

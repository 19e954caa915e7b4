"""Times that no kernel can have."""

import pytest

from fitness.estimate.roofline import impossible, least_us
from fitness.frontend.plan import Buffer, LaunchPlan
from fitness.frontend.target import get_target
from tests.traced import tensor

H200 = get_target("sm_90")


def plan(dtype="float32"):
    x = tensor(0, 1024, dtype=dtype)
    return LaunchPlan((Buffer(x.nbytes, 0),), (x, 3), (x,), "tensor", ())


def test_bytes_or_operations_whatever_takes_longer():
    assert least_us(plan(), 4.8e9, None, H200) == pytest.approx(1000)
    assert least_us(plan(), None, 989e9, H200) == pytest.approx(1000)  # float32 may be computed in float16
    assert least_us(plan(), 4.8e9, 2 * 989e9, H200) == pytest.approx(2000)
    assert least_us(plan(), None, None, H200) == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn"])
def test_narrow_operands_are_multiplied_faster(dtype):
    assert least_us(plan(dtype), None, 1979e9, H200) == pytest.approx(1000)


def test_what_is_far_below_is_impossible():
    assert impossible("c", 71, 100, "H200") is None
    assert "case c: 69.00 us is impossible" in impossible("c", 69, 100, "H200")

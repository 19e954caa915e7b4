"""The model's orderings, which matter to a search, and its floor, the roofline."""

import dataclasses
import math

import pytest

from evo.core.records import Build
from fitness.estimate import time_model as model
from fitness.frontend import screen
from fitness.frontend.plan import Buffer, Copy, Fill, LaunchPlan, Op
from fitness.frontend.target import get_target
from tests.traced import COPY, MATMUL, SIN, SOFTMAX, SOFTMAX3, TILES, plan_of, tensor, traces_of

H200 = get_target("sm_90")


def build(num_warps=4, registers=40, spill_bytes=0, shared_bytes=0) -> Build:
    return Build("kernel", registers, spill_bytes, shared_bytes, num_warps, 0.5, "hash")


def run(source, plan, tmp_path, *builds, target=H200, **more):
    """The estimate of the first configuration."""
    traces = traces_of(source, plan, tmp_path, **more)
    return model.estimate(plan, [0], [list(builds or [build()])], traces, target)


def elementwise(source, kernel, n, block, tmp_path, *builds):
    args = {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": block}
    return run(source, plan_of(kernel, (n // block,), args, ("y",)), tmp_path, *builds)


def rows(source, kernel, M, N, block, tmp_path, *builds):
    args = {"x": tensor(0, M, N), "y": tensor(1, M, N), "N": N, "BLOCK": block}
    return run(source, plan_of(kernel, (M,), args, ("y",)), tmp_path, *builds)


def product(tile, num_warps, registers, shared, tmp_path, stages=3, source=MATMUL, copies=None):
    M = N = K = 2048
    bm, bn, bk = tile
    args = {
        "a": tensor(0, M, K, dtype="float16"), "b": tensor(1, K, N, dtype="float16"),
        "c": tensor(2, M, N, dtype="float16"), "M": M, "N": N, "K": K, "BM": bm, "BN": bn, "BK": bk,
    }  # fmt: skip
    plan = plan_of("matmul", (M // bm * (N // bn),), args, ("c",), options={"num_stages": stages})
    built = dataclasses.asdict(build(num_warps, registers, shared_bytes=shared))
    return run(source, plan, tmp_path, built | ({} if copies is None else {"ptx_features": {"cp_async": copies}}))


# --- orderings -------------------------------------------------------------------------------------------------------


def test_tiny_blocks_are_limited_by_the_start_of_programs(tmp_path):
    tiny = elementwise(SIN, "sine", 1 << 24, 4, tmp_path)
    whole = elementwise(SIN, "sine", 1 << 24, 1024, tmp_path)
    assert tiny.total_us > 40 * whole.total_us
    assert tiny.bottleneck == "schedule" and whole.bottleneck == "dram"


def test_half_the_bytes_take_half_the_time(tmp_path):
    all_of_it = elementwise(COPY, "copy", 1 << 28, 1024, tmp_path).total_us
    half = elementwise(COPY, "copy", 1 << 27, 1024, tmp_path).total_us
    assert all_of_it / half == pytest.approx(2, rel=0.03)


def test_columns_are_slower_than_rows(tmp_path):
    args = {"x": tensor(0, 8192, 8192), "y": tensor(1, 8192, 8192), "stride_m": 8192, "stride_n": 1}
    row = run(TILES, plan_of("tiles", (8192, 8), {**args, "BM": 1, "BN": 1024}, ("y",)), tmp_path)
    column = run(TILES, plan_of("tiles", (8, 8192), {**args, "BM": 1024, "BN": 1}, ("y",)), tmp_path)
    assert column.total_us > 4 * row.total_us
    assert column.bottleneck == "scattered"


def test_one_pass_over_rows_of_8192(tmp_path):
    good = rows(SOFTMAX, "softmax", 8192, 8192, 8192, tmp_path, build(8, 55, shared_bytes=32))
    assert good.total_us == pytest.approx(134, rel=0.15)  # measured on an H200
    one_warp = rows(SOFTMAX, "softmax", 8192, 8192, 8192, tmp_path, build(1, 255, spill_bytes=608))
    assert one_warp.total_us > 1.15 * good.total_us
    passes = rows(SOFTMAX3, "softmax3", 8192, 8192, 1024, tmp_path, build(4, 22, shared_bytes=16))
    assert passes.total_us > 1.5 * good.total_us


def test_large_tiles_of_a_product_are_faster(tmp_path):
    small = product((16, 16, 16), 4, 28, 1024, tmp_path)
    large = product((128, 128, 64), 8, 122, 98304, tmp_path)
    assert small.total_us > 10 * large.total_us
    assert large.total_us > 2 * 2048**3 / H200.tensor_flops["float16"] * 1e6
    unpipelined = product((128, 128, 64), 8, 122, 32768, tmp_path, stages=1)
    assert unpipelined.total_us > 1.2 * large.total_us


def staged(tmp_path, stages, source=MATMUL, copies=None):
    return product((64, 64, 64), 4, 80, 16384, tmp_path, stages, source, copies).total_us


def test_stages_that_no_pipeline_has_gain_nothing(tmp_path):
    none, most = staged(tmp_path, 1), staged(tmp_path, screen.MOST_STAGES)
    assert none > 1.1 * most > 0
    assert staged(tmp_path, 0) == staged(tmp_path, -1) == staged(tmp_path, -(10**9)) == none
    assert staged(tmp_path, 10**9) == most and staged(tmp_path, "3") == staged(tmp_path, None)


def test_a_pipeline_has_no_more_stages_than_copies(tmp_path):
    assert staged(tmp_path, 9, copies=0) == staged(tmp_path, 1, copies=0) == staged(tmp_path, 1)
    assert staged(tmp_path, 9, copies=3) == staged(tmp_path, 3, copies=18) < staged(tmp_path, 2, copies=12)


def test_a_while_loop_is_not_pipelined(tmp_path):
    loop = "    for _ in range(0, K, BK):\n"
    assert loop in MATMUL
    source = MATMUL.replace(loop, "    done = 0\n    while done < K:\n        done += BK\n")
    assert staged(tmp_path, 3, source) == staged(tmp_path, 1, source) > staged(tmp_path, 3)


def test_stages_of_a_range_count_where_they_are_in_the_machine_code(tmp_path):
    def taken(loop, **features):
        built = {**dataclasses.asdict(build(4, 22, shared_bytes=16)), "ptx_features": features}
        return rows(SOFTMAX3.replace("range(0, N, BLOCK)", loop), "softmax3", 8192, 8192, 1024, tmp_path, built)

    plainly = taken("range(0, N, BLOCK)", cp_async=0).total_us
    assert taken("tl.range(0, N, BLOCK, num_stages=1000)", cp_async=0).total_us == plainly
    assert taken("tl.range(0, N, BLOCK, num_stages=-3)", cp_async=9).total_us == plainly
    assert taken("tl.range(0, N, BLOCK, num_stages=3)", cp_async=9).total_us < plainly


def test_spills_and_lost_occupancy_cost_time(tmp_path):
    free = rows(SOFTMAX, "softmax", 1024, 8192, 8192, tmp_path, build(4, 64))
    spilled = rows(SOFTMAX, "softmax", 1024, 8192, 8192, tmp_path, build(4, 64, spill_bytes=2048))
    crowded = rows(SOFTMAX3, "softmax3", 4096, 8192, 512, tmp_path, build(4, 32))
    lonely = rows(SOFTMAX3, "softmax3", 4096, 8192, 512, tmp_path, build(4, 32, shared_bytes=200_000))
    assert spilled.total_us > 1.1 * free.total_us
    assert lonely.total_us > 1.5 * crowded.total_us


# --- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1 << 10, 1 << 20, 1 << 24, 1 << 28])
def test_never_faster_than_memory(tmp_path, n):
    for block in (4, 256, 1024):
        found = elementwise(COPY, "copy", n, block, tmp_path)
        assert found.total_us > 8 * n / H200.dram_bytes_per_s * 1e6
        assert found.total_us >= max(found.terms.values())
        assert all(math.isfinite(us) and us >= 0 for us in found.terms.values())


def test_a_slower_memory_takes_longer(tmp_path):
    n = 1 << 26
    plan = plan_of("copy", (n // 1024,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    h100 = get_target("h100")
    slower = run(COPY, plan, tmp_path, target=h100).total_us
    ratio = H200.dram_bytes_per_s / h100.dram_bytes_per_s
    assert slower / run(COPY, plan, tmp_path).total_us == pytest.approx(ratio, rel=0.05)


def test_builds_may_be_dicts_of_the_compiler(tmp_path):
    plan = plan_of("copy", (64,), {"x": tensor(0, 65536), "y": tensor(1, 65536), "n": 65536, "BLOCK": 1024}, ("y",))
    traces = traces_of(COPY, plan, tmp_path)
    as_dict = {**dataclasses.asdict(build()), "ptx_features": {"wgmma": 0}, "key": "k"}
    assert model.estimate(plan, [0], [[as_dict]], traces, H200) == model.estimate(plan, [0], [[build()]], traces, H200)


# --- configurations --------------------------------------------------------------------------------------------------


def test_choice_skips_what_does_not_fit(tmp_path):
    n = 1 << 22
    configs = [
        {"BLOCK": 4, "grid": (n // 4,)},
        {"BLOCK": 1024, "grid": (n // 1024,)},
        {"BLOCK": 512, "grid": (n // 512,)},
    ]
    args = {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 4}
    plan = plan_of("copy", (1,), args, ("y",), configs=configs)
    traces = traces_of(COPY, plan, tmp_path)
    builds = [[build(), build(shared_bytes=300_000), build()]]
    (times,) = model.config_times(plan, builds, traces, H200)
    assert times[1] is None and times[2] < times[0]
    assert model.choose_configs(plan, builds, traces, H200) == [2]
    with pytest.raises(ValueError, match="does not fit"):
        model.estimate(plan, [1], builds, traces, H200)


def test_interval_grows_with_the_distance_from_one():
    assert model.interval(1.0) == (1.0, 1.0)
    for ratio in (0.2, 0.9, 1.1, 2.0, 10.0):
        low, high = model.interval(ratio)
        assert low < ratio < high
        assert low * high == pytest.approx(ratio**2)
    assert model.interval(2.0)[1] / 2 > model.interval(1.1)[1] / 1.1 > model.interval(1.0)[1]


# --- steps that are not launches -------------------------------------------------------------------------------------


def steps(*made, buffers):
    return LaunchPlan(tuple(Buffer(b) for b in buffers), (), (), "none", tuple(made))


def test_fills_and_copies_are_limited_by_memory():
    x, y = tensor(0, 1 << 26), tensor(1, 1 << 26)
    plan = steps(Fill(x, 0.0), Copy(y, x), buffers=(1 << 28, 1 << 28))
    found = model.estimate(plan, [], [], [], H200)
    fill, copy = found.per_launch
    assert (fill.name, copy.name, copy.bottleneck) == ("fill", "copy", "dram")
    assert copy.total_us / fill.total_us == pytest.approx(2, rel=0.05)
    assert found.total_us == fill.total_us + copy.total_us


def test_transposing_copies_are_slower():
    x, y = tensor(0, 4096, 4096, dtype="float16"), tensor(1, 4096, 4096, dtype="float16")
    transposed = tensor(0, 4096, 4096, dtype="float16", strides=(1, 4096))
    straight, turned = (
        model.estimate(steps(Copy(y, src), buffers=(1 << 25, 1 << 25)), [], [], [], H200) for src in (x, transposed)
    )
    assert turned.total_us > 5 * straight.total_us
    assert turned.total_us == pytest.approx(240, rel=0.2)  # measured on an H200
    assert turned.bottleneck == "scattered"


def test_what_the_step_before_left_in_l2_is_not_read_again():
    x, y = tensor(0, 1 << 20), tensor(1, 1 << 20)
    after = model.estimate(steps(Fill(x, 0.0), Copy(y, x), buffers=(1 << 22, 1 << 22)), [], [], [], H200)
    alone = model.estimate(steps(Copy(y, x), buffers=(1 << 22, 1 << 22)), [], [], [], H200)
    assert after.per_launch[1].total_us < alone.total_us


def test_delegated_products_follow_the_roofline():
    a = tensor(0, 8192, 8192, dtype="float16")
    op = Op("aten.mm.default", (a, a), {}, (tensor(1, 8192, 8192, dtype="float16"),))
    found = model.estimate(steps(op, buffers=(1 << 27, 1 << 27)), [], [], [], H200)
    assert found.bottleneck == "tensor"
    assert 1.0 < found.total_us / (2 * 8192**3 / H200.tensor_flops["float16"] * 1e6) < 2

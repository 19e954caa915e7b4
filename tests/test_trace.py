"""Traces against counts that can be worked out by hand."""

import json
import math
import re

import numpy as np
import pytest

from evo.core.records import Verdict
from fitness.estimate import trace
from fitness.estimate.launch_trace import WINDOW, LaunchTrace
from fitness.frontend.plan import to_json
from fitness.sandbox.jobs import JobError
from tests.traced import COPY, MATMUL, SOFTMAX, SOFTMAX3, TILES, plan_of, tensor, trace_of, traces_of, traffic

MB = 1 << 20


def ops(found: LaunchTrace) -> dict[str, float]:
    """Elements operated on by one program, by class."""
    total: dict[str, float] = {}
    for kind, elements, count in found.ops:
        total[kind] = total.get(kind, 0) + elements * count
    return total


def test_copy_of_a_gigabyte(tmp_path):
    n = 1 << 28
    plan = plan_of("copy", (n // 1024,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    found = trace_of(COPY, plan, tmp_path)
    assert found.programs == n // 1024
    for buffer, kind in ((0, "load"), (1, "store")):
        t = traffic(found, buffer, kind)
        assert t.requested == t.sectors == t.once == t.touched == t.distinct == 4 * n
        assert t.shared == 0
    assert found.accesses == (("load", 1024, 4, 16, 1.0), ("store", 1024, 4, 16, 1.0))
    assert found.rounds == (("masked", "straight", 1.0),)
    assert not found.truncated


def test_tail_of_the_grid_is_masked(tmp_path):
    n = 3 * 1024 + 100
    plan = plan_of("copy", (4,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    t = traffic(trace_of(COPY, plan, tmp_path), 1, "store")
    assert t.requested == t.touched == 4 * n


def test_columns_waste_sectors_that_neighbours_share(tmp_path):
    M = N = 4096
    args = {"x": tensor(0, M, N), "y": tensor(1, M, N), "stride_m": N, "stride_n": 1}
    column = trace_of(TILES, plan_of("tiles", (4, N), {**args, "BM": 1024, "BN": 1}, ("y",)), tmp_path)
    row = trace_of(TILES, plan_of("tiles", (M, 4), {**args, "BM": 1, "BN": 1024}, ("y",)), tmp_path)
    by_column, by_row = traffic(column, 0, "load"), traffic(row, 0, "load")
    assert by_row.sectors == by_row.requested == by_column.requested == 4 * M * N
    assert by_column.sectors == 8 * by_column.requested  # 4 of 32 bytes
    assert by_column.distinct == by_row.distinct == 4 * M * N  # the rest of a sector is another program's
    assert by_column.resident(256, column.programs) < by_column.once / column.programs * 256 / 2
    vectors = {row[:4] for row in column.accesses}
    assert vectors == {("load", 1024, 4, 4), ("store", 1024, 4, 4)}


def test_softmax_operations(tmp_path):
    args = {"x": tensor(0, 512, 8192), "y": tensor(1, 512, 8192), "N": 8192, "BLOCK": 8192}
    found = trace_of(SOFTMAX, plan_of("softmax", (512,), args, ("y",)), tmp_path)
    count = ops(found)
    assert count["exp"] == count["div"] == 8192
    assert count["float"] == 3 * 8192  # the subtraction, and one addition or comparison an element in each reduction
    assert found.reductions == (("reduce", 8192, 1, 2.0),)
    assert found.rounds == (("barrier", "straight", 1.0),)


def test_passes_over_a_row_are_counted_in_traffic_and_not_in_the_footprint(tmp_path):
    args = {"x": tensor(0, 256, 65536), "y": tensor(1, 256, 65536), "N": 65536, "BLOCK": 256}
    found = trace_of(SOFTMAX3, plan_of("softmax3", (256,), args, ("y",)), tmp_path)  # 3 x 256 iterations, extrapolated
    t = traffic(found, 0, "load")
    assert t.requested == pytest.approx(3 * 64 * MB, rel=0.01)
    assert t.distinct == 64 * MB
    assert ops(found)["exp"] == pytest.approx(2 * 65536, rel=0.01)
    assert found.rounds == (("barrier", "loop", 512.0), ("masked", "loop", 256.0))


def test_matmul_flops_and_shared_tiles(tmp_path):
    M = N = K = 4096
    args = {
        "a": tensor(0, M, K, dtype="float16"), "b": tensor(1, K, N, dtype="float16"),
        "c": tensor(2, M, N, dtype="float16"), "M": M, "N": N, "K": K, "BM": 128, "BN": 128, "BK": 64,
    }  # fmt: skip
    found = trace_of(MATMUL, plan_of("matmul", (1024,), args, ("c",)), tmp_path)
    ((m, n, k, dtype, _, _, count),) = found.dots
    assert dtype == "fp16"
    assert 2 * m * n * k * count * found.programs == pytest.approx(2 * M * N * K, rel=1e-6)
    a, b = traffic(found, 0, "load"), traffic(found, 1, "load")
    assert a.requested == b.requested == pytest.approx(1024 * 2 * 128 * K * 2 / 2, rel=1e-6)
    assert a.distinct == pytest.approx(32 * MB, rel=0.5) and b.distinct == pytest.approx(32 * MB, rel=0.5)
    assert a.resident(264, 1024) < a.once / 1024 * 264 / 8  # 32 programs in a row of tiles read the same of a
    assert traffic(found, 2, "store").touched == 32 * MB
    assert found.rounds == (("dot", "loop", 64.0),)


def test_partners_are_what_a_number_cut_off_would_be_the_same_as():
    assert sorted(trace.partners((16384, 1, 1), 3)) == [3 + 8192, 3 + 8192]
    assert sorted(trace.partners((1000, 1, 1), 999)) == [487, 499]
    assert trace.partners((1000, 1, 1), 500) == [0]  # none is 512 away
    assert sorted(trace.partners((8, 4, 1), 8 + 1)) == [8 + 5, 24 + 1, 24 + 1]
    assert trace.partners((1, 1, 1), 0) == []


def test_hints_are_not_checked_on_values_that_are_made_up(tmp_path):
    args = {"x": tensor(0, 1024), "y": tensor(1, 1024), "n": 1024, "BLOCK": 1024}
    hinted = COPY.replace(
        "    tl.store(", "    tl.multiple_of(tl.load(x + 1).to(tl.int32) + 1, values=16)\n    tl.store("
    )
    assert hinted != COPY
    assert not trace_of(hinted, plan_of("copy", (1,), args, ("y",)), tmp_path).truncated


GATHER = """
@triton.jit
def gather(x, index, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + tl.load(index + at)))
"""


def test_indices_steer_addresses(tmp_path):
    n = 1 << 20
    args = {"x": tensor(0, n), "index": tensor(1, n, dtype="int32"), "y": tensor(2, n), "BLOCK": 1024}
    plan = plan_of("gather", (n // 1024,), args, ("y",))
    same = trace_of(GATHER, plan, tmp_path)  # without values: zeros
    order = trace_of(GATHER, plan, tmp_path, integers={1: np.arange(n, dtype=np.int32)})
    shuffled = trace_of(GATHER, plan, tmp_path, integers={1: np.random.default_rng(0).permutation(n).astype(np.int32)})
    assert traffic(same, 0, "load").distinct == 32
    assert traffic(order, 0, "load").sectors == 4 * n
    assert traffic(shuffled, 0, "load").sectors > 7 * 4 * n
    assert traffic(shuffled, 0, "load").distinct == pytest.approx(4 * n, rel=0.35)


def test_index_tensors_with_strides_are_read_in_place(tmp_path):
    index = np.arange(2048, dtype=np.int32).reshape(2, 1024).T  # a transposed view: (1024, 2), strides (1, 1024)
    args = {
        "x": tensor(0, 4096), "index": tensor(1, 1024, 2, dtype="int32", strides=(1, 1024)), "y": tensor(2, 2048),
        "BLOCK": 1024,
    }  # fmt: skip
    found = trace_of(GATHER, plan_of("gather", (2,), args, ("y",)), tmp_path, integers={1: index})
    assert traffic(found, 0, "load").distinct == 4 * 2048


CAUSAL = """
@triton.jit
def causal(x, y, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, row + 1):
        total += tl.exp(tl.load(x + block * BLOCK + at))
    tl.store(y + row * BLOCK + at, total)
"""


def test_work_that_grows_along_the_grid_is_averaged(tmp_path):
    args = {"x": tensor(0, 512, 64), "y": tensor(1, 512, 64), "BLOCK": 64}
    found = trace_of(CAUSAL, plan_of("causal", (512,), args, ("y",)), tmp_path)
    assert ops(found)["exp"] == pytest.approx(64 * 513 / 2, rel=0.02)
    assert found.busiest == pytest.approx(2, rel=0.05)


ROWS_OF_HEADS = """
@triton.jit
def heads(x, y, S, tiles, count, BM: tl.constexpr, D: tl.constexpr):
    for tile in range(tl.program_id(0), count, tl.num_programs(0)):
        rows, d = tile % tiles * BM + tl.arange(0, BM), tl.arange(0, D)
        at = tile // tiles * S * D + rows[:, None] * D + d[None, :]
        tl.store(y + at, tl.load(x + at, mask=(rows < S)[:, None]), mask=(rows < S)[:, None])
"""


def test_all_programs_of_a_small_grid_are_counted_if_some_write_less_and_it_is_unknown_which(tmp_path):
    """Every eleventh tile is cut off: five programs of 33 would show one or two of three."""
    args = {"x": tensor(0, 3, 333, 64), "y": tensor(1, 3, 333, 64), "S": 333, "tiles": 11, "count": 33}
    found = trace_of(ROWS_OF_HEADS, plan_of("heads", (33,), {**args, "BM": 32, "D": 64}, ("y",)), tmp_path, samples=5)
    assert found.sampled == 33 and traffic(found, 1, "store").unrepeated == 3 * 333 * 64 * 4
    # What each program writes is known of a plain copy, though its last block is cut off.
    args = {"x": tensor(0, 8000), "y": tensor(1, 8000), "n": 8000, "BLOCK": 256}
    assert trace_of(COPY, plan_of("copy", (32,), args, ("y",)), tmp_path, samples=5).sampled == 5


def test_a_closer_look_counts_programs_all_over_a_large_grid_if_some_write_less_and_it_is_unknown_which(tmp_path):
    """Every second tile is half empty: five programs show 0.88 of what is written, and would refuse a right kernel."""
    args = {"x": tensor(0, 1651, 48, 64), "y": tensor(1, 1651, 48, 64), "S": 48, "tiles": 2, "count": 3302}
    plan = plan_of("heads", (3302,), {**args, "BM": 32, "D": 64}, ("y",))
    whole = 1651 * 48 * 64 * 4
    few = trace_of(ROWS_OF_HEADS, plan, tmp_path, samples=5)
    assert few.sampled == 5 and traffic(few, 1, "store").unrepeated < 0.9 * whole
    found = trace_of(ROWS_OF_HEADS, plan, tmp_path, samples=5, closer=True)
    assert 200 <= found.sampled <= 264
    assert traffic(found, 1, "store").unrepeated == pytest.approx(whole, rel=0.02)


CHAIN = """
@triton.jit
def chain(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    first = tl.load(x + at)
    second = tl.load(x + BLOCK + at)
    third = tl.load(x + (first + second).to(tl.int32))
    tl.store(y + at, third + 1)
"""


def test_waits_follow_dependences(tmp_path):
    args = {"x": tensor(0, 4096), "y": tensor(1, 1024), "BLOCK": 1024}
    found = trace_of(CHAIN, plan_of("chain", (1,), args, ("y",)), tmp_path)
    assert found.rounds == (("plain", "straight", 2.0),)  # two loads together, then the one that needs both


ATOMIC = """
@triton.jit
def total(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + at), 0))
"""


def test_atomics_on_one_address(tmp_path):
    args = {"x": tensor(0, 1 << 20), "y": tensor(1, 1), "BLOCK": 1024}
    t = traffic(trace_of(ATOMIC, plan_of("total", (1024,), args), tmp_path), 1, "atomic")
    assert (t.requested, t.touched, t.shared) == (4096, 4, 1.0)


REDUCTIONS = """
@triton.jit
def larger(a, i, b, j):
    return tl.where(a > b, a, b), tl.where(a > b, i, j)

@triton.jit
def best(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v, i = tl.reduce((tl.load(x + at), at), 0, larger)
    total = tl.cumsum(tl.load(x + at), 0)
    tl.store(y + at, total + v + i)
"""


def test_custom_reductions_and_scans(tmp_path):
    args = {"x": tensor(0, 1024), "y": tensor(1, 1024), "BLOCK": 1024}
    found = trace_of(REDUCTIONS, plan_of("best", (1,), args, ("y",)), tmp_path)
    assert [row[:3] for row in found.reductions] == [("reduce", 1024, 1), ("scan", 1024, 1024)]


STAGES = """
@triton.jit
def stream(x, y, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for b in tl.range(0, N, BLOCK, num_stages=4):
        total += tl.load(x + b + at)
    tl.store(y + at, total)
"""


def test_pipelined_loops_are_told_apart(tmp_path):
    args = {"x": tensor(0, 1 << 20), "y": tensor(1, 256), "N": 1 << 20, "BLOCK": 256}
    found = trace_of(STAGES, plan_of("stream", (1,), args, ("y",)), tmp_path)
    assert found.rounds == (("plain", "stages 4", 4096.0),)
    assert traffic(found, 0, "load").distinct == 4 * MB


SCALED = """
@triton.jit
def scaled(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for q in range(0, K, BK):
        x, y = tl.load(a + m[:, None] * K + q + k[None, :]), tl.load(b + (q + k)[:, None] * BN + n[None, :])
        acc = PRODUCT
    tl.store(c + m[:, None] * BN + n[None, :], acc.to(tl.bfloat16))
"""


def test_a_scaled_product_is_a_product(tmp_path):
    shapes = {"a": tensor(0, 32, 512, dtype="bfloat16"), "b": tensor(1, 512, 64, dtype="bfloat16")}
    args = {**shapes, "c": tensor(2, 32, 64, dtype="bfloat16"), "K": 512, "BM": 32, "BN": 64, "BK": 128}
    plan = plan_of("scaled", (1,), args, ("c",))
    ways = ("tl.dot(x, y, acc)", 'tl.dot_scaled(x, None, "bf16", y, None, "bf16", acc)')
    plainly, found = (trace_of(SCALED.replace("PRODUCT", way), plan, tmp_path) for way in ways)
    assert found.dots == plainly.dots == ((32, 64, 128, "bf16", "bf16", "tf32", 4.0),)
    assert found.rounds == plainly.rounds == (("dot", "loop", 4.0),)


WASHED = """
@triton.jit
def washed(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    WASH
    tl.store(y + at, v & 7)
"""


@pytest.mark.parametrize(
    "wash",
    [
        "v = v.to(tl.float32, bitcast=True).to(tl.int32, bitcast=True)",
        "v, w = tl.split(tl.join(v, v))",
        "v = tl.gather(v, tl.arange(0, BLOCK), 0)",
    ],
)
def test_loaded_values_stay_loaded_whatever_they_pass_through(tmp_path, wash):
    """Operations on them are no index arithmetic, which the compiler has its ways with."""
    n = 1 << 16
    args = {"x": tensor(0, n, dtype="int32"), "y": tensor(1, n, dtype="int32"), "n": n, "BLOCK": 256}
    plan = plan_of("washed", (n // 256,), args, ("y",))
    of_addresses = [
        [row for row in trace_of(WASHED.replace("WASH", w), plan, tmp_path).ops if row[0].startswith("index")]
        for w in ("pass", wash)
    ]
    assert of_addresses[0] == of_addresses[1] == [("index", 256, 1.0), ("index_product", 1, 1.0)]


@pytest.mark.parametrize("way", ["v.to(tl.int64).to(y.dtype)", "y + v.to(tl.int64) - 1"])
def test_what_is_waited_for_and_made_up_stays_so_as_an_address(tmp_path, way):
    n = 1 << 16
    args = {"x": tensor(0, n, dtype="int32"), "y": tensor(1, n, dtype="int32"), "n": n, "BLOCK": 256}
    source = WASHED.replace("WASH", f"y = {way}; at = 0")
    found = trace_of(source, plan_of("washed", (n // 256,), args, ("y",)), tmp_path)
    assert not found.astray and found.rounds == (("plain", "straight", 1.0),)


CLAMPED = WASHED.replace("WASH", "v = tl.clamp(v.to(tl.float32), 0.0, 6.0, HOW).to(tl.int32)")


def test_a_clamp_is_two_operations_whatever_becomes_of_nan(tmp_path):
    n = 1 << 16
    args = {"x": tensor(0, n, dtype="int32"), "y": tensor(1, n, dtype="int32"), "n": n, "BLOCK": 256}
    plan = plan_of("washed", (n // 256,), args, ("y",))
    ways = (f"tl.PropagateNan.{way}" for way in ("NONE", "ALL"))
    one, other = (trace_of(CLAMPED.replace("HOW", way), plan, tmp_path).ops for way in ways)
    assert one == other and ("float", 256, 2.0) in one


SPIN = """
@triton.jit
def spin(flag, y):
    while tl.load(flag) == 0:
        tl.store(y, 1.0)
"""


def test_a_loop_that_does_not_end_on_zeros_is_cut_off(tmp_path):
    plan = plan_of("spin", (1,), {"flag": tensor(0, 1, dtype="int32"), "y": tensor(1, 1)}, ("y",))
    assert trace_of(SPIN, plan, tmp_path).truncated


LOCKED = """
@triton.jit
def after(lock, y):
    while tl.atomic_cas(lock, 1, 1) != 1:
        pass
    tl.store(y, 1.0)
"""


def test_what_a_program_waits_for_with_compare_and_swap_is_taken_to_have_happened(tmp_path):
    args = {"lock": tensor(0, 1, dtype="int32"), "y": tensor(1, 1)}
    found = trace_of(LOCKED, plan_of("after", (4,), args, ("y",)), tmp_path)
    assert not found.truncated and traffic(found, 1, "store").touched == 4


LAST = """
@triton.jit
def last(count, x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if AT >= tl.num_programs(0) - 1:
        tl.store(y + at, tl.load(x + at))
"""


@pytest.mark.parametrize(("at", "met"), [("tl.atomic_add(count, 1) + 0", True), ("tl.program_id(0)", False)])
def test_branches_on_what_an_atomic_returns_are_told(tmp_path, at, met):
    args = {"count": tensor(0, 1, dtype="int32"), "x": tensor(1, 64), "y": tensor(2, 64), "BLOCK": 64}
    assert trace_of(LAST.replace("AT", at), plan_of("last", (4,), args, ("y",)), tmp_path).met == met


def test_configurations_that_differ_in_options_only_are_traced_once(tmp_path, monkeypatch):
    counted = []
    original = trace.summary
    monkeypatch.setattr(trace, "summary", lambda *args: counted.append(1) or original(*args))
    n = 1 << 20
    args = {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}
    configs = [{}, {}, {"BLOCK": 512, "grid": (n // 512,)}]
    (found,) = traces_of(COPY, plan_of("copy", (n // 1024,), args, ("y",), configs=configs), tmp_path)
    assert len(counted) == 2
    assert found[0] == found[1] != found[2]


def test_same_plan_same_trace_and_json(tmp_path):
    args = {"x": tensor(0, 512, 1000), "y": tensor(1, 512, 1000), "N": 1000, "BLOCK": 1024}
    plan = plan_of("softmax", (512,), args, ("y",))
    first, second = (trace_of(SOFTMAX, plan, tmp_path) for _ in range(2))
    assert first == second
    assert LaunchTrace.from_dict(json.loads(json.dumps(first.to_dict(), allow_nan=False))) == first


def test_an_empty_grid_does_nothing(tmp_path):
    plan = plan_of("copy", (0,), {"x": tensor(0, 8), "y": tensor(1, 8), "n": 0, "BLOCK": 8}, ("y",))
    found = trace_of(COPY, plan, tmp_path)
    assert (found.programs, found.ops, found.traffic) == (0, (), ())


def test_what_the_interpreter_lacks_is_unsupported(tmp_path):
    source = COPY.replace("tl.load(x + at, mask=at < n)", "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', "
                          "[tl.load(x + at, mask=at < n)], dtype=tl.float32, is_pure=True, pack=1)")  # fmt: skip
    plan = plan_of("copy", (1,), {"x": tensor(0, 8), "y": tensor(1, 8), "n": 8, "BLOCK": 8}, ("y",))
    with pytest.raises(JobError, match=re.escape("kernel copy cannot be traced")) as caught:
        trace_of(source, plan, tmp_path)
    assert caught.value.verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (1000, 1, 1), (13, 5, 2), (64, 32, 1)])
def test_places_average_linear_work_exactly(grid):
    weights = trace.places(grid, 8)
    programs = math.prod(grid)
    assert sum(weights.values()) == pytest.approx(1)
    assert {0, programs - 1} <= set(weights)
    assert all(0 <= p < programs for p in weights)
    for axis, value in enumerate((lambda p: p % grid[0], lambda p: p // grid[0] % grid[1])):
        mean = sum(weight * value(p) for p, weight in weights.items())
        assert mean == pytest.approx((grid[axis] - 1) / 2, abs=0.26)  # up to rounding to whole programs


def test_samples_are_near_each_other_and_in_the_grid():
    for programs in (9, 100, 264, 10**6):
        near = trace.window(programs)
        assert near[0] >= 0 and near[-1] < programs and near[-1] - near[0] < WINDOW


def test_plan_of_a_big_launch_takes_no_memory(tmp_path):
    n = 1 << 30  # two buffers of 4 GiB
    plan = plan_of("copy", (n // 4096,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 4096}, ("y",))
    json.dumps(to_json(plan))
    assert traffic(trace_of(COPY, plan, tmp_path), 1, "store").touched == 4 * n

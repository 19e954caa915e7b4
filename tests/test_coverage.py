"""Plans that leave out work at sizes that nothing executes."""

import dataclasses

import pytest

from fitness.estimate.coverage import coverage, seen
from fitness.frontend.plan import Buffer, Copy, LaunchPlan
from tests.traced import COPY, MATMUL, plan_of, tensor, traces_of, traffic


def found(tmp_path, grid, n=1 << 22, source=COPY, case_bytes=None, case_flops=None):
    plan = plan_of("copy", (grid,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    shown = seen(plan, [0], traces_of(source, plan, tmp_path))
    return coverage(plan, shown, plan, None, case_bytes=case_bytes, case_flops=case_flops)


def test_full_coverage_passes(tmp_path):
    assert found(tmp_path, 4096, case_bytes=2 * 4 * (1 << 22)) is None


def test_a_grid_that_is_capped_is_found(tmp_path):
    assert "only about 50% of them" in found(tmp_path, 2048)


def test_programs_that_return_early_are_found(tmp_path):
    lazy = COPY.replace("    tl.store", "    if tl.program_id(0) < 3000:\n        tl.store")
    assert "output 0" in found(tmp_path, 4096, source=lazy)


FLAT = """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    # tiles of 48 blocks, several to a program, in one loop that stores at the end of each tile
    programs, total = tl.num_programs(0), tl.zeros((BLOCK,), tl.float32)
    tiles = (n // BLOCK - tl.program_id(0) + programs - 1) // programs
    for q in range(0, tiles * 48):
        tile = tl.program_id(0) + q // 48 * programs
        total += tl.load(x + (tile * 7 + q % 48) * BLOCK + tl.arange(0, BLOCK))
        if q % 48 == 47 LESS:
            tl.store(y + tile * BLOCK + tl.arange(0, BLOCK), total)
            total = tl.zeros((BLOCK,), tl.float32)
"""


def test_what_a_flattened_loop_stores_now_and_then_counts(tmp_path):
    assert found(tmp_path, 1024, source=FLAT.replace("LESS", "")) is None
    assert "output 0" in found(tmp_path, 1024, source=FLAT.replace("LESS", "and tile % 2 == 0"))


def test_stores_outside_of_all_arrays_are_found(tmp_path):
    n, where = (1 << 22) - 5, "tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)"
    assert where in COPY
    unmasked = COPY.replace(where, "tl.store(y + at, tl.load(x + at, mask=at < n))")
    assert found(tmp_path, 4096, n=n) is None
    assert "outside of all its arrays" in found(tmp_path, 4096, n=n, source=unmasked)
    assert found(tmp_path, 4096, source=unmasked) is None  # there the blocks fill it
    before = COPY.replace(where, where.replace("y + at", "y + at - n"))
    assert "outside of all its arrays" in found(tmp_path, 4096, n=n, source=before)
    atomic = COPY.replace(where, "tl.atomic_add(y + at, tl.load(x + at, mask=at < n))")
    assert "outside of all its arrays" in found(tmp_path, 4096, n=n, source=atomic)


def test_where_addresses_are_made_up_nothing_is_said_of_them(tmp_path):
    """What was loaded reads as zero: that a store to the place before it goes astray says nothing."""
    loaded = COPY.replace("    tl.store(y + at", "    at += tl.load(x + at).to(tl.int32)\n    tl.store(y + at - 1")
    assert loaded != COPY
    assert found(tmp_path, 4096, source=loaded) is None


ROLES = """
@triton.jit
def copy(x, y, z, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid // 2 * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    if pid % 2 == 0 and pid < LAST:
        tl.store(y + at, v)
    if pid % 2 == 1 and pid < LAST:
        tl.store(z + at, v)
"""


@pytest.mark.parametrize(("last", "lazy"), [(8192, False), (4000, True)])
def test_programs_with_roles_are_counted_by_role(tmp_path, last, lazy):
    n, source = 1 << 22, ROLES.replace("LAST", str(last))
    args = {"x": tensor(0, n), "y": tensor(1, n), "z": tensor(2, n), "n": n, "BLOCK": 1024}
    plan = plan_of("copy", (8192,), args, ("y", "z"))
    traces = traces_of(source, plan, tmp_path)
    assert traces[0][0].roles and traces[0][0].sampled > 8
    assert (coverage(plan, seen(plan, [0], traces), plan, None) is not None) == lazy


def test_input_that_is_not_read_is_found(tmp_path):
    constant = COPY.replace("tl.load(x + at, mask=at < n)", "0.0")
    assert found(tmp_path, 4096, source=constant) is None  # nothing is known about what has to be read
    message = found(tmp_path, 4096, source=constant, case_bytes=11 * 4 * (1 << 22))
    assert "read all of the input" in message


def test_outputs_filled_by_other_steps_count(tmp_path):
    x, y = tensor(0, 1024), tensor(1, 1024)
    plan = LaunchPlan((Buffer(4096, 0), Buffer(4096)), (x,), (y,), "tensor", (Copy(y, x),))
    assert coverage(plan, seen(plan, [], []), plan, None) is None
    plan = LaunchPlan((Buffer(4096, 0), Buffer(4096)), (x,), (y,), "tensor", (Copy(tensor(1, 100), tensor(0, 100)),))
    assert "only about 10% of them" in coverage(plan, seen(plan, [], []), plan, None)


def test_programs_that_all_do_the_same_part_are_found(tmp_path):
    same = COPY.replace("tl.program_id(0)", "(tl.program_id(0) % 64)")
    assert same != COPY
    assert "of them; write all of the output" in found(tmp_path, 4096, source=same)


LATER = """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(y + at, v)
    i = 0
    while i < TURNS:
        v = tl.sin(v)
        i += 1
    tl.store(y + at, v, mask=v > 2)
"""


def test_what_comes_after_the_end_of_the_trace_is_not_passed_over(tmp_path):
    """All of the output is written before a loop of which nobody sees the end, and the estimate is of its beginning."""
    n = 1 << 20
    plan = plan_of("copy", (1024,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    of_seed = seen(plan, [0], traces_of(COPY, plan, tmp_path))
    few, many = (seen(plan, [0], traces_of(LATER.replace("TURNS", t), plan, tmp_path)) for t in ("1000", "1000000"))
    assert coverage(plan, few, plan, of_seed) is None
    assert "go on for longer than they are followed" in coverage(plan, many, plan, of_seed)
    assert coverage(plan, many, plan, many) is None


ENDLESS = """
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) % ROWS * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(y + at, v)
    while tl.max(v, 0) == 0.0:
        v += tl.load(x + at)
"""


def test_who_goes_on_without_end_is_asked_for_what_was_seen_of_it(tmp_path):
    n = 1 << 20
    plan = plan_of("copy", (1024,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ("y",))
    of_seed = seen(plan, [0], traces_of(COPY, plan, tmp_path))
    whole, part = (seen(plan, [0], traces_of(ENDLESS.replace("ROWS", r), plan, tmp_path)) for r in ("1024", "512"))
    assert "write all of the output" in coverage(plan, part, plan, of_seed)
    assert "go on for longer than they are followed" in coverage(plan, whole, plan, of_seed)
    for other in (part, None):  # the seed goes on like that too, or nobody knows
        assert coverage(plan, part, plan, other) is None and coverage(plan, whole, plan, other) is None


def test_programs_that_are_far_from_each_other_and_do_the_same_are_found(tmp_path):
    for number in ("tl.program_id(0) % 2048", "tl.program_id(0) % 512", "tl.program_id(0).to(tl.uint8).to(tl.int32)"):
        assert "of them; write all of the output" in found(
            tmp_path, 4096, source=COPY.replace("tl.program_id(0)", f"({number})")
        )


def test_programs_that_do_the_same_beside_all_the_work_are_no_reason(tmp_path):
    for n in (1 << 22, (1 << 22) - 1000):
        assert found(tmp_path, 8192, n=n, source=COPY.replace("tl.program_id(0)", "(tl.program_id(0) % 4096)")) is None
    last = COPY.replace("tl.arange", "0 * n + tl.arange").replace("tl.program_id(0) * BLOCK", "START")
    clamped = last.replace("START", "tl.minimum(tl.program_id(0) * BLOCK, n - BLOCK)")
    for programs in (9, 10, 11, 20, 1000):
        assert found(tmp_path, programs, n=programs * 1024 - 600, source=clamped) is None


def test_where_addresses_are_read_from_memory_programs_seem_to_do_the_same(tmp_path):
    gathered = COPY.replace(
        "    tl.store(", "    at = tl.load(x + at).to(tl.int32) + tl.arange(0, BLOCK)\n    tl.store("
    )
    plan = plan_of("copy", (4096,), {"x": tensor(0, 1 << 22), "y": tensor(1, 1 << 22), "n": 1 << 22, "BLOCK": 1024})
    for source, repeated in ((COPY, False), (gathered, False), (COPY.replace("tl.program_id(0)", "0"), True)):
        t = traffic(traces_of(source, plan, tmp_path)[0][0], 1, "store")
        assert (t.unrepeated < t.touched / 2) is repeated


def test_programs_that_overlap_are_no_reason(tmp_path):
    twice = COPY + "    tl.store(y + at + BLOCK // 2, 0.0, mask=at + BLOCK // 2 < n)\n"
    assert found(tmp_path, 4096, source=twice) is None


def test_products_that_are_left_out_are_found(tmp_path):
    M = N = K = 1024
    args = {
        "a": tensor(0, M, K, dtype="float16"), "b": tensor(1, K, N, dtype="float16"),
        "c": tensor(2, M, N, dtype="float16"), "M": M, "N": N, "K": K, "BM": 128, "BN": 128, "BK": 64,
    }  # fmt: skip

    def said(k):
        plan = plan_of("matmul", (64,), {**args, "K": k}, ("c",))
        shown = seen(plan, [0], traces_of(MATMUL, plan, tmp_path))
        return coverage(plan, shown, plan, None, case_flops=2.0 * M * N * K)

    assert said(K) is None
    assert "takes 2.15e+09 operations" in said(64)


def test_a_plan_returns_what_the_seed_kernel_returns():
    x, y = tensor(0, 1024), tensor(1, 1024)
    seed = LaunchPlan((Buffer(4096, 0), Buffer(4096)), (x,), (y,), "tensor", (Copy(y, x),))
    one = dataclasses.replace(seed, outputs=(tensor(1, 1),))
    assert "output 0 must be float32[1024], got float32[1]" in coverage(one, seen(one, [], []), seed, None)
    half = dataclasses.replace(seed, outputs=(tensor(1, 1024, dtype="float16"),))
    assert "got float16[1024]" in coverage(half, seen(half, [], []), seed, None)
    pair = dataclasses.replace(seed, outputs=(y, x), structure="tuple")
    message = coverage(pair, seen(pair, [], []), seed, None)
    assert message == "the entry must return 'tensor' (1 tensors), got 'tuple' (2 tensors)"


def test_arguments_are_written_to_the_extent_that_the_seed_writes_them(tmp_path):
    n = 1 << 22
    plan = plan_of("copy", (4096,), {"x": tensor(0, n), "y": tensor(1, n), "n": n, "BLOCK": 1024}, ())
    plan = dataclasses.replace(plan, inputs=(tensor(0, n), tensor(1, n)), buffers=(Buffer(4 * n, 0), Buffer(4 * n, 1)))
    whole = seen(plan, [0], traces_of(COPY, plan, tmp_path))
    part = seen(plan, [0], traces_of(COPY.replace("    tl.store", "    if n < 4:\n        tl.store"), plan, tmp_path))
    assert coverage(plan, whole, plan, whole, written=(1,)) is None
    assert coverage(plan, part, plan, None, written=(1,)) is None  # nobody traced the seed
    assert "bytes of argument 1, but" in coverage(plan, part, plan, whole, written=(1,))

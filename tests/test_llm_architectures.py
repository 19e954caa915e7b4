"""What prompts say of an architecture is what the compiler at hand does."""

from __future__ import annotations

import functools
import re

import pytest

from fitness.frontend import compile
from fitness.frontend.compile import job
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef, to_json
from fitness.sandbox.jobs import JobError
from operators.llm.architectures import ARCHITECTURES, HOPPER, arch_facts

SOURCE = """import triton
import triton.language as tl

@triton.jit
def product(a, b, c, K, AK: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, KB: tl.constexpr, PRECISION: tl.constexpr,
            COMPUTED: tl.constexpr, ACC: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, 128), tl.arange(0, KB)
    a += m[:, None] * 4096 + k[None, :] if AK else m[:, None] + k[None, :] * 4096
    b += k[:, None] + n[None, :] * 4096 if BK else k[:, None] * 4096 + n[None, :]
    total = tl.zeros((M, 128), ACC)
    for i in range(0, K):
        x, y = tl.load(a), tl.load(b)
        if COMPUTED == "a":
            x = (x.to(tl.float32) * 2).to(tl.float16)
        if COMPUTED == "b":
            y = (y.to(tl.float32) * 2).to(tl.float16)
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=ACC)
        a += KB if AK else KB * 4096
        b += KB if BK else KB * 4096
    tl.store(c + m[:, None] * 128 + n[None, :], total)

@triton.jit
def promoted(a, b, c, K, STEPS: tl.constexpr):
    m, n, k = tl.arange(0, 64), tl.arange(0, 128), tl.arange(0, 64)
    a += m[:, None] * 4096 + k[None, :]
    b += k[:, None] * 4096 + n[None, :]
    acc = tl.zeros((64, 128), tl.float32)
    for i in range(0, K):
        part = tl.dot(tl.load(a), tl.load(b))
        for _ in tl.static_range(STEPS - 1):
            a += 64
            b += 64 * 4096
            part = tl.dot(tl.load(a), tl.load(b), part)
        acc += part
        a += 64
        b += 64 * 4096
    tl.store(c + m[:, None] * 128 + n[None, :], acc)

@triton.jit
def tiles(a, b, c, K, N, TMA: tl.constexpr, FLAT: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr):
    k = tl.arange(0, 64)
    da = tl.make_tensor_descriptor(a, shape=[N, K], strides=[K, 1], block_shape=[128, 64])
    db = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[128, 64])
    for t in tl.range(tl.program_id(0), N // 128, tl.num_programs(0), flatten=FLAT, warp_specialize=OUTER):
        i = t * 128 + tl.arange(0, 128)
        acc = tl.zeros((128, 128), tl.float32)
        for j in tl.range(0, K, 64, warp_specialize=INNER):
            if TMA:
                x, y = da.load([t * 128, j]), db.load([t * 128, j])
            else:
                x, y = tl.load(a + i[:, None] * K + j + k[None, :]), tl.load(b + i[:, None] * K + j + k[None, :])
            acc = tl.dot(x, y.T, acc)
        tl.store(c + i[:, None] * 128 + tl.arange(0, 128)[None, :], acc)

@triton.jit
def total(x, y, n, STAGES: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    s = tl.zeros((B,), tl.float32)
    if STAGES:
        for k in tl.range(0, n, B, num_stages=STAGES):
            s += tl.load(x + k + i)
    else:
        for k in range(0, n, B):
            s += tl.load(x + k + i)
    tl.store(y + i, s)

@triton.jit
def rows(x, y, stride, B: tl.constexpr):
    i = tl.program_id(0) * stride + tl.arange(0, B)
    mask = tl.arange(0, B) < stride
    tl.store(y + i, tl.load(x + i, mask=mask), mask=mask)

@triton.jit
def turned(x, y, TURN: tl.constexpr):
    i = tl.arange(0, 64)
    v = tl.load(x + i[:, None] * 64 + i[None, :])
    tl.store(y + i[:, None] * 64 + i[None, :], tl.trans(v) if TURN else v)
"""
NUMBERS = {"float16": "float32", "float32": "float32", "int8": "int32"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """`compiled(kernel, args, options)`: the build of a launch, made once."""

    @functools.cache
    def build(kernel, args, options=()):
        folder = tmp_path_factory.mktemp("build")
        plan = LaunchPlan(
            tuple(Buffer(1 << 20) for _ in range(3)), (), (), "none",
            (Launch(kernel, (Config((1, 1, 1), dict(args), dict(options)),)),),
        )  # fmt: skip
        raw = to_json(plan)["steps"][0]["configs"][0]
        launch = {"kernel": kernel, "args": raw["args"], "options": raw["options"]}
        payload = {"source": SOURCE, "constants": {}, "target": "sm_90", "launches": [launch]}
        return job(payload, folder)["builds"][0]

    return build


def tensor(buffer, dtype="float32"):
    return TensorRef(buffer, dtype, (4096,), (1,))


@pytest.fixture
def dot(compiled):
    """`dot(...)`: what the PTX of a product of a (M, K) and a (K, 128) block has."""

    def build(dtype="float16", *, a_k=True, b_k=True, rows=128, warps=8, precision="tf32", computed=""):
        out = NUMBERS[dtype]
        args = {"a": tensor(0, dtype), "b": tensor(1, dtype), "c": tensor(2, out), "K": 64, "AK": a_k, "BK": b_k}
        args |= {"M": rows, "KB": 32 if dtype == "float32" else 64, "PRECISION": precision, "COMPUTED": computed}
        args["ACC"] = {"dtype": "int32" if out == "int32" else "fp32"}
        return compiled("product", Frozen(args), Frozen({"num_warps": warps, "num_stages": 3}))["ptx_features"]

    return build


class Frozen(dict):
    """A dict as a key of a cache."""

    def __hash__(self):
        return hash(repr(sorted(self.items(), key=repr)))


@pytest.mark.parametrize(("steps", "added"), [(1, False), (2, True)])
def test_one_step_is_folded_into_the_accumulator_and_a_sum_of_two_is_not(compiled, monkeypatch, steps, added):
    texts, features = [], compile.ptx_features
    monkeypatch.setattr(compile, "ptx_features", lambda ptx: texts.append(ptx) or features(ptx))
    args = {"a": tensor(0, "float16"), "b": tensor(1, "float16"), "c": tensor(2), "K": 64, "STEPS": steps}
    assert compiled("promoted", Frozen(args), Frozen({"num_warps": 4, "num_stages": 2}))["ptx_features"]["wgmma"]
    assert bool(re.search(r"add(\.rn)?\.f32", texts[-1])) is added


def test_wgmma_needs_64_rows_and_four_warps(dot):
    assert dot()["wgmma"] and not dot()["mma_sync"]
    assert dot(rows=64, warps=4)["wgmma"]
    for few in (dot(rows=32), dot(rows=64, warps=2)):
        assert few["mma_sync"] and not few["wgmma"]


def test_tf32_and_8_bit_operands_want_k_contiguous(dot):
    assert dot(a_k=False, b_k=False)["cp_async"] == dot()["cp_async"]  # 16 bits: either order
    assert dot("float32", b_k=False)["cp_async"] > 2 * dot("float32")["cp_async"]  # copies of 4 bytes
    assert dot("float32", b_k=False)["wgmma"]
    both, one, none = (dot("int8", a_k=a, b_k=b)["cp_async"] for a, b in ((1, 1), (1, 0), (0, 0)))
    assert both > one > none == 0 and dot("int8", a_k=False, b_k=False)["wgmma"]


def test_an_operand_that_is_computed_takes_another_path(dot):
    assert dot(computed="a")["ldmatrix"] and not dot()["ldmatrix"]  # from registers
    assert dot(computed="a")["wgmma"] and dot(computed="b")["wgmma"]
    assert not dot(computed="b")["ldmatrix"]


def test_precision_decides_about_tensor_cores(dot):
    once, three, none = (dot("float32", precision=p)["wgmma"] for p in ("tf32", "tf32x3", "ieee"))
    assert three == 3 * once and none == 0 and dot("float32", precision="ieee")["mma_sync"] == 0


def test_only_the_loop_over_k_with_descriptors_and_four_warps_is_specialized(compiled):
    def tiled(warps=4, options=(), **switches):
        args = {"a": tensor(0, "float16"), "b": tensor(1, "float16"), "c": tensor(2), "K": 4096, "N": 4096}
        args |= {"TMA": True, "FLAT": False, "INNER": False, "OUTER": False, **switches}
        return compiled("tiles", Frozen(args), Frozen({"num_warps": warps, "num_stages": 3, **dict(options)}))

    assert tiled(INNER=True)["num_warps"] == 12
    for unchanged in (tiled(), tiled(FLAT=True), tiled(FLAT=True, OUTER=True), tiled(FLAT=True, TMA=False)):
        assert unchanged["num_warps"] == 4 and unchanged["ptx_features"]["wgmma"]
    assert tiled(8, INNER=True)["num_warps"] == 8
    with pytest.raises(JobError, match="PassManager::run failed"):
        tiled(INNER=True, TMA=False)
    assert tiled(options=(("num_ctas", 2),))["num_warps"] == 4


def test_loops_without_a_product_are_pipelined_by_range_alone(compiled):
    def loop(stages, of_launch):
        args = Frozen({"x": tensor(0), "y": tensor(1), "n": 4096, "STAGES": stages, "B": 1024})
        return compiled("total", args, Frozen({"num_stages": of_launch}))

    assert not loop(0, 3)["ptx_features"]["cp_async"] and not loop(0, 5)["shared_bytes"]
    assert loop(3, 3)["ptx_features"]["cp_async"] and loop(3, 3)["shared_bytes"] == 2 * 4 * 1024


def test_loads_are_wide_where_strides_are_known_to_be_multiples(compiled):
    def width(stride):
        args = Frozen({"x": tensor(0), "y": tensor(1), "stride": stride, "B": 1024})
        return compiled("rows", args)["ptx_features"]["load_bytes"]

    assert (width(768), width(777)) == (16, 4)


def test_another_layout_goes_through_shared_memory(compiled):
    plain, turned = (compiled("turned", Frozen({"x": tensor(0), "y": tensor(1), "TURN": t})) for t in (False, True))
    assert plain["shared_bytes"] == 0 and turned["shared_bytes"] == 4 * 64 * 64
    assert turned["ptx_features"]["barriers"] and not plain["ptx_features"]["barriers"]


def test_each_fact_says_how_it_was_verified_and_unknown_architectures_have_none():
    assert all(fact.text and "\n" not in fact.text and "3.8.0" in fact.source for fact in HOPPER)
    assert arch_facts(90) == HOPPER and arch_facts(80) == () and list(ARCHITECTURES) == [90]

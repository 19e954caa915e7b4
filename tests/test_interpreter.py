"""The mended interpreter: the language's meaning and the device's numerics, kernel by kernel against torch."""

from __future__ import annotations

import textwrap

import pytest
import torch

from fitness.frontend.kernels import load_kernels
from fitness.interpreter.interpreter import Interpreter, programs_of

HEADER = """
import triton
import triton.language as tl
from triton.language import exp as direct_exp, range as direct_range
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

@triton.jit
def pair(a, b, c, d):
    return a + c, tl.maximum(b, d)

@triton.jit
def larger(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r

@triton.jit
def recurrence(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2

@triton.jit
def scaled(v, f: tl.constexpr, act: tl.constexpr = "relu"):
    v = v * f
    if act == "relu":
        v = tl.where(v > 0, v, 0)
    return v

@triton.jit
def kernel(x, y, o, n, s, B: tl.constexpr):
    i = tl.arange(0, B)
    j, k = i[:, None], i[None, :]
"""
N = 64


def execute(scratch, body: str, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int = N) -> torch.Tensor:
    """`out` after the kernel with this body; `n` is an int argument, `s` is 0.5, `B` is 64, `K0` a global 3."""
    source = HEADER + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    kernels = load_kernels(source, {"K0": 3}, scratch)
    args = {"x": x, "y": y, "o": out, "n": n, "s": 0.5, "B": N}
    with Interpreter() as interpreter:
        interpreter.launch(kernels["kernel"], args, (1, 1, 1), programs_of((1, 1, 1)))
    return out


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert got.shape == expected.shape
    scale = max(1.0, expected.double().abs().max().item())
    assert (got.double() - expected.double()).abs().max().item() <= tolerance * scale


FLOATS = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
ASSEMBLY = "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [a], dtype=tl.float32, is_pure=True, pack=1)"
LOAD = "a, b = tl.load(x + i), tl.load(y + i)\n"


@pytest.mark.parametrize(("dtype", "tolerance"), FLOATS, ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("body", "reference"),
    [
        ("tl.store(o + i, a + b * 2)", lambda x, y: x + y * 2),
        ("tl.store(o + i, tl.sum(a, 0) + i)", lambda x, y: x.sum() + torch.arange(N)),
        ("tl.store(o + i, tl.max(a, 0) + b)", lambda x, y: x.max() + y),
        ("tl.store(o + i, tl.where(a > b, a, -b))", lambda x, y: torch.where(x > y, x, -y)),
        ("tl.store(o + i, tl.cumsum(a, 0))", lambda x, y: x.cumsum(0)),
        ("tl.store(o + i, tl.cumsum(a, 0, reverse=True))", lambda x, y: x.flip(0).cumsum(0).flip(0)),
        ("tl.store(o + i, tl.sort(a))", lambda x, y: x.sort()[0]),
        ("tl.store(o + i, tl.abs(a) + tl.maximum(a, b) - tl.minimum(a, 0.5))",
         lambda x, y: x.abs() + torch.maximum(x, y) - x.clamp(max=0.5)),
        ("tl.store(o + i, tl.full((B,), 1.7, a.dtype) * a)", lambda x, y: 1.7 * x),
        ("tl.store(o + i, tl.zeros((B,), a.dtype))\ntl.atomic_add(o + i, a)\ntl.atomic_add(o + i // 2, b)",
         lambda x, y: x + torch.cat([y.reshape(N // 2, 2).sum(1), torch.zeros(N // 2)])),
    ],
)  # fmt: skip
def test_every_float_type(tmp_path, dtype, tolerance, body, reference):
    x, y = randn(N, dtype=dtype), randn(N, dtype=dtype, seed=1)
    got = execute(tmp_path, LOAD + body, x, y, torch.empty(N, dtype=dtype))
    close(got, reference(x.float(), y.float()), tolerance)


DOT = """
a, b = tl.load(x + j * B + k), tl.load(y + j * B + k)
acc = tl.dot(a, b)
acc = tl.dot(a, b, acc, out_dtype=acc.dtype)
tl.store(o + j * B + k, acc)
"""


@pytest.mark.parametrize(
    ("dtype", "out", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-6), (torch.float16, torch.float32, 1e-6),
        (torch.bfloat16, torch.float32, 1e-6),
        (torch.float8_e4m3fn, torch.float32, 1e-6), (torch.int8, torch.int32, 0.0),
    ],
)  # fmt: skip
def test_dot_accumulates_in_float32_or_exactly(tmp_path, dtype, out, tolerance):
    x, y = ((randn(N, N, seed=s) * (40 if dtype == torch.int8 else 1)).to(dtype) for s in (0, 1))
    got = execute(tmp_path, DOT, x, y, torch.empty(N, N, dtype=out))
    close(got, 2 * (x.double() @ y.double()), tolerance)


@pytest.mark.parametrize(("dtype", "step"), [(torch.float16, 16), (torch.float8_e4m3fn, 32)])
def test_a_float16_accumulator_is_rounded_after_every_instruction(tmp_path, dtype, step):
    x, y = (randn(N, N, seed=s).to(dtype) for s in (0, 1))
    body = DOT.replace("tl.dot(a, b)", "tl.dot(a, b, out_dtype=tl.float16)")
    got = execute(tmp_path, body, x, y, torch.empty(N, N, dtype=torch.float16))
    expected = torch.zeros(N, N, dtype=torch.float16)
    for start in 2 * list(range(0, N, step)):
        part = x[:, start : start + step].double() @ y[start : start + step].double()
        expected = (expected.double() + part).half()
    close(got, expected.double(), 1e-4)
    once = (x.double() @ y.double()).half()
    assert not torch.equal(got, (once.double() * 2).half())


def test_float32_sums_keep_float32(tmp_path):
    x = torch.full((N,), 1e-8)
    x[0] = 1.0
    got = execute(tmp_path, "tl.store(o + i, tl.sum(tl.load(x + i).to(tl.float16), 0))", x, x, torch.empty(N))
    assert got[0] == 1.0, "float16 sums are rounded after every step"


@pytest.mark.parametrize(
    ("body", "reference"),
    [
        ("m, w = tl.reduce((a, b), 0, pair)\ntl.store(o + i, m + w)", lambda x, y: (x.sum() + y.max()).expand(N)),
        ("tl.store(o + i, tl.reduce(a, 0, larger))", lambda x, y: x.max().expand(N)),
        ("v, at = tl.max(a, 0, return_indices=True)\ntl.store(o + i, tl.argmin(b, 0) + at * 100 + v)",
         lambda x, y: (y.argmin() + x.argmax() * 100 + x.max()).expand(N)),
        ("tl.store(o + i, tl.max(tl.where(i == 3, float('nan'), a), 0))",
         lambda x, y: torch.cat([x[:3], x[4:]]).max().expand(N)),
        ("t = tl.reshape(a, (8, 8))\ntl.store(o + i, tl.ravel(t - t.sum(1, keep_dims=True) / 8 + tl.sum(t)))",
         lambda x, y: (x.reshape(8, 8) - x.reshape(8, 8).mean(1, keepdim=True) + x.sum()).reshape(-1)),
        ("tl.store(o + i, tl.softmax(a) + tl.flip(b, 0))", lambda x, y: x.softmax(0) + y.flip(0)),
        ("p, q = tl.split(tl.join(tl.trans(tl.reshape(a, (8, 8))), tl.reshape(b, (8, 8))))\n"
         "tl.store(o + i, tl.ravel(p + q.T) + tl.gather(a, i, 0))",
         lambda x, y: x.reshape(8, 8).t().reshape(-1) + y.reshape(8, 8).t().reshape(-1) + x),
    ],
)  # fmt: skip
def test_reductions_and_shapes(tmp_path, body, reference):
    x, y = randn(N), randn(N, seed=1)
    close(execute(tmp_path, LOAD + body, x, y, torch.empty(N)), reference(x, y), 1e-5)


def test_scan_with_a_combine_function(tmp_path):
    x, y = randn(N).sigmoid(), randn(N, seed=1)
    expected, last = torch.empty(N), 0.0
    for t in range(N):
        expected[t] = last = x[t].item() * last + y[t].item()
    body = "h, g = tl.associative_scan((a, b), 0, recurrence)\ntl.store(o + i, g)"
    close(execute(tmp_path, LOAD + body, x, y, torch.empty(N)), expected, 1e-5)


def test_mathematics_and_libdevice(tmp_path):
    body = """
    a = tl.abs(a) + 0.1
    t = tl.exp(a) + tl.exp2(a) + tl.log(a) + tl.log2(a) + tl.sqrt(a) + tl.rsqrt(a) + tl.sin(a) + tl.cos(a) + tl.erf(a)
    t += tl.sigmoid(a) + tl.floor(a) + tl.fma(a, b, a) + tl.div_rn(a, b) + tl.clamp(b, -0.5, 0.5) + direct_exp(a)
    t += libdevice.tanh(a) + cuda_libdevice.exp(a) + libdevice.pow(a, b) + tl.extra.cuda.libdevice.log1p(a)
    tl.store(o + i, t + libdevice.isnan(a).to(tl.float32))
    """
    x, y = randn(N), randn(N, seed=1)
    a = x.abs() + 0.1
    expected = a.exp() * 3 + a.exp2() + a.log() + a.log2() + a.sqrt() + a.rsqrt() + a.sin() + a.cos() + a.erf()
    expected += a.sigmoid() + a.floor() + a * y + a + a / y + y.clamp(-0.5, 0.5) + a.tanh() + a.pow(y) + a.log1p()
    close(execute(tmp_path, LOAD + textwrap.dedent(body), x, y, torch.empty(N)), expected, 1e-5)


def test_integers_wrap_divide_and_shift_as_in_c(tmp_path):
    x = torch.arange(-32, 32, dtype=torch.int32) * 1000003
    body = "a = tl.load(x + i)\ntl.store(o + i, a * 7919 + a // 7 + a % 7 + (a >> 2) + tl.cdiv(n, 3))"
    wide = x.long()
    expected = wide * 7919 + torch.div(wide, 7, rounding_mode="trunc") + torch.fmod(wide, 7) + (wide >> 2) + 22
    expected = ((expected + 2**31) % 2**32 - 2**31).int()
    assert torch.equal(execute(tmp_path, body, x, x, torch.empty(N, dtype=torch.int32)), expected)


def test_loops_conditions_and_helpers_mean_what_they_mean_to_the_compiler(tmp_path):
    body = """
    acc = tl.zeros((B,), tl.float32)
    c = 0
    for t in tl.static_range(3):
        acc += t
    for t in tl.range(0, 4, num_stages=3):
        acc += t.to(tl.float32)
    for t in direct_range(2):
        acc += t
    while c < 5 and n > 0:
        acc += c
        c += 1
    H: tl.constexpr = B // 2
    acc += tl.sum(tl.arange(0, H)) if H == 32 else 0
    m = (a > 0) and (b > 0)
    acc += tl.where(m, 1.0, 0.0) + tl.where(not m, 4.0, 0.0) + max(0.0, b) + scaled(a, K0) + triton.cdiv(n, 2)
    tl.assume(n > 0)
    tl.device_assert(n < 0)
    tl.device_print("quiet", acc)
    if not n == 3 or s < 0:
        acc *= s
    tl.store(o + i, acc)
    """
    x, y = randn(N), randn(N, seed=1)
    m = (x > 0) & (y > 0)
    expected = 3 + 6 + 1 + 10 + 496 + m.float() + 4 * (~m).float() + y.clamp(min=0) + (3 * x).clamp(min=0) + 32
    close(execute(tmp_path, LOAD + textwrap.dedent(body), x, y, torch.empty(N)), expected * 0.5, 1e-6)


STORED = "\ntl.store(o + i, tl.load(x + at))"


@pytest.mark.parametrize(
    "hint",
    [
        "at = tl.multiple_of(n // n * 64, 64) * 0 + i",
        "at = tl.max_contiguous(tl.multiple_of((n // n * B + i) % 64, B), B)",
        "at = tl.multiple_of(8 * i[:, None] + i[None, :], [1, 8]) * 0 + i",
        "at = i + tl.max_constancy(i // 4, 4) * 0",
        "at = i + tl.max_constancy((i < 8)[:, None] & (i < 3)[None, :], [4, 1]).to(tl.int32) * 0 + 0 * i",
        "at = i\nfor t in tl.static_range(1):\n    at += tl.multiple_of(t, 16)",
    ],
)
def test_hints_that_are_true_change_nothing(tmp_path, hint):
    x = randn(N)
    if "[" in hint:
        hint += "\nat = i"
    assert torch.equal(execute(tmp_path, hint + STORED, x, x, torch.empty(N)), x)


@pytest.mark.parametrize(
    "hint",
    [
        "at = tl.multiple_of(n + 8, 16) * 0 + i",
        "at = tl.multiple_of(i + 1, B) * 0 + i",
        "at = i + tl.max_constancy(i // 2, 4) * 0",
        "at = i + tl.max_constancy(i < 62, 4).to(tl.int32) * 0",
    ],
)
def test_hints_that_are_false_are_found(tmp_path, hint):
    with pytest.raises(ValueError, match=r"tl\.m"):
        execute(tmp_path, hint + STORED, randn(N), randn(N), torch.empty(N))


@pytest.mark.parametrize(
    "body",
    [
        """
        p = tl.make_block_ptr(x, (B, n), (n, 1), (0, 0), (B, B), (1, 0))
        q = tl.make_block_ptr(o, (B, n), (n, 1), (0, 0), (B, B), (1, 0))
        for t in range(0, n, B):
            tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
            p, q = tl.advance(p, (0, B)), tl.advance(q, (0, B))
        """,
        """
        d = tl.make_tensor_descriptor(x, shape=[B, n], strides=[n, 1], block_shape=[B, B])
        e = tl.make_tensor_descriptor(o, shape=[B, n], strides=[n, 1], block_shape=[B, B])
        for t in tl.range(0, n, B, flatten=True):
            e.store([0, t], d.load([0, t]) * 2)
        """,
    ],
    ids=["block pointers", "tensor descriptors"],
)
def test_block_pointers_and_descriptors_mask_the_last_tile(tmp_path, body):
    x = randn(N, 100)
    assert torch.equal(execute(tmp_path, body, x, x, torch.full((N, 100), float("nan")), n=100), x * 2)


def test_atomics(tmp_path):
    body = """
    a = tl.load(x + i)
    tl.store(o + i, 0.0)
    tl.atomic_max(o + i % 4, a)
    tl.atomic_min(o + 4 + i % 4, a)
    tl.atomic_add(o + 8, 1.0, mask=n > 0)
    tl.atomic_xchg(o + 9, 5.0)
    tl.atomic_cas(o + 10, 0.0, 7.0)
    tl.atomic_cas(o + 10, 1.0, 9.0)
    """
    x = randn(N)
    groups = x.reshape(-1, 4)
    expected = torch.cat([groups.max(0)[0].clamp(min=0), groups.min(0)[0].clamp(max=0), torch.tensor([1.0, 5.0, 7.0])])
    assert torch.equal(execute(tmp_path, body, x, x, torch.empty(N))[:11], expected)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (ASSEMBLY, "inline_asm"),
        ("libdevice.add_rz(a, b)", "__nv_fadd_rz"),
        ("a = a.to(tl.float8e4b15)", "fp8e4b15"),
        ("if a > b:\n    a = b", "condition on a block"),
    ],
)  # fmt: skip
def test_a_gap_is_an_error(tmp_path, body, part):
    with pytest.raises(NotImplementedError, match=part):
        execute(tmp_path, LOAD + body, randn(N), randn(N), torch.empty(N))


def test_the_language_is_as_before_afterwards(tmp_path):
    import triton.language as tl
    from triton.runtime import interpreter as triton_interpreter
    from triton.runtime.jit import JITFunction

    def state() -> list:
        return [
            *(vars(owner).get(name) for owner in (tl, tl.core) for name in ("load", "range", "reduce", "static_range")),
            *(tl.tensor.__add__, vars(tl.tensor).get("__bool__"), vars(tl.tensor).get("sum")),
            *(JITFunction.__call__, triton_interpreter.interpreter_builder, tl.extra.cuda.libdevice.exp),
        ]

    before = state()
    with pytest.raises(NotImplementedError):
        execute(
            tmp_path, "tl.inline_asm_elementwise('', '=r', [], dtype=tl.float32, is_pure=True, pack=1)", *[randn(N)] * 3
        )
    assert all(a is b for a, b in zip(before, state(), strict=True))


def test_programs_of_a_grid():
    forward = list(programs_of((2, 2, 1)))
    assert forward == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert list(programs_of((2, 2, 1), "reverse")) == forward[::-1]
    assert list(programs_of((0, 2, 1))) == []
    with pytest.raises(ValueError, match="'sideways'"):
        programs_of((1, 1, 1), "sideways")


@pytest.mark.parametrize("beyond", [0, 1, 1 << 28, -1])
@pytest.mark.parametrize(
    "access",
    [
        "tl.store(o + {at}, 1.0, mask=i < {wanted})",
        "tl.store(o + i, tl.load(o + {at}, mask=i < {wanted}, other=0.0))",
        "tl.atomic_add(o + {at}, 1.0, mask=i < {wanted})",
    ],
)
def test_no_access_leaves_the_memory_that_is_given(tmp_path, access: str, beyond: int) -> None:
    """`beyond` the last of 64 numbers (-1: before the first); whatever lies there, mapped or not."""
    memory = torch.zeros(N)
    at, wanted = (f"i + {beyond}", N) if beyond >= 0 else ("i - 1", N)
    source = HEADER + textwrap.indent(access.format(at=at, wanted=wanted), "    ") + "\n"
    kernels = load_kernels(source, {"K0": 3}, tmp_path)
    args = {"x": memory, "y": memory, "o": memory, "n": N, "s": 0.5, "B": N}
    with Interpreter() as interpreter:
        interpreter.builder.memory = memory.data_ptr(), memory.data_ptr() + memory.nbytes
        run = interpreter.launch
        if beyond == 0:
            assert run(kernels["kernel"], args, (1, 1, 1), programs_of((1, 1, 1))) == 1
        else:
            with pytest.raises(IndexError, match="outside of all buffers"):
                run(kernels["kernel"], args, (1, 1, 1), programs_of((1, 1, 1)))


def test_lanes_that_are_masked_may_point_anywhere(tmp_path) -> None:
    memory = torch.zeros(N)
    source = HEADER + "    tl.store(o + i * 100000, 1.0, mask=i < 1)\n"
    kernels = load_kernels(source, {"K0": 3}, tmp_path)
    args = {"x": memory, "y": memory, "o": memory, "n": N, "s": 0.5, "B": N}
    with Interpreter() as interpreter:
        interpreter.builder.memory = memory.data_ptr(), memory.data_ptr() + memory.nbytes
        interpreter.launch(kernels["kernel"], args, (1, 1, 1), programs_of((1, 1, 1)))
    assert memory[0] == 1


def test_a_mask_of_one_element_counts_for_all_lanes_of_an_atomic(tmp_path) -> None:
    body = "m = (tl.arange(0, 1) < n)[:, None]\ntl.atomic_add((o + i)[:, None], tl.load(x + i)[:, None], mask=m)"
    x = randn(N)
    assert torch.equal(execute(tmp_path, body, x, x, torch.zeros(N)), x)

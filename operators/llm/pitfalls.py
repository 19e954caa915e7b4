"""Lists common mistakes in Triton, by version.

Each entry is one sentence for a prompt.  `broken` is the body of a kernel that must not compile, `fixed` of one that
must (`tests/test_llm_pitfalls.py` compiles both); entries about results or speed have none.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, int]


@dataclass(frozen=True)
class Pitfall:
    """`since` and `until`: first and last version of Triton that it is true of, if that is known."""

    text: str
    source: str  # the place that documents it or at which it was seen
    broken: str = ""  # body of a kernel with parameters x, y (float32 pointers), n, B (constexpr)
    fixed: str = ""
    says: str = ""  # what the compiler says to `broken`, a regular expression
    since: Version = (3, 0)
    until: Version = (99, 0)


_LANGUAGE = "https://triton-lang.org/main/python-api/triton.language.html"

PITFALLS = (
    Pitfall(
        "The bounds of `tl.arange` are constexpr and their difference is a power of two: pad the block and mask.",
        _LANGUAGE,
        broken="i = tl.arange(0, 96)\ntl.store(y + i, tl.load(x + i))",
        fixed="i = tl.arange(0, 128)\ntl.store(y + i, tl.load(x + i, mask=i < 96), mask=i < 96)",
        says="power of 2",
    ),
    Pitfall(
        "Every dimension of a block is a power of two: this holds for `tl.zeros` and `tl.full` too.",
        _LANGUAGE,
        broken="i = tl.arange(0, 128)\ntl.store(y + i, tl.load(x + i))\nz = tl.zeros((48,), tl.float32)",
        fixed="i = tl.arange(0, 128)\ntl.store(y + i, tl.load(x + i))\nz = tl.zeros((64,), tl.float32)",
        says="power of 2",
    ),
    Pitfall(
        "Blocks have no subscripts but `None` and `:`: no `x[0]`, no slices. Select with masks and reductions.",
        _LANGUAGE,
        broken="i = tl.arange(0, 128)\nv = tl.load(x + i)\ntl.store(y, v[0])",
        fixed="i = tl.arange(0, 128)\nv = tl.load(x + i)\ntl.store(y, tl.sum(tl.where(i == 0, v, 0.0), axis=0))",
        says="unsupported tensor index",
    ),
    Pitfall(
        "`break` and `continue` do not exist in kernels: put the condition into the loop or into masks.",
        "triton/compiler/code_generator.py: no visit_Break, no visit_Continue",
        broken="for k in range(n):\n    if k > 3:\n        break\n    tl.store(y + k, tl.load(x + k))",
        fixed="for k in range(min(n, 4)):\n    tl.store(y + k, tl.load(x + k))",
        says="Break",
    ),
    Pitfall(
        "A variable keeps its dtype and shape through a loop, also one that is only used inside but has the name of an "
        "earlier one: begin with `tl.zeros(shape, tl.float32)` and cast, and give others new names.",
        "triton/compiler/code_generator.py: loop-carried variables",
        broken="i = tl.arange(0, 128)\ns = tl.zeros((128,), tl.float16)\n"
        "for k in range(n):\n    s = s + tl.load(x + i)\ntl.store(y + i, s)",
        fixed="i = tl.arange(0, 128)\ns = tl.zeros((128,), tl.float32)\n"
        "for k in range(n):\n    s = s + tl.load(x + i)\ntl.store(y + i, s)",
        says="Loop-carried variable",
    ),
    Pitfall(
        "A variable that is first assigned in both branches of an `if` has the same type in both.",
        "triton/compiler/code_generator.py: visit_If",
        broken="if n > 3:\n    v = 1.0\nelse:\n    v = tl.zeros((4,), tl.float32)\ntl.store(y + tl.arange(0, 4), v)",
        fixed="v = tl.zeros((4,), tl.float32)\nif n > 3:\n    v += 1.0\ntl.store(y + tl.arange(0, 4), v)",
        says="Mismatched type",
    ),
    Pitfall(
        "The two blocks of `tl.dot` have the same dtype: cast one of them.",
        _LANGUAGE,
        broken="i = tl.arange(0, 16)\na = tl.load(x + i[:, None] * 16 + i[None, :])\n"
        "tl.store(y + i[:, None] * 16 + i[None, :], tl.dot(a.to(tl.float16), a))",
        fixed="i = tl.arange(0, 16)\na = tl.load(x + i[:, None] * 16 + i[None, :]).to(tl.float16)\n"
        "tl.store(y + i[:, None] * 16 + i[None, :], tl.dot(a, a))",
        says="same dtype",
    ),
    Pitfall(
        "The inner dimension of `tl.dot` is at least 16 (8 for float32, 32 for 8-bit types): pad it by masked loads.",
        "triton/backends/nvidia/compiler.py: min_dot_size",
        broken="i = tl.arange(0, 16)\nk = tl.arange(0, 8)\n"
        "a = tl.load(x + i[:, None] * 8 + k[None, :]).to(tl.float16)\n"
        "tl.store(y + i[:, None] * 16 + i[None, :], tl.dot(a, tl.trans(a)))",
        fixed="i = tl.arange(0, 16)\nk = tl.arange(0, 16)\n"
        "a = tl.load(x + i[:, None] * 8 + k[None, :], mask=k[None, :] < 8, other=0.0).to(tl.float16)\n"
        "tl.store(y + i[:, None] * 16 + i[None, :], tl.dot(a, tl.trans(a)))",
        says=">= 16|at least 16|K >=",
    ),
    Pitfall(
        "There is no `**` on blocks: write `v * v`. There are no chained comparisons: write `(0 < v) & (v < n)`.",
        _LANGUAGE,
        broken="i = tl.arange(0, 16)\ntl.store(y + i, tl.load(x + i) ** 2, mask=0 < i < n)",
        fixed="i = tl.arange(0, 16)\nv = tl.load(x + i)\ntl.store(y + i, v * v, mask=(0 < i) & (i < n))",
        says="__pow__|multiple comparison",
    ),
    Pitfall(
        "No `return` within a loop of a kernel.",
        "triton/compiler/code_generator.py: visit_Return",
        broken="for k in range(n):\n    if k > 3:\n        return\n    tl.store(y + k, tl.load(x + k))",
        fixed="if n < 3:\n    return\nfor k in range(n):\n    tl.store(y + k, tl.load(x + k))",
        says="return",
    ),
    Pitfall(
        "Shapes of blocks are constexpr parameters (`B: tl.constexpr`): a runtime integer cannot size a block.",
        _LANGUAGE,
        broken="i = tl.arange(0, n)\ntl.store(y + i, tl.load(x + i))",
        fixed="i = tl.arange(0, B)\ntl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)",
        says="type tl.constexpr",
    ),
    Pitfall(
        "A kernel returns nothing to the host, and Python lists, dicts and f-strings do not exist in it. Strings are "
        'options only, also as constexpr parameters: `eviction_policy="evict_first"` or `"evict_last"`, for the L1 and '
        'the L2 cache; `cache_modifier` ".ca", ".cg" or ".cv" of loads, ".wb", ".cg", ".cs" or ".wt" of stores. Both '
        'may be given, and "" is neither.',
        _LANGUAGE,
        broken='i = tl.arange(0, 128)\nnames = {"a": 1}\ntl.store(y + i, tl.load(x + i) + names["a"])',
        fixed="i = tl.arange(0, 128)\nv = tl.load(x + i, cache_modifier='.cg', eviction_policy='evict_first')\n"
        "tl.store(y + i, v, cache_modifier='.cs')",
        says="Dict",
    ),
    Pitfall(
        "`tl.exp`, `tl.log`, `tl.sqrt`, `tl.sin` and the like take float32 or float64: cast narrower types first.",
        _LANGUAGE,
        broken="i = tl.arange(0, 128)\nv = tl.load(x + i).to(tl.float16)\ntl.store(y + i, tl.exp(v))",
        fixed="i = tl.arange(0, 128)\nv = tl.load(x + i).to(tl.float16)\ntl.store(y + i, tl.exp(v.to(tl.float32)))",
        says="Expected dtype",
    ),
    Pitfall(
        "There is no `tl.tanh` and no `tl.pow`: write `2 * tl.sigmoid(2 * v) - 1`, `tl.exp2(e * tl.log2(v))`, or use "
        "`triton.language.extra.libdevice`.",
        "triton/language/__init__.py",
        broken="i = tl.arange(0, 128)\ntl.store(y + i, tl.tanh(tl.load(x + i)))",
        fixed="i = tl.arange(0, 128)\ntl.store(y + i, 2 * tl.sigmoid(2 * tl.load(x + i)) - 1)",
        says="tanh",
    ),
    Pitfall(
        "Offsets are 32-bit where `program_id` and arguments are: from 2^31 elements on, cast a factor to `tl.int64`.",
        "docs/programming-guide of Triton: program_id is int32",
    ),
    Pitfall(
        "On float32 `tl.dot` takes its operands as TensorFloat-32 (10 bits after the first) unless "
        '`input_precision="ieee"` is given, which is slower; float16 operands with float32 accumulation are exact in '
        "the products.",
        _LANGUAGE + " (tl.dot, input_precision)",
    ),
    Pitfall(
        "`tl.load` with a mask but without `other` leaves undefined values where the mask is false: give the neutral "
        "element of what follows (0 for sums, -inf for maxima).",
        _LANGUAGE + " (tl.load)",
    ),
)


def pitfalls(version: str) -> list[Pitfall]:
    """Returns the pitfalls that are true of a version of Triton ("3.6.0"); of an unknown one (""), those of all."""
    if not version:
        return [p for p in PITFALLS if (p.since, p.until) == (Pitfall.since, Pitfall.until)]
    major, minor = (int(part) for part in version.split(".")[:2])
    return [p for p in PITFALLS if p.since <= (major, minor) <= p.until]

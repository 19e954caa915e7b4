"""Says what Triton makes of kernels on a GPU architecture: what decides whether its fast instructions are used.

Each fact names how it was verified.  `tests/test_llm_architectures.py` compiles small kernels for those that a compiler
shows, so a version of Triton of which a fact is not true fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArchFact:
    """One or two sentences for a prompt; `source`: how they were verified."""

    text: str
    source: str


_COMPILED = (
    "compiled with Triton 3.8.0 for compute capability 9.0, instructions of the PTX and layouts of the IR counted"
)

HOPPER = (
    ArchFact(
        "`tl.dot` becomes wgmma, the fast form, if its block has at least 64 rows and `num_warps` is a multiple of 4. "
        "Otherwise it becomes mma.sync, which is slower. With few rows, compute the transposed product.",
        _COMPILED,
    ),
    ArchFact(
        "wgmma takes 16-bit operands in either order. TF32 and 8-bit operands must be K-contiguous (K is the dimension "
        "that is summed over). Others are transposed on their way into shared memory: float32 by copies of 4 bytes, "
        "8-bit types through registers, without asynchronous copies.",
        _COMPILED,
    ),
    ArchFact(
        "An operand that is computed before the product (a cast, a scale) leaves the asynchronous path. The left one "
        "then goes to wgmma from registers. The right one is written back to shared memory in each step.",
        _COMPILED,
    ),
    ArchFact(
        '`input_precision="tf32x3"` takes three wgmma for one, and its products are almost those of float32. Three '
        "products of 16-bit parts (high times high, high times low, low times high) cost half of that: two float16 "
        "parts hold 22 bits, within float16's range (scale first); two bfloat16 parts hold 16 bits, in any range. "
        '`"ieee"` takes no tensor cores at all.',
        _COMPILED,
    ),
    ArchFact(
        "`num_stages` of a launch pipelines only loops with `tl.dot`. Other loops are pipelined by "
        "`for k in tl.range(first, end, step, num_stages=3)`, and only then are their loads asynchronous copies. Each "
        "stage takes the shared memory of its blocks.",
        _COMPILED,
    ),
    ArchFact(
        "A thread reads or writes 16 bytes at once only if the compiler knows that addresses and masks allow it: "
        "offsets are contiguous, and strides and sizes are multiples of 16 (a constexpr, or an argument that is "
        "divisible by 16 in the launch).",
        _COMPILED + " (loads of rows with known and unknown strides)",
    ),
    ArchFact(
        "A block that needs another layout (`tl.trans`, the result of `tl.dot` before it is stored, a cast operand) is "
        "moved through shared memory, with a barrier. Keep that out of loops.",
        _COMPILED + " (ttg.convert_layout)",
    ),
    ArchFact(
        "Tensor descriptors (TMA): the base is 16-byte aligned, the last stride is 1, the others are multiples of 16 "
        "bytes. `d = tl.make_tensor_descriptor(p, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])`, then "
        "`d.load([m, k])` and `d.store([m, k], block)`; beyond the shape zeros are read and nothing is written.",
        "triton/language/core.py of Triton 3.8.0: make_tensor_descriptor",
    ),
    ArchFact(
        "`tl.range(..., warp_specialize=True)` works on the loop over K alone, with loads by descriptors and "
        "`num_warps=4`: other warps then load (384 threads a program). With 8 warps, or on the loop over tiles, it "
        "changes nothing; with loads by pointers it does not compile. `tl.range(..., flatten=True)` on the loop over "
        "tiles compiles with both. `num_ctas=2` compiles, without multicast.",
        _COMPILED + ", with Triton 3.6.0 too",
    ),
    ArchFact(
        "Tensor cores truncate where they add, so one accumulator over thousands of products loses digits that float32 "
        "has. For a tolerance near float32's, add partial sums outside: some steps of `t = tl.dot(a, b, t)` from zero, "
        "then `acc += t`. One step alone, `acc += tl.dot(a, b)`, is folded into the accumulator.",
        "Fasi, Higham, Mikaitis, Pranesh 2021, Numerical behavior of NVIDIA tensor cores (PeerJ Computer Science 7); "
        + _COMPILED,
    ),
)

# By compute capability times ten.  Others are added here, with their tests.
ARCHITECTURES: Mapping[int, Sequence[ArchFact]] = {90: HOPPER}


def arch_facts(arch: int) -> Sequence[ArchFact]:
    """Returns what is known of an architecture (compute capability times ten), () for one that is not listed."""
    return ARCHITECTURES.get(arch, ())

import ast

import pytest

from fitness.tasks.task import task_names
from operators.genes import COMPUTED, get_genes, set_genes
from operators.source import parse
from tests.operators_sources import COLUMN_SUM, FLAT_TILES, HEADER, IN_PLACE, ODD_SOURCES, SOURCES
from tests.operators_tasks import seed

ALL = {**{n: seed(n) for n in task_names()}, **{n: s for n, (_, s, _) in SOURCES.items()}}


def values(source: str) -> dict[str, int]:
    return {g.name: g.value for g in get_genes(source)}


def test_literals_variables_and_missing_options() -> None:
    assert values(FLAT_TILES) == {
        "outer_kernel.BLOCK_M": 8,
        "outer_kernel.BLOCK_N": 16,
        "outer_kernel.num_warps": 4,
    }
    assert values(COLUMN_SUM)["column_sum_kernel.BLOCK"] == 16


def test_a_variable_changes_where_it_is_set() -> None:
    new = set_genes(FLAT_TILES, {"outer_kernel.BLOCK_M": 64})
    assert new == FLAT_TILES.replace("BLOCK_M = 8", "BLOCK_M = 64")


def test_a_literal_and_its_copy_in_the_grid_change_together() -> None:
    new = set_genes(IN_PLACE, {"scale_kernel.BLOCK": 128})
    assert new == IN_PLACE.replace("triton.cdiv(n, 32)", "triton.cdiv(n, 128)").replace("BLOCK=32", "BLOCK=128")


def test_a_literal_of_the_grid_that_could_belong_to_two_parameters_is_no_gene() -> None:
    source = HEADER + (
        "@triton.jit\ndef k(x_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):\n"
        "    for i in range(2):\n        pass\n\n"
        "def f(x):\n    k[(triton.cdiv(x.shape[0], 32), 1)](x, BLOCK_M=32, BLOCK_N=32, num_warps=4, num_stages=2)\n"
    )
    assert set(values(source)) == {"k.num_warps", "k.num_stages"}


def test_a_missing_option_is_added_and_only_when_it_is_not_the_default() -> None:
    assert set_genes(FLAT_TILES, {"outer_kernel.num_warps": 4}) == FLAT_TILES
    new = set_genes(COLUMN_SUM, {"column_sum_kernel.num_warps": 8, "column_sum_kernel.num_stages": 2})
    assert "BLOCK=BLOCK, num_warps=8, num_stages=2)" in new
    assert values(new)["column_sum_kernel.num_warps"] == 8


def test_only_a_kernel_with_a_loop_has_stages() -> None:
    assert "outer_kernel.num_stages" not in values(FLAT_TILES)
    assert "outer_kernel.num_stages" not in values(FLAT_TILES.replace("BLOCK_N=16", "BLOCK_N=16, num_stages=2"))
    helper = "@triton.jit\ndef helper(x_ptr):\n    for i in range(4):\n        tl.store(x_ptr + i, 0.0)\n\n\n"
    kernel = "@triton.jit\ndef k(x_ptr):\n    helper(x_ptr)\n\n\ndef f(x):\n    k[(1,)](x)\n"
    assert values(HEADER + helper + kernel) == {"k.num_warps": 4, "k.num_stages": 3}


def test_a_trailing_comma_and_line_breaks_stay() -> None:
    source = seed("matmul").replace("        num_stages=1,\n", "")
    new = set_genes(source, {"matmul_kernel.num_stages": 4})
    assert "num_warps=8, num_stages=4,\n    )" in new
    ast.parse(new)


def test_expressions_flags_and_sizes_are_no_genes() -> None:
    assert not [n for n in values(seed("rotary")) if "BLOCK" in n or "HALF" in n]
    source = HEADER + (
        "@triton.jit\ndef k(x_ptr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, ORDER: tl.constexpr):\n"
        "    d = tl.arange(0, HEAD_DIM) + tl.arange(0, ORDER)\n\n"
        "def f(x):\n    k[(1,)](x, CAUSAL=1, HEAD_DIM=64, ORDER=4)\n"
    )
    assert set(values(source)) == {"k.num_warps"}


def test_entries_of_autotune_and_options_of_loops() -> None:
    source = HEADER + (
        '@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})], key=[])\n'
        "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n"
        "    for i in tl.range(0, n, BLOCK, num_stages=3):\n        pass\n\n"
        'def f(x):\n    k[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](x, 4)\n'
    )
    given = {"k.config0.BLOCK": 64, "k.config0.num_warps": 2, "k.config1.BLOCK": 128, "k.range0.num_stages": 3}
    missing = {"k.config0.num_stages": 3, "k.config1.num_stages": 3, "k.config1.num_warps": 4}
    assert values(source) == given | missing
    assert '{"BLOCK": 256}' in set_genes(source, {"k.config1.BLOCK": 256})
    assert '{"BLOCK": 128}, num_warps=8)' in set_genes(source, {"k.config1.num_warps": 8})


COMPUTED_BLOCK = (
    HEADER
    + """@triton.jit
def k(x_ptr, n, BLOCK: tl.constexpr, LANES: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for i in range(2):
        tl.store(x_ptr + offsets, 1.0, mask=offsets < n)


class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n = x.numel()
        BLOCK = min(64, triton.next_power_of_2(n))
        if n > 4096:
            BLOCK = BLOCK * 2
        num_warps = 4 if BLOCK < 64 else 8
        LANES = triton.next_power_of_2(n)
        k[(triton.cdiv(n, BLOCK),)](x, n, BLOCK, LANES, num_warps=num_warps)
        return x
"""
)


def test_what_the_host_computes_is_a_gene_until_it_is_a_number() -> None:
    assert values(COMPUTED_BLOCK) == {"k.BLOCK": COMPUTED, "k.num_warps": COMPUTED, "k.num_stages": 3}
    block = next(g for g in get_genes(COMPUTED_BLOCK) if g.name == "k.BLOCK")
    assert block.values == (COMPUTED, 8, 16, 32, 64, 128, 256, 512)  # around the 64 of its expression
    new = set_genes(COMPUTED_BLOCK, {"k.BLOCK": 256, "k.num_warps": 2})
    settled = "            BLOCK = BLOCK * 2\n        BLOCK = 256\n"
    assert new == COMPUTED_BLOCK.replace("            BLOCK = BLOCK * 2\n", settled).replace("=num_warps)", "=2)")
    assert values(new) == {"k.BLOCK": 256, "k.num_warps": 2, "k.num_stages": 3}
    assert set_genes(new, {"k.BLOCK": 32}) == new.replace("BLOCK = 256", "BLOCK = 32")


def test_a_block_that_is_used_before_its_last_value_is_no_gene() -> None:
    used = COMPUTED_BLOCK.replace("        if n >", "        programs = triton.cdiv(n, BLOCK)\n        if n >")
    assert set(values(used)) == {"k.num_warps", "k.num_stages"}


def test_a_block_that_a_caller_gives_is_set_where_the_host_begins() -> None:
    source = IN_PLACE.replace("scale(x, factor):", "scale(x, factor, BLOCK):").replace("=32", "=BLOCK")
    source = source.replace("cdiv(n, 32)", "cdiv(n, BLOCK)")
    assert values(source)["scale_kernel.BLOCK"] == COMPUTED
    new = set_genes(source, {"scale_kernel.BLOCK": 128})
    assert "def scale(x, factor, BLOCK):\n    BLOCK = 128\n    n = x.numel()\n" in new


def test_a_default_that_callers_may_override_is_set_in_the_body() -> None:
    source = IN_PLACE.replace("BLOCK=32, num", "BLOCK=BLOCK, num").replace("num_warps=2", "num_warps=warps")
    source = source.replace("scale(x, factor):", "scale(x, factor, BLOCK=32, warps=2):")
    source = source.replace("cdiv(n, 32)", "cdiv(n, BLOCK)")
    assert values(source) == {"scale_kernel.BLOCK": 32, "scale_kernel.num_warps": 2}
    new = set_genes(source, {"scale_kernel.BLOCK": 128, "scale_kernel.num_warps": 8})
    assert "BLOCK=32, warps=2):\n    BLOCK = 128\n" in new and "num_warps=8)" in new
    assert values(new) == {"scale_kernel.BLOCK": 128, "scale_kernel.num_warps": 8}


def test_numbers_to_compute_with_are_no_genes() -> None:
    source = HEADER + (
        "@triton.jit\ndef k(x_ptr, BIAS: tl.constexpr, TURNS: tl.constexpr):\n"
        "    for i in range(TURNS):\n        tl.store(x_ptr + i, BIAS)\n\n\n"
        "def f(x):\n    k[(1,)](x, BIAS=4, TURNS=8, num_ctas=2)\n"
    )
    assert values(source) == {"k.TURNS": 8, "k.num_warps": 4, "k.num_stages": 3}


def test_a_name_that_stands_for_a_name_and_configurations_made_by_a_function() -> None:
    source = FLAT_TILES.replace("    BLOCK_M = 8\n", "    SIZE = 8\n    BLOCK_M = SIZE\n")
    assert set_genes(source, {"outer_kernel.BLOCK_M": 64}) == source.replace("SIZE = 8", "SIZE = 64")
    source = HEADER + (
        'def configs():\n    return [triton.Config({"BLOCK": 64}, num_warps=2)]\n\n\n'
        "@triton.autotune(configs=configs(), key=[])\n@triton.jit\ndef k(x_ptr, BLOCK: tl.constexpr):\n    pass\n"
    )
    assert values(source) == {"k.config0.BLOCK": 64, "k.config0.num_warps": 2}


def test_two_launches_of_a_kernel_have_their_own_genes() -> None:
    source = IN_PLACE.replace("    return x\n", "    scale_kernel[(1,)](x, n, factor, BLOCK=64)\n    return x\n")
    assert values(source)["scale_kernel@2.BLOCK"] == 64
    assert values(source)["scale_kernel.BLOCK"] == 32


@pytest.mark.parametrize("name", sorted(ALL))
def test_round_trip(name: str) -> None:
    source = ALL[name]
    genes = get_genes(source)
    assert genes
    assert set_genes(source, {g.name: g.value for g in genes}) == source
    for gene in genes:
        assert gene.value in gene.values and tuple(sorted(gene.values)) == gene.values
        other = next(v for v in gene.values if v != gene.value)
        changed = set_genes(source, {gene.name: other})
        now = values(changed)
        assert now[gene.name] == other
        assert {n: v for n, v in now.items() if n != gene.name} == {g.name: g.value for g in genes if g is not gene}
        option = gene.name.rpartition(".")[2]
        if changed.count(option) == source.count(option):  # no keyword was added: back to the very same text
            assert set_genes(changed, {gene.name: gene.value}) == source


def test_genes_can_be_set_however_many_sources_were_seen_in_between() -> None:
    get_genes(IN_PLACE)
    for number in range(300):  # more than any cache of parsed sources holds
        parse(f"x = {number}\n")
    assert "num_warps=16" in set_genes(IN_PLACE, {"scale_kernel.num_warps": 16})


def test_a_hundred_launches_are_looked_at() -> None:
    kernel = "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)\n\n"
    launches = "".join(f"    k[(x.numel() // 64, {i})](x, {i}, BLOCK=32)\n" for i in range(100))
    found = values(HEADER + kernel + "def f(x):\n" + launches)
    assert sum(name.endswith(".num_warps") for name in found) == sum(name.endswith(".BLOCK") for name in found) == 100


def test_misuse_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no gene 'BLOCK'.*scale_kernel.BLOCK"):
        set_genes(IN_PLACE, {"BLOCK": 4})
    with pytest.raises(ValueError, match="positive integer"):
        set_genes(IN_PLACE, {"scale_kernel.BLOCK": 0})


@pytest.mark.parametrize("name", sorted(ODD_SOURCES))
def test_odd_sources(name: str) -> None:
    source = ODD_SOURCES[name]
    assert set_genes(source, {g.name: g.value for g in get_genes(source)}) == source


HEADED = '''# Licence


"""A kernel."""
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):  # doubles
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def double(x):
    y = torch.empty_like(x)

    kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64, num_warps=4)  # blocks of 64
    return y
# the end'''


@pytest.mark.parametrize("end", ["", "\n", "\n\n# after it\n"])
def test_only_what_changes_is_made_anew(end: str) -> None:
    source = HEADED + end
    warps = next(g.name for g in get_genes(source) if g.name.endswith("num_warps"))
    assert set_genes(source, {warps: 8}) == source.replace("num_warps=4", "num_warps=8")
    assert set_genes(source, {warps: 4}) == source

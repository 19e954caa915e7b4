"""Every rewrite, on built-in seeds and small kernels: the child computes what the parent computes, and compiles."""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fitness.frontend.gate import gate
from fitness.tasks.task import task_names
from operators.base import Context, Parent
from operators.genes import get_genes
from operators.rewrite import REWRITES, RewriteOperator
from operators.rewrites.configs import inlined
from tests.operators_sources import (
    EARLY_RETURN,
    FLAT_TILES,
    HEADER,
    IN_PLACE,
    ONE_PASS_SOFTMAX,
    OVER_LAUNCHED,
    REMAINING,
    ROWS_IN_PLACE,
    ROWS_OF_PLANES,
    SOURCES,
    TILES_OF_ROWS,
    TUNED,
    TWO_LAUNCHES,
)
from tests.operators_tasks import seed

ROOT = Path(__file__).parent.parent
ENTRIES = {n: n for n in task_names()} | {n: e for n, (e, _, _) in SOURCES.items()}
PARENTS = {n: seed(n) for n in task_names()} | {n: s for n, (_, s, _) in SOURCES.items()}


def children(source: str, rng_seed: int = 0) -> dict[str, str]:
    made = {n: r.apply(source, random.Random(rng_seed)) for n, r in REWRITES.items()}
    return {n: s for n, s in made.items() if s is not None}


@pytest.fixture(scope="module")
def families() -> dict[str, dict[str, str]]:
    return {name: children(source) for name, source in PARENTS.items()}


def run(groups: dict[str, object], interpret: bool) -> dict[str, str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
    command = [sys.executable, "-m", "tests.rewrite_run"]
    done = subprocess.run(
        command, input=json.dumps(groups), capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def group(name: str, made: dict[str, str], inputs: object) -> dict[str, object]:
    return {"entry": ENTRIES[name], "parent": PARENTS[name], "inputs": inputs, "children": made}


def odd_inputs(name: str) -> object:
    return {"task": name, "case": "odd"} if name in task_names() else SOURCES[name][2][0]


def test_every_rewrite_applies_somewhere(families: dict[str, dict[str, str]]) -> None:
    assert {n for made in families.values() for n in made} == set(REWRITES)


def test_children_compute_what_their_parents_compute(families: dict[str, dict[str, str]]) -> None:
    groups = {f"{n}@odd": group(n, made, odd_inputs(n)) for n, made in families.items()}
    groups |= {f"{n}@even": group(n, families[n], sizes[1]) for n, (_, _, sizes) in SOURCES.items()}
    results = run(groups, interpret=True)
    assert len(results) == sum(len(g["children"]) for g in groups.values())  # type: ignore[misc,arg-type]
    assert {k: v for k, v in results.items() if v != "ok"} == {}


def test_chains_of_rewrites_compute_what_their_ancestor_computes() -> None:
    groups = {}
    for name in ("softmax", "matmul", "layer_norm", "gemv_batched", "one_pass_layer_norm"):
        made = {}
        for number in range(3):
            source, rng = PARENTS[name], random.Random(number)
            for _ in range(4):
                draft = RewriteOperator()([Parent(0, source, 1.0)], Context(rng))
                assert draft is not None
                source = draft.source
            made[str(number)] = source
        groups[name] = group(name, made, odd_inputs(name))
    assert set(run(groups, interpret=True).values()) == {"ok"}


def test_a_wrong_child_is_noticed() -> None:
    source = PARENTS["softmax"]
    wrong = {"value": source.replace("/ total", "/ (total * 1.0001)"), "error": source.replace("total = 0.0\n", "\n")}
    results = run({"softmax": group("softmax", wrong, odd_inputs("softmax"))}, interpret=True)
    assert "elements differ" in results["softmax/value"] and "Error" in results["softmax/error"]


def test_each_rewrite_compiles_for_the_target(families: dict[str, dict[str, str]]) -> None:
    """Types that only the compiler checks: loop-carried values, pointers, constexprs."""
    left = set(REWRITES)
    groups = {}
    small_first = (
        "vector_sin",
        "over_launched",
        "rows_in_place",
        "rows_of_planes",
        "column_sum",
        "one_pass_softmax",
        "one_pass_layer_norm",
        "flat_tiles",
        "early_return",
        "tuned",
        "softmax",
        "matmul",
    )
    for name in small_first:
        made = {n: s for n, s in families[name].items() if n in left}
        left -= set(made)
        groups[name] = group(name, made, odd_inputs(name))
    assert not left
    assert {k: v for k, v in run(groups, interpret=False).items() if v != "ok"} == {}


def test_children_pass_the_gate(families: dict[str, dict[str, str]]) -> None:
    for name in task_names():
        for rewrite, source in families[name].items():
            assert gate(source, entry=name, allow_delegation=False) == [], f"{name}/{rewrite}"


# --- preconditions ---------------------------------------------------------------------------------------------------


def applies(rewrite: str, source: str) -> bool:
    return any(REWRITES[rewrite].apply(source, random.Random(n)) is not None for n in range(3))


def refused(rewrite: str, source: str, *changes: tuple[str, str]) -> None:
    """After each of the changes (old text, new text) alone."""
    for old, new in changes:
        assert old in source
        assert not applies(rewrite, source.replace(old, new)), new


def test_kernels_that_update_memory_are_not_autotuned_nor_streamed() -> None:
    assert applies("add_autotune", seed("vector_sin")) and not applies("add_autotune", IN_PLACE)
    atomic = seed("vector_sin").replace("tl.store(y_ptr + offsets, tl.sin(x), mask=mask)", "tl.atomic_add(y_ptr, x)")
    assert not applies("add_autotune", atomic)
    in_place = ONE_PASS_SOFTMAX.replace("y_row = y_ptr", "y_row = x_ptr")
    assert applies("stream_reduction", ONE_PASS_SOFTMAX) and not applies("stream_reduction", in_place)


def test_a_row_is_streamed_only_where_the_block_covers_it_and_every_access_is_masked() -> None:
    refused(
        "stream_reduction",
        ONE_PASS_SOFTMAX,
        ("triton.next_power_of_2(n)", "triton.next_power_of_2(n) // 2"),
        ("y_row + offsets, e / tl.sum(e, axis=0), mask=mask", "y_row + offsets, e / tl.sum(e, axis=0)"),
        ("mask = offsets < n", "mask = offsets < BLOCK"),
        ("tl.max(x, axis=0)", "tl.argmax(x, axis=0)"),
    )


def test_a_row_is_taken_whole_only_where_masks_end_with_the_loop() -> None:
    source = seed("cross_entropy")
    assert applies("whole_row", source)
    assert not applies("whole_row", source.replace("mask=start + columns < n_classes", "mask=start + columns < limit"))
    assert not applies("whole_row", source.replace("logits_row + target)", "logits_row + columns)"))
    assert not applies("whole_row", seed("matmul"))


def test_the_sum_must_start_at_zero_for_one_pass() -> None:
    assert applies("online_softmax", seed("softmax"))
    assert not applies("online_softmax", seed("softmax").replace("total = 0.0", "total = 1.0"))
    assert not applies("online_softmax", seed("softmax").replace("tl.exp(x - largest), axis", "tl.exp(x), axis"))


def test_masks_go_only_where_the_grid_covers_whole_blocks() -> None:
    source = seed("vector_sin")
    assert applies("even_masks", source)
    assert not applies("even_masks", source.replace("triton.cdiv(n, BLOCK_SIZE)", "triton.cdiv(n, 4) + 1"))
    assert not applies("even_masks", source.replace("offsets < n", "offsets < n - 1"))


def test_masks_of_what_is_left_go_where_a_loop_counts_the_blocks() -> None:
    made = REWRITES["even_masks"].apply(REMAINING, random.Random(0))
    assert made is not None and 'args["k"] % args["BLOCK_K"] == 0' in made
    plain = made.partition("if EVEN:\n")[2].partition("else:")[0]
    assert "tl.load(a_ptr" in plain and "mask" not in plain
    count = "range(0, tl.cdiv(k, BLOCK_K))"
    named = REMAINING.replace(count, "range(0, blocks)")
    named = named.replace("    total = tl.zeros", "    blocks = tl.cdiv(k, BLOCK_K)\n    total = tl.zeros")
    for same in (REMAINING.replace(count, "range(tl.cdiv(k, BLOCK_K))"), named):
        assert same != REMAINING and 'args["k"] %' in str(REWRITES["even_masks"].apply(same, random.Random(0)))
    for old, new in (
        (count, "range(1, tl.cdiv(k, BLOCK_K))"),
        (count, "range(0, tl.cdiv(k, BLOCK))"),
        (count, "range(0, tl.cdiv(k, BLOCK_K), 2)"),
        ("k - step * BLOCK_K", "k - step * BLOCK"),
        ("k - step * BLOCK_K", "k - 1 - step * BLOCK_K"),
        ("k - step * BLOCK_K", "m - step * BLOCK_K"),
        ("        total +=", "        step = step + 1\n        total +="),
        ("    total =", "    k = k + 1\n    total ="),
    ):
        assert old in REMAINING
        other = REWRITES["even_masks"].apply(REMAINING.replace(old, new), random.Random(0))
        assert other is None or 'args["k"] %' not in other, (old, new)


def test_only_an_early_return_of_the_whole_body_becomes_a_condition_in_a_loop() -> None:
    source = seed("vector_sin")
    assert applies("persistent", source) and applies("tiles_per_program", source)
    inner = EARLY_RETURN.replace("        return\n", "        if n > 4:\n            return\n")
    value = EARLY_RETURN.replace("        return\n", "        return 1\n")
    for rewrite in ("persistent", "tiles_per_program"):
        assert not applies(rewrite, inner) and not applies(rewrite, value)
        made = REWRITES[rewrite].apply(EARLY_RETURN, random.Random(0))
        assert made is not None and "return\n" not in made.partition("def head(")[0]
        assert "        if not (start >= kept):\n            offsets = start" in made


def test_a_grid_that_is_a_function_is_written_out_with_what_the_launch_gives() -> None:
    for rewrite in ("persistent", "tiles_per_program"):
        made = REWRITES[rewrite].apply(FLAT_TILES, random.Random(0))
        assert made is not None and "tiles_0 = triton.cdiv(M, BLOCK_M) * triton.cdiv(N, 16)\n" in made
        assert not applies(rewrite, FLAT_TILES.replace('meta["BLOCK_N"]', 'meta["OTHER"]'))
        assert not applies(rewrite, FLAT_TILES.replace('meta["BLOCK_N"]', "len(meta)"))


def test_a_grid_that_each_launch_assigns_anew_is_what_it_is_there() -> None:
    source = IN_PLACE.replace(
        "    scale_kernel[(triton.cdiv(n, 32),)]", "    grid = (triton.cdiv(n, 32),)\n    scale_kernel[grid]"
    )
    again = source.replace("    return x\n", "    grid = (1,)\n    return x\n")
    assert applies("tiles_per_program", source) and applies("tiles_per_program", again)
    unsure = again.replace("    scale_kernel[", "    if n < 8:\n        grid = (2,)\n    scale_kernel[")
    assert not applies("tiles_per_program", unsure)


def test_new_configurations_differ_in_what_the_list_varies_already() -> None:
    for number in range(5):
        made = REWRITES["more_configs"].apply(TUNED, random.Random(number))
        assert made is not None
        genes = {g.name: g.value for g in get_genes(made)}
        configs = {n.split(".")[1] for n in genes if ".config" in n}
        assert len(configs) == 6 and {genes[f"halve_kernel.{c}.BLOCK"] for c in configs} <= {16, 32, 64, 128}
        settings = {(genes[f"halve_kernel.{c}.BLOCK"], genes[f"halve_kernel.{c}.num_warps"]) for c in configs}
        assert len(settings) == 6
        fixed = REWRITES["more_configs"].apply(TUNED.replace('"BLOCK": 32', '"BLOCK": 64'), random.Random(number))
        assert fixed is not None and {g.value for g in get_genes(fixed) if g.name.endswith("BLOCK")} == {64}
    assert not applies("more_configs", seed("softmax"))


def test_programs_are_renumbered_once() -> None:
    for rewrite, source in (("swizzle", seed("matmul")), ("swizzle_flat", FLAT_TILES)):
        once = REWRITES[rewrite].apply(source, random.Random(0))
        assert once is not None and not applies(rewrite, once)


def test_a_loop_variable_that_means_two_things_proves_nothing() -> None:
    source = HEADER + (
        "@triton.jit\ndef k(x_ptr, y_ptr, n, m, BLOCK: tl.constexpr):\n"
        "    for i in range(0, n, BLOCK):\n"
        "        tl.store(y_ptr + i + tl.arange(0, BLOCK), 1.0, mask=i + tl.arange(0, BLOCK) < n)\n"
        "    for i in range(1, m, BLOCK):\n"
        "        tl.store(x_ptr + i + tl.arange(0, BLOCK), 1.0, mask=i + tl.arange(0, BLOCK) < n)\n\n\n"
        "def f(x, y):\n    k[(1,)](x, y, 5, 6, BLOCK=8)\n"
    )
    assert not applies("even_masks", source)
    assert applies("even_masks", source.replace("range(1, m, BLOCK)", "range(0, n, BLOCK)"))


def test_other_names_for_triton_are_left_alone() -> None:
    source = seed("softmax")
    assert children(source.replace("import triton.language as tl", "from triton import language as lang")) == {}
    same = children(source.replace("import triton.language as tl", "from triton import language as tl"))
    assert set(same) == set(children(source))


def test_the_grid_is_exact_only_where_a_program_is_launched_for_each_element_that_masks_count() -> None:
    assert applies("exact_grid", OVER_LAUNCHED)
    refused(
        "exact_grid",
        OVER_LAUNCHED,
        ("[(n,)]", "[(n // 2,)]"),
        ("offsets < n", "offsets <= n"),
        ("* 2.0, mask=mask)", "* 2.0)"),
        ("axis=0) * BLOCK", "axis=0) * 4"),
        ("tl.store(", "tl.atomic_add("),
    )


def test_rows_are_of_an_axis_that_no_block_counts_and_branches_the_same_for_all() -> None:
    made = {REWRITES["rows_per_program"].apply(ROWS_OF_PLANES, random.Random(n)) for n in range(6)}
    assert {f"(triton.cdiv({name}, BLOCK_ROWS)" in str(m) for m in made for name in "a"} == {True, False}
    blocked = ROWS_OF_PLANES.replace("columns = tl.arange(0, BLOCK)", "columns = row * BLOCK + tl.arange(0, BLOCK)")
    for number in range(6):
        one = REWRITES["rows_per_program"].apply(blocked, random.Random(number))
        assert one is not None and "(triton.cdiv(a, BLOCK_ROWS), b,)" in one
    assert applies("rows_per_program", ROWS_OF_PLANES.replace("if LOG:", "if stride > 4:"))
    refused("rows_per_program", ROWS_OF_PLANES, ("if LOG:", "if row > at:"))


def test_what_is_filled_for_each_row_may_have_two_axes() -> None:
    source = HEADER + (
        "@triton.jit\ndef k(x_ptr, y_ptr, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):\n"
        "    batch = tl.program_id(0)\n"
        "    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]\n"
        "    found = tl.full((ROWS, COLUMNS), 0.0, tl.float32)\n"
        "    for start in range(0, n, ROWS):\n"
        "        mask = (start + rows < n) & (columns < m)\n"
        "        found = found + tl.load(x_ptr + (batch * n + start + rows) * m + columns, mask=mask, other=0.0)\n"
        "    y, at = tl.sum(found, axis=0), tl.arange(0, COLUMNS)\n"
        "    tl.store(y_ptr + batch * m + at, y, mask=at < m)\n\n\n"
        "def f(x, y):\n    b, n, m = x.shape\n    k[(b,)](x, y, n, m, ROWS=16, COLUMNS=64)\n"
    )
    made = str(REWRITES["rows_per_program"].apply(source, random.Random(0)))
    assert "found = tl.full((BLOCK_ROWS, ROWS, COLUMNS), 0.0, tl.float32)" in made


def test_rows_past_the_end_store_nothing_that_is_read_again() -> None:
    made = str(REWRITES["rows_per_program"].apply(ROWS_IN_PLACE, random.Random(0)))
    valid = "(tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS) < total_rows)"
    masks = [line.partition("tl.store(")[2] for line in made.splitlines() if "tl.store(" in line]
    assert [valid in mask for mask in masks] == [True] * 3
    assert f"(column < n) & {valid}[:, None])" in masks[0]
    assert f'mask=(column < n) & {valid}[:, None], cache_modifier=".cg")' in masks[1]
    assert f", mask={valid})" in masks[2]
    assert "< total_rows" not in str(REWRITES["rows_per_program"].apply(ONE_PASS_SOFTMAX, random.Random(0)))
    refused(
        "rows_per_program",
        ROWS_IN_PLACE,
        ("tl.store(counts_ptr + row", "tl.atomic_add(counts_ptr + row"),
        ("min(rounds, 2)", "min(row, 2)"),  # a loop of each row's own
        ("if HALF: x", "if row: x"),
    )


def test_rows_get_a_dimension_only_where_it_is_known_what_it_would_be() -> None:
    assert applies("rows_per_program", TILES_OF_ROWS)
    refused(
        "rows_per_program",
        TILES_OF_ROWS,
        ("largest = tl.max(tl.abs(x), axis=1) + 1.0", "largest = tl.max(tl.abs(x)) + 1.0"),  # along both axes
        ("tl.store(y_row + head * (n + 1) + n, largest", "tl.store(y_ptr + head * (n + 1) + n, largest"),  # one place
        ("    y_row = ", "    if place > 3:\n        x = x * 2.0\n    y_row = "),  # a branch of each row's own
        ("tl.abs(x)", "tl.dot(x, x)"),
        ("    x_ptr += row * heads * n\n", "    for i in range(2):\n        x_ptr += row * heads * n\n"),
    )


def test_what_a_loop_carries_is_of_each_row_from_the_beginning() -> None:
    made = str(REWRITES["rows_per_program"].apply(TWO_LAUNCHES, random.Random(0)))
    for text in ("largest = 0\n", "sums = tl.zeros((BLOCK_ROWS, BLOCK)", "total = tl.full((BLOCK_ROWS,), 0.0"):
        assert text in made
    refused(
        "rows_per_program",
        TWO_LAUNCHES,
        ("total = 0.0", "total = tl.load(y_ptr + 1)"),  # no number
        ("if ROOT:\n        mean = tl.sqrt(mean)", "if ROOT:\n        mean = 1.0"),  # of each row, or of none
        ("return v.to(tl.float32) * v", "return tl.sum(v, axis=0) * v"),
        ("return v.to(tl.float32) * v", "return v + tl.load(v)"),
    )


def test_each_launch_of_a_kernel_gets_its_own_grid() -> None:
    for rewrite, text in (("rows_per_program", "BLOCK_ROWS)"), ("tiles_per_program", "TILES_PER_PROGRAM)")):
        made = str(REWRITES[rewrite].apply(TWO_LAUNCHES, random.Random(1)))
        assert len(re.findall(rf"mean_kernel\[\(.*{re.escape(text)}", made)) == 2
    one_line = TWO_LAUNCHES.replace("    if n % 16:\n        grid = (rows, planes)\n        ", "    if n % 16: ")
    assert not applies("tiles_per_program", one_line.replace("        grid = lambda", "        size = lambda"))


def test_the_only_configuration_is_written_out_where_nothing_else_is_asked_of_autotuning() -> None:
    only = "configs=[triton.Config({'BLOCK': 32}, num_warps=2, num_ctas=1)]"
    one = re.sub(r"configs=\[.*?\]", only, TUNED, flags=re.DOTALL)
    made = inlined(one)
    assert "autotune" not in made and "BLOCK=32, num_warps=2)" in made
    assert applies("add_autotune", made) and not applies(
        "add_autotune", made.replace("warps=2)", "warps=2, num_ctas=2)")
    )
    assert inlined(TUNED) == TUNED  # several
    for more in ("pre_hook=None, ", "reset_to_zero=['y_ptr'], ", "restore_value=['y_ptr'], "):
        kept = one.replace("configs=[", f"{more}configs=[")
        assert kept != one and inlined(kept) == kept


def test_rules_that_helped_are_tried_more_often() -> None:
    """Of a kernel that all of them apply to."""
    parent = Parent(0, ONE_PASS_SOFTMAX, 1.0)
    drafts = [RewriteOperator()([parent], Context(random.Random(n))) for n in range(300)]
    count = Counter(d.note.partition(":")[0] for d in drafts if d)
    seldom = [count[name] for name in ("eviction_policy", "cache_modifier", "launch_preset")]
    others = [count[name] for name in ("add_autotune", "persistent", "tiles_per_program")]
    often = [count[name] for name in ("rows_per_program", "exp2")]
    assert 0 < sum(seldom) < sum(others) / 1.5 and min(often) > 1.5 * max(others)

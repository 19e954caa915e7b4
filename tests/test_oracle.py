"""The oracle: reproducible inputs, budgets that right kernels meet with room and narrower precisions do not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evo.core.records import Case
from fitness.frontend.plan import TensorRef
from fitness.tasks.task import Task, load_task, run_reference, task_names
from fitness.verify import seed_oracle
from fitness.verify.compare import compare
from fitness.verify.oracle import (
    ROUNDING_RMS,
    VARIANTS,
    ErrorBudget,
    Expected,
    expect,
    make_inputs,
    variants,
    with_few_changed,
)

TASKS = {name: load_task(name) for name in task_names()}
SMALL = {name: task.cases[0].on_cpu() for name, task in TASKS.items()}


def tensors(arguments: tuple) -> list[torch.Tensor]:
    return [a for a in arguments if isinstance(a, torch.Tensor)]


def expectation(name: str, variant: str = "normal") -> Expected:
    expected = expect(TASKS[name], SMALL[name], 5, variant)
    assert expected is not None
    return expected


def good(expected: Expected) -> list[torch.Tensor]:
    """The exact outputs, rounded to their dtypes."""
    return [exact.to(dtype) for exact, dtype in zip(expected.outputs, expected.dtypes, strict=True)]


# --- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_inputs_follow_from_seed_case_and_variant_alone(name: str) -> None:
    task, case = TASKS[name], SMALL[name]
    seen = []
    for seed, variant, used in ((5, "normal", case), (6, "normal", case), (5, "heavy", case),
                                (5, "normal", replace(case, name="other"))):  # fmt: skip
        torch.rand(3)  # the global generator plays no part
        first, again = (tensors(make_inputs(task, used, seed, variant)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        seen.append(first)
    assert not any(torch.equal(seen[0][0], other[0]) for other in seen[1:])


def test_the_key_is_a_stable_hash() -> None:
    number = 0x160EEBE06AEEDD17  # sha256 of '[1, "fixed", [["N", 3]], "float32", "normal"]', the first 63 bits
    (x,) = make_inputs(TASKS["vector_sin"], Case("fixed", {"N": 3}), 1)
    assert torch.equal(x, 4 * torch.randn(3, generator=torch.Generator().manual_seed(number)))


def test_variants_do_what_they_say() -> None:
    task, case = TASKS["softmax"], Case("x", {"M": 64, "N": 64})
    x = {variant: make_inputs(task, case, 0, variant)[0] for variant in VARIANTS}
    assert all(v.shape == (64, 64) and v.dtype == torch.float32 for v in x.values())
    std = x["normal"].std().item()
    assert x["large"].std() > 1e3 * std and x["tiny"].std() < 1e-3 * std
    assert (x["tiny"][0] == 0).all() and (x["tiny"][1] != 0).any()
    assert x["heavy"].abs().max() > 4 * x["normal"].abs().max()
    assert x["negative"].max() < -1e3 * std
    last = x["last_tile"]
    assert last[-1].std() > 4 * std and last[:, -1].std() > 4 * std and last[:-1, :-1].std() < 1.5 * std


LAYOUTS = {
    "transposed": torch.ones(4, 6).t(),
    "padded rows": torch.ones(6, 9)[:, :4],
    "one row": torch.ones(1, 4).expand(6, -1),
    "one column": torch.ones(6, 1).expand(-1, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_keep_strides(variant: str, layout: str) -> None:
    given = LAYOUTS[layout]
    task = replace(TASKS["softmax"], inputs=lambda case, generator: (given,))
    (x,) = make_inputs(task, SMALL["softmax"], 0, variant)
    assert x.shape == (6, 4) and x.stride() == given.stride()
    assert (given == 1).all() and (x != 0).any()


def test_tiny_inputs_of_one_row_are_not_all_nothing() -> None:
    task = replace(TASKS["softmax"], inputs=lambda case, generator: (torch.ones(1, 4),))
    (x,) = make_inputs(task, SMALL["softmax"], 0, "tiny")
    assert (x > 0).all()


def test_negated_flips_every_other_floating_input() -> None:
    ones = replace(TASKS["matmul"], inputs=lambda case, generator: (torch.ones(2), 3, torch.ones(2), 1.0))
    a, n, b, x = make_inputs(ones, SMALL["matmul"], 0, "negated")
    assert (a == -1).all() and (b == 1).all() and (n, x) == (3, 1.0)


def test_negative_makes_every_other_floating_input_positive() -> None:
    values = torch.tensor([-1.0, 0.0, 1.0])
    given = replace(TASKS["matmul"], inputs=lambda case, generator: (values, 3, values.half(), -1.0))
    a, n, b, x = make_inputs(given, SMALL["matmul"], 0, "negative")
    assert (a < -6e3).all() and (b > 10).all() and b.dtype == torch.float16 and (n, x) == (3, -1.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_leave_integers_and_numbers_valid(variant: str) -> None:
    table, _update, slots, rate = make_inputs(TASKS["scatter"], SMALL["scatter"], 0, variant)
    assert slots.dtype == torch.int64 and slots.min() >= -1 and slots.max() < table.shape[0] and rate == 0.125
    used = slots[slots >= 0]
    assert len(used) == len(used.unique())


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown variant 'odd'; expected one of: normal, large"):
        make_inputs(TASKS["softmax"], SMALL["softmax"], 0, "odd")


def test_a_task_without_stress_has_one_variant() -> None:
    assert variants(TASKS["softmax"]) == VARIANTS
    assert variants(replace(TASKS["softmax"], stress=False)) == ("normal",)


def test_few_elements_of_floating_inputs_change() -> None:
    task, case = TASKS["matmul"], SMALL["matmul"]
    a, _b = given = make_inputs(task, case, 0)
    changed = with_few_changed(task, given, torch.Generator().manual_seed(1))
    assert changed is not None
    for before, after in zip(given, changed, strict=True):
        differs = before != after
        assert 1 <= int(differs.sum()) <= 24 and torch.equal(after[differs], 8 * before[differs])
    again, other = (with_few_changed(task, given, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert again is not None and other is not None
    assert torch.equal(again[0], changed[0]) and not torch.equal(other[0], changed[0])
    assert torch.equal(a, make_inputs(task, case, 0)[0])


def test_where_values_mean_something_no_few_elements_change() -> None:
    task, generator = TASKS["scatter"], torch.Generator().manual_seed(1)
    _table, _update, slots, rate = given = make_inputs(task, SMALL["scatter"], 0)
    changed = with_few_changed(task, given, generator)
    assert changed is not None and changed[2] is slots and changed[3] == rate
    assert with_few_changed(replace(task, stress=False), given, generator) is None
    assert with_few_changed(task, [slots, rate], generator) is None
    assert with_few_changed(task, [torch.ones(0)], generator) is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_elements_keep_strides(layout: str) -> None:
    given = LAYOUTS[layout]
    changed = with_few_changed(TASKS["softmax"], [given], torch.Generator().manual_seed(1))
    assert changed is not None and changed[0].stride() == given.stride() and (changed[0] == 8).any()


# --- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_every_variant_of_the_built_in_tasks_can_be_compared(name: str) -> None:
    for case in TASKS[name].cases:
        for variant in VARIANTS:
            expected = expect(TASKS[name], case.on_cpu(), 5, variant)
            assert expected is not None
            ratio, message = compare(expected, expected.structure, good(expected), expected.strides)
            assert ratio <= 0.5 and message is None


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to TensorFloat-32: 10 bits of significand."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


NARROWER: dict[torch.dtype, dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    torch.float32: {"float16": lambda x: x.half().float(), "tf32": tf32, "bfloat16": lambda x: x.bfloat16().float()},
    torch.float16: {"bfloat16": lambda x: x.bfloat16().float()},
}


def compute(name: str, before: Callable, after: Callable) -> tuple[Expected, str, list[torch.Tensor]]:
    """The reference in float32 with `before` applied to floating inputs and `after` to outputs."""
    expected = expectation(name)
    arguments = make_inputs(TASKS[name], SMALL[name], 5)
    wide = [before(a.float()) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    structure, outputs = run_reference(TASKS[name], wide)
    return expected, structure, [after(o).to(dtype) for o, dtype in zip(outputs, expected.dtypes, strict=True)]


@pytest.mark.parametrize("name", TASKS)
def test_float32_computation_passes(name: str) -> None:
    ratio, message = compare(*compute(name, lambda x: x, lambda x: x))
    assert ratio <= 0.3 and message is None


@pytest.mark.parametrize("name", TASKS)
def test_narrower_inputs_or_outputs_fail(name: str) -> None:
    narrower = NARROWER[expectation(name).dtypes[0]]
    for narrow in narrower.values():
        assert compare(*compute(name, narrow, lambda x: x))[0] > 1.3
        assert compare(*compute(name, lambda x: x, narrow))[0] > 1.3


def test_rounding_constant_is_that_of_random_numbers() -> None:
    x = torch.exp(torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 9)
    relative = (x.half().double() - x) / x
    assert relative.square().mean().sqrt().item() == pytest.approx(ROUNDING_RMS * 2**-11, rel=0.02)


def task_from(folder: Path, reference: str, extra: str = "", dtype: str = "float32") -> Task:
    (folder / "kernel.py").write_text("def run(x): ...\n")
    (folder / "task.py").write_text(
        "import torch\nfrom fitness import Case\nentry = 'run'\n"
        f"cases = [Case('only', {{'N': 1000}}, dtype='{dtype}')]\n"
        "def inputs(case, generator):\n"
        "    return (torch.randn(case.axes['N'], generator=generator).to(getattr(torch, case.dtype)),)\n"
        f"def reference(x):\n    return {reference}\n{extra}\n"
    )
    return load_task(folder)


def test_tolerance_widens_the_budget(tmp_path: Path) -> None:
    strict = task_from(tmp_path, "x.exp()")
    loose = task_from(tmp_path, "x.exp()", "tolerance = 1e-2")
    ratios = []
    for task in (strict, loose):
        expected = expect(task, task.cases[0], 0)
        assert expected is not None
        off = [expected.outputs[0].mul(1.005).float()]
        ratios.append(compare(expected, "tensor", off)[0])
    assert ratios[0] > 100 and ratios[1] == pytest.approx(0.5, rel=1e-3)


def test_nothing_is_expected_where_the_oracle_is_not_finite_or_overflows(tmp_path: Path) -> None:
    log = task_from(tmp_path, "(x + 8).log()")
    assert expect(log, log.cases[0], 0) is not None
    assert expect(log, log.cases[0], 0, "large") is None
    cube = task_from(tmp_path, "x * x * x * x", dtype="float16")
    assert expect(cube, cube.cases[0], 0) is not None
    assert expect(cube, cube.cases[0], 0, "large") is None  # 48^4 is beyond float16


def test_integers_compare_exactly(tmp_path: Path) -> None:
    task = task_from(tmp_path, "(x > 0, torch.argsort(x))")
    expected = expect(task, task.cases[0], 0)
    assert expected is not None and expected.budgets == (None, None)
    positive, order = good(expected)
    assert compare(expected, "tuple", [positive, order]) == (0.0, None)
    order = order.clone()
    order[-1] += 1
    ratio, message = compare(expected, "tuple", [positive, order])
    assert ratio == math.inf and message is not None
    assert "output 1 is wrong at (999,)" in message and "1 of 1000" in message


# --- comparison ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_wrong_values_fail(name: str) -> None:
    expected = expectation(name)

    def ratio(change: Callable[[torch.Tensor], torch.Tensor]) -> float:
        outputs = [change(o.clone()) for o in good(expected)]
        got, message = compare(expected, expected.structure, outputs)
        assert (message is not None) == (got > 1)
        return got

    def put(value: float, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x.view(-1).index_fill(0, torch.tensor([index]), value).view(x.shape)

    assert ratio(torch.zeros_like) > 1
    assert ratio(torch.ones_like) > 1
    assert ratio(lambda x: x * 1.01) > 1
    assert ratio(lambda x: x.roll(1)) > 1
    assert ratio(put(math.nan, 0)) == math.inf
    assert ratio(put(math.inf, 1)) == math.inf
    assert ratio(put(-math.inf, 3)) == math.inf


@pytest.mark.parametrize("name", TASKS)
def test_a_skipped_tail_fails(name: str) -> None:
    expected = expectation(name)
    outputs = good(expected)
    outputs[0].view(-1)[-3:] = 0
    assert compare(expected, expected.structure, outputs)[0] > 1


def test_form_comes_before_values() -> None:
    expected = expectation("matmul_backward")
    da, db = good(expected)
    cases = [
        ("list", [da, db], "must return 'tuple', got 'list'"),
        ("tuple", [da], "expected 2 outputs .* got 1"),
        ("tuple", [da, db[:, :-1]], r"output 1 must have shape \(2, 32, 48\), got \(2, 31, 48\)"),
        ("tuple", [da.float(), db], "output 0 must be torch.float16, got torch.float32"),
    ]
    for structure, outputs, message in cases:
        ratio, got = compare(expected, structure, outputs)
        assert ratio == math.inf and re.search(message, got or "")


def test_strides_are_compared_where_given() -> None:
    expected = expectation("softmax")
    (y,) = good(expected)
    turned = y.t().contiguous().t()
    assert compare(expected, "tensor", [turned])[1] is None
    ratio, message = compare(expected, "tensor", [turned], [turned.stride()])
    assert ratio == math.inf and message == "output must have strides (256, 1), got (1, 6)"


def test_message_names_output_position_and_values() -> None:
    expected = expectation("layer_norm")
    (y,) = good(expected)
    y[2, 7] += 1
    _, message = compare(expected, "tensor", [y])
    assert message is not None
    assert f"worst at (2, 7), expected {expected.outputs[0][2, 7].item():.9g}, got {y[2, 7].item():.9g}" in message
    relative = 1 / float(expected.outputs[0].abs().max())
    assert f"{relative:.2g} of the largest value, rms error" in message and message.endswith("of the rms value")


def test_written_outputs_are_called_by_the_names_of_the_arguments(tmp_path: Path) -> None:
    task = task_from(tmp_path, "x.add_(1)", 'writes = ("x",)\n')
    expected = expect(task, task.cases[0], 0)
    assert expected is not None
    returned, x = good(expected)
    assert "output 0 is wrong" in str(compare(expected, expected.structure, [returned + 1, x])[1])
    assert "output 'x' is wrong" in str(compare(expected, expected.structure, [returned, x + 1])[1])


def test_empty_outputs_compare(tmp_path: Path) -> None:
    task = task_from(tmp_path, "x[:0], x")
    expected = expect(task, task.cases[0], 0)
    assert expected is not None
    assert compare(expected, "tuple", good(expected), expected.strides) == (0.0, None)


# --- the edge of a format --------------------------------------------------------------------------------------------


def at_the_edge() -> tuple[Expected, torch.Tensor]:
    """What a seed kernel in float16 left of normal numbers of which 3 % are beyond the format; and these in float64."""
    wide = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3e4
    own = wide.to(torch.float16)
    assert 0.01 < torch.isinf(own).double().mean() < 0.05
    return by_seed_expected(own), wide


def by_seed_expected(own: torch.Tensor) -> Expected:
    task = replace(load_task("softmax"), reference=None)
    (x,) = make_inputs(task, task.cases[0].on_cpu(), 0)
    ref = TensorRef(0, str(own.dtype).removeprefix("torch."), tuple(own.shape), own.stride())
    expected = seed_oracle.expect(task, (x.half(),), "tensor", [ref], [own], [own])
    assert expected is not None
    return expected


def verdict(expected: Expected, got: torch.Tensor) -> float:
    return compare(expected, "tensor", [got])[0]


def test_two_right_roundings_at_the_edge_of_a_format_are_both_right() -> None:
    expected, wide = at_the_edge()
    # Half a step of the format more or less, as another order of summation gives.
    other = (wide + 16 * torch.randn(wide.shape, generator=torch.Generator().manual_seed(1))).to(torch.float16)
    assert int((torch.isinf(other) != torch.isinf(expected.outputs[0])).sum()) > 3
    assert verdict(expected, other) <= 1


def test_also_where_the_seed_itself_stays_below_the_edge() -> None:
    own = torch.tensor([65504.0, 100.0, -3.0] * 100, dtype=torch.float16)
    expected, other = by_seed_expected(own), own.clone()
    other[0] = math.inf
    assert verdict(expected, own) == 0 and verdict(expected, other) <= 1
    other[1] = math.inf
    assert verdict(expected, other) == math.inf
    far = by_seed_expected(own / 2)
    assert verdict(far, own / 2) == 0 and verdict(far, torch.where(own > 6e4, math.inf, own / 2)) == math.inf


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_of_a_seed_kernel_is_compared(dtype: torch.dtype) -> None:
    own = torch.tensor([1.0, -2.5, 0.25, math.nan]).to(dtype).repeat(100)
    expected = by_seed_expected(own)
    assert verdict(expected, own) == 0
    other = own.float()
    other[0] = 32.0
    assert verdict(expected, other.to(dtype)) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x * 0.99,  # beyond the budget, and fewer infinities
        lambda x: x * 1.01,
        lambda x: torch.where(x.abs() > 6e4, x * 1.5, x),  # infinite where the reference is well below
        lambda x: x.clamp(-65504, 65504),  # never infinite
        lambda x: x.clamp(-65504, math.inf),
        lambda x: torch.where(x > 65504, -math.inf, x),
        lambda x: torch.where(x.abs() > 65504, -x, x),
        lambda x: torch.where(x.abs() > 65504, math.nan, x),
        lambda x: torch.where((x > 65400) & (x < 65504), math.nan, x),
        lambda x: torch.where((x > 65400) & (x < 65504), -math.inf, x),
        lambda x: torch.where(x.abs() < 1, math.inf, x),
        lambda x: torch.zeros_like(x),
    ],
)
def test_a_kernel_that_is_wrong_near_the_edge_stays_wrong(wrong: Callable) -> None:
    expected, wide = at_the_edge()
    assert verdict(expected, wide.to(torch.float16)) == 0
    assert verdict(expected, wrong(wide).to(torch.float16)) > 1


def test_infinities_that_are_no_overflow_must_be_matched() -> None:
    """A mask of -inf beside moderate numbers has no edge."""
    own = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    own[::10] = -math.inf
    expected = by_seed_expected(own)
    assert verdict(expected, own) == 0
    for value in (-65504.0, math.inf, 0.0):
        other = own.clone()
        other[0] = value
        assert verdict(expected, other) == math.inf


def test_no_margin_is_as_wide_as_the_format() -> None:
    """With a budget beyond the largest number every pair of one sign would do."""
    own = torch.tensor([3e38, math.inf, 1.0] * 100)
    expected = replace(by_seed_expected(own), budgets=(ErrorBudget(1e39, 1e39),))
    assert verdict(expected, torch.tensor([3e38, 1.0, 1.0] * 100)) == math.inf

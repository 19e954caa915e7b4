"""Execution of whole plans on a file of buffers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evo.core.records import Verdict
from fitness.frontend.memory import Layout
from fitness.frontend.plan import Buffer, Config, Copy, Fill, Launch, LaunchPlan, Op, TensorRef, to_json
from fitness.interpreter.job import job
from fitness.sandbox.jobs import JobError

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def softmax(x, o, n, stride, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * stride + c, mask=c < n, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + r * n + c, e / tl.sum(e, 0), mask=c < n)

@triton.jit
def last_wins(o):
    tl.store(o, tl.program_id(0) + 10.0 * tl.program_id(1))

@triton.jit
def beyond(o, n, B: tl.constexpr):
    tl.store(o + tl.arange(0, B), 1.0)

@triton.jit
def assuming(o, n):
    tl.assume(n == 0)
    tl.store(o, 0.0)

@triton.jit
def assembly(o):
    v = tl.load(o)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(o, v)


@triton.jit
def counted(o):
    tl.atomic_add(o, 1.0)

@triton.jit
def same(o, n, B: tl.constexpr):
    c = tl.arange(0, B)
    tl.store(o + c, tl.load(o + c, mask=c < n), mask=c < n)

@triton.jit
def locked(o, before, after):
    tl.atomic_cas(o.to(tl.pointer_type(tl.int32)), before, after)
"""
ROWS, COLUMNS = 6, 50
X = TensorRef(0, "float32", (ROWS, COLUMNS), (64, 1))  # rows 64 apart
OUT = TensorRef(1, "float32", (ROWS, COLUMNS), (COLUMNS, 1))
BUFFERS = (Buffer(4 * 64 * ROWS), Buffer(4 * ROWS * COLUMNS))
ONE = TensorRef(1, "float32", (1,), (1,))


def launch(kernel: str, grid=(1, 1, 1), *, others=(), **args) -> Launch:
    """A launch, with further configurations as keyword changes."""
    return Launch(kernel, tuple(Config(grid, {**args, **change}, {}) for change in ({}, *others)), line=4)


def run(scratch: Path, *steps, choice=None, order="forward", inputs=(), buffers=BUFFERS):
    """(layout, memory, value of the job) after the steps."""
    plan = LaunchPlan(buffers, inputs, (OUT,), "tensor", tuple(steps))
    layout = Layout(plan)
    memory = layout.create(scratch)
    choice = [0] * len(plan.launches) if choice is None else choice
    payload = {"source": SOURCE, "constants": {}, "plan": to_json(plan), "choice": choice, "order": order}
    x = torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(1))[:, :COLUMNS]
    if buffers[0].input is not None:
        layout.write_inputs(memory, (x,))
    else:
        layout.view(memory, X).copy_(x)
    return layout, memory, x, job(payload, scratch)


def test_a_launch_on_a_strided_input(tmp_path):
    buffers = (Buffer(X.last_byte(), input=0), Buffer(1200))
    softmax = launch("softmax", (ROWS, 1, 1), x=X, o=OUT, n=COLUMNS, stride=64, B=64)
    layout, memory, x, value = run(tmp_path, softmax, inputs=(X,), buffers=buffers)
    torch.testing.assert_close(layout.read(memory, OUT), x.softmax(1))
    assert value == {"programs": ROWS, "left_out": [], "notes": [{}], "spans": [], "unknown": [], "stored": [[]]}
    assert layout.broken_guards(memory) == []


def test_the_chosen_configuration_runs(tmp_path):
    wrong_n = {"n": COLUMNS // 2}
    softmax = launch("softmax", (ROWS, 1, 1), others=(wrong_n,), x=X, o=OUT, n=COLUMNS, stride=64, B=64)
    layout, memory, _, _ = run(tmp_path, softmax, choice=[1])
    assert layout.read(memory, OUT)[ROWS - 1].isnan().all(), "rows of 25 do not fill the output"
    with pytest.raises(ValueError, match="1 launches need as many choices"):
        run(tmp_path, softmax, choice=[])


def test_the_order_of_programs_shows_a_race(tmp_path):
    for order, expected in (("forward", 11.0), ("reverse", 0.0)):
        layout, memory, _, value = run(tmp_path, launch("last_wins", (2, 2, 1), o=ONE), order=order)
        assert layout.read(memory, ONE).item() == expected and value["programs"] == 4


def test_fill_copy_and_delegated_operators(tmp_path):
    half = TensorRef(1, "float16", (ROWS,), (1,), 2)
    column = TensorRef(0, "float32", (ROWS,), (64,), 3)
    scratch = TensorRef(2, "float32", (ROWS, ROWS), (ROWS, 1))
    steps = (
        Fill(OUT, 2.5),
        Copy(half, column),
        Op("aten.mm.default", (X, TensorRef(0, "float32", (COLUMNS, ROWS), (1, 64))), {}, (scratch,), 9),
        Op("aten.sum.dim_IntList", (scratch, (1,), True), {"dtype": {"dtype": "float32"}},
           (TensorRef(1, "float32", (ROWS, 1), (1, 1), 100),), 10),
    )  # fmt: skip
    buffers = (Buffer(4 * 64 * ROWS), Buffer(1200), Buffer(4 * ROWS * ROWS))
    layout, memory, x, value = run(tmp_path, *steps, buffers=buffers)
    out = layout.read(memory, TensorRef(1, "float32", (ROWS * COLUMNS,), (1,)))
    torch.testing.assert_close(out[100 : 100 + ROWS], (x @ x.t()).sum(1))
    assert torch.equal(layout.read(memory, half), x[:, 3].half())
    assert value == {"programs": 0, "left_out": [], "notes": [{}], "spans": [], "unknown": [], "stored": [[]]}
    assert out[0] == 2.5 and out[-1] == 2.5


FIRST = TensorRef(0, "float32", (1,), (1,))
PADDING = TensorRef(0, "float32", (1,), (1,), COLUMNS)
EMPTY = TensorRef(0, "float32", (0,), (1,))


@pytest.mark.parametrize(
    ("step", "stored"),
    [
        (launch("same", o=FIRST, n=4, B=4), [0]),
        (launch("same", o=FIRST, n=1, B=4), [0]),
        (launch("same", o=FIRST, n=0, B=4), []),
        (launch("same", o=PADDING, n=4, B=4), [0]),
        (launch("same", o=ONE, n=4, B=4), []),
        (launch("counted", o=FIRST), [0]),
        (launch("locked", o=FIRST, before=1, after=1), [0]),
        (launch("softmax", (ROWS, 1, 1), x=X, o=OUT, n=COLUMNS, stride=64, B=64), []),
        (Fill(PADDING, 0.0), [0]),
        (Fill(EMPTY, 0.0), []),
        (Copy(FIRST, FIRST), [0]),
        (Copy(OUT, X), []),
        (Op("aten.neg.out", (FIRST,), {"out": FIRST}, (FIRST,), 7), [0]),
    ],
)
def test_a_store_to_an_argument_is_noted_whatever_is_stored(tmp_path, step, stored):
    buffers = (Buffer(X.last_byte(), input=0), Buffer(1200))
    *_, value = run(tmp_path, step, inputs=(X,), buffers=buffers)
    assert value["stored"] == [stored]


def test_several_runs_share_one_extraction(tmp_path):
    plan = LaunchPlan(
        (Buffer(4),), (), (), "none", (launch("last_wins", (2, 1, 1), o=TensorRef(0, "float32", (1,), (1,))),)
    )
    layout = Layout(plan)
    memories = [layout.create(tmp_path, f"buffers{i}.bin") for i in range(2)]
    runs = [
        {"plan": to_json(plan), "choice": [0], "order": order, "buffers": f"buffers{i}.bin"}
        for i, order in enumerate(("forward", "reverse"))
    ]
    value = job({"source": SOURCE, "constants": {}, "runs": runs}, tmp_path)
    assert value == {"programs": 4, "left_out": [], "notes": [{}, {}], "spans": [], "unknown": [], "stored": [[], []]}
    ref = plan.launches[0].configs[0].args["o"]
    assert [layout.read(m, ref).item() for m in memories] == [1.0, 0.0]


def test_a_store_out_of_bounds_breaks_a_guard(tmp_path):
    layout, memory, _, _ = run(tmp_path, launch("beyond", o=OUT, n=1, B=512))
    [message] = layout.broken_guards(memory)
    assert "bytes after output 0 were overwritten" in message and int(message.split()[0]) > 800  # of 848


@pytest.mark.parametrize(
    ("step", "verdict", "line", "part"),
    [
        (launch("assuming", o=ONE, n=1), Verdict.RUNTIME_ERROR, 23, "assuming: Assume failed"),
        (launch("assembly", o=ONE), Verdict.UNSUPPORTED, 29, "interpreter cannot execute it: inline_asm"),
        (launch("missing", o=ONE), Verdict.UNSUPPORTED, 4, "'missing' is not a top-level function"),
        (launch("last_wins", o={"jit": "missing"}), Verdict.UNSUPPORTED, 0, "names neither"),
        (Op("aten.mm.default", (X, X), {}, (OUT,), 7), Verdict.RUNTIME_ERROR, 7, "aten.mm.default"),
        (Op("os.system.default", ("true",), {}, (), 7), Verdict.UNSUPPORTED, 7, "not an ATen operator"),
        (Op("aten.neg.default", (X,), {}, (), 7), Verdict.RUNTIME_ERROR, 7, "gave 1 tensors, the plan expects 0"),
    ],
)
def test_errors_carry_verdict_and_line(tmp_path, step, verdict, line, part):
    with pytest.raises(JobError, match=part) as caught:
        run(tmp_path, step)
    assert (caught.value.verdict, caught.value.line) == (verdict, line)


@pytest.mark.parametrize(
    ("kernel", "args", "left_out"),
    [
        ("softmax", {"x": X, "o": OUT, "n": COLUMNS, "stride": 64, "B": 64}, [1, 2]),
        ("beyond", {"o": ONE, "n": 1, "B": 4}, []),
        ("last_wins", {"o": ONE}, []),
        ("counted", {"o": ONE}, [2]),
    ],
)
def test_programs_are_executed_in_the_orders_that_say_more(tmp_path, kernel, args, left_out):
    plan = LaunchPlan(BUFFERS, (), (OUT,), "tensor", (launch(kernel, (ROWS - 1, 1, 1), **args),))
    layout = Layout(plan)
    for name in ("a", "b", "c"):
        layout.view(layout.create(tmp_path, name), X).zero_()
    first = {"plan": to_json(plan), "choice": [0], "order": "forward", "buffers": "a"}
    runs = [first] + [{**first, "order": o, "buffers": b, "twin": 0} for o, b in (("reverse", "b"), ("at once", "c"))]
    value = job({"source": SOURCE, "constants": {}, "runs": runs}, tmp_path)
    assert (value["programs"], value["left_out"]) == ((ROWS - 1) * (3 - len(left_out)), left_out)
    assert value["stored"] == [[]] * 3

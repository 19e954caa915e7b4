"""What kernels load: only their own arrays, and nothing that depends on lanes that nothing defines."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from evo.core.records import Check, Verdict
from fitness.frontend.memory import GUARD, Guards, Layout, guard_pattern
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef, to_json
from fitness.frontend.stages import Stop
from fitness.interpreter import job as interpret
from fitness.interpreter.bounds import Array, Arrays, Undefined, arrays_of, led_by, like
from fitness.interpreter.numerics import decode
from fitness.sandbox.jobs import JobError, JobResult, Limits
from fitness.tasks.task import Task, load_task
from fitness.verify import oracle
from fitness.verify.verify import Executable, Jobs, verify

N, B = 50, 64
X, OUT = TensorRef(0, "float32", (N,), (1,)), TensorRef(1, "float32", (B,), (1,))
HEADER = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    m = i < n
"""


def source(body: str) -> str:
    return HEADER + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"


def plan(x_bytes: int = 4 * N) -> LaunchPlan:
    config = Config((1, 1, 1), {"x": X, "o": OUT, "n": N, "B": B}, {})
    return LaunchPlan((Buffer(x_bytes, 0), Buffer(4 * B)), (X,), (OUT,), "tensor", (Launch("kernel", (config,), 1),))


def notes(scratch: Path, body: str) -> dict[str, list]:
    """What the job of `interpret` notes of the kernel with this body."""
    made = Layout(plan())
    made.write_inputs(made.create(scratch), [torch.arange(float(N))])
    payload = {"source": source(body), "constants": {}, "plan": to_json(plan()), "choice": [0]}
    [found] = interpret.job(payload, scratch)["notes"]
    return found


LINE = HEADER.count("\n") + 1  # of the first line of a body


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("tl.store(o + i, tl.where(m, tl.load(x + i), 0.0))", "load out of bounds: 56 bytes after argument 0"),
        ("tl.store(o + i, tl.load(x + i - 1, mask=m, other=0))", "load out of bounds: 4 bytes before argument 0"),
        ("tl.store(o + i, tl.load(x + i, mask=i <= n, other=0))", "load out of bounds: 4 bytes after argument 0"),
        ("tl.store(o + i, tl.load(x + n))", "load out of bounds: 4 bytes after argument 0"),
        (  # into another array, behind all guard zones
            f"tl.store(o + i, tl.load(x + {(2 * GUARD + 256) // 4}))",
            "load out of bounds: 4 bytes after argument 0",
        ),
        (
            "tl.store(o + i, tl.load((x + i).to(tl.pointer_type(tl.uint8)) + 3 * n + 1).to(tl.float32))",
            "load out of bounds: 51 bytes after argument 0",
        ),
        (
            "tl.store(o + i, tl.load(tl.where(m, x + i, o + i + 8), mask=i >= 0))",
            "load out of bounds: 32 bytes outside of argument 0 and output 0",
        ),
        (
            "p = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))\ntl.store(o + i, tl.load(p))",
            "load out of bounds: 56 bytes after argument 0",
        ),
        (
            "d = tl.make_tensor_descriptor(x, [B], [1], [B])\ntl.store(o + i, d.load([0]))",
            "load out of bounds: 56 bytes after argument 0",
        ),
        ("tl.store(o + i + 4, 1.0)", "store out of bounds: 16 bytes after output 0"),
        ("tl.atomic_add(o + i - 1, 1.0)", "atomic operation out of bounds: 4 bytes before output 0"),
    ],
)
def test_an_access_outside_of_its_array_is_noted(tmp_path: Path, body: str, what: str) -> None:
    found = notes(tmp_path, body)
    kind = "load" if what.startswith("load") else "store"
    assert found[kind] == [f"kernel kernel: {what}", LINE + body.count("\n")]


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(o + i, tl.load(x + i, mask=m, other=0.0))",
        "tl.store(o + i, tl.load(x + i * 100000, mask=i < 1, other=0.0))",
        "tl.store(o + i, tl.load(x + tl.minimum(i, n - 1)))",
        "tl.store(o + i, tl.load(tl.where(m, x + i, o + i), mask=i >= 0))",
        "tl.store(o + i, tl.load((x + i).to(tl.pointer_type(tl.uint8)), mask=m, other=0).to(tl.float32))",
        "p = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))\n"
        "tl.store(o + i, tl.load(p, boundary_check=(0,), padding_option='zero'))",
        "d = tl.make_tensor_descriptor(x, [n], [1], [B])\ntl.store(o + i, d.load([0]))",
        "tl.atomic_add(o + i, 1.0)",
    ],
)
def test_what_stays_in_its_arrays_is_not_noted(tmp_path: Path, body: str) -> None:
    assert notes(tmp_path, body) == {}


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(o + i, tl.load(x + i, mask=m), mask=m)",
        "p = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))\ntl.store(o + i, tl.load(p, boundary_check=(0,)))",
        "tl.store(o + i, tl.atomic_add(o + i, 1.0, mask=m))",
    ],
)
def test_lanes_that_nothing_defines_are_noted(tmp_path: Path, body: str) -> None:
    found = notes(tmp_path, body)
    assert list(found) == ["undefined"] and found["undefined"][1] == LINE + body.count("\n")


@pytest.mark.parametrize(
    "dtype",
    [tl.float32, tl.float16, tl.bfloat16, tl.float64, tl.float8e5, tl.int8, tl.uint8, tl.int32, tl.int64],
    ids=str,
)
def test_no_undefined_lane_is_zero_and_neighbours_differ(dtype: tl.dtype) -> None:
    undefined = Undefined()
    seen = set()
    for _ in range(3):
        values = decode(undefined.block((2, 8), dtype), dtype).astype(np.float64)
        assert values.shape == (2, 8) and (values != 0).all()
        seen.add(str(values[0, 0]))
        if dtype.is_floating():
            assert np.isnan(values).any() and np.nanmax(values) > 1e3 and np.nanmin(values) < -1e3
        else:
            assert len(set(values.ravel())) == 2
    assert len(seen) == (3 if dtype.is_floating() else 2)
    assert (Undefined(zeros=True).block((4,), dtype) == 0).all()


def test_types_of_pointers_say_where_they_lead() -> None:
    arrays = Arrays([Array(0, 8, "a"), Array(16, 8, "b"), Array(32, 8, "c")])
    a, b = (led_by(tl.pointer_type(tl.float32), arrays.at(address)) for address in (4, 16))
    assert like(a, a, a) is a and like(tl.int32, a) is tl.int32 and arrays_of(tl.pointer_type(tl.float32)) is None
    both = arrays_of(like(b, a, b))
    assert both is not None
    assert both.outside(np.array([0, 20], np.uint64), 4) == ""
    assert both.outside(np.array([0, 32], np.uint64), 4) == "4 bytes outside of a and b"
    assert arrays_of(a).outside(np.array([6], np.uint64), 4) == "4 bytes after a"  # type: ignore[union-attr]
    assert not arrays.at(0).hold_all(np.array([0], np.uint64), 16)
    assert arrays.at(100).outside(np.array([32], np.uint64), 8) == "", "an empty array has no address"


def test_guard_zones_differ_by_key_and_number_and_are_nan_every_other_time() -> None:
    patterns = [guard_pattern(Guards(key, number)) for key in (1, 2) for number in (0, 1, 2, 3)]
    assert len({pattern.tobytes() for pattern in patterns}) == len(patterns)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn):
        nan, usual = (torch.from_numpy(p).view(dtype).float().isnan() for p in patterns[:2])
        assert nan.all() and usual.float().mean() < (0.1 if dtype.itemsize == 1 else 1e-9)


# --- a whole verification, in this process ---------------------------------------------------------------------------


class Zygote:
    def run(self, job: str, payload: Any, *, scratch: Path, limits: Limits) -> JobResult:
        assert job == "interpret"
        try:
            return JobResult("ok", interpret.job(payload, scratch))
        except JobError as error:
            return JobResult("error", verdict=error.verdict, message=error.message, line=error.line)


TASK = f"""
import torch
from fitness import Case

entry = "f"
cases = [Case("only", {{"N": {N}}})]


def inputs(case, generator):
    return (torch.rand(case.axes["N"], generator=generator) + 1,)


"""
REFERENCE = f"def reference(x):\n    return x.sum().expand({B}).clone()\n"
RIGHT = "tl.store(o + i, i * 0 + tl.sum(tl.load(x + i, mask=m, other=0.0)))"
LATER = "tl.store(o + i, i * 0 + tl.sum(tl.where(m, tl.load(x + i, mask=m), 0.0)))"
BEYOND = "tl.store(o + i, i * 0 + tl.sum(tl.where(m, tl.load(x + i), 0.0)))"
BEYOND_USED = "tl.store(o + i, i * 0 + tl.max(tl.load(x + i)))"
ZEROS = "tl.store(o + i, i * 0 + tl.sum(tl.load(x + i, mask=m)))"
ZEROS_IN_MAXIMUM = """
v = tl.load(x + i, mask=m)
tl.store(o + i, i * 0 + tl.sum(tl.where(m, v, 0.0)) * (tl.max(v) < 1e9))
"""


def executable(task: Task, body: str) -> Executable:
    return Executable(source(body), {}, {case.name: plan() for case in task.cases}, {c.name: [0] for c in task.cases})


def judge(folder: Path, seed: str | None, candidate: str) -> Check:
    """The candidate's check; the seed kernel is the reference, if there is one.  Raises Stop."""
    folder.joinpath("task.py").write_text(TASK + ('reference = "seed"\n' if seed else REFERENCE))
    folder.joinpath("kernel.py").write_text("import triton\n\ndef f(x):\n    return x\n")
    task = load_task(folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    jobs = Jobs(Zygote(), scratch, Limits())  # type: ignore[arg-type]
    kernel = executable(task, seed) if seed else None
    return verify(task, executable(task, candidate), seed="any", jobs=jobs, kernel=kernel)


@pytest.mark.parametrize(
    ("seed", "candidate"),
    [
        (None, RIGHT), (None, LATER),
        (RIGHT, RIGHT), (RIGHT, LATER), (LATER, RIGHT), (LATER, LATER),
        (BEYOND, BEYOND), (BEYOND, RIGHT),
        (ZEROS, ZEROS), (ZEROS, RIGHT), (ZEROS, ZEROS_IN_MAXIMUM),
    ],
)  # fmt: skip
def test_right_kernels_and_those_with_the_habits_of_their_seed_are_ok(
    tmp_path: Path, seed: str | None, candidate: str
) -> None:
    assert judge(tmp_path, seed, candidate).cases == len(oracle.VARIANTS)


@pytest.mark.parametrize(
    ("seed", "candidate", "message"),
    [
        (None, BEYOND, rf"line {LINE}: only .*kernel kernel: load out of bounds: 56 bytes after argument 0; mask it"),
        (None, ZEROS, rf"; line {LINE}: kernel kernel: lanes that the mask leaves out are undefined"),
        (None, ZEROS_IN_MAXIMUM, "are undefined"),
        (RIGHT, BEYOND, "load out of bounds"),
        (ZEROS, BEYOND, "load out of bounds"),
        (RIGHT, ZEROS, "are undefined"),
        (LATER, ZEROS, "are undefined"),
        (BEYOND, ZEROS, "are undefined"),
        (BEYOND, BEYOND_USED, "output"),
        (BEYOND_USED, BEYOND_USED, "uses what it reads beyond its arrays"),
        (BEYOND, "tl.store(o + i + 1, 1.0)", "store out of bounds"),
    ],
)
def test_kernels_that_read_what_their_seed_does_not_are_wrong(
    tmp_path: Path, seed: str | None, candidate: str, message: str
) -> None:
    with pytest.raises(Stop, match=message) as caught:
        judge(tmp_path, seed, candidate)
    assert caught.value.verdict is Verdict.WRONG

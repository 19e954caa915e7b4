"""From a source to Work for the GPU, through real sandboxed children."""

from __future__ import annotations

from typing import Any

import pytest

from evo.records import Verdict
from fitness.calls import CPU, Calls
from fitness.gpu.parameters import pack
from fitness.gpu.work import KnownBuilds, build, cubins, make_work, record
from fitness.plan import TensorRef
from fitness.sandbox.jobs import Limits
from fitness.sandbox.zygote import Zygote
from fitness.stages import Stop
from fitness.task import load_task
from operators.rewrites.configs import inlined


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90", ("record", "compile")) as zygote:
        yield zygote


def work_of(source, zygote, tmp_path):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    return make_work(source, task, calls, zygote=zygote, target="sm_90", scratch=tmp_path, limits=Limits())


def test_every_launch_has_its_machine_code_and_can_be_packed(zygote, tmp_path):
    task = load_task("softmax")
    work = work_of(task.seed_source, zygote, tmp_path)
    assert set(work.plans) == {case.name for case in task.cases}
    for name, plan in work.plans.items():
        for launch, builds in zip(plan.launches, work.builds[name], strict=True):
            for config, built in zip(launch.configs, builds, strict=True):
                facts = built["launch"]
                assert facts["name"].encode() in work.cubins[built["cubin"]]
                args = {k: 16 if isinstance(v, TensorRef) else v for k, v in config.args.items()}
                runtime = [kind for _, kind in facts["signature"] if kind != "constexpr"]
                assert len(pack(facts["signature"], args)) == len(runtime) == len(built["parameters"])
                assert facts["num_ctas"] == 1
                assert [size for size, _ in facts["scratch"]] == [0, 0]


@pytest.mark.parametrize(
    ("body", "stage", "verdict"),
    [
        ("return torch.softmax(x, -1)", "record", Verdict.REJECTED),
        ("return torch.empty_like(x)", "record", Verdict.REJECTED),
        ("return x[", "record", Verdict.COMPILE_ERROR),
    ],
)
def test_what_leaves_nothing_to_run_stops_with_its_verdict(zygote, tmp_path, body, stage, verdict):
    with pytest.raises(Stop) as stop:
        work_of(f"import torch\n\ndef softmax(x):\n    {body}\n", zygote, tmp_path)
    assert (stop.value.stage, stop.value.verdict) == (stage, verdict)


TUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 64 << i}, num_warps=1 << i) for i in range(5)], key=["n_columns"])
@triton.jit
def kernel(x, y, n_columns, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        at = row * n_columns + start + columns
        tl.store(y + at, tl.load(x + at, mask=mask) WRONG, mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, y, x.shape[1])
    return y
"""


def test_configurations_that_are_compiled_side_by_side_come_back_in_order(zygote, tmp_path):
    work = work_of(TUNED.replace("WRONG", "* 2"), zygote, tmp_path)
    for (by_config,) in work.builds.values():
        assert [build["num_warps"] for build in by_config] == [1, 2, 4, 8, 16]
        assert len({build["sass_hash"] for build in by_config}) == 5
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {"build0", "build1", "build2"}
    built = {b["cubin"] for launches in work.builds.values() for by_config in launches for b in by_config}
    assert set(work.cubins) == built
    again = work_of(TUNED.replace("WRONG", "* 3"), zygote, tmp_path)  # in the same folder
    assert not set(again.cubins) & built and len(again.cubins) == len(built)


def test_the_only_configuration_written_out_is_the_same_machine_code(zygote, tmp_path):
    """As rules are given parents whose winner is known."""
    one = TUNED.replace("WRONG", "* 2").replace(
        '[triton.Config({"BLOCK": 64 << i}, num_warps=1 << i) for i in range(5)]',
        '[triton.Config({"BLOCK": 128}, num_warps=2)]',
    )
    assert "autotune" in one and "autotune" not in inlined(one)
    tuned, plain = (
        {
            name: [b["sass_hash"] for (b,) in by_launch]
            for name, by_launch in work_of(s, zygote, tmp_path).builds.items()
        }
        for s in (one, inlined(one))
    )
    assert tuned == plain


def test_an_error_in_one_of_many_configurations_is_told_with_its_line(zygote, tmp_path):
    with pytest.raises(Stop) as stop:
        work_of(TUNED.replace("WRONG", "+ tl.arange(0, BLOCK // (256 // BLOCK))"), zygote, tmp_path)
    assert (stop.value.stage, stop.value.verdict) == ("compile", Verdict.COMPILE_ERROR)
    assert "line 14" in stop.value.message


HELPED = """
import torch
import triton
import triton.language as tl

SCALE = 2.0

@triton.jit
def helper(v):
    return v * {factor}

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, helper(tl.load(x + i, mask=i < n)) * SCALE, mask=i < n)

@triton.jit
def other(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + {addend}, mask=i < n)
"""
LAUNCH = {"args": {"x": 1, "n": 100, "BLOCK": 16}, "options": {"num_warps": 4}}


def key_of(kernel: str, *, factor: str = "3", addend: str = "1", scale: float = 2.0, **changes: Any) -> str:
    launch = {"kernel": kernel, **LAUNCH, **changes}
    source = HELPED.format(factor=factor, addend=addend)
    return KnownBuilds().keys(source, {"SCALE": scale}, "sm_90", [launch])[0]


def test_a_build_is_known_by_all_that_decides_it():
    """Its text, that of what it calls, its constants, arguments and options; not what stands beside it."""
    same = key_of("scale")
    assert same == key_of("scale", addend="2")
    changed = [
        key_of("other"),
        key_of("scale", factor="4"),
        key_of("scale", scale=3.0),
        key_of("scale", args={**LAUNCH["args"], "BLOCK": 32}),
        key_of("scale", options={"num_warps": 8}),
    ]
    assert len({same, *changed}) == 6
    assert key_of("other") == key_of("other", factor="4", scale=3.0)


def test_what_cannot_be_known_has_no_key():
    assert key_of("missing") == ""
    assert key_of("scale", args={"x": {"jit": "helper"}}) == ""
    assert KnownBuilds().keys("def broken(", {}, "sm_90", [{"kernel": "f", **LAUNCH}]) == [""]


def test_what_is_known_is_not_compiled_again(zygote, tmp_path):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    options = {"zygote": zygote, "target": "sm_90", "limits": Limits()}
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    recorded = record(task.seed_source, task, calls, scratch=tmp_path / "first", **options)
    known = KnownBuilds()
    rest = {**options, "known": known}
    first = build(task.seed_source, recorded.plans, recorded.constants, scratch=tmp_path / "first", **rest)
    rest["zygote"] = None  # nothing may be asked of it
    second = build(task.seed_source, recorded.plans, recorded.constants, scratch=tmp_path / "second", **rest)
    machine_code = cubins(first, tmp_path / "first")
    again = cubins(second, tmp_path / "second")
    for name, launches in first.items():
        for ours, theirs in zip(launches, second[name], strict=True):
            assert [{**b, "cubin": ""} for b in ours] == [{**b, "cubin": ""} for b in theirs]
            assert [machine_code[b["cubin"]] for b in ours] == [again[b["cubin"]] for b in theirs]


def test_no_more_builds_are_kept_than_allowed(tmp_path):
    known = KnownBuilds(most=2)
    for key in "abc":
        (tmp_path / key).write_bytes(key.encode())
        known.add(tmp_path, {key: {"cubin": key}})
    assert known.left_in(tmp_path, ["a", "b", "c", ""]) == {1: {"cubin": "b.cubin"}, 2: {"cubin": "c.cubin"}}
    assert (tmp_path / "c.cubin").read_bytes() == b"c"

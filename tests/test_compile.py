"""Compiling for sm_90 on a machine without a GPU: resources, identity of machine code, errors with their line."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import triton

from evo.core.records import Verdict
from fitness.frontend import screen
from fitness.frontend.compile import job
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef, to_json
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import JobError, Limits
from fitness.sandbox.zygote import Zygote

SOURCE = """import torch
import triton
import triton.language as tl

@triton.jit
def double(v):
    return v * SCALE

@triton.jit
def rows(x, o, n, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * n + c, mask=c < n, other=0.0)
    tl.store(o + r * n + c, double(tl.exp(v)) / tl.sum(v, 0), mask=c < n)

@triton.jit
def matmul(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for q in range(0, K, BK):
        x = tl.load(a + i[:, None] * K + (q + k)[None, :])
        y = tl.load(b + (q + k)[:, None] * BN + j[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + i[:, None] * BN + j[None, :], acc.to(tl.float16))
"""


def rows(offset=0, num_warps=4, block=1024, n=1024, kernel="rows", names=("x", "o", "n", "B")) -> dict:
    """An encoded launch of `rows`, its input `offset` elements into the buffer."""
    x, o = (TensorRef(b, "float32", (4, n), (n, 1), offset * (1 - b)) for b in (0, 1))
    config = Config((4, 1, 1), dict(zip(names, (x, o, n, block), strict=True)), {"num_warps": num_warps})
    return encoded(config, kernel)


def encoded(config: Config, kernel: str) -> dict:
    plan = LaunchPlan((Buffer(1 << 30),) * 3, (), (), "none", (Launch(kernel, (config,)),))
    raw = to_json(plan)["steps"][0]["configs"][0]
    return {"kernel": kernel, "args": raw["args"], "options": raw["options"]}


def compile_launches(scratch: Path, *launches: dict, source: str = SOURCE, **payload) -> list[dict]:
    return job(
        {"source": source, "constants": {"SCALE": 2.0}, "target": "sm_90", "launches": list(launches), **payload},
        scratch,
    )["builds"]


def test_resources_are_those_cuobjdump_reports(tmp_path):
    a, b, c = (TensorRef(i, "float16", (64, 64), (64, 1)) for i in range(3))
    matmul = Config((1, 1, 1), {"a": a, "b": b, "c": c, "K": 64, "BM": 64, "BN": 64, "BK": 64}, {"num_warps": 4})
    builds = compile_launches(tmp_path, rows(), rows(num_warps=1, block=8192, n=8000), encoded(matmul, "matmul"))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for build in builds:
        text = subprocess.run(
            [tool, "-res-usage", tmp_path / build["cubin"]], capture_output=True, text=True, check=True
        )
        registers, stack = (int(re.search(rf"{key}:(\d+)", text.stdout)[1]) for key in ("REG", "STACK"))
        assert (build["registers"], build["spill_bytes"]) == (registers, stack)
    assert builds[1]["spill_bytes"] > 0 and builds[0]["spill_bytes"] == 0
    assert builds[0]["parameters"] == ["x", "o", "n"]
    assert builds[0]["ptx_features"]["load_bytes"] == 16 and builds[0]["ptx_features"]["wgmma"] == 0
    assert builds[2]["ptx_features"]["wgmma"] > 0 and builds[2]["shared_bytes"] >= 2 * 64 * 64 * 2
    resident, share = screen.occupancy(builds[2]["registers"], builds[2]["shared_bytes"], 4, get_target("sm_90"))
    assert (builds[2]["resident"], builds[2]["occupancy"]) == (resident, share)


@pytest.mark.parametrize("policy", ["", "evict_last", "evict_first"])
def test_whether_a_kernel_gives_lines_of_the_cache_a_priority_is_told(tmp_path, policy):
    hinted = SOURCE.replace("other=0.0)", f"other=0.0, eviction_policy={policy!r})", 1)
    assert hinted != SOURCE
    [build] = compile_launches(tmp_path, rows(), source=hinted)
    assert (build["ptx_features"]["priorities"] > 0) is bool(policy)


def test_equal_launches_are_compiled_once_and_alignment_is_specialised(tmp_path):
    first, again, shifted = compile_launches(tmp_path, rows(), rows(offset=4096), rows(offset=1))
    assert first == again
    assert shifted["sass_hash"] != first["sass_hash"] and shifted["ptx_features"]["load_bytes"] == 4


def test_without_machine_code_builds_tell_shared_memory_and_errors(tmp_path):
    a, b, c = (TensorRef(i, "float16", (64, 64), (64, 1)) for i in range(3))
    arguments = {"a": a, "b": b, "c": c, "K": 64, "BM": 64, "BN": 64, "BK": 64}
    plain = encoded(Config((1, 1, 1), arguments, {"num_warps": 4}), "matmul")
    cooperative = encoded(Config((1, 1, 1), arguments, {"launch_cooperative_grid": True}), "matmul")
    [whole] = compile_launches(tmp_path, plain)
    short, again, with_code = compile_launches(tmp_path, plain, plain, cooperative, machine_code=False)
    assert short == again and set(short) == {"kernel", "shared_bytes", "num_warps", "compile_s", "key"}
    assert short["shared_bytes"] == whole["shared_bytes"] > 0 and short["key"] != whole["key"]
    assert with_code["launch"]["cooperative"] and (tmp_path / with_code["cubin"]).exists()
    with pytest.raises(JobError, match="power of 2"):
        compile_launches(tmp_path, rows(), source=SOURCE.replace("arange(0, B)", "arange(0, 7)"), machine_code=False)


def test_names_comments_and_lines_leave_the_machine_code_alone(tmp_path):
    other = re.sub(r"\brows\b", "zeilen", SOURCE.replace("@triton.jit", "# a comment\n\n@triton.jit")).replace(
        "SCALE", "2.0"
    )
    other = other.replace("def zeilen(x, o, n, B", "def zeilen(quelle, ziel, n, B").replace("x + r", "quelle + r")
    other = other.replace("tl.store(o + r", "tl.store(ziel + r")
    [build] = compile_launches(tmp_path, rows())
    [twin] = compile_launches(
        tmp_path, rows(kernel="zeilen", names=("quelle", "ziel", "n", "B")), source=other, constants={}
    )
    assert twin["key"] != build["key"] and twin["sass_hash"] == build["sass_hash"]
    [faster] = compile_launches(tmp_path, rows(), source=SOURCE.replace("tl.exp(v)", "tl.exp2(v)"))
    assert faster["sass_hash"] != build["sass_hash"]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("r = tl.program_id(0)", "r = tl.program_id(0) + MISSING", "MISSING is not defined"),
        ("c = tl.arange(0, B)", "c = tl.arange(0, 7)", "power of 2"),
        ("return v * SCALE", "return v.nothing", "nothing"),
        ("c = tl.arange(0, B)", "c = open('x')", "open"),
    ],
)
def test_a_compilation_error_has_the_line_of_the_candidate(tmp_path, capfd, old, new, part):
    with pytest.raises(JobError, match=part) as caught:
        compile_launches(tmp_path, rows(), source=SOURCE.replace(old, new))
    assert caught.value.verdict is Verdict.COMPILE_ERROR
    assert caught.value.line == SOURCE[: SOURCE.index(old)].count("\n") + 1
    assert f"`{new}`" in caught.value.message
    assert capfd.readouterr().err == ""


def test_wrong_arguments_are_compile_errors(tmp_path):
    with pytest.raises(JobError, match="rows") as caught:
        compile_launches(tmp_path, rows(names=("x", "o", "m", "B")))
    assert caught.value.verdict is Verdict.COMPILE_ERROR
    with pytest.raises(JobError, match="found: double, rows, matmul"):
        compile_launches(tmp_path, rows(kernel="nothing"))


def test_the_cache_goes_where_it_is_told(tmp_path):
    cache, first, second = (tmp_path / name for name in ("cache", "1", "2"))
    first.mkdir()
    second.mkdir()
    [a] = compile_launches(first, rows(), cache_dir=str(cache))
    entries = sorted(os.listdir(cache))
    [b] = compile_launches(second, rows(), cache_dir=str(cache))
    assert entries and sorted(os.listdir(cache)) == entries and not (first / "triton").exists()
    assert {**a, "compile_s": 0} == {**b, "compile_s": 0}


def test_a_build_that_takes_too_long_ends_before_the_job_has_used_its_time(tmp_path):
    """The job has that of all its builds."""
    payload = {"source": SOURCE, "constants": {"SCALE": 2.0}, "target": "sm_90", "build_s": 1.0}
    minutes = rows(block=1 << 17, n=1 << 17, num_warps=1)
    with Zygote("sm_90", ("compile",)) as zygote:
        for launches, verdict in (([rows()], None), ([rows(), minutes], Verdict.TIMEOUT)):
            folder = tmp_path / str(len(launches))
            folder.mkdir()
            limits = Limits(wall_s=600, cpu_s=600)
            result = zygote.run("compile", {**payload, "launches": launches}, scratch=folder, limits=limits)
            assert result.verdict is verdict, result.message


def test_options_that_bring_in_foreign_code_are_refused(tmp_path):
    source = (
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x):\n    tl.store(x, tl.program_id(0))\n"
    )
    x = {"t": [0, "int32", [16], [1], 0]}
    launch = {"kernel": "k", "args": {"x": x}, "options": {"ir_override": "/tmp/other.ttir"}, "line": 9}
    payload = {"source": source, "constants": {}, "target": "sm_90", "launches": [launch]}
    with pytest.raises(JobError) as caught:
        job(payload, tmp_path)
    assert (caught.value.verdict, caught.value.line) == (Verdict.REJECTED, 9)
    assert "ir_override" in caught.value.message


def staged(stages) -> dict:
    a, b, c = (TensorRef(i, "float16", (64, 64), (64, 1)) for i in range(3))
    args = {"a": a, "b": b, "c": c, "K": 64, "BM": 64, "BN": 64, "BK": 32}
    return {**encoded(Config((1, 1, 1), args, {"num_stages": stages}), "matmul"), "line": 7}


@pytest.mark.parametrize("stages", [-1, 17, 10**7, 2.0, "3", True])
def test_stages_are_a_small_number(tmp_path, stages):
    with pytest.raises(JobError, match=r"num_stages=.* is not allowed; give an integer from 0 to 16") as caught:
        compile_launches(tmp_path, staged(stages))
    assert (caught.value.verdict, caught.value.line) == (Verdict.REJECTED, 7)


def test_each_stage_of_a_pipeline_has_its_own_copies(tmp_path):
    """By which the estimate goes; two loads go through shared memory here."""
    found = compile_launches(tmp_path, *(staged(stages) for stages in (None, 0, 1, 2, 4)))
    copies = [build["ptx_features"]["cp_async"] for build in found]
    loads = copies[3] // 2
    assert loads >= 2 and copies == [3 * loads, 0, 0, 2 * loads, 4 * loads]

"""What prompts say of Triton is true of the version at hand."""

import re
import textwrap

import pytest
import triton

from evo.core.records import Verdict
from fitness.frontend.compile import job
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef, to_json
from fitness.sandbox.jobs import JobError
from operators.llm.pitfalls import PITFALLS, pitfalls

KERNEL = """import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, B: tl.constexpr):
{}
"""
HERE = pitfalls(triton.__version__)
TESTED = [p for p in HERE if p.broken]


def compiled(body, scratch):
    x, y = (TensorRef(b, "float32", (1024,), (1,)) for b in (0, 1))
    config = Config((1, 1, 1), {"x": x, "y": y, "n": 100, "B": 128}, {})
    plan = LaunchPlan((Buffer(4096), Buffer(4096)), (), (), "none", (Launch("kernel", (config,)),))
    raw = to_json(plan)["steps"][0]["configs"][0]
    launch = {"kernel": "kernel", "args": raw["args"], "options": raw["options"]}
    scratch.mkdir()
    source = KERNEL.format(textwrap.indent(body, "    "))
    return job({"source": source, "constants": {}, "target": "sm_90", "launches": [launch]}, scratch)


@pytest.mark.parametrize("pitfall", TESTED, ids=lambda p: p.text[:40])
def test_the_compiler_agrees(pitfall, tmp_path):
    with pytest.raises(JobError) as caught:
        compiled(pitfall.broken, tmp_path / "broken")
    assert caught.value.verdict is Verdict.COMPILE_ERROR
    assert re.search(pitfall.says, caught.value.message), caught.value.message
    assert compiled(pitfall.fixed, tmp_path / "fixed")["builds"]


def test_each_is_one_line_with_a_source():
    assert TESTED
    assert all(
        p.text and "\n" not in p.text and p.source and bool(p.broken) == bool(p.fixed) == bool(p.says) for p in PITFALLS
    )


def test_versions_choose():
    everywhere = [p for p in PITFALLS if p.until == (99, 0)]
    assert all(p in pitfalls("3.6.0+git1234") for p in everywhere)
    assert pitfalls("2.1.0") == []

"""The recorder on honest and dishonest host code, in real sandboxed children; and the warming up of all jobs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evo.core.records import Verdict
from fitness.frontend.memory import FILE_NAME
from fitness.frontend.plan import MOST_TUNED, Copy, Fill, Launch, LaunchPlan, TensorRef, from_json
from fitness.frontend.recording import job as recording
from fitness.frontend.target import get_target
from fitness.sandbox.jobs import JobResult, Limits
from fitness.sandbox.zygote import Zygote

HEAD = """
import math
import numpy as np
import torch
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)
"""
FIRST = HEAD.count("\n") + 1  # line of the source at which a test's own code starts


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("sm_90", jobs=("record",)) as process:
        yield process


class Record:
    """Records one call of `run` and gives the plan, or the failed result."""

    def __init__(self, zygote: Zygote, scratch: Path) -> None:
        self.zygote, self.scratch = zygote, scratch
        self.constants: dict[str, Any] = {}

    def result(self, code: str, *args: Any) -> JobResult:
        call = {"name": "case", "args": [a if isinstance(a, dict) else {"value": a} for a in args]}
        payload = {"source": HEAD + code, "entry": "run", "target": "sm_90", "calls": [call]}
        return self.zygote.run("record", payload, scratch=self.scratch, limits=Limits())

    def __call__(self, code: str, *args: Any) -> LaunchPlan:
        result = self.result(code, *args)
        assert result.status == "ok", result
        assert result.value is not None
        self.constants = result.value["constants"]
        return from_json(result.value["plans"]["case"])


@pytest.fixture
def record(zygote: Zygote, tmp_path: Path) -> Record:
    return Record(zygote, tmp_path)


def tensor(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> dict[str, Any]:
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return {"tensor": {"shape": list(shape), "strides": list(strides or dense), "dtype": dtype}}


def only_launch(plan: LaunchPlan) -> Launch:
    (launch,) = plan.launches
    return launch


# --- honest ----------------------------------------------------------------------------------------------------------


def test_plain_launch(record: Record) -> None:
    plan = record(
        """
def run(x):
    y = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), 2.5, BLOCK=128, num_warps=8)
    return y
""",
        tensor(10, 100),
    )
    launch = only_launch(plan)
    (config,) = launch.configs
    assert (launch.kernel, config.grid, config.label) == ("scale", (8, 1, 1), "")
    assert config.options == {"num_warps": 8}
    x = TensorRef(0, "float32", (10, 100), (100, 1))
    y = TensorRef(1, "float32", (10, 100), (100, 1))
    assert config.args == {"x": x, "y": y, "n": 1000, "factor": 2.5, "BLOCK": 128}
    assert plan.inputs == (x,) and plan.outputs == (y,) and plan.structure == "tensor"
    assert [b.input for b in plan.buffers] == [0, None]
    assert launch.line == FIRST + 3
    assert len(plan.steps) == 1


def test_views_have_offsets_and_cost_nothing(record: Record) -> None:
    plan = record(
        """
def run(x):
    out = x.new_empty(6, 10)
    scale[(1,)](x[2:, 3], out.t()[1].view(2, 3), 6, 1.0, BLOCK=8)
    return out.view(60)[6:].reshape(9, 6)
""",
        tensor(8, 10),
    )
    (config,) = only_launch(plan).configs
    assert config.args["x"] == TensorRef(0, "float32", (6,), (10,), 23)
    assert config.args["y"] == TensorRef(1, "float32", (2, 3), (30, 10), 1)
    assert plan.outputs == (TensorRef(1, "float32", (9, 6), (6, 1), 6),)
    assert len(plan.steps) == 1 and len(plan.buffers) == 2


def test_a_view_with_another_dtype_stays_on_its_buffer(record: Record) -> None:
    plan = record(
        """
def run(x):
    scale[(1,)](x.view(torch.int16)[2:], x, 6, 1, BLOCK=8)
""",
        tensor(8),
    )
    (config,) = only_launch(plan).configs
    assert config.args["x"] == TensorRef(0, "int16", (14,), (1,), 2)
    assert (plan.structure, plan.outputs) == ("none", ())


def test_copies_and_casts(record: Record) -> None:
    plan = record(
        """
def run(x):
    a = x.t().contiguous()
    b = x.half()
    c = x[0].expand(3, 4).contiguous()
    d = torch.empty(4, 4, device=x.device, dtype=torch.bfloat16)
    d[1:] = c
    d.copy_(x[0])
    e = a.to(device="cuda", dtype=torch.int32)
    scale[(1,)](a, b, 1, 1, BLOCK=8)
    return a, b, c, d, e
""",
        tensor(4, 4),
    )
    copies = [s for s in plan.steps if isinstance(s, Copy)]
    x = TensorRef(0, "float32", (4, 4), (4, 1))
    assert copies[0] == Copy(TensorRef(1, "float32", (4, 4), (4, 1)), TensorRef(0, "float32", (4, 4), (1, 4)))
    assert copies[1] == Copy(TensorRef(2, "float16", (4, 4), (4, 1)), x)
    assert copies[2].src == TensorRef(0, "float32", (3, 4), (0, 1))
    assert copies[3].dst == TensorRef(4, "bfloat16", (3, 4), (4, 1), 4)
    assert copies[4] == Copy(TensorRef(4, "bfloat16", (4, 4), (4, 1)), TensorRef(0, "float32", (4, 4), (0, 1)))
    assert copies[5] == Copy(TensorRef(5, "int32", (4, 4), (4, 1)), TensorRef(1, "float32", (4, 4), (4, 1)))
    assert len(copies) == 6 and not plan.delegated


def test_fills(record: Record) -> None:
    plan = record(
        """
def run(x):
    a = torch.zeros(3, device="cuda")
    b = torch.full((2,), float("-inf"), device="cuda")
    c = torch.empty(4, dtype=torch.int64, device="cuda")
    c[1:3] = 7
    c[0].fill_(2)
    d = torch.ones_like(x)
    d.zero_()
    e = x.new_tensor([1.5, 2.5])
    scale[(1,)](e, a, 1, 1, BLOCK=8)
    return a, b, c, d
""",
        tensor(4),
    )
    fills = [s for s in plan.steps if isinstance(s, Fill)]
    assert [(f.dst.buffer, f.dst.shape, f.dst.offset, f.value) for f in fills] == [
        (1, (3,), 0, 0),
        (2, (2,), 0, -math.inf),
        (3, (2,), 1, 7),
        (3, (), 0, 2),
        (plan.outputs[3].buffer, (4,), 0, 1),
        (plan.outputs[3].buffer, (4,), 0, 0),
        (fills[-1].dst.buffer, (1,), 0, 1.5),
        (fills[-1].dst.buffer, (1,), 1, 2.5),
    ]
    assert not plan.delegated


TUNED = """
configs = [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (128, 4), (4096, 8))]

def prune(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= named_args["n"]]
"""


def test_autotune_gives_one_launch_with_all_configurations(record: Record) -> None:
    plan = record(
        TUNED
        + """
@triton.autotune(configs=configs, key=["n"], prune_configs_by={"early_config_prune": prune}, reset_to_zero=["y"])
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

def run(x):
    y = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
""",
        tensor(1000),
    )
    launch = only_launch(plan)
    assert launch.kernel == "tuned" and launch.line == FIRST + 14
    assert [(c.grid[0], c.args["BLOCK"], c.options["num_warps"]) for c in launch.configs] == [(16, 64, 2), (8, 128, 4)]
    assert launch.configs[0].label.startswith("BLOCK: 64, num_warps: 2")
    assert len(plan.steps) == 1


@pytest.mark.parametrize("outer", ["autotune", "heuristics"])
def test_autotune_and_heuristics_in_either_order(record: Record, outer: str) -> None:
    decorators = [
        '@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"])',
        '@triton.heuristics({"EVEN": lambda args: args["n"] % 8 == 0})',
    ]
    plan = record(
        "\n".join(decorators if outer == "autotune" else decorators[::-1])
        + """
@triton.jit
def both(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

def run(x):
    y = torch.empty_like(x)
    both[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]), 1 + meta["EVEN"])](x, y, x.numel())
    return y
""",
        tensor(1000),
    )
    configs = only_launch(plan).configs
    assert [(c.grid, c.args["BLOCK"], c.args["EVEN"]) for c in configs] == [
        ((16, 2, 1), 64, True),
        ((8, 2, 1), 128, True),
    ]


def test_helpers_constants_and_kernel_arguments(record: Record) -> None:
    plan = record(
        """
EPS = tl.constexpr(1e-5)
HUGE = tl.constexpr(float("inf"))
TYPE = tl.float16
DEFAULT = 32
UNUSED = tl.constexpr(3)

@triton.jit
def helper(v, BIAS: tl.constexpr = DEFAULT):
    return (v + EPS + BIAS).to(TYPE)

also_helper = helper

@triton.jit
def twice(v):
    return v * 2

@triton.jit
def kernel(x, y, ACT: tl.constexpr, OUT: tl.constexpr, flag, none, BLOCK: tl.constexpr = 16):
    i = tl.arange(0, BLOCK)
    v = tl.minimum(also_helper(tl.load(x + i)), HUGE)
    tl.store(y + i, ACT(v).to(OUT))

def run(x):
    y = torch.empty_like(x)
    kernel[(np.int64(1), tl.constexpr(2))](x, y, twice, tl.float32, True, None)
    return y
""",
        tensor(16),
    )
    (config,) = only_launch(plan).configs
    assert config.grid == (1, 2, 1)
    assert {k: v for k, v in config.args.items() if k not in "xy"} == {
        "ACT": {"jit": "twice"}, "OUT": {"dtype": "fp32"}, "flag": True, "none": None, "BLOCK": 16,
    }  # fmt: skip
    assert record.constants == {
        "EPS": 1e-5, "HUGE": {"f": "inf"}, "TYPE": {"dtype": "fp16"}, "DEFAULT": 32, "also_helper": {"jit": "helper"},
    }  # fmt: skip


def test_several_kernels_and_dict_outputs(record: Record) -> None:
    plan = record(
        """
@triton.jit
def second(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1)

def run(x, n, flag, name):
    y, z = torch.empty_like(x), torch.empty(n, device=x.device)
    for part in range(2):
        scale[(1,)](x, y, n, 0.5, BLOCK=16)
    second[(0,)](z, BLOCK=16)
    second[(1, 1, 1)](z, BLOCK=16)
    return {"y": y, "z": z}
""",
        tensor(16),
        5,
        True,
        "text",
    )
    assert [s.kernel for s in plan.launches] == ["scale", "scale", "second"]
    assert plan.structure == "dict:y,z" and len(plan.outputs) == 2
    assert plan.inputs[1:] == (5, True, "text")


def test_device_facts_are_the_targets(record: Record) -> None:
    plan = record(
        """
def run(x):
    assert x.is_cuda and not x.is_cpu and x.device == torch.device("cuda", 0) and x.get_device() == 0
    assert torch.cuda.is_available() and torch.cuda.current_device() == 0 and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0) and x.data_ptr() % 256 == 0 and x[1:].data_ptr() % 256 == 4
    assert triton.runtime.driver.active.get_current_target().arch == 90
    limits = triton.runtime.driver.active.utils.get_device_properties(x.device.index)
    assert limits["max_shared_mem"] > 200_000
    properties = torch.cuda.get_device_properties(x.device)
    assert properties.multi_processor_count == limits["multiprocessor_count"]
    y = torch.empty_like(x)
    with torch.cuda.device(x.device), torch.device("cuda"):
        z = torch.empty(3)
        scale[(properties.multi_processor_count,)](x, z.cuda(), 3, 1.0, BLOCK=8)
    torch.cuda.synchronize()
    return y.to("cuda")
""",
        tensor(16),
    )
    assert only_launch(plan).configs[0].grid == (get_target("sm_90").multiprocessors, 1, 1)


def test_host_tensors_move_to_the_device_by_a_copy(record: Record) -> None:
    plan = record(
        """
def run(x):
    table = torch.zeros(8)
    assert not table.is_cuda and table.device.type == "cpu"
    table = table.to(x.device)
    assert table.is_cuda
    scale[(1,)](table, x, 8, 1.0, BLOCK=8)
    return x
""",
        tensor(8),
    )
    fill, copy, launch = plan.steps
    assert isinstance(fill, Fill) and isinstance(copy, Copy) and isinstance(launch, Launch)
    assert copy.src == fill.dst and launch.configs[0].args["x"] == copy.dst


def test_nothing_is_carried_from_one_call_to_the_next(zygote: Zygote, tmp_path: Path) -> None:
    source = (
        HEAD
        + """
CACHE = {}
def run(x):
    if "y" not in CACHE:
        CACHE["y"] = torch.empty_like(x)
        scale[(1,)](x, CACHE["y"], x.numel(), 2.0, BLOCK=16)
    return CACHE["y"]
"""
    )
    calls = [{"name": name, "args": [tensor(16)]} for name in ("first", "second")]
    payload = {"source": source, "entry": "run", "target": "sm_90", "calls": calls}
    result = zygote.run("record", payload, scratch=tmp_path, limits=Limits())
    assert result.value is not None
    plans = result.value["plans"]
    assert plans["first"] == plans["second"] and len(from_json(plans["second"]).launches) == 1


# --- delegation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "operator"),
    [
        ("torch.softmax(x, -1)", "aten._softmax.default"),
        ("x @ x.t()", "aten.mm.default"),
        ("x.sum(0)", "aten.sum.dim_IntList"),
        ("x + 1", "aten.add.Tensor"),
        ("x.mul_(2)", "aten.mul_.Tensor"),
        ("torch.add(x, x, out=torch.empty_like(x))", "aten.add.out"),
        ("torch.cat([x, x])", "aten.cat.default"),
        ("torch.arange(4, device='cuda')", "aten.arange.default"),
    ],
)
def test_other_work_is_an_op_with_its_line(record: Record, expression: str, operator: str) -> None:
    plan = record(f"def run(x):\n    return {expression}\n", tensor(4, 4))
    (op,) = plan.delegated
    assert (op.name, op.line) == (operator, FIRST + 1)
    assert op.outputs == plan.outputs


def test_arguments_of_an_op(record: Record) -> None:
    plan = record("def run(x):\n    return torch.sum(x[1:], (0,), dtype=torch.float64)\n", tensor(4, 4))
    (op,) = plan.delegated
    window = TensorRef(0, "float32", (3, 4), (4, 1), 4)
    assert op.args == (window, (0,)) and op.kwargs == {"dtype": {"dtype": "float64"}}
    assert op.outputs == (TensorRef(1, "float64", (4,), (1,)),)


# --- refused ---------------------------------------------------------------------------------------------------------

LAUNCH = "scale[(1,)](x, x, 4, 1.0, BLOCK=4)"


@pytest.mark.parametrize(
    ("body", "verdict", "words"),
    [
        ("if x[0, 0].item() > 0: pass", Verdict.UNSUPPORTED, "_local_scalar_dense"),
        ("if x.sum() > 0: pass", Verdict.UNSUPPORTED, "_local_scalar_dense"),
        ("x.tolist()", Verdict.UNSUPPORTED, "_local_scalar_dense"),
        ("x.nonzero()", Verdict.UNSUPPORTED, "nonzero"),
        ("x[x > 0]", Verdict.UNSUPPORTED, "aten.index.Tensor"),
        ("x.cpu()", Verdict.UNSUPPORTED, "host"),
        ("np.asarray(x)", Verdict.UNSUPPORTED, "host"),
        ("torch.rand(4, device='cuda')", Verdict.REJECTED, "random"),
        ("torch.nn.functional.dropout(x)", Verdict.REJECTED, "random"),
        ("torch.empty(1 << 40, device='cuda')", Verdict.OUT_OF_MEMORY, "GiB"),
        ("x.resize_(1000)", Verdict.UNSUPPORTED, "resize_"),
        ("torch.cuda.Event(enable_timing=True)", Verdict.UNSUPPORTED, "Event"),
        ("torch.zeros(4, dtype=torch.complex64, device='cuda')", Verdict.UNSUPPORTED, "complex64"),
        (LAUNCH + ".n_regs", Verdict.UNSUPPORTED, "n_regs"),
        ("scale[(1,)](torch.zeros(4), x, 4, 1.0, BLOCK=4)", Verdict.RUNTIME_ERROR, "cpu tensor"),
        ("scale[(1,)](x, x, 4, BLOCK=4)", Verdict.RUNTIME_ERROR, "missing a required argument: 'factor'"),
        ("scale[(1,)](x, x, 4, 1.0, BLOCK=4, num_wraps=4)", Verdict.RUNTIME_ERROR, "num_wraps"),
        ("scale[(1,)](x, x, 4, 1.0, BLOCK=4, num_warps=3)", Verdict.RUNTIME_ERROR, "power of 2"),
        ("scale[(1, 70000)](x, x, 4, 1.0, BLOCK=4)", Verdict.RUNTIME_ERROR, "grid"),
        ("scale[(1.5,)](x, x, 4, 1.0, BLOCK=4)", Verdict.RUNTIME_ERROR, "float"),
        ("1 / 0", Verdict.RUNTIME_ERROR, "ZeroDivisionError"),
        ("return 3", Verdict.WRONG, "returned int"),
        ("return x, 'text'", Verdict.WRONG, "str"),
        ("return torch.zeros(3)", Verdict.WRONG, "host memory"),
        ("return torch.Tensor(3)", Verdict.WRONG, "host memory"),
        ("return torch.ones(3) + 1", Verdict.WRONG, "host memory"),
        ("return x.cuda(1)", Verdict.RUNTIME_ERROR, "there is one GPU"),
        ("while True: scale[(1,)](x, x, 4, 1.0, BLOCK=4)", Verdict.UNSUPPORTED, "steps"),
    ],
)
def test_refused(record: Record, body: str, verdict: Verdict, words: str) -> None:
    result = record.result(f"def run(x):\n    {body}\n    return x\n", tensor(4, 4))
    assert (result.verdict, result.value) == (verdict, None), result
    assert words in result.message
    assert result.line == (0 if verdict is Verdict.WRONG else FIRST + 1)


def test_a_caught_refusal_still_decides(record: Record) -> None:
    code = "def run(x):\n    try:\n        x.sum().item()\n    except Exception:\n        pass\n    return x\n"
    result = record.result(code, tensor(4))
    assert (result.verdict, result.line) == (Verdict.UNSUPPORTED, FIRST + 2)


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("def run(x:\n", FIRST, "not Python"),
        ("import no_such_module\n", FIRST, "No module named"),
        ("x = undefined\n", FIRST, "'undefined' is not defined"),
        ("def other(x): pass\n", 0, "expected a function 'run'"),
        (
            "WIDTH = 4\n\n@triton.jit\ndef k(x):\n    tl.store(x, WIDTH)\ndef run(x):\n    k[(1,)](x)\n",
            FIRST + 4,
            "WIDTH = tl.constexpr(4)",
        ),
    ],
)
def test_what_cannot_be_compiled(record: Record, code: str, line: int, words: str) -> None:
    result = record.result(code, tensor(4))
    assert (result.verdict, result.line) == (Verdict.COMPILE_ERROR, line), result
    assert words in result.message


KERNEL = "@triton.jit\ndef k(x, B: tl.constexpr):\n    tl.store(x, B)\n"


@pytest.mark.parametrize(
    ("decorator", "verdict", "words"),
    [
        ("[triton.Config({'B': 1}, pre_hook=lambda args: None)], key=[]", Verdict.UNSUPPORTED, "pre_hook"),
        ("[triton.Config({'B': b}) for b in range(65)], key=[]", Verdict.UNSUPPORTED, "at most 64"),
    ],
)
def test_autotune_that_cannot_be_recorded(record: Record, decorator: str, verdict: Verdict, words: str) -> None:
    result = record.result(f"@triton.autotune({decorator})\n{KERNEL}\ndef run(x):\n    k[(1,)](x)\n", tensor(4))
    assert result.verdict is verdict and words in result.message
    assert result.line == FIRST + 6


def test_configurations_of_all_launches_have_a_limit(record: Record) -> None:
    code = "@triton.autotune([triton.Config({'B': b}) for b in range(64)], key=[])\n" + KERNEL
    code += "def run(x):\n    for _ in range(COUNT):\n        k[(1,)](x)\n"
    assert len(record(code.replace("COUNT", "16"), tensor(4)).launches) == MOST_TUNED // 64 == 16
    result = record.result(code.replace("COUNT", "17"), tensor(4))
    assert (result.verdict, result.line) == (Verdict.UNSUPPORTED, FIRST + 6), result
    assert f"1088 autotune configurations in all launches together, at most {MOST_TUNED}" in result.message
    single = code.replace("range(64)", "range(1)").replace("COUNT", "1200")  # there is nothing to choose from
    assert len(record(single, tensor(4)).launches) == 1200


def test_a_host_descriptor_is_refused_with_its_line(record: Record) -> None:
    code = """
from triton.tools.tensor_descriptor import TensorDescriptor
def run(x):
    d = TensorDescriptor.from_tensor(x, [4, 4])
    scale[(1,)](d, x, 4, 1.0, BLOCK=4)
"""
    result = record.result(code, tensor(16, 16))
    assert (result.verdict, result.line) == (Verdict.UNSUPPORTED, FIRST + 4)
    assert "tl.make_tensor_descriptor" in result.message


def test_a_kernel_defined_in_a_function_is_refused(record: Record) -> None:
    code = "def run(x):\n    @triton.jit\n    def k(x):\n        tl.store(x, 1)\n    k[(1,)](x)\n"
    result = record.result(code, tensor(16))
    assert (result.verdict, result.line) == (Verdict.UNSUPPORTED, FIRST + 4)
    assert "top-level" in result.message


def test_each_job_gets_what_the_one_before_made_of_the_sample() -> None:
    seen: dict[str, tuple[Mapping[str, Any], list[str]]] = {}

    def job(name: str) -> Any:
        def run(payload: Mapping[str, Any], scratch: Path) -> Mapping[str, Any]:
            seen[name] = payload, [p.name for p in scratch.iterdir()]
            return {}

        return run

    others = ("compile", "interpret", "trace")
    before = set(sys.modules)  # other tests of this process may have left theirs
    recording.warm_up({"record": recording.job, **{name: job(name) for name in others}}, "sm_90")
    assert tuple(seen) == others
    assert [launch["kernel"] for launch in seen["compile"][0]["launches"]] == ["kernel"]
    plan = from_json(seen["interpret"][0]["plan"])
    assert len(plan.launches) == 1 and not plan.delegated
    assert FILE_NAME in seen["interpret"][1]
    assert seen["trace"][0]["cases"][0]["plan"] == seen["interpret"][0]["plan"]
    assert not any(name.startswith("candidate") for name in set(sys.modules) - before)

"""From a source to Work for the GPU, through real sandboxed children."""

from __future__ import annotations

from typing import Any

import pytest

from evo.core.records import Verdict
from fitness.frontend.build_cache import BuildCache, build_key
from fitness.frontend.freeze import freeze
from fitness.frontend.kernels import kernel_sources
from fitness.frontend.plan import MOST_TUNED, Config, Launch, LaunchPlan, TensorRef, to_json
from fitness.frontend.stages import Stop
from fitness.gpu import launch_bundle as steps
from fitness.gpu.launch_bundle import Built, Unbuildable, build, cubins, make_bundle, record
from fitness.sandbox.jobs import JobResult, Limits
from fitness.sandbox.zygote import Zygote
from fitness.tasks.calls import CPU, Calls
from fitness.tasks.task import load_task
from operators.rewrites.configs import inlined


@pytest.fixture(scope="module")
def zygote():
    with Zygote("sm_90", ("record", "compile")) as zygote:
        yield zygote


def bundle_of(source, zygote, tmp_path):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    return make_bundle(source, task, calls, zygote=zygote, target="sm_90", scratch=tmp_path, limits=Limits())


def test_every_launch_has_its_machine_code_and_can_be_packed(zygote, tmp_path):
    pytest.importorskip("cuda.bindings")
    from fitness.cuda.launcher import pack

    task = load_task("softmax")
    work = bundle_of(task.seed_source, zygote, tmp_path)
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
        bundle_of(f"import torch\n\ndef softmax(x):\n    {body}\n", zygote, tmp_path)
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
    work = bundle_of(TUNED.replace("WRONG", "* 2"), zygote, tmp_path)
    for (by_config,) in work.builds.values():
        assert [build["num_warps"] for build in by_config] == [1, 2, 4, 8, 16]
        assert len({build["sass_hash"] for build in by_config}) == 5
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {"build0", "build1", "build2"}
    built = {b["cubin"] for launches in work.builds.values() for by_config in launches for b in by_config}
    assert set(work.cubins) == built
    again = bundle_of(TUNED.replace("WRONG", "* 3"), zygote, tmp_path)  # in the same folder
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
            for name, by_launch in bundle_of(s, zygote, tmp_path).builds.items()
        }
        for s in (one, inlined(one))
    )
    assert tuned == plain


def test_an_error_in_one_of_many_configurations_is_told_with_its_line(zygote, tmp_path):
    with pytest.raises(Stop) as stop:
        bundle_of(TUNED.replace("WRONG", "+ tl.arange(0, BLOCK // (256 // BLOCK))"), zygote, tmp_path)
    assert (stop.value.stage, stop.value.verdict) == ("compile", Verdict.COMPILE_ERROR)
    assert "line 14" in stop.value.message


# A kernel that says which configurations are for which sizes: of narrow rows, at least LEAST columns a block.
PICKY = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in CONFIGS], key=["n_columns"])
@triton.jit
def kernel(x, y, n_columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= LEAST or WIDTH > 256, "too small a block")
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    for start in range(0, n_columns, BLOCK):
        mask = start + columns < n_columns
        at = row * n_columns + start + columns
        tl.store(y + at, tl.load(x + at, mask=mask)WRONG, mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return y
"""
WIDTHS = (200, 500, 1000)


def picky(least: int = 0, configs: str = "((64, 1), (128, 2), (256, 4))", wrong: str = "") -> str:
    return PICKY.replace("LEAST", str(least)).replace("CONFIGS", configs).replace("WRONG", wrong)


class Counting:
    """A zygote that counts what it is asked to compile."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self.jobs: list[int] = []  # launches of each

    def run(self, job: str, payload: dict[str, Any], **options: Any) -> Any:
        if job == "compile":
            self.jobs.append(len(payload["launches"]))
        return self._zygote.run(job, payload, **options)


def built_of(
    source: str, zygote: Any, scratch: Any, *, cache: BuildCache | None = None, cases: tuple[str, ...] | None = None
) -> tuple[dict[str, LaunchPlan], Built]:
    """The plans of `source` at three widths, and what is built of them."""
    scratch.mkdir()
    options = {"zygote": zygote, "target": "sm_90", "limits": Limits(), "scratch": scratch}
    tensors = [{"shape": [4, width], "strides": [width, 1], "dtype": "float32"} for width in WIDTHS]
    calls = [{"name": f"{w}", "args": [{"tensor": t}]} for w, t in zip(WIDTHS, tensors, strict=True)]
    recorded = record(source, load_task("softmax"), calls, **options)
    return recorded.plans, build(source, recorded.plans, recorded.constants, cache=cache, cases=cases, **options)


def blocks(plans: dict[str, LaunchPlan]) -> dict[str, list[Any]]:
    return {name: [c.args["BLOCK"] for c in plan.launches[0].configs] for name, plan in plans.items()}


def test_launches_that_are_the_same_are_compiled_once(zygote, tmp_path):
    counting = Counting(zygote)
    launch = next(line for line in picky().splitlines() if "kernel[" in line)
    many = picky().replace(launch, "\n".join([launch] * 5))
    _, built = built_of(many, counting, tmp_path / "many")
    assert sum(counting.jobs) == len(WIDTHS) * 3  # configurations
    for by_launch in built.builds.values():
        assert [[b["num_warps"] for b in by_config] for by_config in by_launch] == [[1, 2, 4]] * 5


class Recording:
    """A zygote whose recorder says that a kernel is launched so often, with so many configurations each."""

    def __init__(self, launches: int, configurations: int) -> None:
        configs = tuple(Config((1, 1, 1), {}, {}, f"BLOCK: {n}") for n in range(configurations))
        self._plan = LaunchPlan((), (), (), "none", (Launch("kernel", configs),) * launches)

    def run(self, job: str, payload: Any, **options: Any) -> JobResult:
        return JobResult("ok", {"plans": {"any": to_json(self._plan)}, "constants": {}})


@pytest.mark.parametrize(("launches", "configurations"), [(MOST_TUNED // 64, 64), (3 * MOST_TUNED, 1)])
def test_plans_may_have_many_launches_or_configurations(tmp_path, launches, configurations):
    recorded = recorded_by(Recording(launches, configurations), tmp_path)
    assert len(recorded.plans["any"].launches) == launches


def test_no_recorder_may_say_that_more_is_to_be_tried(tmp_path):
    with pytest.raises(Stop, match="2050 autotune configurations in all launches together, at most 1024") as caught:
        recorded_by(Recording(MOST_TUNED + 1, 2), tmp_path)
    assert (caught.value.stage, caught.value.verdict) == ("record", Verdict.UNSUPPORTED)


def recorded_by(zygote: Any, scratch: Any) -> Any:
    call = {"name": "any", "args": []}
    return record("", load_task("softmax"), [call], zygote=zygote, target="sm_90", scratch=scratch, limits=Limits())


def test_a_configuration_that_triton_leaves_out_is_left_out_of_all_cases(zygote, tmp_path):
    plans, built = built_of(picky(least=128), zygote, tmp_path / "all")
    assert blocks(plans) == {"200": [64, 128, 256], "500": [64, 128, 256], "1000": [64, 128, 256]}
    assert blocks(built.plans) == {"200": [128, 256], "500": [128, 256], "1000": [128, 256]}
    for (by_config,) in built.builds.values():
        assert [b["num_warps"] for b in by_config] == [2, 4]
    [said] = built.left_out
    assert said.startswith("BLOCK: 64, num_warps: 1,") and "kernel kernel: too small a block in `tl.static" in said
    chosen = {"kernel": built.plans["500"].launches[0].configs[0]}
    assert "[triton.Config({'BLOCK': 128}, num_warps=2" in freeze(picky(least=128), chosen)


def test_it_is_left_out_of_cases_that_are_not_compiled_too(zygote, tmp_path):
    _, built = built_of(picky(least=128), zygote, tmp_path / "one", cases=("200",))
    assert list(built.builds) == ["200"]
    assert blocks(built.plans) == {"200": [128, 256], "500": [128, 256], "1000": [128, 256]}
    _, built = built_of(picky(least=128), zygote, tmp_path / "other", cases=("500",))
    assert blocks(built.plans)["200"] == [64, 128, 256] and built.left_out == ()


def test_what_ptxas_refuses_is_left_out(zygote, tmp_path):
    text = '"mov.f32 $0, $1;" if BLOCK < 128 else "nonsense $0, $1;"'
    assembly = f" + tl.inline_asm_elementwise({text}, '=f,f', [mask.to(tl.float32)], tl.float32, True, 1)"
    _, built = built_of(picky(configs="((64, 4), (128, 4))", wrong=assembly), zygote, tmp_path / "ptxas")
    assert blocks(built.plans) == {"200": [64], "500": [64], "1000": [64]}
    assert len(built.left_out) == 1 and "PTXAS error" in built.left_out[0]


# Tiles of 16 KiB, two a stage, that wait in shared memory for their turn: those of nine stages are more than there is.
PIPELINED = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 64}, num_stages=s, num_warps=4) for s in STAGES], key=["n_columns"])
@triton.jit
def kernel(x, y, n_columns, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n_columns, BLOCK):
        tile = tl.load(x + (start + 2 * rows)[:, None] * BLOCK + rows[None, :])
        other = tl.load(x + (start + rows)[:, None] * BLOCK + rows[None, :])
        total = tl.dot(tile, other, total)
    tl.store(y + rows[:, None] * BLOCK + rows[None, :], total)


def softmax(x):
    y = torch.empty((64, 64), device=x.device)
    kernel[(1,)](x, y, x.shape[1])
    return y
"""


def test_a_configuration_that_needs_more_than_the_device_has_is_left_out(zygote, tmp_path):
    _, built = built_of(PIPELINED.replace("STAGES", "(9, 1)"), zygote, tmp_path / "some")
    assert [c.options["num_stages"] for c in built.plans["200"].launches[0].configs] == [1]
    [said] = built.left_out
    assert "num_stages: 9" in said and "bytes of shared memory, a program on NVIDIA H200 has" in said
    with pytest.raises(Unbuildable, match=r"kernel kernel: needs \d+ bytes of shared memory") as stop:
        built_of(PIPELINED.replace("STAGES", "(9, 10)"), zygote, tmp_path / "none")
    assert (stop.value.stage, stop.value.verdict) == ("screen", Verdict.OUT_OF_MEMORY)


def test_stages_of_all_configurations_are_looked_at(zygote, tmp_path):
    with pytest.raises(Stop, match="num_stages=-1 is not allowed") as stop:
        built_of(PIPELINED.replace("STAGES", "(1, -1)"), zygote, tmp_path / "some")
    assert (stop.value.stage, stop.value.verdict) == ("compile", Verdict.REJECTED)


@pytest.mark.parametrize("configs", ["((64, 1), (128, 2))", "((64, 1),)"])
def test_a_kernel_without_a_configuration_is_a_compile_error(zygote, tmp_path, configs):
    with pytest.raises(Unbuildable, match="line 10: kernel kernel: too small a block in `tl") as stop:
        built_of(picky(least=256, configs=configs), zygote, tmp_path / "none")
    assert (stop.value.stage, stop.value.verdict, stop.value.kernel) == ("compile", Verdict.COMPILE_ERROR, "kernel")
    assert [(f.rule, f.line) for f in stop.value.findings] == [("compile", 10)]


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (" + missing", "missing is not defined"),
        (" + tl.arange(0, BLOCK // 2)", "line 15"),  # shapes that do not go together
        (" + tl.arange(0, 65536 // BLOCK)", "line 15"),  # they do for 256: Triton does not go on all the same
    ],
)
def test_other_errors_are_those_of_the_candidate(zygote, tmp_path, wrong, part):
    with pytest.raises(Stop, match=part) as stop:
        built_of(picky(least=128, wrong=wrong), zygote, tmp_path / "wrong")
    assert (stop.value.verdict, type(stop.value)) == (Verdict.COMPILE_ERROR, Stop)


def test_that_it_cannot_be_compiled_is_known_too(zygote, tmp_path):
    cache = BuildCache()
    _, first = built_of(picky(least=128), zygote, tmp_path / "first", cache=cache)
    again = Counting(zygote)
    _, second = built_of(picky(least=128), again, tmp_path / "second", cache=cache)
    assert again.jobs == [] and second.left_out == first.left_out and second.plans == first.plans
    moved = "# a line more\n" + picky(least=128, configs="((64, 1),)")
    with pytest.raises(Unbuildable, match="line 11: "):
        built_of(moved, again, tmp_path / "third", cache=cache)
    assert again.jobs == []


def test_jobs_are_made_by_what_differs(zygote, tmp_path, monkeypatch):
    """A build for each width and configuration, on jobs of their own; and none of them twice."""
    monkeypatch.setattr(steps, "CONFIGS_A_JOB", 1)
    monkeypatch.setattr(steps, "COMPILE_JOBS", 6)
    counting = Counting(zygote)
    launch = "    kernel[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]))\n"
    other = launch.replace("(x, y,", "(y, y,")  # of other memory, which makes no other build
    source = picky(configs="((64, 1), (128, 2), (64, 1))").replace(launch, launch + other)
    _, both = built_of(source, counting, tmp_path / "jobs")
    assert all(first == second for first, second in both.builds.values())
    built = {name: first for name, (first, _) in both.builds.items()}
    every = [b for by_config in built.values() for b in by_config]
    assert len({b["key"] for b in every}) == 6 and counting.jobs == [2] * 6
    assert len({b["cubin"] for b in every}) == 6  # each compiled once, by one of the jobs
    for by_case in zip(*built.values(), strict=True):
        assert (
            len({b["cubin"].split("/")[0] for b in by_case}) == 3
        )  # a configuration of several widths is several jobs'


def test_what_is_dealt_comes_by_turns_that_begin_anew_with_another_job():
    assert steps._dealt([[i] for i in range(9)], 2, 3) == [[[0], [5], [7]], [[1], [3], [8]], [[2], [4], [6]]]
    assert steps._dealt([[0, 1], [2]], 2, 3) == [[[0, 1], [2]]]
    assert steps._dealt([[0, 1], [2]], 1, 3) == [[[0, 1]], [[2]]]


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
    return build_key(kernel_sources(source), {"SCALE": scale}, "sm_90", launch)


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
    short = build_key(kernel_sources(HELPED.format(factor="3", addend="1")), {"SCALE": 2.0}, "sm_90",
                      {"kernel": "scale", **LAUNCH}, machine_code=False)  # fmt: skip
    assert len({same, *changed, short}) == 7
    assert key_of("other") == key_of("other", factor="4", scale=3.0)


def test_what_cannot_be_known_has_no_key():
    assert key_of("missing") == ""
    assert key_of("scale", args={"x": {"jit": "helper"}}) == ""
    assert build_key(kernel_sources("def broken("), {}, "sm_90", {"kernel": "f", **LAUNCH}) == ""


def test_what_is_known_is_not_compiled_again(zygote, tmp_path):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    options = {"zygote": zygote, "target": "sm_90", "limits": Limits()}
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    recorded = record(task.seed_source, task, calls, scratch=tmp_path / "first", **options)
    cache = BuildCache()
    rest = {**options, "cache": cache}
    first = build(task.seed_source, recorded.plans, recorded.constants, scratch=tmp_path / "first", **rest)
    rest["zygote"] = None  # nothing may be asked of it
    second = build(task.seed_source, recorded.plans, recorded.constants, scratch=tmp_path / "second", **rest)
    assert first.plans == second.plans == recorded.plans
    machine_code = cubins(first.builds, tmp_path / "first")
    again = cubins(second.builds, tmp_path / "second")
    for name, launches in first.builds.items():
        for ours, theirs in zip(launches, second.builds[name], strict=True):
            assert [{**b, "cubin": ""} for b in ours] == [{**b, "cubin": ""} for b in theirs]
            assert [machine_code[b["cubin"]] for b in ours] == [again[b["cubin"]] for b in theirs]


def test_nothing_that_a_source_left_is_met_by_what_follows(zygote, tmp_path):
    """Not folders where builds are to be made, and no link through which one would be written."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / "own").mkdir()
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    options = {"zygote": zygote, "target": "sm_90", "scratch": tmp_path / "own", "limits": Limits()}
    cache, kernels = BuildCache(), kernel_sources(task.seed_source)
    plain = record(task.seed_source, task, calls, **options)
    build(task.seed_source, plain.plans, plain.constants, cache=cache, **options)
    launches, _ = steps._launches(plain.plans)
    names = [build_key(kernels, plain.constants, "sm_90", launch) + ".cubin" for launch in launches]
    left = f"""
import os
for name in {names}:
    if not os.path.lexists(name):
        os.symlink({str(victim)!r}, name)
for number in range(9):
    os.makedirs(f"build{{number}}", exist_ok=True)
"""
    again = record(task.seed_source + left, task, calls, **options)
    built = build(task.seed_source, again.plans, again.constants, cache=cache, **options)
    assert all(cubins(built.builds, tmp_path / "own").values())
    assert victim.read_bytes() == b"untouched"


def test_machine_code_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link.cubin").symlink_to(tmp_path / "secret")
    with pytest.raises(Stop, match="do not hold together") as caught:
        cubins({"case": [[{"cubin": "link.cubin"}]]}, tmp_path)
    assert (caught.value.stage, caught.value.verdict) == ("compile", Verdict.RUNTIME_ERROR)


class Forging:
    """A zygote whose compile jobs answer something else."""

    def __init__(self, builds: Any) -> None:
        self.value = {"builds": builds}

    def run(self, *args: Any, **kwargs: Any) -> JobResult:
        return JobResult("ok", self.value)


@pytest.mark.parametrize("builds", [None, [], 3, [{}] * 3, [{"cubin": 3}] * 3, [{"kernel": "k"}] * 3])
def test_builds_that_are_none_are_the_candidates_fault(zygote, tmp_path, builds):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    options = {"target": "sm_90", "scratch": tmp_path, "limits": Limits()}
    recorded = record(task.seed_source, task, calls, zygote=zygote, **options)
    with pytest.raises(Stop, match="do not hold together"):
        build(task.seed_source, recorded.plans, recorded.constants, zygote=Forging(builds), **options)


FORGED = {"cubin": "x", "kernel": "k", "registers": 1, "spill_bytes": 0, "shared_bytes": 0, "num_warps": 4}
FORGED |= {"occupancy": 1.0, "sass_hash": "ab"}


@pytest.mark.parametrize(
    "change",
    [
        {"problem": 5},
        {"problem": ["too large"]},
        {"problem": "too large", "line": "x"},
        {"problem": "too large", "line": float("inf")},
        {"problem": "too large", "line": 10**30},
        {"num_warps": "x"},
        {"shared_bytes": None},
    ],
)
def test_what_is_left_out_of_forged_builds_is_the_candidates_fault(zygote, tmp_path, monkeypatch, change):
    task = load_task("softmax")
    calls = [{"name": n, "args": a} for n, a in Calls(task).described().items() if not n.endswith(CPU)]
    options = {"target": "sm_90", "scratch": tmp_path, "limits": Limits()}
    recorded = record(task.seed_source, task, calls, zygote=zygote, **options)
    count = sum(len(launch.configs) for plan in recorded.plans.values() for launch in plan.launches)
    monkeypatch.setattr(BuildCache, "add", lambda *_: None)
    monkeypatch.setattr(steps, "COMPILE_JOBS", 1)  # which is asked for all of them
    forging = Forging([{**FORGED, **change}] * count)
    with pytest.raises(Stop, match="do not hold together") as stop:
        build(task.seed_source, recorded.plans, recorded.constants, zygote=forging, **options)
    assert (stop.value.stage, stop.value.verdict) == ("compile", Verdict.RUNTIME_ERROR)


def test_no_more_builds_are_kept_than_allowed(tmp_path):
    cache = BuildCache(most=2)
    for key in "abc":
        (tmp_path / key).write_bytes(key.encode())
        cache.add(tmp_path, {key: {"cubin": key}})
    assert cache.left_in(tmp_path, ["a", "b", "c", ""]) == {1: {"cubin": "b.cubin"}, 2: {"cubin": "c.cubin"}}
    assert (tmp_path / "c.cubin").read_bytes() == b"c"

"""fitness.frontend.target: what is compiled for, and which machine measures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import fitness.gpu_backend as gpu_evaluator
from evo.core.errors import ConfigError, EvoError
from evo.core.records import GPU_FACTS, Build
from evo.search import assemble
from evo.search.evaluators import on_estimates
from evo.storage.queries import RunInfo
from fitness.candidate import FrontEnd
from fitness.cuda import gpus
from fitness.devices import Choice
from fitness.estimate import time_model as model
from fitness.estimate.roofline import impossible, least_us
from fitness.frontend import compile as compiler
from fitness.frontend.plan import LaunchPlan, TensorRef, to_json
from fitness.frontend.target import TARGETS, Target, from_spec, get_target, machine, narrowest_rate, sm_name
from fitness.gpu_backend import GpuEvaluator
from fitness.tasks.task import load_task
from tests.engine_support import config
from tests.test_roofline import plan
from tests.traced import COPY, HEADER, MATMUL, plan_of, traces_of

H200 = get_target("sm_90")


def said(name: str, multiprocessors: int = 132, **compiled: Any) -> dict[str, Any]:
    """Replaces `fitness.cuda.device.reported_facts`; no GPU has these figures, so their origin shows."""
    return {
        "name": name,
        "multiprocessors": multiprocessors,
        "l2_bytes": 60 << 20,
        "max_clock_hz": 1.0e9,
        "dram_bytes_per_s": 1.0e12,
        **compiled,
    }


def test_a_compute_capability_names_what_is_compiled_for() -> None:
    assert sm_name((9, 0)) == "sm_90" and sm_name([10, 3]) == "sm_103"


@pytest.mark.parametrize(
    ("name", "multiprocessors", "tb_per_s", "tflops"),
    [
        ("NVIDIA H200", 132, 4.8, 989),
        ("NVIDIA H100 80GB HBM3", 132, 3.35, 989),
        ("NVIDIA H100 PCIe", 114, 2.0, 756),
    ],
)
def test_a_machine_has_the_facts_of_its_data_sheet(
    name: str, multiprocessors: int, tb_per_s: float, tflops: float
) -> None:
    found = machine(H200, said(name, multiprocessors))
    assert (found.name, found.arch, found.device_name) == ("sm_90", 90, name)
    assert (found.multiprocessors, found.dram_bytes_per_s) == (multiprocessors, tb_per_s * 1e12)
    assert found.tensor_flops["bfloat16"] == tflops * 1e12
    assert found.l2_bytes == 50 << 20


def test_the_machine_that_a_target_stands_for_changes_nothing() -> None:
    assert machine(H200, said("NVIDIA H200")) == H200
    assert machine(get_target("h100"), said("NVIDIA H100 80GB HBM3")) == get_target("h100")
    assert machine(get_target("h100"), said("NVIDIA H200")).dram_bytes_per_s == 4.8e12  # the one that measures counts


@pytest.mark.parametrize("gpu", [said("NVIDIA GH200 480GB", 66), said("NVIDIA H200", 66)], ids=["another", "a part"])
def test_a_machine_without_a_data_sheet_has_the_facts_that_it_says(gpu: dict[str, Any]) -> None:
    found = machine(H200, gpu)
    assert (found.name, found.device_name, found.multiprocessors) == ("sm_90", gpu["name"], 66)
    assert (found.clock_hz, found.dram_bytes_per_s, found.l2_bytes) == (1e9, 1e12, 60 << 20)
    assert found.tensor_flops["float16"] == pytest.approx(989e12 * 66 / 132 / 1.98)
    assert found.shared_per_program == H200.shared_per_program  # of the compute capability


def test_jobs_read_what_a_target_says_of_itself() -> None:
    pcie = machine(H200, said("NVIDIA H100 PCIe", 114))
    assert from_spec(pcie.spec) == pcie
    assert H200.spec == "sm_90" and from_spec("sm_90") == H200
    with pytest.raises(
        ConfigError, match="target: expected one of sm_90, h100, sm_80, sm_89, rtx4090, sm_100, got 'sm_1'"
    ):
        from_spec("sm_1")


def test_a_time_is_impossible_by_the_facts_of_the_machine_that_measures() -> None:
    h100 = machine(H200, said("NVIDIA H100 80GB HBM3"))
    needed = 4.8e9  # bytes: 1000 us on an H200, 1433 us on an H100
    there, here = least_us(plan(), needed, None, H200), least_us(plan(), needed, None, h100)
    assert (there, here) == (pytest.approx(1000), pytest.approx(1432.8, abs=0.1))
    assert impossible("c", 800, there, H200.device_name) is None
    assert "on NVIDIA H100 80GB HBM3" in (impossible("c", 800, here, h100.device_name) or "")
    assert impossible("c", 1010, here, h100.device_name) is None  # 0.7 of it is the limit
    # The nearest right kernel: the H100's own speed, which an H200's facts allow too.
    assert impossible("c", 1433, here, h100.device_name) is None


def test_a_gpu_that_no_table_lists_has_its_own_facts_and_is_uncalibrated() -> None:
    generic = get_target("sm_86")
    assert (generic.name, generic.arch, generic.calibrated) == ("sm_86", 86, False)
    assert from_spec(generic.spec) == generic
    limits = {"shared_per_program": 101376, "shared_per_multiprocessor": 102400, "warps_per_multiprocessor": 48}
    found = machine(generic, said("NVIDIA A10", 72, **limits, registers_per_multiprocessor=65536))
    assert {name: getattr(found, name) for name in limits} == limits
    assert (found.device_name, found.multiprocessors, found.dram_bytes_per_s) == ("NVIDIA A10", 72, 1.0e12)
    assert H200.calibrated and not machine(H200, said("NVIDIA GH200")).calibrated
    for name in ("sm_75", "sm_8", "sm_800x"):
        with pytest.raises(ConfigError, match="target: expected one of"):
            get_target(name)


@pytest.mark.parametrize(
    ("capability", "times"), [((8, 0), 2.0), ((8, 9), 4.0), ((9, 0), 2.0), ((10, 0), 2.0), ((12, 0), 4.0)]
)
def test_the_narrowest_type_is_as_fast_as_data_sheets_say(capability: tuple[int, int], times: float) -> None:
    assert narrowest_rate(capability) == times


@pytest.mark.parametrize(
    ("capability", "words"), [((8, 0), "--target sm_80 measures on it"), ((7, 5), "evo needs sm_80")]
)
def test_a_gpu_of_another_target_says_how_to_measure_on_it(monkeypatch, capability, words: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    assert words in gpus.find_gpus(H200).problem


def test_estimates_of_other_machines_are_called_uncalibrated() -> None:
    cpu, gpu = Choice(0, ""), Choice(1, "")
    assert on_estimates(cpu, "sm_90") == "" == on_estimates(gpu, "sm_80")
    assert "uncalibrated: rates of NVIDIA A100-SXM4-80GB by its data sheet" in on_estimates(cpu, "sm_80")


# --- every target compiles -------------------------------------------------------------------------------------------


def test_a_built_in_kernel_is_compiled_to_machine_code_of_each_target(tmp_path: Path) -> None:
    source = load_task("vector_sin", tried=True).seed_source
    x, y = (TensorRef(b, "float32", (4096,), (1,)) for b in (0, 1))
    plan = plan_of("sin_kernel", (4,), {"x_ptr": x, "y_ptr": y, "n": 4096, "BLOCK_SIZE": 1024}, ("y_ptr",))
    args = to_json(plan)["steps"][0]["configs"][0]["args"]
    codes = {}
    for target in TARGETS.values():
        payload = {"source": source, "constants": {}, "target": target.spec, "cache_dir": tmp_path / target.name}
        launch = {"kernel": "sin_kernel", "args": args, "options": {"num_warps": 4}}
        (build,) = compiler.job({**payload, "launches": [launch]}, tmp_path)["builds"]
        assert build["registers"] > 0 and build["ptx_features"]["loads"] >= 1
        codes.setdefault(target.arch, build["sass_hash"])
    assert sorted(codes) == [80, 89, 90, 100] and len(set(codes.values())) == 4


@pytest.mark.parametrize(("name", "feature"), [("sm_80", "mma_sync"), ("sm_90", "wgmma"), ("sm_100", "tcgen05")])
def test_products_use_the_tensor_cores_of_the_target(tmp_path: Path, name: str, feature: str) -> None:
    a, b, c = (TensorRef(n, "float16", (256, 256), (256, 1)) for n in range(3))
    sizes = {"M": 256, "N": 256, "K": 256, "BM": 128, "BN": 128, "BK": 64}
    plan = plan_of("matmul", (4,), {"a": a, "b": b, "c": c, **sizes}, ("c",))
    args = to_json(plan)["steps"][0]["configs"][0]["args"]
    launch = {"kernel": "matmul", "args": args, "options": {"num_warps": 4}}
    payload = {"source": HEADER + MATMUL, "constants": {}, "target": name, "launches": [launch]}
    (build,) = compiler.job(payload, tmp_path)["builds"]
    found = build["ptx_features"]
    assert {kind for kind in ("mma_sync", "wgmma", "tcgen05") if found[kind]} == {feature}


def test_estimates_order_machines_by_memory_and_by_tensor_cores(tmp_path: Path) -> None:
    x, y = (TensorRef(b, "float32", (1 << 26,), (1,)) for b in (0, 1))
    copied = plan_of("copy", (1 << 16,), {"x": x, "y": y, "n": 1 << 26, "BLOCK": 1024}, ("y",))
    of_copy = traces_of(COPY, copied, tmp_path)
    a, b, c = (TensorRef(n, "float16", (4096, 4096), (4096, 1)) for n in range(3))
    sizes = {"M": 4096, "N": 4096, "K": 4096, "BM": 128, "BN": 128, "BK": 32}
    product = plan_of("matmul", (1024,), {"a": a, "b": b, "c": c, **sizes}, ("c",), options={"num_stages": 3})
    of_product = traces_of(MATMUL, product, tmp_path)

    def us(name: str, plan: LaunchPlan, traces: Any, build: Build) -> float:
        return model.estimate(plan, [0], [[build]], traces, TARGETS[name]).total_us

    small, large = Build("copy", 32, 0, 0, 4, 1.0, ""), Build("matmul", 168, 0, 49152, 8, 0.25, "")
    copies = {name: us(name, copied, of_copy, small) for name in TARGETS}
    assert sorted(copies, key=copies.__getitem__) == ["sm_100", "sm_90", "h100", "sm_80", "rtx4090", "sm_89"]
    products = {name: us(name, product, of_product, large) for name in TARGETS}
    assert products["sm_100"] < products["sm_90"] <= products["h100"] < products["sm_80"] < products["sm_89"]
    assert products["sm_90"] < products["rtx4090"] < products["sm_89"]


# --- where a GPU measures --------------------------------------------------------------------------------------------

PERSISTENT = """import torch
import triton
import triton.language as tl


@triton.jit
def sin_kernel(x_ptr, y_ptr, n, programs, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, programs * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(y_ptr + offsets, tl.sin(x), mask=offsets < n)


def vector_sin(x):
    y = torch.empty_like(x)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    sin_kernel[(programs,)](x, y, x.numel(), programs, BLOCK=1024)
    return y
"""


@contextmanager
def opened(target: Target) -> Iterator[FrontEnd]:
    front_end = FrontEnd(load_task("vector_sin"), target, measured=True)
    try:
        yield front_end
    finally:
        front_end.close()


@pytest.mark.parametrize(("target", "programs"), [(H200, 132), (machine(H200, said("NVIDIA H100 PCIe", 114)), 114)])
def test_host_code_sees_the_machine_that_measures(target: Target, programs: int) -> None:
    with opened(target) as front_end:
        compiled = front_end.collect(PERSISTENT)
    (launch,) = compiled.plans["4M"].launches
    assert launch.configs[0].grid == (programs, 1, 1)


def test_what_measures_decides_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pytest.importorskip("fitness.cuda.device")
    asked = []

    def said_by(index: int) -> dict[str, Any]:
        asked.append(index)
        return said("NVIDIA H100 80GB HBM3")

    monkeypatch.setattr(device, "reported_facts", said_by)
    for module in (gpus, gpu_evaluator):
        monkeypatch.setattr(module, "find_gpus", lambda target: gpus.Gpus(3, "NVIDIA H100 80GB HBM3", ""))
    assert gpus.measuring(H200, 1).dram_bytes_per_s == 3.35e12
    evaluator = GpuEvaluator(load_task("vector_sin"), H200, device=2)
    try:
        assert asked == [1, 2]
        for target in (evaluator.target, evaluator._front_end.target):
            assert (target.name, target.device_name) == ("sm_90", "NVIDIA H100 80GB HBM3")
        environment = evaluator.environment
    finally:
        evaluator.close()
    assert environment["target"] == "sm_90" and from_spec(environment[GPU_FACTS]) == evaluator.target


def test_without_a_gpu_nothing_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_gpus", lambda target: gpus.Gpus(0, "", "torch sees no CUDA GPU"))
    with pytest.raises(
        EvoError, match="expected a GPU that measures for sm_90, but torch sees no CUDA GPU; --gpus none"
    ):
        gpus.measuring(H200)


def test_prompts_say_the_machine_that_measured_first(evaluators) -> None:
    task = load_task("vector_sin")

    def hardware(environment: dict[str, Any]) -> dict[str, str]:
        context = assemble.prompt_context(RunInfo(config(), "hash", {}, environment), task)
        return dict(context(evaluated=True, rng=random.Random(0)).hardware)

    h100 = hardware({GPU_FACTS: machine(H200, said("NVIDIA H100 80GB HBM3")).spec})
    assert h100["GPU"].startswith("NVIDIA H100 80GB HBM3") and h100["memory bandwidth"] == "3.35 TB/s"
    # An old run, or one that was proposed before anything measured: the machine that the target's name stands for.
    old = hardware({"target": "sm_90", "machine": "x86_64", "gpu": "NVIDIA H100 80GB HBM3"})
    assert old["GPU"].startswith("NVIDIA H200") and old["memory bandwidth"] == "4.80 TB/s"
    assert GPU_FACTS not in evaluators("vector_sin").environment  # estimated: nothing measures

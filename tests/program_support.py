"""A small program with a Triton kernel, a task as `evo tasks new --from` makes it of that, and hand-made runs of it."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton

from evo.core.records import Certificate, Trial, Verdict
from evo.core.settings import RunConfig
from evo.storage.best import Conclusion, write_result
from evo.storage.folders import keep_task
from evo.storage.queries import RunInfo
from evo.storage.store import Store
from fitness.tasks.task import hash_task
from tests.engine_support import ok_trial

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)
"""
HOST = """
def scale(x, factor=2.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), factor, BLOCK=16)
    return y
"""
# The user's file: odd spacing, comments and a function that is not captured.
PROGRAM = f'''"""Scales vectors."""
from __future__ import annotations
{HEAD}
__all__ = [ "scale","twice" ]   # odd spacing stays
PI=3
{KERNEL}
# --- host code
{HOST}

def twice( x ):
    return scale(x,2.0)   # uses scale
'''
SEED = f"{HEAD}\n{KERNEL}\n{HOST}"
# Wrong for all but full blocks: it has no mask.  Right at the verified sizes.
FASTER = SEED.replace("BLOCK=16", "BLOCK=32").replace("numel(), 16)", "numel(), 32)").replace(", mask=mask", "")
# As `evo tasks new --from` writes it: an entry that makes the captured call, of a function with a plain value beside.
PAIR = HOST.replace("return y", "return y, 16, None")
WRAPPED = f"{HEAD}\n{KERNEL}\n{PAIR}\n\ndef entry(x):\n    result = scale(x, 2.0)\n    return [result[0]]\n"
TASK = """
import torch
from fitness import Case

entry = "scale"
cases = [
    Case("small", {"N": 64}),
    Case("large", {"N": 256}),
    Case("other", {"N": 96}, role="holdout"),
]
stress = False


def inputs(case, generator):
    return torch.randn(case.axes["N"], generator=generator, device=generator.device), 2.0


def reference(x, factor):
    return x * factor
"""
WRAPPED_TASK = (
    TASK.replace('"scale"', '"entry"')
    .replace("device), 2.0", "device),")
    .replace("(x, factor)", "(x)")
    .replace("x * factor", "[x * 2.0]")
)
TENSOR = {"dtype": "float32", "shape": [64], "stride": [1], "offset": 0, "alignment": 16}
WRAPPED_CALL = {
    "arguments": [{"name": "x", "tensor": TENSOR}],
    "call": "scale(x, 2.0)",
    "result": {"tuple": [{"tensor": 0}, {"value": 16}, {"value": None}]},
    "count": 3,
    "gpu_us": None,
}
X_AND_FACTOR = [{"name": "x", "tensor": TENSOR}, {"name": "factor", "value": 2.0}]


def write_program(folder: Path, name: str, text: str = PROGRAM) -> Path:
    """Writes the package `name` with a module ops and another that imports from it; the path of ops.py."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(text)
    (package / "model.py").write_text("from .ops import scale\n\n\ndef forward(x):\n    return scale(x)\n")
    return package / "ops.py"


def import_program(file: Path, monkeypatch: Any, *, interpreted: bool = True) -> ModuleType:
    """Imports the module of `write_program`, with Triton's interpreter in place of a GPU, if that is asked for."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    monkeypatch.syspath_prepend(str(file.parent.parent))
    name = f"{file.parent.name}.ops"
    for known in [n for n in sys.modules if n.partition(".")[0] == file.parent.name]:
        monkeypatch.delitem(sys.modules, known)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def origin(file: Path, **changes: Any) -> dict[str, Any]:
    call = {"arguments": X_AND_FACTOR, "count": 3, "gpu_us": None}
    return {
        "version": 1,
        "module": f"{file.parent.name}.ops",
        "attribute": "scale",
        "kind": "function",
        "file": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "package": None,
        "package_version": None,
        "calls": [call],
    } | changes


def write_task(folder: Path, file: Path, *, seed: str = SEED, task: str = TASK, **changes: Any) -> Path:
    """Writes the task that was made of a program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.py").write_text(seed)
    (folder / "task.py").write_text(task)
    (folder / "origin.json").write_text(json.dumps(origin(file, **changes)))
    return folder


def write_run(
    folder: Path,
    task: Path,
    candidates: Sequence[tuple[str, Mapping[str, float]]],
    *,
    measured: bool = False,
    keep: bool = True,
) -> Path:
    """Writes a finished run: the seed of a task, and candidates with their speedups by case."""
    seed = (task / "kernel.py").read_text()
    config = RunConfig(task=str(task), budget=len(candidates), operators=("params",))
    config = config.with_device("gpu" if measured else "cpu")
    info = RunInfo(
        config, hash_task((task / "task.py").read_text(), seed), {"evo": "0.0"}, {"triton": triton.__version__}
    )
    with Store.create(folder, info) as store:
        if keep:
            keep_task(folder, task)
        trials = [_trial(0, seed, {"small": 1.0, "large": 1.0}, measured)]
        trials += [_trial(i, source, ratios, measured) for i, (source, ratios) in enumerate(candidates, 1)]
        for trial in trials:
            store.proposed(trial.proposal)
            store.finished(trial)
        best = max(trials, key=lambda t: t.fitness.speedup if t.fitness else 0)
        certificate = Certificate("", Verdict.INFRASTRUCTURE, "no GPU is here")
        write_result(folder, store.info, trials[0], Conclusion(best, certificate))
    return folder


def _trial(index: int, source: str, ratios: Mapping[str, float], measured: bool) -> Trial:
    from dataclasses import replace

    from evo.core.records import score

    made = ok_trial(index, 1.0, per_case=ratios, source=source, operator="seed" if index == 0 else "params")
    timings = tuple(replace(t, estimated=not measured) for t in made.evaluation.timings)
    environment = {"gpu": "NVIDIA H200"} if measured else {}
    evaluation = replace(made.evaluation, timings=timings, environment=environment)
    return Trial(made.proposal, evaluation, score(evaluation))

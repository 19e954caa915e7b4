"""Runs parents and their rewritten children side by side, in one process: `python -m tests.rewrite_run < groups.json`.

Under TRITON_INTERPRET=1 the outputs of each child are compared with its parent's; without it, every kernel that a child
launches is compiled for sm_90.  Prints {"group/child": "ok" or what went wrong}.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from operators.source import OPTIONS
from tests.run_host import mend_interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = {
    torch.float16: "*fp16", torch.float32: "*fp32", torch.int8: "*i8", torch.int32: "*i32", torch.int64: "*i64",
    int: "i32", float: "fp32",
}  # fmt: skip


def _every_config(self: Any, *args: Any, **kwargs: Any) -> None:
    """In place of a race: all configurations one after the other."""
    for config in self.configs:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        self.fn.run(*args, **kwargs, **config.all_kwargs())


def _compile(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In place of a launch: machine code for sm_90."""
    options = {k: kwargs.pop(k) for k in list(kwargs) if k in OPTIONS}
    defaults = {p.name: p.default for p in self.params if p.has_default}
    bound = defaults | dict(zip(self.arg_names, args, strict=False)) | kwargs
    grid = grid(bound) if callable(grid) else grid
    assert all(isinstance(n, int) and n > 0 for n in grid), f"grid {grid}"
    assert set(bound) == set(self.arg_names), f"arguments {sorted(bound)} for parameters {self.arg_names}"
    constants = {p.name: bound[p.name] for p in self.params if p.is_constexpr}
    signature = {
        n: "constexpr" if n in constants else _TYPES[v.dtype if isinstance(v, torch.Tensor) else type(v)]
        for n, v in ((n, bound[n]) for n in self.arg_names)
    }
    triton.compile(ASTSource(self, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)


def _load(source: str, name: str, folder: str) -> Any:
    path = Path(folder) / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _inputs(spec: Any) -> list[Any]:
    if isinstance(spec, dict):  # a built-in task and its case
        from fitness.tasks.task import load_task

        task = load_task(spec["task"])
        case = next(c for c in task.cases if c.name == spec["case"]).on_cpu()
        return list(task.inputs(case, torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator) if isinstance(s, list) else s for s in spec]


def _outputs(module: Any, entry: str, inputs: list[Any]) -> list[torch.Tensor]:
    """Returned tensors, then the arguments (which the kernel may have written)."""
    arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in inputs]
    returned = getattr(module, entry)(*arguments)
    returned = returned if isinstance(returned, tuple) else (returned,)
    return [t for t in (*returned, *arguments) if isinstance(t, torch.Tensor)]


def _difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {tuple(got.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    limit = {torch.float16: 4e-3, torch.float32: 2e-5}.get(expected.dtype, 0.0)
    scale = float(expected.double().nan_to_num().square().mean().sqrt()) if expected.numel() else 0.0
    close = torch.isclose(got.double(), expected.double(), rtol=limit, atol=limit * scale, equal_nan=True)
    return "" if close.all() else f"{int((~close).sum())} of {close.numel()} elements differ"


def main() -> None:
    torch.set_num_threads(1)
    # Few multiprocessors, so that persistent programs have several tiles each.
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=3)  # type: ignore[assignment]
    Autotuner.run = _every_config  # type: ignore[method-assign]
    if INTERPRETED:
        mend_interpreter()
    else:
        JITFunction.run = _compile  # type: ignore[method-assign,assignment]
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (group, job) in enumerate(json.load(sys.stdin).items()):
            inputs = _inputs(job["inputs"])
            expected = _outputs(_load(job["parent"], f"parent_{number}", folder), job["entry"], inputs)
            for at, (label, source) in enumerate(job["children"].items()):
                try:
                    outputs = _outputs(_load(source, f"child_{number}_{at}", folder), job["entry"], inputs)
                    pairs = zip(outputs, expected, strict=True)
                    message = "; ".join(filter(None, (_difference(g, e) for g, e in pairs))) if INTERPRETED else ""
                except Exception as error:  # whatever a wrong rewrite raises is its result
                    message = f"{type(error).__name__}: {error}"
                results[f"{group}/{label}"] = message or "ok"
    print("\n" + json.dumps(results))  # the last line: compilers print too


if __name__ == "__main__":
    main()

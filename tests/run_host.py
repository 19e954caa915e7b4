"""Run whole kernel files, host code included, under Triton's interpreter and compare with the oracle.

For tests only, on files of this repository: the product itself never runs host code next to the oracle.  Started as a
process with TRITON_INTERPRET=1, arguments `task=kernel file`; prints one JSON object per file, configuration and case:
{"file", "task", "config", "case", "ratio", "message", "seconds"}, the ratio that of the worst variant.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import sys
import time
from types import ModuleType, SimpleNamespace

import torch
import triton
from triton.runtime import interpreter

from evo.core.records import Case
from fitness.tasks.task import Task, load_task
from fitness.verify.compare import compare
from fitness.verify.oracle import expect, make_inputs, variants


class OneConfig:
    """Stands in for triton.autotune, which needs a GPU to choose: keeps the configuration `index` of every kernel."""

    def __init__(self, index: int) -> None:
        self.index, self.most = index, 1
        self.autotune = triton.autotune

    def __call__(self, configs, *args, **kwargs):
        self.most = max(self.most, len(configs))
        return self.autotune([configs[min(self.index, len(configs) - 1)]], *args, **kwargs)


def mend_interpreter() -> None:
    """Triton 3.6 takes int() of arrays with one element as loop bounds, which NumPy 2.4 refuses; 3.8 squeezes them.

    And for each call of a kernel it looks for its built-in functions among all members of `triton.language`, which are
    the same each time.
    """
    original = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    @functools.cache
    def names(package):
        return [name for name, member in inspect.getmembers(package) if triton.language.core.is_builtin(member)]

    def patch_builtin(package, builder, scope):
        for name in names(package):
            member = getattr(package, name)
            if triton.language.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_lang_tensor = patch
    interpreter._patch_builtin = patch_builtin


def load(path: str, chooser: OneConfig) -> ModuleType:
    triton.autotune = chooser
    spec = importlib.util.spec_from_file_location("kernel_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flatten(result) -> tuple[str, list[torch.Tensor]]:
    if result is None:
        return "none", []
    if isinstance(result, torch.Tensor):
        return "tensor", [result]
    if isinstance(result, dict):
        return "dict:" + ",".join(result), list(result.values())
    return type(result).__name__, list(result)


def check(task: Task, module: ModuleType, case: Case) -> dict:
    """The worst comparison of one case over all variants of inputs (two of them where the case is a tune case)."""
    worst, message, seconds = 0.0, None, 0.0
    for variant in variants(task) if case.role == "holdout" else variants(task)[:2]:
        expected = expect(task, case, 3, variant)
        if expected is None:
            continue
        arguments = make_inputs(task, case, 3, variant)
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        started = time.perf_counter()
        structure, outputs = flatten(getattr(module, task.entry)(*arguments))
        seconds += time.perf_counter() - started
        outputs += [arguments[i] for i in task.written]
        ratio, wrong = compare(expected, structure, outputs, [o.stride() for o in outputs])
        for i, (a, b) in enumerate(zip(arguments, before, strict=True)):
            if i not in task.written and isinstance(a, torch.Tensor) and not torch.equal(a, b):
                ratio, wrong = float("inf"), f"input {i} was written"
        if ratio > worst:
            worst, message = ratio, f"{variant}: {wrong}" if wrong else None
    return {"case": case.name, "ratio": worst, "message": message, "seconds": seconds}


def main(pairs: list[str]) -> None:
    mend_interpreter()
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=3)
    for name, path in (pair.split("=", 1) for pair in pairs):
        task = load_task(name)
        chooser = OneConfig(0)
        while chooser.index < chooser.most:
            module = load(path, chooser)
            for case in task.cases:
                facts = {"file": path, "task": name, "config": chooser.index, **check(task, module, case.on_cpu())}
                print(json.dumps(facts), flush=True)
            chooser.index += 1


if __name__ == "__main__":
    main(sys.argv[1:])

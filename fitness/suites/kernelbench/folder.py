"""Writes task folders of problems: task.py is the problem's text with a few lines below, kernel.py the seed kernel."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evo.core.errors import TaskError
from fitness.suites.kernelbench.checkout import TITLE, KernelBenchFile
from fitness.suites.kernelbench.problem import Problem, put, said, state, tensors_of, top_level
from fitness.suites.kernelbench.sizes import Sizes, sizes_of
from fitness.tasks.scaffold import MODEL_MARK
from fitness.verify.compare import same_but_rounding

_TASK = '''"""{title}.  Generated."""

{problem}

{mark}

from fitness import Case
from fitness.suites.kernelbench.problem import Problem

problem = Problem.of_task(__file__, state={state!r}, signed={signed})
entry = "entry"
cases = [
    Case("{own}", {sizes.own!r}, cpu_axes={sizes.own_cpu!r}),
    Case("other", {sizes.other!r}, role="holdout", cpu_axes={sizes.other_cpu!r}),
]
certify = [Case("small", {sizes.other_cpu!r}), Case("own, small", {sizes.own_cpu!r})]
stress = {stress}


def inputs(case, generator):
    return problem.inputs(case.axes, generator)


def reference({parameters}):
    return problem.reference({parameters})


def baseline({parameters}):
    return problem.call({parameters})
'''


def write_folder(folder: Path, source: KernelBenchFile, kernel: str | None, most_bytes: int) -> Sizes:
    """Makes `folder` (emptied before); without a `kernel` it has only a task.py.

    most_bytes: of inputs, state and outputs together.  Raises TaskError if the problem is not suitable for a kernel.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text, sizes = task_text(source, f"{TITLE}, {source.name}.py", most_bytes)
    (folder / "task.py").write_text(text, encoding="utf-8")
    if kernel is not None:
        (folder / "kernel.py").write_text(kernel, encoding="utf-8")
    return sizes


def task_text(source: KernelBenchFile, title: str, most_bytes: int) -> tuple[str, Sizes]:
    """Returns the text of task.py, and its sizes.  Raises TaskError if the problem is not suitable for a kernel."""
    sizes = sizes_of(source.kernels, most_bytes)
    fields = _fields(source.kernels, sizes)
    text = _TASK.format(
        title=title, problem=_kept(source.kernels), mark=MODEL_MARK, sizes=sizes,
        own="reduced" if sizes.reduced else "own", **fields,
    )  # fmt: skip
    return text, sizes


def _kept(text: str) -> str:
    """Returns the part of a file that is executed, as it is written there."""
    lines = text.splitlines()
    parts = []
    for node in top_level(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        parts.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n".join(parts)


def _fields(text: str, sizes: Sizes) -> dict[str, Any]:
    """Runs it at the sizes for a CPU; returns names of arguments, state, signs, and whether stress is valid."""
    device = torch.device("cpu")
    try:
        given, model, plain = Problem(text).drawn(sizes.own_cpu, 1, device)
        kept = _state_read(model, given)
        _check_repeatable(model, given)
        if _ignores_inputs(model, given, Problem(text).given(sizes.own_cpu, 2, device)[0]):
            at = ", ".join(f"{name}={size}" for name, size in sizes.own_cpu.items())
            raise TaskError(f"its result is the same whatever the inputs (tried at {at}): a kernel need not read them")
        signed = _finite(model(*given)) or not _finite(_unsigned(text, sizes))
    except TaskError:
        raise
    except Exception as error:  # the file's own code
        raise TaskError(f"its model does not run here: {said(error)}") from error
    floating = [a for a in given if isinstance(a, torch.Tensor) and a.is_floating_point()]
    return {
        "state": tuple(kept),
        "signed": signed,
        "stress": all(any(a is one for one in plain) for a in floating),
        "parameters": ", ".join(_parameters(model, given, kept)),
    }


def _state_read(model: torch.nn.Module, given: Sequence[Any]) -> list[str]:
    """Returns paths of the state, without buffers that a call writes: statistics that training never reads."""
    buffers = {path: value.clone() for path, value in model.named_buffers()}
    with torch.no_grad():
        model(*given)
    after = dict(model.named_buffers())
    written = {path for path, value in buffers.items() if not torch.equal(value, after[path])}
    return [path for path, _ in state(model) if path not in written and not _statistics(path, written)]


def _statistics(path: str, written: set[str]) -> bool:
    """Returns whether these are statistics, beside a count that was written, which happened to stay the same."""
    prefix, _, name = path.rpartition(".")
    return name.startswith("running_") and f"{prefix}.num_batches_tracked".lstrip(".") in written


def _check_repeatable(model: torch.nn.Module, given: Sequence[Any]) -> None:
    kept = {path: value.clone() for path, value in state(model)}
    results = []
    for _ in range(2):
        for path, value in kept.items():
            put(model, path, value.clone())
        with torch.no_grad():
            results.append(tensors_of(model(*given)))
    if not all(same_but_rounding(a, b) for a, b in zip(*results, strict=True)):
        raise TaskError("its forward gives other results for the same arguments: it draws random numbers or counts")


def _ignores_inputs(model: torch.nn.Module, given: Sequence[Any], others: Sequence[Any]) -> bool:
    with torch.no_grad():
        results = zip(tensors_of(model(*given)), tensors_of(model(*others)), strict=True)
    return all(same_but_rounding(a, b) for a, b in results)


def _unsigned(text: str, sizes: Sizes) -> Any:
    given, model, _ = Problem(text, signed=False).drawn(sizes.own_cpu, 1, torch.device("cpu"))
    with torch.no_grad():
        return model(*given)


def _finite(result: Any) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in tensors_of(result))


def _parameters(model: torch.nn.Module, given: Sequence[Any], kept: Sequence[str]) -> list[str]:
    """Returns names of the arguments: those of forward, then the state's with dots replaced."""
    names = list(inspect.signature(model.forward).parameters)[: len(given)]
    if len(names) < len(given):  # forward(*inputs)
        names = [f"x{i}" for i in range(len(given))]
    for path in kept:
        name = path.replace(".", "_")
        while name in names or not name.isidentifier():
            name = f"p_{name}"
        names.append(name)
    return names

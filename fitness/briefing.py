"""Describes a task, the GPU and the rules in words, for whoever writes a kernel.

Plain texts and dicts, made for prompts (`operators/llm`) and for people; nothing here depends on a candidate.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from evo.core import syntax
from fitness.frontend.gate import RULES
from fitness.frontend.target import Target
from fitness.tasks.calls import Calls
from fitness.tasks.task import Task
from fitness.verify.oracle import slack

# Parts of task.py that the author of a kernel does not need: words say them, or they are about measuring.
_LEFT_OUT = {
    "", "entry", "cases", "writes", "tolerance", "stress", "deterministic", "allow_delegation", "flops", "bytes",
}  # fmt: skip


def task_facts(task: Task) -> dict[str, Any]:
    """Returns the fields of `operators.llm.base.TaskFacts`."""
    return {
        "name": task.name,
        "entry": task.entry,
        "reference": reference_source(task),
        "cases": case_lines(task),
        "tolerance": tolerance(task),
        "baseline": task.timed_against.text,
    }


def reference_source(task: Task) -> str:
    """Returns task.py without what only measuring needs: imports, inputs, reference and their helpers stay."""
    text = (task.folder / "task.py").read_text(encoding="utf-8")
    kept = [node for node in syntax.parse(text).body if not _names(node) & _LEFT_OUT and not _of_evo(node)]
    lines = text.splitlines()
    parts = ["\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for node in kept]
    return "\n\n".join(parts) + "\n"


def case_lines(task: Task) -> tuple[str, ...]:
    """Returns one line for each case: its name, its role, its arguments at the target's size."""
    described = Calls(task).described()
    return tuple(
        f"{case.name} ({case.role}): "
        + ", ".join(f"{name}: {_argument(a)}" for name, a in zip(task.parameters, described[case.name], strict=False))
        for case in task.cases
    )


def tolerance(task: Task) -> str:
    """Returns sentences that say what is compared, and how exactly."""
    import torch

    wide, narrow = slack(torch.float32), slack(torch.float16)
    measured = (
        "Errors are measured against what the seed kernel gives on the same inputs, as"
        if task.reference is None
        else "Errors are measured against the reference in float64, as"
    )
    own = "rounding the inputs" if task.reference is None else "the reference itself"
    sentences = [
        f"{measured} root mean square and at the worst element. They may "
        f"be {wide:g} times those of {own} in float32, {narrow:g} times in narrower types"
        + (f", or {task.tolerance:g} of the result, whichever is more." if task.tolerance else "."),
        f"Arguments written in place: {', '.join(task.writes)}; no others may be changed."
        if task.writes
        else "No argument may be changed.",
    ]
    if task.deterministic:
        sentences.append("Results must be the same to the bit from call to call, so no atomic additions of floats.")
    return " ".join(sentences)


def hardware_facts(target: Target, gpu: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns the limits of a kernel on `target`, by name.

    gpu: `fitness.cuda.device.DeviceFacts` as a dict, if known.
    """
    tensor = ", ".join(f"{kind} {rate / 1e12:.0f}" for kind, rate in target.tensor_flops.items())
    facts = {
        "GPU": f"{gpu['name'] if gpu else target.device_name} (compute capability {target.arch / 10:.1f})",
        "multiprocessors": str(target.multiprocessors),
        "memory bandwidth": f"{target.dram_bytes_per_s / 1e12:.2f} TB/s",
        "L2 cache": f"{target.l2_bytes / 2**20:.0f} MiB",
        "shared memory": f"{target.shared_per_program // 1024} KiB a program at most, "
        f"{target.shared_per_multiprocessor // 1024} KiB a multiprocessor",
        "registers": f"{target.registers_per_multiprocessor} of 32 bits a multiprocessor, 255 a thread at most",
        "resident at once": f"{target.warps_per_multiprocessor} warps and {target.programs_per_multiprocessor} "
        "programs a multiprocessor",
        "tensor cores": f"{tensor} (dense, in 10^12 operations a second, by type of the operands)",
        "float32 arithmetic": f"{2e-12 * target.multiprocessors * target.fp32_lanes * target.clock_hz:.0f} * 10^12 a "
        "second, a fused multiply-add counted as two",
    }
    if gpu:
        facts["measured here"] = (
            f"copying {gpu['copy_bytes_per_s'] / 1e12:.2f} TB/s (read and written), "
            f"bfloat16 matrix products {gpu['matmul_flops'] / 1e12:.0f} * 10^12 a second"
        )
    return facts


def rules(task: Task | None = None) -> tuple[str, ...]:
    """Returns the rules of the gate, one line each; without those that `task` waives."""
    waived = {"delegate"} if task is not None and task.allow_delegation else set()
    return tuple(f"{name}: {text}" for name, text in RULES.items() if name not in waived)


# --- parts -----------------------------------------------------------------------------------------------------------


def _names(node: ast.stmt) -> set[str]:
    """Returns the names that a top-level statement defines; a docstring is called ""."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Expr(value=ast.Constant(value=str())):
            return {""}
    return set()


def _of_evo(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("fitness", "evo")


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _argument(described: Mapping[str, Any]) -> str:
    tensor = described.get("tensor")
    if tensor is None:
        return repr(described["value"])
    shape, strides = tensor["shape"], tensor["strides"]
    layout = "" if strides == _contiguous(shape) else f" with strides {tuple(strides)}"
    return f"{tensor['dtype']} {tuple(shape)}{layout}"


def _contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]

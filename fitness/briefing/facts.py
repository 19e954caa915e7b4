"""Describes a task and a GPU in words, for whoever writes a kernel.

Plain texts and dicts, made for prompts (`operators/llm`) and for people; nothing here depends on a candidate.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from evo.core import syntax
from evo.core.records import Case
from fitness.briefing.allowed import task_lines
from fitness.briefing.inputs import Arguments
from fitness.briefing.right import right_lines
from fitness.estimate.attainable import attainable_us
from fitness.frontend.target import Target
from fitness.tasks.scaffold import MODEL_MARK
from fitness.tasks.task import Task


def task_facts(task: Task, target: Target, gpu: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fields of `operators.llm.base.TaskFacts`.

    gpu: measured ceilings, "copy_bytes_per_s" (`fitness.cuda.device.DeviceFacts`), if a GPU measures.
    """
    arguments = Arguments(task)
    return {
        "name": task.name,
        "title": title(task),
        "entry": task.entry,
        "parameters": task.parameters,
        "cases": arguments.case_lines(),
        "says": inspect.getdoc(task.inputs) or "",
        "layout": arguments.layout_line(),
        "values": arguments.value_lines(),
        "right": right_lines(task),
        "reference": reference_source(task),
        "seed": task.needed_seed if task.reference is None else "",
        "allowed": task_lines(task),
        "baseline": task.timed_against.text,
        "work": {case.name: work(arguments, case, target, gpu) for case in task.cases if case.role == "tune"},
        "bytes_are": _bytes_are(arguments),
    }


def title(task: Task) -> str:
    """Returns the first line of the docstring of task.py; "" for a generated one, which says what the rest says."""
    text = (task.folder / "task.py").read_text(encoding="utf-8")
    first = (ast.get_docstring(syntax.parse(text)) or "").partition("\n")[0]
    return "" if first.endswith("Generated.") else first


def reference_source(task: Task) -> str:
    """Returns the reference and the parts of task.py that it uses; "" if the seed kernel is the reference."""
    if task.reference is None:
        return ""
    text = (task.folder / "task.py").read_text(encoding="utf-8")
    if MODEL_MARK in text:
        return _model_source(text, task)
    body = syntax.parse(text).body
    by_name = {name: node for node in body for name in _names(node)}
    kept, waiting = set(), [task.reference.__name__]
    while waiting:
        node = by_name.get(waiting.pop())
        if node is not None and id(node) not in kept:
            kept.add(id(node))
            waiting += sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)})
    lines = text.splitlines()
    parts = ["\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for node in body if id(node) in kept]
    return "\n\n".join(parts) + "\n"


def _model_source(text: str, task: Task) -> str:
    """Returns the PyTorch model that a task was made of, and which arguments stand for its parameters and buffers."""
    above, _, below = text.partition(MODEL_MARK)
    body = syntax.parse(above).body
    first = body[1] if ast.get_docstring(syntax.parse(above)) else body[0]
    model = "\n".join(above.splitlines()[_first_line(first) - 1 :]).strip()
    keywords = (k for n in ast.walk(syntax.parse(below)) if isinstance(n, ast.Call) for k in n.keywords)
    state = next((ast.literal_eval(k.value) for k in keywords if k.arg == "state"), ())
    names = task.parameters[len(task.parameters) - len(state) :]
    held = "".join(f"#   {name}: {path}\n" for name, path in zip(names, state, strict=True))
    given = f"\n# Its other arguments stand for these parameters and buffers of the model:\n{held}" if held else "\n"
    return (
        f"{model}\n\n"
        f"# `{task.entry}` takes the arguments of `forward`, and returns what `forward` of\n"
        f"# `Model(*get_init_inputs())` returns in training mode, as it is made. Sizes and values are those of the\n"
        f"# lists above, not those of `get_inputs`.{given}"
    )


def work(arguments: Arguments, case: Case, target: Target, gpu: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns "bytes" that a case moves at least, its "flops" if they are known, and "least_us", its attainable time.

    Empty if nothing can be counted: without the results, the bytes of the arguments would mislead.
    """
    needed = arguments.work(case)
    if needed is None:
        return {}
    found = {"bytes": needed.bytes} if needed.bytes else {}
    if flops := sum(needed.flops.values()):
        found["flops"] = flops
    if least := attainable_us(needed, target, gpu):
        found["least_us"] = least
    return found


def _bytes_are(arguments: Arguments) -> str:
    """Returns which bytes `work` has, in words; "" if task.py says them, or nothing can be counted."""
    task = arguments.task
    counted = any(work and work.bytes for work in (arguments.work(case) for case in task.cases if case.role == "tune"))
    return "those of each tensor argument and of each result, each once" if counted and task.bytes is None else ""


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


# --- parts of task.py ------------------------------------------------------------------------------------------------


def _names(node: ast.stmt) -> set[str]:
    """Returns the names that a top-level statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])

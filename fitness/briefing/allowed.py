"""Says what a candidate may do, from the gate, the recorder and the switches of a task; and what counts in the time."""

from __future__ import annotations

from evo.core.text import short
from fitness.frontend.compile import OPTIONS
from fitness.frontend.gate import RULES, gate
from fitness.frontend.recording.launches import CONFIGURATIONS
from fitness.frontend.screen import MOST_STAGES
from fitness.tasks.task import Task

MOST_FINDINGS = 8  # of the seed kernel that a prompt lists

# Launch options that change nothing, because evo's launcher sets no such attribute (`fitness/cuda/launcher.py`).
_WITHOUT_EFFECT = {"launch_pdl", "debug", "sanitize_overflow"}


def rules(task: Task | None = None) -> tuple[str, ...]:
    """Returns the rules of the gate, one line each; without those that `task` waives."""
    waived = {"delegate"} if task is not None and task.allow_delegation else set()
    return tuple(f"{name}: {text}" for name, text in RULES.items() if name not in waived)


def allowed() -> tuple[str, ...]:
    """Returns what every task allows, one line a subject."""
    options = ", ".join(f"`{name}`" for name in sorted(OPTIONS - _WITHOUT_EFFECT))
    return (
        "Timed is one call of the host function as a CUDA graph: all its kernels and what lies between them. Its "
        "Python is not timed.",
        "Any number of kernels and launches, and helpers. Scratch tensors (`torch.empty`) and views cost no time. "
        "Fills (`torch.zeros`, `torch.full`, `zero_`) and copies (`contiguous`, `clone`, `to`, `copy_`) are timed like "
        "kernels.",
        "Nothing is kept from one call to the next: what is prepared of an argument is prepared in each call.",
        "The host function decides by shapes, strides, dtypes and plain arguments, and by device properties "
        "(`torch.cuda.get_device_properties(x.device).multi_processor_count`); never by elements of tensors.",
        f"Launch options: {options}; `num_stages` up to {MOST_STAGES}. `launch_pdl` is accepted without effect: "
        "launches of a call do not overlap.",
        f"`@triton.autotune` with up to {CONFIGURATIONS} configurations a launch: the best is chosen before anything "
        "is timed, one of a kernel for all sizes that launch it, so sizes that want different ones need a kernel each. "
        "One that needs more shared memory or registers than there are is left out; any other that does not "
        "compile fails the kernel. The list may be a comprehension.",
        'A grid is a tuple, or a function of the configuration: `lambda meta: (triton.cdiv(n, meta["BLOCK"]),)`. On '
        "the host, `triton.cdiv`, `triton.next_power_of_2`, `min`, `max` and arithmetic on plain numbers work. "
        "Tensors lie on the GPU, and `x.device` is theirs.",
        "Scratch memory holds odd values before it is written. It may be read then only where no result depends on it.",
        "Tensor descriptors (TMA) are made in the kernel by `tl.make_tensor_descriptor`; the memory they "
        "need is there. Descriptors made on the host are unsupported.",
        "Atomics on integers, and atomic maxima and minima, give the same bits in any order, so they are fine.",
    )


def task_lines(task: Task) -> tuple[str, ...]:
    """Returns what this task allows or forbids beyond that, one line a subject."""
    lines = []
    if task.allow_delegation:
        share = f"{100 * task.min_own_share:.0f} %"
        own = (
            f"its own kernels write at least {share} of the bytes of the outputs and take at least {share} of the time"
            if task.min_own_share
            else "its own kernels do part of the work"
        )
        lines.append(f"A candidate may call operators of PyTorch (`torch.mm`, `+`), which are timed too, if {own}.")
    else:
        lines.append(
            "All computing is done by the candidate's own kernels: no operators of PyTorch but fills and copies."
        )
    if task.lenient:
        lines += _inherited(task)
    return tuple(lines)


def _inherited(task: Task) -> list[str]:
    """Returns which rules the seed kernel breaks; candidates may break them at the same names."""
    found = gate(task.needed_seed, entry=task.entry, allow_delegation=task.allow_delegation)
    messages = list(dict.fromkeys(f"{f.rule}: {f.message}" for f in found))
    if not messages:
        return []
    more = len(messages) - MOST_FINDINGS
    shown = [short(m) for m in messages[:MOST_FINDINGS]] + ([f"and {more} more"] if more > 0 else [])
    return ["The seed kernel breaks rules. A candidate may keep these parts as they are: " + "; ".join(shown) + "."]

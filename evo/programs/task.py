"""Makes a task folder of a kernel in a capture: its host function, cases like the calls seen, and origin.json.

origin.json   where the kernel comes from, and the calls that were seen of it: `evo apply` reads it
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core.errors import ConfigError, TaskError
from evo.programs.capture import Capture, CapturedCall, CapturedHost, CapturedKernel
from evo.programs.origin import FILE as ORIGIN
from evo.programs.origin import FUNCTION, KERNEL, VERSION

if TYPE_CHECKING:
    from fitness.sandbox.zygote import Zygote

MOST_TUNE = 6  # calls that are timed; of more, those with the most GPU time
MOST_HOLDOUT = 3
SMALL = 1 << 16  # elements of all tensors of a call, which Triton's interpreter can bear
_ENTRY = "The program calls {function}: write it anew. {entry} stands for the program's call and has to stay as it is."
TARGET = "sm_90"  # that kernels are recorded for: the plans are those of any


@dataclass
class MadeTask:
    """A task folder that was made, and what its maker has to know of it."""

    folder: Path
    entry: str
    host: CapturedHost
    tune: int
    holdout: int
    notes: list[str] = field(default_factory=list)


def make_task(
    capture: Capture,
    name: str,
    folder: Path,
    reference: tuple[str, str] | None = None,
    *,
    launch: bool = False,
    zygote: Zygote | None = None,
) -> MadeTask:
    """Makes `folder` of the kernel or host function of that name.

    reference: the text of a Python file, and the function in it that says what is right; without, the kernel itself.
    launch: make the task of the kernel's launch, although there is a host function around it.
    zygote: for the sandboxed jobs, if one is open already.
    Raises ConfigError or TaskError, which say why no task can be made.
    """
    from fitness.sandbox.zygote import Zygote
    from fitness.suites.folder import drawable, write_folder

    subject = _subject(capture, name, launch)
    if not subject.source:
        raise TaskError(f"{subject.name} does not stand alone: {subject.not_cut}{_or_launch(capture, subject, name)}")
    usable, left_out = _usable(subject)
    calls = [_as_call(call) for call in usable]
    fresh = drawable(calls)
    if not fresh:
        raise TaskError(f"no call of {subject.name} can be made again: {_why_none(left_out, usable)}")
    chosen, notes = _chosen(fresh)
    notes += _launched_elsewhere(capture, subject, name)
    notes += [f"without the decorator {text}" for text in subject.left_out]
    if left_out:
        notes.append(f"left out: {len(left_out)} of {len(subject.calls)} calls; the first: {left_out[0][1]}")
    title = f"{subject.name}, as a program called it"
    try:
        write_folder(folder, title, _kernel_file(subject), chosen, capture.folder, _reference(subject, reference))
        if zygote is None:
            with Zygote(TARGET) as own:
                _complete(folder, subject, own)
        else:
            _complete(folder, subject, zygote)
        entry = json.loads((folder / "facts.json").read_text(encoding="utf-8"))["entry"]
        origin = json.dumps(origin_of(subject, usable, entry), indent=1)
        (folder / ORIGIN).write_text(origin + "\n", encoding="utf-8")
    except BaseException:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        raise
    roles = [call["role"] for call in chosen]
    return MadeTask(folder, entry, subject, roles.count("tune"), roles.count("holdout"), notes)


def _subject(capture: Capture, name: str, launch: bool) -> CapturedHost:
    """Returns the host function or kernel that the task is of."""
    named = [host for host in capture.hosts.values() if name in (host.name, host.attribute)]
    if len(named) == 1 and not launch:
        return named[0]
    kernel = capture.kernel(name)
    if kernel.kind != "triton":
        raise ConfigError(f"{name} is a kernel that torch.compile wrote: expected one of the program's own")
    return (None if launch else capture.host_of(kernel)) or kernel


def _launched_elsewhere(capture: Capture, subject: CapturedHost, name: str) -> list[str]:
    """Returns a note if the kernel of that name is launched by others than the host function that the task is of."""
    for kernel in capture.named(name):
        others = kernel.launches - kernel.hosts.get(subject.name, 0)
        if kernel is not subject and others:
            hosts = sorted(host for host in kernel.hosts if host not in ("", subject.name))
            where = f"by {', '.join(hosts)}" if hosts else "outside of host functions"
            return [
                f"{others} of {kernel.launches} launches of {kernel.attribute} are made {where}; with --launch the "
                "task has all of them"
            ]
    return []


def _or_launch(capture: Capture, subject: CapturedHost, name: str) -> str:
    """Returns what to do if a host function does not stand alone, but the kernel of that name does."""
    if isinstance(subject, CapturedKernel):
        return ""
    stands_alone = any(kernel.source for kernel in capture.named(name))
    return "; or make the task of the launch alone, by --launch" if stands_alone else ""


# --- calls -----------------------------------------------------------------------------------------------------------


def _usable(subject: CapturedHost) -> tuple[list[CapturedCall], list[tuple[CapturedCall, str]]]:
    """Returns the calls that can be made again, those with the most GPU time first, and why the others cannot."""
    usable, left_out = [], []
    for call in subject.calls:
        why = call.trouble or _not_drawn(call)
        if why:
            left_out.append((call, why))
        else:
            usable.append(call)
    usable.sort(key=lambda call: (-(call.gpu_us or 0.0), -call.count))
    return usable, left_out


def _not_drawn(call: CapturedCall) -> str:
    for name, argument in zip(call.names, call.arguments, strict=True):
        tensor = argument.get("tensor", {})
        if tensor.get("rule") == "kept" and "file" not in tensor:
            return (
                f"argument {name} holds values that cannot be drawn (indices, lengths, a mask or a table); capture the "
                "program again with --keep-values"
            )
    return ""


def _why_none(left_out: Sequence[tuple[CapturedCall, str]], usable: Sequence[CapturedCall]) -> str:
    if usable:
        return "all inputs are constants or kept values, and the same for every seed"
    if left_out:
        return left_out[0][1]
    return "none was seen with its arguments"


def _as_call(call: CapturedCall) -> dict[str, Any]:
    return {"form": dict(call.form), "arguments": list(call.arguments), "captured": call}


def _chosen(calls: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the calls that become cases, with role, weight, and the call that stands for each on a CPU."""
    notes = []
    few = len(calls) <= MOST_TUNE
    tune = list(calls[:-1] if few and len(calls) >= 3 else calls[:MOST_TUNE])
    holdout = list(calls[len(tune) :][-MOST_HOLDOUT:])
    beyond = len(calls) - len(tune) - len(holdout)
    if beyond:
        notes.append(f"{beyond} more distinct calls are no cases: they take less GPU time")
    if not holdout:
        notes.append(f"no holdout case: the program made {len(calls)} distinct calls; add one to task.py by hand")
    times = [call["captured"].gpu_us for call in tune]
    if None in times:
        notes.append("GPU times are unknown: all cases weigh the same")
    total = math.fsum(t for t in times if t)
    found: list[dict[str, Any]] = []
    for call in [*tune, *holdout]:
        us = call["captured"].gpu_us
        weigh = call in tune and None not in times and us
        weight = {"weight": round(us / total, 6) or 1e-6} if weigh else {}
        found.append({**call, "role": "tune" if call in tune else "holdout", **weight})
    _stand_in(found)
    if any(_elements(call) > SMALL for call in found if "on_cpu" not in call):
        notes.append("without a GPU the interpreter has to run calls with large tensors, which may take too long")
    for call in found:
        del call["captured"]
    return found, notes


def _stand_in(calls: list[dict[str, Any]]) -> None:
    """Has the smallest call of the same form stand for large ones on a machine without a GPU."""
    for call in calls:
        alike = [number for number, other in enumerate(calls) if other["form"] == call["form"]]
        least = min(alike, key=lambda number: _elements(calls[number]))
        if _elements(call) > SMALL and calls[least] is not call:
            call["on_cpu"] = least


def _elements(call: Mapping[str, Any]) -> int:
    return sum(math.prod(a["tensor"]["shape"]) for a in call["arguments"] if "tensor" in a)


# --- files -----------------------------------------------------------------------------------------------------------


def _kernel_file(subject: CapturedHost) -> str:
    version = f" of {subject.package} {subject.package_version}" if subject.package else ""
    return f"# {subject.name}{version}, cut out of its module by evo; its license holds\n{subject.source}"


def _reference(subject: CapturedHost, reference: tuple[str, str] | None) -> str:
    """Returns the source of the user's function under the name of the host function; "" without one."""
    if reference is None:
        return ""
    if isinstance(subject, CapturedKernel):
        raise ConfigError(
            f"--reference: expected a kernel with a host function, whose result it gives; {subject.name} has none"
        )
    text, function = reference
    alias = "" if function == subject.attribute else f"\n\n\n{subject.attribute} = {function}"
    return f"{text.rstrip()}{alias}\n\n\nallow_delegation = True\nmin_own_share = 0.0\nlenient = True\n"


def _complete(folder: Path, subject: CapturedHost, zygote: Zygote) -> None:
    """Records the seed kernel, and writes into task.py which arguments it writes to.

    Raises TaskError if it cannot be recorded.
    """
    from fitness.candidate import CompiledCandidate
    from fitness.frontend.stages import Stop
    from fitness.frontend.target import get_target
    from fitness.gpu import launch_bundle
    from fitness.sandbox.scratch import scratch_folder
    from fitness.suites.check import LIMITS, configurations, written_arguments
    from fitness.suites.folder import write_task
    from fitness.tasks.calls import Calls
    from fitness.tasks.task import check_arguments, load_task

    task = load_task(folder, tried=True)
    calls = Calls(task)
    target = get_target(TARGET)
    for case in task.cases:
        check_arguments(task, case, calls.arguments(case))
    wanted = [{"name": case.name, "args": calls.described()[case.name]} for case in task.cases]
    try:
        with scratch_folder() as scratch:
            where: dict[str, Any] = {"zygote": zygote, "target": target.spec, "scratch": scratch, "limits": LIMITS}
            recorded = launch_bundle.record(task.needed_seed, task, wanted, **where)
            compiled = CompiledCandidate(recorded.plans, constants=recorded.constants, layers=recorded.layers)
            first = replace(compiled, plans=configurations(recorded.plans, slice(1)))
            written = sorted(written_arguments(task, calls, first, zygote))
    except Stop as stop:
        raise TaskError(
            f"it cannot be recorded: {stop.verdict.value}: {stop}; with --launch the task is of the launch alone"
        ) from stop
    operators = any(plan.delegated for plan in recorded.plans.values())
    how: dict[str, Any] = {"min_own_share": 0.0} if operators else {}
    function = subject.attribute.rpartition(".")[2]
    if not isinstance(subject, CapturedKernel) and task.entry != function:
        how["says"] = _ENTRY.format(entry=task.entry, function=function)
    write_task(folder, [task.parameters[i] for i in written], stress=False, **how)


def origin_of(subject: CapturedHost, calls: Sequence[CapturedCall], entry: str) -> dict[str, Any]:
    """Returns what origin.json says: where the kernel comes from, and all calls that were seen of it.

    "entry" is the function of kernel.py that makes these calls; "call" says how, with the names of arguments.  "result"
    is the structure of what the program's function returned (`evo.programs.notes.structure_of`): entry returns its
    tensors in order.  A kernel without host function has the "grid" of each launch, which entry takes as its first
    three arguments.
    """
    return {
        "version": VERSION,
        "module": subject.module,
        "attribute": subject.attribute,
        "kind": KERNEL if isinstance(subject, CapturedKernel) else FUNCTION,
        "file": subject.file,
        "sha256": subject.sha256,
        "package": subject.package,
        "package_version": subject.package_version,
        "entry": entry,
        "calls": [
            {
                "arguments": _arguments(call, 3 if isinstance(subject, CapturedKernel) else 0),
                **({"grid": _grid(call)} if isinstance(subject, CapturedKernel) else {}),
                "call": call.form["call"],
                "result": call.result,
                "count": call.count,
                "gpu_us": None if call.gpu_us is None else call.gpu_us / call.count,
            }
            for call in calls
        ],
    }


def _grid(call: CapturedCall) -> list[int]:
    """Returns the grid of a launch: the first three arguments of its entry."""
    return [argument["value"] for argument in call.arguments[:3]]


def _arguments(call: CapturedCall, begin: int) -> list[dict[str, Any]]:
    """Returns the arguments from `begin` on by name; one that shares the memory of another has the name of that."""
    found: list[dict[str, Any]] = []
    for name, argument in list(zip(call.names, call.arguments, strict=True))[begin:]:
        if "tensor" in argument:
            tensor = argument["tensor"]
            form = {"dtype": tensor["dtype"], "shape": tensor["shape"], "stride": tensor["strides"]}
            found.append({"name": name, "tensor": form | {k: tensor[k] for k in ("offset", "alignment")}})
        else:
            found.append({"name": name, "value": argument["value"]})
    return [*found, *({"name": name, "alias": slot} for name, slot in call.aliases.items())]

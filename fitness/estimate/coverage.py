"""Checks from its traces whether a plan does its task's work at sizes at which it is not executed.

Without a GPU a candidate is executed at the sizes for a CPU only; at full size it is estimated.  These checks refuse
plans that do something else at full size.  They are not a proof, as an execution would be.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fitness.estimate.launch_trace import LaunchTrace
from fitness.frontend.plan import Copy, Launch, LaunchPlan, Op, TensorRef

# Least shares that must be seen; each has a margin for estimation errors.
WRITTEN_SHARE = 0.9  # of the outputs: samples and extrapolation may miss some.
ROUGH_SHARE = 0.75  # of the outputs if programs have roles: samples show the shares of the roles only roughly.
SPREAD_SHARE = 0.25  # of the outputs, with bytes that several programs write counted once: a very rough estimate.
PRODUCT_SHARE = 0.45  # of the operations of the seed's matrix products; causal attention needs half of them.
STORED_SHARE = 0.4  # of the bytes that the seed writes to an argument, estimated as roughly.
MOVED_SHARE = 0.4  # of a task's own count of bytes, which may be generous.
COMPUTED_SHARE = 0.4  # of a task's own count of operations: a matrix product may need fewer than the textbook's.


@dataclass
class Seen:
    """The work of a plan as its traces and its steps other than launches show it.

    written: bytes written by buffer; a byte counts once if programs far from each other store it.
    spread: bytes written by buffer; a byte counts once if any programs store it.  This is a rough estimate.
    moved: bytes read and written.
    computed: operations, with those of matrix products.
    products: operations of matrix products.
    The other fields are those of LaunchTrace, true if they are true of any launch.
    """

    written: dict[int, float]
    spread: dict[int, float]
    moved: float = 0.0
    computed: float = 0.0
    products: float = 0.0
    truncated: bool = False
    roles: bool = False
    met: bool = False
    astray: bool = False
    reads_astray: bool = False
    guided: bool = False
    cut_off: bool = False


def seen(plan: LaunchPlan, choice: Sequence[int], traces: Sequence[Sequence[LaunchTrace]]) -> Seen:
    """The work of a plan as its traces show it.

    choice: configuration of each launch.  traces: by launch and configuration.
    """
    found = Seen(defaultdict(float), defaultdict(float))
    launches = iter(zip(choice, traces, strict=True))
    for step in plan.steps:
        if isinstance(step, Launch):
            chosen, by_config = next(launches)
            _add(found, by_config[chosen], [b.nbytes for b in plan.buffers])
        else:
            refs = step.outputs if isinstance(step, Op) else (step.dst,)
            for ref in refs:
                found.written[ref.buffer] += ref.nbytes
                found.spread[ref.buffer] += ref.nbytes
            found.moved += math.fsum(r.nbytes for r in (*refs, *read_by(step)))
    return found


def seen_in_reference(plan: LaunchPlan) -> Seen:
    """The work of a reference, recorded as operators of PyTorch, as far as a right kernel has to do it too.

    No operations: kernels may need far fewer than PyTorch's matrix products, e.g. if one matrix is diagonal.
    """
    found = seen(plan, (), ())
    found.moved = bytes_needed(plan)
    return found


# Operators that read few elements of a tensor, which depend on values.
_GATHERING = ("index", "index_select", "gather", "embedding", "take", "_embedding_bag", "take_along_dim", "nll_loss")


def bytes_needed(plan: LaunchPlan) -> float:
    """Bytes of the arguments that operators of PyTorch read, each once, and of the outputs.

    Of a tensor that is only looked up by indices, nothing counts.
    """
    most: dict[int, float] = {}
    for step in plan.steps:
        name = step.name.split(".")[1] if isinstance(step, Op) and "." in step.name else ""
        for ref in read_by(step):
            if plan.buffers[ref.buffer].input is not None and not name.startswith(_GATHERING):
                size = min(ref.nbytes, plan.buffers[ref.buffer].nbytes)
                most[ref.buffer] = max(most.get(ref.buffer, 0.0), float(size))
    returned = {r.buffer: float(min(r.nbytes, plan.buffers[r.buffer].nbytes)) for r in plan.outputs}
    return math.fsum({**most, **returned}.values())


def _add(found: Seen, trace: LaunchTrace, sizes: Sequence[int]) -> None:
    found.truncated |= trace.truncated
    found.roles |= trace.roles
    found.met |= trace.met
    found.astray |= trace.astray
    found.reads_astray |= trace.reads_astray
    found.guided |= trace.guided
    found.cut_off |= trace.cut_off
    products = trace.programs * math.fsum(2.0 * m * n * k * count for m, n, k, *_, count in trace.dots)
    found.products += products
    found.computed += products + trace.programs * math.fsum(elements * count for _, elements, count in trace.ops)
    for t in trace.traffic:
        found.moved += t.touched
        if t.kind != "load":
            exact = _exactly(trace, t.buffer, sizes[t.buffer]) if 0 <= t.buffer < len(sizes) else None
            found.written[t.buffer] += t.unrepeated if exact is None else exact
            found.spread[t.buffer] += t.distinct if exact is None else exact


def _exactly(trace: LaunchTrace, buffer: int, size: int) -> float | None:
    """Bytes of the buffer that a launch writes, if all programs store the same block."""
    block = trace.work.block(buffer)
    missing = block.missing(size) if block is not None and block.complete else None
    return None if missing is None else float(size - missing.size)


def coverage(
    plan: LaunchPlan,
    found: Seen,
    seed: LaunchPlan,
    of_seed: Seen | None,
    *,
    written: Sequence[int] = (),
    case_bytes: float | None = None,
    case_flops: float | None = None,
) -> str | None:
    """A message if the plan seems to leave out work at these sizes, else None.

    found: the work of the plan.  of_seed: that of the seed's plan, None if it was not traced here.
    written: positions of the arguments that the kernel writes.
    case_bytes, case_flops: the task's own counts of bytes and operations, if it has any.

    The plan has to fulfil these conditions:
    - It returns tensors of the same form as the seed's plan.
    - Launches, fills, copies or operators write every output, up to sampling errors.
    - It writes a fair part of the bytes that the seed writes to written arguments.
    - It does a fair part of the operations of the seed's matrix products, unless data decides what is done.
    - It moves a fair part of `case_bytes` and does a fair part of `case_flops`.
    - It stores nothing outside of all buffers, and loads nothing there unless the seed does.
    - Its programs were traced to their end if the seed's were; otherwise only their beginning is estimated.
    """
    if found.astray:
        return "a kernel stores outside of all its arrays; mask what lies beyond their ends"
    if found.reads_astray and of_seed is not None and not of_seed.reads_astray:
        return "a kernel loads outside of all its arrays; mask what lies beyond their ends"
    if wrong := _other_form(plan, seed):
        return wrong
    endless = "its programs go on for longer than they are followed" if _is_endless(found, of_seed) else None
    if found.truncated and (of_seed is None or of_seed.truncated):  # The task itself may need endless loops.
        return endless
    least = ROUGH_SHARE if found.roles else WRITTEN_SHARE
    uncomputed = None if plan.delegated else _uncomputed(found.computed, case_flops)
    unwritten = _unwritten(plan, found.written, least) or _unwritten(plan, found.spread, SPREAD_SHARE)
    unlike = None
    if of_seed and not of_seed.truncated:
        unlike = _unchanged(plan, found, seed, of_seed, written)
        if not (plan.delegated or seed.delegated or found.guided):
            unlike = unlike or _unmultiplied(found, of_seed)
    return unwritten or unlike or _unmoved(found.moved, case_bytes) or uncomputed or endless


def _is_endless(found: Seen, of_seed: Seen | None) -> bool:
    return found.cut_off and of_seed is not None and not of_seed.cut_off


def read_by(step: Any) -> list[TensorRef]:
    """The windows that a step other than a launch reads."""
    if isinstance(step, Copy):
        return [step.src]
    return [a for a in step.args if isinstance(a, TensorRef)] if isinstance(step, Op) else []


def _other_form(plan: LaunchPlan, seed: LaunchPlan) -> str | None:
    if plan.structure != seed.structure or len(plan.outputs) != len(seed.outputs):
        return f"the entry must return {_form(seed)}, got {_form(plan)}"
    for i, (got, expected) in enumerate(zip(plan.outputs, seed.outputs, strict=True)):
        if (got.shape, got.dtype) != (expected.shape, expected.dtype):
            return (
                f"output {i} must be {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}; "
                "return the same at every size"
            )
    return None


def _form(plan: LaunchPlan) -> str:
    return f"{plan.structure!r} ({len(plan.outputs)} tensors)"


def _unwritten(plan: LaunchPlan, written: Mapping[int, float], least: float) -> str | None:
    for i, ref in enumerate(plan.outputs):
        if ref.numel == 0 or plan.buffers[ref.buffer].input is not None:  # An input is returned as it is.
            continue
        share = written[ref.buffer] / ref.nbytes
        if share < least:
            return (
                f"output {i} has {ref.nbytes} bytes, but the launches write only about {share:.0%} of them; "
                "write all of the output at every size"
            )
    return None


def _unchanged(plan: LaunchPlan, found: Seen, seed: LaunchPlan, of_seed: Seen, written: Sequence[int]) -> str | None:
    for i in written:
        own, other = plan.inputs[i], seed.inputs[i]
        if not isinstance(own, TensorRef) or not isinstance(other, TensorRef):
            continue
        expected = min(of_seed.spread[other.buffer], other.nbytes)
        if (stored := found.spread[own.buffer]) < STORED_SHARE * expected:
            return (
                f"the seed kernel writes about {expected:.3g} bytes of argument {i}, but the launches write only about "
                f"{stored:.3g}; write the same at every size"
            )
    return None


def _unmultiplied(found: Seen, of_seed: Seen) -> str | None:
    if found.computed >= PRODUCT_SHARE * of_seed.products:
        return None
    return (
        f"the matrix products of the seed kernel take {of_seed.products:.3g} operations, but the launches do only "
        f"about {found.computed:.3g}; compute all of the output at every size"
    )


def _unmoved(moved: float, case_bytes: float | None) -> str | None:
    if case_bytes is None or moved >= MOVED_SHARE * case_bytes:
        return None
    return (
        f"the problem has to read and write {case_bytes:.3g} bytes, but the launches touch only about "
        f"{moved:.3g}; read all of the input at every size"
    )


def _uncomputed(computed: float, case_flops: float | None) -> str | None:
    if case_flops is None or computed >= COMPUTED_SHARE * case_flops:
        return None
    return (
        f"the problem takes {case_flops:.3g} operations, but the launches do only about {computed:.3g}; "
        "compute all of the output at every size"
    )

"""Whether a plan does its task's work at sizes at which nothing executes it, as far as its traces show.

Without a GPU a candidate is executed at the sizes for a CPU alone; at the full ones it is estimated.  These checks are
against plans that do something else there.  They are no proof, as executing is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fitness.estimate.launch_trace import LaunchTrace
from fitness.frontend.plan import Copy, Launch, LaunchPlan, Op, TensorRef

WRITTEN_SHARE = 0.9  # of the outputs: samples and extrapolation may miss some
ROUGH_SHARE = 0.75  # the same where programs have roles, of which samples show the shares only roughly
SPREAD_SHARE = 0.25  # the same where bytes that several programs write count once, which is estimated very roughly
PRODUCT_SHARE = 0.45  # of the operations of the seed's matrix products, of which causal attention needs half
STORED_SHARE = 0.4  # of what the seed writes to an argument, estimated as roughly
MOVED_SHARE = 0.4  # of a task's own count of bytes, which may be generous
COMPUTED_SHARE = 0.4  # of its count of operations: a product of matrices may do with fewer than the textbook's


@dataclass
class Seen:
    """What the traces of a plan's launches, and its other steps, show that it does; bytes by buffer."""

    written: dict[int, float]  # what programs that are far from each other store both counts once
    spread: dict[int, float]  # the same, of bytes that any programs write both, as roughly as that is known
    moved: float = 0.0
    computed: float = 0.0  # operations
    products: float = 0.0  # those of matrix products among them
    truncated: bool = False
    roles: bool = False
    met: bool = False  # as of LaunchTrace
    astray: bool = False  # the same
    reads_astray: bool = False  # the same
    guided: bool = False  # the same
    cut_off: bool = False  # the same


def seen(plan: LaunchPlan, choice: Sequence[int], traces: Sequence[Sequence[LaunchTrace]]) -> Seen:
    """choice: configuration of each launch; traces: by launch and configuration."""
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
            found.moved += math.fsum(r.nbytes for r in (*refs, *_read(step)))
    return found


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
    """A message where the plan seems to leave out work at these sizes, None where it does not.

    found, of_seed: of the plan and, where it was traced here, of the seed's; written: arguments that the kernel writes.

    It must return what the seed kernel's plan returns.  Every buffer that holds an output must be written (up to
    sampling) to the extent of that output, by launches, fills, copies or operators, and written arguments to a fair
    part of what the seed writes.  Unless data decides what is done, a fair part of the operations of the seed's matrix
    products must be done.  If the task says how many bytes the problem must move, and how many operations it takes, a
    fair part of them must be seen.  Nothing may be stored
    outside of all buffers, and nothing loaded there if the seed does not.  Programs must have been followed to their
    end if the seed's were: what is estimated of others is their beginning.
    """
    if found.astray:
        return "a kernel stores outside of all its arrays; mask what lies beyond their ends"
    if found.reads_astray and of_seed is not None and not of_seed.reads_astray:
        return "a kernel loads outside of all its arrays; mask what lies beyond their ends"
    if wrong := _other_form(plan, seed):
        return wrong
    endless = "its programs go on for longer than they are followed" if _is_endless(found, of_seed) else None
    if found.truncated and (of_seed is None or of_seed.truncated):  # it may be in the nature of the task
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


def _read(step: Any) -> list[TensorRef]:
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
        if ref.numel == 0 or plan.buffers[ref.buffer].input is not None:  # an input returned as it is
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

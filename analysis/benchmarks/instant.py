"""Provides an evaluator and operators that cost next to nothing, to measure the engine alone.

Speedups follow from a hash of the source and the literals in it, so runs are repeatable and have something to climb.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evo.core.records import Bar, Build, Candidate, Certificate, Check, Evaluation, Fitness, Profile, Timing, Verdict
from operators.base import Context, Draft, Parent

# As long as a small real kernel: hashing and storing sources is part of the engine's work.
SEED_SOURCE = '''"""Row softmax, one program a row."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    numerator = tl.exp(x)
    denominator = tl.sum(numerator, axis=0)
    tl.store(out_ptr + row * stride + columns, numerator / denominator, mask=mask)


def softmax(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, out, x.stride(0), columns, BLOCK=block, num_warps=4, num_stages=2, GENES=(100, 100, 100))
    return out
'''

_GENES = re.compile(r"GENES=\((\d+), (\d+), (\d+)\)")
_TERMS = ("memory", "compute", "latency")


def genes(source: str) -> tuple[int, ...]:
    found = _GENES.search(source)
    return tuple(map(int, found.groups())) if found else ()


def _with_genes(source: str, values: Sequence[int]) -> str:
    return _GENES.sub(f"GENES=({', '.join(map(str, values))})", source)


class Mutate:
    """Moves one literal."""

    name, arity = "mutate", 1

    def __init__(self, step: int = 1000, name: str = "mutate") -> None:
        self.step, self.name = step, name

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        values = list(genes(parents[0].source))
        at = context.rng.randrange(len(values))
        values[at] = max(0, values[at] + context.rng.randint(-self.step, self.step))
        return Draft(_with_genes(parents[0].source, values), f"gene {at} to {values[at]}", {"screened": 0})


class Mix:
    """Takes each literal from one of two parents."""

    name, arity = "mix", 2

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        pairs = zip(*(genes(p.source) for p in parents), strict=True)
        values = [context.rng.choice(pair) for pair in pairs]
        return Draft(_with_genes(parents[0].source, values), f"of {parents[0].index} and {parents[1].index}")


OPERATORS = {o.name: o for o in (Mutate(), Mutate(step=3, name="nudge"), Mix())}


class InstantEvaluator:
    """A function of the source.  Every seventh candidate or so is wrong, some are duplicates of an earlier one."""

    environment: Mapping[str, Any] = MappingProxyType({"evaluator": "instant"})

    def prepare(self) -> Evaluation:
        return self.evaluate(Candidate(SEED_SOURCE), seed=0, known={})

    def evaluate(
        self, candidate: Candidate, *, seed: int, known: Mapping[str, str], bar: Bar | None = None
    ) -> Evaluation:
        digest = hashlib.sha256(candidate.id.encode()).digest()
        plan_hash = self.plan_hash(candidate.source)
        if plan_hash in known:
            first = known[plan_hash]
            return Evaluation(candidate.id, Verdict.DUPLICATE, "screen", message=f"same as {first}", duplicate_of=first)
        if digest[3] % 7 == 0 and candidate.source != SEED_SOURCE:
            return Evaluation(candidate.id, Verdict.WRONG, "verify", message="wrong result", plan_hash=plan_hash)
        timings = _timings(candidate.source, digest)
        if bar is not None and bar.is_above(timings):
            message = f"below {bar}"
            return Evaluation(candidate.id, Verdict.SLOW, "look", message, look=timings, plan_hash=plan_hash)
        return Evaluation(
            candidate=candidate.id,
            verdict=Verdict.OK,
            stage="done",
            builds=(_build(digest),),
            check=Check(cases=4, worst_case="odd", max_error=0.25, budget=1e-6),
            timings=timings,
            plan_hash=plan_hash,
            seconds={"verify": 0.0},
        )

    def screen(self, sources: Sequence[str]) -> list[float | None]:
        return [_timings(s, b"\0" * 8)[0].ratio for s in sources]

    def plan_hash(self, source: str) -> str:
        digest = hashlib.sha256(Candidate(source).id.encode()).digest()
        return digest[:1].hex() if digest[2] < 32 else digest.hex()

    def profile(self, candidate: Candidate, evaluation: Evaluation, *, counters: bool = True) -> Profile:
        terms = evaluation.timings[0].terms
        by_term = {f"{name}, µs": us for name, us in terms.items()}
        return Profile("estimate", "memory", "made up", by_term, case=evaluation.timings[0].case, metrics=by_term)

    def certify(self, source: str, *, seed: int) -> Certificate:
        return Certificate(Candidate(source).id, Verdict.INFRASTRUCTURE, "nothing is executed")

    def close(self) -> None:
        pass


def _build(digest: bytes) -> Build:
    return Build(
        kernel="softmax_kernel",
        registers=16 + digest[4] % 240,
        spill_bytes=0,
        shared_bytes=512 * digest[5],
        num_warps=1 << digest[6] % 6,
        occupancy=(1 + digest[7] % 16) / 16,
        sass_hash=digest.hex(),
    )


def _timings(source: str, digest: bytes) -> tuple[Timing, ...]:
    timings = []
    for case, target in (("square", (5000, 3000, 8000)), ("wide", (6000, 3000, 7000))):
        terms = {t: 1 + abs(v - goal) / 1000 for t, v, goal in zip(_TERMS, genes(source), target, strict=True)}
        baseline = sum(1 + abs(100 - goal) / 1000 for goal in target)
        ratio = baseline / sum(terms.values())
        timings.append(
            Timing(case, (sum(terms.values()),), (baseline,), ratio, (ratio * 0.9, ratio * 1.1), True, terms)
        )
    return tuple(timings)


def score(evaluation: Evaluation) -> Fitness | None:
    """The mean over the cases."""
    if evaluation.verdict is not Verdict.OK:
        return None
    per_case = {t.case: t.ratio for t in evaluation.timings}
    speedup = sum(per_case.values()) / len(per_case)
    return Fitness(speedup, (speedup * 0.9, speedup * 1.1), per_case, estimated=True)

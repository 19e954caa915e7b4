"""Defines the operators of language models: which parents each takes, and what its prompt says about them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evo.core.records import Finding, Profile, Verdict, candidate_id
from operators.base import Draft, Parent
from operators.llm.answers import NOTE_CHARACTERS, body_of, hint_of, note_of, take_apart
from operators.llm.architectures import arch_facts
from operators.llm.base import LlmContext, Message, Prompt, Unreadable
from operators.llm.edits import apply_edits, has_edits, read_edits
from operators.llm.keep import fill_in, shown
from operators.llm.kernel_facts import resources, speeds
from operators.llm.pitfalls import pitfalls
from operators.llm.render import render
from operators.llm.siblings import choose_direction, siblings

NEAR = 0.9  # of the roofline: from there on counters show the limit, and no hint helps
HINT = "hint:"  # a draft that says which hint it follows has cost {"hint:ID": 1}, for counting

# Prompts on the same parent differ by one of these: sampling alone makes models say the same thing again and again.
CHANGES = (
    "Look first at how data moves: how often each byte is read from memory, how wide and aligned accesses are.",
    "Look first at the size and shape of what one program computes, and at how programs are laid out over the problem.",
    "Look first at work that is done twice, or that could be done once, earlier, or not at all.",
    "Look first at what a program waits for: loads that could start earlier, reductions, barriers.",
    "Look first at the instructions: cheaper forms of the same arithmetic, fewer conversions and masks.",
    "Look first at registers, shared memory and warps: what would let more programs run at once, or each do more.",
)
ALGORITHMS = (
    "Think of the number of passes over the data, and of an online form that needs fewer.",
    "Think of who computes what: one program for several rows, several programs for one, persistent programs.",
    "Think of a mathematically equal formulation that maps onto matrix products or cheaper functions.",
    "Think of splitting a reduction in two kernels, or of fusing two kernels in one.",
    "Think of the order in which tiles are visited, so that caches are used by the programs that run at the same time.",
)

ADVICE = {
    Verdict.REJECTED: "A rule was broken. Do the same work in a way that the rules allow.",
    Verdict.COMPILE_ERROR: "The source did not compile. Check shapes, dtypes and names on the line named first.",
    Verdict.UNSUPPORTED: "The host function needs a value that is computed on the GPU. Decide by shapes and arguments.",
    Verdict.RUNTIME_ERROR: "The host function or a kernel failed. Check sizes that are no multiple of a block.",
    Verdict.TIMEOUT: "It did not end in time. Check loops for their bounds, and the grid for its size.",
    Verdict.OUT_OF_MEMORY: "It needs more than the GPU has. Use smaller blocks, fewer stages or other warps.",
    Verdict.WRONG: "The result is wrong. Check masks and their `other` values, accumulation, strides and offsets.",
}


class _Asking:
    """The base of all: the system message, the format of answers, and how they are read."""

    name: str
    arity: int
    repairs = False
    edits = True  # whether an answer may be edits of the first parent
    hints = True  # whether it is to follow one of the hints of a profile
    directions: Sequence[str] = ()
    saying = "what you change and why it is faster"  # of the plan

    def prompt(self, parents: Sequence[Parent], context: LlmContext) -> Prompt | None:
        if not self._applies(parents):
            return None
        profiles = [_hinted(context.profiles.get(p.index)) for p in parents]
        numbers = [p.index for p in parents]
        direction = choose_direction(context.rng, self.directions, numbers, context.flying)
        user = render(
            f"{self.name}.md.j2",
            parents=parents,
            sources=[self._source(p, context) for p in parents],
            tables=[speeds(p, context.task) for p in parents],
            builds=[resources(p.builds, p.frozen_source) for p in parents],
            profiles=profiles,
            mode=context.guidance,
            hints=self.hints and context.guidance == "digest" and any(p is not None and p.hints for p in profiles),
            siblings=siblings(numbers, context.history, context.flying),
            direction=direction,
            task=context.task,
            evaluated=context.evaluated,
            saying=self.saying,
            edits=self.edits and context.answer == "edits",
            **self._values(parents, context),
        )
        return Prompt(self.name, (Message("system", system(context)), Message("user", user)), direction)

    def _source(self, parent: Parent, context: LlmContext) -> str:
        """The text of a parent; "" if the first message has it, as the kernel that decides what is right."""
        if context.task.seed and candidate_id(parent.source) == candidate_id(context.task.seed):
            return ""
        return shown(parent.source, context.task.entry)

    def read(self, answer: str, parents: Sequence[Parent]) -> Draft | Unreadable:
        body = body_of(answer)
        if isinstance(body, Unreadable):
            return body
        if self.edits and parents and has_edits(answer[body[0] :]):
            draft = _edited(answer, body[0], parents[0])
        else:
            draft = _rewritten(answer, parents)
        if isinstance(draft, Draft) and candidate_id(draft.source) in {candidate_id(p.source) for p in parents}:
            return Unreadable("the kernel in the answer is the one that was given, unchanged")
        return draft

    def _applies(self, parents: Sequence[Parent]) -> bool:
        return len(parents) == self.arity and all(p.verdict is Verdict.OK for p in parents)

    def _values(self, parents: Sequence[Parent], context: LlmContext) -> Mapping[str, Any]:
        """The values that only this operator's template uses."""
        return {}


def _hinted(profile: Profile | None) -> Profile | None:
    """Returns a profile without hints if its kernel is near the roofline."""
    near = profile is not None and (profile.roofline or 0.0) >= NEAR
    return dataclasses.replace(profile, hints=()) if profile is not None and near else profile


class LlmMutate(_Asking):
    """A change that makes a kernel faster."""

    name, arity, directions = "mutate", 1, CHANGES


class LlmCrossover(_Asking):
    """One kernel with the strengths of two."""

    name, arity = "crossover", 2

    def _applies(self, parents: Sequence[Parent]) -> bool:
        return super()._applies(parents) and len({candidate_id(p.source) for p in parents}) == 2

    def _values(self, parents: Sequence[Parent], context: LlmContext) -> Mapping[str, Any]:
        return {"strengths": strengths(*parents)}


class LlmRepair(_Asking):
    """A repair of a kernel that failed.  Duplicates and failures of the evaluator have nothing to repair."""

    name, arity, repairs = "repair", 1, True
    saying = "what was wrong and how you repair it"

    def _applies(self, parents: Sequence[Parent]) -> bool:
        return len(parents) == 1 and parents[0].verdict in ADVICE

    def _values(self, parents: Sequence[Parent], context: LlmContext) -> Mapping[str, Any]:
        parent = parents[0]
        # The message is that of the first finding.
        new = [f for f in parent.findings if len(parent.findings) > 1 or f.message not in parent.message]
        findings = "\n".join(map(_finding, new))
        return {"advice": ADVICE[parent.verdict], "findings": findings}


class LlmExplore(_Asking):
    """Another algorithm than those that exist."""

    name, arity, edits, hints, directions = "explore", 1, False, False, ALGORITHMS
    saying = "what is different in kind and why it is faster"


class LlmInitial(_Asking):
    """The first kernel, from the reference alone."""

    name, arity, edits, directions = "initial", 0, False, ALGORITHMS
    saying = "how the work is laid out and why"

    def _values(self, parents: Sequence[Parent], context: LlmContext) -> Mapping[str, Any]:
        return {"baseline": context.baseline and speeds(context.baseline, context.task)}


def system(context: LlmContext) -> str:
    """The first message: all that stays the same during a run, so that servers need to read it once only.

    What all tasks share comes first.
    """
    return render(
        "system.md.j2",
        task=context.task,
        seed=shown(context.task.seed, context.task.entry),
        hardware=context.hardware,
        rules=context.rules,
        allowed=context.allowed,
        triton=context.triton,
        arch=[f.text for f in arch_facts(context.arch)],
        pitfalls=[p.text for p in pitfalls(context.triton)],
        note_characters=NOTE_CHARACTERS,
    )


def _finding(finding: Finding) -> str:
    return f"line {finding.line}, rule {finding.rule}: {finding.message}"


# --- crossover -------------------------------------------------------------------------------------------------------


def strengths(one: Parent, two: Parent) -> list[str]:
    """Returns, for each case that both have, which parent is faster and by how much."""
    rows = []
    for case, a in one.per_case.items():
        if case in two.per_case and a > 0 and two.per_case[case] > 0:
            b = two.per_case[case]
            faster, ratio = ("A", a / b) if a >= b else ("B", b / a)
            rows.append(f"{case}: {faster}, {ratio:.2f} times as fast as the other ({a:.3f} against {b:.3f})")
    return rows


def complementary(pool: Sequence[Parent]) -> tuple[Parent, Parent] | None:
    """The two of `pool` whose best cases put together would be the fastest; the earlier pair of equals.

    A pair in which one is faster everywhere has nothing to combine: others are preferred.  None if the pool does not
    have two different sources.
    """
    best: tuple[tuple[bool, float], tuple[Parent, Parent]] | None = None
    for one, two in itertools.combinations(pool, 2):
        if candidate_id(one.source) == candidate_id(two.source):
            continue
        cases = [c for c in one.per_case if c in two.per_case]
        ahead = {one.per_case[c] > two.per_case[c] for c in cases if one.per_case[c] != two.per_case[c]}
        together = math.fsum(math.log(max(one.per_case[c], two.per_case[c], 1e-9)) for c in cases)
        rank = (len(ahead) == 2, together / max(len(cases), 1))
        if best is None or rank > best[0]:
            best = rank, (one, two)
    return best[1] if best else None


# --- reading ---------------------------------------------------------------------------------------------------------


def _edited(answer: str, start: int, parent: Parent) -> Draft | Unreadable:
    edits = read_edits(answer, start)
    if isinstance(edits, Unreadable):
        return edits
    source = apply_edits(parent.source, edits.edits)
    if isinstance(source, Unreadable):
        return source
    before = answer[start : edits.span[0]].rstrip()
    # The blocks may stand in a fenced block, whose opening line does not belong to the plan.
    last = before.rpartition("\n")[2].strip()
    plan = before.removesuffix(last).rstrip() if last.startswith(("```", "~~~")) else before
    begin = start + len(plan) - len(plan.lstrip())
    return _draft(source, plan.strip(), (begin, max(begin, start + len(plan))), edits.span)


def _rewritten(answer: str, parents: Sequence[Parent]) -> Draft | Unreadable:
    parts = take_apart(answer)
    if isinstance(parts, Unreadable):
        return parts
    code = fill_in(parts.code, [p.source for p in parents])
    return code if isinstance(code, Unreadable) else _draft(code, parts.plan, parts.plan_span, parts.code_span)


def _draft(source: str, plan: str, plan_span: tuple[int, int], code_span: tuple[int, int]) -> Draft:
    hint = hint_of(plan)
    return Draft(
        source,
        note_of(plan) or "no plan given",
        cost={HINT + hint: 1.0} if hint else {},
        spans={"plan": plan_span, "code": code_span},
    )

"""The model of the comparison: answers prompts by one source transformation each, right or wrong, always the same way.

It stands for a language model whose answers are changes of one step: numbers of a launch, structural rewrites, faults,
broken texts.  It reads the kernel of a prompt and nothing else, so no engine gains by its words.  What it answers
follows from the seed, the number of the request in the run, and the kernel.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.benchmarks import mutants
from analysis.benchmarks.peers.prompts import ReadPrompt, name_of, read_question, write_answer
from evo.core.records import candidate_id
from operators.base import Context, Parent
from operators.genes import COMPUTED, get_genes, set_genes
from operators.recombine import Recombine
from operators.rewrite import REWRITES

# Rewrites that the model does not make: one such answer tries many settings, and its evaluation takes longer.
LEFT_OUT = ("add_autotune", "more_configs")


@dataclass(frozen=True)
class AnswerShares:
    """Counts of the kinds in a hundred answers, and delays.

    rewrite: a structural rewrite.  parameter: another number of a launch.  wrong: a kernel with a fault.  syntax: a
    file that Python cannot read.  prose: a text without code.  cut: a text that ends in the middle.
    undo: of a hundred prompts about a kernel that an answer broke, those whose answer undoes it.
    combine: of a hundred prompts with two kernels, those whose answer combines them.
    Delays are exponential with this mean; one in twenty takes ten times as long.
    """

    rewrite: int = 40
    parameter: int = 36
    wrong: int = 10
    syntax: int = 5
    prose: int = 5
    cut: int = 4
    undo: int = 50
    combine: int = 50
    mean_delay_s: float = 0.02


@dataclass(frozen=True)
class Answer:
    """An answer: its kind, the new kernel (None if it holds none), the text, and how long it takes."""

    kind: str
    note: str
    parent: str  # the kernel of the prompt
    source: str | None
    text: str
    delay_s: float

    @property
    def finish(self) -> str:
        """Why the text ends, in the words of OpenAI's protocol."""
        return "length" if self.kind == "cut" else "stop"


class FixedModel:
    """Answers the requests of one run; `answer` is called with their numbers from 0."""

    def __init__(self, seed: int, habits: AnswerShares | None = None) -> None:
        self._seed, self._habits = seed, habits or AnswerShares()
        self._broken: dict[str, str] = {}  # id of a kernel that an answer broke -> the kernel before

    def answer(self, messages: Sequence[Mapping[str, Any]], number: int) -> Answer:
        """The answer to a chat.  Raises UnknownPromptError if it shows no kernel."""
        question = read_question(messages)
        key = f"{self._seed} {number} {name_of(question.source)}"
        rng = random.Random(hashlib.sha256(key.encode()).digest())
        delay = rng.expovariate(1 / self._habits.mean_delay_s) * (10 if rng.random() < 0.05 else 1)
        kind, note, source = self._change(question, rng)
        if source is not None and kind in ("wrong", "syntax"):
            self._broken[name_of(source)] = question.source
        if source is None:
            text = note
        else:
            text = write_answer(question, note, source)
            if kind == "cut":
                text, source = text[: len(text) * 2 // 3], None
        return Answer(kind, note, question.source, source, text, delay)

    def _change(self, question: ReadPrompt, rng: random.Random) -> tuple[str, str, str | None]:
        """The kind of an answer, a line about it, and the new kernel."""
        broken, habits = self._broken.get(name_of(question.source)), self._habits
        if rng.randrange(100) < habits.undo and broken is not None:
            return "undo", "Undo the last change, which broke the kernel.", broken
        combines = rng.randrange(100) < habits.combine and question.other is not None
        if combines and (found := _combined(question, rng)) is not None:
            return "combine", *found
        kinds = ("rewrite", "parameter", "wrong", "syntax", "prose", "cut")
        (kind,) = rng.choices(kinds, [getattr(habits, kind) for kind in kinds])
        if kind == "prose":
            return kind, "The kernel depends on its memory accesses; larger blocks may help. I write no code.", None
        change = _CHANGES[kind](question.source, rng) or _parameter(question.source, rng)
        if change is None:
            return "unchanged", "I see nothing to change.", None
        return kind, *change


Change = Callable[[str, random.Random], tuple[str, str] | None]


def _rewrite(source: str, rng: random.Random) -> tuple[str, str] | None:
    """A structural rewrite that applies, each with the same chance."""
    known = [rewrite for name, rewrite in REWRITES.items() if name not in LEFT_OUT]
    for rewrite in rng.sample(known, len(known)):
        if (new := rewrite.apply(source, rng)) is not None:
            return f"{rewrite.name}: {rewrite.description}.", new
    return None


def _parameter(source: str, rng: random.Random) -> tuple[str, str] | None:
    """One number of a launch, one or two steps up or down among its legal values."""
    choices = []
    for gene in get_genes(source):
        at = gene.values.index(gene.value)
        near = gene.values[max(0, at - 2) : at] + gene.values[at + 1 : at + 3]
        choices += [(gene.name, value) for value in near if value != COMPUTED]
    if not choices:
        return None
    name, value = rng.choice(choices)
    new = set_genes(source, {name: value})
    return (f"Set {name} to {value}.", new) if candidate_id(new) != candidate_id(source) else None


def _wrong(source: str, rng: random.Random) -> tuple[str, str] | None:
    """One fault of the benchmark of the checker."""
    for name in rng.sample(list(mutants.OPERATORS), len(mutants.OPERATORS)):
        try:
            found = list(mutants.mutants(mutants.RightKernel("", "", "", source), name))
        except SyntaxError:  # the kernel was broken before
            return None
        if found:
            return "Simplify an expression.", rng.choice(found).source
    return None


def _syntax(source: str, rng: random.Random) -> tuple[str, str] | None:
    """A file in which one closing parenthesis is lost."""
    places = [i for i, line in enumerate(source.split("\n")) if line.rstrip().endswith(")")]
    if not places:
        return None
    lines, at = source.split("\n"), rng.choice(places)
    lines[at] = lines[at].rstrip()[:-1]
    return "Tidy up.", "\n".join(lines)


def _cut(source: str, rng: random.Random) -> tuple[str, str] | None:
    return _parameter(source, rng)


def _combined(question: ReadPrompt, rng: random.Random) -> tuple[str, str] | None:
    """Numbers or a function of one kernel in the other."""
    parents = [Parent(i, source, 1.0) for i, source in enumerate((question.source, question.other or ""))]
    draft = Recombine()(parents, Context(rng))
    return None if draft is None else (f"Combine both: {draft.note}.", draft.source)


_CHANGES: Mapping[str, Change] = {
    "rewrite": _rewrite, "parameter": _parameter, "wrong": _wrong, "syntax": _syntax, "cut": _cut,
}  # fmt: skip

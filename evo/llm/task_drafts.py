"""Makes a task from a bare kernel file: asks a model, checks its answers, and sends back what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evo.core.text import storable
from evo.storage.model_calls import ModelAnswer
from fitness.frontend.plan import ITEMSIZE
from fitness.tasks.scaffold import entries, waivers
from fitness.validation.draft import LEAST_CASES, MOST_CASES, MOST_TOLERANCE, Accepted, Refused
from fitness.validation.draft_rehearsal import MOST_BYTES
from operators.llm.base import Prompt, Unreadable
from operators.llm.drafting import ask_for_task, ask_to_correct, read_task

ROUNDS = 3


@dataclass(frozen=True)
class Round:
    """One answer.  `source`: of the task.py in it; `reason`: why it cannot be used, "" if it can."""

    prompt: Prompt
    source: str
    reason: str


@dataclass
class Drafting:
    """The result.  `accepted` stays empty if no answer could be used; `ended`: why no more were asked for."""

    rounds: list[Round] = field(default_factory=list)
    accepted: Accepted | None = None
    ended: str = ""


def draft(
    kernel: str,
    ask: Callable[[Prompt], ModelAnswer | None],
    check: Callable[[str], Accepted],
    say: Callable[[Round], None] = lambda done: None,
) -> Drafting:
    """Asks for a task of `kernel` until one passes `check`, at most ROUNDS times; `say` gets each round.

    ask: returns the answer, None if the limits have no room for it; check: raises Refused.
    """
    found = Drafting()
    prompt = first_prompt(kernel)
    for _ in range(ROUNDS):
        answer = ask(prompt)
        if answer is None:
            found.ended = "the limits on tokens or dollars have no room for another question"
            return found
        read = read_task(answer.text)
        if isinstance(read, Unreadable):
            source, reason = "", read.reason
        else:
            source, reason = read, _problem(found, read, check)
        found.rounds.append(Round(prompt, source, reason))
        say(found.rounds[-1])
        if not reason:
            return found
        prompt = ask_to_correct(prompt, answer.text, reason)
    found.ended = f"{ROUNDS} answers could not be used"
    return found


def first_prompt(kernel: str) -> Prompt:
    """Returns the first question about a kernel.  Raises TaskError if it is not Python or has no host function."""
    names = [function.name for function in entries(kernel)]
    limits = {
        "least": LEAST_CASES,
        "most": MOST_CASES,
        "gib": MOST_BYTES >> 30,
        "dtypes": list(ITEMSIZE),
        "tolerance": MOST_TOLERANCE,
    }
    return ask_for_task(storable(kernel), names, waivers(kernel, names[0]), limits)


def _problem(found: Drafting, source: str, check: Callable[[str], Accepted]) -> str:
    """Returns why `source` cannot be used; "" if it can, and then `found` accepts it."""
    try:
        found.accepted = check(source)
    except Refused as refused:
        return str(refused)
    return ""

"""Determines whether a run came to its own end or was only interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evo.search.budget import Budget

if TYPE_CHECKING:
    from evo.core.settings import RunConfig
    from evo.storage.store import RunReader

SILENT = "no model answers"
# Reasons to end, as the engine gives them, after which work is left: of runs that were stopped, and of halves.
LEFT = (
    "interrupted",
    SILENT,
    "proposed",
    "all of the budget is proposed",
    "nothing new can be made of what is known",
    "nothing is pending",
)


def came_to_end(run: RunReader) -> bool:
    """Returns whether a run spent its budget, or ended for a reason of its own."""
    if ended(run) not in ("", *LEFT):
        return True
    # A campaign stores this event also for runs that spent the rest of their budget on rules alone.
    silent = any((kind, text) == ("ended", SILENT) for kind, text, _ in run.events())
    return not silent and is_over(run, run.info.config)


def ended(run: RunReader) -> str:
    """Returns how the last process that ran it ended; "" while one runs it, and if it was killed."""
    last = [(kind, text) for kind, text, _ in run.events() if kind in ("started", "resumed", "ended")][-1:]
    return "".join(text for kind, text in last if kind == "ended")


def is_over(run: RunReader, config: RunConfig) -> bool:
    """Returns whether a run has spent the budget of `config`."""
    budget = Budget(config.budget, config.gpu_seconds)
    for trial in run.trials():
        budget.spend(trial)
    return budget.over

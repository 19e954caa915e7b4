"""Determines whether a run came to its own end or was only interrupted."""

from __future__ import annotations

from evo.core.records import StopReason, Trial
from evo.core.settings import RunConfig
from evo.search.budget import Budget
from evo.storage.queries import RunReader


def came_to_end(run: RunReader) -> bool:
    """Returns whether a run spent its budget, or ended for a reason of its own, and nothing is left to evaluate."""
    text = ended(run)
    over = bool(text and StopReason.parse(text).final) or (not fell_silent(run) and is_over(run, run.info.config))
    return over and not run.pending()


def fell_silent(run: RunReader) -> bool:
    """Returns whether the models of a run gave no answer at some time; a campaign stores that, whatever came after."""
    return any((kind, text) == ("ended", StopReason.SILENT) for kind, text, _ in run.events())


def ended(run: RunReader) -> str:
    """Returns how the last process that ran it ended; "" while one runs it, and if it was killed."""
    last = [(kind, text) for kind, text, _ in run.events() if kind in ("started", "resumed", "ended")][-1:]
    return "".join(text for kind, text in last if kind == "ended")


def attained(best: Trial | None, config: RunConfig) -> bool:
    """Returns whether the best kernel has the share of the attainable speed that ends a run, in every tune case."""
    if config.stop_at_attainable is None or best is None or not best.proposal.is_kernel:
        return False
    shares = [timing.attained for timing in best.evaluation.timings]
    return bool(shares) and all(share is not None and share >= config.stop_at_attainable for share in shares)


def is_over(run: RunReader, config: RunConfig) -> bool:
    """Returns whether a run has spent the budget of `config`, or has a kernel that ends it."""
    if config.stop_at_attainable is not None and attained(run.best(), config):
        return True
    return spent_budget(run, config).over


def spent_budget(run: RunReader, config: RunConfig) -> Budget:
    """Returns the budget of `config` with what the finished trials of a run took of it; the seed is free."""
    budget = Budget(config.budget, config.gpu_seconds)
    for trial in run.trials():
        budget.spend(trial)
    return budget

"""A search on the command line: Ctrl-C in two steps, and what is printed at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evo.cli import common
from evo.core.text import counted, of_attainable, quoted
from evo.search.listener import Stop, Terminal

if TYPE_CHECKING:
    from evo.core.baselines import BaselineKind
    from evo.result import BestKernel, Result
    from evo.search.engine import EvaluatorLike, Observer
    from evo.storage.store import Store


_BESIDE = "diff.patch, result.json and evidence.json"


class CommandLine(Terminal):
    """Stops a search by the first Ctrl-C; the second leaves at once.  `searched`: whether a search began."""

    searched = False

    @contextmanager
    def searching(self, store: Store, evaluator: EvaluatorLike | None) -> Iterator[tuple[Sequence[Observer], Stop]]:
        from evo.search.interrupt import Interrupt

        self.searched = True
        with (
            _forced_exit(store, evaluator),
            Interrupt(notify) as interrupt,
            super().searching(store, evaluator) as (observers, _),
        ):
            yield observers, interrupt


def notify() -> None:
    """Says what the first Ctrl-C does."""
    print("\nevo: stopping when what is being evaluated is done; Ctrl-C again drops it", file=sys.stderr, flush=True)


@contextmanager
def _forced_exit(store: Store, evaluator: EvaluatorLike | None) -> Iterator[None]:
    """A second Ctrl-C: everything finished is stored already, so leave at once, without waiting for worker threads."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"evo: interrupted; go on by `evo resume {quoted(store.folder)}`", file=sys.stderr, flush=True)
        if evaluator is not None:
            evaluator.close()
        store.close()
        os._exit(common.EXIT_INTERRUPTED)


def show_end(result: Result, *, searched: bool = True) -> int:
    """Prints what a run found; the exit code.  searched: whether this process searched, or the run was over before."""
    from evo.core.records import StopReason

    folder = result.run_dir
    interrupted = searched and result.stop_reason == StopReason.INTERRUPTED
    if result.best is None and result.certificate is not None:
        return _show_none(result, interrupted)
    if result.best is None or result.certificate is None:
        common.say(f"interrupted before the seed was evaluated; go on by `evo resume {quoted(folder)}`")
        return common.EXIT_INTERRUPTED
    _show_best(result.best, result.config.baseline_kind)
    common.say(f"certificate: {result.certificate.summary}")
    beside = "result.json and evidence.json" if result.config.baseline_kind.pytorch else _BESIDE
    common.say(f"kernel: {folder / 'best' / 'kernel.py'} ({beside} beside it)")
    common.say(f"look closer: evo show {quoted(folder)}, evo show {quoted(folder)} {result.best.trial}")
    if interrupted:
        common.say(f"go on: evo resume {quoted(folder)}")
    if searched and result.stop_reason == StopReason.SILENT and not result.spent.candidates:
        return common.EXIT_NOT_OK  # nothing was searched
    return common.EXIT_INTERRUPTED if interrupted else 0


def _show_none(result: Result, interrupted: bool) -> int:
    """Says that no right kernel was found, for a task without a seed kernel; returns the exit code."""
    tried = counted(result.spent.candidates, "candidate")
    common.say(f"no right kernel was found among {tried}; {result.baseline} is the baseline, best/ has no kernel.py")
    common.say(f"certificate: {result.certificate.summary}" if result.certificate else "")
    common.say(f"see why they failed: evo show {quoted(result.run_dir)}")
    if interrupted:
        common.say(f"go on: evo resume {quoted(result.run_dir)}")
        return common.EXIT_INTERRUPTED
    return common.EXIT_NOT_OK


def _show_best(best: BestKernel, baseline: BaselineKind) -> None:
    if best.trial == 0:
        attained = of_attainable(best.attained)
        common.say(f"nothing faster than the seed was found; best/kernel.py is the seed{attained}")
        return
    if best.patch:
        common.say(f"\n{best.patch}")
    common.say(f"best: {best} {baseline.compared}{of_attainable(best.attained)}, trial {best.trial}")
    if best.estimated:
        common.say("      estimated: a model of the target computed it, no GPU measured it")
    if best.own_share < 1:
        common.say(f"      own kernels wrote {best.own_share:.0%} of the outputs, PyTorch the rest")
    if best.ci95[0] <= 1:
        common.say("      the interval includes 1: it may be no faster")

"""What a run found and what it cost, read from its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evo.core.records import Certificate, Fitness, Trial, Verdict
from evo.core.settings import RunConfig
from evo.search.termination import ended, spent_budget
from evo.storage.best import Conclusion, read_result
from evo.storage.queries import RunReader


@dataclass(frozen=True)
class BestKernel(Fitness):
    """The kernel that a run found, beside the baseline of the run (`Result.baseline`)."""

    verdict: Verdict
    source: str  # with the chosen autotune configuration, if there was one to choose
    trial: int  # its number; 0 is the seed itself: nothing was faster
    own_share: float  # least share of its own kernels in the bytes of the outputs; PyTorch wrote the rest
    attained: float | None  # mean share of the attainable speed (docs/estimate.md); None if it is not known
    patch: str  # unified diff from the seed; "" for the seed, and if there is none


@dataclass(frozen=True)
class Spending:
    """What a run has cost, without the seed, which is free.  Tokens and dollars are None if some were not counted."""

    candidates: int  # evaluated
    gpu_seconds: float
    tokens: int | None
    usd: float | None


class Result:
    """A run, read from its folder: also while it goes on, and by programs that did not make it."""

    def __init__(self, run_dir: Path) -> None:
        """Use `Result.open` for an earlier run.  Raises StoreError if `run_dir` holds no run."""
        self.run_dir = run_dir
        with RunReader(run_dir) as run:
            self.config: RunConfig = run.info.config  # its settings, among them the random seed
            self.baseline: str = run.info.config.baseline_kind.text  # what speedups are over, in words
            self.stop_reason: str = ended(run)  # e.g. "budget spent", "interrupted"; "" while it goes on
            self.pending: int = len(run.pending())  # candidates that are proposed and not evaluated
            # What the others are compared with: the seed kernel's, or PyTorch's.  None until it is evaluated.
            self.seed: Trial | None = run.first()
            written = read_result(run) if self.seed else None
            # Of the best kernel, or why nothing was certified; None while the run goes on.
            self.certificate: Certificate | None = written.certificate if written else None
            # None until the seed is evaluated; of a task without a seed kernel, while no right kernel is found.
            self.best: BestKernel | None = _best(run, self.seed, written)
            self.spent: Spending = _spending(run)

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str]) -> Result:
        """The run in a folder; its database or its `best` folder stand for it too."""
        from evo.storage.folders import run_folder

        return cls(run_folder(os.fspath(run_dir)))

    @property
    def trials(self) -> Iterator[Trial]:
        """Finished trials in the order they were finished, the seed among them; read as they are asked for."""
        with RunReader(self.run_dir) as run:
            yield from run.trials()

    def __repr__(self) -> str:
        return f"<Result of {self.run_dir}: {self.best or 'no kernel yet'}, {self.stop_reason or 'not ended'}>"


def _best(run: RunReader, seed: Trial | None, written: Conclusion | None) -> BestKernel | None:
    """What is in best/; before that is written, the fastest trial."""
    fastest = written.best if written else run.best()
    if seed is None or fastest is None or fastest.fitness is None or not fastest.proposal.is_kernel:
        return None
    found = written or Conclusion(fastest, Certificate("", Verdict.INFRASTRUCTURE, "not yet"))
    return BestKernel(
        **vars(fastest.fitness),
        verdict=fastest.evaluation.verdict,
        source=found.source,
        trial=fastest.index,
        own_share=fastest.evaluation.check.own_share if fastest.evaluation.check else 1.0,
        attained=fastest.evaluation.attained,
        patch=found.patch(seed),
    )


def _spending(run: RunReader) -> Spending:
    models = run.models()
    tokens = [m.tokens_in + m.tokens_out for m in models if m.tokens_in is not None and m.tokens_out is not None]
    usd = [m.usd for m in models if m.usd is not None]
    measured = run.info.config.device == "gpu"
    return Spending(
        candidates=run.spent(),
        gpu_seconds=spent_budget(run, run.info.config).spent_gpu_s if measured else 0.0,
        tokens=sum(tokens) if len(tokens) == len(models) else None,
        usd=sum(usd) if len(usd) == len(models) else None,
    )

"""Shows a run on the terminal: a live panel if the output is a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evo.core.records import FIRST_OPERATORS, Fitness, Trial, Verdict, surely_faster
from evo.core.settings import RunConfig
from evo.core.text import counted, of_attainable
from evo.search.budget import Budget, gpu_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_HZ = 4
PLAIN_S = 1.0  # seconds between two plain lines; a new best is always worth one

_COLOURS = {Verdict.OK: "green", Verdict.DUPLICATE: "cyan", Verdict.INFRASTRUCTURE: "bold red"}


class ProgressCounts:
    """The numbers of a run so far; only the display uses the clock."""

    def __init__(
        self, budget: int, clock: Callable[[], float] = time.monotonic, *, gpu_seconds: float | None = None
    ) -> None:
        self.budget = Budget(budget, gpu_seconds)
        self.verdicts: Counter[Verdict] = Counter()
        self.best: Trial | None = None
        self.tokens = 0
        self.usd = 0.0
        self.trials: Counter[str] = Counter()  # by operator
        self.improved: Counter[str] = Counter()  # of those, faster than every parent beyond the intervals
        self._found: dict[int, Fitness] = {}
        self._clock = clock
        self._started = clock()
        self._live = 0
        self._live_gpu_s = 0.0

    @property
    def spent(self) -> int:
        """Candidates."""
        return self.budget.spent

    def add(self, trial: Trial, *, replayed: bool) -> bool:
        """Counts a trial; whether it is the best so far."""
        self.budget.spend(trial)
        if trial.proposal.operator not in FIRST_OPERATORS and not replayed:
            self._live += 1
            self._live_gpu_s += gpu_seconds(trial.evaluation)
        self.verdicts[trial.evaluation.verdict] += 1
        self._credit(trial)
        best = self.best.fitness.speedup if self.best and self.best.fitness else 0.0
        if trial.fitness is None or trial.fitness.speedup <= best or not trial.proposal.is_kernel:
            return False
        self.best = trial
        return True

    def _credit(self, trial: Trial) -> None:
        proposal = trial.proposal
        self.tokens += int(proposal.cost.get("tokens_in", 0) + proposal.cost.get("tokens_out", 0))
        self.usd += proposal.cost.get("usd", 0.0)
        if proposal.operator not in FIRST_OPERATORS:
            self.trials[proposal.operator] += 1
        if trial.fitness is None:
            return
        own = self._found[trial.index] = trial.fitness
        parents = [self._found[p] for p in proposal.parents if p in self._found]
        self.improved[proposal.operator] += bool(parents) and all(
            surely_faster(own.speedup, own.ci95[0], parent.speedup, parent.ci95[1]) for parent in parents
        )

    def credit_text(self) -> str:
        """E.g. "better than their parents: mutate@gpt 2 of 9, params 5 of 20; 81,223 tokens, $0.12"; "" at first."""
        shares = [f"{name} {self.improved[name]} of {n}" for name, n in self.trials.most_common()]
        spent = [f"{self.tokens:,} tokens"] if self.tokens else []
        spent += [f"${self.usd:.2f}"] if self.usd else []
        better = [f"better than their parents: {', '.join(shares)}"] if shares else []
        return "; ".join([*better, *([", ".join(spent)] if spent else [])])

    def rate(self) -> float | None:
        """Candidates a second in this process; None before the first."""
        elapsed = self._clock() - self._started
        return self._live / elapsed if self._live and elapsed > 0 else None

    def pace(self) -> str:
        """E.g. "1.3/s, ETA 0:01:15"; "" before there is anything to go by."""
        rate = self.rate()
        if rate is None:
            return ""
        left = round(self._left() / rate)
        return f"{rate:.1f}/s, ETA {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"

    def _left(self) -> float:
        """Returns how many candidates the budget allows, if they take as many GPU seconds as before."""
        budget = self.budget
        left = float(max(0, budget.total - budget.spent))
        if budget.gpu_seconds is not None and self._live_gpu_s:
            left = min(left, max(0.0, budget.gpu_seconds - budget.spent_gpu_s) * self._live / self._live_gpu_s)
        return left

    def share(self) -> float:
        """Returns the share of the budget that is spent, 0..1; of the budget that will be spent first."""
        budget = self.budget
        gpu = budget.spent_gpu_s / budget.gpu_seconds if budget.gpu_seconds else 0.0
        return min(1.0, max(budget.spent / budget.total, gpu))

    def spent_text(self) -> str:
        """E.g. "12/100", "12/100, 31.5/60 GPU s"."""
        budget = self.budget
        gpu = "" if budget.gpu_seconds is None else f", {budget.spent_gpu_s:.1f}/{budget.gpu_seconds:g} GPU s"
        return f"{budget.spent}/{budget.total}{gpu}"

    def best_text(self) -> str:
        if self.best is None or self.best.fitness is None:
            return "best: none yet"
        attained = of_attainable(self.best.evaluation.attained)
        return f"best: {self.best.fitness}{attained}, trial {self.best.index}"

    def verdict_text(self) -> str:
        return ", ".join(f"{n} {verdict}" for verdict, n in self.verdicts.most_common())


class Progress:
    """An Observer that draws; a context manager around the run."""

    def __init__(self, config: RunConfig, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = ProgressCounts(config.budget, clock, gpu_seconds=config.gpu_seconds)
        workers = counted(config.workers, "worker")
        self._title = f"{config.task}, {config.strategy}, seed {config.seed}, {config.target}, {workers}"
        if config.baseline_kind.pytorch:
            self._title += f", speedups over {config.baseline_kind.text}"
        self._console = console
        self._clock = clock
        self._last_line = -PLAIN_S
        self._live: Live | None = None

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        best = self._counts.add(trial, replayed=replayed)
        if self._live is None and not replayed:
            self._line(trial, best)

    def _line(self, trial: Trial, best: bool) -> None:
        now = self._clock()
        last = self._counts.budget.over
        if not (best or last or now - self._last_line >= PLAIN_S):
            return
        self._last_line = now
        outcome = str(trial.fitness) if trial.fitness else trial.evaluation.message.partition("\n")[0]
        operator = trial.proposal.operator if trial.proposal.is_kernel else trial.proposal.note
        line = (
            f"[{self._counts.spent_text()}] trial {trial.index} {operator}: "
            f"{trial.evaluation.verdict}, {outcome}; {self._counts.best_text()}; {self._counts.pace()}"
        )
        self._console.print(Text(line.rstrip("; ")), soft_wrap=True)

    def panel(self) -> RenderableType:
        """Returns the panel for a terminal."""
        counts = self._counts
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=1.0, completed=counts.share(), width=30),
            f"{counts.spent_text()} candidates" if counts.budget.gpu_seconds is None else counts.spent_text(),
            counts.pace(),
        )
        verdicts = Text(", ").join(
            Text(f"{n} {verdict}", style=_COLOURS.get(verdict, "yellow"))
            for verdict, n in counts.verdicts.most_common()
        )
        how = f" ({counts.best.proposal.operator}: {counts.best.proposal.note})" if counts.best else ""
        lines = [Text(counts.best_text() + how, style="green"), verdicts]
        if credit := counts.credit_text():
            lines.append(Text(credit, style="dim"))
        return Group(Text(self._title, style="bold"), head, *lines)

    def best_text(self) -> str:
        return self._counts.best_text()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self.panel, console=self._console, refresh_per_second=REFRESH_HZ, transient=False
            )
            self._live.start()
        else:
            self._console.print(Text(self._title), soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(Text(f"verdicts: {self._counts.verdict_text() or 'none'}"), soft_wrap=True)
            if credit := self._counts.credit_text():
                self._console.print(Text(credit), soft_wrap=True)

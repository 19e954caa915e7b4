"""Holds a campaign to its limits: candidates, tokens, dollars and GPU seconds of all runs together.

The limits and what was spent are in the campaign's folder, so they hold for all its processes and after restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evo.campaign.spec import runs_folder
from evo.core.errors import ConfigError, StoreError
from evo.core.locks import try_lock
from evo.core.models import Bill, Model
from evo.core.settings import RunConfig, check_limit
from evo.llm.budget import most
from evo.search.budget import MOST_GPU_S
from evo.search.termination import spent_budget
from evo.storage.folders import FILE
from evo.storage.ledger import CANDIDATES, GPU_SECONDS, TOKENS, USD, Account, Ledger
from evo.storage.model_calls import calls_spent, open_call_count
from evo.storage.queries import RunReader

CLAIM = "claim.lock"  # in a run's folder: held by the process that executes it
OPTIONS = {
    CANDIDATES: "--max-candidates",
    TOKENS: "--max-tokens",
    USD: "--max-usd",
    GPU_SECONDS: "--gpu-seconds",
}
_IN_WORDS = {CANDIDATES: "{:g} candidates", TOKENS: "{:.0f} tokens", USD: "${:.6g}", GPU_SECONDS: "{:.6g} GPU seconds"}


class CampaignLimits:
    """The limits of the campaign in `folder`.  Several threads may use one object."""

    def __init__(self, folder: Path, limits: Mapping[str, float]) -> None:
        """limits: by kind, in place of those of earlier calls; kinds that are left out keep theirs."""
        self._runs = runs_folder(folder)
        self._full: set[str] = set()  # kinds of which runs of this process wanted more than there was
        self._stopped: set[str] = set()  # kinds that ended runs of this process
        self._ledger = Ledger(folder)
        self._ledger.set_limits(limits)
        known = self._ledger.runs()
        for path in sorted(self._runs.glob(f"*/*/*/{FILE}")):
            if known.get(self._name(path.parent), True):  # not known yet, or left with reservations by a kill
                self._count(path.parent)

    @contextmanager
    def account(self, run: Path, stop: Callable[[], bool]) -> Iterator[Account]:
        """Yields the account of the run in that folder, which this process has claimed."""
        name = self._name(run)
        if not (run / FILE).exists() and name in self._ledger.runs():
            self._ledger.retire(name)
        self._put(run, executed=True)
        account = Account(self._ledger, name, stop, self._reclaim)
        try:
            yield account
        finally:
            self._full |= {account.full} - {""}
            self._stopped |= {account.full} - {""}
            self._put(run, executed=False)

    def stops(self, config: RunConfig, *, proposes: bool, evaluates: bool) -> bool:
        """Returns whether a run with these settings cannot go on with what it has to do."""
        needed = {CANDIDATES, *((TOKENS, USD) if config.models else ())} if proposes else set()
        needed |= {GPU_SECONDS} if evaluates and config.device == "gpu" else set()
        lacking = needed & self._reached()
        self._stopped |= lacking
        return bool(lacking)

    def _reached(self) -> set[str]:
        """Returns the kinds of which nothing more can be had, as far as is known."""
        spent = self._ledger.spent()
        least = {CANDIDATES: 1.0, GPU_SECONDS: MOST_GPU_S}
        limits = self._ledger.limits().items()
        nothing_left = {k for k, limit in limits if spent[k] >= limit or spent[k] + least.get(k, 0.0) > limit}
        return nothing_left | self._full

    def to_raise(self) -> str:
        """Returns the options whose limits ended runs, in words."""
        return " and ".join(OPTIONS[kind] for kind in sorted(self._stopped or self._reached())) or "limit"

    def in_words(self) -> str:
        """Returns e.g. "12 of 40 candidates, $0.8 of $2"; "" without limits."""
        spent = self._ledger.spent()
        return ", ".join(
            f"{_IN_WORDS[kind].format(spent[kind])} of {limit:.6g}"
            for kind, limit in sorted(self._ledger.limits().items())
        )

    def close(self) -> None:
        self._ledger.close()

    def _reclaim(self) -> None:
        """Gives back what runs reserved that no process executes any more."""
        for name, reserving in self._ledger.runs().items():
            if reserving:
                self._count(self._runs / name)

    def _count(self, run: Path) -> None:
        """Counts a run afresh from its store, unless a process executes it."""
        run.mkdir(parents=True, exist_ok=True)
        with try_lock(run / CLAIM) as mine:
            if mine:
                self._put(run, executed=False)

    def _put(self, run: Path, *, executed: bool) -> None:
        """Notes what the run's store says; executed: whether open questions may still be given back."""
        try:
            spent, still_open = charges(run)
        except StoreError:  # executing the run says why
            self._ledger.forfeit(self._name(run))
            return
        if not executed:
            spent[CANDIDATES] += still_open
        self._ledger.put(self._name(run), spent, {CANDIDATES: float(still_open)} if executed else {})

    def _name(self, run: Path) -> str:
        """The name of a run: TASK/VARIANT/seed-N."""
        return "/".join(run.parts[-3:])


def charges(run: Path) -> tuple[dict[str, float], int]:
    """Returns what the run in a folder spent by kind, without its open questions, and the number of these.

    Attempts whose bill never came count with the most that they could cost.  Raises StoreError if it cannot be read.
    """
    spent = {CANDIDATES: 0.0, TOKENS: 0.0, USD: 0.0, GPU_SECONDS: 0.0}
    if not (run / FILE).exists():
        return spent, 0
    with RunReader(run) as reader:
        models = {model.name: model for model in reader.info.config.models}
        for call in calls_spent(reader):
            most_of_one = most(models[call.model], call.messages) if call.model in models else Bill(0, 0, 0.0)
            for bill in (call.bill, *([most_of_one] * call.unsettled)):
                spent[TOKENS] += bill.tokens_in + bill.tokens_out
                spent[USD] += bill.usd or 0.0
        budget = spent_budget(reader, reader.info.config)
        spent[CANDIDATES] = float(budget.spent + reader.pending_count())
        spent[GPU_SECONDS] = budget.spent_gpu_s
        return spent, open_call_count(reader)


def check_limits(limits: Mapping[str, float], models: tuple[Model, ...], device: str) -> None:
    """Raises ConfigError for limits that cannot hold.  device: "gpu", "cpu", or "" if it is not known yet."""
    for kind, limit in limits.items():
        check_limit(OPTIONS[kind], limit)
        if kind in (TOKENS, USD) and not models:
            raise ConfigError(f"{OPTIONS[kind]}: expected a model whose answers it limits, got none; leave it out")
    unpriced = [m.name for m in models if m.costs and m.usd_in is None]
    if USD in limits and unpriced:
        raise ConfigError(
            f"--max-usd: expected a price for each model, got none for {', '.join(unpriced)}; give usd_in and "
            f"usd_out in a file of models (docs/llm.md), or limit tokens by --max-tokens"
        )
    if GPU_SECONDS in limits and device == "cpu":
        raise ConfigError("--gpu-seconds: expected a GPU that measures, got estimated times; leave it out")
    if limits.get(GPU_SECONDS, MOST_GPU_S) < MOST_GPU_S:
        raise ConfigError(
            f"--gpu-seconds: expected at least {MOST_GPU_S:g}, the longest that one candidate may take, got "
            f"{limits[GPU_SECONDS]:g}; raise it"
        )

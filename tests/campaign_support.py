"""Campaigns with a model: `python -m tests.campaign_support SLEEP_S ARGUMENT ...` is evo with an instant evaluator.

The operators of all strategies are a rule and one that asks (`analysis.benchmarks.endpoint.Ask`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evo.cli.main
import operators.registry
from analysis.benchmarks.endpoint import Ask, context
from evo.core.records import FIRST_OPERATORS
from evo.llm import mailbox, queue
from evo.search import assemble
from evo.search.strategies import STRATEGIES
from evo.storage.queries import RunReader
from tests import cli_support
from tests.cli_support import CliEvaluator

ROOT = Path(__file__).parent.parent
# Most tokens of one question: 256 of a template, the bytes of a prompt (below 200), and these.
ANSWER_TOKENS = 100
MOST = 256 + 200 + ANSWER_TOKENS


def install(setattr_: Callable[[Any, str, Any], None], sleep_s: float = 0.0) -> list[CliEvaluator]:
    """Does what `tests.cli_support.install` does, with operators that ask; returns the evaluators that are opened."""
    opened = cli_support.install(setattr_, sleep_s)
    setattr_(operators.registry, "DEFAULT_LLM_OPERATORS", ("change",))
    setattr_(operators.registry, "LLM_OPERATORS", {"change": Ask()})
    setattr_(assemble, "prompt_context", lambda info, task: context)
    setattr_(queue, "BACKOFF_S", 0.01)
    setattr_(mailbox, "SETTLE_S", 0.02)
    setattr_(mailbox, "POLL_S", 0.02)
    for strategy in STRATEGIES.values():
        setattr_(strategy, "operators", ("change",) if strategy.asks else ("mutate", "mix"))
    os.environ["OPENAI_API_KEY"] = "sk-secret"
    return opened


def write_models(url: str, **more: Any) -> None:
    """Writes models.toml with a model `m` whose answers are short."""
    settings = {"endpoint": url, "max_tokens": ANSWER_TOKENS, **more}
    lines = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in settings.items()
    ]
    Path("models.toml").write_text("[models.m]\n" + "\n".join(lines) + "\n")


def readers(folder: Path) -> Iterator[RunReader]:
    """Yields each run of a campaign, opened."""
    for path in sorted(folder.glob("runs/*/*/*/run.sqlite")):
        with RunReader(path.parent) as run:
            yield run


def candidates(folder: Path) -> int:
    """Returns how many candidates were proposed in all runs, seeds aside."""
    trials = [p for run in readers(folder) for p in (*(t.proposal for t in run.trials()), *run.pending())]
    return sum(proposal.operator not in FIRST_OPERATORS for proposal in trials)


if __name__ == "__main__":
    install(setattr, float(sys.argv[1]))
    sys.exit(evo.cli.main.main(sys.argv[2:]))

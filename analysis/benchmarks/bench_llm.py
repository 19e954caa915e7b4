"""Measures how busy models and evaluators are: `python -m analysis.benchmarks.bench_llm [--seconds S]`.

A local server answers each question after two seconds, sixteen are in flight, and evaluations are instant: at best
eight candidates a second.  Prints the rate, and how long answers took to become finished trials; exit code 1 if the
rate is below the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from analysis.benchmarks.endpoint import Ask, Endpoint, Reply, llm_of, search_with
from evo.core.models import Model
from evo.core.settings import RunConfig
from evo.storage.queries import RunInfo, RunReader
from evo.storage.store import Store
from evo.storage.tables import call_rows, trial_rows

LATENCY_S, SLOTS = 2.0, 16
IDEAL = SLOTS / LATENCY_S
RATE_LIMIT = 7.5  # candidates a second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    budget = int(parser.parse_args().seconds * IDEAL)
    with tempfile.TemporaryDirectory() as folder, Endpoint(lambda body, number: Reply(delay_s=LATENCY_S)) as endpoint:
        config = RunConfig(
            "instant", ("change@m",), budget, workers=2, models=(Model("m", endpoint.url),), llm_slots=SLOTS
        )
        with Store.create(Path(folder), RunInfo(config, "hash", {}, {})) as store:
            search_with(store, llm_of(store, Ask()))
            # From the first question on: before it openai is imported.
            rate = budget / (time.monotonic() - endpoint.times[0])
        way_ms = 1e3 * statistics.median(_way_s(Path(folder)))
    print(f"{rate:.2f} candidates/s of {IDEAL:.0f} at best (limit {RATE_LIMIT}), {budget} candidates,", end=" ")
    print(f"{endpoint.most_flying} questions in flight at most; from answer to verdict {way_ms:.1f} ms (median)")
    return 0 if rate >= RATE_LIMIT else 1


def _way_s(folder: Path) -> list[float]:
    """Seconds between an answer and the verdict on it."""
    with RunReader(folder) as run:
        finished = {row.trial: row.finished_at for row in trial_rows(run)}
        calls = [(call.answered_at, finished.get(call.trial)) for call in call_rows(run, with_text=False) if call.trial]
    return [end - start for start, end in calls if start is not None and end is not None]


if __name__ == "__main__":
    sys.exit(main())

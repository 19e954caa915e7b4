"""A serial search with a model in a process of its own, to be killed: `python -m tests.llm_run DIR URL BUDGET`."""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.benchmarks.endpoint import llm_of, search_with
from evo.core.models import Model
from evo.storage.folders import FILE
from tests.engine_support import create, resume

OPERATORS = ("mutate", "change@m", "mend@m", "cross@m")


def main() -> int:
    folder, url, budget = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    model = Model("m", url, max_tokens=100, attempts=20)
    new = not (folder / FILE).exists()
    with create(folder, budget=budget, operators=OPERATORS, models=(model,)) if new else resume(folder) as store:
        search_with(store, llm_of(store))
    return 0


if __name__ == "__main__":
    sys.exit(main())

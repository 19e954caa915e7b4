"""Two settings of the search, compared over several seeds by their medians.

    python examples/ablation_script.py [FOLDER]

`evo ablate` does this as a campaign, with tests, intervals and figures (docs/ablations.md); a script like this one is
for settings and summaries of your own.  A budget this small shows how to do it, not which setting is better.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from library_use import make_task

import evo

SEEDS = (0, 1)
SETTINGS = {
    "evolve": {"strategy": "evolve"},
    "random": {"strategy": "random"},
}


def best_speedup(folder: Path, seed: int, **settings: str) -> float:
    """The best speedup of one search; estimated, since no GPU is used."""
    few = {"budget": 2, "screen_budget": 0}  # drafts are not estimated before one is evaluated
    result = evo.search(make_task(), gpus="none", workers=2, seed=seed, run_dir=folder, **few, **settings)
    assert result.best is not None  # the seed at least
    return result.best.speedup


def main(folder: Path) -> None:
    for name, settings in SETTINGS.items():
        speedups = [best_speedup(folder / name / str(seed), seed, **settings) for seed in SEEDS]
        found = ", ".join(f"{speedup:.2f}x" for speedup in speedups)
        print(f"{name}: median {statistics.median(speedups):.2f}x of {found}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))

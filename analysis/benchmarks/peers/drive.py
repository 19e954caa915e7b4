"""Runs one engine in this process, as its documentation says: `python -m analysis.benchmarks.peers.drive FOLDER`.

FOLDER has `run.json` with the settings of the run, and `initial.py`, the program that both peers begin with.  If the
engine ran there before, its own way to go on is used.  OpenEvolve and ShinkaEvolve need the environment of
`make peers`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis.benchmarks.peers.prompts import name_of

MODEL = "fixed"  # the name by which engines call the model
KNOWN = "known.json"  # ids of the programs that the engine knows at its end: in memory, or in its store

OPENEVOLVE_FILE = """from pathlib import Path

from analysis.benchmarks.peers.evaluations import LoggedClient
from evo.adapters import openevolve_evaluate

evaluate = openevolve_evaluate(LoggedClient.of_run(Path(__file__).parent))
"""
SHINKA_FILE = """from pathlib import Path

from analysis.benchmarks.peers.evaluations import LoggedClient
from evo.adapters import shinka_main

if __name__ == "__main__":
    with LoggedClient.of_run(Path(__file__).parent) as client:
        shinka_main(client)
"""


def run_openevolve(folder: Path, run: Mapping[str, Any]) -> None:
    """OpenEvolve's controller with its default settings, but for those named here; resumes from a checkpoint."""
    import asyncio

    from openevolve import OpenEvolve
    from openevolve.config import Config

    evaluator = folder / "evaluator.py"
    evaluator.write_text(OPENEVOLVE_FILE, encoding="utf-8")
    config = Config.from_dict(
        {
            "random_seed": run["seed"],
            "llm": {"api_base": run["model"], "api_key": "none", "models": [{"name": MODEL, "weight": 1.0}]},
            "evaluator": {"cascade_evaluation": False, "timeout": 1800},
            **({"checkpoint_interval": run["checkpoint"]} if run.get("checkpoint") else {}),
        }
    )
    output = folder / "openevolve"
    numbers = sorted(int(path.name.rpartition("_")[2]) for path in output.glob("checkpoints/checkpoint_*"))
    left, checkpoint = run["proposals"], None
    if numbers:
        left, checkpoint = left - numbers[-1], str(output / "checkpoints" / f"checkpoint_{numbers[-1]}")
    engine = OpenEvolve(str(folder / "initial.py"), str(evaluator), config, str(output))
    asyncio.run(engine.run(iterations=left, checkpoint_path=checkpoint))
    _write_known(folder, [program.code for program in engine.database.programs.values()])


def run_shinka(folder: Path, run: Mapping[str, Any]) -> None:
    """ShinkaEvolve's runner with its default settings, but for those named here; resumes from its results."""
    import numpy as np
    from shinka.core import EvolutionConfig, ShinkaEvolveRunner
    from shinka.database import DatabaseConfig, ProgramDatabase
    from shinka.launch import LocalJobConfig

    random.seed(run["seed"])
    np.random.seed(run["seed"])
    script = folder / "evaluate.py"
    script.write_text(SHINKA_FILE, encoding="utf-8")
    settings = EvolutionConfig(
        num_generations=run["proposals"] + 1,
        llm_models=[f"local/{MODEL}@{run['model']}"],
        embedding_model=None,
        meta_rec_interval=None,
        init_program_path=str(folder / "initial.py"),
        results_dir=str(folder / "shinka"),
    )
    runner = ShinkaEvolveRunner(
        evo_config=settings,
        job_config=LocalJobConfig(eval_program_path=str(script)),
        db_config=DatabaseConfig(),
        max_evaluation_jobs=1,
        max_proposal_jobs=1,
    )
    runner.run()
    known = ProgramDatabase(DatabaseConfig(db_path=str(folder / "shinka" / "programs.sqlite")), read_only=True)
    _write_known(folder, [program.code for program in known.get_all_programs()])


def run_evo(folder: Path, run: Mapping[str, Any]) -> None:
    """evo's engine with operators that ask the model; resumes from its store."""
    import dataclasses

    from analysis.benchmarks.peers.evaluations import LoggedClient, ServiceEvaluator
    from evo.core import versions
    from evo.search import assemble
    from evo.search.listener import Listener
    from evo.search.options import read_settings
    from evo.storage.queries import RunInfo
    from evo.storage.store import Store
    from fitness.tasks.task import load_task

    task = load_task(run["task"])
    store_folder = folder / "evo"
    client = LoggedClient.of_run(folder)
    evaluator = ServiceEvaluator(client, task.first_source)
    first = evaluator.prepare()
    if store_folder.exists():
        store = Store.open(store_folder, task_hash=task.hash, versions=versions.versions())
    else:
        operators = {"evolve": ("mutate", "crossover", "repair", "explore")}.get(run["strategy"], ("mutate",))
        wanted = read_settings(
            run["task"],
            {
                "budget": run["proposals"], "seed": run["seed"], "strategy": run["strategy"], "operators": operators,
                "models": [f"{MODEL}@{run['model']}"], "workers": 1, "guidance": "none",
            },
        )  # fmt: skip
        config = dataclasses.replace(wanted.config, tune_budget=0, redrafts=0)
        info = RunInfo(config, task.hash, versions.versions(), evaluator.environment)
        store = Store.create(store_folder, info)
    with store:
        assemble.run_engine(store, task, first, evaluator, Listener())
        _write_known(folder, [trial.proposal.candidate.source for trial in store.trials()])
    evaluator.close()


def _write_known(folder: Path, sources: list[str]) -> None:
    (folder / KNOWN).write_text(json.dumps(sorted({name_of(s) for s in sources})), encoding="utf-8")


DRIVERS: Mapping[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "openevolve": run_openevolve, "shinka": run_shinka, "evo": run_evo,
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    DRIVERS[run["driver"]](folder, run)


if __name__ == "__main__":
    main()

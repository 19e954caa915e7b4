"""analysis.examples: the scripts that documentation points at."""

from __future__ import annotations

from pathlib import Path

import analysis
from analysis.examples.best_so_far import best_so_far, main, operators
from tests.analysis_support import fill
from tests.engine_support import create


def test_best_so_far(tmp_path: Path, capsys) -> None:
    fill(tmp_path / "run")
    tables = analysis.load(tmp_path / "run")
    best = best_so_far(tables["trials"])
    assert [row["trial"] for row in best] == [0, 2]  # in the order they finished; trial 1 came after 2
    credit = {row["operator"]: (row["gain_count"], row["gain_max"]) for row in operators(tables["lineage"]).to_pylist()}
    assert credit == {"mutate": (1, 0.5), "mutate@model": (2, 3.0)}
    create(tmp_path / "empty").close()
    main([str(tmp_path / "run"), str(tmp_path / "empty")])
    said = capsys.readouterr().out
    assert "  trial 2: 3.00x by mutate@model: \n" in said
    assert said.endswith("empty:\n")

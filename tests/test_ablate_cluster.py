"""evo ablate on a real local Ray cluster of two nodes, one of which is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from evo.cli import common
from evo.cli.main import main
from evo.storage.queries import RunReader
from tests.cluster_support import two_nodes
from tests.engine_support import facts

SPEC = """
tasks = ["vector_sin"]
seeds = 2
variants = ["full", "hillclimb"]
[budget]
trials = 1
[run]
screen_budget = 0
"""


def test_a_campaign_whose_node_is_lost_is_that_of_one_machine(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(SPEC)
    with two_nodes() as nodes:

        def say(text: str) -> None:
            print(text)
            if text.startswith("[1/4]"):  # the others are under way
                nodes.cluster.remove_node(nodes.second, allow_graceful=False)

        monkeypatch.setattr(common, "say", say)
        command = ["ablate", "spec.toml", "--no-figures", "--gpus", "none", "--workers", "4"]
        assert main([*command, "--ray-address", "auto", "--out", "cluster"]) == 0
        assert ray.is_initialized(), "a connection that was there before is kept"
    said = capsys.readouterr().out
    assert "evaluating through Ray on 2 CPUs and 0 GPUs of 2 nodes" in said
    assert "4 at once" in said
    assert "lost a worker, number 1 on" in caplog.text
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--out", "alone"]) == 0
    runs = sorted(path.parent.relative_to("cluster") for path in Path("cluster").glob("runs/*/*/*/run.sqlite"))
    assert len(runs) == 4
    for run in runs:
        assert facts("cluster" / run) == facts("alone" / run)
        with RunReader("cluster" / run) as reader:
            assert reader.verdicts().get("infrastructure", 0) == 0 and not reader.pending()

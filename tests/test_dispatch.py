"""A dispatcher over the kernels of a run: chosen by case, evaluated as any candidate, taken only if surely faster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import evo
from evo.core.records import Candidate, Certificate, Evaluation, Evidence, Verdict
from evo.programs.apply import find
from evo.programs.dispatch import FOLDER, winners
from evo.programs.source_patch import patched, write_file
from evo.storage.best import read_result
from evo.storage.queries import RunReader
from tests.engine_support import ok_trial
from tests.program_support import FASTER, SEED, import_program, write_program, write_run, write_task

OTHER = SEED.replace("BLOCK=16", "BLOCK=64").replace("numel(), 16)", "numel(), 64)")
CANDIDATES = [(FASTER, {"small": 9.0, "large": 1.0}), (OTHER, {"small": 1.0, "large": 16.0})]
PASSED = Certificate("", Verdict.OK, checks=(Evidence("eager", "passed"),))


class Told:
    """An evaluator that says what it is made to say."""

    measured, description = False, "a model"

    def __init__(self, per_case: Mapping[str, float], certificate: Certificate = PASSED, verdict: str = "ok") -> None:
        self.per_case, self.certificate, self.verdict = per_case, certificate, verdict
        self.asked: list[str] = []

    def evaluate_many(self, sources: list[str]) -> Iterator[Evaluation]:
        self.asked += sources
        for source, per_case in zip(sources, (self.per_case, {"small": 1.0, "large": 16.0}), strict=True):
            made = dataclasses.replace(ok_trial(1, per_case=per_case).evaluation, candidate=Candidate(source).id)
            if self.verdict != "ok" and source == sources[0]:
                made = Evaluation(made.candidate, Verdict(self.verdict), "verify", message="element 3 differs")
            yield made

    def certify(self, source: str, evaluation: Evaluation | None = None) -> Certificate:
        return self.certificate

    @contextmanager
    def open(self, *_: Any) -> Iterator[Told]:
        yield self


@pytest.fixture
def run(tmp_path) -> Path:
    file = write_program(tmp_path, "prog_dispatch")
    return write_run(tmp_path / "run", write_task(tmp_path / "scaling", file, module="__main__"), CANDIDATES)


def heard() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append


def test_each_case_gets_its_fastest_kernel_unless_its_certificate_failed(run):
    with RunReader(run) as reader:
        conclusion, trials = read_result(reader), list(reader.trials())
    assert conclusion is not None and conclusion.best.index == 2
    assert {case: t.index for case, t in winners(trials, conclusion).items()} == {"small": 1, "large": 2}
    refused = dataclasses.replace(conclusion, refused=((1, PASSED),))
    assert {t.index for t in winners(trials, refused).values()} == {2}


def test_a_small_gain_is_not_worth_another_kernel(tmp_path):
    task = write_task(tmp_path / "scaling", write_program(tmp_path, "prog_near"))
    run = write_run(tmp_path / "run", task, [(FASTER, {"small": 1.04, "large": 1.0}), CANDIDATES[1]])
    with RunReader(run) as reader:
        conclusion, trials = read_result(reader), list(reader.trials())
    assert conclusion is not None and {t.index for t in winners(trials, conclusion).values()} == {2}


def test_a_surely_faster_one_is_taken_and_kept(run):
    told = Told({"small": 9.0, "large": 16.0})
    _, say = heard()
    found = find(run, say, opener=told.open)
    assert found is not None and found.trial is None and found.certificate == PASSED
    assert found.fitness.per_case == {"small": 9.0, "large": 16.0}
    source = found.source
    assert "SCALE_FORMS_1 = (\n    ((64,),),\n)" in source and "((256,),)" in source and "((96,),)" in source
    assert source.rstrip().endswith("return scale_original(x, factor)")
    assert (run / FOLDER / "kernel.py").read_text() == source
    again = Told({"small": 1.0, "large": 1.0})
    second = find(run, say, opener=again.open)
    assert second is not None and second.evaluation == found.evaluation and second.certificate == PASSED
    assert not again.asked, "what was paid for is not paid again"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (Told({"small": 1.0, "large": 16.0}), "is not surely faster than one kernel"),
        (Told({"small": 9.0, "large": 16.0}, verdict="wrong"), "it was found wrong: element 3 differs"),
        (
            Told({"small": 9.0, "large": 16.0}, Certificate("", Verdict.WRONG, "differs")),
            "it is not certified: differs",
        ),
    ],
)
def test_else_the_best_single_kernel_is_applied(run, told, why):
    said, say = heard()
    found = find(run, say, opener=told.open)
    assert found is not None and found.trial == 2 and found.source == OTHER
    assert why in said[-1]


def test_a_run_that_a_gpu_measured_needs_one(run, tmp_path):
    measured = write_run(tmp_path / "measured", tmp_path / "scaling", CANDIDATES, measured=True)
    said, say = heard()
    found = find(measured, say, opener=Told({"small": 9.0, "large": 16.0}).open)
    assert found is not None and found.trial == 2 and "the run was measured; here is a model" in said[-1]


def test_one_kernel_that_wins_everywhere_needs_no_dispatcher(tmp_path):
    task = write_task(tmp_path / "scaling", write_program(tmp_path, "prog_single"))
    run = write_run(
        tmp_path / "run", task, [(FASTER, {"small": 2.0, "large": 2.0}), (OTHER, {"small": 1.0, "large": 1.5})]
    )
    told = Told({"small": 9.0, "large": 16.0})
    found = find(run, print, opener=told.open)
    assert found is not None and not told.asked


def test_the_evaluator_judges_it_like_any_candidate_and_it_is_put_into_the_file(run, monkeypatch, tmp_path):
    def opened(task: Any, config: Any) -> evo.Evaluator:
        return evo.Evaluator(task, gpus="none", target=config.target)

    said, say = heard()
    single = find(run, say, opener=opened)
    assert single is not None and single.trial == 2 and "is not surely faster than one kernel" in said[-1], said
    source = (run / FOLDER / "kernel.py").read_text()
    evidence = json.loads((run / FOLDER / "evidence.json").read_text())["dispatcher"]
    assert evidence["verdict"] == "ok" and evidence["candidate"] == Candidate(source).id

    file = tmp_path / "prog_dispatch" / "ops.py"
    _, after = patched(dataclasses.replace(single, source=source, trial=None), file)
    write_file(file, after)
    ops = import_program(file, monkeypatch)
    for size in (64, 256, 60):
        x = torch.randn(size)
        assert torch.equal(ops.scale(x), x * 2)

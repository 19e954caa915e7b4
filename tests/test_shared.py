"""evo.campaign.shared."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from analysis.benchmarks.instant import SEED_SOURCE, InstantEvaluator
from evo.campaign.shared import SharedEvaluator
from evo.core.records import Candidate, Verdict
from evo.storage.shared import SharedResults
from tests.engine_support import SlowEvaluator


def source(number: int) -> str:
    return SEED_SOURCE.replace("GENES=(100, 100, 100)", f"GENES=({number}, 100, 100)")


def test_what_one_cell_paid_for_the_next_looks_up_across_processes(tmp_path: Path) -> None:
    sources = [source(i) for i in range(30)]
    first, second = SlowEvaluator(), SlowEvaluator()
    with closing(SharedEvaluator(first, tmp_path, "task")) as shared:
        found = [shared.evaluate(Candidate(s), seed=i, known={}) for i, s in enumerate(sources)]
        screens = shared.screen(sources)
    with closing(SharedEvaluator(second, tmp_path, "task")) as shared:
        assert [shared.evaluate(Candidate(s), seed=99, known={}) for s in sources] == found
        assert shared.screen(sources) == screens
    assert second.evaluated == second.screened == []
    assert {e.verdict for e in found} == {Verdict.OK, Verdict.WRONG}
    with closing(SharedEvaluator(second, tmp_path, "another task")) as shared:
        shared.evaluate(Candidate(sources[0]), seed=0, known={})
    assert len(second.evaluated) == 1


def test_machine_code_is_looked_up_or_compiled(tmp_path: Path) -> None:
    known, new = Candidate(source(1)), source(2)
    with closing(SharedEvaluator(InstantEvaluator(), tmp_path, "task")) as shared:
        found = shared.evaluate(known, seed=0, known={})

    class Compiling(InstantEvaluator):
        def plan_hash(self, source: str) -> str:
            assert source == new
            return "compiled"

    with closing(SharedEvaluator(Compiling(), tmp_path, "task")) as shared:
        assert shared.plan_hash(known.source) == found.plan_hash != ""
        assert shared.plan_hash(new) == "compiled"


def test_duplicates_are_those_of_the_cell_that_asks(tmp_path: Path) -> None:
    candidate = Candidate(source(1))
    with closing(SharedEvaluator(InstantEvaluator(), tmp_path, "task")) as shared:
        alone = shared.evaluate(candidate, seed=0, known={})
        twin = shared.evaluate(candidate, seed=0, known={alone.plan_hash: "another"})
        itself = shared.evaluate(candidate, seed=0, known={alone.plan_hash: candidate.id})
    assert (alone.verdict, twin.verdict, twin.duplicate_of) == (Verdict.OK, Verdict.DUPLICATE, "another")
    assert itself == alone


def test_several_threads_may_ask(tmp_path: Path) -> None:
    candidates = [Candidate(source(i % 10)) for i in range(80)]
    with closing(SharedEvaluator(InstantEvaluator(), tmp_path, "task")) as shared, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda c: shared.evaluate(c, seed=0, known={}), candidates))
    assert [e.candidate for e in found] == [c.id for c in candidates]


def test_two_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait if two connections begin the log of a new file: one of a dozen failed."""

    def opened(folder: Path) -> SharedResults:
        together.wait()
        return SharedResults(folder, "hash")

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for number in range(60):
            (tmp_path / str(number)).mkdir()
            for results in pool.map(opened, [tmp_path / str(number)] * 2):
                results.close()

import math
import random
import re
from collections.abc import Sequence

from operators.base import Context, Parent
from operators.genes import get_genes
from operators.params import Params, RandomParams, tune
from tests.operators_tasks import seed

SOURCE = seed("matmul")
BEST = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}


class Landscape:
    """A screen with one optimum at BEST, where a third of the settings do not compile."""

    def __init__(self, broken: int = 3) -> None:
        self.broken = broken
        self.asked: list[str] = []

    def __call__(self, sources: Sequence[str]) -> list[float | None]:
        self.asked += sources
        return [self.score(s) for s in sources]

    def score(self, source: str) -> float | None:
        found = re.search(r"BLOCK_K = (\d+), (\d+), (\d+)\n.*num_warps=(\d+),\n *num_stages=(\d+)", source, re.DOTALL)
        assert found is not None
        values = dict(zip(BEST, map(int, found.groups()), strict=True))
        if self.broken and sum(values.values()) % self.broken == 0:
            return None
        return 10.0 - sum(abs(math.log2(values[n] / v)) for n, v in BEST.items())


def context(seed: int, screen: Landscape | None = None, budget: int = 12) -> Context:
    return Context(rng=random.Random(seed), screen=screen, screen_budget=budget)


def test_the_best_screened_setting_is_returned_and_never_the_parent() -> None:
    for number in range(20):
        screen = Landscape()
        draft = Params()([Parent(0, SOURCE, 100.0)], context(number, screen))
        assert draft is not None and draft.source != SOURCE
        scores = [v for s in screen.asked if (v := screen.score(s)) is not None]
        assert screen.score(draft.source) == max(scores)
        assert draft.cost == {"screened": len(screen.asked)}


def test_the_budget_counts_distinct_sources() -> None:
    for budget in (1, 2, 7, 12, 40):
        screen = Landscape(broken=0)
        draft = Params()([Parent(0, SOURCE, 1.0)], context(1, screen, budget))
        assert draft is not None
        assert len(screen.asked) == len(set(screen.asked)) == budget
        assert SOURCE not in screen.asked


def test_generations_improve_on_random_settings() -> None:
    found, by_chance = 0.0, 0.0
    for number in range(6):
        screen = Landscape()
        draft = Params()([Parent(0, SOURCE, 1.0)], context(number, screen, 40))
        assert draft is not None
        found += screen.score(draft.source) or 0.0
        chance = Landscape()
        drafts = [RandomParams()([Parent(0, SOURCE, 1.0)], context(100 * number + i)) for i in range(40)]
        by_chance += max(chance.score(d.source) or -math.inf for d in drafts if d is not None)
    assert found > by_chance + 3  # six runs, half a point each


def test_none_where_no_setting_compiles() -> None:
    assert Params()([Parent(0, SOURCE, 1.0)], context(1, Landscape(broken=1))) is None


def test_without_a_screen_one_neighbour() -> None:
    before = {g.name: g for g in get_genes(SOURCE)}
    for number in range(20):
        draft = Params()([Parent(0, SOURCE, 1.0)], context(number))
        assert draft is not None and draft.cost == {}
        changed = [g for g in get_genes(draft.source) if g.value != before[g.name].value]
        assert 1 <= len(changed) <= 3
        assert all(g.name in draft.note for g in changed)


def test_tune_keeps_the_source_where_nothing_is_better() -> None:
    optimum = tune(SOURCE, Landscape(broken=0), random.Random(0), 250)[0]
    screen = Landscape(broken=0)
    assert screen.score(optimum) == 10.0
    again, cost = tune(optimum, screen, random.Random(1), 15)
    assert again == optimum and cost == {"screened": 15.0} and len(screen.asked) == 15
    assert tune("x = 1\n", screen, random.Random(0), 5) == ("x = 1\n", {"screened": 0.0})


def test_the_search_ends_where_there_is_little_to_search() -> None:
    source = seed("rotary").replace(", num_warps=4", ", num_warps=4, num_stages=n")  # num_stages is no gene then
    assert len(get_genes(source)) == 1
    asked: list[str] = []

    def screen(sources: Sequence[str]) -> list[float | None]:
        asked.extend(sources)
        return [1.0] * len(sources)

    draft = Params()([Parent(0, source, 1.0)], Context(random.Random(0), screen, 100))
    assert draft is not None and len(asked) <= 6

"""What measured candidates say about settings that nobody measured."""

from __future__ import annotations

import itertools
import math
import random

from evo.core.records import candidate_id
from operators.base import Context, Parent
from operators.genes import get_genes, set_genes
from operators.params import FEWEST, Params
from operators.surrogate import MOST, Measured, point_of, predicted
from tests.operators_tasks import seed
from tests.test_operators_params import Landscape

SOURCE = seed("matmul")
GENES = {gene.name: gene for gene in get_genes(SOURCE)}
NAMES = {key: next(n for n in GENES if n.endswith(end)) for key, end in (("m", ".BLOCK_M"), ("warps", ".num_warps"))}


def at(speedup: float | None, **values: int) -> Measured:
    return Measured("?", set_genes(SOURCE, {NAMES[k]: v for k, v in values.items()}), speedup)


def setting(**values: int) -> dict[str, int]:
    return {name: gene.value for name, gene in GENES.items()} | {NAMES[k]: v for k, v in values.items()}


def landscape(**values: int) -> float:
    return math.exp(-0.3 * abs(math.log2(values["m"] / 128)) - 0.2 * abs(math.log2(values["warps"] / 8)))


def test_what_is_near_good_ones_is_predicted_to_be_better() -> None:
    measured = [at(landscape(m=m, warps=w), m=m, warps=w) for m, w in ((16, 1), (32, 4), (64, 2), (64, 8), (16, 16))]
    asked = list(itertools.product((16, 32, 64, 128), (1, 2, 4, 8, 16)))
    scores = predicted(measured, [setting(m=m, warps=w) for m, w in asked])
    best, worst = asked[scores.index(max(scores))], asked[scores.index(min(scores))]
    assert landscape(m=best[0], warps=best[1]) > 0.8 > 0.5 > landscape(m=worst[0], warps=worst[1])
    # What was measured is believed, up to its noise.
    (known,) = predicted(measured, [setting(m=64, warps=8)])
    assert abs(known - math.log(landscape(m=64, warps=8))) < 0.1


def test_failures_are_bad_and_how_bad_bad_ones_are_does_not_matter() -> None:
    good = [at(1.0, m=32, warps=4), at(1.1, m=64, warps=4)]
    for bad in (None, 0.2, 0.001):
        failed, fine = predicted([*good, at(bad, m=256, warps=4)], [setting(m=256, warps=2), setting(m=64, warps=2)])
        assert (failed, fine) == tuple(
            predicted([*good, at(None, m=256, warps=4)], [setting(m=256, warps=2), setting(m=64, warps=2)])
        )
        assert failed < fine - 0.3


def test_a_candidate_with_other_genes_is_a_point_too() -> None:
    other = seed("softmax")
    few = [at(1.0, m=32), at(1.0, m=128)]
    with_other = predicted([*few, Measured("?", other, 3.0)], [setting(m=64)])
    assert with_other[0] < math.log(3.0)
    names = {gene.name for gene in get_genes(other)}
    assert not names & set(GENES) and set(Measured("?", other, 1.0).point) == names


def test_genes_are_the_same_in_whichever_configuration_they_stand() -> None:
    assert point_of({"k.config0.BLOCK": 64, "k.config12.num_warps": 4, "k.n": 1}) == {
        "k.BLOCK": 64,
        "k.num_warps": 4,
        "k.n": 1,
    }
    tuned = "@triton.autotune(configs=[triton.Config({'BLOCK': 64}, num_warps=8)], key=['n'])\n@triton.jit\n"
    source = seed("softmax")
    assert source.count("@triton.jit\n") == 1
    source = source.replace("@triton.jit\n", tuned)
    point = Measured("?", source, 1.0).point
    assert [value for name, value in point.items() if name.endswith("num_warps")] == [8]


def test_the_last_ones_count() -> None:
    old = [at(5.0, m=16, warps=1)] * MOST
    new = [at(1.0, m=m, warps=4) for m in (32, 64)] * (MOST // 2)
    wanted = [setting(m=16, warps=1), setting(m=64, warps=4)]
    assert predicted(old + new, wanted) == predicted(new, wanted)


OPEN = Landscape(broken=0)  # where every setting compiles


def drafted(context: Context) -> str:
    draft = Params()([Parent(0, SOURCE, 1.0)], context)
    assert draft is not None
    return draft.source


def some_measured() -> tuple[Measured, ...]:
    """Neighbours of the seed; a step of the landscape is a factor of two."""
    sources = [drafted(Context(random.Random(number))) for number in range(24)]
    return tuple(Measured(f"c{n}", s, 2 ** ((OPEN.score(s) or 0.0) - 10)) for n, s in enumerate(sources))


def test_parameters_move_to_where_measurements_point() -> None:
    def mean(context: tuple[Measured, ...]) -> float:
        scores = [OPEN.score(drafted(Context(random.Random(n), measured=context))) or 0.0 for n in range(40)]
        return sum(scores) / len(scores)

    known = some_measured()
    assert mean(known) > mean(()) + 1.0  # one step of the landscape
    assert mean(known[: FEWEST - 1]) == mean(())


def test_what_was_judged_is_not_drafted_again_while_there_is_more() -> None:
    judged: dict[str, Measured] = {}
    for number in range(30):
        draft = drafted(Context(random.Random(f"a{number}"), measured=tuple(judged.values())))
        found = candidate_id(draft)
        blind = random.Random(f"a{number}").random() < 0.25 or len(judged) < FEWEST
        assert blind or found not in judged
        judged[found] = Measured(found, draft, 1.0)


def test_the_same_context_gives_the_same_draft() -> None:
    known = some_measured()
    assert len({drafted(Context(random.Random(3), measured=known)) for _ in range(3)}) == 1


def test_screening_starts_from_what_is_promising() -> None:
    def mean(context: tuple[Measured, ...]) -> float:
        asked: list[str] = []
        for number in range(20):
            screen = Landscape(broken=0)
            drafted(Context(random.Random(number), screen, 4, context))
            asked += screen.asked
        return sum(OPEN.score(s) or 0.0 for s in asked) / len(asked)

    assert mean(some_measured()) > mean(()) + 0.5

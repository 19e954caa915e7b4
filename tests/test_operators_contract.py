"""What every operator keeps: pure, seeded, within its budget, and never a source that does not parse."""

import ast
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from evo.core.errors import ConfigError
from evo.core.records import candidate_id
from operators.base import Context, Draft, Operator, Parent
from operators.genes import get_genes, set_genes
from operators.registry import LLM_OPERATORS, OPERATORS, check_beginning, get_operators
from tests.operators_sources import ODD_SOURCES
from tests.operators_tasks import seed

TASKS = ("softmax", "matmul", "gemv_batched")


def screen(sources: Sequence[str]) -> list[float | None]:
    return [None if len(s) % 5 == 0 else 1.0 + (len(s) * 7919 % 101) / 100 for s in sources]


def parents(operator: Operator, source: str) -> list[Parent]:
    genes = get_genes(source)
    other = set_genes(source, {g.name: next(v for v in g.values if v != g.value) for g in genes})
    return [Parent(i, s, 1.0 + i, {"square": 1.0 + i}) for i, s in enumerate((source, other)[: operator.arity])]


def draft(operator: Operator, source: str, number: int, screening: bool) -> Draft | None:
    context = Context(random.Random(number), screen if screening else None, screen_budget=8)
    return operator(parents(operator, source), context)


@pytest.mark.parametrize("screening", [True, False])
@pytest.mark.parametrize("name", OPERATORS)
def test_same_parents_and_rng_give_the_same_draft_and_nothing_global_changes(name: str, screening: bool) -> None:
    operator = OPERATORS[name]
    assert operator.name == name
    for task in TASKS:
        drafts = []
        for noise in (1, 2):
            random.seed(noise)
            state = random.getstate()
            drafts.append([draft(operator, seed(task), number, screening) for number in range(3)])
            assert random.getstate() == state
        assert drafts[0] == drafts[1]
        assert len({d.source for d in drafts[0] if d}) > 1, "the rng makes no difference"


@pytest.mark.parametrize("name", OPERATORS)
def test_drafts_parse_and_are_no_parent(name: str) -> None:
    operator = OPERATORS[name]
    for task in TASKS:
        for number in range(4):
            made = draft(operator, seed(task), number, screening=True)
            assert made is not None
            ast.parse(made.source)
            assert candidate_id(made.source) not in {candidate_id(p.source) for p in parents(operator, seed(task))}
            assert made.note and "\n" not in made.note
            assert made.cost.get("screened", 0) <= 8


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("source", ODD_SOURCES)
@pytest.mark.parametrize("name", OPERATORS)
def test_odd_sources_give_none_or_a_source_that_parses(name: str, source: str) -> None:
    for number in range(6):
        made = draft(OPERATORS[name], ODD_SOURCES[source], number, screening=False)
        if made is not None:
            ast.parse(made.source)


def test_get_operators_keeps_the_order_and_names_the_valid_ones() -> None:
    assert [o.name for o in get_operators(["rewrite", "params"])] == ["rewrite", "params"]
    with pytest.raises(
        ConfigError, match=r"params, random_params, rewrite, .*, got 'rewrites'; .*; did you mean rewrite\?"
    ):
        get_operators(["params", "rewrites"])
    with pytest.raises(ConfigError, match="at least one"):
        get_operators([])


def test_some_operator_has_to_work_on_the_seed_alone() -> None:
    for names in (["recombine", "params"], ["mutate@m"], ["repair@m", "initial@m"], ["crossover@m", "rewrite"]):
        check_beginning(names)
    for names, words in (
        (["recombine"], r"got recombine \(recombine needs two parents\); add another, e.g. params"),
        (["crossover@m", "crossover@n"], r"got crossover \(crossover needs two parents\)"),
        (["recombine", "repair@m"], r"two parents; repair needs a candidate that failed\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_beginning(names)


def test_operators_that_ask_need_a_model() -> None:
    names = ["mutate", "params", "repair"]
    with pytest.raises(ConfigError, match="expected a model for operators mutate, repair, got none; give --model"):
        get_operators(names)
    assert [o.name for o in get_operators(names, model=True)] == ["params"]
    assert all(o.name == name for name, o in LLM_OPERATORS.items()) and not set(LLM_OPERATORS) & set(OPERATORS)


def test_operators_load_no_compiler_and_no_evaluator() -> None:
    text = (
        "import sys, operators.registry\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('torch', 'triton', 'fitness', 'deap', 'numpy')])"
    )
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

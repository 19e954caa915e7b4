"""evo.search.scheduler."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from evo.core.records import Candidate, Trial, Verdict
from evo.search.archive import Archive
from evo.search.scheduler import ATTEMPTS, SCREENED_ATTEMPTS, IsDuplicate, Scheduler
from operators.base import Context, Draft, Parent, Screen
from tests.engine_support import config, failed_trial, ok_trial


@dataclass
class Scripted:
    """An operator that does what it is told and remembers its calls."""

    draft: Callable[[Sequence[Parent], Context], Draft | None]
    name: str = "scripted"
    arity: int = 1
    calls: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        self.calls.append((tuple(p.index for p in parents), context.screen is not None))
        return self.draft(parents, context)


def scheduler(
    operator: Scripted,
    *trials: Trial,
    screen: Screen | None = None,
    is_duplicate: IsDuplicate | None = None,
    **changes: object,
) -> Scheduler:
    archive = Archive()
    settings = config(operators=("scripted",), **changes)
    made = Scheduler(settings, {"scripted": operator}, archive, screen, is_duplicate=is_duplicate)
    for trial in trials:
        made.register(trial.proposal)
        made.tell(trial, archive.add(trial))
    return made


def fresh(parents: Sequence[Parent], context: Context) -> Draft:
    return Draft(f"y = {context.rng.random()}\n", "new", {"screened": 2})


def test_a_proposal_says_where_it_comes_from() -> None:
    proposal = scheduler(Scripted(fresh), ok_trial(0, operator="seed"), ok_trial(1, 2.0), islands=2).ask()
    assert proposal is not None
    assert (proposal.index, proposal.operator, proposal.island, proposal.note) == (2, "scripted", 0, "new")
    assert proposal.parents in ((0,), (1,))
    assert proposal.cost == {"screened": 2, "drafts": 1}


def test_the_base_of_a_draft_is_the_first_parent_of_its_proposal() -> None:
    for base in (0, 1):
        operator = Scripted(lambda parents, context, base=base: replace(fresh(parents, context), base=base), arity=2)
        proposal = scheduler(operator, ok_trial(0, operator="seed"), ok_trial(1, 2.0), islands=1).ask()
        given = operator.calls[-1][0]
        assert proposal is not None and sorted(given) == [0, 1]
        assert proposal.parents == (given[base], given[1 - base])


def test_asking_changes_nothing() -> None:
    made = scheduler(Scripted(fresh), ok_trial(0, operator="seed"))
    assert made.ask() == made.ask()


def test_different_seeds_ask_differently() -> None:
    first, second = (scheduler(Scripted(fresh), ok_trial(0, operator="seed"), seed=s).ask() for s in (1, 2))
    assert first is not None and second is not None
    assert first.candidate != second.candidate
    assert first.seed != second.seed


def test_a_source_that_differs_in_comments_only_is_not_proposed_again() -> None:
    def repeat(parents: Sequence[Parent], context: Context) -> Draft:
        known = context.rng.random() < 0.9
        return Draft(parents[0].source + "\n# comment\n" if known else "y = 1\n", "again", {"screened": 1})

    operator = Scripted(repeat)
    proposal = scheduler(operator, ok_trial(0, operator="seed", source="x = 1\n")).ask()
    assert proposal is not None
    assert proposal.candidate == Candidate("y = 1\n")
    assert proposal.cost == {"screened": len(operator.calls), "drafts": len(operator.calls)}
    assert len(operator.calls) > 1


def test_duplicate_drafts_are_dropped() -> None:
    asked = []

    def is_duplicate(source: str, plans: Container[str]) -> bool:
        asked.append(source)
        assert good.evaluation.plan_hash in plans
        return len(asked) < 4

    good = ok_trial(0, operator="seed")
    proposal = scheduler(Scripted(fresh), good, is_duplicate=is_duplicate, redrafts=5).ask()
    assert proposal is not None
    assert proposal.candidate.source == asked[3]
    assert proposal.cost == {"screened": 8, "twins": 3, "drafts": 4}  # what was dropped is paid for


def test_no_more_drafts_are_dropped_than_allowed() -> None:
    seed = ok_trial(0, operator="seed")
    proposal = scheduler(Scripted(fresh), seed, is_duplicate=lambda source, plans: True, redrafts=2).ask()
    assert proposal is not None
    assert (proposal.cost["twins"], proposal.cost["drafts"]) == (2, 3)
    plain = scheduler(Scripted(fresh), seed, is_duplicate=lambda source, plans: True).ask()
    assert plain is not None
    assert "twins" not in plain.cost


def test_what_chance_decided_has_no_duplicates() -> None:
    seen: list[bool] = []

    def is_duplicate(source: str, plans: Container[str]) -> bool:
        seen.extend(trial.evaluation.plan_hash in plans for trial in trials)
        return False

    trials = [ok_trial(0, operator="seed"), failed_trial(1), failed_trial(2)]
    wrong, late = (replace(t.evaluation, plan_hash=f"plan {t.index}") for t in trials[1:])
    trials[1] = replace(trials[1], evaluation=wrong)
    trials[2] = replace(trials[2], evaluation=replace(late, verdict=Verdict.TIMEOUT))
    scheduler(Scripted(fresh), *trials, is_duplicate=is_duplicate, redrafts=2).ask()
    assert seen == [True, True, False]


def test_what_is_only_proposed_counts_as_seen() -> None:
    made = scheduler(Scripted(lambda parents, context: Draft("y = 1\n", "")), ok_trial(0, operator="seed"))
    proposal = made.ask()
    assert proposal is not None
    made.register(proposal)
    assert made.ask() is None


def test_an_exhausted_space_ends_after_a_bounded_number_of_drafts() -> None:
    operator = Scripted(lambda parents, context: None)
    assert (
        scheduler(operator, ok_trial(0, operator="seed"), screen=lambda sources: [None for _ in sources]).ask() is None
    )
    assert len(operator.calls) == ATTEMPTS
    assert [screened for _, screened in operator.calls] == [i < SCREENED_ATTEMPTS for i in range(ATTEMPTS)]


def test_later_attempts_look_beyond_the_island() -> None:
    operator = Scripted(lambda parents, context: None)
    trials = [ok_trial(i, island=i, warps=1 << i) for i in range(3)]
    scheduler(operator, *trials, islands=3).ask()
    assert {parents for parents, _ in operator.calls[ATTEMPTS // 2 :]} == {(0,), (1,), (2,)}


def test_without_enough_parents_there_is_no_proposal() -> None:
    operator = Scripted(fresh, arity=2)
    assert scheduler(operator, ok_trial(0, operator="seed")).ask() is None
    assert operator.calls == []


def test_random_search_and_a_zero_budget_do_not_screen() -> None:
    for changes in ({"strategy": "random"}, {"screen_budget": 0}):
        operator = Scripted(fresh)
        scheduler(
            operator, ok_trial(0, operator="seed"), screen=lambda sources: [1.0 for _ in sources], **changes
        ).ask()
        assert [screened for _, screened in operator.calls] == [False]


def test_known_plans_are_those_of_ok_candidates() -> None:
    good, bad = ok_trial(0), failed_trial(1)
    made = scheduler(Scripted(fresh), good, bad)
    assert made.known == {good.evaluation.plan_hash: good.proposal.candidate.id}


def test_the_first_proposal_is_the_seed() -> None:
    made = scheduler(Scripted(fresh))
    proposal = made.first(Candidate("x = 1\n"))
    assert (proposal.index, proposal.operator, proposal.parents) == (0, "seed", ())
    assert made.next_index == 0
    made.register(proposal)
    assert made.next_index == 1


def test_rules_change_what_was_measured_of_an_autotuned_parent() -> None:
    trial = ok_trial(0, operator="seed", source="tuned = 1\n")
    trial = replace(trial, evaluation=replace(trial.evaluation, frozen_source="chosen = 1\n"))

    def sources(**changes: object) -> set[str]:
        seen: set[str] = set()

        def draft(parents: Sequence[Parent], context: Context) -> Draft:
            seen.update(p.source for p in parents)
            return fresh(parents, context)

        scheduler(Scripted(draft), trial, **changes).ask()
        return seen

    assert sources() == {"tuned = 1\n"}
    assert sources(frozen_parents=True) == {"chosen = 1\n"}


def test_operators_are_told_what_was_measured_of_a_run_on_a_gpu() -> None:
    frozen = ok_trial(1, 2.0, source="tuned = 1\n")
    frozen = replace(frozen, evaluation=replace(frozen.evaluation, frozen_source="chosen = 1\n"))
    twin, orphan, wrong = (failed_trial(i, source=f"y = {i}\n") for i in (2, 3, 4))
    twin, orphan = (
        replace(trial, evaluation=replace(trial.evaluation, verdict=Verdict.DUPLICATE, duplicate_of=other))
        for trial, other in ((twin, frozen.proposal.candidate.id), (orphan, "nobody"))
    )
    lost = failed_trial(5, Verdict.INFRASTRUCTURE, source="y = 5\n")
    trials = (ok_trial(0, operator="seed", source="x = 1\n"), frozen, twin, orphan, wrong, lost)

    def told(**changes: object) -> list[tuple[str, float | None]]:
        found: list[tuple[str, float | None]] = []

        def draft(parents: Sequence[Parent], context: Context) -> Draft | None:
            found.extend((m.source, m.speedup) for m in context.measured)
            return fresh(parents, context)

        scheduler(Scripted(draft), *trials, **changes).ask()
        return found

    assert told() == []
    assert told(device="gpu", surrogate=True) == [
        ("x = 1\n", 1.0), ("chosen = 1\n", 2.0), ("y = 2\n", 2.0), ("y = 4\n", None),
    ]  # fmt: skip

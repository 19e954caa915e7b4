"""The rows that exports and training data are made of, read from a run one after the other.

Columns are as `docs/store.md` describes them: JSON stays text, times are seconds since 1970, a flag is 0, 1 or None.
`evo.storage.queries` makes records of a run instead, which takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evo.core.records import BASELINE_OPERATOR
from evo.storage.queries import RunReader

_COUNTS = """
    SELECT COUNT(*), COUNT(e.trial), COALESCE(SUM(e.verdict = 'ok'), 0)
    FROM proposals p LEFT JOIN evaluations e USING (trial)
"""
_BEST = """
    SELECT trial, speedup, ci_low, ci_high, estimated FROM evaluations JOIN proposals USING (trial)
    WHERE speedup IS NOT NULL AND operator != ? ORDER BY speedup DESC, finished LIMIT 1
"""
_TRIALS = """
    SELECT p.trial, p.candidate, p.operator, p.parents, p.island, p.seed, p.note, p.cost, p.at,
           e.finished, e.at, e.at - p.at, e.verdict, e.stage, e.speedup, e.ci_low, e.ci_high, e.estimated,
           json_extract(p.bar, '$.speedup')
    FROM proposals p LEFT JOIN evaluations e USING (trial) ORDER BY p.trial
"""
# `json_each` opens the list of parents; its key is the position in the list.
_LINEAGE = """
    SELECT p.trial, j.value, j.key, p.operator, e.speedup, pe.speedup, e.speedup / pe.speedup,
           CASE WHEN e.estimated IS NULL AND pe.estimated IS NULL THEN NULL
                ELSE COALESCE(e.estimated, 0) OR COALESCE(pe.estimated, 0) END
    FROM proposals p, json_each(p.parents) j
    LEFT JOIN evaluations e ON e.trial = p.trial LEFT JOIN evaluations pe ON pe.trial = j.value
    ORDER BY p.trial, j.key
"""
_EVALUATIONS = """
    SELECT finished, trial, candidate, verdict, stage, speedup, ci_low, ci_high, estimated, per_case, evaluation, e.at
    FROM evaluations e JOIN proposals USING (trial) ORDER BY finished
"""
_OK_EVALUATIONS = "SELECT trial, evaluation FROM evaluations WHERE verdict = 'ok' ORDER BY finished"
_PROFILES = """
    SELECT p.trial, f.candidate, f.tier, f.profile, f.at
    FROM profiles f LEFT JOIN proposals p USING (candidate) ORDER BY f.at, f.candidate, f.tier
"""
_LLM_CALLS = """
    SELECT call, trial, prompt_hash, model, operator, parents, island, told, {texts}, finish, tokens_in, tokens_out,
           usd, attempts, unsettled, seconds, error, asked_at, answered_at
    FROM llm_calls ORDER BY call
"""
_SOURCES = """
    SELECT s.candidate, p.trial, s.text, e.evaluation
    FROM proposals p JOIN sources s USING (candidate) LEFT JOIN evaluations e USING (trial) ORDER BY p.trial
"""
# What an answer became is judged by `e`.  A duplicate is judged by the other candidate `t`: the one that does the same
# work, or (at stage "answer") the one with the same source, which may itself be a duplicate of `u`.
_OTHER = "ON {0}p.candidate = CASE {1}.verdict WHEN 'duplicate' THEN json_extract({1}.evaluation, '$.duplicate_of') END"
_JUDGED_ANSWERS = f"""
    SELECT c.call, c.prompt_hash, c.model, c.operator, c.trial, c.request, c.answer, c.reasoning, c.spans,
           e.verdict, e.stage, t.verdict, t.stage,
           COALESCE(e.speedup, t.speedup, u.speedup), COALESCE(e.ci_low, t.ci_low, u.ci_low),
           COALESCE(e.ci_high, t.ci_high, u.ci_high), COALESCE(e.estimated, t.estimated, u.estimated),
           (SELECT MAX(pe.speedup) FROM json_each(p.parents) j JOIN evaluations pe ON pe.trial = j.value),
           p.parents, s.text, COALESCE(json_extract(p.cost, '$.tuned'), 0), c.answered_source
    FROM llm_calls c JOIN proposals p USING (trial) JOIN sources s USING (candidate) JOIN evaluations e USING (trial)
    LEFT JOIN proposals tp {_OTHER.format("t", "e")} LEFT JOIN evaluations t ON t.trial = tp.trial
    LEFT JOIN proposals up {_OTHER.format("u", "t")} LEFT JOIN evaluations u ON u.trial = up.trial
    WHERE c.answer IS NOT NULL AND 'infrastructure' NOT IN (e.verdict, COALESCE(t.verdict, ''))
          AND (e.verdict != 'duplicate' OR t.verdict IS NOT NULL)
    ORDER BY c.call
"""
_UNJUDGED = f"SELECT (SELECT COUNT(answer) FROM llm_calls) - (SELECT COUNT(*) FROM ({_JUDGED_ANSWERS}))"


class RunCounts(NamedTuple):
    """How many trials were proposed, how many of these finished, and how many of those are ok."""

    proposed: int
    finished: int
    ok: int


class BestRow(NamedTuple):
    """The fastest trial; all None if no trial has a speedup."""

    trial: int | None = None
    speedup: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    estimated: int | None = None


class TrialRow(NamedTuple):
    """A proposal; the fields from `finished` on are None until its evaluation is stored."""

    trial: int
    candidate: str
    operator: str
    parents: str  # JSON
    island: int
    seed: int
    note: str
    cost: str  # JSON
    proposed_at: float
    finished: int | None
    finished_at: float | None
    seconds: float | None  # from the proposal to the end of the evaluation
    verdict: str | None
    stage: str | None
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    estimated: int | None
    bar: float | None  # the speedup that it had to reach at a first look


class LineageRow(NamedTuple):
    """A trial and one of its parents."""

    trial: int
    parent: int
    position: int  # of the parent in the list of parents
    operator: str
    speedup: float | None
    parent_speedup: float | None
    gain: float | None
    estimated: int | None  # 1 if either speedup is an estimate


class EvaluationRow(NamedTuple):
    """A finished trial with its evaluation."""

    finished: int
    trial: int
    candidate: str
    verdict: str
    stage: str
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    estimated: int | None
    per_case: str | None  # JSON
    evaluation: str  # JSON
    at: float


class ProfileRow(NamedTuple):
    """A stored profile."""

    trial: int | None
    candidate: str
    tier: str
    profile: str  # JSON
    at: float


class CallRow(NamedTuple):
    """A question to a language model and what became of it."""

    call: int
    trial: int | None
    prompt_hash: str
    model: str
    operator: str
    parents: str  # JSON
    island: int
    told: int
    request: str | None  # JSON; None if texts were not asked for, like the next three
    answer: str | None
    reasoning: str | None
    answered_source: str | None  # in the answer, if another one was judged
    finish: str | None
    tokens_in: int | None
    tokens_out: int | None
    usd: float | None
    attempts: int
    unsettled: int
    seconds: float | None
    error: str | None
    asked_at: float
    answered_at: float | None


class SourceRow(NamedTuple):
    """A source with the evaluation of its trial."""

    candidate: str
    trial: int
    text: str
    evaluation: str | None  # JSON


class JudgedAnswerRow(NamedTuple):
    """A model's answer with the verdict on what it became, and on the other candidate if it is a duplicate.

    Speedup, interval and `estimated` are those of the other candidate if the answer has none of its own.
    """

    call: int
    prompt_hash: str
    model: str
    operator: str
    trial: int
    request: str  # JSON
    text: str
    reasoning: str | None
    spans: str | None  # JSON
    verdict: str
    stage: str
    twin_verdict: str | None
    twin_stage: str | None
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    estimated: int | None
    parent_speedup: float | None  # of the fastest parent
    parents: str  # JSON
    source: str  # that was judged
    tuned: float
    answered_source: str | None  # in the answer, if it was tuned; None in runs of earlier versions


def run_counts(run: RunReader) -> RunCounts:
    return RunCounts(*next(run.rows(_COUNTS)))


def best_row(run: RunReader) -> BestRow:
    """Return the fastest kernel; the earlier one of equals.  PyTorch as a baseline is none."""
    return BestRow(*next(run.rows(_BEST, (BASELINE_OPERATOR,)), ()))


def trial_rows(run: RunReader) -> Iterator[TrialRow]:
    return map(TrialRow._make, run.rows(_TRIALS))


def lineage_rows(run: RunReader) -> Iterator[LineageRow]:
    return map(LineageRow._make, run.rows(_LINEAGE))


def evaluation_rows(run: RunReader) -> Iterator[EvaluationRow]:
    return map(EvaluationRow._make, run.rows(_EVALUATIONS))


def ok_evaluations(run: RunReader) -> Iterator[tuple[int, str]]:
    """Return (trial, evaluation as JSON) of the trials that are ok, in the order they finished."""
    return ((trial, evaluation) for trial, evaluation in run.rows(_OK_EVALUATIONS))


def profile_rows(run: RunReader) -> Iterator[ProfileRow]:
    return map(ProfileRow._make, run.rows(_PROFILES))


def call_rows(run: RunReader, *, with_text: bool) -> Iterator[CallRow]:
    """Return all calls in the order they were asked.  with_text: read prompts and answers too."""
    texts = "request, answer, reasoning, answered_source" if with_text else "NULL, NULL, NULL, NULL"
    return map(CallRow._make, run.rows(_LLM_CALLS.format(texts=texts)))


def source_rows(run: RunReader) -> Iterator[SourceRow]:
    return map(SourceRow._make, run.rows(_SOURCES))


def judged_answers(run: RunReader) -> Iterator[JudgedAnswerRow]:
    """Return the answers with a verdict; an answer on which the evaluator itself failed has none."""
    return map(JudgedAnswerRow._make, run.rows(_JUDGED_ANSWERS))


def count_unjudged(run: RunReader) -> int:
    """Return how many answers have no verdict."""
    return int(next(run.rows(_UNJUDGED))[0])


def count_calls(run: RunReader) -> int:
    """Return how many questions the run asked language models."""
    return int(next(run.rows("SELECT COUNT(*) FROM llm_calls"))[0])


def has_estimates(run: RunReader) -> bool:
    """Return whether a model computed one of the speedups."""
    return bool(next(run.rows("SELECT EXISTS (SELECT 1 FROM evaluations WHERE estimated)"))[0])

"""Makes training data for language models from runs: answers, with the results of their candidates.

A row's completion yields the very source that its verdict and speedup are of: `evo.llm.completions`.  Rewards and
advantages are those of `evo.core.rewards`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.export_rows import Row
from evo.core.records import Verdict
from evo.core.rewards import ALPHA, Judged, advantage, mean_and_std
from evo.llm.completions import Completion, Completions, JudgedSource, Operators, spans_from_json
from evo.storage.queries import RunReader
from evo.storage.tables import count_unjudged, judged_answers

TUNED = "with parameters that were tuned before the verdict: the completion has the judged source (column tuned)"


@dataclass(frozen=True)
class TrainingAnswer:
    """A model's answer with the verdict on its candidate, and for a duplicate on the candidate that it repeats.

    Speedups are None unless `correct`.
    """

    call: int
    prompt_hash: str
    model: str
    operator: str
    trial: int
    request: str
    text: str
    reasoning: str | None
    spans: str | None
    verdict: Verdict
    stage: str
    twin_verdict: Verdict | None
    twin_stage: str | None
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    estimated: bool | None
    parent_speedup: float | None
    parents: str = "[]"  # JSON
    source: str = ""  # that was evaluated; a line that says so if the text has no source of its own
    tuned: float = 0.0  # 1: other parameters than the text's were evaluated
    answered_source: str | None = None  # in the text, if it was tuned; None in runs of earlier versions

    @property
    def judged(self) -> Judged:
        """The result of its source: an answer that repeats a candidate has that of the candidate."""
        if self.stage == "answer" and self.twin_verdict is not None and self.twin_stage is not None:
            return Judged(self.twin_verdict, self.twin_stage, self.speedup)
        return Judged(self.verdict, self.stage, self.speedup)

    @property
    def gained(self) -> bool:
        """Right, surely faster than the baseline, and faster than every parent the model was shown."""
        if self.verdict is not Verdict.OK or self.speedup is None or self.ci_low is None:
            return False
        return self.ci_low > 1 and self.speedup > (self.parent_speedup or 0.0)

    def completion(self, completions: Completions) -> Completion | str:
        """A text that yields the source that was evaluated, or the reason why it yields none."""
        return completions.of(
            JudgedSource(
                operator=self.operator,
                text=self.text,
                spans=spans_from_json(self.spans),
                parents=tuple(json.loads(self.parents)),
                source=self.source,
                itself=self.stage == "answer",
                tuned=bool(self.tuned),
                answered=self.answered_source,
            )
        )

    def sample(self, run: str, reader: RunReader, made: Completion) -> Row:
        """The columns that both kinds of training data begin with."""
        config = reader.info.config
        plan, code = (made.spans.get(part) or (None, None) for part in ("plan", "code"))
        completion = [{"role": "assistant", "content": made.text}]
        return (
            self.messages, completion, made.tuned, self.text if made.tuned else None, self.reasoning, *plan, *code,
            run, self.call, self.trial, config.task, config.target, self.model, self.operator, json.loads(self.parents),
        )  # fmt: skip

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": m["role"], "content": m["text"]} for m in json.loads(self.request)["messages"]]


def answers(reader: RunReader) -> Iterator[TrainingAnswer]:
    """Answers with a verdict; one that the evaluator itself failed on has none."""
    for row in judged_answers(reader):
        values = row._asdict()
        values["verdict"] = Verdict(values["verdict"])
        values["twin_verdict"] = values["twin_verdict"] and Verdict(values["twin_verdict"])
        values["estimated"] = None if values["estimated"] is None else bool(values["estimated"])
        yield TrainingAnswer(**values)


def unjudged(reader: RunReader) -> int:
    """Answers without a verdict: still to be evaluated, not made a trial yet, or failed by the evaluator itself."""
    return count_unjudged(reader)


def sft(
    run: str,
    reader: RunReader,
    *,
    operators: Operators,
    allow_estimated: bool,
    notes: Counter[str],
) -> Iterator[Row]:
    """Answers that became a verified gain; `notes` counts the others by reason.  `operators` read the answers."""
    completions = Completions(reader, operators)
    for answer in answers(reader):
        if not answer.gained:
            notes["left out: no gain"] += 1
        elif answer.estimated and not allow_estimated:
            notes["left out: a gain, but only an estimated one (--allow-estimated takes it)"] += 1
        elif isinstance(made := answer.completion(completions), str):
            notes[made] += 1
        else:
            notes[TUNED] += made.tuned
            sample = answer.sample(run, reader, made)
            dialogue = answer.messages + sample[1]
            yield (
                dialogue, *sample, answer.speedup, answer.ci_low, answer.ci_high, answer.estimated,
                answer.parent_speedup,
            )  # fmt: skip


def grpo(run: str, reader: RunReader, *, operators: Operators, notes: Counter[str]) -> Iterator[Row]:
    """Yields all answers with a verdict on their text, each with its rewards and its advantages within its group.

    `operators` read the answers; `notes` counts the answers that are left out, by reason, those with tuned parameters,
    and those that have no other to compare with.
    """
    completions = Completions(reader, operators)
    groups = _groups(reader, completions)
    index = 0
    for answer in answers(reader):
        made = answer.completion(completions)
        if isinstance(made, str):
            notes[made] += 1
            continue
        notes[TUNED] += made.tuned
        group = groups.get((answer.model, answer.prompt_hash), {})
        notes["alone in their group, so without an advantage"] += not group
        scored: list[float] = []
        judged = answer.judged
        for name, reward in judged.rewards.items():
            scored += [reward, advantage(reward, *group.get(name, (reward, 0.0)))]
        task = reader.info.config.task
        yield (
            *answer.sample(run, reader, made), f"{run}/{answer.model}/{answer.prompt_hash}", answer.verdict,
            answer.stage, judged.syntax, judged.rules, judged.compiled, judged.correct,
            answer.speedup, answer.ci_low, answer.ci_high, answer.estimated, *scored, ALPHA,
            f"evo/{task}", "triton", {"style": "rule", "ground_truth": task}, {"index": index, "split": "train"},
        )  # fmt: skip
        index += 1


def _groups(reader: RunReader, completions: Completions) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """(mean, std) of each reward by group of at least two: a first pass over all answers that keeps numbers only.

    Groups are those of the rows: an answer that is left out has no part in them.
    """
    found: defaultdict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for answer in answers(reader):
        if not isinstance(answer.completion(completions), str):
            found[answer.model, answer.prompt_hash].append(answer.judged.rewards)
    return {
        key: {name: mean_and_std([r[name] for r in rewards]) for name in rewards[0]}
        for key, rewards in found.items()
        if len(rewards) > 1
    }

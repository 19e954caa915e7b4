"""Makes training data for language models from runs: answers, with the results of their candidates.

A row's completion yields the very source that its verdict and speedup are of: `evo.llm.completions`.

Speedups are over the baseline of the run, as everywhere: the task's seed kernel, or PyTorch for a task without one
(TritonRL's are over PyTorch).  Rewards and advantages:

- `autotriton` (AutoTriton, arXiv 2507.05687): 1 if the rules are kept and the outputs are right, else 0.
- `tritonrl` (TritonRL, arXiv 2510.17891): two rewards, each for its own tokens.  The code's get r_correct = syntax x
  rules x compiled x correct, the plan's r_speed = r_correct x speedup; in the loss the plan's tokens weigh ALPHA, the
  code's 1.
- The advantage of an answer is (r - mean) / (std + EPSILON) over its group, std with n - 1; 0 in a group of one, as in
  TRL's GRPOTrainer.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.export_rows import Row
from evo.core.records import STAGES, Verdict
from evo.llm.completions import Completion, Completions, JudgedSource, Operators, spans_from_json
from evo.storage.queries import RunReader
from evo.storage.tables import count_unjudged, judged_answers

ALPHA = 0.1  # TritonRL's choice
EPSILON = 1e-4  # TRL's; verl has 1e-6
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
    def judged(self) -> tuple[Verdict, str]:
        """Verdict and stage of its source: an answer that repeats a candidate has those of that candidate."""
        if self.stage == "answer" and self.twin_verdict is not None and self.twin_stage is not None:
            return self.twin_verdict, self.twin_stage
        return self.verdict, self.stage

    @property
    def syntax(self) -> bool:
        """Whether it holds a source that is Python; the gate's compile error is that of Python's parser."""
        verdict, stage = self.judged
        return stage != "answer" and not (stage == "gate" and verdict is Verdict.COMPILE_ERROR)

    @property
    def rules(self) -> bool:
        return self.syntax and self.judged[0] is not Verdict.REJECTED

    @property
    def compiled(self) -> bool:
        return STAGES.index(self.judged[1]) > STAGES.index("compile")

    @property
    def correct(self) -> bool:
        return self.judged[0] in (Verdict.OK, Verdict.DUPLICATE)

    @property
    def gained(self) -> bool:
        """Right, surely faster than the baseline, and faster than every parent the model was shown."""
        if self.verdict is not Verdict.OK or self.speedup is None or self.ci_low is None:
            return False
        return self.ci_low > 1 and self.speedup > (self.parent_speedup or 0.0)

    @property
    def rewards(self) -> dict[str, float]:
        correct = float(self.syntax and self.rules and self.compiled and self.correct)
        return {
            "autotriton": float(self.rules and self.correct),
            "tritonrl_plan": correct * (self.speedup or 0.0),
            "tritonrl_code": correct,
        }

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
            run, self.call, self.trial, config.task, config.target, self.model, self.operator,
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
        for name, reward in answer.rewards.items():
            mean, std = group.get(name, (reward, 0.0))
            scored += [reward, (reward - mean) / (std + EPSILON)]
        task = reader.info.config.task
        yield (
            *answer.sample(run, reader, made), f"{run}/{answer.model}/{answer.prompt_hash}", answer.verdict,
            answer.stage, answer.syntax, answer.rules, answer.compiled, answer.correct,
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
            found[answer.model, answer.prompt_hash].append(answer.rewards)
    return {
        key: {name: _mean_and_std([r[name] for r in rewards]) for name in rewards[0]}
        for key, rewards in found.items()
        if len(rewards) > 1
    }


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values)

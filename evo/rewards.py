"""The evaluator as a reward for training language models.

    with evo.TritonReward("softmax", scheme="tritonrl") as reward:
        for result in reward(completions):
            print(result.value, result.verdict, result.reason)

A completion is read as a model's answer in a search is, and its kernel is evaluated by `evo.Evaluator`, or by a service
through `evo.Client`.  So a kernel runs here as confined as in `evo evaluate`.  `evo.adapters` has the functions that
trainers call.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from evo.core.errors import ConfigError, ServiceError
from evo.core.records import Evaluation, Verdict
from evo.core.rewards import ALPHA, EPSILON, Judged, advantages
from evo.core.text import short
from evo.search.options import AnyTask
from operators.base import Draft, Parent
from operators.llm.base import Unreadable
from operators.llm.operators import LlmMutate

if TYPE_CHECKING:
    from evo.api import Evaluator
    from evo.service.client import Client

__all__ = ["ALPHA", "CLIP", "EPSILON", "SCHEMES", "Evaluates", "Reward", "TritonReward", "advantages"]

log = logging.getLogger(__name__)

SCHEMES = ("autotriton", "tritonrl", "speedup")
# More than ten times as fast as the seed kernel mostly says how slow the seed is.  Without a limit one such answer
# would give nearly all of the spread of its group, and the others would look alike.
CLIP = (0.0, 10.0)

_READER = LlmMutate()  # it reads what all operators accept: a whole file, or a change of a parent


class Evaluates(Protocol):
    """What a reward asks for evaluations: `evo.Evaluator`, `evo.Client`, or an object of your own."""

    def evaluate_many(self, sources: Iterable[str]) -> Iterator[Evaluation]:
        """The evaluations of sources, in their order."""
        ...


@dataclass(frozen=True)
class Reward:
    """The reward of one completion, and what it follows from.

    value: by the scheme.  plan, code: TritonRL's two rewards, for the tokens of the plan and of the code, whatever the
    scheme is; `spans` has their places.  If the evaluator itself failed, nothing is known about the completion: the
    verdict is INFRASTRUCTURE, and value, plan and code do not exist (None).
    """

    value: float | None
    verdict: Verdict
    speedup: float | None  # over the baseline of the task, not clipped; None unless it is right
    correct: bool  # whether the outputs are right
    plan: float | None  # r_correct x clipped speedup
    code: float | None  # r_correct
    # Of "plan" and "code" in the completion: (first character, one past the last); empty if it holds no code.
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = ""  # why it is not ok; "" if it is
    # Of the evaluation, that gave the verdict; "answer": the completion holds no code; "": evo failed outside of them.
    stage: str = "done"
    estimated: bool = False  # whether a model of the target computed the speedup, and no GPU measured it


class TritonReward:
    """Rewards completions that hold a Triton kernel of one task; use it as a context manager, or call `close`.

    Threads may share it.  Opening it without `url` evaluates the seed kernel, which takes seconds.
    """

    def __init__(
        self,
        task: AnyTask = "",
        *,
        scheme: str = "autotriton",
        clip: tuple[float, float] = CLIP,
        url: str | None = None,
        token: str | None = None,
        evaluator: Evaluates | None = None,
        parent: str = "",
        **settings: Any,
    ) -> None:
        """task: as for `evo.Evaluator`; with `url`, the name of a task of the service.

        scheme: "autotriton": 1 if the kernel keeps the rules and is right, else 0; "tritonrl": r_correct + ALPHA x
            r_speed as one number (`Reward.code` and `Reward.plan` have them apart); "speedup": r_speed.
        clip: the least and the greatest speedup that counts in r_speed, for kernels that are right.
        url, token: of a service (`evo serve`), which evaluates.
        evaluator: evaluates instead; it stays open after `close`.
        parent: the source that completions change, if they may be search/replace blocks or keep parts of it.
        settings: of `evo.Evaluator`: gpus, workers, target, seed, baseline and so on.
        Raises ConfigError for a wrong setting, TaskError if the task or its seed kernel is at fault.
        """
        _check(scheme, clip)
        given = [name for name, value in {"evaluator": evaluator, "url": url, **settings}.items() if value is not None]
        if len(given) > 1 and given[0] in ("evaluator", "url"):
            raise ConfigError(f"expected {given[0]} alone, got {', '.join(given[1:])} too; leave one of them out")
        self.scheme, self.clip = scheme, clip
        self._parents = [Parent(0, parent, speedup=1.0)] if parent else []
        self._opened = _open(task, url, token, settings) if evaluator is None else None
        self._evaluator: Evaluates = evaluator or self._opened  # type: ignore[assignment]  # one of them is there

    def __call__(self, completions: Sequence[str]) -> list[Reward]:
        """The rewards of completions (texts of a model), in their order.  Equal kernels are evaluated once.

        A kernel that is wrong or breaks a rule gets 0 and raises nothing; a broken rule is logged as a warning.  Raises
        ServiceError if the service refuses the requests or cannot be reached.
        """
        drafts = [self._read(text) for text in completions]
        sources = list(dict.fromkeys(draft.source for draft in drafts if isinstance(draft, Draft)))
        found = dict(zip(sources, self._evaluate(sources), strict=True))
        return [
            self._of_evaluation(found[draft.source], draft.spans)
            if isinstance(draft, Draft)
            else self._judged(Judged(Verdict.REJECTED, "answer"), reason=draft.reason)
            for draft in drafts
        ]

    def _read(self, completion: str) -> Draft | Unreadable:
        try:
            completion.encode()
        except UnicodeEncodeError as error:  # a service could not be sent it
            return Unreadable(f"expected Unicode text, got half a character at {error.start}")
        return _READER.read(completion, self._parents)

    def _evaluate(self, sources: Sequence[str]) -> list[Evaluation | Exception]:
        """The evaluation of each source, or the error by which evo failed on it; then the others go on."""
        found: list[Evaluation | Exception] = []
        while len(found) < len(sources):
            try:
                for evaluation in self._evaluator.evaluate_many(sources[len(found) :]):
                    found.append(evaluation)
                break
            except (ServiceError, ConfigError):  # of every source
                raise
            except Exception as error:
                log.exception("evo failed on a kernel; it gets no reward")
                found.append(error)
        return found

    def _of_evaluation(self, found: Evaluation | Exception, spans: Mapping[str, tuple[int, int]]) -> Reward:
        if isinstance(found, Exception):
            return Reward(None, Verdict.INFRASTRUCTURE, None, False, None, None, spans, str(found), "")
        if found.verdict is Verdict.INFRASTRUCTURE:
            log.error("no reward: %s", short(found.message))
            return Reward(None, found.verdict, None, False, None, None, spans, found.message, found.stage)
        if found.verdict is Verdict.REJECTED:
            log.warning("reward 0: a rule is broken, at stage %s: %s", found.stage, short(found.message))
        judged = Judged(found.verdict, found.stage, found.speedup)
        return self._judged(judged, spans, found.message, found.estimated)

    def _judged(
        self,
        judged: Judged,
        spans: Mapping[str, tuple[int, int]] | None = None,
        reason: str = "",
        estimated: bool = False,
    ) -> Reward:
        rewards = dataclasses.replace(judged, speedup=self._clipped(judged.speedup)).rewards
        plan, code = rewards["tritonrl_plan"], rewards["tritonrl_code"]
        values = {"autotriton": rewards["autotriton"], "tritonrl": code + ALPHA * plan, "speedup": plan}
        return Reward(
            value=values[self.scheme],
            verdict=judged.verdict,
            speedup=judged.speedup,
            correct=judged.correct,
            plan=plan,
            code=code,
            spans=dict(spans or {}),
            reason=reason,
            stage=judged.stage,
            estimated=estimated,
        )

    def _clipped(self, speedup: float | None) -> float | None:
        return None if speedup is None else min(max(speedup, self.clip[0]), self.clip[1])

    def close(self) -> None:
        """Ends the evaluator or the client that this reward opened."""
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(scheme: str, clip: tuple[float, float]) -> None:
    if scheme not in SCHEMES:
        raise ConfigError(f"scheme: expected one of {', '.join(SCHEMES)}, got {scheme!r}")
    try:
        low, high = map(float, clip)
        right = 0 <= low < high
    except (TypeError, ValueError):
        right = False
    if not right:
        raise ConfigError(f"clip: expected two numbers, 0 <= low < high, got {clip!r}; e.g. clip={CLIP}")


def _open(task: AnyTask, url: str | None, token: str | None, settings: Mapping[str, Any]) -> Evaluator | Client:
    if url is None:
        from evo.api import Evaluator

        return Evaluator(task, **settings)
    from evo.service.client import Client

    if not isinstance(task, str) or not task:
        raise ConfigError(
            f"task: expected the name of a task of the service, got {task!r:.100}; GET /v1/tasks has them"
        )
    return Client(url, task, token=token)

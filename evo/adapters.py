"""Functions that trainers and other search engines call, made of evo's reward and evaluator.

Each is made in a file of your own, which the trainer or engine loads (docs/rewards.md has one for each):

    reward = evo.TritonReward("softmax", url="http://gpu-box:8321")
    compute_score = verl_compute_score(reward)

Rows of a data set that are of several tasks need a reward for each: a mapping from task names to rewards.  The row then
names its task, as each function says.  No package of a trainer is imported before its own function is made or called.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError, EvoError
from evo.core.records import Evaluation, Verdict
from evo.core.rewards import completion_text, rewards_of
from evo.core.text import short
from evo.rewards import Evaluates, Reward

RewardFunction = Callable[[Sequence[str]], list[Reward]]  # as `evo.TritonReward`
Rewards = RewardFunction | Mapping[str, RewardFunction]

# What ends an answer of a chat model, if the trainer leaves it in the text: it would hide the end of the code.
ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<eos>", "<｜end▁of▁sentence｜>")


# --- trainers --------------------------------------------------------------------------------------------------------


def trl_reward_func(rewards: Rewards) -> Callable[..., list[float | None]]:
    """Returns a function for `reward_funcs` of TRL's GRPOTrainer (1.16.0).

    Completions are texts or lists of messages.  The column `task` names the task.  A completion that the evaluator
    failed on gets None, which TRL leaves out of its group.
    """

    def triton_reward(prompts: Any, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        tasks = columns.get("task") or [None] * len(completions)
        found = rewards_of(rewards, tasks, [completion_text(completion) for completion in completions])
        if log_extra := columns.get("log_extra"):
            log_extra("verdict", [each.verdict.value for each in found])
            log_extra("reason", [short(each.reason) for each in found])
        return [each.value for each in found]

    return triton_reward


def verl_compute_score(rewards: Rewards, *, failed: float = 0.0) -> Callable[..., dict[str, float]]:
    """Returns `compute_score` for verl's `reward.custom_reward_function` (0.9.1).

    `ground_truth` names the task, as in `evo export --format grpo`.  failed: the score if the evaluator failed, as verl
    has no score for "unknown"; `infrastructure` counts these.
    """

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **others: Any
    ) -> dict[str, float]:
        (found,) = rewards_of(rewards, [ground_truth], [solution_str])
        return {"score": _known(found, failed), **_figures(found)}

    return compute_score


def openrlhf_reward_func(rewards: Rewards, *, failed: float = 0.0) -> Callable[..., dict[str, Any]]:
    """Returns `reward_func` for OpenRLHF's `--reward.remote_url FILE.py` (0.11.2).

    A label names the task.  A query is a prompt with its completion.  failed: the reward if the evaluator failed.
    """

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        import torch

        texts = [_after(prompt, query) for prompt, query in zip(prompts, queries, strict=True)]
        found = rewards_of(rewards, labels, texts)
        values = torch.tensor([_known(each, failed) for each in found])
        logs = [_figures(each) for each in found]
        extra_logs = {name: torch.tensor([each[name] for each in logs]) for name in logs[0]} if logs else {}
        return {"rewards": values, "scores": values, "extra_logs": extra_logs}

    return reward_func


def slime_custom_rm(rewards: Rewards) -> Callable[..., Awaitable[Any]]:
    """Returns `custom_rm` for slime's `--custom-rm-path MODULE.custom_rm` (0.3.1).

    The label of a sample names the task.  A sample that the evaluator failed on gets 0, and its `remove_sample` is set,
    so slime computes no loss on it.  With `--group-rm` slime gives a list of samples and gets a list.
    """

    async def custom_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
        samples = sample if isinstance(sample, list) else [sample]
        texts = [_without_end(each.response) for each in samples]
        found = await asyncio.to_thread(rewards_of, rewards, [each.label for each in samples], texts)
        for each, reward in zip(samples, found, strict=True):
            each.remove_sample = each.remove_sample or reward.value is None
        values = [_known(each, 0.0) for each in found]
        return values if isinstance(sample, list) else values[0]

    return custom_rm


def verifiers_reward(rewards: Rewards) -> Callable[..., Awaitable[float]]:
    """Returns a function for `rewards` of a task of verifiers (0.4.0), which prime-rl trains on.

    The `name` of the task's data names the task.  If the evaluator failed it raises EvoError: verifiers then marks the
    rollout as failed.
    """

    async def triton_reward(task: Any, trace: Any) -> float:
        (found,) = await asyncio.to_thread(rewards_of, rewards, [task.name], [trace.last_reply])
        if found.value is None:
            raise EvoError(f"the evaluator failed: {found.reason}")
        return found.value

    return triton_reward


def nemo_gym_server(rewards: Rewards) -> type:
    """Returns a resources server of NeMo Gym (0.7.0), whose `verify` rewards the text of the response.

    `verifier_metadata` of a row names its task: {"task": NAME}.  A sample that the evaluator failed on is masked.
    """
    from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer

    class EvoVerifyRequest(BaseVerifyRequest):
        verifier_metadata: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it

    class EvoVerifyResponse(BaseVerifyResponse):
        verdict: str
        correct: float
        speedup: float

    class EvoResourcesServer(SimpleResourcesServer):
        async def verify(self, body: Any) -> Any:
            task, text = body.verifier_metadata.get("task"), body.response.output_text
            (found,) = await asyncio.to_thread(rewards_of, rewards, [task], [text])
            return EvoVerifyResponse(
                **body.model_dump(),
                reward=_known(found, 0.0),
                mask_sample=found.value is None,
                failure_reason=short(found.reason) if found.value is None else None,
                verdict=found.verdict.value,
                correct=float(found.correct),
                speedup=found.speedup or 0.0,
            )

    # FastAPI reads them, and cannot find classes within a function by name.
    EvoResourcesServer.verify.__annotations__ = {"body": EvoVerifyRequest, "return": EvoVerifyResponse}
    return EvoResourcesServer


# --- other search engines --------------------------------------------------------------------------------------------


def openevolve_evaluate(evaluator: Evaluates) -> Callable[[str], Any]:
    """Returns `evaluate` for an evaluation file of OpenEvolve (0.4.1).

    evaluator: an `evo.Evaluator` or an `evo.Client` of the task.  The function returns an EvaluationResult: the metrics
    `combined_score` (the speedup if the program is right, else 0), `correct` and `progress` (0 to 1: how far it came),
    and the artifacts `verdict` and `message`.  It raises EvoError if the evaluator failed: OpenEvolve tries again.
    """

    def evaluate(program_path: str) -> Any:
        from openevolve.evaluation_result import EvaluationResult

        found = _evaluation(evaluator, program_path)
        metrics = {"combined_score": found.speedup or 0.0, **_metrics(found)}
        return EvaluationResult(metrics, {"verdict": found.verdict.value, "message": _message(found)})

    return evaluate


def shinka_main(evaluator: Evaluates, arguments: Sequence[str] | None = None) -> None:
    """The main function of an evaluation script of ShinkaEvolve (0.0.7).

    It reads `--program_path` and `--results_dir`, and writes `metrics.json` and `correct.json` there.  evaluator,
    metrics: as for `openevolve_evaluate`.  If the evaluator failed it writes nothing and raises EvoError.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--program_path", required=True)
    parser.add_argument("--results_dir", type=Path, required=True)
    given = parser.parse_args(arguments)
    found = _evaluation(evaluator, given.program_path)
    right = found.verdict is Verdict.OK
    metrics = {"combined_score": found.speedup or 0.0, "public": _metrics(found), "text_feedback": _message(found)}
    given.results_dir.mkdir(parents=True, exist_ok=True)
    _write(given.results_dir / "metrics.json", metrics)
    _write(given.results_dir / "correct.json", {"correct": right, "error": None if right else _message(found)})


# --- shared ----------------------------------------------------------------------------------------------------------


def _after(prompt: str, query: str) -> str:
    """The completion in a query.  It must hold the prompt: a kernel in that is not an answer."""
    _, found, completion = query.partition(prompt) if prompt else ("", True, query)
    if not found:
        raise ConfigError(
            "expected a query that holds its prompt, got one without: the prompt was cut, or its tokens decode to "
            "another text; allow longer prompts"
        )
    return _without_end(completion)


def _without_end(text: str) -> str:
    """A text without the tokens that end an answer."""
    while True:
        text = text.rstrip()
        end = next((end for end in ENDS if text.endswith(end)), None)
        if end is None:
            return text
        text = text.removesuffix(end)


def _known(found: Reward, failed: float) -> float:
    return failed if found.value is None else found.value


def _figures(found: Reward) -> dict[str, float]:
    """Numbers for a trainer's log; the same names for each completion."""
    return {
        "acc": float(found.correct),
        "speedup": found.speedup or 0.0,
        "rejected": float(found.verdict is Verdict.REJECTED and found.stage != "answer"),
        "infrastructure": float(found.value is None),
    }


def _evaluation(evaluator: Evaluates, path: str) -> Evaluation:
    """The evaluation of a file.  Raises EvoError if the evaluator failed."""
    source = Path(path).read_text(encoding="utf-8", errors="replace")
    (found,) = evaluator.evaluate_many([source])
    if found.verdict is Verdict.INFRASTRUCTURE:
        raise EvoError(f"the evaluator failed: {found.message}")
    return found


def _metrics(found: Evaluation) -> dict[str, float]:
    return {"correct": float(found.verdict is Verdict.OK), "progress": found.verdict.rank / Verdict.OK.rank}


def _message(found: Evaluation) -> str:
    """What a model is to know: the times if it is right, else its stage and what is wrong."""
    if found.fitness is None:
        return f"{found.verdict} at stage {found.stage}: {short(found.message)}"
    return f"{found.fitness} over the baseline; by case: " + ", ".join(
        f"{case} {speedup:.3g}x" for case, speedup in found.fitness.per_case.items()
    )


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")

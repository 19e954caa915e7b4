"""evo.adapters: each function is called as the trainer or engine calls it, by the signature that its version has.

`tests/test_published.py` calls them by the loaders of the packages themselves, if they are installed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evo import adapters
from evo.adapters import (
    openevolve_evaluate,
    openrlhf_reward_func,
    shinka_main,
    slime_custom_rm,
    trl_reward_func,
    verifiers_reward,
    verl_compute_score,
)
from evo.core.errors import ConfigError, EvoError
from tests.reward_support import EVALUATED, TRIALS, Rewarded

# --- signatures ------------------------------------------------------------------------------------------------------

# As the published version calls it: (positional arguments, names of keyword arguments).
CALLS = {
    # trl/trainer/grpo_trainer.py, _calculate_rewards; the dataset's columns come along.
    trl_reward_func: (0, ["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"]),
    # verl/experimental/reward_loop/reward_manager/naive.py, run_single; the last two with a reward model only.
    verl_compute_score: (
        0,
        [
            "data_source",
            "solution_str",
            "ground_truth",
            "extra_info",
            "reward_router_address",
            "reward_model_tokenizer",
        ],
    ),
    openrlhf_reward_func: (3, []),  # openrlhf/utils/agent.py, _fetch_rewards_via_func
    slime_custom_rm: (2, []),  # slime/rollout/rm_hub/__init__.py, async_rm
    verifiers_reward: (0, ["task", "trace"]),  # verifiers/v1/utils/decorators.py, invoke: those it names, of three
    openevolve_evaluate: (1, []),  # openevolve/evaluator.py, _direct_evaluate
}
COROUTINES = (slime_custom_rm, verifiers_reward)


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_each_function_takes_what_its_caller_gives(make: Any) -> None:
    positional, keywords = CALLS[make]
    function = make(Rewarded())
    inspect.signature(function).bind(*range(positional), **dict.fromkeys(keywords))
    assert inspect.iscoroutinefunction(function) == (make in COROUTINES)
    assert function.__name__.isidentifier()


def test_names_of_parameters_are_those_that_callers_and_loaders_look_for() -> None:
    assert list(inspect.signature(verifiers_reward(Rewarded())).parameters) == ["task", "trace"]
    assert [
        function.__name__
        for function in (
            verl_compute_score(Rewarded()),
            openrlhf_reward_func(Rewarded()),
            slime_custom_rm(Rewarded()),
            openevolve_evaluate(None),  # type: ignore[arg-type]
        )
    ] == ["compute_score", "reward_func", "custom_rm", "evaluate"]


# --- trainers --------------------------------------------------------------------------------------------------------


def test_trl_gets_a_float_or_none_for_texts_and_messages() -> None:
    rewarded, extra = Rewarded(), {}
    function = trl_reward_func(rewarded)
    assert function(prompts=["p"] * 3, completions=["right", "broken", "other"], task=["a"] * 3) == [1.0, None, 0.0]
    messages = [
        [{"role": "assistant", "content": "right"}],
        [{"role": "assistant", "content": [{"type": "text", "text": "ri"}, {"type": "text", "text": "ght"}]}],
        [{"role": "assistant", "content": "right"}, {"role": "tool", "content": "no"}],
        [{"role": "assistant", "content": None}],
        [],
    ]
    found = function(prompts=[[]] * 5, completions=messages, log_extra=extra.__setitem__)
    assert found == [1.0, 1.0, 1.0, 0.0, 0.0] and rewarded.texts[3:] == ["right"] * 3 + ["", ""]
    assert extra == {"verdict": ["ok"] * 3 + ["rejected"] * 2, "reason": [""] * 3 + [r"no \x1b"] * 2}


def test_verl_gets_a_score_and_the_same_figures_for_each() -> None:
    function = verl_compute_score(Rewarded(), failed=-1.0)
    given: dict[str, Any] = {"data_source": "evo/softmax", "ground_truth": "softmax", "extra_info": {"index": 0}}
    right, broken, other = (function(solution_str=text, **given) for text in ("right", "broken", "other"))
    assert right == {"score": 1.0, "acc": 1.0, "speedup": 2.0, "rejected": 0.0, "infrastructure": 0.0}
    assert broken == {"score": -1.0, "acc": 0.0, "speedup": 0.0, "rejected": 0.0, "infrastructure": 1.0}
    assert other == {"score": 0.0, "acc": 0.0, "speedup": 0.0, "rejected": 1.0, "infrastructure": 0.0}


def test_openrlhf_gets_tensors_and_the_prompt_is_no_completion() -> None:
    rewarded = Rewarded()
    prompt = "<|im_start|>user\nright<|im_end|>\n<|im_start|>assistant\n"
    queries = [f"<s>{prompt}right<|im_end|>\n", f"{prompt}other</s>", f"{prompt}broken", f"{prompt}{prompt}right"]
    found = openrlhf_reward_func(rewarded)(queries, [prompt] * 4, ["softmax"] * 4)
    assert rewarded.texts == ["right", "other", "broken", f"{prompt}right"]
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert {name: values.tolist() for name, values in found["extra_logs"].items()}["speedup"] == [2.0, 0, 0, 0]
    with pytest.raises(ConfigError, match="expected a query that holds its prompt"):
        openrlhf_reward_func(rewarded)(["of another prompt right"], [prompt], ["softmax"])
    # One query at a time, and the result is wrapped as OpenRLHF does.
    (value,) = torch.tensor([openrlhf_reward_func(rewarded)([f"{prompt}right"], [prompt], [None])["rewards"]]).tolist()
    assert value == 1.0


def test_slime_gets_a_reward_for_a_sample_and_a_list_for_a_group() -> None:
    def sample(response: str) -> Any:
        return SimpleNamespace(response=response, label="softmax", remove_sample=False)

    function = slime_custom_rm(Rewarded())
    assert asyncio.run(function(None, sample("right<|im_end|>"))) == 1.0
    group = [sample("broken"), sample("right"), sample("other")]
    assert asyncio.run(function(None, group)) == [0.0, 1.0, 0.0]
    assert [each.remove_sample for each in group] == [True, False, False]


def test_verifiers_gets_a_float_or_an_error() -> None:
    function = verifiers_reward({"softmax": Rewarded()})
    task = SimpleNamespace(name="softmax")
    assert asyncio.run(function(task=task, trace=SimpleNamespace(last_reply="right"))) == 1.0
    with pytest.raises(EvoError, match="the evaluator failed: died"):
        asyncio.run(function(task=task, trace=SimpleNamespace(last_reply="broken")))


def test_rows_of_several_tasks_go_to_the_reward_of_their_task_in_one_call_each() -> None:
    both = {"softmax": Rewarded(), "matmul": Rewarded()}
    found = trl_reward_func(both)(
        prompts=[""] * 4, completions=["right", "other", "right", "a"], task=["softmax", "matmul", "matmul", "softmax"]
    )
    assert found == [1.0, 0.0, 1.0, 0.0]
    assert both["softmax"].texts == ["right", "a"] and both["matmul"].texts == ["other", "right"]
    for function, given in (
        (trl_reward_func(both), {"prompts": [""], "completions": ["right"]}),
        (verl_compute_score(both), {"data_source": "", "solution_str": "right", "ground_truth": "sotfmax"}),
    ):
        with pytest.raises(ConfigError, match="expected the name of a task among softmax, matmul in each row, got "):
            function(**given)


@pytest.mark.parametrize("end", adapters.ENDS)
def test_tokens_that_end_an_answer_do_not_hide_the_end_of_its_code(end: str) -> None:
    assert adapters._without_end(f"```\n{end}\n{end}") == "```" and adapters._without_end(f"{end} a") == f"{end} a"


# --- other search engines --------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """The files of `TRIALS`."""
    for trial in TRIALS:
        (tmp_path / f"{trial.index}.py").write_text(trial.proposal.candidate.source, encoding="utf-8")
    return [str(tmp_path / f"{trial.index}.py") for trial in TRIALS]


def test_shinka_reads_what_the_script_writes(programs: list[str], tmp_path: Path) -> None:
    def run(program: str) -> tuple[Any, Any]:
        out = tmp_path / f"out of {Path(program).stem}"
        shinka_main(EVALUATED, ["--program_path", program, "--results_dir", str(out)])
        return json.loads((out / "metrics.json").read_text()), json.loads((out / "correct.json").read_text())

    metrics, correct = run(programs[0])
    assert correct == {"correct": True, "error": None} and metrics["combined_score"] == 2.5
    assert metrics["public"] == {"correct": 1.0, "progress": 1.0}
    assert metrics["text_feedback"] == "2.50x [2.50, 2.50] estimated over the baseline; by case: square 2.5x"
    metrics, correct = run(programs[1])
    assert correct == {"correct": False, "error": r"wrong at stage verify: wrong \x1b result"}
    assert (metrics["combined_score"], metrics["public"]) == (0.0, {"correct": 0.0, "progress": 0.8})
    with pytest.raises(EvoError, match="the evaluator failed: died"):
        run(programs[2])
    assert not (tmp_path / "out of 3").exists()


def test_openevolve_gets_metrics_and_artifacts(programs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class EvaluationResult:  # openevolve/evaluation_result.py: a dataclass of these two
        def __init__(self, metrics: dict[str, float], artifacts: dict[str, str]) -> None:
            self.metrics, self.artifacts = metrics, artifacts

    module = SimpleNamespace(EvaluationResult=EvaluationResult)
    monkeypatch.setitem(sys.modules, "openevolve.evaluation_result", module)
    evaluate = openevolve_evaluate(EVALUATED)
    right, wrong = evaluate(programs[0]), evaluate(programs[1])
    assert right.metrics == {"combined_score": 2.5, "correct": 1.0, "progress": 1.0}
    assert right.artifacts["verdict"] == "ok" and "square 2.5x" in right.artifacts["message"]
    assert wrong.metrics == {"combined_score": 0.0, "correct": 0.0, "progress": 0.8}
    assert wrong.artifacts == {"verdict": "wrong", "message": r"wrong at stage verify: wrong \x1b result"}
    with pytest.raises(EvoError, match="died"):
        evaluate(programs[2])

"""Rewards and evaluators as published trainers and engines load and call them: `make test-published` installs these.

Each is imported by its own loader; no server, GPU or network is used.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import evo
from evo.adapters import nemo_gym_server, trl_reward_func
from evo.core.records import Candidate, Proposal, Trial, Verdict
from evo.core.rewards import advantages
from evo.rewards import TritonReward
from tests.reward_support import TRIALS, Rewarded

pytestmark = pytest.mark.published
TASK = "vector_sin"
SEED = (Path(__file__).parents[1] / "fitness" / "tasks" / "builtin" / TASK / "kernel.py").read_text(encoding="utf-8")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`written(call, made)`: the path of a module with `made = call(...)`, as a user writes it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))

    def write(made: str, call: str) -> Path:
        names = (
            f"from evo.adapters import {call.partition('(')[0]}\nfrom tests.reward_support import EVALUATED, Rewarded\n"
        )
        path = tmp_path / "written_for_evo.py"
        path.write_text(f"{names}\n{made}{call}\n", encoding="utf-8")
        return path

    return write


# --- TRL: everything real but the model's talent ---------------------------------------------------------------------


def fenced(code: str) -> str:
    return f"Plan: another block.\n```python\n{code}```"


ANSWERS = (
    fenced(SEED.replace("BLOCK_SIZE = 4", "BLOCK_SIZE = 1024")),
    fenced(SEED.replace("tl.sin(x)", "tl.cos(x)")),  # wrong
    fenced(SEED.replace("    return y", "    return torch.sin(x)")),  # a cheat
    fenced(SEED.replace("BLOCK_SIZE = 4", "BLOCK_SIZE = 64")),
    fenced(SEED.replace("tl.sin(x)", "tl.no_such(x)")),
    "I would rather not.",
)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[evo.Evaluator]:
    pytest.importorskip("trl")
    with evo.Evaluator(TASK, gpus="none") as opened:
        yield opened


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    pytest.importorskip("trl")
    from analysis.benchmarks.tiny_model import make

    return make(tmp_path_factory.mktemp("tiny"))


def train(folder: Path, tiny: tuple[Any, Any], function: Any, steps: int, answers: tuple[str, ...] = ()) -> Any:
    """TRL's GRPOTrainer after some steps on a CPU; the model writes by itself if no answers are given."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = tiny
    count = len(answers) or 4
    config = GRPOConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=count, num_generations=count,
        max_completion_length=24, use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, learning_rate=1e-3,
    )  # fmt: skip

    def given(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = [tokenizer.encode(text) + [tokenizer.eos_token_id] for text in answers]
        asked = [tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None}

    row = {"prompt": [{"role": "user", "content": "Write a faster kernel."}], "task": TASK}
    more = {"rollout_func": given} if answers else {}
    data = datasets.Dataset.from_list([row] * 4)
    trainer = GRPOTrainer(model, function, args=config, train_dataset=data, processing_class=tokenizer, **more)
    trainer.train()
    return trainer


def test_trl_trains_a_random_model_with_the_real_evaluator(evaluator, tiny, tmp_path: Path) -> None:
    function = trl_reward_func({TASK: TritonReward(evaluator=evaluator, scheme="tritonrl")})
    trainer = train(tmp_path, tiny, function, steps=2)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 2 and all(math.isfinite(entry["loss"]) for entry in steps)
    assert {entry["rewards/triton_reward/mean"] for entry in steps} == {0.0}, "random text holds no kernel"
    assert list(trainer._logs["advantages"]) == [0.0] * 4


@pytest.fixture(scope="module")
def exported(evaluator: evo.Evaluator, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `evo export --format grpo` says of `ANSWERS`, evaluated in a run."""
    import pyarrow.parquet as pq

    from evo.cli.main import main
    from evo.storage.folders import FILE
    from operators.registry import LLM_OPERATORS
    from tests.analysis_support import add_call
    from tests.engine_support import create, ok_trial

    folder = tmp_path_factory.mktemp("exported")
    with create(folder / "run") as store:
        first = ok_trial(0, operator="seed")
        store.proposed(first.proposal)
        store.finished(first)
        for index, text in enumerate(ANSWERS, 1):
            draft = LLM_OPERATORS["mutate"].read(text, [])
            candidate = Candidate(getattr(draft, "source", "# no source\n"))
            made = Proposal(index, candidate, "mutate@m", (0,))
            found = evaluator.evaluate(candidate.source)
            if not hasattr(draft, "source"):
                found = evo.Evaluation(candidate.id, Verdict.REJECTED, "answer", draft.reason)
            store.proposed(made)
            store.finished(Trial(made, found, found.fitness))
    with closing(sqlite3.connect(folder / "run" / FILE)) as db, db:
        for index, text in enumerate(ANSWERS, 1):
            add_call(db, index, "the same prompt", text, "m")
    assert main(["export", str(folder / "run"), "--out", str(folder / "out"), "--format", "grpo"]) == 0
    rows = pq.read_table(folder / "out" / "grpo.parquet").to_pylist()
    assert [row["verdict"] for row in rows] == ["ok", "wrong", "rejected", "ok", "compile_error", "rejected"]
    return rows


@pytest.mark.parametrize(("scheme", "column"), [("autotriton", "autotriton"), ("speedup", "tritonrl_plan")])
def test_advantages_of_trl_are_those_of_the_export(
    scheme: str, column: str, exported, evaluator, tiny, tmp_path: Path
) -> None:
    answers = tuple(row["completion"][0]["content"] for row in exported)
    assert answers == ANSWERS
    reward = TritonReward(evaluator=evaluator, scheme=scheme, clip=(0.0, 1000.0))
    trainer = train(tmp_path, tiny, trl_reward_func({TASK: reward}), steps=1, answers=answers)
    expected = [row[f"{column}_advantage"] for row in exported]
    assert list(trainer._logs["rewards"]["triton_reward"]) == pytest.approx(
        [row[f"{column}_reward"] for row in exported], rel=1e-6
    )
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=1e-6) and max(expected) > 0.5
    assert list(trainer._logs["extra"]["verdict"]) == [row["verdict"] for row in exported]


def test_trl_gives_no_advantage_to_what_the_evaluator_failed_on(tiny: Any, tmp_path: Path) -> None:
    trainer = train(tmp_path, tiny, trl_reward_func(Rewarded()), steps=1, answers=("right", "broken", "no", "right"))
    known = advantages([1.0, 0.0, 1.0])
    found = list(trainer._logs["advantages"])
    assert found[1] == 0.0 and [found[0], *found[2:]] == pytest.approx(known, abs=1e-6)


# --- other trainers --------------------------------------------------------------------------------------------------


def test_verl_loads_and_calls_it(written: Any) -> None:
    reward = pytest.importorskip("verl.trainer.ppo.reward")
    from omegaconf import OmegaConf

    path = str(written("compute_score = ", "verl_compute_score(Rewarded(), failed=-1.0)"))
    config = OmegaConf.create({"reward": {"custom_reward_function": {"path": path, "name": "compute_score"}}})
    function = reward.get_custom_reward_fn(config)
    given: dict[str, Any] = {"data_source": f"evo/{TASK}", "ground_truth": TASK, "extra_info": {"index": 0}}
    assert [function(solution_str=text, **given)["score"] for text in ("right", "no", "broken")] == [1.0, 0.0, -1.0]


def test_verl_rewards_a_sequence_through_its_reward_manager(written: Any, tiny: Any) -> None:
    reward = pytest.importorskip("verl.trainer.ppo.reward")
    naive = pytest.importorskip("verl.experimental.reward_loop.reward_manager.naive")
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto

    path = str(written("compute_score = ", "verl_compute_score(Rewarded())"))
    config = OmegaConf.create({"reward": {"custom_reward_function": {"path": path, "name": "compute_score"}}})
    tokenizer = tiny[1]
    ids = torch.tensor([tokenizer.encode("right") + [tokenizer.eos_token_id]])
    row = {"data_source": "evo/x", "reward_model": {"ground_truth": "x"}, "extra_info": {}}
    data = DataProto.from_dict(
        tensors={"responses": ids, "attention_mask": torch.ones_like(ids)},
        non_tensors={name: np.array([value], dtype=object) for name, value in row.items()},
    )

    async def run() -> dict[str, Any]:
        manager = naive.NaiveRewardManager(config, tokenizer, reward.get_custom_reward_fn(config))
        found: dict[str, Any] = await manager.run_single(data)
        return found

    found = asyncio.run(run())
    assert found["reward_score"] == 1.0 and found["reward_extra_info"]["speedup"] == 2.0


def test_openrlhf_loads_and_calls_it(written: Any) -> None:
    agent = pytest.importorskip("openrlhf.utils.agent")
    executor = agent.SingleTurnAgentExecutor(str(written("reward_func = ", "openrlhf_reward_func(Rewarded())")))
    (found,) = asyncio.run(executor._fetch_rewards_via_func(["<s>Write it.\nright</s>"], ["Write it.\n"], ["x"]))
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0]
    assert found["extra_logs"]["speedup"].flatten()[0].item() == 2.0


def test_slime_loads_and_calls_it(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slime is on GitHub only: put its checkout on PYTHONPATH."""
    hub = pytest.importorskip("slime.rollout.rm_hub")
    from slime.utils.types import Sample

    path = written("custom_rm = ", "slime_custom_rm(Rewarded())")
    monkeypatch.syspath_prepend(str(path.parent))
    arguments = SimpleNamespace(custom_rm_path=f"{path.stem}.custom_rm")
    samples = [Sample(response=text, label="x") for text in ("right<|im_end|>", "no", "broken")]
    assert asyncio.run(hub.async_rm(arguments, samples[0])) == 1.0
    assert asyncio.run(hub.batched_async_rm(arguments, samples)) == [1.0, 0.0, 0.0]
    assert [sample.remove_sample for sample in samples] == [False, False, True]


def test_verifiers_loads_and_calls_it(written: Any) -> None:
    vf = pytest.importorskip("verifiers.v1")
    from verifiers.v1.trace import AgentInfo, TraceTask

    path = written("triton_reward = ", "verifiers_reward({'softmax': Rewarded()})")
    config = vf.TaskConfig(rewards={"triton": {"fn": f"{path}:triton_reward", "weight": 2.0}})
    task = vf.Task(vf.TaskData(name="softmax", prompt="Write it."), config)

    def trace(reply: str) -> Any:
        info = AgentInfo.model_construct()
        return vf.Trace.model_construct(task=TraceTask.model_construct(data=task.data), agent=info, root_reply=reply)

    right = trace("right")
    asyncio.run(task.score(right))
    assert right.reward == 2.0 and right.rewards["triton"].score == 1.0
    with pytest.raises(Exception, match="the evaluator failed: died") as raised:
        asyncio.run(task.score(trace("broken")))
    assert type(raised.value).__module__ == "verifiers.v1.errors", "verifiers records it on the rollout"


def test_nemo_gym_serves_it() -> None:
    pytest.importorskip("nemo_gym.base_resources_server")
    from fastapi.testclient import TestClient
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.server_utils import ServerClient

    made = nemo_gym_server({"softmax": Rewarded()})
    config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="evo")
    client = TestClient(made(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver())

    def verify(text: str) -> dict[str, Any]:
        message = {
            "id": "m", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }  # fmt: skip
        response = {
            "id": "r", "object": "response", "created_at": 0, "model": "m", "output": [message],
            "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
        }  # fmt: skip
        body = {"responses_create_params": {"input": "Write it."}, "response": response}
        answer = client.post("/verify", json={**body, "verifier_metadata": {"task": "softmax"}})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    right, broken = verify("right"), verify("broken")
    assert (right["reward"], right["verdict"], right["speedup"], right["mask_sample"]) == (1.0, "ok", 2.0, False)
    assert (broken["reward"], broken["mask_sample"], broken["failure_reason"]) == (0.0, True, "died")


# --- other search engines --------------------------------------------------------------------------------------------


def test_openevolve_evaluates_programs_with_it(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("openevolve.evaluator")
    from openevolve.config import EvaluatorConfig

    path = written("evaluate = ", "openevolve_evaluate(EVALUATED)")
    judge = module.Evaluator(EvaluatorConfig(max_retries=0, cascade_evaluation=False), str(path))
    right, wrong, broken = (
        asyncio.run(judge.evaluate_program(trial.proposal.candidate.source, f"p{trial.index}")) for trial in TRIALS
    )
    assert right == {"combined_score": 2.5, "correct": 1.0, "progress": 1.0}
    assert wrong == {"combined_score": 0.0, "correct": 0.0, "progress": 0.8}
    assert judge.get_pending_artifacts("p2")["verdict"] == "wrong"
    assert broken == {"error": 0.0}, "OpenEvolve's own mark of a program that could not be evaluated"


def test_shinka_runs_the_script_and_reads_its_results(written: Any, tmp_path: Path) -> None:
    scheduler = pytest.importorskip("shinka.launch.scheduler")
    script = written("", "shinka_main(EVALUATED)")
    jobs = scheduler.JobScheduler("local", scheduler.LocalJobConfig(eval_program_path=str(script)))
    found = []
    for trial, number in zip(TRIALS, itertools.count()):
        program = tmp_path / f"main{number}.py"
        program.write_text(trial.proposal.candidate.source, encoding="utf-8")
        found.append(jobs.run(str(program), str(tmp_path / f"results{number}"))[0])
    assert [each["correct"]["correct"] for each in found] == [True, False, False]
    assert found[0]["metrics"]["combined_score"] == 2.5 and "2.50x" in found[0]["metrics"]["text_feedback"]
    assert found[1]["correct"]["error"] == json.loads(json.dumps(r"wrong at stage verify: wrong \x1b result"))
    assert found[2]["metrics"] == {} and "the evaluator failed: died" in found[2]["stderr_log"]

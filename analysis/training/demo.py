"""Runs each recipe for two steps on a CPU and compares TRL with the formulas: `make train-demo`.

    python -m analysis.benchmarks.tiny_model DIR
    python -m analysis.training.demo DIR

DIR has a tiny model with random weights.  The evaluator is the real one, without a GPU, so speedups are estimates.

A random model writes no kernel, so all of its rewards are 0 and teach nothing.  So in each group of four, two or
three answers are not the model's: after generation, answers of a stored run to the same prompt take their place
(`watched.StoredAnswers`).  That serves to check formulas; nothing can be learned so.

What TRL did is compared with a computation of its own: tokens by the tokenizer's character offsets, advantages and
losses written out with NumPy and Python, gradients by a plain model with the same weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, disable_progress_bars
from transformers import AutoModelForCausalLM, PrinterCallback
from transformers.utils import logging
from trl import GRPOConfig, SFTConfig

from analysis.training.data import fastest, prompts, read_rows
from analysis.training.watched import Step, WatchedGRPO, WatchedHierarchical, WatchedSFT
from evo.adapters import trl_reward_func
from evo.api import Evaluator
from evo.cli.main import main as run_command
from evo.rewards import ALPHA, EPSILON, Reward, TritonReward

RUN = Path(__file__).resolve().parents[2] / "runs/reference/h200-claude/softmax"
TASK = "softmax"
STEPS, GROUP = 2, 4
WRITTEN = 48  # tokens that the model writes itself
# TRL computes in float32: sums over some thousand tokens differ by about 1e-7 of their size.
TOLERANCE = 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="DIR")
    model = str(parser.parse_args().model)
    disable_progress_bars()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # of what the libraries call in each other
    with tempfile.TemporaryDirectory() as folder:
        tables = {}
        for kind in ("sft", "grpo"):
            run_command(["export", str(RUN), "--out", f"{folder}/{kind}", "--format", kind])
            tables[kind] = list(read_rows(Path(folder, kind, f"{kind}.jsonl")))
        print(f"stored answers: {len(tables['grpo'])}, verified gains on an H200 among them: {len(tables['sft'])}")
        run_sft(model, tables["sft"], Path(folder))
        with Evaluator(TASK, gpus="none") as evaluator:
            print(f"\nThe answers are evaluated again: {evaluator.description}")
            run_grpo(model, tables["grpo"], evaluator, Path(folder))
            run_hierarchical(model, tables["grpo"], evaluator, Path(folder))
    print("\nAll losses, gradients and token weights are what the formulas say. Nothing was trained to any quality.")
    return 0


# --- the recipes -----------------------------------------------------------------------------------------------------


def run_sft(model: str, rows: Sequence[Any], folder: Path) -> None:
    """Rejection-sampled fine-tuning: the fastest right answer to each prompt, loss on its tokens alone."""
    print("\n== Rejection-sampled SFT: loss = mean of -log p over the tokens of the completions")
    examples = fastest(rows, keep=1)
    by_prompt: dict[str, float] = {}
    for row in rows:
        by_prompt[str(row["prompt"])] = max(by_prompt.get(str(row["prompt"]), 0.0), row["speedup"])
    check("speedups of the examples", [e["speedup"] for e in examples], sorted(by_prompt.values(), reverse=True))

    trainer = WatchedSFT(
        model,
        args=SFTConfig(completion_only_loss=True, max_length=None, **common(folder, batch=1)),
        train_dataset=Dataset.from_list([{"prompt": e["prompt"], "completion": e["completion"]} for e in examples]),
    )
    train(trainer)
    for number, step in enumerate(trainer.steps):
        (labels,) = step.batch["labels"]
        text = trainer.processing_class.decode(labels[labels != -100])
        (example,) = [e for e in examples if e["completion"][0]["content"] in text]
        prompt, completion = tokenized(trainer.processing_class, example)
        print(f"step {number + 1}: {len(prompt)} tokens of prompt, {len(completion)} of completion")
        check("  tokens with a loss", (labels != -100).nonzero().flatten().tolist(), range(len(prompt), len(labels)))
        check("  those tokens", labels[len(prompt) :].tolist(), completion)
        weights = [1 / len(completion)] * len(completion)
        compare(model, step, [(prompt, completion, weights)], loss=lambda log_p, at: -log_p * at)


def run_grpo(model: str, rows: Sequence[Any], evaluator: Evaluator, folder: Path) -> None:
    """GRPO with AutoTriton's reward, by TRL's own trainer."""
    print("\n== GRPO, AutoTriton's reward: loss = -sum_i |o_i| A_i / sum_i |o_i|, A = (r - mean) / (std + 1e-4)")
    reward = Kept(TritonReward(evaluator=evaluator, scheme="autotriton", parent=evaluator.task.seed_source or ""))
    trainer = WatchedGRPO(
        model,
        reward_funcs=trl_reward_func(reward),
        args=grpo_config(folder, "dapo"),
        train_dataset=Dataset.from_list(prompts(rows)),
    )
    trainer.stored = stored_answers(rows)
    train(trainer)
    for number, (step, rewards) in enumerate(zip(trainer.steps, reward.groups, strict=True)):
        say_group(number, step, rewards)
        advantages = expected_advantages([float(r.correct) for r in rewards])
        check("  advantages", step.batch["advantages"], advantages)
        tokens = sum(map(len, step.completions))
        compare_group(model, step, [[a / tokens] * len(c) for a, c in zip(advantages, step.completions, strict=True)])


def run_hierarchical(model: str, rows: Sequence[Any], evaluator: Evaluator, folder: Path) -> None:
    """TritonRL's hierarchical GRPO."""
    print("\n== Hierarchical GRPO: loss = -1/G sum_i 1/|o_i| sum_t A_t,")
    print(f"   A_t = {ALPHA} x A_plan for tokens of the plan, A_code for all others")
    reward = Kept(TritonReward(evaluator=evaluator, scheme="tritonrl", parent=evaluator.task.seed_source or ""))
    trainer = WatchedHierarchical(
        model,
        reward,
        grpo_config(folder, "grpo"),
        train_dataset=Dataset.from_list(prompts(rows)),
    )
    trainer.stored = stored_answers(rows)
    train(trainer)
    for number, (step, rewards) in enumerate(zip(trainer.steps, reward.groups, strict=True)):
        say_group(number, step, rewards)
        plan = expected_advantages([reward.clip(r.speedup) if r.correct else 0.0 for r in rewards])
        code = expected_advantages([float(r.correct) for r in rewards])
        weights = []
        for i, (tokens, rewarded) in enumerate(zip(step.completions, rewards, strict=True)):
            of_plan = plan_tokens(trainer.processing_class, tokens, rewarded)
            weights.append([ALPHA * plan[i] if of else code[i] for of in of_plan])
            print(
                f"  answer {i}: {sum(of_plan)} tokens of the plan with A_t = {ALPHA} x {plan[i]:+.4f}, "
                f"{len(of_plan) - sum(of_plan)} others with {code[i]:+.4f}"
            )
            check(f"  answer {i}, weights of tokens", step.batch["advantages"][i, : len(tokens)], weights[-1])
        compare_group(model, step, [[a / len(each) / GROUP for a in each] for each in weights])


def train(trainer: Any) -> None:
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def common(folder: Path, batch: int) -> dict[str, Any]:
    """Settings of all recipes: on a CPU, float32, no clipping of gradients, so that they can be compared."""
    return {
        "output_dir": str(folder / "model"),
        "max_steps": STEPS,
        "per_device_train_batch_size": batch,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }


def grpo_config(folder: Path, loss_type: str) -> GRPOConfig:
    return GRPOConfig(
        num_generations=GROUP,
        max_completion_length=WRITTEN,
        loss_type=loss_type,
        shuffle_dataset=False,
        **common(folder, batch=GROUP),
    )


# --- answers and rewards ---------------------------------------------------------------------------------------------


def stored_answers(rows: Sequence[Any]) -> dict[str, list[str]]:
    """The answers of the stored run to each prompt."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(str(row["prompt"]), []).append(row["completion"][0]["content"])
    return found


class Kept:
    """A reward that keeps what it returned, a list for each group."""

    def __init__(self, reward: TritonReward) -> None:
        self._reward = reward
        self.groups: list[list[Reward]] = []

    def __call__(self, completions: Sequence[str]) -> list[Reward]:
        self.groups.append(self._reward(completions))
        return self.groups[-1]

    def clip(self, speedup: float | None) -> float:
        return float(np.clip(speedup or 0.0, *self._reward.clip))


# --- the formulas ----------------------------------------------------------------------------------------------------


def expected_advantages(rewards: Sequence[float]) -> list[float]:
    values = np.array(rewards, dtype=np.float64)
    return [float(a) for a in (values - values.mean()) / (values.std(ddof=1) + EPSILON)]


def plan_tokens(tokenizer: Any, tokens: Sequence[int], reward: Reward) -> list[bool]:
    """Which tokens belong to the plan: by the offsets of the tokenizer, that are of the text it is given."""
    if not reward.spans:
        return [False] * len(tokens)
    text = tokenizer.decode(tokens)
    given = tokenizer(text, return_offsets_mapping=True)
    check("  tokens of the text", given["input_ids"], tokens)
    return [end <= reward.spans["plan"][1] for _, end in given["offset_mapping"]]


def tokenized(tokenizer: Any, example: Any) -> tuple[list[int], list[int]]:
    """The tokens of prompt and completion, by the template of the chat."""
    prompt = tokenizer.apply_chat_template(example["prompt"], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(example["prompt"] + example["completion"], tokenize=False)
    before, all_of_it = tokenizer(prompt)["input_ids"], tokenizer(whole)["input_ids"]
    check("  the template begins with the prompt", all_of_it[: len(before)], before)
    return before, all_of_it[len(before) :]


def compare_group(folder: str, step: Step, weights: Sequence[Sequence[float]]) -> None:
    """Compares a step of GRPO: on its first pass over new answers the ratio of policies is 1."""
    samples = list(zip(step.prompts, step.completions, weights, strict=True))
    compare(folder, step, samples, loss=lambda log_p, at: -torch.exp(log_p - log_p.detach()) * at)


def compare(
    folder: str, step: Step, samples: Sequence[Any], loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Compares loss and gradients of a step with those of a plain model, one sample after the other."""
    total = 0.0
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(step.before)
    for prompt, completion, weights in samples:
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].double()
        log_p = logits.log_softmax(-1)[range(len(completion)), completion]
        part = loss(log_p, torch.tensor(weights, dtype=torch.float64)).sum()
        part.backward()
        total += part.item()
    check("  loss", step.loss, total)
    ours, theirs = (
        torch.cat([gradients[name].flatten().double() for name in sorted(step.gradients)])
        for gradients in ({name: p.grad for name, p in model.named_parameters()}, step.gradients)
    )
    check("  length of the gradient", float(theirs.norm()), float(ours.norm()))
    check("  difference of the gradients over that length", float((ours - theirs).norm() / ours.norm()), 0.0)


def say_group(number: int, step: Step, rewards: Sequence[Reward]) -> None:
    words = [f"{r.verdict}{f' {r.speedup:.2f}x estimated' if r.speedup else ''}" for r in rewards]
    print(f"step {number + 1}: stored answers: {', '.join(words[: step.stored])}")
    print(f"  the model's own: {', '.join(words[step.stored :])}")


def check(what: str, found: Any, expected: Any) -> None:
    """Prints and asserts that two numbers, or two lists of numbers, agree."""
    one, two = (np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in (found, expected))
    if one.shape != two.shape or not np.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE):
        raise SystemExit(f"{what.strip()}: got {found}, the formula gives {expected}")
    if one.size == 1:
        print(f"{what}: {one[0]:.7g}, by the formula {two[0]:.7g}")
    else:
        print(f"{what}: {one.size} numbers agree within {np.abs(one - two).max():.1e}")


if __name__ == "__main__":
    sys.exit(main())

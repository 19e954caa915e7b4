"""TritonRL's hierarchical GRPO (arXiv 2510.17891) as a trainer of TRL, which this module needs (extra `train`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from trl import GRPOConfig, GRPOTrainer

from analysis.training.tokens import group_advantages, plan_length, token_advantages
from evo.core.errors import ConfigError
from evo.core.rewards import ALPHA, completion_text, rewards_of


class Scored(Protocol):
    """What the trainer reads of a reward: `evo.Reward` has it."""

    @property
    def plan(self) -> float | None: ...
    @property
    def code(self) -> float | None: ...
    @property
    def spans(self) -> Mapping[str, tuple[int, int]]: ...


RewardFunction = Callable[[Sequence[str]], Sequence[Scored]]  # as `evo.TritonReward`


class HierarchicalGRPOTrainer(GRPOTrainer):
    """Trains the tokens of the plan by speed and those of the code by correctness (`analysis.training.tokens`).

    All else is TRL's GRPOTrainer: generation, clipping, the reference model, and how the loss is averaged
    (`loss_type`).  TRL multiplies the loss of a token by its advantage; so alpha weighs the loss of the plan's tokens.

    TRL logs `rewards/plan_reward` and `rewards/code_reward`.  Its `reward`, and the advantages in its table of
    completions, are of their sum, code + alpha x plan, which nothing is trained by.
    """

    def __init__(
        self,
        model: Any,
        rewards: RewardFunction | Mapping[str, RewardFunction],
        args: GRPOConfig,
        *,
        alpha: float = ALPHA,
        **others: Any,
    ) -> None:
        """rewards: an `evo.TritonReward` of any scheme, or one for each name in the column `task`.

        alpha: the weight of the plan's tokens; 0 trains the code alone.
        model, args, others: as for GRPOTrainer, but without `reward_funcs`.
        Raises ConfigError for settings that would change the formula: advantages are scaled by group.
        """
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ConfigError(f"alpha: expected a weight of at least 0, got {alpha}")
        for name, wanted in (("scale_rewards", "group"), ("reward_weights", None)):
            if (given := getattr(args, name)) != wanted:
                raise ConfigError(f"{name}: expected {wanted!r} in hierarchical GRPO, got {given!r}; leave it out")
        self.alpha = alpha
        self._rewards = rewards
        self._scored: Sequence[Scored] = ()
        self._plan_lengths: list[int] = []
        self._plan_and_code = torch.empty(0, 2)  # rewards of all processes
        super().__init__(model=model, reward_funcs=[self.plan_reward, self.code_reward], args=args, **others)
        self.reward_weights = torch.tensor([alpha, 1.0])

    def plan_reward(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Any
    ) -> list[float | None]:
        """Evaluates the completions; returns r_speed of each, None if the evaluator failed."""
        texts = [completion_text(completion) for completion in completions]
        tasks = columns.get("task") or [None] * len(texts)
        self._scored = rewards_of(self._rewards, tasks, texts)
        self._plan_lengths = [
            plan_length(self._decode, tokens, text, scored.spans)
            for tokens, text, scored in zip(completion_ids, texts, self._scored, strict=True)
        ]
        return [scored.plan for scored in self._scored]

    def code_reward(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Returns r_correct of the completions that `plan_reward` evaluated: TRL calls both, in this order."""
        return [scored.code for scored in self._scored]

    def _decode(self, tokens: Sequence[int]) -> str:
        """Makes a text of tokens as GRPOTrainer does."""
        return str(self.processing_class.decode(tokens, skip_special_tokens=True))

    def _calculate_rewards(self, *arguments: Any) -> torch.Tensor:
        self._plan_and_code = super()._calculate_rewards(*arguments)
        return self._plan_and_code

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns TRL's batch with an advantage for each token: GRPOTrainer takes (answers, tokens) as well."""
        batch = super()._generate_and_score_completions(inputs)
        size = self.num_generations if self.model.training else self.num_generations_eval
        plan, code = (group_advantages(rewards, size) for rewards in self._plan_and_code.T.tolist())
        first = self.accelerator.process_index * len(inputs)
        length = batch["completion_ids"].size(1)  # with padding, which TRL masks
        batch["advantages"] = torch.tensor(
            [
                token_advantages(plan[first + i], code[first + i], plan_tokens, length, self.alpha)
                for i, plan_tokens in enumerate(self._plan_lengths)
            ],
            device=batch["completion_ids"].device,
        )
        return batch

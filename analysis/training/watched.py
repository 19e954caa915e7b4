"""Trainers of TRL that note what they do in each step, for `analysis.training.demo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOTrainer, SFTTrainer

from analysis.training.hierarchical import HierarchicalGRPOTrainer


class Step:
    """What a trainer did in one step: the weights before it, the batch, the loss and the gradients.

    prompts, completions: the tokens of GRPO, in the order of the batch; the first `stored` completions are stored
    answers.
    """

    def __init__(self, model: Any) -> None:
        self.before = {name: weights.clone() for name, weights in model.state_dict().items()}
        self.batch: dict[str, Any] = {}
        self.prompts: Sequence[Sequence[int]] = ()
        self.completions: Sequence[Sequence[int]] = ()
        self.stored = 0
        self.loss = 0.0
        self.gradients: dict[str, torch.Tensor] = {}


class Watched:
    """Notes each step of a trainer in `steps`."""

    steps: list[Step]

    def training_step(self, model: Any, inputs: Any, *arguments: Any) -> Any:
        self.__dict__.setdefault("steps", []).append(Step(model))
        loss = super().training_step(model, inputs, *arguments)  # type: ignore[misc]
        self.steps[-1].loss = float(loss)
        self.steps[-1].gradients = {name: weights.grad.clone() for name, weights in model.named_parameters()}
        return loss


class WatchedSFT(Watched, SFTTrainer):
    """Notes the batches of fine-tuning."""

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        self.steps[-1].batch = dict(inputs)
        return super().compute_loss(model, inputs, *arguments, **named)


class StoredAnswers(Watched):
    """Puts stored answers in the place of the first ones of a group that the model wrote.

    stored: the answers to a prompt, by its text.  The last answer of a group stays the model's.
    """

    stored: dict[str, list[str]]
    processing_class: Any
    _asked: Sequence[Any]

    def _generate(self, asked: Sequence[Any]) -> Any:
        self._asked = asked
        return super()._generate(asked)  # type: ignore[misc]

    def _generate_single_turn(self, prompts: Sequence[Sequence[int]], *arguments: Any, **named: Any) -> Any:
        written, probabilities = super()._generate_single_turn(prompts, *arguments, **named)  # type: ignore[misc]
        answers = self.stored[str(self._asked[0])][: len(written) - 1]
        tokens = [self.processing_class(text + self.processing_class.eos_token)["input_ids"] for text in answers]
        step = self.steps[-1]
        step.prompts, step.completions, step.stored = prompts, tokens + written[len(tokens) :], len(tokens)
        return step.completions, probabilities

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        self.steps[-1].batch = dict(batch)
        return batch


class WatchedGRPO(StoredAnswers, GRPOTrainer): ...


class WatchedHierarchical(StoredAnswers, HierarchicalGRPOTrainer): ...

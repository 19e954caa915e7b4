"""The library's kernel for this task: PyTorch's loss."""

import torch


def library(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

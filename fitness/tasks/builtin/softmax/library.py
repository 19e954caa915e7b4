"""The library's kernel for this task: PyTorch's kernel."""

import torch


def library(x):
    return torch.nn.functional.softmax(x, dim=-1)

"""The library's kernel for this task: PyTorch's kernel."""

import torch


def library(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

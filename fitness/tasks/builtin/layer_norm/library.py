"""The library's kernel for this task: PyTorch's kernel."""

import torch


def library(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)

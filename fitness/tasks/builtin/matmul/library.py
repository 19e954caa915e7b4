"""The library's kernel for this task: cuBLAS."""

import torch


def library(a, b):
    return torch.matmul(a, b)

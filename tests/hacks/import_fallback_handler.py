"""task: softmax
verdict: rejected
stage: gate
rule: top-level
harmless: yes
why: the type of a handler beside an import is an expression, which runs on import
"""

import torch
import triton
import triton.language as tl

try:
    from triton.language import no_such_name
except (
    [ImportError for ImportError in ImportError.__class__.__base__.__subclasses__() if ImportError.__name__ == "int"][0],
    ImportError,
)[1]:
    from triton.language.extra import libdevice


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * stride + columns, e / tl.sum(e, axis=0), mask=mask)


def launch(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def softmax(x):
    return launch(x)

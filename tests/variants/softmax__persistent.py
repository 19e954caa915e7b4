"""A persistent grid: as many programs as fill the device, each takes rows in turn.

task: softmax
"""

import torch
import triton
import triton.language as tl

PROGRAMS_PER_MULTIPROCESSOR = 4


@triton.jit
def persistent_kernel(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * n_cols + columns, mask=mask, other=-float("inf"))
        e = tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)
        tl.store(y_ptr + row * n_cols + columns, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = min(n_rows, multiprocessors * PROGRAMS_PER_MULTIPROCESSOR)
    persistent_kernel[(programs,)](x, y, n_rows, n_cols, BLOCK=triton.next_power_of_2(n_cols), num_warps=8)
    return y

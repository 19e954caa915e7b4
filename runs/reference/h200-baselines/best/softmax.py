import torch
import triton
import triton.language as tl


@triton.heuristics({"EVEN": lambda args: args["n_cols"] > 0 and args["n_cols"] % args["BLOCK_SIZE"] == 0})
@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride, n_cols, BLOCK_SIZE: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * stride
    y_row = y_ptr + row * stride
    columns = tl.arange(0, BLOCK_SIZE)

    largest = -float("inf")
    if EVEN:
        x = tl.load(x_row + columns)
    else:
        x = tl.load(x_row + columns, mask=columns < n_cols, other=-float("inf"))
    largest = tl.maximum(largest, tl.max(x, axis=0))

    total = 0.0
    total += tl.sum(tl.exp2((x - largest) * 1.4426950408889634), axis=0)

    mask = columns < n_cols
    if EVEN:
        x = tl.load(x_row + columns)
    else:
        x = tl.load(x_row + columns, mask=mask, other=0.0)
    if EVEN:
        tl.store(y_row + columns, tl.exp2((x - largest) * 1.4426950408889634) / total)
    else:
        tl.store(y_row + columns, tl.exp2((x - largest) * 1.4426950408889634) / total, mask=mask)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](x, y, x.stride(0), n_cols, BLOCK_SIZE=triton.next_power_of_2(n_cols), num_warps=4)
    return y

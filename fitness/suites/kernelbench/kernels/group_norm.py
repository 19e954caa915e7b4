import torch
import triton
import triton.language as tl


@triton.jit
def group_norm_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, size, n_groups, weights, inner, BLOCK: tl.constexpr):
    """A group is `size` neighbours; it has `weights` weights, one for each `inner` of them."""
    group = tl.program_id(0)
    start_of_group = group.to(tl.int64) * size
    places = tl.arange(0, BLOCK)

    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        sums += tl.load(x_ptr + start_of_group + start + places, mask=start + places < size, other=0.0)
    mean = tl.sum(sums, axis=0) / size

    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_group + start + places, mask=mask, other=0.0) - mean
        squares += tl.where(mask, x * x, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / size + 1e-5)

    for start in range(0, size, BLOCK):
        mask = start + places < size
        x = tl.load(x_ptr + start_of_group + start + places, mask=mask)
        which = (group % n_groups) * weights + (start + places) // inner
        weight = tl.load(weight_ptr + which, mask=mask)
        bias = tl.load(bias_ptr + which, mask=mask)
        tl.store(y_ptr + start_of_group + start + places, (x - mean) * inverse * weight + bias, mask=mask)


def entry(x, weight, bias):
    n_groups = GROUPS
    size = x.numel() // (x.shape[0] * n_groups)
    weights = weight.numel() // n_groups
    y = torch.empty_like(x)
    group_norm_kernel[(x.shape[0] * n_groups,)](
        x, weight, bias, y, size, n_groups, weights, size // weights, BLOCK=1024
    )
    return y

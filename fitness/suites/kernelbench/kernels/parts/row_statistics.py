import triton
import triton.language as tl


@triton.jit
def row_statistics_kernel(x_ptr, mean_ptr, squares_ptr, inner, BLOCK: tl.constexpr):
    """The mean of one channel of one sample, and the sum of squares of what differs from it."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, inner, BLOCK):
        sums += tl.load(x_ptr + row * inner + start + places, mask=start + places < inner, other=0.0)
    mean = tl.sum(sums, axis=0) / inner
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, inner, BLOCK):
        mask = start + places < inner
        x = tl.load(x_ptr + row * inner + start + places, mask=mask, other=0.0) - mean
        squares += tl.where(mask, x * x, 0.0)
    tl.store(mean_ptr + row, mean)
    tl.store(squares_ptr + row, tl.sum(squares, axis=0))

import triton
import triton.language as tl


@triton.jit
def channel_statistics_kernel(
    row_mean_ptr, row_squares_ptr, mean_ptr, inverse_ptr, n_batch, n_channels, inner, BLOCK: tl.constexpr
):
    """The mean and the inverse deviation of one channel, from those of its rows, which are equally long."""
    channel = tl.program_id(0)
    batches = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_batch, BLOCK):
        rows = (start + batches) * n_channels + channel
        sums += tl.load(row_mean_ptr + rows, mask=start + batches < n_batch, other=0.0)
    mean = tl.sum(sums, axis=0) / n_batch
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_batch, BLOCK):
        rows = (start + batches) * n_channels + channel
        mask = start + batches < n_batch
        apart = tl.load(row_mean_ptr + rows, mask=mask, other=0.0) - mean
        within = tl.load(row_squares_ptr + rows, mask=mask, other=0.0)
        squares += tl.where(mask, within + apart * apart * inner, 0.0)
    variance = tl.sum(squares, axis=0) / inner / n_batch
    tl.store(mean_ptr + channel, mean)
    tl.store(inverse_ptr + channel, 1.0 / tl.sqrt(variance + 1e-5))

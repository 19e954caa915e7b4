"""Each row split over several programs that leave a maximum and a sum in a workspace; a second kernel merges them.

task: cross_entropy
"""

import torch
import triton
import triton.language as tl


@triton.jit
def part_kernel(x_ptr, parts_ptr, V, BLOCK: tl.constexpr):
    row, part = tl.program_id(1), tl.program_id(0)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * V + columns, mask=columns < V, other=-float("inf"))
    largest = tl.max(x, axis=0)
    here = parts_ptr + (row * tl.num_programs(0) + part) * 2
    tl.store(here, largest)
    tl.store(here + 1, tl.sum(tl.exp(x - largest), axis=0))


@triton.jit
def merge_kernel(x_ptr, targets_ptr, parts_ptr, loss_ptr, V, n_parts, P: tl.constexpr):
    row = tl.program_id(0)
    parts = tl.arange(0, P)
    mask = parts < n_parts
    largest = tl.load(parts_ptr + (row * n_parts + parts) * 2, mask=mask, other=-float("inf"))
    total = tl.load(parts_ptr + (row * n_parts + parts) * 2 + 1, mask=mask, other=0.0)
    top = tl.max(largest, axis=0)
    log_total = tl.log(tl.sum(total * tl.exp(largest - top), axis=0))
    picked = tl.load(x_ptr + row.to(tl.int64) * V + tl.load(targets_ptr + row))
    tl.store(loss_ptr + row, log_total + (top - picked))


def cross_entropy(logits, targets):
    M, V = logits.shape
    block = 256
    n_parts = (V + block - 1) // block
    parts = torch.empty(M, n_parts, 2, device=logits.device, dtype=torch.float32)
    loss = torch.empty(M, device=logits.device, dtype=logits.dtype)
    part_kernel[(n_parts, M)](logits, parts, V, BLOCK=block, num_warps=4)
    merge_kernel[(M,)](logits, targets, parts, loss, V, n_parts, P=max(triton.next_power_of_2(n_parts), 2), num_warps=1)
    return loss

"""An operator of your own: block size and warps set together, by how many elements each thread handles.

    python -m evo run vector_sin --budget 6 --gpus none --plugin examples/own_operator.py \
        --operators elements_per_thread,rewrite

does the same as this file run as a script.  Moves of one parameter alone pass through settings with idle threads, or
with too many registers; this operator steps from one balanced setting to another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import evo
from operators.base import Context, Draft, Parent
from operators.genes import Gene, get_genes, set_genes

WARP = 32  # threads
PER_THREAD = (1, 2, 4, 8, 16)
WARPS = (1, 2, 4, 8)


@evo.register_operator
class ElementsPerThread:
    """See `operators.base.Operator` for what an operator gets and returns."""

    name = "elements_per_thread"
    arity = 1  # number of parents

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        source = parents[0].source
        kernels = launched_with_one_block(get_genes(source))
        if not kernels:
            return None  # the operator does not apply; evo asks another one
        # All randomness comes from `context.rng`: the same parents and the same seed give the same draft.
        block, warps = context.rng.choice(kernels)
        settings = [(each, count) for each in PER_THREAD for count in WARPS if each * count * WARP in block.values]
        settings = [s for s in settings if (s[0] * s[1] * WARP, s[1]) != (block.value, warps.value)]
        if not settings:
            return None
        each, count = context.rng.choice(settings)
        made = set_genes(source, {block.name: each * count * WARP, warps.name: count})
        return Draft(made, f"{each} elements a thread: {block.name}={each * count * WARP}, {warps.name}={count}")


def launched_with_one_block(genes: Sequence[Gene]) -> list[tuple[Gene, Gene]]:
    """The block and the warps of each launch that has one of both."""
    found = []
    for launch in dict.fromkeys(gene.name.partition(".")[0] for gene in genes):
        own = [gene for gene in genes if gene.name.startswith(f"{launch}.")]
        blocks, warps = ([gene for gene in own if gene.kind == kind] for kind in ("block", "warps"))
        if len(blocks) == len(warps) == 1:
            found.append((blocks[0], warps[0]))
    return found


if __name__ == "__main__":
    from evo.cli.main import main

    options = ["--budget", "6", "--gpus", "none", "--operators", "elements_per_thread,rewrite"]
    sys.exit(main(["run", "vector_sin", *options, *sys.argv[1:]]))

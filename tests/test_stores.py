"""Where programs store, as one block that moves with the program."""

from __future__ import annotations

import numpy as np
import pytest

from fitness.interpreter.spans import Spans
from fitness.interpreter.stores import StoreBlock, block_of, corners, position

ROW = 64  # bytes of a row of the buffer
TILE = [(ROW * r, ROW * r + 16) for r in range(4)]  # four rows, a quarter of the columns
GRID = (4, 3, 1)  # columns first
BYTES = ROW * 12


def spans(intervals: list[tuple[int, int]]) -> Spans:
    starts, ends = (np.array([i[side] for i in intervals], np.int64) for side in (0, 1))
    return Spans(starts, ends)


def tile(number: int, rows: int = 4) -> Spans:
    x, y, _ = position(number, GRID)
    return spans([(a + 16 * x + 4 * ROW * y, b + 16 * x + 4 * ROW * y) for a, b in TILE[:rows]])


def tiles(**changed: Spans) -> dict[int, Spans]:
    """What all programs store; `p5` is another one's of the sixth."""
    return {n: changed.get(f"p{n}", tile(n)) for n in range(12)}


def test_the_block_of_a_grid_of_tiles_is_found() -> None:
    block = block_of(7, BYTES, GRID, {n: tile(n) for n in (*corners(GRID), 6, 11)})
    assert block == StoreBlock(7, GRID, (0, 64, 128, 192), (16, 80, 144, 208), (16, 256, 0), complete=True)
    assert corners(GRID) == {0, 1, 4} and corners((1, 1, 5)) == {0, 1} and corners((1, 1, 1)) == {0}


@pytest.mark.parametrize("byte", [0, 15, 16, 70, 300, BYTES - 1])
def test_the_program_that_stores_a_byte_is_found(byte: int) -> None:
    block = block_of(0, BYTES, GRID, tiles())
    assert block is not None
    [number] = block.programs_at(byte)
    found = tile(number)
    assert ((found.starts <= byte) & (byte < found.ends)).any()
    assert block.of(number).starts.tolist() == found.starts.tolist()


def test_a_byte_that_no_program_stores_has_no_program() -> None:
    block = block_of(0, BYTES, (3, 3, 1), {n: tile(n) for n in (0, 1, 2)} | {n + 3: tile(n + 4) for n in (0, 1)})
    assert block is not None and block.programs_at(50) == block.programs_at(BYTES + 5) == []
    missing = block.missing(BYTES)
    assert missing is not None and missing.size == BYTES // 4 and missing.starts[0] == 48


def test_all_programs_whose_blocks_have_a_byte_are_found() -> None:
    """A row of 40 bytes in blocks of 32: the second block goes on in the next row."""
    rows = {n: spans([(40 * (n // 2) + 32 * (n % 2), 40 * (n // 2) + (32 if n % 2 == 0 else 40))]) for n in range(6)}
    block = block_of(0, 120, (2, 3, 1), rows)
    assert block is not None and block.programs_at(39) == [1] and block.programs_at(45) == [1, 2]


def test_who_stores_more_than_the_block_or_elsewhere_has_none() -> None:
    assert block_of(0, BYTES, GRID, tiles(p5=Spans.union([tile(5), tile(6)]))) is None
    assert block_of(0, BYTES, GRID, tiles(p5=tile(6))) is None
    assert block_of(0, BYTES, GRID, tiles(p1=spans([]))) is None  # nothing shows how it moves
    assert block_of(0, BYTES, GRID, tiles(p0=spans([]))) is None


def test_who_stores_less_makes_the_block_incomplete_but_the_last_along_an_axis() -> None:
    last, inner = (block_of(0, BYTES, GRID, tiles(**{f"p{n}": tile(n, rows=2)})) for n in (11, 5))
    assert last is not None and last.complete
    assert inner is not None and not inner.complete
    # What would lie behind the end of the buffer is nobody's loss.
    clipped = block_of(0, BYTES - 4 * ROW, GRID, {n: tile(n) if n < 8 else spans([]) for n in range(12)})
    assert clipped is not None and clipped.complete


def test_a_block_survives_json() -> None:
    block = block_of(3, BYTES, GRID, tiles())
    raw = {"buffer": 3, "grid": [4, 3, 1], "starts": [0, 64, 128, 192], "ends": [16, 80, 144, 208]}
    assert StoreBlock.from_dict({**raw, "shifts": [16, 256, 0], "complete": True}) == block

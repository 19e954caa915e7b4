import numpy as np
import pytest

from fitness.interpreter.spans import SECTOR, Spans


def as_set(spans: Spans) -> set[int]:
    return {byte for a, b in zip(spans.starts, spans.ends, strict=True) for byte in range(a, b)}


@pytest.mark.parametrize(
    "addresses",
    [
        np.arange(0, 64, 4),
        np.arange(0, 256, 16),
        np.arange(64, 0, -4),
        np.array([0, 0, 4, 4]),
        np.arange(8)[:, None] * 4 + np.arange(3)[None, :] * 100,
        np.random.default_rng(1).integers(0, 500, 40) * 4,
    ],
    ids=["contiguous", "strided", "falling", "duplicates", "columns", "random"],
)
def test_elements_cover_exactly_their_bytes(addresses):
    spans = Spans.of_elements(addresses.astype(np.uint64), 4)
    expected = {int(a) + i for a in addresses.ravel() for i in range(4)}
    assert as_set(spans) == expected
    assert spans.size == len(expected)
    assert (spans.starts[1:] > spans.ends[:-1]).all()


def test_union_is_that_of_sets():
    rng = np.random.default_rng(2)
    parts = [Spans.of_elements(rng.integers(0, 300, 20).astype(np.uint64) * 2, 2) for _ in range(4)]
    assert as_set(Spans.union(parts)) == set().union(*map(as_set, parts))
    assert Spans.union([]).size == 0


def test_blocks_are_the_sectors_touched():
    spans = Spans.of_elements(np.array([30, 100, 1000], np.uint64), 4)
    touched = {byte // SECTOR for byte in as_set(spans)}
    assert spans.blocks(SECTOR).size == SECTOR * len(touched)


def test_repeated_moves_the_set():
    spans = Spans.of_elements(np.array([0, 100], np.uint64), 4)
    assert as_set(spans.repeated(8, 3)) == {b + 8 * i for b in as_set(spans) for i in (1, 2, 3)}


def test_alignment_needs_aligned_starts_and_ends():
    assert Spans.of_elements(np.arange(0, 64, 4, dtype=np.uint64), 4).alignment() == 16
    assert Spans.of_elements(np.arange(8, 64, 4, dtype=np.uint64), 4).alignment() == 8
    assert Spans.of_elements(np.arange(0, 60, 4, dtype=np.uint64), 4).alignment() == 4

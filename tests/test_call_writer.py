"""Shared memory of arguments, and the structure of whole numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fitness.suites.call_writer import CallWriter, alignment, overlap
from fitness.suites.values import DATA, describe, draw, structure


def writer(*values: object) -> CallWriter:
    found = CallWriter({}, lambda tensor: None, None, "call", placed=True)
    found.write("f", ["x", "y", "z"], values, {})
    return found


def test_equal_windows_have_one_slot_and_parts_are_refused() -> None:
    x = torch.randn(8, 6)
    assert writer(x, x, 2).text == "f(x, x, z)"
    assert writer(x, x.t()).trouble == "arguments x and y share part of their memory"
    left, right = x.chunk(2, dim=1)
    both = writer(left, right)
    assert both.text == "f(x, y)" and not both.trouble, "columns of one array that do not meet"
    assert [a["tensor"]["offset"] for a in both.arguments] == [0, 3]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (slice(0, 4), slice(4, 8), False),
        (slice(0, 5), slice(4, 8), True),
        (slice(0, 8, 2), slice(1, 8, 2), False),
        (slice(0, 8, 2), slice(2, 8, 3), True),
    ],
)
def test_overlap_is_of_elements(one: slice, other: slice, shared: bool) -> None:
    x = torch.zeros(8)
    assert overlap(x[one], x[other]) is shared


def test_overlap_of_other_types_is_taken_to_be_one() -> None:
    x = torch.zeros(8)
    assert overlap(x, x.view(torch.int16)[4:])


def test_alignment_is_of_the_address() -> None:
    x = torch.zeros(64)
    assert [alignment(x[n:]) for n in (0, 1, 2, 4)] == [16, 4, 8, 16]


def test_structure_of_whole_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    assert structure(torch.arange(3, 30, 3)) == {"rule": "arange", "start": 3, "step": 3}
    assert structure(torch.randperm(50, generator=generator)) == {"rule": "randperm"}
    labels = torch.randint(0, 100, (200,), generator=generator)
    labels[::10] = -100
    found = structure(labels)
    assert found is not None and found["sentinel"] == -100 and found["low"] >= 0 and found["share"] == 0.1
    assert structure(torch.tensor([0, 5, 9, 30])) is None, "lengths, offsets"
    assert structure(torch.sort(labels).values) is None and structure(torch.zeros(200, dtype=torch.bool)) is None
    assert structure(torch.randint(0, 3, (DATA * 4,), generator=generator)) is None, "a table or a mask"


def test_structured_numbers_are_drawn_like_those_seen(tmp_path: Path) -> None:
    labels = torch.randint(0, 100, (2000,), generator=torch.Generator().manual_seed(0))
    labels[::10] = -100
    form = describe(labels, structure(labels), tmp_path, "labels")
    drawn = draw(form, torch.Generator().manual_seed(1), tmp_path)
    assert 100 < int((drawn == -100).sum()) < 300 and int(drawn[drawn >= 0].max()) < 100
    assert int(drawn[drawn != -100].min()) >= 0
    positions = torch.arange(5, 45, 2)
    form = describe(positions, structure(positions), tmp_path, "positions")
    assert torch.equal(draw(form, torch.Generator().manual_seed(1), tmp_path), positions)


def test_values_are_not_kept_without_a_folder() -> None:
    assert describe(torch.tensor([3, 1, 4, 1, 5]), None, None, "x")["rule"] == "kept"

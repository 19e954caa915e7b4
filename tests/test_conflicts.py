"""Programs that touch what others store are seen; in the concurrent memory model none sees the stores of others."""

from __future__ import annotations

import numpy as np
import pytest

from fitness.interpreter.conflicts import ConcurrentMemory, Conflicts

BASE = 1 << 40


def addresses(*offsets: int) -> np.ndarray:
    return np.array(offsets, np.uint64) + np.uint64(BASE)


def found(*steps: tuple[str, list[int]], size: int = 4) -> bool:
    """Whether a conflict is found.  steps: ("load" | "store", offsets), or ("program" | "launch", [])."""
    conflicts = Conflicts(BASE, BASE + 4096)
    conflicts.begin_launch()
    conflicts.begin_program()
    for what, offsets in steps:
        if what == "program":
            conflicts.begin_program()
        elif what == "launch":
            conflicts.begin_launch()
            conflicts.begin_program()
        else:
            conflicts.access(what, addresses(*offsets), None, size)
    return conflicts.found


NEXT = ("program", [])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("load", [0, 4]), ("store", [8]), NEXT, ("load", [0, 4]), ("store", [12])], False),
        ([("store", [8]), ("load", [8]), ("store", [8])], False),  # its own
        ([("store", [8]), NEXT, ("load", [8])], True),
        ([("load", [8]), NEXT, ("store", [8])], True),
        ([("store", [8]), NEXT, ("store", [8])], True),
        ([("load", [8]), NEXT, ("load", [8]), ("store", [8])], True),  # the first one loaded it too
        ([("load", [8]), NEXT, ("load", [8]), NEXT, ("load", [8]), NEXT, ("store", [8])], True),
        ([("store", [8]), ("launch", []), ("load", [8]), NEXT, ("load", [8])], False),  # launches are in order
        ([("store", []), NEXT, ("load", [8])], False),
    ],
)
def test_what_is_a_conflict(steps: list[tuple[str, list[int]]], expected: bool) -> None:
    assert found(*steps) is expected


@pytest.mark.parametrize(
    ("size", "first", "second", "expected"),
    [
        (8, 0, 8, False),
        (8, 0, 4, True),
        (4, 0, 3, True),  # unaligned
        (2, 0, 4, False),
        (1, 0, 1, True),  # closer than is told apart: rather seen than not
    ],
)
def test_all_bytes_of_an_element_count(size: int, first: int, second: int, expected: bool) -> None:
    assert found(("store", [first]), NEXT, ("load", [second]), size=size) is expected


def test_the_last_byte_of_the_memory_can_be_watched() -> None:
    assert not found(("store", [4095]), size=1)
    assert not found(("store", [4088]), size=8)


def test_masked_elements_do_not_count() -> None:
    conflicts = Conflicts(BASE, BASE + 4096)
    conflicts.begin_launch()
    for program in range(2):
        conflicts.begin_program()
        conflicts.access("store", addresses(0, 4), np.array([program == 0, program == 1]), 4)
    assert not conflicts.found
    conflicts.access("load", addresses(0, 4), np.array([True, False]), 4)
    assert conflicts.found


def test_what_was_settled_before_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitness.interpreter.conflicts.PENDING", 0)  # one access after the other
    assert found(("load", [8]), NEXT, ("load", [8]), NEXT, ("store", [8]))
    assert found(("load", [8]), NEXT, ("load", [8]), ("load", [8]), ("store", [8]))
    assert not found(("load", [8]), ("load", [8]), ("store", [8]))


def test_nothing_is_watched_after_giving_up() -> None:
    conflicts = Conflicts(BASE, BASE + 4096)
    conflicts.begin_launch()
    conflicts.access("atomic", np.zeros(1, np.uint64), None, 4)
    conflicts.access("store", addresses(0), None, 4)
    assert conflicts.found and not conflicts._log


# --- all programs at once -----------------------------------------------------------------------------------------

FIRST = 1 << 40


def run(*programs, before=(0, 0, 0, 0), launches=1) -> list[int]:
    """The memory (int32) after programs that are functions of load(i) and store(i, value)."""
    values = np.array(before, np.int32)
    watch = ConcurrentMemory(values.view(np.uint8), FIRST)

    def load(i):
        watch.access("load", np.array([FIRST + 4 * i], np.uint64), None, 4)
        return int(values[i])

    def store(i, value):
        at = np.array([FIRST, FIRST + 4 * i], np.uint64)
        watch.access("store", at, np.array([False, True]), 4)  # the first one is masked
        values[i] = value

    for _ in range(launches):
        watch.begin_launch()
        for program in programs:
            watch.begin_program()
            program(load, store)
        watch.end_launch()
    return values.tolist()


def add(amount):
    return lambda load, store: store(1, load(1) + amount)


def test_of_two_that_add_to_the_same_element_one_is_lost():
    assert run(add(1), add(10), before=(5, 5, 5, 5)) == [5, 15, 5, 5]


def test_a_program_sees_its_own_stores_and_launches_are_in_order():
    def twice(load, store):
        store(2, load(2) + 1)
        store(2, load(2) + 1)

    assert run(twice, lambda load, store: store(3, load(2)), launches=2) == [0, 0, 4, 2]


def test_what_is_stored_back_unchanged_is_what_was_there_before():
    assert run(lambda load, store: store(0, 7), lambda load, store: store(0, load(0)), before=(1, 2, 3, 4))[0] == 1


def test_equal_stores_do_no_harm():
    assert run(*[lambda load, store: store(0, 7)] * 3) == [7, 0, 0, 0]

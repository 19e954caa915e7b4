"""Programs that see nothing of each other."""

from __future__ import annotations

import numpy as np

from fitness.interpreter.concurrent_memory import ConcurrentMemory

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

"""Which memory is valid when some programs of a launch are executed."""

from __future__ import annotations

import numpy as np
import pytest

from fitness.frontend.memory import Layout
from fitness.frontend.plan import Buffer, LaunchPlan, TensorRef
from fitness.interpreter.validity import Abandoned, Validity

X, Y, Z = (TensorRef(b, "float32", (8,), (1,)) for b in range(3))
PLAN = LaunchPlan((Buffer(32, input=0), Buffer(32), Buffer(32)), (X,), (Y,), "tensor", ())
BASE = 1 << 20


class Memory:
    """A Validity, and elements of its buffers as addresses."""

    def __init__(self) -> None:
        self.layout = Layout(PLAN)
        self.validity = Validity(self.layout, BASE)

    def launch(self, *programs: list[tuple[str, int, int]], writes: set[int], everything: bool = False) -> list[bool]:
        """Which programs were abandoned; an access is (kind, buffer, element)."""
        found = []
        self.validity.expect(writes, everything)
        self.validity.begin_launch()
        for number, accesses in enumerate(programs):
            self.validity.number = number
            self.validity.begin_program()
            try:
                for kind, buffer, element in accesses:
                    address = np.array([BASE + self.layout.offsets[buffer] + 4 * element], np.uint64)
                    self.validity.access(kind, address, None, 4)
                found.append(False)
            except Abandoned:
                self.validity.abandon()
                found.append(True)
        self.validity.end_launch()
        return found


@pytest.fixture
def memory() -> Memory:
    return Memory()


def test_inputs_can_be_loaded_and_memory_of_the_plan_only_after_a_store(memory: Memory) -> None:
    programs = [("load", 0, 3)], [("load", 1, 3)], [("store", 1, 3), ("load", 1, 3)], [("load", 1, 4)]
    assert memory.launch(*programs, writes={1}) == [False, True, False, True]
    assert [m.launch for m in memory.validity.missing] == [0, 0]


def test_what_an_executed_program_stored_can_be_loaded_by_a_later_launch(memory: Memory) -> None:
    memory.launch([("store", 1, 3)], writes={1})
    assert memory.launch([("load", 1, 3)], [("load", 1, 4)], writes={2}) == [False, True]
    assert [(s.launch, s.number) for s in memory.validity.programs] == [(0, 0), (1, 0)]


def test_what_a_partial_launch_writes_to_is_forgotten_but_for_what_was_stored(memory: Memory) -> None:
    memory.validity.write(Y)
    assert memory.launch([("load", 1, 5)], writes=set()) == [False]
    memory.launch([("store", 1, 0)], writes={1})
    assert memory.launch([("load", 1, 0)], [("load", 1, 5)], writes=set()) == [False, True]


def test_a_launch_of_which_all_programs_are_executed_forgets_nothing(memory: Memory) -> None:
    memory.validity.write(Y)
    memory.launch([("store", 1, 0)], writes={1}, everything=True)
    assert memory.launch([("load", 1, 0)], [("load", 1, 5)], writes=set()) == [False, False]


def test_what_an_abandoned_program_stored_is_not_kept(memory: Memory) -> None:
    assert memory.launch([("store", 1, 0), ("load", 2, 0)], writes={1}, everything=True) == [True]
    assert memory.launch([("load", 1, 0)], writes=set()) == [True]
    assert not [s for s in memory.validity.programs if s.elements]


def test_what_atomics_leave_is_valid_only_if_all_programs_are_executed(memory: Memory) -> None:
    memory.validity.write(Y)
    memory.launch([("atomic", 1, 2)], writes={1})
    assert memory.launch([("load", 1, 2)], writes=set()) == [True]
    memory.validity.write(Y)
    memory.launch([("atomic", 1, 2)], writes={1}, everything=True)
    assert memory.launch([("load", 1, 2)], writes=set()) == [False]


def test_a_copy_is_as_valid_as_its_source(memory: Memory) -> None:
    memory.validity.write(Z, [X])
    assert memory.launch([("load", 2, 7)], writes=set()) == [False]
    memory.validity.write(Y, [Y])
    assert memory.launch([("load", 1, 0)], writes=set()) == [True]


def test_a_fill_of_a_part_of_a_buffer_leaves_it_unknown(memory: Memory) -> None:
    memory.validity.write(TensorRef(1, "float32", (4,), (1,)))
    assert memory.launch([("load", 1, 0)], writes=set()) == [True]

"""A program on the CPU, with functions for kernels: what is looked at while it is timed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fitness.certify.sanitize_process import SeparateBuffers
from fitness.frontend.memory import assign
from fitness.frontend.plan import Buffer, Config, Launch, LaunchPlan, TensorRef
from fitness.gpu.buffers import DeviceMemory
from fitness.gpu.fingerprint import fingerprint
from fitness.gpu.program import Program, SwappedInputs
from tests.bench_on_cpu import at, without_graphs

COPIES = 3
X, Y = TensorRef(0, "float32", (4,), (1,)), TensorRef(1, "float32", (4,), (1,))


@pytest.fixture
def program(monkeypatch) -> Program:
    """y = 2 x, which has its results remembered."""
    without_graphs(monkeypatch)
    several = made(COPIES)
    several.integrity.remember_inputs()
    several.replay()
    several.integrity.remember_outputs()
    return several


def arguments(copy: int) -> list[torch.Tensor]:
    return [torch.arange(4.0) + 10 * copy]


def made(copies: int, memory: type[DeviceMemory] = DeviceMemory) -> Program:
    plan = LaunchPlan(
        (Buffer(16, 0), Buffer(16)), (X,), (Y,), "tensor", (Launch("k", (Config((1, 1, 1), {}, {}),), 3),)
    )
    count = iter(range(10**6))

    def launch(*_: object) -> None:
        copy = next(count) % copies
        program.memory.window(Y, copy).copy_(program.memory.window(X, copy) * 2)

    kernel = SimpleNamespace(scratch=lambda grid: [], launch=launch, sets_priorities=False)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=copies, memory=memory)  # type: ignore[list-item]
    for copy in range(copies):
        program.write_inputs(arguments(copy), copy)
    if memory is DeviceMemory:  # others are executed without a graph, and never reset
        program.build()
    return program


def test_a_program_is_executed_on_buffers_that_lie_apart(monkeypatch):
    without_graphs(monkeypatch)
    program = made(1, SeparateBuffers)
    program.execute()
    assert program.outputs()[0].tolist() == [0, 2, 4, 6]


def test_arguments_without_others_are_those_of_all_copies(monkeypatch):
    without_graphs(monkeypatch)
    program = made(COPIES)
    program.write_all([arguments(3)])
    program.replay()
    assert all(program.outputs(copy)[0].tolist() == [60, 62, 64, 66] for copy in range(COPIES))
    program.write_all(arguments(copy) for copy in range(COPIES))
    program.replay()
    assert program.outputs(1)[0].tolist() == [20, 22, 24, 26]


def replayed(program: Program, meddle: Callable[[], object] = lambda: None) -> None:
    program.reset()
    program.replay()
    meddle()
    program.integrity.check_outputs()
    program.integrity.check_inputs_and_guards()


def x_of(program: Program, copy: int) -> torch.Tensor:
    return program.memory.window(X, copy)


def test_each_copy_has_inputs_and_results_of_its_own(program):
    for _ in range(3):
        replayed(program)
    assert [program.outputs(copy)[0].tolist() for copy in range(COPIES)] == [
        (2 * arguments(copy)[0]).tolist() for copy in range(COPIES)
    ]
    assert [x_of(program, copy).tolist() for copy in range(COPIES)] == [
        arguments(copy)[0].tolist() for copy in range(COPIES)
    ]
    assert not program.integrity.outputs_differed()
    assert program.integrity.changed_inputs() == program.integrity.broken_guards() == []


@pytest.mark.parametrize("copy", range(COPIES))
def test_an_output_that_was_wrong_once_is_known(program, copy):
    replayed(program, lambda: program.outputs(copy)[0].copy_(program.outputs(copy)[0].flip(0)))
    replayed(program)
    assert program.integrity.outputs_differed()
    assert program.integrity.changed_inputs() == program.integrity.broken_guards() == []


def test_an_argument_that_was_put_back_is_known(program):
    x = x_of(program, 1)
    replayed(program, lambda: x.neg_())
    replayed(program, lambda: x.neg_())
    assert program.integrity.changed_inputs() == [0]
    assert program.integrity.broken_guards() == []


def test_a_guard_zone_that_was_put_back_is_known(program):
    zone = program.memory._whole[2, 100:200]
    replayed(program, lambda: zone.bitwise_xor_(1))
    replayed(program, lambda: zone.bitwise_xor_(1))
    assert program.integrity.broken_guards() == ["bytes around buffers were overwritten, and put back later"]
    assert program.integrity.changed_inputs() == []


def test_nothing_is_left_by_a_reset(program):
    replayed(program)
    program.reset()
    assert all(program.outputs(copy)[0].isnan().all() for copy in range(COPIES))


@pytest.mark.parametrize("strides", [(8, 1), (0, 1), (1, 3)], ids=["padded", "expanded", "transposed"])
def test_written_arguments_are_restored_on_every_copy(monkeypatch, strides):
    without_graphs(monkeypatch)
    ref = TensorRef(0, "float32", (3, 5), strides)
    plan = LaunchPlan((Buffer(ref.last_byte(), 0),), (ref,), (), "none", (Launch("k", (Config((1, 1, 1), {}, {}),)),))
    kernel = SimpleNamespace(scratch=lambda grid: [], launch=lambda *_: None, sets_priorities=False)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=2, written=[0])  # type: ignore[list-item]
    given = [torch.empty_strided((3, 5), strides) for _ in range(2)]
    for copy, x in enumerate(given):
        assign(x, torch.arange(5.0).expand(3, 5) + copy)
        program.write_inputs([x], copy)
    program.build()
    for copy in range(2):
        assign(program.outputs(copy)[0], torch.full((3, 5), -1.0))
    program.reset()
    assert all(torch.equal(program.outputs(copy)[0], given[copy]) for copy in range(2))
    before = program.fingerprints_on([given[0]])
    assert torch.equal(program.fingerprints_on([given[0]]), before)
    assert not torch.equal(program.fingerprints_on([given[1]]), before)


def swap(copy: int, right: float) -> SwappedInputs:
    """Its argument becomes 7, 8, 9, 10 and its output should be as many times that as `right` says."""
    changed = torch.arange(7.0, 11.0)
    outputs = torch.zeros((1, 1), dtype=torch.int64)
    fingerprint(right * changed[None], outputs[0])
    return SwappedInputs(copy, 0, [changed], arguments(copy), outputs)


def executed_late(program: Program, given: SwappedInputs) -> bool:
    """Whether its output was right."""
    program.reset()
    program.execute_swapped([given])
    return not program.integrity.swapped_outputs_differed()


@pytest.mark.parametrize("copy", range(COPIES))
def test_a_copy_may_be_given_its_arguments_when_its_turn_comes(program, copy):
    assert executed_late(program, swap(copy, 2.0))
    assert program.integrity.changed_inputs() == program.integrity.broken_guards() == []
    replayed(program)
    assert not program.integrity.outputs_differed()
    assert not executed_late(program, swap(copy, 3.0))
    program.integrity.remember_inputs()
    assert not program.integrity.swapped_outputs_differed()


def test_several_copies_may(program):
    right, wrong = [swap(copy, 2.0) for copy in range(COPIES)], swap(1, 3.0)
    program.reset()
    program.execute_swapped(right)
    assert not program.integrity.swapped_outputs_differed()
    program.execute_swapped([right[0], wrong, right[2]])
    assert program.integrity.swapped_outputs_differed()


@pytest.mark.parametrize("does_all", [0, COPIES - 1])
def test_outputs_that_another_launch_makes_are_not_those_of_late_arguments(program, does_all):
    def work(what, number, copy, stream):
        for other in range(COPIES) if copy == does_all else ():
            program.memory.window(Y, other).copy_(program.memory.window(X, other) * 2)

    program._step = work
    replayed(program)
    assert not program.integrity.outputs_differed()
    assert executed_late(program, swap(does_all, 2.0))
    assert not executed_late(program, swap(1, 2.0))


def test_outputs_of_late_arguments_are_kept_where_they_may_differ(program):
    given = dataclasses.replace(swap(1, 2.0), right=None)
    assert executed_late(program, given)
    ((output,),) = program.integrity.kept_swapped(given)
    assert output.tolist() == [14, 16, 18, 20] and not program.integrity.kept_swapped(swap(1, 2.0))
    program.integrity.drop_outputs(program.integrity.times_kept)
    assert program.integrity.times_kept == (0, 1)
    program.integrity.drop_outputs()
    assert not program.integrity.kept_swapped(given)
    assert executed_late(program, given)
    program.integrity.remember_inputs()
    assert not program.integrity.kept_swapped(given)


def test_what_is_left_beside_a_copy_for_a_later_one_is_seen_meanwhile(program):
    """Though it is cleaned up by the end."""
    zone = program.memory._whole[0, 100:200]
    step = program._step

    def meddling(what, number, copy, stream):
        step(what, number, copy, stream)
        if copy != 1:
            zone.bitwise_xor_(1)

    program._step = meddling
    assert executed_late(program, swap(1, 2.0))
    assert program.integrity.broken_guards() == ["bytes around buffers were overwritten, and put back later"]


@pytest.mark.parametrize("does_all", [None, 0, COPIES - 1])
def test_written_arguments_may_come_late(monkeypatch, does_all):
    without_graphs(monkeypatch)
    plan = LaunchPlan((Buffer(16, 0),), (X,), (), "none", (Launch("k", (Config((1, 1, 1), {}, {}),)),))
    copies = itertools.cycle(range(COPIES))

    def launch(*_: object) -> None:
        copy = next(copies)
        mine = [copy] if does_all is None else range(COPIES) if copy == does_all else []
        for written in mine:
            program.memory.window(X, written).mul_(2)

    kernel = SimpleNamespace(scratch=lambda grid: [], launch=launch, sets_priorities=False)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=COPIES, written=[0])  # type: ignore[list-item]
    program.write_all(arguments(copy) for copy in range(COPIES))
    program.build()
    program.integrity.remember_inputs()
    assert executed_late(program, swap(1, 2.0)) is (does_all is None)
    program.reset()
    assert program.outputs(1)[0].tolist() == arguments(1)[0].tolist()


def test_each_copy_has_scratch_memory_of_its_own(monkeypatch):
    without_graphs(monkeypatch)
    alignment, nbytes = 256, 300
    given: list[int] = []
    begins: list[set[int]] = []
    plan = LaunchPlan((Buffer(16, 0),), (X,), (), "none", (Launch("k", (Config((1, 1, 1), {}, {}),)),))

    def launch(grid: object, args: object, scratch: list[int], stream: object) -> None:
        assert scratch[1] == 0
        given.append(scratch[0])
        begins.append(set(at(scratch[0], nbytes, np.uint8)))
        at(scratch[0], nbytes, np.uint8)[:] = 1

    asked = [SimpleNamespace(nbytes=n, alignment=alignment) for n in (nbytes, 0)]
    kernel = SimpleNamespace(scratch=lambda grid: asked, launch=launch, sets_priorities=True)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=COPIES)  # type: ignore[list-item]
    program.write_all(arguments(copy) for copy in range(COPIES))
    program.build()
    assert len({*given}) == COPIES and all(address % alignment == 0 for address in given)
    program.reset()
    program.replay()
    assert begins[COPIES:] == COPIES * [{0xFF}]

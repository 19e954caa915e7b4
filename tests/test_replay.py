"""A program on the CPU, with functions for kernels: what is looked at while it is timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fitness.gpu.replay import Program
from fitness.memory import assign
from fitness.plan import Buffer, Config, Launch, LaunchPlan, TensorRef
from tests.bench_on_cpu import at, without_graphs

COPIES = 3
X, Y = TensorRef(0, "float32", (4,), (1,)), TensorRef(1, "float32", (4,), (1,))


@pytest.fixture
def program(monkeypatch) -> Program:
    """y = 2 x, which has its results remembered."""
    without_graphs(monkeypatch)
    several = made(COPIES)
    several.remember_inputs()
    several.replay()
    several.remember_outputs()
    return several


def arguments(copy: int) -> list[torch.Tensor]:
    return [torch.arange(4.0) + 10 * copy]


def made(copies: int) -> Program:
    plan = LaunchPlan(
        (Buffer(16, 0), Buffer(16)), (X,), (Y,), "tensor", (Launch("k", (Config((1, 1, 1), {}, {}),), 3),)
    )
    count = iter(range(10**6))

    def launch(*_: object) -> None:
        copy = next(count) % copies
        program.memory.window(Y, copy).copy_(program.memory.window(X, copy) * 2)

    kernel = SimpleNamespace(scratch=lambda grid: [], launch=launch, sets_priorities=False)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=copies)  # type: ignore[list-item]
    for copy in range(copies):
        program.write_inputs(arguments(copy), copy)
    program.build()
    return program


def replayed(program: Program, meddle: Callable[[], object] = lambda: None) -> None:
    program.reset()
    program.replay()
    meddle()
    program.look()
    program.look_around()


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
    assert not program.differing_outputs()
    assert program.differing_inputs() == program.broken_guards() == []


@pytest.mark.parametrize("copy", range(COPIES))
def test_an_output_that_was_wrong_once_is_known(program, copy):
    replayed(program, lambda: program.outputs(copy)[0].copy_(program.outputs(copy)[0].flip(0)))
    replayed(program)
    assert program.differing_outputs()
    assert program.differing_inputs() == program.broken_guards() == []


def test_an_argument_that_was_put_back_is_known(program):
    x = x_of(program, 1)
    replayed(program, lambda: x.neg_())
    replayed(program, lambda: x.neg_())
    assert program.differing_inputs() == [0]
    assert program.broken_guards() == []


def test_a_guard_zone_that_was_put_back_is_known(program):
    zone = program.memory._whole[2, 100:200]
    replayed(program, lambda: zone.bitwise_xor_(1))
    replayed(program, lambda: zone.bitwise_xor_(1))
    assert program.broken_guards() == ["bytes around buffers were overwritten, and put back later"]
    assert program.differing_inputs() == []


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


def test_an_output_that_a_launch_leaves_in_a_later_copy_is_known(program):
    assert not program.reaches_other_copies()
    step = program._step

    def further(what, number, copy, stream):
        step(what, number, copy, stream)
        program.outputs(2)[0][3] = 0.0

    program._step = further
    assert program.reaches_other_copies()


def test_an_argument_that_a_launch_writes_to_for_a_later_copy_is_known(monkeypatch):
    without_graphs(monkeypatch)
    plan = LaunchPlan((Buffer(16, 0),), (X,), (), "none", (Launch("k", (Config((1, 1, 1), {}, {}),)),))
    copies, reaches = itertools.cycle(range(COPIES)), 0

    def launch(*_: object) -> None:
        copy = next(copies)
        for written in range(copy, min(copy + reaches, COPIES - 1) + 1):
            program.memory.window(X, written).neg_()

    kernel = SimpleNamespace(scratch=lambda grid: [], launch=launch, sets_priorities=False)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=COPIES, written=[0])  # type: ignore[list-item]
    for copy in range(COPIES):
        program.write_inputs(arguments(copy), copy)
    program.build()
    assert not program.reaches_other_copies()
    copies, reaches = itertools.cycle(range(COPIES)), 1
    assert program.reaches_other_copies()


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
        if reaches:
            at(given[COPIES - 1], 1, np.uint8)[0] = 1

    asked = [SimpleNamespace(nbytes=n, alignment=alignment) for n in (nbytes, 0)]
    kernel = SimpleNamespace(scratch=lambda grid: asked, launch=launch, sets_priorities=True)
    program = Program(plan, [0], [kernel], device=torch.device("cpu"), copies=COPIES)  # type: ignore[list-item]
    reaches = False
    for copy in range(COPIES):
        program.write_inputs(arguments(copy), copy)
    program.build()
    assert len({*given}) == COPIES and all(address % alignment == 0 for address in given)
    program.remember_inputs()
    assert not program.reaches_other_copies()
    assert begins[COPIES:] == COPIES * [{0xFF}]
    reaches = True
    assert program.reaches_other_copies()

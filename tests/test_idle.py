"""Kernels that do not do their work: made from those of a seed."""

from __future__ import annotations

import ast

from fitness.frontend.plan import Buffer, Config, Copy, Fill, Launch, LaunchPlan, TensorRef
from fitness.validation.idle import COPY, NOTHING, ZEROS, Idle, idle_kernels

SOURCE = """import torch
import triton
import triton.language as tl
from triton.language import store as put

@triton.jit
def save(p, value, mask):
    tl.store(p, value, mask=mask)

@triton.jit
def first(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    save(y + i, tl.load(x + i), i < n)
    put(value=2 * i, pointer=x + i)
    tl.atomic_add(y, tl.sum(i), mask=n > 0)
    ticket = tl.atomic_add(x, 1)

@triton.jit
def second(x, y):
    save(y, tl.load(x), True)

@triton.jit
def third(x, d):
    d.store([0, 0], x)
    x.store(x + 1, mask=x > 0)

@triton.jit
def reads(x):
    tl.load(x)

def entry(x):
    first[(1,)](x, x)
"""


def ref(buffer: int, shape: tuple[int, ...] = (4, 8), dtype: str = "float32") -> TensorRef:
    strides = tuple(8**i for i in reversed(range(len(shape))))
    return TensorRef(buffer, dtype, shape, strides)


def launch(kernel: str, **args: object) -> Launch:
    return Launch(kernel, (Config((1, 1, 1), args, {}),))  # type: ignore[arg-type]


def plan(*steps: object, inputs: int = 1, buffers: int = 4) -> LaunchPlan:
    held = tuple(Buffer(4096, i if i < inputs else None) for i in range(buffers))
    whole = tuple(TensorRef(i, "float32", (1024,), (1,)) for i in range(inputs))
    return LaunchPlan(held, whole, (ref(inputs),), "tensor", steps)  # type: ignore[arg-type]


def made(*steps: object, written: tuple[int, ...] = (), **form: int) -> dict[tuple[str, str], Idle]:
    found = list(idle_kernels(SOURCE, {"case": plan(*steps, **form)}, written))
    assert len(found) == len({(idle.kernel, idle.kind) for idle in found})
    return {(idle.kernel, idle.kind): idle for idle in found}


def body(source: str, name: str) -> list[str]:
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    return [ast.unparse(statement) for statement in function.body]


def test_each_kernel_that_is_launched_does_nothing_in_one_variant() -> None:
    found = made(launch("first", x=ref(0), y=ref(1)), launch("second", x=ref(1), y=ref(2)))
    assert [kernel for kernel, kind in found if kind == NOTHING] == ["first", "second"]
    assert body(found["first", NOTHING].source, "first") == ["pass"]
    assert body(found["first", NOTHING].source, "second") == body(SOURCE, "second")
    assert found["first", NOTHING].plans == {"case": plan(*found["first", NOTHING].plans["case"].steps)}


def test_all_stores_are_of_zeros_also_in_functions_that_a_kernel_calls() -> None:
    source = made(launch("first", x=ref(0), y=ref(1)))["first", ZEROS].source
    assert body(source, "first") == [
        "i = tl.arange(0, BLOCK)",
        "save_of_zeros(y + i, tl.load(x + i), i < n)",
        "put(value=0.0, pointer=x + i)",
        "tl.store(y, 0.0, mask=n > 0)",
        "ticket = tl.atomic_add(x, 1)",  # its result decides
    ]
    assert body(source, "save_of_zeros") == ["tl.store(p, 0.0, mask=mask)"]
    for unchanged in ("save", "second"):  # another kernel's
        assert body(source, unchanged) == body(SOURCE, unchanged)


def test_descriptors_get_a_block_and_what_stores_nothing_has_no_such_variant() -> None:
    found = made(launch("third", x=ref(0), d=ref(1)), launch("reads", x=ref(0)))
    assert body(found["third", ZEROS].source, "third") == ["d.store([0, 0], x * 0)", "x.store(0.0, mask=x > 0)"]
    assert ("reads", ZEROS) not in found and ("reads", NOTHING) in found


def test_what_a_launch_writes_is_a_copy_of_an_argument_of_the_same_form() -> None:
    first, second = launch("first", x=ref(0), y=ref(1)), launch("second", x=ref(1), y=ref(2), z=ref(0))
    found = made(Fill(ref(1), 0), first, second)
    copying = found["first", COPY]
    assert copying.plans["case"].steps == (Fill(ref(1), 0), first, Copy(ref(1), ref(0)), second)
    assert copying.source == found["first", NOTHING].source
    # Buffer 1 was written before: it is not what the second one writes.
    assert found["second", COPY].plans["case"].steps[-1] == Copy(ref(2), ref(1))


def test_arguments_that_no_kernel_may_write_are_copied_and_not_overwritten() -> None:
    assert ("first", COPY) not in made(launch("first", x=ref(0), y=ref(1)), inputs=2)
    found = made(launch("first", x=ref(0), y=ref(1)), inputs=2, written=(1,))
    assert found["first", COPY].plans["case"].steps[1:] == (Copy(ref(1), ref(0)),)


def test_no_copy_between_other_forms() -> None:
    for other in (ref(1, (4, 4)), ref(1, dtype="int32"), TensorRef(1, "float32", (4, 8), (0, 1))):
        assert ("first", COPY) not in made(launch("first", x=ref(0), y=other))

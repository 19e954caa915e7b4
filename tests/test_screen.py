"""Resources, occupancy and the hash of a plan: pure arithmetic on builds and plans."""

from __future__ import annotations

import dataclasses

import pytest

from evo.core.records import Build
from fitness.frontend.plan import Buffer, Config, Copy, Fill, Launch, LaunchPlan, TensorRef
from fitness.frontend.screen import cooperative_problem, occupancy, out_of_resources, plan_hash
from fitness.frontend.target import get_target

TARGET = get_target("sm_90")


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "programs"),
    [
        (32, 0, 4, 16),  # 64 warp slots
        (32, 0, 1, 32),  # 32 program slots
        (128, 0, 4, 4),  # 128*32 = 4096 registers a warp: 16 warps
        (129, 0, 4, 3),  # rounded up to 136*32: 15 warps, of which the schedulers take multiples of 4
        (255, 0, 8, 1),
        (16, 232448, 4, 1),  # the largest program
        (16, 100000, 4, 2),
        (255, 0, 16, 0),
    ],
)
def test_occupancy(registers, shared_bytes, num_warps, programs):
    assert occupancy(registers, shared_bytes, num_warps, TARGET) == (programs, programs * num_warps / 64)


BUILD = Build("k", registers=40, spill_bytes=0, shared_bytes=1024, num_warps=4, occupancy=0.5, sass_hash="a")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({}, None),
        ({"shared_bytes": 232448}, None),
        ({"shared_bytes": 232449}, "232449 bytes of shared memory"),
        ({"num_warps": 64}, "2048 threads"),
        ({"num_warps": 16, "registers": 200}, "102400 registers"),
    ],
)
def test_out_of_resources(change, part):
    build = dataclasses.replace(BUILD, **change)
    for form in (build, dataclasses.asdict(build)):
        message = out_of_resources(form, TARGET)
        assert message is None if part is None else message is not None and part in message


def make_plan(**change) -> LaunchPlan:
    """x -> kernel -> scratch -> kernel -> out, with names, numbering and values that `change` replaces."""
    c = {"kernel": "k", "names": ("x", "o", "n"), "swap": False, "n": 8, "grid": (4, 1, 1), "offset": 0, "fill": 0.0,
         "nbytes": 64, "block": 128, "shape": (8,), **change}  # fmt: skip
    out, scratch = (2, 1) if c["swap"] else (1, 2)
    x, o, s = (
        TensorRef(b, "float32", c["shape"], (1,), offset) for b, offset in ((0, c["offset"]), (out, 0), (scratch, 0))
    )
    buffers = (Buffer(64, input=0), Buffer(c["nbytes"]), Buffer(c["nbytes"]))
    name_x, name_o, name_n = c["names"]
    launches = [
        Launch(c["kernel"], (Config(c["grid"], {name_x: a, name_o: b, name_n: c["n"], "BLOCK": c["block"]}, {}),), 3)
        for a, b in ((x, s), (s, o))
    ]
    steps = (Fill(s, c["fill"]), launches[0], launches[1], Copy(o, o))
    inputs = (TensorRef(0, "float32", (16,), (1,)),)
    return LaunchPlan(buffers, inputs, (dataclasses.replace(o, shape=(8,)),), "tensor", steps)


def hash_of(plan: LaunchPlan, **build) -> str:
    names = list(plan.launches[0].configs[0].args)[:3]
    one = {**dataclasses.asdict(BUILD), "parameters": names, **build}
    return plan_hash({"case": (plan, [[one], [one]])})


def test_names_numbering_constexprs_and_host_shapes_do_not_count():
    expected = hash_of(make_plan())
    same = (
        {"kernel": "other", "names": ("a", "b", "c")}, {"swap": True}, {"block": 256}, {"nbytes": 128},
    )  # fmt: skip
    for change in same:
        assert hash_of(make_plan(**change)) == expected, change
    assert hash_of(make_plan(), compile_s=9.0, kernel="other") == expected


def test_work_counts():
    plans = [{}, {"n": 7}, {"grid": (5, 1, 1)}, {"offset": 4}, {"fill": 1.0}]
    hashes = [hash_of(make_plan(**change)) for change in plans]
    hashes += [hash_of(make_plan(), sass_hash="b"), hash_of(make_plan(), num_warps=8)]
    hashes += [plan_hash({"other case": (make_plan(), [[dataclasses.asdict(BUILD)]] * 2)})]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    ("grid", "warps", "ctas", "cooperative", "room"),
    [
        ((132, 12, 1), 4, 1, True, None),  # 12 programs of 40 registers a thread on a multiprocessor
        ((132, 4, 3), 4, 1, True, None),
        ((1585, 1, 1), 4, 1, True, 1584),
        ((1585, 1, 1), 4, 1, False, None),
        ((1585, 1, 1), 2, 1, True, None),
        ((792, 1, 1), 4, 2, True, None),
        ((793, 1, 1), 4, 2, True, 1584),
    ],
)
def test_all_programs_of_a_cooperative_launch_are_resident(grid, warps, ctas, cooperative, room):
    launch = {"num_ctas": ctas, "cooperative": cooperative}
    builds = [[{**dataclasses.asdict(BUILD), "num_warps": warps, "launch": launch}]] * 2
    found = cooperative_problem(make_plan(grid=grid), builds, TARGET)
    assert found is None if room is None else found is not None and f"holds {room} at once (12 on each of 132" in found

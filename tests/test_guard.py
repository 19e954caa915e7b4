"""A package's guard: the new code inside the verified domain, the original outside, wherever the original was held."""

from __future__ import annotations

import copy
import importlib
import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode

from evo.programs.guard import Domain, KernelProxy, Patch, PatchWarning, Switch, parts_of, replaced_function, returned
from tests.program_support import import_program, origin, write_program


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def add(x, y, scale=1.0, *, out=None):
    return "original"


CALL = {"result": None, "slots": None}


def domain_of(*calls: tuple[Any, ...], names: tuple[str, ...] = ("x", "y", "scale")) -> Domain:
    return Domain(names, {parts_of(call): CALL for call in calls}, (9, 0))


def guarded(*calls: tuple[Any, ...]) -> tuple[Any, Switch]:
    domain = domain_of(*calls)
    switch = Switch("program.add", lambda values, _: "new", domain)
    return replaced_function(add, switch, domain), switch


def ones(*shape: int, **how: Any) -> torch.Tensor:
    return torch.ones(*shape, **how)


def test_what_was_verified_runs_the_new_code_in_any_form_of_the_call(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0), (ones(2, 8), None, 1.0))
    x, y = ones(4, 8), ones(8)
    assert [function(x, y), function(x, y=y), function(x, y, 1.0), function(ones(2, 8), None)] == ["new"] * 4
    assert switch.new_runs == 4 and not switch.original_runs
    assert function.__name__ == "add"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda: (ones(4, 8, dtype=torch.float64), ones(8)), "x: dtype not verified"),
        (lambda: (ones(4, 8, 1), ones(8)), "x: rank not verified"),
        (lambda: (ones(4, 9), ones(8)), "x: shape not verified"),
        (lambda: (ones(8, 4).t(), ones(8)), "x: strides not verified"),
        (lambda: (ones(33)[1:].view(4, 8), ones(8)), "a tensor does not start at a multiple of 16 bytes"),
        (lambda: (ones(4, 8), ones(8), 2.0), "scale: value not verified"),
        (lambda: (ones(4, 8), ones(8), 1), "scale: value not verified"),
        (lambda: (ones(4, 8), None), "y: verified as a tensor only"),
        (lambda: (ones(2, 8), ones(8)), "these arguments were verified, but not together"),
        (lambda: (ones(4, 8, requires_grad=True), ones(8)), "autograd records the call"),
        (lambda: (torch.nn.Buffer(ones(4, 8)), Subclass(ones(8))), "a tensor is a subclass, such as a fake tensor"),
    ],
)
def test_outside_of_the_domain_the_original_runs_and_the_reason_is_counted(interpreted, change, reason):
    function, switch = guarded((ones(4, 8), ones(8), 1.0), (ones(2, 8), ones(2), 1.0))
    assert function(*change()) == "original"
    assert switch.original_runs == {reason: 1} and switch.new_runs == 0


class Subclass(torch.Tensor):
    pass


def test_tensors_that_share_memory_run_the_original(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    x = ones(4, 8)
    assert function(x, x[1]) == "original" and switch.original_runs == {"tensors share memory": 1}
    both = ones(5, 8)
    assert function(both[:4], both[4]) == "new", "parts of one storage that do not overlap"


def test_one_tensor_given_twice_was_verified_if_the_task_did(interpreted):
    x = ones(8)
    function, switch = guarded((x, x, 1.0))
    y = ones(8)
    assert function(y, y) == function(y, y[:]) == "new" and function(y, ones(8)) == "original"
    assert switch.original_runs == {"these arguments were verified, but not together": 1}


def test_tensors_without_strides_or_memory_run_the_original(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    assert function(ones(4, 8).to_sparse(), ones(8)) == "original"
    results: list[str] = []
    torch.func.vmap(lambda x: (results.append(function(x, ones(8))), x)[1])(ones(2, 4, 8))
    assert results == ["original"] and switch.original_runs == {"an argument cannot be compared": 2}


def test_lists_of_tensors_are_compared_by_their_parts(interpreted):
    function, _ = guarded(([ones(4), ones(4)], None, 1.0))
    assert function([ones(4), ones(4)], None) == "new"
    assert function([ones(4), ones(5)], None) == function((ones(4), ones(4)), None) == "original"
    shared = ones(6)
    assert function([shared[:4], shared[1:5]], None) == "original"


def test_plain_values_of_a_result_are_those_that_the_original_returned():
    structure = {"tuple": [{"tensor": 0}, {"value": 64}, {"dict": {"mean": {"tensor": 1}, "n": {"value": None}}}]}
    y, mean = ones(2), ones(1)
    found = returned(structure, (y, 128, {"mean": mean, "n": 3}))
    assert found[0] is y and found[1] == 64 and found[2]["mean"] is mean and found[2]["n"] is None
    assert returned(None, 3) == 3 and returned({"other": "Thing"}, 3) == 3
    for other in ((y, 128), y, [y, 128, {"mean": mean, "n": 3}], (3, 128, {"mean": mean, "n": 3})):
        with pytest.raises(TypeError, match="expected a result like"):
            returned(structure, other)


def test_an_argument_that_the_task_did_not_give_must_be_its_default(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    assert function(ones(4, 8), ones(8), out=None) == "new"
    assert function(ones(4, 8), ones(8), out=ones(1)) == "original"
    assert switch.original_runs == {"out: it is not its default": 1}


def test_a_call_that_does_not_fit_raises_the_error_of_the_original(interpreted):
    function, _ = guarded((ones(4, 8), ones(8), 1.0))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        function(ones(4, 8))


def test_gradients_that_are_off_and_deterministic_algorithms(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    with torch.no_grad():
        assert function(ones(4, 8, requires_grad=True), ones(8)) == "new"
    torch.use_deterministic_algorithms(True)
    try:
        assert function(ones(4, 8), ones(8)) == "original"
    finally:
        torch.use_deterministic_algorithms(False)
    assert switch.original_runs == {"deterministic algorithms are asked for": 1}


def test_fake_tensors_run_the_original(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    with FakeTensorMode():
        assert function(ones(4, 8), ones(8)) == "original"
    assert list(switch.original_runs) == ["a tensor is a subclass, such as a fake tensor"]


def test_host_memory_without_the_interpreter_runs_the_original(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    assert function(ones(4, 8), ones(8)) == "original"
    assert list(switch.original_runs) == ["the device is not one of the verified compute capability"]


def test_torch_compile_traces_the_original(interpreted):
    domain = domain_of((ones(4),), names=("x",))
    switch = Switch("program.double", lambda values, _: values[0] * 3, domain)
    function = replaced_function(lambda x: x * 2, switch, domain)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert compiled(ones(4)).tolist() == [2.0] * 4 and switch.new_runs == 0
    assert function(ones(4)).tolist() == [3.0] * 4


def test_an_error_of_the_new_code_names_the_way_back(interpreted):
    domain = domain_of((ones(4),), names=("x",))

    def broken(values, slots):
        raise ValueError("no such block")

    function = replaced_function(lambda x: x, Switch("program.same", broken, domain), domain)
    with pytest.raises(ValueError, match="no such block") as raised:
        function(ones(4))
    assert "in the place of program.same" in raised.value.__notes__[0]


def test_counts_are_right_with_threads(interpreted):
    function, switch = guarded((ones(4, 8), ones(8), 1.0))
    threads = [threading.Thread(target=lambda: [function(ones(4, 8), ones(8)) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert switch.new_runs == 200


# --- kernels ---------------------------------------------------------------------------------------------------------


def proxy_of(kernel: Any) -> tuple[KernelProxy, Switch, list[Any]]:
    ran: list[Any] = []
    names = ("x_ptr", "y_ptr", "n", "factor", "BLOCK", "grid")
    domain = Domain(names, {parts_of((ones(64), ones(64), 64, 2.0, 16, (4, 1, 1))): CALL}, (9, 0))
    switch = Switch("program.scale_kernel", lambda values, _: ran.append(values), domain)
    return KernelProxy(kernel, switch, domain), switch, ran


def test_a_kernel_is_launched_as_before_and_replaced_inside_the_domain(tmp_path, monkeypatch):
    kernel = import_program(write_program(tmp_path, "prog_proxy"), monkeypatch).scale_kernel
    proxy, switch, ran = proxy_of(kernel)
    x, y = torch.arange(64.0), torch.zeros(64)
    proxy[(4,)](x, y, 64, 2.0, BLOCK=16, num_warps=8)
    proxy[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, n=64, factor=2.0, BLOCK=16)
    proxy.run(x, y, 64, 2.0, 16, grid=4, warmup=False)
    assert [values[-1] for values in ran] == [(4, 1, 1)] * 3 and not y.any()

    for grid, arguments, options in [
        ((2,), (x, y, 64, 2.0), {"BLOCK": 16}),
        ((4,), (x, y, 64, 3.0), {"BLOCK": 16}),
        ((2,), (x, y, 64, 2.0), {"BLOCK": 32}),
        ((4,), (x, y, 63, 2.0), {"BLOCK": 16}),
    ]:
        y.zero_()
        proxy[grid](*arguments, **options)
        assert y.any(), "the original ran"
    assert len(ran) == 3
    assert switch.original_runs == {f"{name}: value not verified": 1 for name in ("grid", "factor", "BLOCK", "n")}
    assert proxy.arg_names == ["x_ptr", "y_ptr", "n", "factor", "BLOCK"] and proxy.fn is kernel.fn


def test_pytorchs_operators_take_a_replaced_kernel(tmp_path, monkeypatch):
    """`torch.library.triton_op` launches kernels by way of `wrap_triton`, which refuses what is no kernel."""
    kernel = import_program(write_program(tmp_path, "prog_wrapped"), monkeypatch).scale_kernel
    proxy, _, ran = proxy_of(kernel)
    assert type(proxy) is KernelProxy and isinstance(proxy, type(kernel))

    @torch.library.triton_op("evo_tests::scaled", mutates_args={})
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        torch.library.wrap_triton(proxy)[(4,)](x, y, x.numel(), 2.0, BLOCK=16)
        return y

    assert not scaled(ones(64)).any() and len(ran) == 1, "the new code ran, which does nothing here"
    x = ones(32).mul(3)
    assert scaled(x)[:32].any() and len(ran) == 1, "the original ran"
    assert type(copy.copy(proxy)) is KernelProxy


def test_what_a_tuner_chooses_is_taken_from_the_verified_call(tmp_path, monkeypatch):
    kernel = import_program(write_program(tmp_path, "prog_tuned"), monkeypatch).scale_kernel

    @triton.heuristics({"BLOCK": lambda meta: 32})
    @triton.jit
    def unused(x_ptr, BLOCK):
        pass

    tuned = unused
    tuned.fn = kernel
    tuned.arg_names = kernel.arg_names
    proxy, switch, ran = proxy_of(tuned)
    x, y = torch.arange(64.0), torch.zeros(64)
    proxy[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, 64, 2.0)
    assert ran[0][-2:] == [16, (4, 1, 1)], "the values of the verified call, in the place of the tuner's"
    proxy[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, 64, 3.0)
    assert torch.equal(y, x * 3) and sum(switch.original_runs.values()) == 1


# --- patches ---------------------------------------------------------------------------------------------------------

DOMAIN = {
    "version": 2,
    "function": "scale",
    "names": ["x", "factor"],
    "calls": [{"arguments": [["float32", [64], [1]], ["value", "float", "2.0"]], "result": None, "slots": None}],
    "capability": [9, 0],
    "triton": triton.__version__,
}
NEW = types.SimpleNamespace(scale=lambda x, factor: x * 0 + 7)


def files(folder: Path, file: Path, domain: dict[str, Any] | None = None, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "domain.json").write_text(json.dumps(domain or DOMAIN))
    (folder / "origin.json").write_text(json.dumps(origin(file, **changes)))
    return folder


def test_it_replaces_what_other_modules_imported_and_undo_puts_all_back(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_places")
    ops = import_program(file, monkeypatch)
    model = importlib.import_module("prog_places.model")
    original = ops.scale
    patch = Patch(files(tmp_path / "made", file), NEW)
    assert patch.active and set(patch.places) == {"prog_places.ops.scale", "prog_places.model.scale"}
    assert ops.twice(ones(64)).tolist() == model.forward(ones(64)).tolist() == [7.0] * 64
    assert model.forward(ones(65)).tolist() == [2.0] * 65, "the original, for a size that nobody verified"
    assert patch.counts() == {"new": 2, "original": {"x: shape not verified": 1}}
    assert "the original 1 times: x: shape not verified" in patch.report()
    patch.undo()
    assert ops.scale is model.scale is original and not patch.active
    assert ops.twice(ones(64)).tolist() == [2.0] * 64


def test_a_name_that_was_set_since_is_left_by_undo(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_set")
    ops = import_program(file, monkeypatch)
    patch = Patch(files(tmp_path / "made", file), NEW)
    mine = ops.scale = lambda x: x
    patch.undo()
    assert ops.scale is mine


def test_static_methods_are_replaced_on_their_class(tmp_path, monkeypatch):
    text = "class Ops:\n    @staticmethod\n    def scale(x, factor=2.0):\n        return x * factor\n"
    file = write_program(tmp_path, "prog_class", text)
    (file.parent / "model.py").unlink()
    ops = import_program(file, monkeypatch)
    patch = Patch(files(tmp_path / "made", file, attribute="Ops.scale"), NEW)
    assert ops.Ops.scale(ones(64))[0] == ops.Ops().scale(ones(64))[0] == 7
    patch.undo()
    assert ops.Ops().scale(ones(64))[0] == 2


def test_a_kernel_is_replaced_where_the_program_launches_it(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_kernel")
    ops = import_program(file, monkeypatch)
    values = [["value", *text] for text in (("int", "64"), ("float", "2.0"), ("int", "16"), ("tuple", "(4, 1, 1)"))]
    slots = [["grid", 0], ["grid", 1], ["argument", "y_ptr"], ["argument", "n"], ["value", None]]
    domain = DOMAIN | {
        "function": "launch",
        "names": ["x_ptr", "y_ptr", "n", "factor", "BLOCK", "grid"],
        "calls": [{"arguments": [*[["float32", [64], [1]]] * 2, *values], "result": None, "slots": slots}],
    }
    new = types.SimpleNamespace(launch=lambda gx, gy, y, n, _: y.fill_(gx + gy + n - 62))
    patch = Patch(files(tmp_path / "made", file, domain, attribute="scale_kernel", kind="kernel"), new)
    assert ops.scale(ones(64)).tolist() == [7.0] * 64
    assert ops.scale(ones(48)).tolist() == [2.0] * 48
    patch.undo()
    assert ops.scale(ones(64)).tolist() == [2.0] * 64


def test_a_kernel_that_another_kernel_calls_stays(tmp_path, monkeypatch):
    caller = "\n\n@triton.jit\ndef outer(x_ptr, y_ptr):\n    scale_kernel(x_ptr, y_ptr, 4, 1.0, 4)\n"
    file = write_program(tmp_path, "prog_called")
    file.write_text(file.read_text() + caller)
    ops = import_program(file, monkeypatch)
    kernel = ops.scale_kernel
    with pytest.warns(PatchWarning, match="the kernel outer calls it"):
        patch = Patch(files(tmp_path / "made", file, attribute="scale_kernel", kind="kernel"), NEW)
    assert ops.scale_kernel is kernel and not patch.active


@pytest.mark.parametrize(
    ("changes", "domain", "reason"),
    [
        ({"sha256": "0" * 64}, {}, "is not the file that was captured"),
        ({"package": "triton", "package_version": "0.1"}, {}, "expected triton 0.1, got"),
        ({"package": "no-such-package", "package_version": "1"}, {}, "got none"),
        ({}, {"triton": "2.0"}, "verified with Triton 2.0"),
    ],
)
def test_another_program_keeps_its_original(tmp_path, monkeypatch, changes, domain, reason):
    file = write_program(tmp_path, "prog_other")
    original = import_program(file, monkeypatch).scale
    with pytest.warns(PatchWarning, match=reason):
        patch = Patch(files(tmp_path / "made", file, DOMAIN | domain, **changes), NEW)
    assert sys.modules["prog_other.ops"].scale is original and reason in patch.why_not


def test_what_a_package_replaced_no_other_replaces(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_twice")
    import_program(file, monkeypatch)
    first = Patch(files(tmp_path / "made", file), NEW)
    with pytest.warns(PatchWarning, match="another package replaced it already"):
        second = Patch(files(tmp_path / "again", file), NEW)
    assert first.active and not second.active
    first.undo()

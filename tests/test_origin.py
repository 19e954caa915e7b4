"""origin.json of a task is read into records, and what evo did not write is refused."""

from __future__ import annotations

import json

import pytest

from evo.core.errors import StoreError
from evo.programs.origin import Argument, TensorForm, read_origin
from tests.program_support import TENSOR, origin, write_program


def write(folder, **changes):
    file = write_program(folder, "prog_origin")
    (folder / "origin.json").write_text(json.dumps(origin(file, **changes)))
    return folder


def test_all_it_says_is_read(tmp_path):
    arguments = [{"name": "x", "tensor": TENSOR}, {"name": "out", "alias": "x"}, {"name": "eps", "value": 1e-6}]
    call = {"arguments": arguments, "grid": [4, 1, 1], "result": {"tensor": 0}, "count": 12, "gpu_us": 3}
    found = read_origin(write(tmp_path, calls=[call], attribute="Ops.scale", kind="kernel", package="liger"))
    assert found is not None and (found.name, found.last) == ("prog_origin.ops.Ops.scale", "scale")
    (read,) = found.calls
    assert read.arguments == (
        Argument("x", TensorForm("float32", (64,), (1,), 0, 16)),
        Argument("out", alias="x"),
        Argument("eps", value=1e-6),
    )
    assert (read.grid, read.result, read.count, read.gpu_us) == ((4, 1, 1), {"tensor": 0}, 12, 3.0)


def test_a_task_without_it_was_not_made_of_a_program(tmp_path):
    assert read_origin(tmp_path) is None


@pytest.mark.parametrize("changes", [{"version": 2}, {"kind": "method"}, {"calls": [{}]}, {"calls": None}])
def test_other_files_are_refused(tmp_path, changes):
    with pytest.raises(StoreError, match=r"expected what `evo tasks new --from` wrote in .*origin.json"):
        read_origin(write(tmp_path, **changes))

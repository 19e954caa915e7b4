"""A patch of the user's file: the new code is in it, all else stays byte for byte, and what cannot be done is said."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evo.core.errors import ConfigError
from evo.programs.apply import Appliable, find
from evo.programs.source_patch import diff_of, patched, write_file
from tests.program_support import (
    FASTER,
    HEAD,
    HOST,
    KERNEL,
    PAIR,
    PROGRAM,
    SEED,
    WRAPPED,
    WRAPPED_CALL,
    WRAPPED_TASK,
    import_program,
    write_program,
    write_run,
    write_task,
)

UNIMPORTED = {"module": "__main__"}  # of a script: importing it would execute it, so evo does not
SPEEDUPS = {"small": 1.5, "large": 2.0}


def finding_of(tmp_path: Path, file: Path, new: str = FASTER, *, seed: str = SEED, **changes: object) -> Appliable:
    task = write_task(tmp_path / "scaling", file, seed=seed, **changes)
    found = find(write_run(tmp_path / "run", task, [(new, SPEEDUPS)]), print, opener=None)
    assert found is not None
    return found


def lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


def test_only_the_changed_lines_differ_and_the_header_stands_above_them(tmp_path):
    file = write_program(tmp_path, "prog_exact")
    before, after = patched(finding_of(tmp_path, file, **UNIMPORTED), file)
    assert before == PROGRAM.encode()
    removed = [line for line in difflib.ndiff(lines(before), lines(after)) if line.startswith("- ")]
    assert [line.strip("- ") for line in removed] == [
        "tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)",
        "scale_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), factor, BLOCK=16)",
    ]
    text = after.decode()
    assert text.startswith(PROGRAM[: PROGRAM.index("\n@triton.jit")])
    assert text[text.index("\n# Written by") :].index("@triton.jit") > 0
    kept = "\n".join(line for line in lines(after) if not line.startswith("# ") or line == "# --- host code")
    assert kept + "\n" == PROGRAM.replace(KERNEL + "\n", FASTER[len(HEAD) + 1 :][: len(KERNEL) - 22] + "\n").replace(
        "numel(), 16)", "numel(), 32)"
    ).replace("BLOCK=16", "BLOCK=32")


def test_it_is_written_with_the_permissions_of_the_file_and_computes(tmp_path, monkeypatch):
    file = write_program(tmp_path, "prog_written")
    file.chmod(0o640)
    before, after = patched(finding_of(tmp_path, file), file)
    write_file(file, after)
    assert file.stat().st_mode & 0o777 == 0o640 and file.read_bytes() == after
    ops = import_program(file, monkeypatch)
    x = torch.randn(64)
    assert torch.equal(ops.scale(x), x * 2) and torch.equal(ops.twice(x), x * 2)
    file.write_bytes(before)
    assert subprocess.run(
        ["patch", "-p1", "-d", str(file.parent)], input=diff_of(file, before, after), text=True, capture_output=True
    ).returncode in (0, 127)
    assert file.read_bytes() == after


def test_windows_line_ends_tabs_and_comments_stay(tmp_path):
    text = PROGRAM.replace("def twice( x ):\n    return", "def twice( x ):\n\treturn").replace("\n", "\r\n")
    file = write_program(tmp_path, "prog_crlf", "")
    file.write_bytes(text.encode())
    before, after = patched(finding_of(tmp_path, file, **UNIMPORTED), file)
    assert after.count(b"\n") == after.count(b"\r\n") > before.count(b"\n")
    assert b"def twice( x ):\r\n\treturn scale(x,2.0)   # uses scale\r\n" in after


def test_a_kernel_that_others_launch_stays_and_the_new_one_gets_a_name(tmp_path, monkeypatch):
    user = PROGRAM + "\n\ndef half(x, y):\n    scale_kernel[(4,)](x, y, x.numel(), 0.5, BLOCK=16)\n"
    file = write_program(tmp_path, "prog_shared", user)
    _, after = patched(finding_of(tmp_path, file, **UNIMPORTED), file)
    assert KERNEL in after.decode() and "def scale_kernel_evo(x_ptr" in after.decode()
    write_file(file, after)
    ops = import_program(file, monkeypatch)
    x, y = torch.randn(64), torch.zeros(64)
    ops.half(x, y)
    assert torch.equal(y, x * 0.5) and torch.equal(ops.scale(x), x * 2)


def test_a_kernel_that_another_module_imports_stays(tmp_path):
    file = write_program(tmp_path, "prog_imported")
    (file.parent / "user.py").write_text("from .ops import scale_kernel\n")
    _, after = patched(finding_of(tmp_path, file), file)
    assert KERNEL in after.decode() and "scale_kernel_evo[(" in after.decode()


def test_names_that_mean_something_else_in_the_file_are_made_different(tmp_path, monkeypatch):
    new = FASTER.replace("import torch\n", "import math\nimport torch\n").replace(
        "def scale(", "PI = 0.0\n\n\ndef twice(n):\n    return math.ceil(n + PI)\n\n\ndef scale("
    )
    new = new.replace("triton.cdiv(x.numel(), 32)", "twice(x.numel() / 32)")
    file = write_program(tmp_path, "prog_names")
    _, after = patched(finding_of(tmp_path, file, new, **UNIMPORTED), file)
    write_file(file, after)
    ops = import_program(file, monkeypatch)
    assert ops.PI == 3 and ops.PI_evo == 0.0 and ops.math.ceil(0.5) == 1
    x = torch.randn(96)
    assert torch.equal(ops.scale(x), x * 2) and torch.equal(ops.twice(x), x * 2)


def test_the_kernel_alone_is_replaced_if_the_launch_is_the_same(tmp_path):
    launch = "\ndef launch(x_ptr, y_ptr, n, factor):\n    scale_kernel[(4,)](x_ptr, y_ptr, n, factor, BLOCK=16)\n"
    seed = f"{HEAD}\n{KERNEL}\n{launch}"
    task = "\n".join(
        ["import torch", "from fitness import Case", 'entry = "launch"', 'writes = ("y_ptr",)', "stress = False"]
        + ['cases = [Case("small", {"N": 64}), Case("large", {"N": 63})]', "def inputs(case, generator):"]
        + ["    x = torch.randn(case.axes['N'], generator=generator, device=generator.device)"]
        + ["    return x, torch.zeros_like(x), case.axes['N'], 2.0", "def reference(x_ptr, y_ptr, n, factor):"]
        + ["    y_ptr.copy_(x_ptr * factor)"]
    )
    file = write_program(tmp_path, "prog_kernel_only")
    how = {"seed": seed, "task": task, "attribute": "scale_kernel", "kind": "kernel", **UNIMPORTED}
    new = seed.replace("* factor", "* (factor * 1.0)")
    _, after = patched(finding_of(tmp_path, file, new, **how), file)
    assert "* (factor * 1.0)" in after.decode() and HOST in after.decode()
    (tmp_path / "second").mkdir()
    other = finding_of(tmp_path / "second", file, new.replace("[(4,)]", "[(8,)]"), **how)
    with pytest.raises(ConfigError, match=r"the launch differs too, and it is in code.*use --package"):
        patched(other, file)


WRAPPED_HOW = {"seed": WRAPPED, "task": WRAPPED_TASK, "calls": [WRAPPED_CALL], **UNIMPORTED}


def faster(source: str) -> str:
    return source.replace("BLOCK=16", "BLOCK=32").replace("numel(), 16)", "numel(), 32)")


def test_an_entry_around_the_captured_function_stays_outside(tmp_path):
    file = write_program(tmp_path, "prog_wrapped", PROGRAM.replace(HOST, PAIR))
    _, after = patched(finding_of(tmp_path, file, faster(WRAPPED), **WRAPPED_HOW), file)
    assert b"BLOCK=32)\n    return y, 16, None" in after and b"def entry" not in after


def test_plain_results_must_come_from_the_same_statements(tmp_path):
    file = write_program(tmp_path, "prog_values", PROGRAM.replace(HOST, PAIR))
    finding = finding_of(tmp_path, file, faster(WRAPPED).replace("return y, 16", "return y, 32"), **WRAPPED_HOW)
    with pytest.raises(ConfigError, match="returns plain values too, and the new one computes them otherwise"):
        patched(finding, file)


def test_new_code_in_the_entry_around_is_refused(tmp_path):
    file = write_program(tmp_path, "prog_entry", PROGRAM.replace(HOST, PAIR))
    finding = finding_of(tmp_path, file, faster(WRAPPED).replace("scale(x, 2.0)", "scale(x, 1.0 + 1.0)"), **WRAPPED_HOW)
    with pytest.raises(ConfigError, match="changes the call of it in entry"):
        patched(finding, file)


def test_a_file_that_changed_since_is_refused(tmp_path):
    file = write_program(tmp_path, "prog_changed")
    finding = finding_of(tmp_path, file)
    file.write_text(PROGRAM + "# one more line\n")
    with pytest.raises(ConfigError, match=r"was changed since; restore it, or capture the program again"):
        patched(finding, file)
    with pytest.raises(ConfigError, match="expected the file that was captured, got"):
        patched(finding, tmp_path / "missing.py")


def test_a_task_with_other_code_than_the_file_is_refused(tmp_path):
    file = write_program(tmp_path, "prog_form")
    finding = finding_of(tmp_path, file, FASTER, seed=SEED.replace("return y", "return y + 0"))
    with pytest.raises(ConfigError, match=r"the task has it in another form; use --package"):
        patched(finding, file)


def test_other_parameters_are_refused(tmp_path):
    file = write_program(tmp_path, "prog_parameters")
    with pytest.raises(ConfigError, match=r"expected scale\(x, factor\), got a new one with \(x, by\)"):
        patched(
            finding_of(tmp_path, file, FASTER.replace("def scale(x, factor=2.0):\n", "def scale(x, by=2.0):\n")), file
        )


def test_code_that_cannot_be_imported_is_refused(tmp_path):
    file = write_program(tmp_path, "prog_import")
    new = FASTER.replace("def scale(", "SIZE = 1 // 0\n\n\ndef scale(").replace("numel(), 32)", "numel() + SIZE, 32)")
    with pytest.raises(ConfigError, match="can be imported with the new code, got: ZeroDivisionError"):
        patched(finding_of(tmp_path, file, new), file)


def test_a_program_that_cannot_be_imported_here_is_named(tmp_path):
    file = write_program(tmp_path, "prog_missing", PROGRAM.replace("import torch\n", "import torch\nimport no_such\n"))
    with pytest.raises(ConfigError, match="can be imported as it is, got: ModuleNotFoundError"):
        patched(finding_of(tmp_path, file), file)


def test_a_script_is_patched_and_not_executed(tmp_path):
    file = write_program(tmp_path, "prog_script", PROGRAM + "\nraise SystemExit('trained')\n")
    _, after = patched(finding_of(tmp_path, file, **UNIMPORTED), file)
    assert b"BLOCK=32" in after and sys.modules["__main__"] is not None

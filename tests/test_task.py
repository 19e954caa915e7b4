"""Loading a task: what is refused, with which reason; names, hash and skeleton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evo.core.errors import TaskError
from fitness.tasks.scaffold import task_skeleton
from fitness.tasks.task import (
    FROZEN_FILE,
    changed_since_frozen,
    freeze_task,
    load_task,
    run_reference,
    task_names,
    task_title,
)

KERNEL = """
import torch
import triton
import triton.language as tl

raise RuntimeError("a seed must never be imported")

@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * factor, mask=i < n)


def helper(n):
    return triton.cdiv(n, 64)


def scale(x, factor: float, block=64):
    y = torch.empty_like(x)
    scale_kernel[(helper(x.numel()),)](x, y, x.numel(), factor, BLOCK=block)
    return y
"""

TASK = '''"""Scale a vector.

More words.
"""
import torch
from fitness import Case

entry = "scale"
cases = [Case("even", {"N": 64}), Case("odd", {"N": 17}, role="holdout")]


def inputs(case, generator):
    return torch.randn(case.axes["N"], generator=generator, device=generator.device), 2.0


def reference(x, factor):
    return x * factor
'''


def make(folder: Path, task: str = TASK, kernel: str | None = KERNEL) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(task)
    if kernel is not None:
        (folder / "kernel.py").write_text(kernel)
    return folder


def test_a_folder_is_a_task(tmp_path: Path) -> None:
    task = load_task(make(tmp_path / "scale"))
    assert (task.name, task.entry, task.seed_source) == ("scale", "scale", KERNEL)
    assert [case.name for case in task.cases] == ["even", "odd"]
    assert (task.writes, task.flops, task.tolerance) == ((), None, None)
    assert task.stress and task.deterministic and not task.allow_delegation


def test_inputs_may_hold_nan(tmp_path: Path) -> None:
    """Where the reference takes it."""
    task = TASK.replace("device), 2.0", "device).where(torch.arange(case.axes['N']) > 0, torch.nan), float('nan')")
    task = task.replace("x * factor", "x.nan_to_num()")
    assert load_task(make(tmp_path, task)).reference is not None


def test_options_are_read(tmp_path: Path) -> None:
    extra = "tolerance = 1e-3\nstress = False\ndeterministic = False\nallow_delegation = True\n"
    extra += "flops = bytes = lambda case: 2 * case.axes['N']\n"
    task = load_task(make(tmp_path, TASK + extra))
    assert task.tolerance == 1e-3
    assert (task.stress, task.deterministic, task.allow_delegation) == (False, False, True)
    assert task.flops is not None and task.flops(task.cases[0]) == 128


def test_hash_covers_both_files(tmp_path: Path) -> None:
    first = load_task(make(tmp_path)).hash
    assert load_task(tmp_path).hash == first and len(first) == 64
    assert load_task(make(tmp_path, TASK + "# more\n")).hash != first
    assert load_task(make(tmp_path, TASK, KERNEL + "# more\n")).hash != first


def test_task_modules_do_not_meet(tmp_path: Path) -> None:
    before = set(sys.modules)
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Size:\n    n: int\n"
    )
    one = load_task(make(tmp_path / "one", source + TASK))
    two = load_task(make(tmp_path / "two", TASK.replace("x * factor", "x + factor")))
    assert set(sys.modules) - before == set()
    x = torch.ones(3)
    assert one.reference(x, 2.0)[0] == 2 and two.reference(x, 2.0)[0] == 3


# What is replaced in TASK, by what, and the message it leads to.
WRONG = {
    "no entry": ("entry = ", "entrance = ", "lacks entry"),
    "no reference": ("def reference", "def referenz", "lacks reference"),
    "entry type": ('entry = "scale"', "entry = 3", "entry must be the name of the host function .* got int 3"),
    "entry unknown": ('entry = "scale"', 'entry = "scalar"', "not a function of kernel.py, which defines .*scale"),
    "cases type": ("cases = [Case", "cases = [0, Case", "cases must be a list of sizes"),
    "case names": ('"odd"', '"even"', "case names must differ, got even more than once"),
    "no tune case": ('Case("even", {"N": 64}), ', "", "at least one case with role='tune'"),
    "case dtype": ('{"N": 64}', '{"N": 64}, dtype="float"', "unknown dtype 'float'"),
    "inputs type": ("def inputs(case", "inputs = 1\ndef other(case", "inputs must be a function .* got int 1"),
    "inputs raise": ('case.axes["N"]', 'case.axes["M"]', r"inputs\(case, .* raised KeyError: 'M' \(task.py, line 13"),
    "inputs no tuple": ("device), 2.0", "device)", r"inputs must return a tuple.*write `return \(x,\)`"),
    "inputs array": ("device), 2.0", "device).numpy(), 2.0", "input 0 must be a tensor, a number, .* got ndarray"),
    "inputs NaN": ("torch.randn(", "torch.nan * torch.randn(", "the same values for two seeds"),
    "inputs not drawn": ("generator=generator, ", "", "different values for the same seed"),
    "inputs constant": ("torch.randn(", "0 * torch.randn(", "same values for two seeds"),
    "inputs too many": (", 2.0", ", 2.0, 3.0, 4.0", "inputs returns 4 values, but reference takes 2"),
    "entry takes more": ("device), 2.0", "device),", "inputs returns 1 values, but reference takes 2"),
    "inputs object": (", 2.0", ", [2.0]", "input 1 must be a tensor, a number, a string or None, got list"),
    "reference raises": ("x * factor", "x @ factor", r"reference failed on its own inputs: TypeError.*line 17"),
    "reference dtype": ("x * factor", "torch.dot(x, x.float()) * x", "reference failed in float64 .* take dtypes from"),
    "reference returns": ("x * factor", "[x, factor]", "must return a tensor, or a tuple, .* got float"),
    "reference none": ("return x * factor", "pass", "returns no tensor and writes is empty"),
    "reference nan": ("x * factor", "x * factor / 0", "NaN or infinity on its own inputs"),
    "import": ("import torch\n", "import torch, no_such_module\n", "cannot be executed: ModuleNotFoundError"),
    "syntax": ("def inputs(", "def inputs", "line 12: not Python"),
    "values of the device": (
        "import torch\n",
        "import torch\neager = True\n",
        "got eager = True, .*; delete it, and let host",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_task_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    old, new, message = WRONG[name]
    assert old in TASK
    with pytest.raises(TaskError, match=message):
        load_task(make(tmp_path, TASK.replace(old, new)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('writes = "x"', "writes must be a tuple of parameter names"),
        ('writes = ("y",)', r"writes must name different parameters of reference \(x, factor\), got y"),
        ('writes = ("factor",)', "writes names 'factor', which must be a tensor"),
        ("tolerance = 2", "tolerance must be a relative error between 0 and 1, .* got int 2"),
        ("stress = 0", "stress must be True or False; got int 0"),
        ("flops = 7", "flops must be a function"),
        ("def flops(case): return -1", r"flops\(case\) must return a non-negative number, got -1"),
        ("tolerence = 1e-3", "'tolerence' is no option of a task; did you mean tolerance"),
        ('write = ("x",)', "'write' is no option of a task; did you mean writes"),
        ('entry = "scale_kernel"', "is a kernel, not a host function, which is launched by scale; set entry to"),
        ("def bytes(case): return case.axes['M']", r"bytes\(case\) raised KeyError"),
    ],
)
def test_a_wrong_option_is_refused(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=message):
        load_task(make(tmp_path, TASK + line + "\n"))


def test_names_of_ones_own_are_left_alone(tmp_path: Path) -> None:
    own = "case = 3\n_tolerence = 1\nstresses = lambda x: x\nwrite_size = (1, 2)\nstress = False\nstres = 1\n"
    assert not load_task(make(tmp_path, TASK + own)).stress


def test_a_name_of_both_a_built_in_task_and_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "softmax").mkdir()
    assert load_task("softmax", tried=True).entry == "softmax"  # no task is in that folder
    make(tmp_path / "softmax")
    with pytest.raises(TaskError, match=r"say \./softmax for the folder, or /.*/softmax for the built-in one"):
        load_task("softmax")
    assert load_task("./softmax").entry == "scale"
    assert "oftmax" in task_title("softmax")


def test_missing_files_and_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no task 'no-such-task'.*softmax.*evo tasks new"):
        load_task("no-such-task")
    with pytest.raises(TaskError, match=r"task\.py is missing"):
        load_task(tmp_path)
    assert load_task(make(tmp_path, kernel=None)).seed_source is None  # a task of a reference alone
    with pytest.raises(TaskError, match=r"kernel\.py, line 1: not Python"):
        load_task(make(tmp_path, kernel="def f(:\n"))


def test_written_arguments_are_outputs_and_inputs_stay_as_they_were(tmp_path: Path) -> None:
    source = TASK.replace("return x * factor", "x.mul_(factor)\n    return [x.sum()]") + 'writes = ("x",)\n'
    task = load_task(make(tmp_path, source))
    x = torch.arange(64.0)
    structure, outputs = run_reference(task, (x, 3.0), double=True)
    assert structure == "list" and [o.dtype for o in outputs] == [torch.float64] * 2
    assert outputs[0] == 3 * x.sum() and torch.equal(outputs[1], 3 * x.double())
    assert torch.equal(x, torch.arange(64.0)) and task.written == (0,)


@pytest.mark.parametrize(
    ("result", "structure"),
    [("x", "tensor"), ("(x,)", "tuple"), ("[x, x]", "list"), ("{'a': x, 'b': x}", "dict:a,b")],
)
def test_structure_of_the_result(result: str, structure: str, tmp_path: Path) -> None:
    task = load_task(make(tmp_path, TASK.replace("x * factor", result)))
    assert run_reference(task, (torch.ones(2), 1.0))[0] == structure


def test_names_and_titles_need_no_torch() -> None:
    code = (
        "import sys\nfrom fitness.tasks.task import task_names, task_title\n"
        "print(task_names(), [task_title(n) for n in task_names()], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "softmax" in task_names() and "oftmax" in task_title("softmax")


def test_skeleton_is_a_task_that_lacks_its_reference(tmp_path: Path) -> None:
    source = task_skeleton(KERNEL)
    assert 'entry = "scale"' in source and "EDIT:" in source and "def reference(x, factor):" in source
    assert "def scale" not in source and "Left out: block=64." in source and "block =" not in source
    assert "factor = 1.0  # EDIT: value" in source
    with pytest.raises(TaskError, match=r"reference failed.*EDIT: write the reference"):
        load_task(make(tmp_path, source))
    done = source.replace('raise NotImplementedError("EDIT: write the reference in task.py")', "return x * factor")
    assert load_task(make(tmp_path, done)).entry == "scale"


def test_skeleton_needs_a_host_function() -> None:
    with pytest.raises(TaskError, match=r"a host function with arguments that launches .* found helper"):
        task_skeleton("import triton\n@triton.jit\ndef k(x): pass\ndef helper(n): return n\n")
    with pytest.raises(TaskError, match="not Python"):
        task_skeleton("def f(:\n")


def test_skeleton_traces_shapes_and_asks_for_the_rest(tmp_path: Path) -> None:
    source = """
def product(a, b, bias: torch.Tensor, rows, name: str, scale: float | None, _eps=1e-5):
    M, K = a.shape
    N = b.shape[1]
    if rows > 3:
        name = str(rows)
    kernel[(M, N)](a, b, bias, K)
"""
    text = task_skeleton(source)
    names = ("a", "b", "bias", "rows", "name", "scale")
    drawn = dict(line.strip().split(" = ", 1) for line in text.splitlines() if line.strip().startswith(names))
    given = "generator=generator, device=device, dtype=dtype)  # EDIT: "
    assert drawn["a"] == f"torch.randn(M, K, {given}values"
    assert drawn["b"] == f"torch.randn(b_0, N, {given}shape, values"
    assert drawn["bias"] == f"torch.randn(M, K, b_0, N, {given}shape, values"
    assert (drawn["rows"], drawn["scale"]) == ("1  # EDIT: value", "1.0  # EDIT: value")
    assert drawn["name"] == '""  # EDIT: value'
    assert "Left out: _eps=1e-05." in text and '"M": 8, "K": 8, "b_0": 4096, "N": 4096' in text


def test_skeleton_says_what_the_source_decides() -> None:
    source = KERNEL.replace("tl.store(", "tl.atomic_add(").replace("return y", "return torch.relu(y)")
    text = task_skeleton(source)
    assert "\nallow_delegation = True  #" in text and "\ndeterministic = False  #" in text
    plain = task_skeleton(KERNEL.replace('raise RuntimeError("a seed must never be imported")', ""))
    assert "\nallow_delegation" not in plain and "\ndeterministic" not in plain and "\nlenient" not in plain


def test_skeleton_takes_the_outer_function() -> None:
    source = "def inner(x): kernel[(1,)](x)\ndef helper(n): return n\ndef outer(a, b): return inner(a)\n"
    assert 'entry = "outer"  #' in task_skeleton(source)
    assert 'entry = "inner"  # the host function in kernel.py that is called (others that launch: z)' in task_skeleton(
        "def inner(x): kernel[(1,)](x)\ndef z(x): kernel[(1,)](x)\n"
    )


WRAPPER = "def add(x): kernel[(1,)](x)\n"


@pytest.mark.parametrize(
    "harness",
    [
        "def test(): add(1)\ndef main(): test()\n",
        "def test_add(n): add(n)\n",
        "def bench(n): kernel[(1,)](n)\n",
        "@triton.testing.perf_report([])\ndef speed(size, provider): time(lambda: add(size))\n",
        "@pytest.mark.parametrize('n', [1])\ndef check(n): add(n)\n",
    ],
)
def test_skeleton_is_not_taken_in_by_what_tries_the_function(harness: str) -> None:
    assert 'entry = "add"  # the host function in kernel.py that is called\n' in task_skeleton(harness + WRAPPER)


def test_skeleton_takes_a_function_named_like_a_benchmark_where_there_is_no_other() -> None:
    assert 'entry = "bench"' in task_skeleton("def bench(x): kernel[(1,)](x)\n")


def test_skeleton_prefers_what_launches_itself() -> None:
    source = "def one(x): return two(x)\ndef two(x): return one(x)\n" + WRAPPER + "def call(x): inner(x)\n"
    source += "def inner(x): return kernel[(1,)](x) if x else call(x)\n"
    assert 'entry = "add"  #' in task_skeleton(source)


def test_a_change_of_a_frozen_task_is_reported_with_the_file(tmp_path: Path) -> None:
    for name in ("task.py", "kernel.py"):
        (tmp_path / name).write_text(name)
    assert changed_since_frozen(tmp_path) == ""  # never frozen
    freeze_task(tmp_path, "hash", {"model": "m"})
    assert changed_since_frozen(tmp_path) == ""
    (tmp_path / "kernel.py").write_text("other")
    changed = changed_since_frozen(tmp_path)
    assert changed.startswith(f"kernel.py in {tmp_path} changed since the task was validated and frozen")
    (tmp_path / FROZEN_FILE).write_text("{}")
    assert "cannot be read (KeyError)" in changed_since_frozen(tmp_path)
    (tmp_path / FROZEN_FILE).unlink()
    assert changed_since_frozen(tmp_path) == ""

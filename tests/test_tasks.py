"""Contract of the built-in tasks: every seed and every hand-made variant is right, by the interpreter and the oracle.

Whole files are run, host code included, in one process beside this one (tests/run_host.py).  Autotuned variants are run
once per configuration.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evo.core.errors import TaskError
from fitness.frontend.gate import gate
from fitness.tasks.task import BUILTIN_TASKS, load_task, run_reference, task_names, task_title
from fitness.verify import compare, oracle

ROOT = Path(__file__).parent.parent
SEEDS = {name: BUILTIN_TASKS / name / "kernel.py" for name in task_names()}
VARIANTS = {path.stem: path for path in sorted((ROOT / "tests/variants").glob("*.py"))}
FILES = {**SEEDS, **VARIANTS}


def task_of(stem: str) -> str:
    return stem.partition("__")[0]


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict]]:
    """What run_host.py says about every file: one item per configuration and case."""
    pairs = [f"{task_of(stem)}={path}" for stem, path in FILES.items()]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/run_host.py", *pairs], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[dict]] = {str(path): [] for path in FILES.values()}
    for line in done.stdout.splitlines():
        facts = json.loads(line)
        found[facts["file"]].append(facts)
    return found


def test_the_promised_tasks_exist() -> None:
    promised = {"vector_sin", "softmax", "layer_norm", "rms_norm", "matmul", "gemv_batched", "matmul_backward"}
    promised |= {"attention", "cross_entropy", "rotary", "int8_matmul", "scatter"}
    assert promised <= set(task_names())
    assert len(VARIANTS) >= 10


@pytest.mark.parametrize("name", task_names())
def test_task_is_complete(name: str) -> None:
    task = load_task(name)
    roles = [case.role for case in task.cases]
    assert 2 <= roles.count("tune") <= 4 and roles.count("holdout") >= 1
    assert task.flops is not None and task.bytes is not None and 10 < len(task_title(name)) < 120
    for case in task.cases:
        assert case.cpu_axes is not None
        assert task.flops(case) > task.flops(case.on_cpu()) > 0
        if case.role == "tune":  # large enough to occupy a GPU: 10 to 300 MB, or 1 GFLOP and more
            assert 10e6 <= task.bytes(case) <= 300e6 or task.flops(case) >= 1e9


@pytest.mark.parametrize("stem", FILES)
def test_kernel_is_right(stem: str, results: dict[str, list[dict]]) -> None:
    task = load_task(task_of(stem))
    facts = results[str(FILES[stem])]
    configurations = max(f["config"] for f in facts) + 1
    assert [f["case"] for f in facts] == [case.name for case in task.cases] * configurations
    wrong = [(f["case"], f["config"], f["message"]) for f in facts if f["message"]]
    assert not wrong
    assert max(f["ratio"] for f in facts) <= 0.5  # the constants of the oracle leave room


def test_autotuned_variants_are_run_once_per_configuration(results: dict[str, list[dict]]) -> None:
    assert {f["config"] for f in results[str(VARIANTS["softmax__autotuned"])]} == {0, 1, 2}


@pytest.mark.parametrize("stem", FILES)
def test_kernel_passes_the_gate(stem: str) -> None:
    task = load_task(task_of(stem))
    assert gate(FILES[stem].read_text(), entry=task.entry, allow_delegation=task.allow_delegation) == []


@pytest.mark.parametrize("stem", VARIANTS)
def test_variant_says_its_task(stem: str) -> None:
    docstring = ast.get_docstring(ast.parse(VARIANTS[stem].read_text())) or ""
    assert f"task: {task_of(stem)}" in docstring.splitlines()


LIBRARIES = [name for name in task_names() if (BUILTIN_TASKS / name / "library.py").exists()]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_library_computes_what_the_reference_does(name: str) -> None:
    task = load_task(name)
    for case in (case.on_cpu() for case in task.cases):
        expected = oracle.expect(task, case, 1)
        library = dataclasses.replace(task, reference=task.library)
        structure, outputs = run_reference(library, oracle.make_inputs(task, case, 1))
        assert expected is not None
        assert compare.compare(expected, structure, outputs, [o.stride() for o in outputs])[1] is None


def test_a_task_names_a_library_or_none(tmp_path: Path) -> None:
    assert len(LIBRARIES) == 10 and load_task("rotary").library is None
    shutil.copytree(BUILTIN_TASKS / "softmax", tmp_path / "own")
    assert load_task(tmp_path / "own").hash == load_task("softmax").hash
    (tmp_path / "own" / "library.py").write_text("library = 3\n")
    with pytest.raises(TaskError, match=r"library\.py: library must be a function of the reference's arguments; got 3"):
        _ = load_task(tmp_path / "own").library

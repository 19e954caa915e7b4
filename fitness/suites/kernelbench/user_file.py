"""Makes a task.py of a user's own PyTorch file, in the way that KernelBench's problems become tasks.

The file has `class Model(nn.Module)`, `get_inputs()` and `get_init_inputs()`; or one function and `get_inputs()`, which
returns its arguments.  Integers that the top level assigns are its sizes.
"""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

from evo.core import syntax
from evo.core.errors import TaskError
from fitness.suites.kernelbench.checkout import KernelBenchFile
from fitness.suites.kernelbench.folder import task_text
from fitness.tasks.task import Task, load_task

MOST_BYTES = 2 << 30  # of inputs, parameters and outputs of a case
_MODULE = """


class Model(torch.nn.Module):
    def forward(self, {parameters}):
        return {function}({parameters})


def get_init_inputs():
    return []
"""


def task_of_file(path: Path, text: str, function: str | None = None) -> tuple[str, Task]:
    """The text of task.py, and the task, loaded once from a temporary folder.

    path: of the file, for messages.  text: what it holds.  function: the name of the function that is the reference;
    None: the file's Model, or its only function besides `get_inputs`.  Raises TaskError, which names the file.
    """
    try:
        problem = KernelBenchFile(path.stem, _as_problem(text, function))
        made, _ = task_text(problem, f"{path.name}, as a task", MOST_BYTES)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "task.py").write_text(made, encoding="utf-8")
            return made, load_task(folder)
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error


def _as_problem(text: str, function: str | None) -> str:
    """The text with a Model; one that calls the function if the file has none.  Raises TaskError."""
    try:
        tree = syntax.parse(text)
    except SyntaxError as error:
        raise TaskError(f"not Python: line {error.lineno}: {error.msg}") from error
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "Model" in classes and function is None:
        return text
    if "get_inputs" not in functions:
        raise TaskError(_expected(f"no get_inputs, but {', '.join([*classes, *functions]) or 'nothing'}"))
    own = [name for name in functions if name not in ("get_inputs", "get_init_inputs") and not name.startswith("_")]
    if function is None and len(own) != 1:
        what = f"the functions {', '.join(own)}; name one by --function" if own else "no function"
        raise TaskError(_expected(what))
    name = function or own[0]
    if name not in own:
        raise TaskError(f"--function: expected one of {', '.join(own) or 'its functions (it has none)'}, got {name!r}")
    parameters = ", ".join(a.arg for a in (*functions[name].args.posonlyargs, *functions[name].args.args))
    imported = "" if "import torch\n" in text else "import torch\n"
    return imported + text.rstrip() + _MODULE.format(function=name, parameters=parameters)


def _expected(got: str) -> str:
    return (
        "expected class Model(nn.Module), get_inputs() and get_init_inputs(), or one function and get_inputs(), which "
        f"returns a list of its arguments; got {got}"
    )

"""What a task.py that a model wrote may say."""

from __future__ import annotations

import pytest

from fitness.tasks.task import BUILTIN_TASKS, task_names
from fitness.validation.draft_rules import check_task
from tests.drafting_support import MALICIOUS, TASK

HEAD = "import torch\nimport math\nimport torch.nn.functional as F\nfrom fitness import Case\n"


def rules_of(source: str) -> set[str]:
    return {finding.rule for finding in check_task(source)}


@pytest.mark.parametrize("name", task_names())
def test_every_built_in_task_keeps_to_the_rules(name: str) -> None:
    assert check_task((BUILTIN_TASKS / name / "task.py").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "def reference(x): return F.softmax(x.float(), dim=-1).to(x.dtype)",
        "def reference(x): return torch.linalg.solve(x, x) + torch.fft.fft(x).real + torch.special.erf(x)",
        "def reference(input): return torch.where(input > 0, input, math.exp(1.0) * torch.expm1(input))",
        "from torch import exp\nfrom torch.nn import functional\ndef reference(x): return functional.gelu(exp(x))",
        "cases = [Case(f'n{n}', {'N': n}, dtype='float16') for n in (1, 2)]",
        "def bytes(case): return sum(size for size in case.axes.values())",
        "def reference(x): return torch.topk(x, 2).values.amax(dim=-1, keepdim=True)",
    ],
)
def test_what_computes_is_let_through(line: str) -> None:
    assert check_task(HEAD + line + "\n") == []


def test_what_is_malicious_is_named_by_line() -> None:
    found = {(f.rule, f.line) for f in check_task(MALICIOUS)}
    start = MALICIOUS[: MALICIOUS.index("import socket")].count("\n") + 1
    assert {("import", start), ("builtin", start + 2)} <= found


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("import os", "import"),
        ("from os import system", "import"),
        ("from torch import *", "import"),
        ("from torch import load", "import"),
        ("from torch.utils import cpp_extension", "import"),
        ("from . import task", "import"),
        ("import fitness", "import"),
        ("from fitness import task", "import"),
        ("def f():\n    import torch.fft", "import"),
        ("import torch as __builtins__", "builtin"),
        ("from torch import exp as open", "builtin"),
        ("x = open('f')", "builtin"),
        ("x = eval('1')", "builtin"),
        ("x = __import__('os')", "builtin"),
        ("x = type(1)", "builtin"),
        ("f = getattr", "builtin"),
        ("x = getattr(torch, 'load')", "builtin"),
        ("def f(case): return getattr(math, case.dtype)", "builtin"),
        ("x = getattr(torch, Case('a', {}, 'load').dtype)", "case"),
        ("x = getattr(torch, Case('a', {}, dtype='l' + 'oad').dtype)", "case"),
        ("x = Case(*('a', {}, 'load'))", "case"),
        ("x = Case(**{'dtype': 'load'})", "case"),
        ("make = Case", "name"),
        ("x = torch.load('f')", "library"),
        ("x = torch.save(1, 'f')", "library"),
        ("x = torch.from_file('f')", "library"),
        ("x = torch.os.system('true')", "library"),
        ("x = torch.ops.load_library('f')", "library"),
        ("x = torch.hub.load('a', 'b')", "library"),
        ("x = torch.manual_seed(0)", "library"),
        ("x = torch.compile(print)", "library"),
        ("x = torch.nn.Linear(1, 1)", "library"),
        ("x = F.importlib", "library"),
        ("x = F.boolean_dispatch", "library"),
        ("x = torch.nn.functional", "name"),
        ("x = [torch]", "name"),
        ("def f(F): return F", "name"),
        ("x = torch.ones(1).numpy().tofile('f')", "attribute"),
        ("x = torch.Tensor.data_ptr", "attribute"),
        ("x = torch.ones(1).untyped_storage()", "attribute"),
        ("x = '{0.a}'.format(1)", "attribute"),
        ("x = ().__class__", "private"),
        ("x = torch._C", "private"),
        ("torch.exp = 1", "patch"),
        ("class A: pass", "syntax"),
        ("with x: pass", "syntax"),
        ("try:\n    pass\nfinally:\n    pass", "syntax"),
        ("def f():\n    yield 1", "syntax"),
        ("def f():\n    global torch", "syntax"),
        ("@torch.exp\ndef f(): pass", "decorator"),
        ("x = 1 +", "syntax"),
        ("x = 'a\u202eb'", "encoding"),
        ("x = " + "-" * 3000 + "1", "size"),
    ],
)
def test_what_reaches_beyond_tensors_is_refused(line: str, rule: str) -> None:
    assert rule in rules_of(HEAD + line + "\n")


def test_a_task_as_the_prompt_asks_for_it_passes() -> None:
    assert check_task(TASK) == []

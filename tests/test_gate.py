"""The gate: honest sources pass without a finding, each cheat of the corpus is found by the rule that it names."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.core.records import STAGES, Verdict
from fitness.frontend.gate import MAX_CHARACTERS, MAX_NUMBER, RULES, gate, not_inherited
from fitness.frontend.rules import names

ROOT = Path(__file__).parent.parent
TASKS = {path.parent.name: path.parent for path in sorted((ROOT / "fitness" / "tasks" / "builtin").glob("*/task.py"))}
HACKS = sorted((ROOT / "tests" / "hacks").glob("*.py"))
PATTERNS = sorted((ROOT / "fitness" / "suites").glob("*/kernels/*.py"))
HONEST = sorted(
    [*(ROOT / "fitness" / "tasks" / "builtin").glob("*/kernel.py"), *(ROOT / "tests" / "variants").glob("*.py")]
)

HEAD = """
import dataclasses
import enum
import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)
"""
RUN = """
def run(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), BLOCK=16)
    return y
"""


def check(source: str, entry: str = "run", allow_delegation: bool = False):
    return gate(source, entry=entry, allow_delegation=allow_delegation)


def rules(source: str, **options) -> set[str]:
    return {finding.rule for finding in check(source, **options)}


def host(body: str, before: str = "") -> str:
    """A source whose entry `run(x)` has this body and then launches honestly."""
    indented = "\n".join("    " + line for line in body.splitlines())
    launch = "    y = torch.empty_like(x)\n    kernel[(1,)](x, y, 1, BLOCK=16)\n    return y\n"
    return f"{HEAD}\n{before}\n\ndef run(x):\n{indented}\n{launch}"


def in_kernel(line: str, before: str = "") -> str:
    return f"{HEAD}\n{before}\n@triton.jit\ndef other(x, n, B: tl.constexpr):\n    {line}\n{RUN}"


def snippets(text: str) -> dict[str, str]:
    """Pieces of code by the comment lines above them."""
    parts = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)
    return {name: code.strip() for name, code in zip(parts[1::2], parts[2::2], strict=True)}


# --- honest sources ---------------------------------------------------------------------------------------------------


def task_facts(task: str) -> dict[str, object]:
    """Literal assignments of a task.py, without importing it."""
    facts = {}
    for node in ast.parse((TASKS[task] / "task.py").read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.targets[0], ast.Name)
        ):
            facts[node.targets[0].id] = node.value.value
    return facts


@pytest.mark.parametrize("path", HONEST, ids=lambda p: p.parent.name if p.stem == "kernel" else p.stem)
def test_seeds_and_variants_pass(path):
    task = path.parent.name if path.stem == "kernel" else path.stem.partition("__")[0]
    facts = task_facts(task)
    allowed = bool(facts.get("allow_delegation", False))
    assert gate(path.read_text(), entry=str(facts["entry"]), allow_delegation=allowed) == []


@pytest.mark.parametrize("path", PATTERNS, ids=lambda p: f"{p.parent.parent.name}-{p.stem}")
def test_patterns_of_the_suites_pass(path):
    functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert gate(path.read_text(), entry=functions[-1], allow_delegation=False) == []


HOST_CODE = snippets("""
# sizes
M, N = x.shape
n = M * N // 2 + x.stride(0) - x.numel() % 4
assert n >= 0 and x.dim() == 2, f'{n}'

# views
z = x.contiguous().view(-1).reshape(x.shape).transpose(0, 1).t()
z = z.unsqueeze(0).expand(2, -1, -1)[0]

# identity
bias = None
if bias is not None and x is not bias:
    raise ValueError('no bias')

# same metadata
z = torch.empty_like(x)
assert x.shape == z.shape and x.device == z.device
assert x.dtype == torch.float32

# allocation
z = torch.zeros((x.shape[0] + 1, 2 * x.shape[1]), dtype=torch.float32, device=x.device)
z.zero_()

# casts
z = x.to(torch.float16)
z = z.float().half()
w = x.new_empty(4)

# slices
z = x[:, : x.shape[1] // 2]
w = torch.empty_like(x)
w[0] = 0.0
w[:, 1:].copy_(x[:, 1:])

# scalars
scale = 1.0 / math.sqrt(x.shape[-1])
warps = min(max(x.shape[1] // 256, 1), 8)
high = torch.finfo(x.dtype).max * 0.5

# devices
with torch.cuda.device(x.device):
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count * 2

# branches
if x.is_contiguous():
    z = x
else:
    z = x.contiguous()
for k in range(3):
    z = z.view(z.shape)

# name reuse
z = x.view(-1)
z = z.numel()
z = z * 2 + 1

# unknown helper
def half(v):
    return v * 0.5
z = half(x.shape[0])

# containers
parts = list(x.chunk(2))
parts.append(x)
parts.sort(key=len)
options = {'num_warps': 4}
options['k'] = 1

# comprehension
total = sum(part.numel() * 2 for part in x.split(4))
shape = tuple(n + 1 for n in x.shape)

# match
match x.dim():
    case 1:
        n = x.shape[0]
    case _:
        n = x.numel()

# lambda grid
grid = lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)
kernel[grid](x, x, 1, BLOCK=16)

# nested grid
def grid(meta):
    return (triton.cdiv(x.numel(), meta['BLOCK']), 1)
kernel[grid](x, x, 1, BLOCK=16)

# partial launch
run_it = kernel[(1,)]
run_it(x, x, 1, BLOCK=16, num_warps=4, num_stages=2)

# texts
text = '{} {:.2f} {name!r:>{width}} {{.a}}'.format(1, 2.0, name=x.dtype, width=4) + '.'.join(['a', 'b'])

# extended
parts = [x]
parts += [x.view(-1)]
n = x.shape[0]
n += 1
first, second = [parts.append(p) for p in (x, x)]

# a local called like a builtin
input = x.view(-1)
id = input.numel()
type = id + 1
""")


@pytest.mark.parametrize("name", HOST_CODE)
def test_honest_host_code_passes(name):
    assert check(host(HOST_CODE[name])) == []


TOP_LEVEL = snippets("""
# configurations
def configs():
    return [triton.Config({'BLOCK': b}, num_warps=w)
            for b in (16, 32) for w in (4, 8)]
CONFIGS = configs()

# properties
DEVICE = torch.device('cuda')
SMS = torch.cuda.get_device_properties(0).multi_processor_count

# driver
DRIVER = triton.runtime.driver.active.utils.get_device_properties(0)['multiprocessor_count']

# constants
LOG2E: tl.constexpr = 1.4427
SIZES = (16, 32)
TYPES = {torch.float16: tl.float16}
TOTAL = sum(s for s in SIZES)

# language alias
lang = triton.language
EPS = lang.constexpr(1e-6)

# record
class Shape(NamedTuple):
    rows: int
    columns: int = 1

def area(s):
    return s.rows * s.columns

# cached number
@functools.lru_cache
def sms(device):
    return torch.cuda.get_device_properties(device).multi_processor_count

# reference
def reference(x):
    try:
        return torch.softmax(x, dim=-1) @ x.exp()
    except ValueError:
        return x

# script
def helper():
    return 1

if __name__ == '__main__':
    print(torch.softmax(torch.ones(3), 0), helper())

# a helper called like a harmless builtin
def sum(x):
    return x

# exports
__all__ = ['run']

# sizes in tables
SIZES = [16, 32]
ROWS = {16: (4, 8)}
SMS = functools.partial(max, 1)(2)
LIMIT = SIZES[-1] // 2
def sizes(n):
    block, (warps, stages) = SIZES[0], ROWS.get(n, (1, 2))
    block += n
    warps *= 2
    found = [s for s in SIZES if s > n]
    found.append(block)
    found += [warps]
    return found
def widest(n):
    return SIZES[1]
def width(n):
    w = widest(n)
    w += SIZES[0]
    own = sizes(n)
    own.append(w)
    return own

# a record with fields of its own
class Tile(NamedTuple):
    tile_rows: int
    tile_columns: int
def tile_area(tile):
    return tile.tile_rows * tile.tile_columns

# records wherever they come from
@dataclasses.dataclass
class Plan:
    signature: int
    warps: int = 4
class Way(enum.Enum):
    ROWS = 1
    COLUMNS = 2
PLANS = [Plan(16), Plan(32, warps=8)]
BY_SIZE = {16: Plan(16), 'other': Plan(64)}
DEFAULT = Plan(8)
def chosen(n, *, fallback):
    for plan in PLANS:
        if plan.signature > n:
            return plan
    return BY_SIZE.get(n, fallback) if n else BY_SIZE['other']
def block_of(plan, way, *, scale=1):
    return plan.signature * scale if way is Way.ROWS else plan.warps
def total(n):
    plan = chosen(n, fallback=DEFAULT) or DEFAULT
    plan = dataclasses.replace(plan, warps=2)
    one, other = chosen(1, fallback=plan), chosen(2, fallback=PLANS[0])
    grid = lambda meta: (plan.signature, one.warps + other.warps)
    return block_of(plan, Way.ROWS) + block_of(way=Way.COLUMNS, plan=PLANS[0], scale=2) + grid({})[0]
TOTAL = total(3) + sum(p.signature for p in PLANS) + max([p.warps for p in BY_SIZE.values()]) + len(PLANS)

# table
TABLE = {16: {'BLOCK': 16}}
def pick(n):
    chosen = dict(TABLE.get(n, TABLE[16]))
    chosen['n'] = n
    return chosen
""")


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_honest_top_levels_pass(name):
    assert check(host("pass", TOP_LEVEL[name])) == []


def test_a_kernel_behind_a_table_helper_or_decorators_counts_as_launched():
    table = "KERNELS = {'a': kernel}\ndef run(x):\n    KERNELS['a'][(1,)](x, x, 1, BLOCK=16)\n    return x\n"
    helper = "def start(k, x):\n    k[(1,)](x, x, 1, BLOCK=16)\ndef run(x):\n    start(kernel, x)\n    return x\n"
    tuned = HEAD.replace(
        "@triton.jit", "@triton.autotune(configs=[triton.Config({'BLOCK': 16})], key=['n'])\n@triton.jit"
    )
    guessed = HEAD.replace("@triton.jit", "@triton.heuristics({'BLOCK': lambda args: 16})\n@triton.jit(debug=False)")
    for source in (HEAD + table, HEAD + helper, tuned + RUN, guessed + RUN):
        assert check(source) == []


KERNEL_CODE = [
    "y = tl.load(x, eviction_policy='evict_last').to(tl.float32).sum(axis=0)",
    "for i in tl.range(0, n, B, num_stages=2):\n        tl.store(x + i, tl.extra.cuda.libdevice.tanh(1.0))",
    "tl.static_assert(B % 16 == 0)\n    m = min(n, B) + max(len((1, 2)), int(1.0))",
    "acc = tl.zeros((B,), dtype=x.dtype.element_ty)\n    if n > 4 and B == 16:\n        acc += tl.where(acc > 0, 1, 0)",
    "m = triton.cdiv(n, B) + triton.next_power_of_2(B) + LIMIT",
    "while n > 0:\n        n -= B\n    a, b = tl.split(tl.join(n, n))",
    "m = tl.maximum(n, B, propagate_nan=tl.PropagateNan.ALL) + tl.clamp(1.0, 0.0, 2.0, tl.PropagateNan.NONE)",
]


@pytest.mark.parametrize("line", KERNEL_CODE)
def test_honest_kernel_code_passes(line):
    assert check(in_kernel(line, "LIMIT: tl.constexpr = 4")) == []


def test_libdevice_from_where_it_is():
    fallback = """
try:
    from triton.language.extra import libdevice
except ImportError:
    from triton.language.extra.cuda import libdevice
"""
    assert check(fallback + in_kernel("y = libdevice.tanh(n)")) == []
    assert rules(fallback.replace("extra.cuda import", "core import") + RUN + HEAD) == {"import"}
    for kinds in ("(ImportError, ModuleNotFoundError)", "ModuleNotFoundError", ""):
        assert check(fallback.replace("ImportError", kinds) + in_kernel("y = libdevice.tanh(n)")) == []
    earlier = fallback.replace("extra.cuda import libdevice", "import math as libdevice").replace(".import", " import")
    assert check(earlier + in_kernel("y = libdevice.tanh(n)")) == []
    for kinds in ("eval", "(ImportError, eval)", "ImportError.mro()", "[ImportError][0]", "ImportError as torch"):
        assert "top-level" in rules(fallback.replace("ImportError", kinds) + RUN + HEAD)
    for line in ("from triton.language import math as torch", "libdevice = 1", "import triton.language as libdevice"):
        other = fallback.replace("from triton.language.extra.cuda import libdevice", line)
        assert "top-level" in rules(other + RUN + HEAD)


def test_libdevice_under_every_import():
    for line in (
        "from triton.language.extra import libdevice",
        "from triton.language.extra.cuda import libdevice",
        "import triton.language.extra.libdevice as libdevice",
    ):
        assert check(line + in_kernel("y = libdevice.tanh(n)")) == []
    assert check("from triton.language.extra.libdevice import tanh" + in_kernel("y = tanh(n)")) == []


# --- delegation -------------------------------------------------------------------------------------------------------

DELEGATIONS = [
    "z = x.view(-1) * 2",
    "z = -x.contiguous()",
    "z = x.contiguous() > 0",
    "z = torch.empty_like(x)\nz += x",
    "z = x.t() @ x",
    "z = torch.empty_like(x).max()",
    "z = torch.cat([x, x])",
    "z = [v.softmax(-1) for v in [x]]",
    "z = abs(x.contiguous())",
    "z = x.contiguous()[x.view(-1)]",
    "z = torch.nn.functional.gelu(x)",
    "z = x.exp_()",
    "z = max(x.contiguous(), x)",
    "if x.shape[0] > 1:\n    z = x.view(-1)\nelse:\n    z = x.reshape(-1)\nw = z / 2",
]


@pytest.mark.parametrize("body", DELEGATIONS)
def test_delegation_is_found_where_it_is_not_allowed(body):
    line = host(body).splitlines().index("    " + body.splitlines()[-1]) + 1
    findings = check(host(body))
    assert [(f.rule, f.line) for f in findings] == [("delegate", line)]
    assert "kernel" in findings[0].message
    assert check(host(body), allow_delegation=True) == []


def test_what_is_no_plumbing_stays_out_of_bounds_with_delegation():
    for body in ("torch.load('x')", "torch.ops.aten.mm(x, x)", "torch.os.getcwd()", "s = torch.cuda.Stream()"):
        assert rules(host(body), allow_delegation=True) == {"library"}
    assert rules(host("x.exp().data_ptr()"), allow_delegation=True) == {"memory"}
    functional = "import torch.nn.functional as F"
    assert check(host("F.gelu(x, approximate='tanh')", functional), allow_delegation=True) == []
    for body in (
        "F.dataclasses.builtins.exec('1')",
        "F.np.load('x')",
        "torch.random.torch",
        "torch.fft.torch.load('x')",
    ):
        assert rules(host(body, functional), allow_delegation=True) == {"library"}
    leading = "class Names(NamedTuple):\n    builtins: int\n    exec: int"
    assert rules(host("F.dataclasses.builtins.exec", f"{functional}\n{leading}"), allow_delegation=True) == {"library"}


def test_what_may_be_named_of_torch_is_no_module():
    offered = dict(names._COMPUTE_MODULES)
    offered["torch"] = names.TORCH_COMPUTE | names.TORCH_TENSORS | names.TORCH_METADATA
    for path, table in offered.items():
        module = importlib.import_module(path)
        found = {name for name in table if isinstance(getattr(module, name, None), types.ModuleType)}
        assert {f"{path}.{name}" for name in found} <= names._TORCH_MODULES
        assert path == "torch" or all(callable(getattr(module, name, len)) for name in table)


def test_code_that_the_entry_does_not_reach_may_use_torch():
    assert check(host("pass", "def unused(x):\n    return x.softmax(-1) * torch.exp(x)")) == []
    assert rules(host("unused(x)", "def unused(x):\n    return torch.exp(x)")) == {"delegate"}
    assert rules(host("pass", "def used(x):\n    return torch.exp(x)\nTABLE = (used,)")) == {"delegate"}


# --- single rules -----------------------------------------------------------------------------------------------------


def test_lines_are_those_of_the_source_and_messages_say_what_to_do():
    source = host("eval('1')")
    (finding,) = check(source)
    assert source.splitlines()[finding.line - 1].strip() == "eval('1')"
    assert finding.rule == "builtin" and "`eval`" in finding.message


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("dunder", host("f = '{0.__class__}'.format(x)")),
        ("dunder", host("pass", "def __getattr__(name):\n    return 1")),
        ("dunder", host("pass", "__builtins__ = {}")),
        ("attribute", host("match kernel:\n    case functools.partial(__globals__=g):\n        pass")),
        ("builtin", host("pass", "open = 3")),
        ("builtin", host("z = [open for open in open('f')]")),
        ("builtin", host("d = {}\nz = [eval('1') for d[eval] in [0]]")),
        ("top-level", host("pass", "X = [kernel := 3]")),
        ("patch", host("[0 for torch.softmax in [1]]")),
        ("patch", host("for torch.softmax in [1]:\n    pass")),
        ("patch", host("t, u = torch, 1")),
        ("state", host("known = CACHE['a']\nknown.append(1)", "CACHE = {'a': []}")),
        ("state", host("put(CACHE, 1)", "CACHE = []\ndef put(where, what):\n    where.append(what)")),
        ("state", host("push(1)", "CACHE = []\npush = CACHE.append")),
        ("state", host("dict.update(CACHE, a=1)", "CACHE = {}")),
        ("state", host("del CACHE[0]", "CACHE = [1]")),
        ("state", host("for c in CACHE:\n    c[0] = 1", "CACHE = [[1]]")),
        ("state", host("pass", "COUNT = map(abs, range(9))")),
        ("state", host("pass", "COUNT = (i for i in range(9))")),
        ("state", host("seen = CALLS\nseen += [0]", "CALLS = [0]")),
        ("state", host("seen = CALLS if x else []\nseen *= 2\nagain = seen\nagain *= 2", "CALLS = [0]\nX = CALLS")),
        ("state", host("seen = CALLS\nmore = seen\nmore |= {0}", "CALLS = {0}")),
        ("state", host("new = [0]\nseen = CALLS[0]\nseen += new * 2", "CALLS = [[0]]")),
        ("state", host("[b.append(1) for b in CALLS]", "CALLS = [[]]")),
        ("state", host("match CALLS:\n    case [first]:\n        first.append(1)", "CALLS = [[]]")),
        ("state", host("(CALLS if x else OTHERS).append(1)", "CALLS = []\nOTHERS = []")),
        ("state", host("lend().append(1)", "CALLS = [[]]\ndef lend():\n    return CALLS[0]")),
        ("state", host("a, n = lend()\na.append(1)", "CALLS = [[]]\ndef lend():\n    c = CALLS\n    return c, 1")),
        ("state", host("lend().append(1)", "CALLS = []\nlend = lambda: CALLS")),
        ("state", host("def lend():\n    return CALLS\nlend().append(1)", "CALLS = []")),
        ("state", host("lend().append(1)", "CALLS = []\ndef own():\n    return CALLS\ndef lend():\n    return own()")),
        ("state", host("f(3).append(1)", "@functools.lru_cache\ndef f(n):\n    return [n]")),
        ("state", host("f(3)[0] = 1", "@functools.cache\ndef f(n):\n    return [n]")),
        ("state", host("c = f(3)\nc += [1]", "@functools.cache\ndef f(n):\n    return [n]")),
        ("state", host("put(CALLS)", "CALLS = []\ndef put(where):\n    where += [1]")),
        ("state", host("put(lend())", "CALLS = []\ndef lend():\n    return CALLS\ndef put(w):\n    w.append(1)")),
        ("state", host("def put(w=CALLS):\n    w.append(1)\nput()", "CALLS = []")),
        ("state", host("put = lambda w: w.append(1)\nput(CALLS)", "CALLS = []")),
        ("dunder", host("('{0._' + 'x}').format(x)")),
        ("dunder", host("text = '{0._x}'\ntext.format(x)")),
        ("dunder", host("'{0[}]._x}'.format(x)")),
        ("dunder", host("'{0:{1._x}}'.format(x, x)")),
        ("dunder", host("'{0.shape}'.format(x)")),
        ("dunder", host("'{'.format(x)")),
        ("dunder", host("list(map('{0._x}'.format, [x]))")),
        ("dunder", host("f = str.format", "class Names(NamedTuple):\n    format: int")),
        ("dunder", host("x._recorder", "class Names(NamedTuple):\n    _recorder: int")),
        ("delegate", host("x.mean()", "class Names(NamedTuple):\n    mean: int")),
        ("delegate", host("x.exp_()", "class Names(NamedTuple):\n    exp_: int")),
        ("attribute", host("k = kernel\nk.run", "class Names(NamedTuple):\n    run: int")),
        ("attribute", host("x.register_hook(print)", "class Names(NamedTuple):\n    register_hook: int")),
        ("kernel", in_kernel("y = x.handle", "class Names(NamedTuple):\n    handle: int")),
        ("kernel", in_kernel("y = x.data", "class Names(NamedTuple):\n    data: int")),
        ("kernel", in_kernel("y = lambda v: eval(v)")),
        ("import", host("system('id')", "from os import *")),
        ("library", host("torch.ops.aten.mm(x, x)")),
        ("builtin", host("pass", "@(lambda f: eval('f'))\ndef f():\n    pass")),
        ("definition", host("pass", "class Box:\n    def method(self):\n        pass")),
        ("definition", host("pass", "def kernel():\n    pass")),
        ("definition", host("other = triton.jit(len)")),
        ("decorator", host("pass", "@functools.wraps(len)\ndef f(x):\n    return x")),
        ("import", host("import math as m")),
        ("top-level", host("pass", "for i in range(3):\n    pass")),
        ("launch", host("kernel.run(x, grid=(1,))")),
        ("inline-asm", host("kernel[(1,)](x, x, 1, BLOCK=16, ptx_options='-O0')")),
        ("autotune", HEAD.replace("@triton.jit", "@triton.jit(repr=lambda s: 'k')") + RUN),
        ("kernel", in_kernel("y = print(n)")),
        ("kernel", in_kernel("y = x.handle")),
        ("kernel", in_kernel("y = math.sqrt(2.0)")),
        ("kernel", in_kernel("y = lambda v: v")),
        ("kernel", in_kernel("y = tl.core.builtin")),
        ("dunder", in_kernel("y = tl.load.__globals__")),
        ("frame", in_kernel("y = x.f_back")),
        ("patch", in_kernel("tl.exp = n")),
        ("patch", in_kernel("y = tl")),
    ],
)  # fmt: skip
def test_rule(rule, source):
    assert rule in rules(source)


RECORD = """
@dataclasses.dataclass
class Names:
    signature: int = 0
    from_callable: int = 0
    _replace: int = 0
def text(f: 'print(1)'): pass
"""
NOT_OWN = snippets("""
# another name
k = kernel
k.signature.from_callable(text, eval_str=True)

# one of two
k = Names(1)
k = kernel
k.signature

# one of two branches
k = kernel if x.dim() > 1 else Names(1)
k.signature

# chosen
k = Names(0) and kernel
k.signature

# an assignment inside an expression
n = [k := kernel, k.signature]

# an argument
def ask(k):
    return k.signature
ask(Names())
ask(kernel)

# a default
def ask(k=kernel):
    return k.signature
ask()

# a keyword
def ask(a, *, k):
    return k.signature
ask(1, k=kernel)

# arguments in a list
def ask(a, k):
    return k.signature
ask(*[Names(), kernel])

# many arguments
def ask(*k):
    return k.signature
ask(Names())

# by another name
def ask(k):
    return k.signature
again = ask
ask(Names())
again(kernel)

# called by somebody else
def ask(k):
    return k.signature
ask(Names())
list(map(ask, [kernel]))

# a lambda
(lambda k: k.signature)(kernel)

# a loop
for k in (Names(), kernel):
    k.signature

# a comprehension
[k.signature for k in [kernel]]

# keys
for k in {kernel: Names()}:
    k.signature

# a list that grows
kept = [Names()]
kept.append(kernel)
kept[1].signature

# a list with another name
kept = [Names()]
more = kept
more.append(kernel)
kept[1].signature

# a list that a function changes
def put(where):
    where.append(kernel)
kept = [Names()]
put(kept)
kept[1].signature

# a list that a helper with a harmless name changes
def len(where):
    where.append(kernel)
kept = [Names()]
len(kept)
kept[1].signature

# a list that is written to
kept = [Names()]
kept[0] = kernel
kept[0].signature

# a list of lists
kept = [[kernel]]
for k in kept[0]:
    k.signature

# a table that is asked for what it lacks
kept = {1: Names()}
kept.get(2, kernel).signature

# what a field holds
Names(kernel).signature.from_callable(text, eval_str=True)

# what a field called like a method returns
Names(_replace=lambda: kernel)._replace().signature

# what a function returns
def get(n):
    if n:
        return Names()
    return kernel
get(0).signature

# a class that is hidden
Names = lambda: kernel
Names().signature

# a pattern
match kernel:
    case k:
        k.signature

# several at once
a, k = Names(), kernel
k.signature

# taken apart
k, = [kernel]
k.signature

# other places than they seem
a, k, b = *[0, kernel], Names(), *[]
k.signature

# the rest
a, *k = Names(), kernel
k[0].signature

# what is around a function
k = Names()
def change():
    nonlocal k
    k = kernel
change()
k.signature

# bound in a comprehension
k = Names()
n = [0 for v in (kernel,) if (k := v) is not None]
k.signature

# in a list of its arguments
def ask(k):
    for one in k:
        one.signature
ask([Names()])
ask([kernel])

# a with statement
with torch.no_grad() as k:
    k.signature

# an input
x.signature

# the entry's argument
def ask(k):
    return k.signature
""")


@pytest.mark.parametrize("name", NOT_OWN)
def test_a_field_makes_its_name_legal_on_records_alone(name):
    code = NOT_OWN[name]
    if name == "the entry's argument":
        source, entry = host("pass", f"{RECORD}\n{code}\nask(Names())"), "ask"
    else:
        source, entry = host(code, RECORD), "run"
    assert "attribute" in rules(source, entry=entry)
    messages = [f.message for f in check(source, entry=entry) if f.rule == "attribute"]
    assert all("is a field of a record" in m for m in messages), messages


def test_in_kernels_there_are_no_records():
    assert "kernel" in rules(in_kernel("y = kernel.signature", RECORD))
    assert "kernel" in rules(in_kernel("y = x.signature", RECORD))


def test_sizes():
    assert rules("#" * (MAX_CHARACTERS + 1)) == {"size"}
    assert rules(host("z = " + "+".join("1" * 150))) == {"size"}
    assert rules("x = " + "-" * 100_000 + "1") <= {"size", "syntax"} != set()
    assert rules("x = " + "(" * 5000 + ")" * 5000) <= {"size", "syntax"} != set()
    assert check(host(f"n = {MAX_NUMBER} - {-MAX_NUMBER} + {MAX_NUMBER:#x}")) == []
    assert rules(host(f"n = -{MAX_NUMBER + 1}")) == {"size"}
    assert rules("if 0x" + "f" * 4000 + ":\n    pass") == {"size"}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="reads it back")
def test_an_f_string_that_python_cannot_write_again():
    (finding,) = check("x = f\"{'\u00ad'}\"\n")  # a character that it would escape
    assert (finding.rule, finding.line) == ("syntax", 1)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no Python 3.11")
@pytest.mark.parametrize(
    "code", ["def f[T: eval('1')](): pass", "class A[T]: pass", "type A = eval('1')", "def f():\n    type A = int"]
)
def test_type_parameters_and_aliases(code):
    assert "definition" in rules(host("pass", code))


# --- inherited findings -----------------------------------------------------------------------------------------------


def left(seed: str, candidate: str) -> set[str]:
    """What a lenient task with this seed still finds in a candidate."""
    return {finding.message for finding in not_inherited(check(candidate), check(seed))}


@pytest.mark.parametrize(
    ("seed", "body", "before"),
    [
        (host("os.path.join('a')", "import os"), "os.system('id')", "import os"),
        (host("os.path.join('a')", "import os"), "system('id')", "from os import path as system"),
        (host("os.path.join('a')", "import os"), "run = os", "import os"),
        (host("os.getcwd()", "import os"), "o.system('id')", "import os\nimport os as o"),
        (host("import os\nos.getcwd()"), "import os\nos.remove('x')", ""),
        (host("import os"), "from os import system\nsystem('id')", ""),
        (host("torch.ops.aten.mm(x, x)"), "torch.ops.load_library('x')", ""),
        (host("torch.os.getcwd()"), "torch.os.system('id')", ""),
        (host("zeros(x)", "from numpy import *"), "load('x')", "from numpy import *"),
        (in_kernel("y = lambda v: v"), "pass", "@triton.jit\ndef third(x):\n    y = lambda v: eval('v')"),
        (host("pass", "@torch.compile(x=1)\ndef f():\n    pass"), "pass", "@torch.compile(eval('1'))(1)\ndef f(): 1"),
    ],
)
def test_a_lenient_task_inherits_uses_not_modules(seed, body, before):
    assert left(seed, seed) == set()
    assert left(seed, host(body, before))


def test_a_lenient_task_inherits_what_the_seed_uses_on_any_line():
    seed = host("os.path.join('a')\nnp.load('x')\ntorch.ops.aten.mm(x, x)", "import os\nimport numpy as np")
    candidate = host("pass\ntorch.ops.aten.mm(x, x)\nos.path.join('b', 'c')", "import numpy\nimport os")
    assert left(seed, candidate) == set()


# --- effort -----------------------------------------------------------------------------------------------------------


def steps(source: str) -> int:
    """Calls that the gate makes for a source."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        check(source)
    finally:
        sys.setprofile(before)
    return count


def numbered(text: str, count: int) -> str:
    return "".join(text.replace("#", str(number)) for number in range(count))


DEEP: dict[str, Callable[[int], str]] = {
    "views": lambda n: host("x" + ".t()" * n),
    "attributes": lambda n: host("x" + ".T" * n),
    "paths": lambda n: host("torch" + ".os" * n),
    "subscripts": lambda n: host("x.t()" + "[0]" * n),
    "calls": lambda n: host("x" + "()" * n),
    "arguments": lambda n: host("x.view(" * n + ")" * n),
    "operators": lambda n: host("x.t()" + " + 1" * n),
    "powers": lambda n: host("2" + " ** 2" * n),
    "conditions": lambda n: host("(x if x else " * n + "x" + ")" * n + ".append(1)"),
    "lambdas": lambda n: host("lambda: " * n + "x"),
    "comprehensions": lambda n: host("[x for x in " * n + "x" + "]" * n),
    "branches": lambda n: HEAD + "def run(x):\n" + "".join(" " * i + " if x:\n" for i in range(n)) + " " * n + " x = 1",
    "functions": lambda n: "".join(" " * i + "def f():\n" for i in range(n)) + " " * n + "x = 1",
    "elif": lambda n: host("if x:\n    pass\n" + "elif x:\n    pass\n" * n),
    "formats": lambda n: host("f'{" * 3 + "x" + "}'" * 3),
}


@pytest.mark.parametrize("name", DEEP)
def test_the_effort_for_nested_code_does_not_explode(name):
    shallow, deep = (steps(DEEP[name](n)) for n in (8, 16))
    assert deep < 4 * shallow  # each level may look at all below it


LONG: dict[str, Callable[[int], str]] = {
    "constants": lambda n: HEAD + numbered("A# = [1]\n", n) + numbered("def f#(x):\n    f#(A#)\n", n),
    "helpers": lambda n: host(";".join(f"f{i}" for i in range(n)), numbered("A# = [1]\ndef f#(): x\n", n)),
    "targets": lambda n: HEAD + numbered("A# = ", n) + "(" + "1, " * n + ")\n" + RUN,
    "tuple": lambda n: HEAD + numbered("A#, ", n) + " = (" + "f(), " * n + ")\n" + RUN,
    "locals": lambda n: host(numbered("a# = ", n) + "[" + "x.t(), " * n + "]"),
    "alternatives": lambda n: host(numbered("a# = ", n) + "A" + " or A" * n, "A = []"),
    "branches": lambda n: host(numbered("a# = 1\n", n) + "if x: b = 1\n" * n),
    "lambdas": lambda n: host(numbered("a# = 1\n", n) + "lambda: x.t()\n" * n),
    "cases": lambda n: host(numbered("a# = 1\n", n) + "match x:\n" + "    case a: b = 1\n" * n),
    "lenders": lambda n: host("f0()", numbered("A# = []\ndef f#():\n    return f0(A#)\n", n)),
    "aliases": lambda n: host(numbered("a# = A#\n", n), numbered("A# = []\n", n)),
    "decorators": lambda n: HEAD + "@a\n" * n + "def f(): x\n" + RUN,
    "comparisons": lambda n: host("x < " * n + "x"),
    "fields": lambda n: host("x", "class A(NamedTuple):\n" + numbered("    a#: int\n", n)),
    "records": lambda n: host(numbered("a# = A(#)\na#.one\n", n), "class A(NamedTuple):\n    one: int"),
    "record lists": lambda n: host(
        numbered("for a# in L: a#.one\n", n), "class A(NamedTuple):\n    one: int\nL = [" + "A(1), " * n + "]"
    ),
    "record targets": lambda n: host(
        numbered("a# = ", n) + "(" + "A(1), " * n + ")\na1[0].one", "class A(NamedTuple):\n    one: int"
    ),
    "names of names": lambda n: host(
        "a0 = x\n" + "".join(f"a{n - i} = a{n - i - 1}\n" for i in range(n)) + "a1.one",
        "class A(NamedTuple):\n    one: int",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_the_effort_for_long_code_grows_with_its_length(name):
    short, long = (steps(LONG[name](n)) for n in (100, 200))
    assert long < 2.2 * short


@pytest.mark.parametrize(
    "character", ["\x00", "\x0c", "\r", "\u2028", "\u202e", "\u200b", "\ufeff", "\ud800", "\U000e0041"]
)
def test_odd_characters(character):
    assert [(f.rule, f.line) for f in check(HEAD + RUN + f"# {character}")] == [
        ("encoding", (HEAD + RUN).count("\n") + 1)
    ]


def test_line_ends_and_coding_lines():
    honest = HEAD + RUN
    assert check(honest.replace("\n", "\r\n")) == []
    assert check("# -*- coding: utf-8 -*-" + honest) == []
    assert check("#!/usr/bin/env python\n# vim: set fileencoding=latin-1 :" + honest)[0].rule == "encoding"
    assert check("# näive σ" + honest) == []


def test_a_source_that_is_not_python_has_one_finding_with_its_line():
    (finding,) = check("x = 1\ny = (\n")
    assert (finding.rule, finding.line) == ("syntax", 2)


def test_the_gate_imports_neither_torch_nor_triton():
    code = "import sys, fitness.frontend.gate; sys.exit(bool({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# --- the corpus -------------------------------------------------------------------------------------------------------


def header(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+): (.+)$", path.read_text(encoding="utf-8").split('"""')[1], re.MULTILINE))


def test_the_corpus_is_complete_and_its_headers_are_valid():
    headers = {path.stem: header(path) for path in HACKS}
    assert len(headers) >= 55
    for name, found in headers.items():
        assert found["task"] in TASKS, name
        assert set(found["verdict"].split("|")) <= {v.value for v in Verdict} - {"ok", "duplicate"}, name
        assert set(found["stage"].split("|")) <= set(STAGES), name
        assert found["why"] and ("rule" in found) == (found["stage"] == "gate"), name
    generated_here = {"size"}
    assert {h["rule"] for h in headers.values() if "rule" in h} | generated_here == set(RULES)


@pytest.mark.parametrize("path", HACKS, ids=lambda p: p.stem)
def test_each_hack_is_found_by_its_rule_or_left_to_its_stage(path):
    expected = header(path)
    source = path.read_bytes().decode("utf-8")
    facts = task_facts(expected["task"])
    findings = gate(source, entry=str(facts["entry"]), allow_delegation=bool(facts.get("allow_delegation")))
    if expected["stage"] == "gate":
        assert expected["rule"] in {f.rule for f in findings}
    else:
        assert findings == []  # so that the later stage is tested
    assert all(0 <= f.line <= source.count("\n") + 1 and f.rule in RULES for f in findings)


def test_rules_are_described_in_a_line_each():
    assert all(0 < len(text) <= 120 and "\n" not in text for text in RULES.values())


def test_the_process_with_the_gpu_does_not_load_the_rules() -> None:
    code = "import sys, fitness.gpu.runner_process; print([m for m in sys.modules if 'frontend.rules' in m])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"

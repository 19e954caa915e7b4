"""Functions and kernels cut out of their modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evo.core.errors import TaskError
from fitness.tasks.cut import KernelWriter

HEAD = "import functools\nimport torch\nimport triton\nimport triton.language as tl\n"


def module(folder: Path, name: str, text: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


def cut(found: ModuleType, name: str, *, bare: bool = False) -> str:
    writer = KernelWriter()
    writer.function(name, getattr(found, name), bare=bare)
    return writer.text()


def test_everything_a_host_function_uses_comes_along(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        "cut_whole",
        """
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16}
SIGN: tl.constexpr = tl.constexpr(-1)
UNUSED = object()

@functools.lru_cache(None)
def block(n):
    return triton.next_power_of_2(n)

@triton.jit
def part(x):
    return x * SIGN

@triton.jit
def kernel(x, y, n, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, part(tl.load(x + i, mask=i < n)).to(DTYPE), mask=i < n)

def host(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), DTYPES[x.dtype], BLOCK=block(x.numel()))
    return y
""",
    )
    text = cut(found, "host")
    assert "UNUSED" not in text and "DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16}" in text
    assert "SIGN = tl.constexpr(-1)" in text and text.index("def part(") < text.index("def kernel(") < text.index(
        "def host("
    )
    assert "@functools.lru_cache(None)\ndef block(n):" in text
    space: dict = {}
    file = tmp_path / "again.py"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), space)
    assert callable(space["host"])


def test_a_kernel_alone_has_no_tuner(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        "cut_tuned",
        """
class Mine(triton.runtime.Autotuner):
    pass

def autotune_like_mine(configs, key):
    return lambda fn: Mine(fn, fn.arg_names, configs, key, None, None)

@autotune_like_mine([triton.Config({"BLOCK": 2 ** k}, num_warps=4) for k in (5, 6)], key=["n"])
@triton.jit(do_not_specialize=["n"] if DTYPE_OK else [])
def kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)

def host(x):
    kernel[(1,)](x, x.numel())
""".replace("DTYPE_OK", "torch is not None"),
    )
    alone, within = cut(found, "kernel", bare=True), cut(found, "host")
    assert "autotune" not in alone and "@triton.jit(do_not_specialize=['n'])\ndef kernel(" in alone
    assert "class Mine" not in within and "@triton.autotune(configs=[triton.Config({'BLOCK': 32}, num_warps=4" in within


def test_configurations_and_loggers_are_constants(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        "cut_constants",
        """
import logging

logger = logging.getLogger("mine")
CONFIGS = [triton.Config({"BLOCK": 32}, num_warps=2, num_stages=1, maxnreg=64)]
HOOKED = [triton.Config({"BLOCK": 32}, pre_hook=lambda given: given["x"].zero_())]

@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)

def host(x):
    logger.debug("launched")
    kernel[(1,)](x, x.numel())

@triton.autotune(configs=HOOKED, key=["n"])
@triton.jit
def hooked_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)

def hooked(x):
    hooked_kernel[(1,)](x, x.numel())
""",
    )
    text = cut(found, "host")
    assert "logger = logging.getLogger('mine')" in text
    assert "CONFIGS = [triton.Config({'BLOCK': 32}, num_warps=2, num_stages=1, maxnreg=64)]" in text
    exec(compile(text.partition("@triton")[0], "again", "exec"), {})
    with pytest.raises(TaskError, match=r"hooked > hooked_kernel uses HOOKED: .* got a triton.Config with a pre_hook"):
        cut(found, "hooked")


def test_a_decorator_that_cannot_be_copied_is_left_out(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        "cut_decorated",
        """
REGISTRY = object()

def registered(fn):
    assert REGISTRY
    return fn

@triton.jit
def kernel(x):
    tl.store(x, 0.0)

@registered
def host(x):
    kernel[(1,)](x)
""",
    )
    writer = KernelWriter()
    writer.function("host", found.host)
    assert "registered" not in writer.text() and writer.text().count("def kernel(") == 1
    assert writer.left_out == [
        "@registered of host: host > registered uses REGISTRY: expected a module, a function, a torch.dtype, or a "
        "constant of numbers, texts, tuples, lists and dicts, got object " + repr(found.REGISTRY)[:60]
    ]


def test_what_cannot_be_cut_says_which_name(tmp_path: Path) -> None:
    found = module(
        tmp_path,
        "cut_not",
        "THING = object()\n\ndef helper():\n    return THING\n\ndef host(x):\n    return helper()\n",
    )
    with pytest.raises(TaskError, match="host > helper uses THING: expected a module"):
        cut(found, "host")

"""Parsing in several threads."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.core import syntax


@pytest.fixture
def giving_way() -> Iterator[None]:
    """Garbage is collected often, and then another thread is let on."""

    def give_way(phase: str, info: object) -> None:
        time.sleep(0)

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(give_way)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    gc.callbacks.remove(give_way)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_threads_do_not_disturb_each_other(giving_way: None) -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    expected = ast.dump(ast.parse(source))
    got: list[str] = []

    def work() -> None:
        got.extend(ast.dump(syntax.parse(source)) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 40


def test_what_is_not_python_is_told_as_by_python() -> None:
    with pytest.raises(SyntaxError, match="was never closed"):
        syntax.parse("f(\n")
    assert ast.unparse(syntax.parse_expression("f(1+x)")) == "f(1 + x)"
    with pytest.raises(SyntaxError):
        syntax.parse_expression("x = 1")


def test_an_odd_source_gives_no_warning() -> None:
    """In a process of its own, since pytest has filters of its own."""
    code = "from evo.core import syntax; syntax.parse('x = 1if 2else 3'); syntax.parse_expression('1if 2else 3')"
    run = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""

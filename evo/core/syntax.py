"""Python's parser, for one thread at a time.

Before 3.11.8 and 3.12.2 the threads of a process count the depth of the trees that they build in one counter: where
collecting garbage lets another thread go on in between, a good source ends in a SystemError (python/cpython#106905).
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # of the same thread it may be a finalizer that parses


def parse(source: str) -> ast.Module:
    """`ast.parse`.  Raises SyntaxError, ValueError (null bytes), RecursionError, MemoryError as it does."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)  # noqa: TID251


def parse_expression(source: str) -> ast.Expression:
    """The same for one expression."""
    with _ONE_AT_A_TIME:
        tree: Any = ast.parse(source, mode="eval")  # noqa: TID251
    return tree

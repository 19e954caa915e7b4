"""Parses Python in one thread at a time.

Before 3.11.8 and 3.12.2 the threads of a process share one counter for the depth of the trees that they build.  If
garbage collection switches threads in between, a good source ends in a SystemError (python/cpython#106905).
"""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # reentrant: a finalizer in the same thread may parse

# What a model writes may be odd and still be Python: a warning would only disturb the display.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")


def parse(source: str) -> ast.Module:
    """`ast.parse`.  Raises SyntaxError, ValueError (null bytes), RecursionError, MemoryError as it does."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)  # noqa: TID251


def parse_expression(source: str) -> ast.Expression:
    """The same for one expression."""
    with _ONE_AT_A_TIME:
        tree: Any = ast.parse(source, mode="eval")  # noqa: TID251
    return tree

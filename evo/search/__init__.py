"""The search: what to try next, the loop that tries it, and what puts them together.

The package can be called: `evo.search(task, ...)` is `evo.api.search`.  A package `evo` cannot have a function and a
package of the same name, and importing any module of this one sets `evo.search` to it.
"""

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


class _CallablePackage(types.ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        return _search()(*args, **settings)

    @property
    def __signature__(self) -> inspect.Signature:
        """For `help` and editors."""
        return inspect.signature(_search())


def _search() -> Callable[..., Any]:
    """Found when it is called: the modules of this package know nothing of `evo.api`."""
    function: Callable[..., Any] = importlib.import_module("evo.api").search
    return function


sys.modules[__name__].__class__ = _CallablePackage

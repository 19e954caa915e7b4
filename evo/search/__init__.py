"""The search: what to try next, the loop that tries it, and what puts them together.

The package can be called: `evo.search(task, ...)` is `evo.api.search`.  A package `evo` cannot have a function and a
package of the same name, and importing any module of this one sets `evo.search` to it.
"""

import inspect
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        from evo.api import search

        return search(*args, **settings)

    @property
    def __signature__(self) -> inspect.Signature:
        """For `help` and editors."""
        from evo.api import search

        return inspect.signature(search)


sys.modules[__name__].__class__ = _CallablePackage

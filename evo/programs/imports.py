"""Calls a function after a module was imported.  Uses Python's standard library alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

AfterImport = Callable[[ModuleType], None]


class ImportWatch:
    """A finder that finds nothing itself: it has the other finders find a module, and is called after its import."""

    def __init__(self, after: AfterImport, only: str = "") -> None:
        """only: the name of the one module that matters; other imports then take no longer than without the watch."""
        self._after, self._only = after, only
        self._asking: set[str] = set()
        self._wrapped: dict[int, Any] = {}  # loaders by id

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Returns what the other finders return, with a loader that calls `after` at its end."""
        if name in self._asking or self._only not in ("", name):
            return None
        self._asking.add(name)
        try:
            spec = next((s for s in self._found(name, path, target) if s is not None), None)
        finally:
            self._asking.discard(name)
        if spec is not None:
            self._wrap(spec.loader)
        return spec

    def _found(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                yield finder.find_spec(name, path, target)

    def _wrap(self, loader: Any) -> None:
        """Has a loader call `after`, unless it is a class, as for modules that are part of Python."""
        if not hasattr(loader, "exec_module") or isinstance(loader, type):
            return
        if id(loader) in self._wrapped:  # it serves several modules
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self._only in ("", module.__name__):  # the loader may serve others
                self._after(module)

        loader.exec_module = exec_module
        self._wrapped[id(loader)] = loader

    def __enter__(self) -> ImportWatch:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

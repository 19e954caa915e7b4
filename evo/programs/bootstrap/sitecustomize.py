"""Starts what the variable EVO_PROGRAM asks for in a Python process, before its program begins.

This folder is the first on PYTHONPATH of a watched program, so that Python imports this module in it and in all its
child processes.  A `sitecustomize` that the user has is imported, too.
"""

import importlib.machinery
import os
import sys


class _Evo:
    """Finds evo in the folder that it was started from, if the program's Python does not have it."""

    def __init__(self, root):
        self._root = root

    def find_spec(self, name, path=None, target=None):
        if name not in ("evo", "fitness"):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._root])


def _import_the_users():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    sys.modules.setdefault("sitecustomize", this)


_import_the_users()
if "EVO_PROGRAM" in os.environ:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.meta_path.append(_Evo(root))
    from evo.programs import inside

    inside.start(os.environ["EVO_PROGRAM"])

"""Writes a package that replaces a function or kernel of a program while it runs (`import NAME.patch`)."""

from __future__ import annotations

import json
from pathlib import Path

from evo.core.errors import ConfigError
from evo.programs.apply import Appliable, header
from evo.programs.domain import domain_of
from evo.programs.origin import FILE as ORIGIN

_MARK = "# A package that `evo apply` wrote.\n"
_PATCH = '''{mark}"""
{header}
"""

import importlib
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent

if __package__:
    from . import guard, kernel

    patch = guard.Patch(_FOLDER, kernel)
    undo, counts, report = patch.undo, patch.counts, patch.report
else:  # executed as a file
    sys.path.insert(0, str(_FOLDER.parent))
    importlib.import_module(f"{{_FOLDER.name}}.patch")
'''


def write_package(finding: Appliable, folder: Path) -> list[Path]:
    """Writes the package and returns its files.  An earlier package in the folder is replaced.

    Raises ConfigError if the folder holds something else, if its name cannot be imported, or if the new code cannot
    stand for what was captured.
    """
    _check_folder(folder)
    finding.check_entry()
    measured = not finding.fitness.estimated
    domain = domain_of(finding.task, finding.origin, finding.target, finding.triton, measured)
    lines = header(finding)
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    docstring = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    texts = {
        "__init__.py": f'{_MARK}"""Import {folder.name}.patch to replace {finding.origin.name}."""\n',
        "patch.py": _PATCH.format(mark=_MARK, header=docstring),
        "kernel.py": f"{comment}\n\n{finding.source}",
        "guard.py": Path(__file__).with_name("guard.py").read_text(encoding="utf-8"),
        "domain.json": json.dumps(domain) + "\n",
        ORIGIN: finding.origin.text,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--package: expected to write {folder}, got: {error}; choose another folder") from error
    return [folder / name for name in texts]


def _check_folder(folder: Path) -> None:
    name = folder.resolve().name
    if not name.isidentifier():
        raise ConfigError(
            f"--package: expected a folder whose name can be imported (letters, digits, _), got {name!r}; rename it"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"--package: expected a folder, got the file {folder}; name another one")
    ours = folder / "patch.py"
    if any(folder.iterdir()) and not (ours.exists() and ours.read_text(encoding="utf-8").startswith(_MARK)):
        raise ConfigError(
            f"--package: expected a new or empty folder, or an earlier package of evo apply, got {folder}; "
            "name another one"
        )

"""Reads runs; never changes them.

    import analysis
    trials = analysis.load("runs/softmax-001")["trials"]  # a pyarrow.Table; docs/export.md has the columns

Importing this package imports no library; `analysis.load` imports pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def load(*folders: Path | str, tables: tuple[str, ...] = (), with_text: bool = False) -> dict[str, pa.Table]:
    """The runs in `folders` as tables by name: all, or those in `tables`.  See `analysis.tables.load`."""
    from analysis.tables import load

    return load(*folders, tables=tables, with_text=with_text)

"""`evo export`: runs as tables that other programs read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evo.commands.parts import say
from evo.errors import ConfigError

FORMATS = ("parquet", "csv", "jsonl")


def add(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write runs as Parquet, CSV or JSON lines",
        description="Writes the tables of one or more runs into a new folder; also while they run.  docs/export.md "
        "describes every column.",
    )
    export.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")
    export.add_argument("--format", default="parquet", metavar="F", help=f"{', '.join(FORMATS)} (default: parquet)")
    export.add_argument("--with-text", action="store_true", help="prompts and answers of language models too")
    export.set_defaults(command=_export)


def _export(arguments: argparse.Namespace) -> int:
    if arguments.format not in FORMATS:
        raise ConfigError(f"--format: expected one of {', '.join(FORMATS)}, got {arguments.format!r}")
    try:
        from analysis.export import export
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ConfigError(
            "expected pyarrow, which exports are written with, to be installed; pip install 'evo-triton[analysis]'"
        ) from error
    written = export(arguments.runs, arguments.out, arguments.format, with_text=arguments.with_text)
    for name, rows in written.rows.items():
        say(f"{arguments.out / name}: {rows:,} rows")
    if written.estimated:
        say(f"estimated, not measured: the speedups of {', '.join(written.estimated)}")
    return 0

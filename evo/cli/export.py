"""`evo export`: writes runs as tables for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.cli.common import say
from evo.core.errors import ConfigError
from evo.storage.folders import run_folder, runs_in

if TYPE_CHECKING:
    from analysis.export import Exported

FORMATS, TRAINING = ("parquet", "csv", "jsonl"), ("sft", "grpo")
SHOWN = 5  # names of runs in a line


def add(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write runs as Parquet, CSV or JSON lines",
        description="Writes the tables of one or more runs into a new folder, also while they run; or, as sft and "
        "grpo, training data out of the answers of language models.  docs/export.md describes every column.",
    )
    export.add_argument("runs", nargs="+", type=run_folder, metavar="RUN", help="the folder of a run, or of many")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet")
    names = ", ".join(FORMATS + TRAINING)
    export.add_argument("--format", default="parquet", metavar="F", help=f"{names} (default: parquet)")
    export.add_argument("--with-text", action="store_true", help="prompts and answers of language models too (tables)")
    export.add_argument("--allow-estimated", action="store_true", help="gains that no GPU measured too (sft)")
    export.set_defaults(command=_export)


def _export(arguments: argparse.Namespace) -> int:
    if arguments.format not in FORMATS + TRAINING:
        raise ConfigError(f"--format: expected one of {', '.join(FORMATS + TRAINING)}, got {arguments.format!r}")
    for option, formats in (("with_text", FORMATS), ("allow_estimated", ("sft",))):
        if getattr(arguments, option) and arguments.format not in formats:
            name = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{name}: expected --format {', '.join(formats)}, got {arguments.format}; leave it out")
    written = _write(arguments)
    for name, rows in written.rows.items():
        say(f"{arguments.out / name}: {rows:,} rows")
    if not written.asked:
        say("no language model was asked in these runs, so there are no answers to train on; see evo run --model")
    elif arguments.format in TRAINING and not any(written.rows.values()):
        by_gpu = arguments.format == "sft" and not arguments.allow_estimated and written.estimated
        hint = "; no GPU measured all of these runs: --allow-estimated takes estimated gains too" if by_gpu else ""
        say(f"nothing to train on: no answer is one that {arguments.format} takes{hint}")
    for note, count in written.notes.items():
        say(f"{count:,} answers {note}")
    if written.estimated:
        names = ", ".join(written.estimated[:SHOWN])
        more = len(written.estimated) - SHOWN
        say(f"estimated, not measured: the speedups of {names}{f' and {more} more' if more > 0 else ''}")
    return 0


def _write(arguments: argparse.Namespace) -> Exported:
    with common.pyarrow_for("exports, which are written with it"):
        from analysis.export import export, export_training
    runs = [run for folder in arguments.runs for run in runs_in(folder)]
    if arguments.format in TRAINING:
        from operators.registry import LLM_OPERATORS

        return export_training(
            runs, arguments.out, arguments.format, operators=LLM_OPERATORS, allow_estimated=arguments.allow_estimated
        )
    return export(runs, arguments.out, arguments.format, with_text=arguments.with_text)

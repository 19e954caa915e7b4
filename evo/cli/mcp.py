"""`evo mcp`: tools for a language model over standard input and output."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evo.cli.serve import add_service, missing, open_parts


def add(commands: Any) -> None:
    mcp = commands.add_parser(
        "mcp",
        help="tools for a language model over MCP, on standard input and output",
        description="An agent starts this command and talks to it (docs/service.md). evo serve has the same tools "
        "over HTTP.",
    )
    mcp.add_argument("--dir", type=Path, metavar="DIR", help="its state (default: a free runs/mcp-NUMBER)")
    add_service(mcp)
    mcp.set_defaults(command=_mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    try:
        from evo.service.mcp import make_server, run_stdio
    except ModuleNotFoundError as error:
        raise missing(error) from error

    parts = open_parts(arguments, arguments.dir)
    try:
        run_stdio(make_server(parts.service, parts.tasks, parts.searches, parts.target), parts.service)
    finally:
        parts.close_searches()
    return 0

"""`evo serve`: evaluates for clients over HTTP, and for language models over MCP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from evo.service.assemble import Parts

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def add(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="evaluate kernels for clients over HTTP and MCP",
        description="Answers requests until SIGTERM or Ctrl-C, then finishes what runs; what waits is evaluated after "
        "the next start. A token is needed off this machine: EVO_SERVICE_TOKEN, or --token-file.",
    )
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen there (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8321, metavar="N", help="0: any free one (default: 8321)")
    serve.add_argument(
        "--dir", type=Path, default=Path("runs/service"), metavar="DIR", help="its state (default: runs/service)"
    )
    serve.add_argument("--token-file", type=Path, metavar="FILE", help="lines of NAME TOKEN")
    serve.add_argument("--rate", type=float, metavar="R", help="requests a second of one token (default: 1000)")
    add_service(serve)
    serve.set_defaults(command=_serve)


def add_service(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every kind of service."""
    parser.add_argument(
        "--task",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a task folder that clients may name, beside the built-in tasks; may be repeated",
    )
    parser.add_argument("--workers", type=int, metavar="W", help="evaluations at once (default: as CPUs and GPUs take)")
    parser.add_argument(
        "--queue", type=int, default=4096, metavar="N", help="evaluations of one token that may wait (default: 4096)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the random inputs (default: 0)")
    parser.add_argument(
        "--allow-task-code",
        action="store_true",
        help="let clients upload a task.py, which runs as this process: for clients that may do anything here",
    )
    common.add_devices(parser)


def open_parts(arguments: argparse.Namespace, folder: Path | None) -> Parts:
    """The service that the options of `add_service` ask for; what evaluates is said on stderr."""
    from evo.service.assemble import open_service

    common.one_thread_each()
    parts = open_service(
        folder,
        arguments.task,
        gpus=arguments.gpus,
        target=arguments.target,
        ray_address=arguments.ray_address,
        workers=arguments.workers,
        queue=arguments.queue,
        seed=arguments.seed,
        allow_code=arguments.allow_task_code,
    )
    for line in [*parts.lines, f"state in {parts.folder}"]:
        common.Aside().say(line)
    return parts


def missing(error: ModuleNotFoundError) -> ConfigError:
    """The error for a library of the extra `serve` that is not installed."""
    return ConfigError(f"expected {error.name} to be installed, for a service; {how_to_install('serve')}")


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from evo.service.app import listen, make_app, serve
        from evo.service.mcp import make_server
    except ModuleNotFoundError as error:
        raise missing(error) from error
    from evo.service.guard import Access, Limits, read_tokens

    tokens = read_tokens(arguments.token_file, os.environ)
    _check_open(arguments, bool(tokens))
    limits = Limits() if arguments.rate is None else Limits(rate=arguments.rate)
    if not limits.rate > 0:
        raise ConfigError(f"--rate: expected a number above 0, got {arguments.rate:g}")
    with listen(arguments.host, arguments.port) as bound:
        parts = open_parts(arguments, arguments.dir)
        server = make_server(parts.service, parts.tasks, parts.searches, parts.target)
        app = make_app(parts.service, parts.tasks, Access(tokens), limits, server)
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        common.say(f"serving on http://{host}:{bound.getsockname()[1]} (MCP: /mcp, requests: /docs)")
        try:
            serve(app, parts.service, bound)
        finally:
            parts.close_searches()
    return 0


def _check_open(arguments: argparse.Namespace, protected: bool) -> None:
    """Raises ConfigError for a service that strangers could use."""
    how = "set EVO_SERVICE_TOKEN, or give --token-file FILE with lines of NAME TOKEN"
    if not protected and arguments.host not in _LOOPBACK:
        raise ConfigError(f"--host {arguments.host}: expected a token for clients of other machines, got none; {how}")
    if not protected and arguments.allow_task_code:
        raise ConfigError(f"--allow-task-code: expected a token, for task.py runs as this process, got none; {how}")

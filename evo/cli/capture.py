"""`evo capture`: runs a program with its Triton kernels watched, and lists them."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.cli import common
from evo.core.errors import ConfigError
from evo.core.text import quoted

if TYPE_CHECKING:
    from evo.programs.capture import Capture, CapturedKernel
    from evo.programs.compare import Compared

UNKNOWN = {
    "none": "this machine has no GPU: launches were noted and not made, so times are unknown, and so are values that "
    "kernels compute",
    "interpreter": "Triton's interpreter ran the kernels: times on a GPU are unknown",
}
WIDTH = 160  # of the table, if it is not for a terminal


def add(commands: Any) -> None:
    capture = commands.add_parser(
        "capture",
        help="run a program and list its Triton kernels: calls, shapes, GPU time; or compare whole programs",
        description="Runs PROGRAM, whose results do not change, and writes what it saw of its kernels to a folder, "
        "for `evo tasks new NAME --from CAPTURE KERNEL` (docs/capture.md). Exit code 0: done; 1: the program failed, "
        "launched no kernel, or with --compare: outputs differ; 2: misuse.",
    )
    capture.add_argument("--out", type=Path, metavar="DIR", help="a new folder (default: captures/NAME-NNN)")
    capture.add_argument(
        "--keep-values", action="store_true", help="keep values that cannot be drawn: indices, lengths, masks, tables"
    )
    capture.add_argument("--json", action="store_true", help="print JSON; what the program prints goes to stderr")
    group = capture.add_argument_group("comparing whole programs", "see docs/capture.md")
    group.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="run PROGRAM alternately with A and B: `original`, or a folder of `evo apply RUN --package DIR`; several "
        "folders with commas between them",
    )
    group.add_argument(
        "--repeats", type=int, default=6, metavar="N", help="pairs of timed runs (default: 6, least for an interval)"
    )
    group.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X", help="relative difference of outputs allowed (default: 0)"
    )
    group.add_argument("--output", type=Path, metavar="FILE", help="outputs: a .pt, .npz, .npy or .json of the program")
    group.add_argument(
        "--numbers", metavar="REGEX", help="outputs: numbers in what the program prints, e.g. 'loss (.*)'"
    )
    capture.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="for example: python train.py")
    capture.set_defaults(command=_capture)


def _capture(arguments: argparse.Namespace) -> int:
    from evo.programs.capture import read
    from evo.programs.run import new_folder, run_program

    command = program_of(arguments)
    if arguments.compare is not None:
        return _compare(arguments, command)
    folder = arguments.out or new_folder(command)
    if any(folder.glob("process-*.json")):
        raise ConfigError(f"--out: expected a new folder, but {folder} has a capture; choose another")
    ended = run_program(command, watch=folder, keep_values=arguments.keep_values, quiet=arguments.json)
    if ended.code:
        print(f"evo: the program ended with exit code {ended.code}", file=sys.stderr)
    if not any(folder.glob("process-*.json")):
        print(f"evo: no Triton kernel was launched by: {shlex.join(command)}", file=sys.stderr)
        return common.EXIT_NOT_OK
    capture = read(folder)
    if arguments.json:
        common.say(json.dumps(capture.data()))
    else:
        _show(capture)
    return common.EXIT_NOT_OK if ended.code else 0


def _compare(arguments: argparse.Namespace, command: list[str]) -> int:
    from evo.programs.compare import compare, outputs, side_of

    if arguments.repeats < 1 or not arguments.tolerance >= 0:
        raise ConfigError(
            "expected --repeats of at least 1 and a --tolerance of at least 0, got "
            f"{arguments.repeats} and {arguments.tolerance}"
        )
    first, second = map(side_of, arguments.compare)
    wanted = outputs(arguments.output, arguments.numbers)
    compared = compare(
        command,
        (first, second),
        wanted,
        repeats=arguments.repeats,
        tolerance=arguments.tolerance,
        say=common.Aside().say,
    )
    if arguments.json:
        common.say(json.dumps(compared.data()))
    else:
        _show_compared(compared)
    return 0 if compared.equal else common.EXIT_NOT_OK


def _show_compared(compared: Compared) -> None:
    for side in compared.sides:
        where = f" ({side.worst})" if side.worst else ""
        median = statistics.median(side.seconds)
        common.say(f"{side.name}: median {median:.3f} s; outputs differ by at most {side.deviation:.3g}{where}")
        for line in side.report.splitlines():
            common.say(f"    {line}")
    verdict = "the same" if compared.equal else "NOT the same"
    common.say(
        f"outputs are {verdict} within {compared.tolerance:g}, against the first run of {compared.sides[0].name}"
    )
    ratio = compared.ratio
    known = math.isfinite(ratio.high)
    interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]" if known else "no interval: it needs 6 pairs or more"
    common.say(f"end to end: {ratio.ratio:.3f}x as fast with {compared.sides[1].name}, 95 % {interval}")
    times: dict[str, list[str]] = {}
    for number, side in enumerate(compared.sides):
        for kernel in side.capture.kernels if side.capture is not None else ():
            us = "unknown" if kernel.gpu_us is None else f"{kernel.gpu_us / 1000:.3f} ms"
            times.setdefault(kernel.attribute, ["-", "-"])[number] = f"{us} in {kernel.launches} calls"
    for name, (before, after) in times.items():
        common.say(f"    {name}: {before}; {after}")


def program_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the command after `--`.  Raises ConfigError without one."""
    command = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not command:
        raise ConfigError("expected a program after --, got none; for example: evo capture -- python train.py")
    return list(command)


def _show(capture: Capture) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for name in ("kernel", "calls", "shapes", "GPU time", "share", "host function", "launched at"):
        table.add_column(name, justify="right" if name in ("calls", "shapes", "GPU time", "share") else "left")
    for kernel in capture.kernels:
        table.add_row(*_row(capture, kernel))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(table)
    for line in notes(capture):
        common.say(line)
    offered = [kernel for kernel in capture.kernels if kernel.kind == "triton"]
    common.say(f"capture: {capture.folder}")
    if offered:
        name = offered[0].attribute
        common.say(f"make a task of a kernel: evo tasks new NAME --from {quoted(capture.folder)} {name}")


def _row(capture: Capture, kernel: CapturedKernel) -> tuple[str, ...]:
    share, host = capture.share(kernel), capture.host_of(kernel)
    site = kernel.sites[0] if kernel.sites else None
    name = kernel.attribute if kernel.kind == "triton" else f"{kernel.attribute} (torch.compile's own)"
    return (
        name,
        str(kernel.launches),
        str(kernel.distinct) if kernel.kind == "triton" else "",
        "unknown" if kernel.gpu_us is None else f"{kernel.gpu_us / 1000:.3f} ms",
        "" if share is None else f"{share:.1%}",
        "" if host is None else host.name,
        "" if site is None else f"{_short(site['file'])}:{site['line']} in {site['function']}",
    )


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else "/".join(path.parts[-3:])


def notes(capture: Capture) -> list[str]:
    """Returns what a reader of the list has to know of it."""
    lines = [UNKNOWN[device] for device in capture.devices if device in UNKNOWN]
    if graphs := sum(kernel.in_graphs for kernel in capture.kernels):
        lines.append(f"{graphs} launches were into CUDA graphs: replays of a graph, and their time, are not seen")
    if any(kernel.kind == "inductor" for kernel in capture.kernels):
        lines.append("kernels that torch.compile wrote are listed for their share, and no task is made of them")
    if len(capture.processes) > 1:
        lines.append(f"{len(capture.processes)} processes launched kernels; calls and times are those of all")
    for host in capture.hosts.values():
        if host.missed:
            lines.append(
                f"{host.name}: {host.missed} call began before it was watched, so its arguments are unknown; functions "
                "in a module, and not in the program's main file, are watched from the first call"
            )
        if host.rest:
            lines.append(f"{host.name}: {host.rest} calls differ from the first {len(host.calls)} and are only counted")
    lines += [f"trouble: {text}" for process in capture.processes for text in process["troubles"]]
    return lines

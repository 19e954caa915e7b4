"""Reads a capture: what one or several processes of a program wrote, as one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evo.core.errors import ConfigError
from evo.core.text import did_you_mean

VERSION = 1


@dataclass
class CapturedCall:
    """A distinct call: how often it was made, and its time on the GPU in microseconds for all of them.

    gpu_us is None if it was not measured.  The other fields are those of `evo.programs.notes.CallNotes`.
    """

    form: Mapping[str, Any]
    arguments: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    aliases: Mapping[str, str]
    result: Any
    trouble: str
    folder: Path
    count: int
    gpu_us: float | None

    @property
    def key(self) -> str:
        """What calls of several processes are merged by: all but values of floats."""
        places = [
            {k: a["tensor"][k] for k in ("shape", "strides", "dtype", "offset", "alignment")} if "tensor" in a else a
            for a in self.arguments
        ]
        return json.dumps([self.form, places, self.trouble], sort_keys=True)


@dataclass
class CapturedHost:
    """A host function, see `evo.programs.hosts`."""

    module: str
    attribute: str
    file: str
    line: int
    sha256: str | None
    package: str | None
    package_version: str | None
    source: str
    not_cut: str
    left_out: Sequence[str]  # decorators that the source lacks, and why
    kernels: Sequence[str]
    calls: list[CapturedCall] = field(default_factory=list)
    missed: int = 0
    rest: int = 0  # calls that are in `calls` no more: there were too many different ones

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


@dataclass
class CapturedKernel(CapturedHost):
    """A kernel.  `calls` are its launches, also those inside host functions."""

    kind: str = "triton"
    launches: int = 0
    distinct: int = 0
    gpu_us: float | None = None
    in_graphs: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    configs: dict[str, int] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Capture:
    """What was seen of a program, over all its processes."""

    folder: Path
    processes: list[dict[str, Any]]
    kernels: list[CapturedKernel]
    hosts: dict[str, CapturedHost]

    @property
    def total_us(self) -> float | None:
        """GPU time of all kernels that were seen; None if no time is known."""
        known = [kernel.gpu_us for kernel in self.kernels if kernel.gpu_us is not None]
        return sum(known) if known else None

    @property
    def devices(self) -> list[str]:
        return sorted({process["device"] for process in self.processes})

    def share(self, kernel: CapturedKernel) -> float | None:
        """Returns the share of a kernel in the time of all."""
        total = self.total_us
        return None if not total or kernel.gpu_us is None else kernel.gpu_us / total

    def named(self, name: str) -> list[CapturedKernel]:
        """Returns the kernels of that name, with or without their modules."""
        return [k for k in self.kernels if name in (k.name, k.attribute)]

    def kernel(self, name: str) -> CapturedKernel:
        """Returns the kernel of that name, with or without its module.  Raises ConfigError if there is not one."""
        names = [k.name for k in self.kernels]
        found = self.named(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"expected the name of one kernel, got {name!r}, which several are called: "
                f"{', '.join(k.name for k in found)}; give the whole name"
            )
        raise ConfigError(
            f"expected a kernel of the capture {self.folder}, got {name!r}; it has {', '.join(names) or 'none'}"
            f"{did_you_mean(name, [*names, *(k.attribute for k in self.kernels)])}"
        )

    def host_of(self, kernel: CapturedKernel) -> CapturedHost | None:
        """Returns the host function with most launches of a kernel; None if most are outside of one."""
        name = max(kernel.hosts, key=lambda host: kernel.hosts[host], default="")
        return self.hosts.get(name)

    def data(self) -> dict[str, Any]:
        """Returns the list of kernels for JSON."""
        listed = []
        for kernel in self.kernels:
            host = self.host_of(kernel)
            listed.append(
                {
                    "kernel": kernel.name,
                    "kind": kernel.kind,
                    "launches": kernel.launches,
                    "distinct_calls": kernel.distinct,
                    "gpu_us": kernel.gpu_us,
                    "share": self.share(kernel),
                    "in_graphs": kernel.in_graphs,
                    "host": None if host is None else host.name,
                    "hosts": kernel.hosts,
                    "configs": kernel.configs,
                    "sites": kernel.sites,
                    "package": kernel.package,
                    "package_version": kernel.package_version,
                }
            )
        return {"folder": str(self.folder), "processes": self.processes, "kernels": listed}


def read(folder: Path) -> Capture:
    """Returns the capture in a folder.  Raises ConfigError if it has none."""
    files = sorted(folder.glob("process-*.json"))
    if not files:
        raise ConfigError(
            f"expected a folder that `evo capture --out DIR -- PROGRAM` wrote, got {folder} without a file "
            "process-*.json; if the program ran, it launched no Triton kernel"
        )
    capture = Capture(folder, [], [], {})
    kernels: dict[str, CapturedKernel] = {}
    for file in files:
        data = _load(file)
        process = {k: v for k, v in data.items() if k not in ("kernels", "hosts", "version")}
        capture.processes.append(process)
        for raw in data["hosts"]:
            _merge_host(capture.hosts, raw, folder, timed=data["device"] == "gpu")
        for raw in data["kernels"]:
            _merge_kernel(kernels, raw, folder, timed=data["device"] == "gpu")
    for kernel in kernels.values():
        kernel.distinct = len(kernel.calls) + bool(kernel.rest)
    capture.kernels = sorted(kernels.values(), key=lambda k: (-(k.gpu_us or 0.0), -k.launches, k.name))
    return capture


def _load(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version = data["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"expected a file of a capture at {file}, got: {error}; capture the program again") from error
    if version != VERSION:
        raise ConfigError(f"{file}: expected version {VERSION}, got {version}; capture the program again")
    return dict(data)


_FIELDS = (
    "module",
    "attribute",
    "file",
    "line",
    "sha256",
    "package",
    "package_version",
    "source",
    "not_cut",
    "left_out",
)


def _merge_host(hosts: dict[str, CapturedHost], raw: Mapping[str, Any], folder: Path, timed: bool) -> None:
    name = f"{raw['module']}.{raw['attribute']}"
    if name not in hosts:
        hosts[name] = CapturedHost(**{f: raw[f] for f in _FIELDS}, kernels=raw["kernels"])
    host = hosts[name]
    host.kernels = sorted({*host.kernels, *raw["kernels"]})
    host.missed += raw["missed"]
    host.rest += raw["rest"]["count"]
    _merge_calls(host.calls, raw["calls"], folder, timed)


def _merge_kernel(kernels: dict[str, CapturedKernel], raw: Mapping[str, Any], folder: Path, timed: bool) -> None:
    name = f"{raw['module']}.{raw['attribute']}"
    if name not in kernels:
        fields: dict[str, Any] = {f: raw.get(f) for f in _FIELDS}
        if raw["kind"] != "triton":
            fields |= {"source": "", "not_cut": "torch.compile wrote it", "left_out": []}
        kernels[name] = CapturedKernel(**fields, kernels=[name], kind=raw["kind"])
    kernel = kernels[name]
    kernel.launches += raw["launches"]
    kernel.in_graphs += raw["in_graphs"]
    kernel.rest += raw["rest"]["count"]
    for field_name in ("hosts", "configs"):
        counts = getattr(kernel, field_name)
        for key, count in raw[field_name].items():
            counts[key] = counts.get(key, 0) + count
    _merge_sites(kernel.sites, raw["sites"])
    us = _scaled(raw["us"], raw["timed"], raw["launches"]) if timed else None
    kernel.gpu_us = kernel.gpu_us if us is None else (kernel.gpu_us or 0.0) + us
    _merge_calls(kernel.calls, raw["calls"], folder, timed)


def _merge_sites(sites: list[dict[str, Any]], more: Iterable[dict[str, Any]]) -> None:
    for site in more:
        place = [known for known in sites if all(known[k] == site[k] for k in ("file", "line", "function"))]
        if place:
            place[0]["count"] += site["count"]
        else:
            sites.append(dict(site))
    sites.sort(key=lambda site: -site["count"])


def _merge_calls(calls: list[CapturedCall], more: Iterable[Mapping[str, Any]], folder: Path, timed: bool) -> None:
    known = {call.key: call for call in calls if call.form}
    for raw in more:
        us = _scaled(raw["us"], raw["timed"], raw["launches"]) if timed else None
        fields = {f: raw[f] for f in ("form", "arguments", "names", "aliases", "result", "trouble", "count")}
        call = CapturedCall(**fields, folder=folder, gpu_us=us)
        same = known.get(call.key) if call.form else None
        if same is None:
            calls.append(call)
            known[call.key] = call
        else:
            same.count += call.count
            same.gpu_us = same.gpu_us if us is None else (same.gpu_us or 0.0) + us


def _scaled(us: float, timed: int, launches: int) -> float | None:
    """Returns the time of all launches, if some were timed: those without a time take the mean of the others."""
    return us * launches / timed if timed else None

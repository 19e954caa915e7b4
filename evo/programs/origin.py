"""Reads origin.json of a task that was made of a user's program: what was captured, and its calls there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.core.errors import StoreError

FILE = "origin.json"
VERSION = 1
FUNCTION, KERNEL = "function", "kernel"  # what is replaced: a host function, or a `@triton.jit` kernel itself


@dataclass(frozen=True)
class TensorForm:
    """The form of a tensor; `stride` and `offset` in elements, `alignment` of its first element in bytes."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    alignment: int = 16


@dataclass(frozen=True)
class Argument:
    """An argument of a captured call: a tensor, a plain value, or the same window of memory as another argument."""

    name: str
    tensor: TensorForm | None = None
    value: Any = None
    alias: str = ""  # the name of that argument


@dataclass(frozen=True)
class OriginCall:
    """A distinct call in the program.

    count: how often it was made.  gpu_us: microseconds on the GPU, None if no GPU timed it.  grid: of the launch, for a
    kernel; None if it was not noted.  result: the structure of what the program's function returned, None if that was
    not noted: {"tensor": number}, {"value": plain value}, {"tuple": [structure]}, and so on.
    """

    arguments: tuple[Argument, ...]
    count: int
    gpu_us: float | None
    grid: tuple[int, ...] | None = None
    result: Any = None


@dataclass(frozen=True)
class Origin:
    """The function or kernel that a task was made of."""

    module: str  # dotted name
    attribute: str  # qualified name in the module, e.g. "rms_norm_forward"
    kind: str  # FUNCTION or KERNEL
    file: Path  # of its source
    sha256: str  # of that file
    package: str | None  # the distribution that installed it
    package_version: str | None
    calls: tuple[OriginCall, ...]
    text: str  # origin.json itself

    @property
    def name(self) -> str:
        """The whole dotted name."""
        return f"{self.module}.{self.attribute}"

    @property
    def last(self) -> str:
        """The name of the function or kernel itself."""
        return self.attribute.rpartition(".")[2]


def read_origin(folder: Path) -> Origin | None:
    """Returns the record in `folder`; None if the task was not made of a program.

    Raises StoreError for a file that says something else.
    """
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
        if raw["version"] != VERSION:
            raise ValueError(f"version {raw['version']}, this evo reads version {VERSION}")
        if raw["kind"] not in (FUNCTION, KERNEL):
            raise ValueError(f"kind {raw['kind']!r}")
        texts = {name: str(raw[name]) for name in ("module", "attribute", "kind", "sha256")}
        return Origin(
            **texts,
            file=Path(raw["file"]),
            package=raw["package"],
            package_version=raw["package_version"],
            calls=tuple(map(_call, raw["calls"])),
            text=text,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"expected what `evo tasks new --from` wrote in {path}, got: {error!r}; make the task again"
        ) from error


def _call(raw: Mapping[str, Any]) -> OriginCall:
    us, grid = raw["gpu_us"], raw.get("grid")
    return OriginCall(
        tuple(map(_argument, raw["arguments"])),
        int(raw["count"]),
        None if us is None else float(us),
        None if grid is None else tuple(map(int, grid)),
        raw.get("result"),
    )


def _argument(raw: Mapping[str, Any]) -> Argument:
    if "alias" in raw:
        return Argument(str(raw["name"]), alias=str(raw["alias"]))
    if "tensor" not in raw:
        return Argument(str(raw["name"]), value=raw["value"])
    form = raw["tensor"]
    shape, stride = (tuple(map(int, form[key])) for key in ("shape", "stride"))
    tensor = TensorForm(str(form["dtype"]), shape, stride, int(form["offset"]), int(form["alignment"]))
    return Argument(str(raw["name"]), tensor)

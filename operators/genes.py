"""The tunable parameters ("genes") of a candidate: integer literals that shape a launch, and how to set them.

A gene is a literal given to a launch (`BLOCK=128`, `num_warps=4`), a variable that holds a literal and flows to a
launch or a grid, an entry of a literal `triton.Config`, the `num_stages` of a `tl.range`, or an option a launch does
not name yet.  Expressions (`triton.next_power_of_2(n)`) are structure, not genes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from operators.dataflow import lanes_compared
from operators.source import Kernel, Launch, Source, add_argument, called, integer, names, parse, replace, walk

# What Triton takes where a launch does not say.
OPTION_DEFAULTS = {"num_warps": 4, "num_stages": 3}

_POWERS = tuple(2**k for k in range(14))  # 1..8192, the largest block along one axis
_VALUES: Mapping[str, tuple[int, ...]] = {
    "block": _POWERS,
    "dot": (16, 32, 64, 128, 256),  # a block that tl.dot takes: at least 16; above 256 a tile exceeds registers
    "warps": (1, 2, 4, 8, 16, 32),
    "stages": (1, 2, 3, 4, 5, 6),
    "group": (1, 2, 4, 8, 16, 32),
    "registers": (32, 40, 48, 64, 80, 96, 128, 168, 255),  # maxnreg: multiples of 8, the most a thread may have is 255
    "unroll": (1, 2, 4, 8),
}
_KIND_BY_NAME = {
    "num_warps": "warps", "num_stages": "stages", "maxnreg": "registers", "loop_unroll_factor": "unroll",
}  # fmt: skip
_BLOCK_NAME = re.compile(r"block|tile|chunk", re.IGNORECASE)
_GROUP_NAME = re.compile(r"group|swizzle", re.IGNORECASE)
# Flags and sizes: a literal here is part of what is computed, not of how.
_FIXED_NAME = re.compile(r"^(is|has|use|even|causal)(_|$)|dim|^[a-z]$|^(head|seq|hidden|vocab)", re.IGNORECASE)


@dataclass(frozen=True)
class Gene:
    """One tunable integer.  `name` is the same in every candidate that has the same kernel and parameter."""

    name: str  # "softmax_kernel.BLOCK"; a second launch of a kernel is "softmax_kernel@2.BLOCK"
    location: str  # where it stands, e.g. "softmax/launch/BLOCK"
    value: int
    values: tuple[int, ...]  # legal ones, ascending, the current one among them
    kind: str  # block | dot | warps | stages | group | registers | unroll | other

    def neighbours(self) -> tuple[int, ...]:
        """The legal values next to the current one."""
        at = self.values.index(self.value)
        return self.values[max(0, at - 1) : at] + self.values[at + 1 : at + 2]


Edit = Callable[[int], list[tuple[cst.CSTNode, object]]]


@dataclass(frozen=True, eq=False)
class _Site:
    gene: Gene
    literals: tuple[cst.Integer, ...]  # all change together; none where the option is to be added
    call: cst.Call | None = None  # the launch that gets the missing option
    option: str = ""


def get_genes(source: str) -> tuple[Gene, ...]:
    """The genes of a source, in the order of its launches; () where it is not Python or launches nothing."""
    return tuple(s.gene for s in _sites(source)[1].values())


def set_genes(source: str, values: Mapping[str, int]) -> str:
    """The source with some genes set; everything but those literals stays as it was.

    Raises ValueError for a gene the source does not have and for a value that is no positive integer.
    """
    parsed, sites = _sites(source)
    edits: list[tuple[cst.CSTNode, object]] = []
    added: dict[int, tuple[cst.Call, list[str]]] = {}
    for name, value in values.items():
        if name not in sites:
            raise ValueError(f"no gene {name!r} in this source; it has: {', '.join(sites) or 'none'}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"gene {name!r} takes a positive integer, got {value!r}")
        site = sites[name]
        if value == site.gene.value:
            continue
        edits += [(n, n.with_changes(value=str(value))) for n in site.literals]
        if site.call is not None:
            added.setdefault(id(site.call), (site.call, []))[1].append(f"{site.option}={value}")
    edits += [(call, _adder(texts)) for call, texts in added.values()]
    if not edits or parsed is None:
        return source
    return str(replace(parsed.module, edits).code)


def _adder(texts: list[str]) -> Callable[[cst.Call], cst.Call]:
    def add(call: cst.Call) -> cst.Call:
        for text in texts:
            call = add_argument(call, text)
        return call

    return add


@lru_cache(maxsize=128)
def _sites(text: str) -> tuple[Source | None, Mapping[str, _Site]]:
    """The genes of a source by name, with the one tree whose nodes they are."""
    source = parse(text)
    found: dict[str, _Site] = {}
    taken: set[int] = set()  # ids of literals that belong to a gene already
    if source is None:
        return None, found
    for site in _all_sites(source):
        if taken.isdisjoint(id(n) for n in site.literals):
            taken |= {id(n) for n in site.literals}
            found.setdefault(site.gene.name, site)
    return source, found


def _all_sites(source: Source) -> Iterator[_Site]:
    launched: dict[str, int] = {}
    for launch in source.launches:
        kernel = launch.kernel
        launched[kernel.name] = launched.get(kernel.name, 0) + 1
        turn = launched[kernel.name]
        prefix = kernel.name if turn == 1 else f"{kernel.name}@{turn}"
        yield from _launch_sites(source, launch, prefix)
        yield from _grid_sites(source, launch)
    for kernel in source.kernels.values():
        yield from _config_sites(kernel)
        yield from _range_sites(kernel)


def _launch_sites(source: Source, launch: Launch, prefix: str) -> Iterator[_Site]:
    place = f"{launch.host.name.value if launch.host else 'module'}/launch"
    ambiguous = _shared_literals(source, launch)
    given = {k: a for k, a in launch.arguments.items() if k in launch.kernel.constexpr}
    for name, arg in {**given, **launch.options}.items():
        literal = source.resolve(arg.value, launch.host)
        if not isinstance(literal, cst.Integer):
            continue
        if literal is arg.value and integer(literal) in ambiguous:
            continue  # the grid repeats this number and it cannot be told for which parameter
        twins = _grid_literals(launch, int(literal.value, 0)) if literal is arg.value and name in given else ()
        site = _site(launch.kernel, name, f"{prefix}.{name}", f"{place}/{name}", (literal, *twins))
        if site is not None:
            yield site
    if launch.kernel.autotuned or launch.opaque:
        return
    for option, default in OPTION_DEFAULTS.items():
        if option not in launch.options:
            kind = _KIND_BY_NAME[option]
            gene = Gene(f"{prefix}.{option}", f"{place}/{option}", default, _VALUES[kind], kind)
            yield _Site(gene, (), launch.call, option)


def _grid_literals(launch: Launch, value: int) -> tuple[cst.Integer, ...]:
    """Literals of the host that divide a size by the block: `triton.cdiv(n, 128)`, `n // 128`."""
    found: list[cst.Integer] = []
    for node in walk(launch.host or launch.grid):
        divisor: cst.CSTNode | None = None
        if isinstance(node, cst.Call) and called(node).endswith("cdiv") and len(node.args) == 2:
            divisor = node.args[1].value
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide):
            divisor = node.right
        if isinstance(divisor, cst.Integer) and integer(divisor) == value:
            found.append(divisor)
    return tuple(found)


def _shared_literals(source: Source, launch: Launch) -> set[int]:
    """Numbers that the host divides by and that several parameters, or a rounding `+ 127`, could have meant."""
    given = [
        integer(a.value)
        for other in source.launches
        if other.host is launch.host
        for k, a in other.arguments.items()
        if k in other.kernel.constexpr
    ]
    numbers = {v for v in given if v is not None and _grid_literals(launch, v)}
    in_host = {integer(n) for n in walk(launch.host or launch.grid)}
    return {v for v in numbers if given.count(v) > 1 or v - 1 in in_host - {0, 1}}


def _grid_sites(source: Source, launch: Launch) -> Iterator[_Site]:
    """Variables that only the grid uses, e.g. how many programs a multiprocessor gets."""
    grid = source.resolve(launch.grid, launch.host)
    if grid is None or launch.host is None:
        return
    for name in sorted(names(grid)):
        literal = source.resolve(cst.Name(name), launch.host)
        if isinstance(literal, cst.Integer):
            host = launch.host.name.value
            site = _site(launch.kernel, name, f"{host}.{name}", f"{host}/{name}", (literal,))
            if site is not None:
                yield site


def _config_sites(kernel: Kernel) -> Iterator[_Site]:
    """Literals of the `triton.Config` entries above a kernel."""
    configs = [
        n for d in kernel.node.decorators for n in walk(d) if isinstance(n, cst.Call) and called(n).endswith("Config")
    ]
    for index, config in enumerate(configs):
        for name, literal in _config_entries(config):
            place = f"{kernel.name}/config{index}/{name}"
            site = _site(kernel, name, f"{kernel.name}.config{index}.{name}", place, (literal,))
            if site is not None:
                yield site


def _config_entries(config: cst.Call) -> Iterator[tuple[str, cst.Integer]]:
    for arg in config.args:
        if isinstance(arg.value, cst.Dict):
            for element in arg.value.elements:
                match element:
                    case cst.DictElement(cst.SimpleString() as key, cst.Integer() as value):
                        yield str(key.evaluated_value), value
        elif arg.keyword is not None and isinstance(arg.value, cst.Integer):
            yield arg.keyword.value, arg.value


def _range_sites(kernel: Kernel) -> Iterator[_Site]:
    """`num_stages` and `loop_unroll_factor` of the loops in a kernel."""
    for index, call in enumerate(kernel.calls("tl.range")):
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in _KIND_BY_NAME and isinstance(arg.value, cst.Integer):
                name = f"range{index}.{arg.keyword.value}"
                site = _site(kernel, arg.keyword.value, f"{kernel.name}.{name}", f"{kernel.name}/{name}", (arg.value,))
                if site is not None:
                    yield site


def _site(kernel: Kernel, parameter: str, name: str, location: str, literals: tuple[cst.Integer, ...]) -> _Site | None:
    value = integer(literals[0])
    kind = _kind(kernel, parameter)
    if kind is None or value is None or value < 1:
        return None
    legal = _VALUES.get(kind) or tuple(
        n // d for n, d in ((value, 4), (value, 2), (value * 2, 1), (value * 4, 1)) if n >= d
    )
    return _Site(Gene(name, location, value, tuple(sorted({*legal, value})), kind), literals)


def _kind(kernel: Kernel, parameter: str) -> str | None:
    """What sort of number a parameter takes; None for flags and sizes, which are not tunable."""
    if parameter in _KIND_BY_NAME:
        return _KIND_BY_NAME[parameter]
    ranged = any(parameter in names(a.value) for c in kernel.calls("tl.arange") for a in c.args)
    if _GROUP_NAME.search(parameter):
        return "group"
    if _FIXED_NAME.search(parameter) and not _BLOCK_NAME.search(parameter):
        return None
    if ranged and not _BLOCK_NAME.search(parameter) and not lanes_compared(kernel, parameter):
        return None  # every lane is used: a size, not a tile
    if ranged or _BLOCK_NAME.search(parameter):
        return "dot" if ranged and kernel.calls("tl.dot") else "block"
    return "other"

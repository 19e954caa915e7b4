"""Finds and sets the tunable parameters ("genes") of a candidate: integer literals that shape a launch.

A gene is one of:

- a literal given to a launch (`BLOCK=128`, `num_warps=4`);
- a variable that holds a literal and flows to a launch or a grid;
- an entry of a `triton.Config`, or the `num_stages` of a `tl.range`;
- an option that a launch does not name yet;
- warps, stages and blocks that the host computes, if something is cut into these blocks.  Their value is COMPUTED until
  a number replaces the expression.

A block that has to cover a whole row (`triton.next_power_of_2(n)`) is structure, not a gene.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import libcst as cst

from operators.dataflow import lanes_compared
from operators.overrides import Override, divisor, find_override, hint, is_tiled
from operators.source import (
    Kernel,
    LaunchSite,
    Source,
    add_argument,
    bindings,
    called,
    code,
    integer,
    names,
    parameters,
    parse,
    walk,
)

# What Triton takes if a launch does not say.
OPTION_DEFAULTS = {"num_warps": 4, "num_stages": 3}

COMPUTED = 0  # the value of a gene that the host computes

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
    value: int  # COMPUTED if it is an expression
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
    literals: tuple[cst.BaseExpression, ...]  # all change together; () if the option is to be added.
    call: cst.Call | None = None  # the launch (or configuration) that gets the missing option
    option: str = ""
    override: Override | None = None  # the place at which the variable gets its number
    default: cst.Integer | None = None  # the literal that this takes the place of

    @property
    def owns(self) -> set[object]:
        """The nodes and variables that no other gene may change."""
        settled = {(self.override.variable, id(self.override.anchor))} if self.override else set()
        return {id(n) for n in (*self.literals, self.default) if n is not None} | settled


def get_genes(source: str) -> tuple[Gene, ...]:
    """The genes of a source, in the order of its launches; () if it is not Python or launches nothing."""
    return tuple(s.gene for s in _sites(source)[1].values())


def set_genes(source: str, values: Mapping[str, int]) -> str:
    """The source with some genes set; everything but those literals stays as it was.

    Raises ValueError for a gene that the source does not have, and for a value that is not a positive integer.
    """
    parsed, sites = _sites(source)
    edits: list[tuple[cst.CSTNode, object]] = []
    added: dict[int, tuple[cst.Call, list[str]]] = {}
    beside: dict[int, list[tuple[Override, int]]] = {}
    for name, value in values.items():
        if name not in sites:
            raise ValueError(f"no gene {name!r} in this source; it has: {', '.join(sites) or 'none'}")
        site = sites[name]
        number = isinstance(value, int) and not isinstance(value, bool)
        if not number or (value < 1 and value != site.gene.value):
            raise ValueError(f"gene {name!r} takes a positive integer, got {value!r}")
        if value == site.gene.value:
            continue
        edits += [(n, _numbered(n, value)) for n in site.literals]
        if site.call is not None:
            added.setdefault(id(site.call), (site.call, []))[1].append(f"{site.option}={value}")
        if site.override is not None:
            beside.setdefault(id(site.override.anchor), []).append((site.override, value))
    edits += [(call, _adder(texts)) for call, texts in added.values()]
    edits += [(settled[0][0].anchor, _settler(settled)) for settled in beside.values()]
    if not edits or parsed is None:
        return source
    return parsed.replaced(edits)


def _numbered(node: cst.BaseExpression, value: int) -> cst.BaseExpression:
    return node.with_changes(value=str(value)) if isinstance(node, cst.Integer) else cst.Integer(str(value))


def _settler(settled: list[tuple[Override, int]]) -> Callable[[cst.BaseStatement], cst.FlattenSentinel[Any]]:
    """An edit that puts `variable = number` before or after a statement."""
    before = [o.statement(v) for o, v in settled if not o.after]
    after = [o.statement(v) for o, v in settled if o.after]
    return lambda anchor: cst.FlattenSentinel([*before, anchor, *after])


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
    taken: set[object] = set()  # what belongs to a gene already.
    if source is None:
        return None, found
    for site in _all_sites(source):
        if taken.isdisjoint(site.owns):
            taken |= site.owns
            found.setdefault(site.gene.name, site)
    return source, found


def _all_sites(source: Source) -> Iterator[_Site]:
    launched: dict[str, int] = {}
    for launch in source.launches:
        kernel = launch.kernel
        launched[kernel.name] = launched.get(kernel.name, 0) + 1
        number = launched[kernel.name]
        prefix = kernel.name if number == 1 else f"{kernel.name}@{number}"
        yield from _launch_sites(source, launch, prefix)
        yield from _grid_sites(source, launch)
    for kernel in source.kernels.values():
        yield from _config_sites(source, kernel)
        yield from _range_sites(kernel)


def _launch_sites(source: Source, launch: LaunchSite, prefix: str) -> Iterator[_Site]:
    ambiguous = _shared_literals(source, launch)
    given = {k: a for k, a in launch.arguments.items() if k in launch.kernel.constexpr}
    options = OPTION_DEFAULTS if has_loops(source, launch.kernel) else {"num_warps"}
    for name, arg in {**given, **launch.options}.items():
        if name in OPTION_DEFAULTS and name not in options:
            continue
        literal = source.resolve(arg.value, launch.host)
        if not isinstance(literal, cst.Integer):
            site = _computed_site(launch, name, arg.value, f"{prefix}.{name}")
            if site is not None:
                yield site
            continue
        if _is_default(launch, literal):
            site = _given_site(launch, name, arg.value, literal, f"{prefix}.{name}")
            if site is not None:
                yield site
                continue
        if literal is arg.value and integer(literal) in ambiguous:
            continue  # the grid repeats this number, and it is not clear for which parameter
        repeated = _grid_literals(launch, int(literal.value, 0)) if literal is arg.value and name in given else ()
        site = _site(launch.kernel, name, f"{prefix}.{name}", (literal, *repeated))
        if site is not None and (site.gene.kind != "other" or _is_work(launch, name, arg.value)):
            yield site
    if launch.kernel.autotuned or launch.opaque:
        return
    for option in options:
        if option not in launch.options:
            yield _missing(launch.call, option, f"{prefix}.{option}")


def _missing(call: cst.Call, option: str, name: str) -> _Site:
    """An option that a launch or a configuration does not name, at what Triton takes then."""
    kind = _KIND_BY_NAME[option]
    return _Site(Gene(name, OPTION_DEFAULTS[option], _VALUES[kind], kind), (), call, option)


def has_loops(source: Source, kernel: Kernel) -> bool:
    """The kernel, or a function it calls, has a loop: without one there is nothing to pipeline in stages."""
    reached, todo = set(), [kernel]
    while todo:
        one = todo.pop()
        if one.name in reached:
            continue
        reached.add(one.name)
        if any(isinstance(n, (cst.For, cst.While)) for n in walk(one.node.body)):
            return True
        todo += [source.kernels[n] for n in names(one.node.body) if n in source.kernels]
    return False


def _computed_site(launch: LaunchSite, parameter: str, value: cst.BaseExpression, name: str) -> _Site | None:
    """An option, or a block that something is cut into, whose value the host computes.

    A number takes the place of an option's expression.  The grid depends on a block variable too, so the edit sets it
    once more after its last assignment.  If such an assignment exists already, its number is the gene.
    """
    if parameter in _KIND_BY_NAME:
        kind = _KIND_BY_NAME[parameter]
        return _Site(Gene(name, COMPUTED, (COMPUTED, *_VALUES[kind]), kind), (value,))
    kind = _kind(launch.kernel, parameter) or ""
    variable = value.value if isinstance(value, cst.Name) else ""
    if kind not in ("block", "dot") and not (kind == "other" and _is_shape(launch.kernel, parameter)):
        return None
    if _is_flag(value) or not is_tiled(launch, parameter, variable):
        return None
    if not variable:
        legal = _computed_values(launch.kernel, hint([value]))
        return _Site(Gene(name, COMPUTED, legal, kind), (value,)) if _by_meta(launch, parameter) else None
    override = find_override(launch, variable)
    if override is None:
        return None
    if override.literal is not None:
        return _site(launch.kernel, parameter, name, (override.literal,))
    legal = _computed_values(launch.kernel, hint(override.values))
    return _Site(Gene(name, COMPUTED, legal, kind), (), override=override)


def _is_default(launch: LaunchSite, literal: cst.Integer) -> bool:
    return launch.host is not None and any(p.default is literal for p in parameters(launch.host))


def _given_site(
    launch: LaunchSite, parameter: str, value: cst.BaseExpression, default: cst.Integer, name: str
) -> _Site | None:
    """A parameter of the host with a default, which callers may give themselves: its number is set in the body."""
    plain = _site(launch.kernel, parameter, name, (default,))
    if plain is None or not isinstance(value, cst.Name):
        return None
    if parameter in _KIND_BY_NAME:
        return _Site(plain.gene, (value,), default=default)
    override = find_override(launch, value.value) if is_tiled(launch, parameter, value.value) else None
    tile = plain.gene.kind in ("block", "dot")
    if not tile or override is None or override.after:
        return None
    return _Site(plain.gene, (), override=override, default=default)


def _is_work(launch: LaunchSite, parameter: str, value: cst.BaseExpression) -> bool:
    """Returns whether a number of another kind counts lanes, pieces or iterations, and is not computed with."""
    variable = value.value if isinstance(value, cst.Name) else ""
    loops = launch.kernel.calls("range", "tl.range", "tl.static_range")
    counted = any(parameter in names(a.value) for c in loops for a in c.args)
    return counted or _is_shape(launch.kernel, parameter) or is_tiled(launch, parameter, variable)


def _is_shape(kernel: Kernel, parameter: str) -> bool:
    """Returns whether some tile of the kernel has this many elements along an axis."""
    makers = kernel.calls("tl.arange", "tl.zeros", "tl.full", "tl.make_block_ptr")
    shapes = [a for c in makers for a in (c.args if called(c) != "tl.make_block_ptr" else c.args[-2:])]
    return any(parameter in names(a.value) for a in shapes)


def _is_flag(value: cst.BaseExpression) -> bool:
    """Something that is true or false, or a text."""
    kinds = (cst.Comparison, cst.BooleanOperation, cst.SimpleString)
    return isinstance(value, kinds) or (isinstance(value, cst.Name) and value.value in ("True", "False", "None"))


def _by_meta(launch: LaunchSite, parameter: str) -> bool:
    """The host asks for the block by the parameter's name only (`meta["BLOCK"]`), or not at all."""
    text = code(launch.arguments[parameter].value)
    return not any(code(d) == text for n in walk(launch.host or launch.grid) if (d := divisor(n)) is not None)


def _computed_values(kernel: Kernel, near: int | None) -> tuple[int, ...]:
    """Legal numbers for a block that is computed: within a factor of 8 of what its expression names."""
    legal = _VALUES["dot" if kernel.calls("tl.dot") else "block"]
    low, high = (near / 8, near * 8) if near else (16, 1024)
    return (COMPUTED, *(v for v in legal if low <= v <= high))


def _grid_literals(launch: LaunchSite, value: int) -> tuple[cst.Integer, ...]:
    """Literals of the host that divide a size by the block: `triton.cdiv(n, 128)`, `n // 128`."""
    return tuple(n for n in _divisors(launch.host or launch.grid) if integer(n) == value)


@lru_cache(maxsize=8)  # asked for each argument of each launch of a host
def _divisors(host: cst.CSTNode) -> tuple[cst.Integer, ...]:
    return tuple(piece for node in walk(host) if isinstance(piece := divisor(node), cst.Integer))


def _shared_literals(source: Source, launch: LaunchSite) -> set[int]:
    """Numbers that the host divides by and that several parameters, or a rounding `+ 127`, could have meant."""
    given = [
        integer(a.value)
        for other in source.launches
        if other.host is launch.host
        for k, a in other.arguments.items()
        if k in other.kernel.constexpr
    ]
    numbers = {v for v in set(given) if v is not None and _grid_literals(launch, v)}
    in_host = {integer(n) for n in walk(launch.host or launch.grid)}
    return {v for v in numbers if given.count(v) > 1 or v - 1 in in_host - {0, 1}}


def _grid_sites(source: Source, launch: LaunchSite) -> Iterator[_Site]:
    """Variables that only the grid uses, e.g. how many programs a multiprocessor gets."""
    grid = source.resolve(launch.grid, launch.host)
    if grid is None or launch.host is None:
        return
    for name in sorted(names(grid)):
        literal = source.resolve(cst.Name(name), launch.host)
        if isinstance(literal, cst.Integer):
            host = launch.host.name.value
            site = _site(launch.kernel, name, f"{host}.{name}", (literal,))
            if site is not None:
                yield site


def config_calls(source: Source, kernel: Kernel) -> list[cst.Call]:
    """The calls of `triton.Config` above a kernel, or in the lists and functions that its decorators name."""
    found: list[cst.Call] = []
    seen: set[str] = set()
    todo: list[cst.CSTNode] = [d for d in kernel.node.decorators if called(d.decorator).endswith("autotune")]
    while todo:
        node = todo.pop(0)
        found += [n for n in walk(node) if isinstance(n, cst.Call) and called(n).endswith("Config")]
        for name in sorted(names(node) - seen):
            seen.add(name)
            bound = bindings(source.module).get(name, [])
            todo += [v for v in bound if v is not None] if name not in source.hosts else [source.hosts[name].body]
    return found


def _config_sites(source: Source, kernel: Kernel) -> Iterator[_Site]:
    """Literals of the configurations of a kernel, and the options that they do not name."""
    options = OPTION_DEFAULTS if has_loops(source, kernel) else {"num_warps"}
    configs = config_calls(source, kernel)
    values: dict[str, set[int | None]] = {}
    for name, literal in (entry for config in configs for entry in config_entries(config)):
        values.setdefault(name, set()).add(integer(literal))
    for index, config in enumerate(configs):
        prefix = f"{kernel.name}.config{index}"
        for name, literal in config_entries(config):
            site = _site(kernel, name, f"{prefix}.{name}", (literal,))
            free = name in options or (name not in OPTION_DEFAULTS and (name in _KIND_BY_NAME or len(values[name]) > 1))
            if site is not None and (free or site.gene.kind in ("block", "dot", "group")):
                yield site
        given = {a.keyword.value for a in config.args if a.keyword is not None}
        if any(a.star for a in config.args) or sum(a.keyword is None for a in config.args) > 1:
            continue
        for option in options:
            if option not in given:
                yield _missing(config, option, f"{prefix}.{option}")


def config_entries(config: cst.Call) -> Iterator[tuple[str, cst.Integer]]:
    """Name and number of everything that a configuration gives as a literal."""
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
                site = _site(kernel, arg.keyword.value, f"{kernel.name}.{name}", (arg.value,))
                if site is not None:
                    yield site


def _site(kernel: Kernel, parameter: str, name: str, literals: tuple[cst.Integer, ...]) -> _Site | None:
    value = integer(literals[0])
    kind = _kind(kernel, parameter)
    if kind is None or value is None or value < 1:
        return None
    legal = _VALUES.get(kind) or tuple(
        n // d for n, d in ((value, 4), (value, 2), (value * 2, 1), (value * 4, 1)) if n >= d
    )
    return _Site(Gene(name, value, tuple(sorted({*legal, value})), kind), literals)


def _kind(kernel: Kernel, parameter: str) -> str | None:
    """Returns the kind of number that a parameter takes; None for flags and sizes, which are not tunable."""
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

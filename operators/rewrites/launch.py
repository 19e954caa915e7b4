"""Rewrites of how a kernel is launched: autotuning, warps and stages, registers, wider blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import libcst as cst

from operators.dataflow import assigned, pointers
from operators.genes import OPTION_DEFAULTS, Gene, get_genes, set_genes
from operators.rewrites.base import OFTEN, SELDOM, Pairs, Rewrite, edited, idempotent, pick, shuffled, with_arguments
from operators.source import (
    Kernel,
    LaunchSite,
    Source,
    bindings,
    called,
    code,
    drop_arguments,
    expr,
    grid_tuple,
    integer,
    names,
    replace,
    walk,
)

# Warps and stages that go together: little work per program, the default, wide rows, deep pipelines for tl.dot.
_PRESETS = ((1, 1), (2, 2), (4, 1), (4, 4), (8, 2), (8, 4), (16, 3))


def _preset(source: Source, rng: random.Random) -> str | None:
    """Number of warps and of pipeline stages say how a program is executed, not what it computes."""
    genes = {g.name: g for g in get_genes(source.text)}
    prefix = pick(rng, sorted(n.rpartition(".")[0] for n in genes if n.endswith(".num_warps")))
    if prefix is None:
        return None
    both = [n for n in (f"{prefix}.num_warps", f"{prefix}.num_stages") if n in genes]  # stages are those of a loop
    presets = sorted({p[: len(both)] for p in _PRESETS} - {tuple(genes[n].value for n in both)})
    return set_genes(source.text, dict(zip(both, rng.choice(presets), strict=True)))


def _widen(source: Source, rng: random.Random) -> str | None:
    """A block literal that flows to the launch and the grid may be any power of two; 64 lanes are few, as is a 16-wide
    operand of tl.dot."""
    few = {"block": 64, "dot": 32}
    gene = pick(rng, [g for g in get_genes(source.text) if 0 < g.value <= few.get(g.kind, 0)])
    if gene is None:
        return None
    factor = rng.choice((8, 16, 32) if gene.kind == "block" else (2, 4))
    return set_genes(source.text, {gene.name: gene.value * factor})


def _cap_registers(source: Source, rng: random.Random) -> str | None:
    """`maxnreg` bounds the registers of a thread; the compiler spills what does not fit, results stay the same."""
    launches = [n for n in source.launches if not n.opaque and not n.kernel.autotuned and "maxnreg" not in n.options]
    launch = pick(rng, launches)
    if launch is None:
        return None
    return edited(source, [(launch.call, with_arguments(f"maxnreg={rng.choice((64, 96, 128, 168))}"))])


# --- autotune --------------------------------------------------------------------------------------------------------


def _add_autotune(source: Source, rng: random.Random) -> str | None:
    """Block sizes, warps and stages move from the launch into `triton.autotune`.

    Autotuning runs a kernel several times, so kernels that update memory (atomics, a tensor both read and written) are
    left alone.  A block moves only if nothing but the launch and its grid depends on it; the grid becomes a function of
    the configuration.
    """
    kernel = pick(rng, [k for k in source.rewritable() if _tunable(source, k)])
    if kernel is None:
        return None
    launches = source.launches_of(kernel)
    blocks = _movable_blocks(source, launches[0]) if len(launches) == 1 else {}
    now = {**_options_now(launches), **{name: gene for name, (gene, _) in blocks.items()}}
    pairs: Pairs = [(n.call, _untuned(set(blocks))) for n in launches]
    pairs += [(line, cst.RemoveFromParent()) for _, line in blocks.values() if line is not None]
    pairs += _grid_pairs(source, launches[0], set(blocks))
    configs = "".join(f"        {_config_text(c, set(blocks))},\n" for c in _configs(now, rng))
    text = f"triton.autotune(\n    configs=[\n{configs}    ],\n    key={_keys(kernel)},\n)"
    decorator = cst.Decorator(expr(text))
    pairs.append((kernel.node, lambda f: f.with_changes(decorators=[decorator, *f.decorators])))
    return edited(source, pairs)


def _tunable(source: Source, kernel: Kernel) -> bool:
    in_clusters = any("num_ctas" in launch.options for launch in source.launches_of(kernel))
    return not kernel.autotuned and not in_clusters and idempotent(kernel)  # configurations say num_ctas, too


def _options_now(launches: Sequence[LaunchSite]) -> dict[str, Gene]:
    """Warps and stages as genes at the value of the first launch."""
    now = {}
    for name, default in OPTION_DEFAULTS.items():
        given = launches[0].options.get(name)
        value = integer(given.value) if given else None
        legal = (1, 2, 4, 8, 16) if name == "num_warps" else (1, 2, 3, 4, 5)
        now[name] = Gene(name, value or default, tuple(sorted({*legal, value or default})), "")
    return now


def _movable_blocks(source: Source, launch: LaunchSite) -> dict[str, tuple[Gene, cst.CSTNode | None]]:
    """Block parameters given by keyword as a literal or as a variable used for nothing else (with its line)."""
    tuple_, _ = grid_tuple(source, launch)
    if tuple_ is None or launch.host is None or _grid_shared(launch):
        return {}
    genes = {
        g.name.rpartition(".")[2]: g for g in get_genes(source.text) if g.name.startswith(f"{launch.kernel.name}.")
    }
    found: dict[str, tuple[Gene, cst.CSTNode | None]] = {}
    for name, arg in launch.arguments.items():
        gene = genes.get(name)
        if arg.keyword is None or gene is None or not gene.value or gene.kind not in ("block", "dot", "group"):
            continue
        if isinstance(arg.value, cst.Integer):
            if gene.value not in {integer(n) for n in walk(launch.host) if n is not arg.value}:
                found[name] = (gene, None)
        elif isinstance(arg.value, cst.Name) and _only_for_launch(launch, arg.value.value, tuple_):
            found[name] = (gene, _line_of(launch.host, arg.value.value))
    return found


def _grid_shared(launch: LaunchSite) -> bool:
    """The grid is a variable that something else uses too."""
    if not isinstance(launch.grid, cst.Name) or launch.host is None:
        return False
    return _mentions(launch.host, launch.grid.value) != 2


def _mentions(node: cst.CSTNode, name: str) -> int:
    return sum(isinstance(n, cst.Name) and n.value == name for n in walk(node))


def _only_for_launch(launch: LaunchSite, variable: str, grid: cst.Tuple) -> bool:
    """A variable of the host that is set once and then used by one argument of the launch and by its grid only."""
    host = cast(cst.FunctionDef, launch.host)
    uses = [a for a in launch.call.args if variable in names(a.value)]
    keywords = sum(a.keyword is not None and a.keyword.value == variable for a in launch.call.args)
    bound = bindings(host).get(variable, [])
    alone = len(bound) == 1 and len(uses) == 1 and isinstance(uses[0].value, cst.Name)
    return alone and _mentions(host, variable) == 2 + keywords + _mentions(grid, variable)


def _line_of(host: cst.FunctionDef, variable: str) -> cst.CSTNode | None:
    return next((n for n in walk(host) if (a := assigned(n)) and a[0] == variable), None)


def _untuned(blocks: set[str]) -> object:
    dropped = blocks | set(OPTION_DEFAULTS)
    return lambda call: drop_arguments(call, dropped)


def _grid_pairs(source: Source, launch: LaunchSite, blocks: set[str]) -> Pairs:
    """The grid as a function of the configuration, if it mentions a block that moved."""
    grid, is_lambda = grid_tuple(source, launch)
    variables = {launch.arguments[b].value.value: b for b in blocks if isinstance(launch.arguments[b].value, cst.Name)}  # type: ignore[attr-defined]
    if grid is None or not (set(variables) & names(grid)):
        return []
    resolved = source.resolve(launch.grid, launch.host)
    given = resolved.params.params if isinstance(resolved, cst.Lambda) else ()
    meta = given[0].name.value if given else "meta"
    inner: Pairs = [
        (n, expr(f'{meta}["{variables[n.value]}"]'))
        for n in walk(grid)
        if isinstance(n, cst.Name) and n.value in variables
    ]
    return [(grid, replace(grid, inner) if is_lambda else expr(f"lambda {meta}: {code(replace(grid, inner))}"))]


def _configs(now: dict[str, Gene], rng: random.Random) -> list[dict[str, int]]:
    """The present configuration and up to four around it."""
    configs = [{name: g.value for name, g in now.items()}]
    for _ in range(12):
        new = dict(configs[0])
        for name in shuffled(rng, sorted(now))[: rng.choice((1, 2, 2))]:
            new[name] = rng.choice(now[name].neighbours())
        if new not in configs:
            configs.append(new)
        if len(configs) == 5:
            break
    return configs


def _config_text(config: dict[str, int], blocks: set[str]) -> str:
    entries = ", ".join(f'"{k}": {v}' for k, v in config.items() if k in blocks)
    return f"triton.Config({{{entries}}}, num_warps={config['num_warps']}, num_stages={config['num_stages']})"


def _keys(kernel: Kernel) -> str:
    """Sizes: parameters that the kernel compares with or loops to."""
    sizes: set[str] = set()
    for node in walk(kernel.node.body):
        if isinstance(node, cst.ComparisonTarget):
            sizes |= names(node.comparator)
        elif called(node) in ("range", "tl.range", "tl.cdiv"):
            sizes |= names(node)
    keys = [p for p in kernel.parameters if p in sizes and p not in kernel.constexpr]
    keys = [p for p in keys if p not in pointers(kernel, "tl.load", "tl.store")]
    return "[" + ", ".join(f'"{k}"' for k in keys) + "]"


REWRITES = (
    Rewrite("launch_preset", "warps and stages that go together", _preset, SELDOM),
    Rewrite("widen_block", "a tiny block made several times as wide", _widen, OFTEN),
    Rewrite("cap_registers", "at most so many registers a thread (maxnreg)", _cap_registers),
    Rewrite("add_autotune", "block sizes, warps and stages chosen by triton.autotune", _add_autotune),
)

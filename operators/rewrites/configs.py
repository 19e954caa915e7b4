"""Configurations of triton.autotune: the rewrite that adds some, and sources with a single one of them written out."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import libcst as cst

from operators.genes import OPTION_DEFAULTS, Gene, config_calls, config_entries, get_genes
from operators.rewrites.base import Pairs, Rewrite, edited, shuffled, with_arguments
from operators.source import OPTIONS, Kernel, Source, add_argument, called, code, parse, replace, walk

_MOST = 24  # configurations of a list: each has to be compiled
_NEW = 4


def _more_configs(source: Source, rng: random.Random) -> str | None:
    """The fastest configuration is taken, so more of them do no harm as long as all are right.

    New ones are neighbours of those there are: in warps and stages, and in blocks that the list varies already.
    """
    for kernel in shuffled(rng, [k for k in source.kernels.values() if k.autotuned and source.launches_of(k)]):
        calls = config_calls(source, kernel)
        for whole in shuffled(rng, _lists(source, calls)):
            own = [e.value for e in whole.elements]
            genes = _free_genes(source, kernel, [i for i, c in enumerate(calls) if any(c is o for o in own)])
            new = _neighbours(calls, genes, {code(o) for o in own}, rng) if len(own) <= _MOST - _NEW else []
            if new:
                return edited(source, [(whole, lambda node: _longer(node, new))])  # noqa: B023
    return None


def _lists(source: Source, calls: Sequence[cst.Call]) -> list[cst.List]:
    """The lists of nothing but these configurations."""
    known = {id(c) for c in calls}
    lists = [n for n in walk(source.module) if isinstance(n, cst.List) and n.elements]
    return [n for n in lists if all(id(e.value) in known for e in n.elements)]


def _free_genes(source: Source, kernel: Kernel, indices: Sequence[int]) -> dict[int, list[Gene]]:
    """The genes of these configurations, by index, whose value does not matter to the result."""
    found: dict[int, list[Gene]] = {i: [] for i in indices}
    values: dict[str, set[int]] = defaultdict(set)
    genes = {g.name: g for g in get_genes(source.text)}
    for name, gene in genes.items():
        prefix, _, option = name.rpartition(".")
        index = next((i for i in indices if prefix == f"{kernel.name}.config{i}"), None)
        if index is not None:
            found[index].append(gene)
            values[option].add(gene.value)
    varied = {o for o, v in values.items() if len(v) > 1} | set(OPTION_DEFAULTS)
    return {i: [g for g in gs if g.name.rpartition(".")[2] in varied] for i, gs in found.items()}


def _neighbours(
    calls: Sequence[cst.Call], genes: dict[int, list[Gene]], known: set[str], rng: random.Random
) -> list[cst.Call]:
    """Configurations that differ from one there is in one or two genes, by one step each."""
    new: list[cst.Call] = []
    starts = [i for i, own in genes.items() if own]
    for _ in range(4 * _NEW if starts else 0):
        start = rng.choice(starts)
        moved = rng.sample(genes[start], k=min(len(genes[start]), rng.choice((1, 2))))
        values = {g.name.rpartition(".")[2]: rng.choice(g.neighbours()) for g in moved if g.neighbours()}
        call = _with(calls[start], values)
        if code(call) not in known:
            known.add(code(call))
            new.append(call)
        if len(new) == _NEW:
            break
    return new


def _with(config: cst.Call, values: dict[str, int]) -> cst.Call:
    entries = dict(config_entries(config))
    pairs = [(node, cst.Integer(str(values[name]))) for name, node in entries.items() if name in values]
    new: cst.Call = replace(config, pairs)
    for name in sorted(set(values) - set(entries)):
        new = add_argument(new, f"{name}={values[name]}")
    return new


def _longer(whole: cst.List, calls: Sequence[cst.Call]) -> cst.List:
    old, last = list(whole.elements), whole.elements[-1]
    between = old[0].comma if len(old) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = [cst.Element(c, comma=between) for c in calls]
    return whole.with_changes(
        elements=[*old[:-1], last.with_changes(comma=between), *new[:-1], new[-1].with_changes(comma=last.comma)]
    )


@lru_cache(maxsize=128)
def inlined(text: str) -> str:
    """The source with kernels that have one configuration launched with what it says, without triton.autotune.

    Rewrites that give a kernel another grid or parameter then apply.
    """
    source = parse(text)
    if source is None:
        return text
    pairs: Pairs = []
    for kernel in source.rewritable():
        settings = _only_configuration(kernel)
        launches = source.launches_of(kernel)
        if settings is None or any(not {*n.arguments, *n.options}.isdisjoint(settings) for n in launches):
            continue
        pairs += [(d, cst.RemoveFromParent()) for d in kernel.node.decorators if _is_autotune(d)]
        pairs += [(n.call, with_arguments(*(f"{k}={v}" for k, v in settings.items()))) for n in launches]
    return edited(source, pairs) if pairs else text


def _only_configuration(kernel: Kernel) -> dict[str, str] | None:
    """What the only configuration above a kernel sets, as text; None if the decorator holds anything else."""
    calls = [cast(cst.Call, d.decorator) for d in kernel.node.decorators if _is_autotune(d)]
    if len(calls) != 1 or any(a.keyword and a.keyword.value not in ("configs", "key") for a in calls[0].args):
        return None
    lists = [a.value for a in calls[0].args if isinstance(a.value, cst.List) and called(_first(a.value)) in _CONFIGS]
    if len(lists) != 1 or len(lists[0].elements) != 1:
        return None
    settings: dict[str, str] = {}
    for arg in cast(cst.Call, _first(lists[0])).args:
        if isinstance(arg.value, cst.Dict):
            for element in arg.value.elements:
                match element:
                    case cst.DictElement(cst.SimpleString() as key, value):
                        settings[str(key.evaluated_value)] = code(value)
                    case _:
                        return None
        elif arg.keyword is not None and arg.keyword.value in OPTIONS:
            if (arg.keyword.value, code(arg.value)) != ("num_ctas", "1"):  # as without it
                settings[arg.keyword.value] = code(arg.value)
        else:  # a hook
            return None
    return settings


_CONFIGS = ("triton.Config", "Config")


def _is_autotune(decorator: cst.Decorator) -> bool:
    return called(decorator.decorator).endswith("autotune")


def _first(elements: cst.List) -> cst.CSTNode:
    return elements.elements[0].value if elements.elements else elements


REWRITES = (Rewrite("more_configs", "more configurations for triton.autotune to choose from", _more_configs),)

"""Operator `recombine`: puts parameters or a function of one parent into the other."""

from __future__ import annotations

import builtins
import random
import re
from collections.abc import Sequence

import libcst as cst

from evo.core.records import candidate_id
from operators.base import Context, Draft, Parent
from operators.genes import get_genes, set_genes
from operators.rewrites.base import edited
from operators.source import Source, bindings, code, names, parse, walk


class Recombine:
    """A child of two parents; None if nothing of one can be put into the other, or if the child equals a parent."""

    name = "recombine"
    arity = 2

    def __call__(self, parents: Sequence[Parent], context: Context) -> Draft | None:
        rng = context.rng
        base, donor = rng.sample((0, 1), 2)
        known = {candidate_id(p.source) for p in parents}
        for exchange in rng.sample([_exchange_genes, _exchange_function], 2):
            for body, gift in ((base, donor), (donor, base)):
                made = exchange(parents[body].source, parents[gift].source, rng)
                if made is not None and candidate_id(made[0]) not in known:
                    return Draft(*made, base=body)
        return None


def _exchange_genes(base: str, donor: str, rng: random.Random) -> tuple[str, str] | None:
    """Sets some of the genes in which both differ to the donor's values."""
    legal = {g.name: g for g in get_genes(base)}
    given = {g.name: g.value for g in get_genes(donor)}
    differ = [n for n, g in legal.items() if n in given and given[n] != g.value and given[n] and given[n] in g.values]
    if not differ:
        return None
    chosen = [n for n in differ if rng.random() < 0.5] or [rng.choice(differ)]
    note = ", ".join(f"{n} {legal[n].value or 'computed'}→{given[n]}" for n in chosen)
    return set_genes(base, {n: given[n] for n in chosen}), f"parameters of the other parent: {note}"


def _exchange_function(base: str, donor: str, rng: random.Random) -> tuple[str, str] | None:
    """One kernel or host function of the donor in place of the base's of the same name and parameters.

    How the kernels concerned are launched has to be the same in both (but for literals): what a program does and how
    many of them there are belong together.
    """
    one, two = parse(base), parse(donor)
    if one is None or two is None:
        return None
    candidates = [name for name in one.functions if name in two.functions and _exchangeable(one, two, name)]
    if not candidates:
        return None
    name = rng.choice(candidates)
    return edited(one, [(one.functions[name], two.functions[name])]), f"function {name} of the other parent"


def _exchangeable(one: Source, two: Source, name: str) -> bool:
    ours, theirs = one.functions[name], two.functions[name]
    if one.codes[name] == two.codes[name] or code(ours.params) != code(theirs.params):
        return False
    defined = set(bindings(one.module)) | _imported(one) | set(dir(builtins))
    own = set(bindings(theirs)) | names(theirs.params) | _lambda_parameters(theirs)
    if not names(theirs) - own <= defined:
        return False
    touched = {name} if name in one.kernels else {n.kernel.name for n in one.launches if n.host is ours}
    return all(_launched_as(one, k) == _launched_as(two, k) for k in touched)


def _imported(source: Source) -> set[str]:
    found: set[str] = set()
    for statement in source.module.body:
        for small in getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
                found |= {code(a.asname.name if a.asname else a.name).partition(".")[0] for a in small.names}
    return found


def _lambda_parameters(function: cst.FunctionDef) -> set[str]:
    return {p.name.value for n in walk(function) if isinstance(n, cst.Lambda) for p in n.params.params}


def _launched_as(source: Source, kernel: str) -> list[str]:
    """The launches of a kernel as text, their grids written out and integers left open.

    Autotuned or not is part of it: warps are said by configurations or by launches, not by both.
    """
    texts = []
    for launch in source.launches:
        if launch.kernel.name == kernel:
            grid = source.resolve(launch.grid, launch.host)
            arguments = [f"{k}={code(a.value)}" for k, a in sorted(launch.arguments.items())]
            text = f"{launch.kernel.autotuned} [{code(grid) if grid else '?'}] {' '.join(arguments)}"
            texts.append(re.sub(r"\b\d+\b", "_", text))
    return texts

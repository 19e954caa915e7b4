"""Makes wrong kernels and right ones from right kernels, for `bench_checker`.

A mutant is a right kernel with one fault.  Each operator (`OPERATORS`) finds the places in a source for its fault, and
gives the edits of each place.  Edits replace parts of the text, so the rest of a source stays as it is, in every
version of Python.

A right rewrite is a right kernel after a structural rewrite of `operators/`, or with another number of warps, stages or
elements in a block.

The same seed gives the same mutants and rewrites on every machine.  `kernel_sets.py` says which kernels are right.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from evo.core import syntax
from evo.core.records import candidate_id
from operators.genes import COMPUTED, get_genes, set_genes
from operators.rewrite import REWRITES

PLAIN = "none"  # the operator of a right kernel as it is
LARGE = (100, 600, 1100, 3000)  # sizes from which a fault shows; those of the tasks lie on both sides
SOME_PROGRAMS = (3, 60, 2000)  # program numbers from which a fault shows
# Parameters of kernels that are no sizes.
NUMBERS = frozenset({"eps", "scale", "rate", "q", "acc", "sm_scale", "alpha", "beta", "p", "seed", "softmax_scale"})

T = TypeVar("T")
Edit = tuple[int, int, str]  # first byte, byte after the last, new text


@dataclass(frozen=True)
class RightKernel:
    """A kernel that is right, from which mutants and rewrites are made.

    task: what `load_task` takes: the name of a built-in task, or a folder.  group: one of `kernel_sets.GROUPS`.
    """

    task: str
    name: str
    group: str
    source: str


@dataclass(frozen=True)
class Variant:
    """A kernel source made from a right one.

    `kernel` names the right one, `operator` the fault, `place` its position.
    """

    task: str
    kernel: str
    operator: str
    place: str
    source: str
    group: str = "built-in"

    @property
    def task_name(self) -> str:
        return Path(self.task).name

    @property
    def id(self) -> str:
        """Names the source and the task it is for: the same source may be a kernel of several tasks."""
        return f"{self.task_name}-{candidate_id(self.source)}"


# --- sources ---------------------------------------------------------------------------------------------------------


class Text:
    """A source with its tree: the positions of nodes, and which functions are kernels."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._bytes = source.encode()
        self._lines = list(itertools.accumulate(map(len, self._bytes.splitlines(keepends=True)), initial=0))
        self.tree = syntax.parse(source)
        functions = [n for n in self.tree.body if isinstance(n, ast.FunctionDef)]
        classes = [n for n in self.tree.body if isinstance(n, ast.ClassDef)]
        self.kernels = [f for f in functions if any("jit" in ast.unparse(d) for d in f.decorator_list)]
        self.hosts = [f for f in functions if f not in self.kernels]
        self.hosts += [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]  # autograd functions

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self._bytes[self.start(node) : self.end(node)].decode()

    def swap(self, node: ast.expr | ast.stmt, new: str) -> Edit:
        return self.start(node), self.end(node), new

    def before(self, statement: ast.stmt, new: str) -> Edit:
        """Another statement, of one line, in front of `statement`."""
        at = self.start(statement)
        return at, at, new + "\n" + " " * statement.col_offset

    def edited(self, edits: Iterable[Edit]) -> str:
        found = self._bytes
        for begin, end, new in sorted(edits, reverse=True):
            found = found[:begin] + new.encode() + found[end:]
        return found.decode()

    def line(self, edits: Sequence[Edit]) -> str:
        """Number and text of the line of the first edit."""
        number = next(i for i, first in enumerate(self._lines) if first > min(edits)[0])
        return f"line {number}: {self.source.splitlines()[number - 1].strip()}"


def called(node: ast.AST) -> str:
    """The dotted name of the function that `node` calls, "" if it is not a call."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def calls(scope: ast.AST, *functions: str) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and called(node) in functions:
            yield node


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def constexpr(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and "constexpr" in ast.unparse(parameter.annotation)


def sizes(kernel: ast.FunctionDef) -> list[str]:
    """Parameters of a kernel that are whole numbers known at the launch."""
    without = pointers(kernel) | NUMBERS
    names = [p.arg for p in kernel.args.args if not constexpr(p)]
    return [n for n in names if not n.endswith(("ptr", "pointer", "block")) and n not in without]


def pointers(kernel: ast.FunctionDef) -> set[str]:
    """Parameters that addresses begin with: the leftmost part of a sum, through what is assigned in the kernel."""
    parameters = {p.arg for p in kernel.args.args}
    assigned = [n for n in ast.walk(kernel) if isinstance(n, ast.Assign)]
    roots = [call.args[0] for call in accesses(kernel) if call.args]
    roots += [call.args[0] for call in calls(kernel, "tl.make_block_ptr", "tl.advance") if call.args]
    seen: set[str] = set()
    while roots:
        node: ast.expr = roots.pop()
        while isinstance(node, ast.BinOp):
            node = node.left
        if isinstance(node, ast.Name) and node.id not in seen:
            seen.add(node.id)
            roots += [a.value for a in assigned if any(isinstance(t, ast.Name) and t.id == node.id for t in a.targets)]
    return seen & parameters


def accesses(kernel: ast.AST) -> Iterator[ast.Call]:
    """Loads, stores and atomics: their first argument is a pointer."""
    return (call for call in calls(kernel, "tl.load", "tl.store", "tl.atomic_add") if call.args)


def axes_of(kernel: ast.AST) -> Iterator[ast.expr]:
    """The axes of the grid whose program numbers a kernel asks for."""
    for call in calls(kernel, "tl.program_id"):
        found = keyword(call, "axis")
        yield found.value if found else call.args[0]


def mask_of(call: ast.Call) -> ast.expr | None:
    """The mask of an access, by its keyword or its position."""
    found = keyword(call, "mask")
    place = 1 if called(call) == "tl.load" else 2
    return found.value if found else call.args[place] if len(call.args) > place else None


def index_nodes(kernel: ast.FunctionDef) -> set[ast.AST]:
    """Nodes that address memory: pointers, masks, and what names in them are computed from."""
    roots: list[ast.AST] = []
    for call in accesses(kernel):
        roots += [call.args[0], *filter(None, [mask_of(call)])]
    assigned = [n for n in ast.walk(kernel) if isinstance(n, (ast.Assign, ast.AugAssign))]
    found: set[ast.AST] = set()
    while roots:
        root = roots.pop()
        if root in found:
            continue
        nodes = set(ast.walk(root))
        found |= nodes
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        for statement in assigned:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bound = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            if bound & names and not any(called(n) == "tl.load" for n in ast.walk(statement.value)):
                roots.append(statement.value)
    return found


def binary(scope: ast.AST, *kinds: type[ast.operator]) -> Iterator[ast.BinOp]:
    for node in ast.walk(scope):
        if isinstance(node, ast.BinOp) and isinstance(node.op, kinds):
            yield node


def loops(kernel: ast.AST) -> Iterator[tuple[ast.For, ast.Call]]:
    """Yields each loop over a range of several arguments, with the call that makes the range."""
    for node in ast.walk(kernel):
        if isinstance(node, ast.For) and called(node.iter) in ("range", "tl.range"):
            assert isinstance(node.iter, ast.Call)
            if len(node.iter.args) >= 2:
                yield node, node.iter


def stored(kernel: ast.AST) -> Iterator[ast.expr]:
    """The values of stores."""
    for call in calls(kernel, "tl.store", "tl.atomic_add"):
        if len(call.args) > 1:
            yield call.args[1]


# --- operators -------------------------------------------------------------------------------------------------------

Operator = Callable[[Text], Iterator[list[Edit]]]
OPERATORS: dict[str, Operator] = {}


def operator(function: Operator) -> Operator:
    """Registers a mutation operator under the name of its function."""
    OPERATORS[function.__name__.replace("_", "-")] = function
    return function


def _comparisons(text: Text) -> Iterator[ast.Compare]:
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
                yield node


@operator
def bound_too_small(text: Text) -> Iterator[list[Edit]]:
    """`x < n` becomes `x < n - 1`."""
    for node in _comparisons(text):
        yield [text.swap(node, f"{text.of(node.left)} < ({text.of(node.comparators[0])}) - 1")]


@operator
def bound_too_large(text: Text) -> Iterator[list[Edit]]:
    """`x < n` becomes `x <= n`."""
    for node in _comparisons(text):
        yield [text.swap(node, f"{text.of(node.left)} <= {text.of(node.comparators[0])}")]


@operator
def mask_dropped(text: Text) -> Iterator[list[Edit]]:
    """A load or store without its mask."""
    for kernel in text.kernels:
        for call in accesses(kernel):
            kept = [text.of(a) for a in call.args[: 1 if called(call) == "tl.load" else 2]]
            kept += [f"{k.arg}={text.of(k.value)}" for k in call.keywords if k.arg not in ("mask", "other")]
            if mask_of(call):
                yield [text.swap(call, f"{text.of(call.func)}({', '.join(kept)})")]


@operator
def mask_part_dropped(text: Text) -> Iterator[list[Edit]]:
    """`a & b` becomes `a | a & b`, which is `a` in the shape of both."""
    for kernel in text.kernels:
        for node in binary(kernel, ast.BitAnd):
            both = text.of(node)
            yield [text.swap(node, f"(({both}) | {text.of(node.left)})")]
            yield [text.swap(node, f"(({both}) | {text.of(node.right)})")]


@operator
def mask_shifted(text: Text) -> Iterator[list[Edit]]:
    """A mask begins and ends one element late: `x < n` becomes `(x > 0) & (x <= n)`."""
    for kernel in text.kernels:
        masks = {node for call in accesses(kernel) if (mask := mask_of(call)) for node in ast.walk(mask)}
        masks |= index_nodes(kernel)
        for node in _comparisons(text):
            if node in masks:
                left, right = text.of(node.left), text.of(node.comparators[0])
                yield [text.swap(node, f"(({left}) > 0) & (({left}) <= ({right}))")]


@operator
def stride_swapped(text: Text) -> Iterator[list[Edit]]:
    """A product in an index takes another size."""
    for kernel in text.kernels:
        index, known = index_nodes(kernel), sizes(kernel)
        for node in binary(kernel, ast.Mult):
            if node in index and isinstance(node.right, ast.Name) and node.right.id in known:
                for other in known:
                    if other != node.right.id:
                        yield [text.swap(node.right, other)]


@operator
def stride_off_by_one(text: Text) -> Iterator[list[Edit]]:
    """A product in an index takes a size that is one too large."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.Mult):
            if node in index and isinstance(node.right, ast.Name):
                yield [text.swap(node.right, f"({node.right.id} + 1)")]


@operator
def neutral_element(text: Text) -> Iterator[list[Edit]]:
    """Lanes beyond the end get a value that changes the result."""
    other = {'-float("inf")': "0.0", "-1e30": "0.0", "0.0": "1.0", "0": "1", "-1": "0"}
    for kernel in text.kernels:
        for call in calls(kernel, "tl.load"):
            found = keyword(call, "other")
            if found and text.of(found.value) in other:
                yield [text.swap(found.value, other[text.of(found.value)])]
        for call in calls(kernel, "tl.where"):
            if len(call.args) == 3 and text.of(call.args[2]) in other:
                yield [text.swap(call.args[2], other[text.of(call.args[2])])]


@operator
def first_value(text: Text) -> Iterator[list[Edit]]:
    """An accumulator begins from another value."""
    begin = {'-float("inf")': "0.0", "-1e30": "0.0", "0.0": "1.0"}
    for kernel in text.kernels:
        for call in calls(kernel, "tl.zeros"):
            yield [text.swap(call, f"({text.of(call)} + 1.0)")]
        for call in calls(kernel, "tl.full"):
            if len(call.args) > 1 and text.of(call.args[1]) in begin:
                yield [text.swap(call.args[1], begin[text.of(call.args[1])])]
        for node in ast.walk(kernel):
            if isinstance(node, ast.Assign) and text.of(node.value) in begin:
                yield [text.swap(node.value, begin[text.of(node.value)])]


@operator
def last_tile_lost(text: Text) -> Iterator[list[Edit]]:
    """The division that counts tiles rounds down."""
    for function in (*text.hosts, *text.kernels):
        for call in calls(function, "triton.cdiv", "tl.cdiv"):
            if len(call.args) != 2:
                continue
            upper, lower = map(text.of, call.args)
            least = "max(1, {})" if called(call) == "triton.cdiv" else "{}"
            yield [text.swap(call, least.format(f"({upper}) // ({lower})"))]


@operator
def last_turn_lost(text: Text) -> Iterator[list[Edit]]:
    """A loop ends before its last, partial turn."""
    for kernel in text.kernels:
        for _, call in loops(kernel):
            if len(call.args) == 3:
                stop, step = text.of(call.args[1]), text.of(call.args[2])
                yield [text.swap(call.args[1], f"({stop}) - ({step}) + 1")]


@operator
def loop_starts_late(text: Text) -> Iterator[list[Edit]]:
    """A loop leaves out its first turn."""
    for kernel in text.kernels:
        for _, call in loops(kernel):
            if len(call.args) == 3:
                yield [text.swap(call.args[0], f"({text.of(call.args[0])}) + ({text.of(call.args[2])})")]


@operator
def loop_skips(text: Text) -> Iterator[list[Edit]]:
    """A loop takes steps of twice the size, or, in a grid-stride loop, of one program more."""
    for kernel in text.kernels:
        for _, call in loops(kernel):
            if len(call.args) == 3:
                step = text.of(call.args[2])
                yield [text.swap(call.args[2], f"({step}) + 1" if "num_programs" in step else f"2 * ({step})")]


@operator
def accumulator_narrow(text: Text) -> Iterator[list[Edit]]:
    """A sum is rounded to 16 bits after every turn."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in ast.walk(kernel):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and node.value not in index:
                name, value = text.of(node.target), text.of(node.value)
                for kind in ("float16", "bfloat16"):
                    yield [text.swap(node, f"{name} = ({name} + ({value})).to(tl.{kind}).to(tl.float32)")]


@operator
def value_narrow(text: Text) -> Iterator[list[Edit]]:
    """Something is rounded to fewer bits: a loaded value, an operand of a matrix product, or a result."""
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                if not node.args:
                    continue
                kind = text.of(node.args[0])
                if kind.endswith(("float32", "ACCUMULATE")):
                    yield [text.swap(node, f"{text.of(node)}.to(tl.bfloat16).to(tl.float32)")]
                elif kind.endswith(("float16", "element_ty")):
                    yield [text.swap(node, f"{text.of(node.func.value)}.to(tl.bfloat16).to({kind})")]
        for call in calls(kernel, "tl.dot"):
            for argument in call.args[:2]:
                yield [text.swap(argument, f"({text.of(argument)}).to(tl.bfloat16).to(tl.float16)")]
        for value in stored(kernel):
            if ".to(" not in text.of(value):
                yield [text.swap(value, f"({text.of(value)}).to(tl.float16).to(tl.float32)")]


@operator
def reset_lost(text: Text) -> Iterator[list[Edit]]:
    """What a tile begins from is set once, before the loop over tiles."""
    for kernel in text.kernels:
        for outer, _ in loops(kernel):
            if not any(isinstance(n, ast.For) for s in outer.body for n in ast.walk(s)):
                continue
            for statement in outer.body:
                if isinstance(statement, ast.Assign) and (
                    called(statement.value) in ("tl.zeros", "tl.full") or text.of(statement.value) == "0.0"
                ):
                    yield [text.swap(statement, "pass"), text.before(outer, text.of(statement))]


@operator
def scratch_not_cleared(text: Text) -> Iterator[list[Edit]]:
    """Memory that has to begin with zeros begins with anything."""
    for host in text.hosts:
        for call in calls(host, "torch.zeros", "torch.zeros_like"):
            yield [text.swap(call.func, text.of(call.func).replace("zeros", "empty"))]


@operator
def launch_dropped(text: Text) -> Iterator[list[Edit]]:
    """One of several launches is left out: what it would write is stale."""
    for host in text.hosts:
        found = [
            n
            for n in ast.walk(host)
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Subscript)
        ]
        if len(found) > 1:
            yield from ([text.swap(n, "pass")] for n in found)


@operator
def rescale_lost(text: Text) -> Iterator[list[Edit]]:
    """What a loop carries on is not multiplied by the factor of its iteration."""
    for kernel in text.kernels:
        for loop, _ in loops(kernel):
            targets = [t for n in ast.walk(loop) if isinstance(n, ast.Assign) for t in n.targets]
            bound = {t.id for t in targets if isinstance(t, ast.Name)}
            for node in binary(loop, ast.Mult):
                if isinstance(node.left, ast.Name) and node.left.id in bound & {"acc", "total", "squares"}:
                    yield [text.swap(node, node.left.id)]


@operator
def factor_dropped(text: Text) -> Iterator[list[Edit]]:
    """A product or quotient of values loses its second part."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.Mult, ast.Div):
            if node not in index:
                yield [text.swap(node, text.of(node.left))]


@operator
def term_dropped(text: Text) -> Iterator[list[Edit]]:
    """A sum or difference of values loses its second part: an epsilon, a bias, a mean."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.Add, ast.Sub):
            if node not in index:
                yield [text.swap(node, text.of(node.left))]


@operator
def constant_coarse(text: Text) -> Iterator[list[Edit]]:
    """A constant, or a number the host gives, is off by one in a hundred."""
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < abs(node.value) < 1e9:
                yield [text.swap(node, f"({text.of(node)} * 1.01)")]
            if isinstance(node, ast.Name) and node.id in NUMBERS and isinstance(node.ctx, ast.Load):
                yield [text.swap(node, f"({node.id} * 1.01)")]


@operator
def axes_swapped(text: Text) -> Iterator[list[Edit]]:
    """Two axes of the grid change places, in a kernel or in the grid."""
    for kernel in text.kernels:
        found = {text.of(axis): axis for axis in axes_of(kernel)}
        for first, second in itertools.combinations(sorted(found), 2):
            yield [text.swap(found[first], second), text.swap(found[second], first)]
    for grid in _grids(text):
        for one, other in itertools.pairwise(grid.elts):
            yield [text.swap(one, text.of(other)), text.swap(other, text.of(one))]


def _grids(text: Text) -> Iterator[ast.Tuple]:
    """The tuples that are grids, if they are written out."""
    for host in text.hosts:
        for node in ast.walk(host):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                if isinstance(node.func.slice, ast.Tuple):
                    yield node.func.slice
            elif isinstance(node, ast.Assign) and text.of(node.targets[0]) == "grid":
                grid = node.value.body if isinstance(node.value, ast.Lambda) else node.value
                if isinstance(grid, ast.Tuple):
                    yield grid


@operator
def arguments_swapped(text: Text) -> Iterator[list[Edit]]:
    """Two sizes change places in a launch."""
    for host in text.hosts:
        for node in ast.walk(host):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                plain = [a for a in node.args if isinstance(a, ast.Name) and (a.id.isupper() or a.id.startswith("n"))]
                for one, other in itertools.pairwise(plain):
                    yield [text.swap(one, text.of(other)), text.swap(other, text.of(one))]


@operator
def index_arithmetic(text: Text) -> Iterator[list[Edit]]:
    """Another operation in an index: `//` for `%`, `-` for `+`."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.FloorDiv, ast.Mod, ast.Add):
            if node in index:
                sign = {ast.FloorDiv: "%", ast.Mod: "//", ast.Add: "-"}[type(node.op)]
                yield [text.swap(node, f"({text.of(node.left)} {sign} {text.of(node.right)})")]


@operator
def value_arithmetic(text: Text) -> Iterator[list[Edit]]:
    """Another operation on values: `-` for `+`, `+` for `-`."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.Add, ast.Sub):
            if node not in index:
                sign = "-" if isinstance(node.op, ast.Add) else "+"
                yield [text.swap(node, f"({text.of(node.left)} {sign} {text.of(node.right)})")]
        for statement in ast.walk(kernel):
            if isinstance(statement, ast.AugAssign) and statement.value not in index:
                yield [text.swap(statement, f"{text.of(statement.target)} -= {text.of(statement.value)}")]


_OTHER_FUNCTION = {
    "tl.max": "tl.min", "tl.maximum": "tl.minimum", "tl.minimum": "tl.maximum", "tl.sum": "tl.max", "tl.exp": "tl.exp2",
    "tl.exp2": "tl.exp", "tl.sin": "tl.cos", "tl.log": "tl.log2", "tl.sqrt": "tl.abs", "tl.rsqrt": "tl.sqrt",
}  # fmt: skip


@operator
def function_wrong(text: Text) -> Iterator[list[Edit]]:
    """Another function: the least for the largest, a base of 2 for e."""
    for kernel in text.kernels:
        for call in calls(kernel, *_OTHER_FUNCTION):
            yield [text.swap(call.func, _OTHER_FUNCTION[called(call)])]


@operator
def condition_edge(text: Text) -> Iterator[list[Edit]]:
    """A comparison of `>=` or `<=` leaves out the equal case."""
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.LtE, ast.GtE)):
                sign = "<" if isinstance(node.ops[0], ast.LtE) else ">"
                yield [text.swap(node, f"{text.of(node.left)} {sign} {text.of(node.comparators[0])}")]


@operator
def wrong_at_large_size(text: Text) -> Iterator[list[Edit]]:
    """Results are 2 % off if a size is above a bound."""
    yield from _wrong_if(text, [f"{{}} > {bound}" for bound in LARGE])


@operator
def wrong_at_some_size(text: Text) -> Iterator[list[Edit]]:
    """Results are 2 % off at odd sizes, at multiples of a number, or between two sizes."""
    yield from _wrong_if(text, ["{} % 2 == 1", "{} % 128 == 0", "({} > 2100) & ({} < 3900)"])


def _wrong_if(text: Text, conditions: Sequence[str]) -> Iterator[list[Edit]]:
    for kernel in text.kernels:
        for value in stored(kernel):
            for size, condition in itertools.product(sizes(kernel), conditions):
                here = text.of(value)
                yield [text.swap(value, f"tl.where({condition.replace('{}', size)}, ({here}) * 1.02, {here})")]


@operator
def wrong_program(text: Text) -> Iterator[list[Edit]]:
    """Programs from some number on leave at once."""
    for kernel in text.kernels:
        axes = sorted({text.of(axis) for axis in axes_of(kernel)})
        for axis, bound in itertools.product(axes, SOME_PROGRAMS):
            yield [text.before(kernel.body[0], f"if tl.program_id({axis}) > {bound}:\n        return")]


@operator
def work_left_out(text: Text) -> Iterator[list[Edit]]:
    """A loop stops early if it would be long."""
    for kernel in text.kernels:
        for _, call in loops(kernel):
            stop = text.of(call.args[1])
            for bound in LARGE:
                yield [text.swap(call.args[1], f"tl.minimum({stop}, {bound})")]
            yield [text.swap(call.args[1], f"tl.where(({stop}) > 512, ({stop}) // 2, ({stop}))")]


@operator
def grid_too_small(text: Text) -> Iterator[list[Edit]]:
    """A large grid lacks programs."""
    for grid in _grids(text):
        for axis, bound in itertools.product(grid.elts, (5, 50, 1000)):
            if not isinstance(axis, ast.Constant):
                yield [text.swap(axis, f"min({text.of(axis)}, {bound})")]
        for axis in grid.elts:
            if not isinstance(axis, ast.Constant):
                yield [text.swap(axis, f"max(1, ({text.of(axis)}) - 1)")]


@operator
def index_narrow(text: Text) -> Iterator[list[Edit]]:
    """An index is kept in 16 bits, which overflow at large sizes."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for node in binary(kernel, ast.Mult):
            if node in index and any(called(n) in ("tl.program_id", "tl.arange") for n in ast.walk(node)):
                yield [text.swap(node, f"({text.of(node)}).to(tl.int16).to(tl.int32)")]
        for node in binary(kernel, ast.Mult):
            if node in index and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name):
                yield [text.swap(node, f"({text.of(node)} + tl.zeros((1,), tl.int32)).to(tl.int16)")]


@operator
def wide_index_lost(text: Text) -> Iterator[list[Edit]]:
    """`.to(tl.int64)` is dropped."""
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            match node:
                case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind]) if text.of(kind) == "tl.int64":
                    yield [text.swap(node, text.of(value))]


@operator
def access_shifted(text: Text) -> Iterator[list[Edit]]:
    """A load or store one element further."""
    for kernel in text.kernels:
        for call in accesses(kernel):
            yield [text.swap(call.args[0], f"{text.of(call.args[0])} + 1")]


@operator
def access_far_outside(text: Text) -> Iterator[list[Edit]]:
    """A load or store far outside of its array."""
    for kernel in text.kernels:
        for call in accesses(kernel):
            yield [text.swap(call.args[0], f"{text.of(call.args[0])} + {1 << 30}")]


@operator
def bound_from_data(text: Text) -> Iterator[list[Edit]]:
    """The end of a loop follows from a loaded value, and is right for about half of all inputs."""
    for kernel in text.kernels:
        found = [p.arg for p in kernel.args.args if p.arg in pointers(kernel)]
        for _, call in loops(kernel):
            if len(call.args) == 3 and found:
                stop, step = text.of(call.args[1]), text.of(call.args[2])
                late = f"(tl.load({found[0]}).to(tl.float32) > 0.5).to(tl.int32)"
                yield [text.swap(call.args[1], f"({stop}) - ({step}) * {late}")]


@operator
def value_from_data(text: Text) -> Iterator[list[Edit]]:
    """Loaded values above a bound count as zero."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for call in calls(kernel, "tl.load"):
            if call not in index:
                yield [text.swap(call, f"({text.of(call)} * ({text.of(call)} < 2.5))")]


@operator
def value_ignored(text: Text) -> Iterator[list[Edit]]:
    """A constant takes the place of a loaded value whose effect may be small: a bias, a weight, a mean."""
    for kernel in text.kernels:
        index = index_nodes(kernel)
        for call in calls(kernel, "tl.load"):
            if call not in index:
                for constant in (0, 1):
                    yield [text.swap(call, f"({text.of(call)} * 0 + {constant})")]


@operator
def synchronisation_lost(text: Text) -> Iterator[list[Edit]]:
    """A barrier, or a loop that waits for another program, is left out."""
    for kernel in text.kernels:
        for node in ast.walk(kernel):
            waits = isinstance(node, ast.While) and "atomic" in ast.unparse(node.test)
            if isinstance(node, ast.stmt) and (
                waits or (isinstance(node, ast.Expr) and called(node.value) == "tl.debug_barrier")
            ):
                yield [text.swap(node, "pass")]


@operator
def store_dropped(text: Text) -> Iterator[list[Edit]]:
    """One of several stores is left out."""
    for kernel in text.kernels:
        found = [
            n for n in ast.walk(kernel) if isinstance(n, ast.Expr) and called(n.value) in ("tl.store", "tl.atomic_add")
        ]
        if len(found) > 1:
            yield from ([text.swap(n, "pass")] for n in found)


@operator
def atomic_lost(text: Text) -> Iterator[list[Edit]]:
    """A plain store for an atomic addition."""
    for kernel in text.kernels:
        for call in calls(kernel, "tl.atomic_add"):
            kept = [text.of(a) for a in call.args[:2]]
            kept += [f"mask={text.of(mask)}" for mask in [mask_of(call)] if mask]
            yield [text.swap(call, f"tl.store({', '.join(kept)})")]


# --- variants of right kernels ---------------------------------------------------------------------------------------


def mutants(kernel: RightKernel, operator: str) -> Iterator[Variant]:
    """Yields all mutants of a kernel by one operator, in the order of the places."""
    text = Text(kernel.source)
    return _made(((kernel, text, edits) for edits in OPERATORS[operator](text)), operator)


def wrong_kernels(kernels: Sequence[RightKernel], count: int, seed: int = 0) -> list[Variant]:
    """`count` mutants of the kernels of one task (fewer if there are not as many): of each operator in turn."""
    texts = [Text(kernel.source) for kernel in kernels]
    by_operator = []
    for name, operator in OPERATORS.items():
        places = [(k, text, edits) for k, text in zip(kernels, texts, strict=True) for edits in operator(text)]
        by_operator.append(_made(_shuffled(places, f"{seed} {_task(kernels)} {name}"), name))
    return _first(_in_turn(_shuffled(by_operator, f"{seed} {_task(kernels)}")), count, kernels)


def _made(places: Iterable[tuple[RightKernel, Text, list[Edit]]], operator: str) -> Iterator[Variant]:
    """Yields the mutants at these places that are Python and differ from each other and from their kernel."""
    known = set[str]()
    for kernel, text, edits in places:
        new = text.edited(edits)
        id = candidate_id(new)
        if id not in known and id != candidate_id(kernel.source) and _is_python(new):
            known.add(id)
            yield _variant(kernel, operator, new, text.line(edits))


def right_kernels(kernels: Sequence[RightKernel], count: int, seed: int = 0) -> list[Variant]:
    """The kernels of one task, then `count` rewrites of them, of each way to rewrite in turn."""
    ways: list[list[Variant]] = []
    for name in (*REWRITES, "parameter"):
        found = []
        for kernel in kernels:
            rng = random.Random(f"{seed} {_task(kernels)} {name} {kernel.name}")
            source = kernel.source
            new = _with_another_gene(source, rng) if name == "parameter" else REWRITES[name].apply(source, rng)
            if new is not None and new.count("autotune") <= source.count("autotune"):
                found.append(_variant(kernel, name, new))
        ways.append(_shuffled(found, f"{seed} {_task(kernels)} {name}"))
    plain = [_variant(kernel, PLAIN, kernel.source) for kernel in kernels]
    return plain + _first(_in_turn(_shuffled(ways, f"{seed} {_task(kernels)}")), count, kernels)


def _variant(kernel: RightKernel, operator: str, source: str, place: str = "") -> Variant:
    return Variant(kernel.task, kernel.name, operator, place, source, kernel.group)


def _task(kernels: Sequence[RightKernel]) -> str:
    return Path(kernels[0].task).name if kernels else ""


def first_configuration(source: str) -> str:
    """Returns the source with the first configuration of each autotuned kernel alone."""
    text = Text(source)
    edits = []
    for call in calls(text.tree, "triton.autotune", "autotune"):
        found = keyword(call, "configs")
        configs = found.value if found else call.args[0] if call.args else None
        if configs is not None:
            edits.append(text.swap(configs, f"({text.of(configs)})[:1]"))
    return text.edited(edits)


def _with_another_gene(source: str, rng: random.Random) -> str | None:
    """One of the numbers that shape a launch takes a value beside its own."""
    genes = [g for g in get_genes(source) if g.value != COMPUTED and g.kind != "other"]
    choices = [(g.name, value) for g in genes for value in g.neighbours() if value != COMPUTED]
    if not choices:
        return None
    name, value = rng.choice(choices)
    return set_genes(source, {name: value})


def _is_python(source: str) -> bool:
    try:
        syntax.parse(source)
    except SyntaxError:
        return False
    return True


def _shuffled(items: Sequence[T], key: str) -> list[T]:
    return random.Random(hashlib.sha256(key.encode()).digest()).sample(list(items), len(items))


def _in_turn(groups: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each group, then the second of each, and so on."""
    for row in itertools.zip_longest(*groups):
        yield from (item for item in row if item is not None)


def _first(variants: Iterable[Variant], count: int, without: Iterable[RightKernel]) -> list[Variant]:
    """The first `count` that differ from each other and from the kernels `without`."""
    known = {_variant(kernel, PLAIN, kernel.source).id for kernel in without}
    found: list[Variant] = []
    for variant in variants:
        if len(found) == count:
            break
        if variant.id not in known:
            known.add(variant.id)
            found.append(variant)
    return found

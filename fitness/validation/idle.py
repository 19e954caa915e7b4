"""Makes idle kernels of a seed, which do not do their work: one does nothing, copies an input, or stores zeros.

The host code stays, so the seed's own plans execute these.  A task without a seed gets whole plans of that kind.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from evo.core import syntax
from fitness.frontend.kernels import dotted, imported_names, kernel_sources
from fitness.frontend.memory import DTYPES
from fitness.frontend.plan import Config, Copy, Fill, Launch, LaunchPlan, Step, TensorRef, refs_of

ANY = "of any name"  # the kernel of a task without a seed
NOTHING, COPY, ZEROS = "does nothing", "copies an input", "stores zeros"

_LANGUAGE = "triton.language."
_ATOMICS = {f"{_LANGUAGE}atomic_{what}" for what in ("add", "max", "min", "and", "or", "xor", "xchg")}
_SUFFIX = "_of_zeros"


@dataclass(frozen=True)
class Idle:
    """The seed with one kernel that does not do its work; `plans`: of the cases that launch it.

    Without a seed the source is empty, and the plans have fills and copies alone.
    """

    kernel: str
    kind: str
    source: str
    plans: Mapping[str, LaunchPlan]


def idle_kernels(source: str, plans: Mapping[str, LaunchPlan], written: Sequence[int]) -> Iterator[Idle]:
    """Yields up to three for each kernel that `plans` launch.

    written: positions of the arguments that the entry writes.

    No copy if no argument of the launch has the form of an output; no zeros if the kernel has no store.
    """
    tree = syntax.parse(source.replace("\r\n", "\n").replace("\r", "\n"))
    for kernel in dict.fromkeys(launch.kernel for plan in plans.values() for launch in plan.launches):
        launching = {case: plan for case, plan in plans.items() if kernel in {s.kernel for s in plan.launches}}
        nothing = _without_body(tree, kernel)
        yield Idle(kernel, NOTHING, nothing, launching)
        copying = {case: _copying(plan, kernel, written) for case, plan in launching.items()}
        copying = {case: plan for case, plan in copying.items() if plan != launching[case]}
        if copying:
            yield Idle(kernel, COPY, nothing, copying)
        zeros = _with_zeros(tree, kernel, set(kernel_sources(source)))
        if zeros:
            yield Idle(kernel, ZEROS, zeros, launching)


def idle_plans(plans: Mapping[str, LaunchPlan], written: Sequence[int]) -> Iterator[Idle]:
    """Yields what kernels that do not do their work leave, for a task without a seed kernel.

    plans: of the reference, by case (`fitness.tasks.pytorch_plan`); written: positions of the arguments that it writes.
    """
    for kind in (NOTHING, COPY, ZEROS):
        made = {case: replace(plan, steps=_idle_steps(kind, plan, written)) for case, plan in plans.items()}
        there = {case: plan for case, plan in made.items() if plan.steps or kind == NOTHING}
        if there:
            yield Idle(ANY, kind, "", there)


def _idle_steps(kind: str, plan: LaunchPlan, written: Sequence[int]) -> tuple[Step, ...]:
    """Returns steps on all outputs; none if no input has the form of the output that is copied to."""
    outputs = plan.compared(written)
    inputs = [ref for ref in plan.inputs if isinstance(ref, TensorRef)]
    if kind == NOTHING:
        return ()
    if kind == ZEROS:
        return tuple(Fill(ref, 0) for ref in outputs if ref.numel and _is_plain(ref))
    pairs = ((ref, [r for r in inputs if r.buffer != ref.buffer and _alike(r, ref)]) for ref in outputs if ref.numel)
    return tuple(Copy(ref, sources[0]) for ref, sources in pairs if sources and _is_plain(ref))


def _functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


def _without_body(tree: ast.Module, kernel: str) -> str:
    tree = copy.deepcopy(tree)
    for function in _functions(tree, kernel):
        function.body = [ast.Pass()]
    return ast.unparse(tree)


# --- zeros -----------------------------------------------------------------------------------------------------------


def _with_zeros(tree: ast.Module, kernel: str, kernels: set[str]) -> str:
    """Returns the source with a kernel that stores zeros in every store; "" if no store of it is found.

    Functions that it calls are changed in copies: other kernels call them too. kernels: functions of the device.
    """
    tree = copy.deepcopy(tree)
    reached = _reached(tree, kernel, kernels) - {kernel}
    renamed = {name: name + _SUFFIX for name in reached}
    zeros = _Zeros(imported_names(tree), renamed)
    for name in reached:
        for function in _functions(tree, name):
            changed = zeros.visit(copy.deepcopy(function))
            changed.name = renamed[name]
            tree.body.insert(tree.body.index(function), changed)
    for function in _functions(tree, kernel):
        zeros.visit(function)
    return ast.unparse(ast.fix_missing_locations(tree)) if zeros.stores else ""


def _reached(tree: ast.Module, kernel: str, kernels: set[str]) -> set[str]:
    """Returns the kernel and the functions of the device that it calls, directly or not."""
    reached, ahead = {kernel}, [kernel]
    while ahead:
        nodes = chain.from_iterable(map(ast.walk, _functions(tree, ahead.pop())))
        new = {node.id for node in nodes if isinstance(node, ast.Name)} & kernels - reached
        reached |= new
        ahead += new
    return reached


class _Zeros(ast.NodeTransformer):
    """Makes every store one of zeros, also in the place of an atomic whose result is not used."""

    def __init__(self, imported: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        self._imported, self._renamed = imported, renamed
        self.stores = 0

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._renamed.get(node.id, node.id)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and self._is_atomic(call):
            masks = [*call.args[2:3], *(k.value for k in call.keywords if k.arg == "mask")]
            store = ast.Attribute(call.func.value, "store", ast.Load())
            node.value = ast.Call(store, call.args[:2], [ast.keyword("mask", mask) for mask in masks])
        self.generic_visit(node)
        return node

    def _is_atomic(self, call: ast.Call) -> bool:
        return dotted(call.func, self._imported) in _ATOMICS and len(call.args) > 1

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if dotted(node.func, self._imported) == f"{_LANGUAGE}store":
            self._zero(node, 1, block=False)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "store":  # of a descriptor, or of a pointer
            described = bool(node.args) and isinstance(node.args[0], (ast.List, ast.Tuple))
            self._zero(node, int(described), block=described)
        return node

    def _zero(self, store: ast.Call, position: int, *, block: bool) -> None:
        """Puts zeros in the place of the value. block: if a number is not allowed."""
        keyword = next((k for k in store.keywords if k.arg == "value"), None)
        if keyword is None and len(store.args) <= position:
            return
        value = keyword.value if keyword else store.args[position]
        zero = ast.BinOp(value, ast.Mult(), ast.Constant(0)) if block else ast.Constant(0.0)
        if keyword:
            keyword.value = zero
        else:
            store.args[position] = zero
        self.stores += 1


# --- copies ----------------------------------------------------------------------------------------------------------


def _copying(plan: LaunchPlan, kernel: str, written: Sequence[int]) -> LaunchPlan:
    """Returns the plan with copies after each launch of the kernel, of arguments to what it seems to write."""
    inputs = {b for b, buffer in enumerate(plan.buffers) if buffer.input is not None and buffer.input not in written}
    before: set[int] = set()  # buffers that steps before mention
    steps: list[Step] = []
    for step in plan.steps:
        steps.append(step)
        if isinstance(step, Launch) and step.kernel == kernel:
            steps += _copies(step.configs[0], inputs, before)
        if isinstance(step, Launch):
            before |= {ref.buffer for ref in refs_of(dict(step.configs[0].args))}
    return replace(plan, steps=tuple(steps))


def _copies(config: Config, inputs: set[int], before: set[int]) -> list[Copy]:
    """Returns copies into what a launch seems to write.

    inputs: buffers that no kernel may write; before: buffers of earlier launches.  A buffer that is new here is written
    by this launch.
    """
    refs = [ref for ref in refs_of(dict(config.args)) if ref.numel]
    others = [ref for ref in refs if ref.buffer not in inputs and _is_plain(ref)]
    targets = {ref.buffer: ref for ref in reversed([r for r in others if r.buffer not in before] or others)}
    found = []
    for target in targets.values():
        sources = [ref for ref in refs if ref.buffer not in targets and _alike(ref, target)]
        found += [Copy(target, source) for source in sources[:1]]
    return found


def _is_plain(ref: TensorRef) -> bool:
    """Returns whether no two elements share memory."""
    return all(stride for size, stride in zip(ref.shape, ref.strides, strict=True) if size > 1)


def _alike(a: TensorRef, b: TensorRef) -> bool:
    return a.shape == b.shape and DTYPES[a.dtype].is_floating_point == DTYPES[b.dtype].is_floating_point

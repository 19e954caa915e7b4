"""Tools for language models, over the Model Context Protocol: the service's functions with short answers.

All texts in an answer are safe to show: control characters are written out, and long texts are cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from evo import __version__
from evo.core.errors import EvoError, ServiceError
from evo.core.records import Evaluation, Fitness, Verdict, evaluation_from_json, surely_faster
from evo.core.text import plain, short
from evo.service.guard import LOCAL
from evo.service.searches import MOST_BUDGET, Searches
from evo.service.tasks import TaskRegistry
from evo.service.work import Service, Status
from evo.storage.requests import Caller
from operators.llm.kernel_facts import resources

if TYPE_CHECKING:
    from fitness.frontend.target import Target
    from fitness.tasks.task import Task

MOST_WAIT_S = 300.0  # of one call; evaluating takes seconds, after a start also the seed kernel's
MOST_COMPARED = 8
_MESSAGE = 600  # characters
_FINDINGS = 5
_INSTRUCTIONS = """evo evaluates Triton kernels: it compiles them, checks them against a float64 oracle, and compares
their time with the task's seed kernel. Begin with list_tasks and describe_task. A kernel is the text of a Python file
with @triton.jit kernels and the task's entry function; it must follow the rules of describe_task. evaluate_kernel
gives a verdict: only `ok` is right, and speedup is over the seed kernel. `estimated` times come from a model, not a
GPU."""

TaskName = Annotated[str, Field(max_length=200, description="a name from list_tasks")]
Source = Annotated[str, Field(description="the whole text of kernel.py")]
WaitS = Annotated[float, Field(ge=0, le=MOST_WAIT_S, description="seconds to wait for the result")]
SearchId = Annotated[str, Field(max_length=100, description="the id that start_search returned")]
Facts = dict[str, Any]
P = ParamSpec("P")


def make_server(service: Service, tasks: TaskRegistry, searches: Searches, target: Target) -> MCPServer:
    """The MCP server with all tools; run it over stdio, or mount it (`evo.service.app.make_app`)."""
    server = MCPServer("evo", version=__version__, instructions=_INSTRUCTIONS, log_level="ERROR")
    tools = _Tools(service, tasks, searches, target)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    works = ToolAnnotations(destructive_hint=False, open_world_hint=False)
    server.add_tool(_with_errors(tools.list_tasks), annotations=reads)
    server.add_tool(_with_errors(tools.describe_task), annotations=reads)
    server.add_tool(_with_errors(tools.evaluate_kernel), annotations=works)
    server.add_tool(_with_errors(tools.compare_kernels), annotations=works)
    server.add_tool(_with_errors(tools.profile_kernel), annotations=works)
    server.add_tool(_with_errors(tools.start_search), annotations=works)
    server.add_tool(_with_errors(tools.search_status), annotations=reads)
    server.add_tool(_with_errors(tools.best_kernel), annotations=reads)
    return server


def _with_errors(tool: Callable[P, Awaitable[Facts]]) -> Callable[P, Awaitable[Facts]]:
    """The tool, whose errors that a model can act on become its answer."""

    @wraps(tool)
    async def called(*args: P.args, **kwargs: P.kwargs) -> Facts:
        try:
            return await tool(*args, **kwargs)
        except EvoError as error:
            raise ToolError(_clipped(str(error))) from error

    return called


@dataclass
class _Tools:
    service: Service
    tasks: TaskRegistry
    searches: Searches
    target: Target

    def __post_init__(self) -> None:
        self._profiling = asyncio.Semaphore(1)

    async def list_tasks(self, ctx: Context) -> Facts:
        """Lists the tasks: what kernels can be written for."""
        return {"tasks": [{"name": e.name, "title": e.title} for e in self.tasks.seen_by(_caller(ctx).token)]}

    async def describe_task(self, task: TaskName, ctx: Context) -> Facts:
        """Describes a task: the reference to compute, sizes, tolerance, rules for kernels, the GPU, the seed kernel."""
        entry = self.tasks.find(task, _caller(ctx).token)
        return await asyncio.to_thread(lambda: _description(self.tasks.load(entry.hash), self.target))

    async def evaluate_kernel(self, task: TaskName, source: Source, ctx: Context, wait_s: WaitS = 120) -> Facts:
        """Evaluates a kernel: verdict, what is wrong with it, or its speedup over the seed kernel.

        `us`: microseconds by case, the seed kernel's and this one's; `attainable_us`: the least that this GPU takes;
        `compiled`: what the compiler made of each kernel.
        If it is not done in time, the state is queued or running; call it again with the same source.
        """
        (status,) = await self._evaluated(task, [source], ctx, wait_s)
        return _summary(status)

    async def compare_kernels(
        self,
        task: TaskName,
        sources: Annotated[list[str], Field(min_length=2, max_length=MOST_COMPARED)],
        ctx: Context,
        wait_s: WaitS = 240,
    ) -> Facts:
        """Evaluates several kernels of a task and ranks those that are ok, the fastest first.

        `kernel`: its place in `sources`, from 0; `surely_faster`: whether it is faster than the next one beyond their
        95% intervals; `others`: those that are not ok, or not done.
        """
        statuses = await self._evaluated(task, sources, ctx, wait_s)
        fitness = {n: found for n, status in enumerate(statuses) if (found := _fitness(status)) is not None}
        order = sorted(fitness, key=lambda number: -fitness[number].speedup)
        ranking = [
            {"kernel": number, **_figures(fitness[number]), "surely_faster": _ahead(fitness, pair)}
            for number, pair in zip(order, [*pairwise(order), None], strict=True)
        ]
        others = [{"kernel": n, **_summary(status)} for n, status in enumerate(statuses) if n not in fitness]
        return {"ranking": ranking, "others": others}

    async def profile_kernel(self, task: TaskName, source: Source, ctx: Context, wait_s: WaitS = 120) -> Facts:
        """Says what limits a kernel that is ok (memory, compute, latency, ...), with figures and hints."""
        (status,) = await self._evaluated(task, [source], ctx, wait_s)
        evaluation = _evaluation(status)
        if evaluation is None or evaluation.verdict is not Verdict.OK:
            return _summary(status)
        entry = self.tasks.find(task, _caller(ctx).token)
        async with self._profiling:
            profile = await self.service.profile(entry.hash, source, evaluation)
        return {
            "tier": profile.tier,
            "case": profile.case,
            "bottleneck": profile.bottleneck,
            "reason": _clipped(profile.reason),
            "share_of_roofline": profile.roofline,
            "figures": {name: float(f"{value:.4g}") for name, value in profile.numbers.items()},
            "hints": [_clipped(hint.action) for hint in profile.hints],
        }

    async def start_search(
        self,
        task: TaskName,
        ctx: Context,
        budget: Annotated[int, Field(ge=1, le=MOST_BUDGET, description="candidates to evaluate")] = 24,
        seed: Annotated[int, Field(ge=0, description="of all randomness")] = 0,
    ) -> Facts:
        """Starts a search for a faster kernel by evo's own rules; it runs on, search_status says how it goes."""
        caller = _caller(ctx)
        entry = self.tasks.find(task, caller.token)
        search = await asyncio.to_thread(self.searches.start, entry, caller.token, budget, seed)
        return {"search": search, "state": "running", "budget": budget}

    async def search_status(self, search: SearchId, ctx: Context) -> Facts:
        """Says how a search is doing: its state, candidates so far, and the best speedup."""
        state, result, error = await asyncio.to_thread(self.searches.find, search, _caller(ctx).token)
        facts: Facts = {"search": search, "state": state, "error": error}
        if result is not None:
            best = result.best
            facts |= {
                "candidates": result.spent.candidates,
                "budget": result.config.budget,
                "best": best and {"trial": best.trial, **_figures(best), "share_of_attainable": best.attained},
                "stop_reason": plain(result.stop_reason),
            }
        return facts

    async def best_kernel(self, search: SearchId, ctx: Context) -> Facts:
        """Returns the best kernel that a search has found so far, with its speedup and its difference from the seed."""
        _, result, _ = await asyncio.to_thread(self.searches.find, search, _caller(ctx).token)
        if result is None or result.best is None:
            raise ServiceError("the search has no kernel yet: its seed is being evaluated; ask search_status", 409)
        best = result.best
        return {"trial": best.trial, **_figures(best), "source": plain(best.source), "patch": plain(best.patch)}

    async def _evaluated(self, task: str, sources: list[str], ctx: Context, wait_s: float) -> list[Status]:
        caller = _caller(ctx)
        ids = self.service.submit(self.tasks.find(task, caller.token).hash, sources, caller)
        return list(await asyncio.gather(*(self.service.wait(each, wait_s) for each in ids)))


def _caller(ctx: Context) -> Caller:
    """Who calls: as the guard found for HTTP; over stdio the user who started this process."""
    request = ctx.request_context.request
    return Caller(LOCAL, "mcp") if request is None else request.state.caller


# --- answers ---------------------------------------------------------------------------------------------------------


def _description(task: Task, target: Target) -> Facts:
    """What a prompt says of a task, its rules and the GPU."""
    from fitness.briefing.allowed import allowed, rules
    from fitness.briefing.facts import hardware_facts, task_facts

    facts = task_facts(task, target)
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()},
        "reference": plain(facts["reference"]),
        "seed": plain(facts["seed"]),
        "allowed": [*allowed(), *facts["allowed"]],
        "rules": list(rules(task)),
        "hardware": hardware_facts(target),
        "seed_kernel": plain(task.seed_source or ""),
    }


def _summary(status: Status) -> Facts:
    """An evaluation in a few lines."""
    facts: Facts = {"state": status.state, "queue_s": round(status.queue_s, 3)}
    if status.execution_s is not None:
        facts["execution_s"] = round(status.execution_s, 3)
    if status.error:
        facts["error"] = _clipped(status.error)
    evaluation = _evaluation(status)
    if evaluation is None:
        return facts
    facts |= {"verdict": evaluation.verdict.value, "stage": evaluation.stage, "message": _clipped(evaluation.message)}
    if evaluation.findings:
        facts["findings"] = [
            {"rule": found.rule, "line": found.line, "message": _clipped(found.message)}
            for found in evaluation.findings[:_FINDINGS]
        ]
    fitness = evaluation.fitness
    if fitness is None:
        return facts
    us = {t.case: [float(f"{us:.4g}") for us in (t.baseline_median_us, t.median_us)] for t in evaluation.timings}
    return {
        **facts,
        **_figures(fitness),
        "us": us,
        "attainable_us": {t.case: t.attainable_us and float(f"{t.attainable_us:.4g}") for t in evaluation.timings},
        "share_of_attainable": evaluation.attained and round(evaluation.attained, 4),
        "compiled": resources(evaluation.builds, evaluation.frozen_source),
    }


def _figures(fitness: Fitness) -> Facts:
    return {
        "speedup": round(fitness.speedup, 4),
        "ci95": [round(end, 4) for end in fitness.ci95],
        "per_case": {case: round(value, 4) for case, value in fitness.per_case.items()},
        "estimated": fitness.estimated,
    }


def _evaluation(status: Status) -> Evaluation | None:
    return evaluation_from_json(status.evaluation) if status.evaluation else None


def _fitness(status: Status) -> Fitness | None:
    evaluation = _evaluation(status)
    return None if evaluation is None else evaluation.fitness


def _ahead(fitness: Mapping[int, Fitness], pair: tuple[int, int] | None) -> bool | None:
    """Whether the first of a pair is surely faster than the second; None for the last of a ranking."""
    if pair is None:
        return None
    one, other = fitness[pair[0]], fitness[pair[1]]
    return surely_faster(one.speedup, one.ci95[0], other.speedup, other.ci95[1])


def _clipped(text: str) -> str:
    """A text for a model: safe to show, and short."""
    safe = short(text)
    return safe if len(safe) <= _MESSAGE else f"{safe[:_MESSAGE]} ..."


def run_stdio(server: MCPServer, service: Service) -> None:
    """Serves one client over standard input and output until it leaves; then finishes what runs."""

    async def run() -> None:
        service.start()
        try:
            await server.run_stdio_async()
        finally:
            await service.close()

    asyncio.run(run())

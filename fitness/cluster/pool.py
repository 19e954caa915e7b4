"""Runs front ends and backends on the machines of a Ray cluster, or on several GPUs.  Only this module imports Ray.

    cluster = Cluster("local")                                        # or HOST:PORT of one that runs
    factory = ClusterEvaluatorFactory(cluster, target, gpus=2, ...)   # 0: interpreters verify, times are estimated
    evaluators = [factory.open(task) for task in tasks]               # at the same time, on the same workers

Actors do what `fitness/candidate.py`, `fitness/cpu_backend.py` and `fitness/gpu_backend.py` do in one process, for all
open tasks.  This module chooses their machines (`posts`) and sends tasks to them.  It keeps two worker pools
(`fitness/cluster/workers.py`): one compiles, one verifies and times.  Nothing is stored here: the caller of an
evaluator does that.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from evo.core.errors import ConfigError, EvoError, TaskError, how_to_install
from evo.core.records import Certificate
from fitness.candidate import CompiledCandidate, Estimates, FrontEnd
from fitness.cluster.bundle import TaskBundle, WorkerSettings
from fitness.cluster.workers import Lost, WorkerPool
from fitness.cpu_backend import CpuBackend
from fitness.cuda.gpus import Gpus, find_gpus, measuring
from fitness.devices import check_address
from fitness.evaluator import BackendResult, Look, TaskEvaluator
from fitness.frontend.stages import Stop
from fitness.frontend.target import Target
from fitness.gpu import runner
from fitness.gpu.runner import EXCHANGE_S, LOCK_S, LaunchBundle
from fitness.gpu_backend import GpuBackend, SharedGpu
from fitness.profile.ncu import MOST_S, Counters, NoCounters
from fitness.sandbox.jobs import Limits
from fitness.sandbox.scratch import remove, scratch_root
from fitness.sandbox.zygote import Zygote
from fitness.tasks.task import Task

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise ConfigError(f"several GPUs and --ray-address need Ray, which is not installed; {how_to_install()}") from error

START_S = 600.0  # until a worker is ready: imports from cold disks, the ceilings of a GPU measured, other users' work
# A worker that does not answer a call for longer counts as lost: the sum of the limits that parts of a call have.
# Others keep the GPU as long as they may, each try needs a new process, which starts and gets the seed, and the files
# of a certificate are written and compared.
CALL_S = LOCK_S + 2 * runner.ATTEMPTS * runner.START_S + 2 * EXCHANGE_S
# A full certificate has three such exchanges: the seed's, its unseen sizes, the candidate's.  Counters are read of one
# plan at a time: the reading of the other lane may come first.
LONG_S = {"certify": CALL_S + 4 * EXCHANGE_S, "counters": CALL_S + MOST_S}
CLOSE_S = 5.0
STEP_S = 0.5
KNOCK_S = 10.0
FRONT_END_LANES = 8  # of one actor, which is one process: about 90 candidates/s with 14 (runs/reference/h200-runner)
BACKEND_CPUS = 2  # beside a GPU: the process that measures, the actor that feeds it
# One candidate is measured, the next waits at the GPU, so that the driver's round trip costs the GPU no time.
BACKEND_LANES = 2
# Ray's memory for objects in flight on a machine of its own; compiled candidates are about 1 MB each
STORE_BYTES = 256 << 20

T = TypeVar("T")


# --- machines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster and what Ray may use of it."""

    id: str
    host: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class Post:
    """What one actor gets: `lanes` calls at once on a share of a node."""

    node: ClusterNode
    lanes: int
    cpus: float
    gpus: int = 0


def posts(nodes: Sequence[ClusterNode], gpus: int) -> tuple[list[Post], list[Post]]:
    """Returns (posts of front ends, posts of backends) for measuring on the first `gpus` GPUs; 0: for estimating.

    Raises ConfigError if the cluster has fewer, or no CPU beside them to record on.
    """
    front_ends, backends = [], []
    wanted = gpus
    for node in nodes:
        here = min(wanted, node.gpus)
        wanted -= here
        if gpus:
            share = min(BACKEND_CPUS, (node.cpus - 1) / here) if here and node.cpus else 0
            backends += [Post(node, BACKEND_LANES, max(0, int(share)), 1) for _ in range(here)]
            front_ends += _split(node, int(node.cpus - here * max(0, int(share))), 1.0)
        else:  # most evaluations wait for one of the two: each may have all CPUs, and pays for half
            backends += _split(node, node.cpus, 0.5)
            front_ends += _split(node, node.cpus, 0.5)
    if wanted:
        raise ConfigError(f"--gpus {gpus}: the cluster has {gpus - wanted}; set --gpus all or a number up to that")
    if not front_ends:
        raise ConfigError("the cluster has no CPUs to record and compile on; start its nodes with --num-cpus")
    return front_ends, backends


def _split(node: ClusterNode, lanes: int, price: float) -> list[Post]:
    """Returns posts with that many lanes in all, evenly; a lane costs `price` CPUs."""
    count = -(-lanes // FRONT_END_LANES)
    sizes = [lanes // count + (i < lanes % count) for i in range(count)]
    return [Post(node, size, size * price) for size in sizes]


class Cluster:
    """The connection of this process to Ray; there is one, and an existing connection is used and kept."""

    def __init__(self, address: str) -> None:
        """Connects.

        address: HOST:PORT, "auto" (the cluster on this machine) or "local" (start one here, ended by `close`).

        Raises ConfigError if the connection fails.
        """
        self._mine = not ray.is_initialized()
        if self._mine:
            _join(address)

    @cached_property
    def nodes(self) -> list[ClusterNode]:
        """Returns the machines that are alive, this one first."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        here = ray.get_runtime_context().get_node_id()
        alive.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerHostname"], node["NodeID"]))
        return [
            ClusterNode(
                node["NodeID"],
                node["NodeManagerHostname"],
                int(node["Resources"].get("CPU", 0)),
                int(node["Resources"].get("GPU", 0)),
            )
            for node in alive
        ]

    def __str__(self) -> str:
        cpus, gpus = sum(node.cpus for node in self.nodes), sum(node.gpus for node in self.nodes)
        return f"{cpus} CPUs and {gpus} GPUs of {len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''}"

    def find_gpus(self, target: Target) -> Gpus:
        """Returns the GPUs of all machines; one of them is inspected on its own machine."""
        count = sum(node.gpus for node in self.nodes)
        if not count:
            return Gpus(0, "", "no node of the Ray cluster has a GPU")
        found = _on_a_gpu(find_gpus, target)
        return Gpus(count, found.name, found.problem)

    def measuring(self, target: Target) -> Target:
        """Returns `target` with the properties of one GPU, inspected on its machine.

        All GPUs of a run are of one model.
        """
        return _on_a_gpu(measuring, target)

    def workers(self, gpus: int) -> int:
        """Returns how many evaluations at once keep all lanes busy."""
        front_ends, backends = posts(self.nodes, gpus)
        compiling = sum(post.lanes for post in front_ends)
        return compiling + sum(post.lanes for post in backends) if gpus else compiling

    def close(self) -> None:
        if self._mine:
            ray.shutdown()


def _on_a_gpu(look: Callable[[Target], T], target: Target) -> T:
    """Returns what a function finds on a machine of the cluster with a GPU.  Raises EvoError if it fails."""
    on_a_gpu = ray.remote(num_gpus=1, num_cpus=0, max_retries=0)(look)
    try:
        found: T = ray.get(on_a_gpu.remote(target), timeout=START_S)
    except RayError as error:
        raise EvoError(f"expected to look at a GPU of the Ray cluster, got: {_cause(error)}") from error
    return found


def _join(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray must not report home without the user's consent
    own: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False} if address == "local" else {}
    try:
        if address not in ("auto", "local"):
            check_address(address)
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(
            f"--ray-address {address}: expected HOST:PORT of a Ray cluster, auto or local, got: {_first_line(error)}; "
            "start one by `ray start --head`, and run evo on a node of it"
        ) from error


def _knock(address: str) -> None:
    """Raises OSError if nothing answers at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


# --- what runs there -----------------------------------------------------------------------------------------------


class Actor:
    """The process of a worker: a front end or a backend for each open task.

    Whatever ends an evaluation is an answer, not an exception.  On a GPU the backends share the GPU lock: one candidate
    is timed at a time, whatever its task.
    """

    def start(self, role: str, settings: WorkerSettings) -> Exception | None:
        """Makes what the tasks share.  Returns the error if that fails."""
        try:
            settings.check_versions()
            self._role, self._settings, self._folder = role, settings, scratch_root()
            self._gpu = SharedGpu()  # Ray shows it only its own
            self._tasks: dict[int, FrontEnd | CpuBackend | GpuBackend] = {}
            jobs = (
                ("record", "compile", "trace") if role == "front end" else () if settings.measured else ("interpret",)
            )
            self._zygote = Zygote(settings.target.spec, jobs) if jobs else None
        except (Stop, EvoError) as error:
            return error
        return None

    def open(self, key: int, bundle: TaskBundle) -> Exception | None:
        """Makes the object whose methods `call` calls under that key, in the place of one made before.

        Returns the error if that fails.
        """
        self.forget(key)
        try:
            self._tasks[key] = self._make(bundle.load(self._folder / str(key)))
        except (Stop, EvoError) as error:
            return error
        return None

    def _make(self, task: Task) -> FrontEnd | CpuBackend | GpuBackend:
        target, limits = self._settings.target, self._settings.limits
        if self._role == "front end":
            return FrontEnd(task, target, measured=self._settings.measured, limits=limits, zygote=self._zygote)
        if self._settings.measured:
            return GpuBackend(task, limits=limits, gpu=self._gpu)
        return CpuBackend(task, target, limits=limits, zygote=self._zygote)

    def call(self, key: int, method: str, *arguments: Any) -> Any:
        """Returns what the method answers, or the attribute of that name."""
        if key not in self._tasks:
            return EvoError("the task was closed")
        try:
            found = getattr(self._tasks[key], method)
            return found(*arguments) if callable(found) else found
        except (Stop, EvoError, NoCounters) as error:
            return error

    def forget(self, key: int) -> None:
        """Closes what `open` made, and removes the files of its task."""
        if (made := self._tasks.pop(key, None)) is not None:
            made.close()
        remove(self._folder / str(key))

    def close(self) -> None:
        for key in list(self._tasks):
            self.forget(key)
        self._gpu.close()
        if self._zygote is not None:
            self._zygote.close()
        remove(self._folder)


class Closed(EvoError):
    """The evaluator of a call was closed."""


_KEYS = itertools.count()


class Assignment:
    """A task, and how a worker begins with it: `calls` are its first ones, each a method and its arguments."""

    def __init__(self, bundle: TaskBundle, *calls: tuple[Any, ...]) -> None:
        self.key, self.bundle, self.calls = next(_KEYS), bundle, calls
        self.over = threading.Event()


class Remote:
    """An actor as a worker of a WorkerPool; its calls begin with their Assignment."""

    def __init__(self, post: Post, role: str, settings: WorkerSettings, closing: threading.Event) -> None:
        """Starts the actor.  Raises Lost if it does not start, and while it waits once `closing` is set."""
        self._closing = closing
        self._begun: dict[int, list[Any]] = {}  # by key: answers of the first calls
        self._beginning = threading.Lock()
        self.lanes = post.lanes
        actor: Any = ray.remote(Actor)
        self._actor = actor.options(
            num_cpus=post.cpus,
            num_gpus=post.gpus,
            max_concurrency=post.lanes + 2,  # one to begin with a task, one to be asked to end
            scheduling_strategy=NodeAffinitySchedulingStrategy(post.node.id, soft=False),
        ).remote()
        try:
            self._get(self._actor.start.remote(role, settings), START_S)
        except Exception:
            self.stop()
            raise

    def begin(self, assignment: Assignment) -> list[Any]:
        """Returns the answers of the assignment's first calls, which are made once.

        Raises what they raise, and Closed.
        """
        if assignment.over.is_set():
            raise Closed("the evaluator was closed")
        if assignment.key not in self._begun:
            with self._beginning:
                if assignment.key not in self._begun:
                    opened = self._actor.open.remote(assignment.key, assignment.bundle)
                    self._get(opened, START_S, assignment.over)
                    self._begun[assignment.key] = [self._call(assignment, *call) for call in assignment.calls]
        return self._begun[assignment.key]

    def ask(self, method: str, *arguments: Any) -> Any:
        assignment: Assignment = arguments[0]
        try:
            self.begin(assignment)
        except Closed:
            raise
        except (Stop, EvoError) as error:  # not the call's fault: others could begin with this task
            raise Lost(f"it cannot begin with task {assignment.bundle.name!r}: {error}") from error
        return self._call(assignment, method, *arguments[1:])

    def forget(self, assignment: Assignment) -> None:
        self._begun.pop(assignment.key, None)
        with suppress(RayError):
            ray.get(self._actor.forget.remote(assignment.key), timeout=CLOSE_S)

    def stop(self) -> None:
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=CLOSE_S)
        ray.kill(self._actor)

    def _call(self, assignment: Assignment, method: str, *arguments: Any) -> Any:
        answer = self._actor.call.remote(assignment.key, method, *arguments)
        return self._get(answer, LONG_S.get(method, CALL_S), assignment.over)

    def _get(self, reference: Any, wait_s: float, over: threading.Event | None = None) -> Any:
        """Waits for an answer.  Raises Closed if `over` is set meanwhile."""
        try:
            until = time.monotonic() + wait_s
            # In steps: Ray must not be left while a thread waits for an answer that may never come.
            while not ray.wait([reference], timeout=STEP_S)[0]:
                if self._closing.is_set():
                    raise Lost("the workers were closed")
                if over is not None and over.is_set():
                    raise Closed("the evaluator was closed")
                if time.monotonic() > until:
                    raise Lost(f"no answer within {wait_s:g} s")
            answer = ray.get(reference)
        except RayTaskError:  # a bug in what it runs, with its traceback
            raise
        except RayError as error:
            raise Lost(_cause(error)) from error
        if isinstance(answer, ConfigError | TaskError | Stop | NoCounters):
            raise answer
        if isinstance(answer, EvoError):  # it is useless from now on: its zygote or its GPU does not start
            if over is not None and over.is_set():
                raise Closed("the evaluator was closed") from answer
            raise Lost(str(answer)) from answer
        return answer


def _cause(error: RayError) -> str:
    """Returns the type and the first line of what went wrong on a node.

    A module that is missing there stands at the end of a traceback, in Ray's message.
    """
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause)
    if "failed to import on the worker" in text:
        return text.strip().splitlines()[-1]
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# --- as front end and backend of an evaluator ----------------------------------------------------------------------


class ActorFactory:
    """The workers of one role, for all tasks."""

    def __init__(self, role: str, stage: str, places: Sequence[Post], settings: WorkerSettings) -> None:
        """Starts one worker per post. stage: that their calls are part of.  Raises like WorkerPool."""
        self._role, self._settings = role, settings
        self._closing = threading.Event()
        self._open: dict[int, Assignment] = {}
        self.pool = WorkerPool(stage, {_name(i, post): partial(self._start, post) for i, post in enumerate(places)})

    def _start(self, post: Post) -> Remote:
        """Starts a worker that begins with all open tasks; raises if it cannot, so that it is not used."""
        worker = Remote(post, self._role, self._settings, self._closing)
        try:
            for assignment in list(self._open.values()):
                with suppress(Closed):
                    worker.begin(assignment)
        except Exception:
            worker.stop()
            raise
        return worker

    def open(self, assignment: Assignment) -> dict[str, list[Any]]:
        """Has all workers begin with a task at once; returns the answers of its first calls, by place.

        Raises what those raise, EvoError if no worker is left.  A worker that starts meanwhile begins with its first
        call.
        """
        begun = self.pool.everyone(lambda worker: cast(Remote, worker).begin(assignment))
        self._open[assignment.key] = assignment
        return begun

    def close_task(self, assignment: Assignment) -> None:
        """Ends work on a task: its calls under way raise EvoError."""
        assignment.over.set()
        self._open.pop(assignment.key, None)
        if not self._closing.is_set():
            with suppress(EvoError):  # no worker is left that could remember it
                self.pool.everyone(lambda worker: cast(Remote, worker).forget(assignment))

    def close(self) -> None:
        self._closing.set()
        self.pool.close()


class FrontEnds:
    """A front end (`fitness.evaluator.CandidateBuilder`) made of many workers."""

    def __init__(self, workers: ActorFactory, bundle: TaskBundle) -> None:
        self.workers, self._task = workers, Assignment(bundle)
        workers.open(self._task)

    @property
    def layers(self) -> Mapping[str, str]:
        """Returns the sandbox layers of one of the nodes; each evaluation stores its own."""
        return cast("Mapping[str, str]", self.workers.pool.call("layers", self._task))

    def baseline(self) -> CompiledCandidate:
        """Records PyTorch's operators on any worker, for a task without a seed kernel.  Raises Stop."""
        return cast(CompiledCandidate, self.workers.pool.call("baseline", self._task))

    def baseline_estimates(self) -> Estimates:
        """Returns the estimate of each tune case of PyTorch's operators, from any worker.  Raises Stop."""
        return cast("Estimates", self.workers.pool.call("baseline_estimates", self._task))

    def collect(self, source: str) -> CompiledCandidate:
        """Compiles a source on any worker.  Raises Stop with the verdict."""
        return cast(CompiledCandidate, self.workers.pool.call("collect", self._task, source))

    def complete(self, source: str, compiled: CompiledCandidate) -> CompiledCandidate:
        """Adds the remaining builds on any worker.  Raises Stop."""
        return cast(CompiledCandidate, self.workers.pool.call("complete", self._task, source, compiled))

    def estimates(self, source: str, compiled: CompiledCandidate) -> Estimates:
        """Returns the estimate of each tune case, from any worker.  Raises Stop."""
        return cast("Estimates", self.workers.pool.call("estimates", self._task, source, compiled))

    def close(self) -> None:
        self.workers.close_task(self._task)


class Backends:
    """A backend (`fitness.evaluator.Backend`) made of many workers; each compares with the seed on its own GPU."""

    def __init__(self, workers: ActorFactory, stage: str, bundle: TaskBundle) -> None:
        self.workers, self.stage, self._bundle = workers, stage, bundle
        self.environment: Mapping[str, Any] = {}
        self._task: Assignment | None = None

    def prepare(self, seed: str, compiled: CompiledCandidate) -> BackendResult:
        """Prepares all workers with the seed.  Raises ConfigError if their GPUs differ."""
        self.close()
        self._task = Assignment(self._bundle, ("prepare", seed, compiled), ("environment",))
        result, self.environment = _as_one(self.workers.open(self._task))
        return result

    def look(self, source: str, compiled: CompiledCandidate, key: str) -> Look:
        """Takes coarse times on any worker.  Raises Stop with the verdict."""
        return cast(Look, self._call("look", source, compiled, key))

    def evaluate(self, source: str, compiled: CompiledCandidate, key: str) -> BackendResult:
        """Verifies and times on any worker.  Raises Stop with the verdict."""
        return cast(BackendResult, self._call("evaluate", source, compiled, key))

    def certify(self, source: str, key: str) -> Certificate:
        """Returns the certificate of a source, from any worker."""
        return cast(Certificate, self._call("certify", source, key))

    def counters(self, bundle: LaunchBundle, case: str) -> Counters:
        """Returns hardware counters of one case, from any worker.  Raises NoCounters."""
        return cast(Counters, self._call("counters", bundle, case))

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._task is None:
            raise EvoError("the backends are not ready: call prepare() first")
        return self.workers.pool.call(method, self._task, *arguments)

    def close(self) -> None:
        if self._task is not None:
            self.workers.close_task(self._task)


def _as_one(prepared: Mapping[str, Sequence[Any]]) -> tuple[BackendResult, Mapping[str, Any]]:
    """Returns the first worker's result for the seed, and the GPUs of all.

    prepared: by place (host and GPU) of each worker, its evaluation of the seed kernel and its environment.
    Raises ConfigError if their GPUs are of several models.
    """
    result, environment = next(iter(prepared.values()))
    models = {found["gpu"]: place for place, (_, found) in prepared.items() if found}
    if len(models) > 1:
        found = ", ".join(f"{model} ({place})" for model, place in models.items())
        raise ConfigError(f"expected GPUs of one model, since a run compares their times, got {found}; leave some out")
    uuids = {place: found["uuid"] for place, (_, found) in prepared.items() if found}
    return result, {**environment, "gpus": uuids} if uuids else environment


def _name(index: int, post: Post) -> str:
    return f"number {index} on {post.node.host}"


class ClusterEvaluatorFactory:
    """Opens evaluators of several tasks that share the workers of a cluster.

    They evaluate like `GpuEvaluator` on `gpus` GPUs, or, without GPUs, like `CpuEvaluator` on CPUs.  Every worker takes
    calls of all tasks, and begins with each once: a GPU measures the baseline of a task once.
    """

    def __init__(
        self,
        cluster: Cluster,
        target: Target,
        *,
        gpus: int,
        versions: Callable[[], Mapping[str, str]],
        limits: Limits | None = None,
    ) -> None:
        """Starts all workers.

        versions: those that decide results, the same on all nodes; `cluster` is closed with it.
        """
        self._cluster, self.target = cluster, cluster.measuring(target) if gpus else target
        settings = WorkerSettings(self.target, gpus > 0, limits or Limits(), versions, versions())
        front_ends, backends = posts(cluster.nodes, gpus)
        self._stage = (GpuBackend if gpus else CpuBackend).stage
        self._front_ends = ActorFactory("front end", "record", front_ends, settings)
        try:
            self._backends = ActorFactory("backend", self._stage, backends, settings)
        except Exception:
            self._front_ends.close()
            raise

    def open(self, task: Task) -> TaskEvaluator:
        return TaskEvaluator(task, self.target, *self.connect(task))

    def connect(self, task: Task) -> tuple[FrontEnds, Backends]:
        """Returns front end and backend for an evaluator of that task.

        Raises ConfigError if the task cannot be sent.
        """
        bundle = TaskBundle.of(task)
        return FrontEnds(self._front_ends, bundle), Backends(self._backends, self._stage, bundle)

    def close(self) -> None:
        """Ends all workers, whatever they are doing."""
        self._backends.close()
        self._front_ends.close()
        self._cluster.close()


class ClusterEvaluator(TaskEvaluator):
    """The evaluator of one task with a ClusterEvaluatorFactory of its own."""

    def __init__(self, cluster: Cluster, task: Task, target: Target, **settings: Any) -> None:
        """Takes the options of ClusterEvaluatorFactory."""
        self.factory = ClusterEvaluatorFactory(cluster, target, **settings)
        super().__init__(task, self.factory.target, *self.factory.connect(task))

    def close(self) -> None:
        self.factory.close()

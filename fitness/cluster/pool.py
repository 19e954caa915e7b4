"""Recorders and judges on the machines of a Ray cluster, or on the GPUs of one.  The only module that imports Ray.

    cluster = Cluster("local")                                  # or HOST:PORT of one that runs
    evaluator = ClusterEvaluator(cluster, task, target, gpus=2)     # 0: verified by interpreters, times estimated

Actors do what `fitness/facts.py`, `fitness/evaluator.py` and `fitness/gpu_evaluator.py` do in one process; this module
says where they live (`posts`), gets the task to them and keeps two crews (`fitness/cluster/crew.py`), one that compiles
and one that judges.  Nothing is stored here: whoever calls the evaluator does that.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from evo.errors import ConfigError, EvoError, TaskError
from evo.records import Certificate
from fitness.cluster.crew import Crew, Lost
from fitness.compilation.target import Target
from fitness.evaluator import CpuJudge
from fitness.facts import Estimates, Facts, Recorder, scratch_root
from fitness.gpu.gpus import Gpus, find_gpus
from fitness.gpu.runner import Work
from fitness.gpu_evaluator import GpuJudge, gpu_judge
from fitness.pipeline import Evaluator, Judged
from fitness.profiling.ncu import Counters, NoCounters
from fitness.sandbox.jobs import Limits
from fitness.stages import Stop
from fitness.task import Task, load_task

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise ConfigError(
        "several GPUs and --ray-address need Ray, which is not installed; pip install 'evo-triton[cluster]'"
    ) from error

START_S = 600.0  # until a worker is ready: imports from cold disks, the ceilings of a GPU measured, other users' work
CALL_S = 900.0  # a judge may replace its GPU process twice within one call; a node that is silent for longer is lost
CLOSE_S = 5.0
STEP_S = 0.5
KNOCK_S = 10.0
FILES_BYTES = 64 << 20  # of a task's folder, sent to every actor
RECORDER_LANES = 8  # of one actor, which is one process: about 90 candidates/s with 14 lanes (docs/gpu.md)
JUDGE_CPUS = 2  # beside a GPU: the process that measures, the actor that feeds it
# One candidate is measured, the next waits at the GPU, so that the driver's round trip costs the GPU no time.
JUDGE_LANES = 2
STORE_BYTES = 256 << 20  # Ray's memory for objects in flight on a machine of its own; facts are about 1 MB each


# --- where ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A machine of the cluster and what Ray may use of it."""

    id: str
    host: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class Post:
    """What one actor gets: `lanes` calls at once on a share of a node."""

    node: Node
    lanes: int
    cpus: float
    gpus: int = 0


def posts(nodes: Sequence[Node], gpus: int) -> tuple[list[Post], list[Post]]:
    """(recorders, judges) for measuring on that many GPUs, the first ones there are; 0: for estimating.

    Raises ConfigError where there are not as many, or no CPU beside them to record on.
    """
    recorders, judges = [], []
    wanted = gpus
    for node in nodes:
        here = min(wanted, node.gpus)
        wanted -= here
        if gpus:
            share = min(JUDGE_CPUS, (node.cpus - 1) / here) if here and node.cpus else 0
            judges += [Post(node, JUDGE_LANES, max(0, int(share)), 1) for _ in range(here)]
            recorders += _split(node, int(node.cpus - here * max(0, int(share))), 1.0)
        else:  # most evaluations wait for one of the two: each may have all CPUs, and pays for half
            judges += _split(node, node.cpus, 0.5)
            recorders += _split(node, node.cpus, 0.5)
    if wanted:
        raise ConfigError(f"--gpus {gpus}: the cluster has {gpus - wanted}; set --gpus all or a number up to that")
    if not recorders:
        raise ConfigError("the cluster has no CPUs to record and compile on; start its nodes with --num-cpus")
    return recorders, judges


def _split(node: Node, lanes: int, price: float) -> list[Post]:
    """Posts with that many lanes in all, evenly; a lane costs `price` CPUs."""
    count = -(-lanes // RECORDER_LANES)
    sizes = [lanes // count + (i < lanes % count) for i in range(count)]
    return [Post(node, size, size * price) for size in sizes]


class Cluster:
    """The connection of this process to Ray, of which there is one; a connection that exists is used and kept."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT, "auto" (the cluster on this machine) or "local" (start one here, ended by `close`).

        Raises ConfigError where there is none.
        """
        self._mine = not ray.is_initialized()
        if self._mine:
            _join(address)

    @cached_property
    def nodes(self) -> list[Node]:
        """The machines that are alive, this one first."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        here = ray.get_runtime_context().get_node_id()
        alive.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerHostname"], node["NodeID"]))
        return [
            Node(
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
        """The GPUs of all machines, one of them looked at where it is."""
        count = sum(node.gpus for node in self.nodes)
        if not count:
            return Gpus(0, "", "no node of the Ray cluster has a GPU")
        look = ray.remote(num_gpus=1, num_cpus=0, max_retries=0)(find_gpus)
        try:
            found: Gpus = ray.get(look.remote(target), timeout=START_S)
        except RayError as error:
            raise EvoError(f"expected to look at a GPU of the Ray cluster, got: {_first_line(error)}") from error
        return Gpus(count, found.name, found.problem)

    def workers(self, gpus: int) -> int:
        """Evaluations at once that keep all lanes busy."""
        recorders, judges = posts(self.nodes, gpus)
        compiling = sum(post.lanes for post in recorders)
        return compiling + sum(post.lanes for post in judges) if gpus else compiling

    def close(self) -> None:
        if self._mine:
            ray.shutdown()


def _join(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody was asked whether Ray may report home
    own: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False} if address == "local" else {}
    try:
        if address not in ("auto", "local"):
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(
            f"--ray-address {address}: expected HOST:PORT of a Ray cluster, auto or local, got: {_first_line(error)}; "
            "start one by `ray start --head`, and run evo on a node of it"
        ) from error


def _knock(address: str) -> None:
    """Raises OSError or ValueError where nobody answers at HOST:PORT; Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


# --- what runs there -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """All that an actor needs to know; made by the driver, sent to every node."""

    name: str  # of the task
    files: Mapping[str, bytes]  # its folder, without folders in it
    task_hash: str
    target: Target
    measured: bool
    limits: Limits
    versions: Callable[[], Mapping[str, str]]  # of what decides results, on the machine that calls it
    expected: Mapping[str, str]  # the driver's

    @classmethod
    def of(
        cls, task: Task, target: Target, measured: bool, limits: Limits, versions: Callable[[], Mapping[str, str]]
    ) -> Job:
        """Raises ConfigError where the task is too large to be sent around."""
        paths = [path for path in task.folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        size = sum(path.stat().st_size for path in paths)
        if size > FILES_BYTES:
            raise ConfigError(
                f"{task.folder}: expected at most {FILES_BYTES >> 20} MiB of files, which are sent to all nodes, "
                f"got {size >> 20} MiB; move what the task does not need elsewhere"
            )
        files = {path.name: path.read_bytes() for path in paths}
        return cls(task.name, files, task.hash, target, measured, limits, versions, versions())

    def check_versions(self) -> None:
        """Raises ConfigError where this machine would find other results than the driver's."""
        here = self.versions()
        differ = [
            f"{name} {found} instead of {self.expected.get(name)}"
            for name, found in here.items()
            if _public(found) != _public(self.expected.get(name, ""))
        ]
        if differ:
            raise ConfigError(f"node {socket.gethostname()} has {', '.join(differ)}; install the same on all nodes")

    def load_task(self, folder: Path) -> Task:
        """The task, from files written to `folder`.  Raises TaskError where it is not the driver's."""
        home = folder / "task" / self.name
        home.mkdir(parents=True)
        for name, data in self.files.items():
            (home / name).write_bytes(data)
        task = load_task(home)
        if task.hash != self.task_hash:
            raise TaskError(f"task {self.name!r} was changed while the run started; start it again")
        return task


def _public(version: str) -> str:
    """Without the local part: nodes with and without a GPU have builds of torch of their own ("2.11.0+cpu")."""
    return version.partition("+")[0]


class Actor:
    """The process of a worker: a Recorder or a judge.  Whatever ends an evaluation is an answer, not an exception."""

    def start(self, role: str, job: Job) -> Exception | None:
        """Makes the object whose methods `call` calls."""
        try:
            job.check_versions()
            self._folder = scratch_root()
            self._object = _make(role, job, job.load_task(self._folder))
        except (Stop, EvoError) as error:
            return error
        return None

    def call(self, method: str, *arguments: Any) -> Any:
        """What the method answers, or the attribute of that name."""
        try:
            found = getattr(self._object, method)
            return found(*arguments) if callable(found) else found
        except (Stop, EvoError, NoCounters) as error:
            return error

    def close(self) -> None:
        self._object.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _make(role: str, job: Job, task: Task) -> Recorder | CpuJudge | GpuJudge:
    if role == "recorder":
        return Recorder(task, job.target, measured=job.measured, limits=job.limits)
    if job.measured:
        return gpu_judge(task, limits=job.limits)  # Ray shows it the one GPU that is its own
    return CpuJudge(task, job.target, limits=job.limits)


class Remote:
    """An actor as a worker of a crew."""

    def __init__(self, post: Post, role: str, job: Job, closing: threading.Event) -> None:
        """Raises Lost where it does not start, and from all that is waited for once `closing` is set."""
        self._closing = closing
        self.lanes = post.lanes
        actor: Any = ray.remote(Actor)
        self._actor = actor.options(
            num_cpus=post.cpus,
            num_gpus=post.gpus,
            max_concurrency=post.lanes + 1,  # one to be asked to end
            scheduling_strategy=NodeAffinitySchedulingStrategy(post.node.id, soft=False),
        ).remote()
        try:
            self._get(self._actor.start.remote(role, job), START_S)
        except Exception:
            self.fire()
            raise

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._get(self._actor.call.remote(method, *arguments), CALL_S)

    def fire(self) -> None:
        with suppress(RayError):
            ray.get(self._actor.close.remote(), timeout=CLOSE_S)
        ray.kill(self._actor)

    def _get(self, reference: Any, wait_s: float) -> Any:
        try:
            until = time.monotonic() + wait_s
            # In steps: Ray must not be left while a thread waits for an answer that may never come.
            while not ray.wait([reference], timeout=STEP_S)[0]:
                if self._closing.is_set():
                    raise Lost("the workers were closed")
                if time.monotonic() > until:
                    raise Lost(f"no answer within {wait_s:g} s")
            answer = ray.get(reference)
        except RayTaskError:  # a bug in what it runs, with its traceback
            raise
        except RayError as error:
            raise Lost(f"{type(error).__name__}: {_first_line(error)}") from error
        if isinstance(answer, ConfigError | TaskError | Stop | NoCounters):
            raise answer
        if isinstance(answer, EvoError):  # of no use any more: its zygote or its GPU does not start
            raise Lost(str(answer)) from answer
        return answer


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# --- as recorder and judge of an evaluator -------------------------------------------------------------------------


class Recorders:
    """A recorder (`fitness.pipeline.Recorder`) that is many."""

    def __init__(self, places: Sequence[Post], job: Job) -> None:
        self._closing = threading.Event()
        hires = {_name(i, post): partial(Remote, post, "recorder", job, self._closing) for i, post in enumerate(places)}
        self._crew = Crew("record", hires)

    @property
    def layers(self) -> Mapping[str, str]:
        """As of every recorder; of one of the nodes, each evaluation tells its own."""
        return cast("Mapping[str, str]", self._crew.call("layers"))

    def collect(self, source: str) -> Facts:
        """As of every recorder."""
        return cast(Facts, self._crew.call("collect", source))

    def estimates(self, source: str, facts: Facts) -> Estimates:
        """As of every recorder."""
        return cast("Estimates", self._crew.call("estimates", source, facts))

    def close(self) -> None:
        self._closing.set()
        self._crew.close()


class Judges:
    """A judge (`fitness.pipeline.Judge`) that is many; each compares with the seed on its own GPU."""

    def __init__(self, places: Sequence[Post], job: Job) -> None:
        self.stage = (GpuJudge if job.measured else CpuJudge).stage
        self.environment: Mapping[str, Any] = {}
        self._places = {_name(i, post): post for i, post in enumerate(places)}
        self._job = job
        self._crew: Crew | None = None
        self._closing = threading.Event()

    def prepare(self, seed: str, facts: Facts) -> Judged:
        """As of every judge: on all of them, which start now.  Raises ConfigError where their GPUs differ."""
        self.close()
        self._closing = closing = threading.Event()
        prepared: dict[str, tuple[Judged, Mapping[str, Any]]] = {}

        def hire(place: str, post: Post) -> Remote:
            judge = Remote(post, "judge", self._job, closing)
            try:
                prepared[place] = judge.ask("prepare", seed, facts), judge.ask("environment")
            except Exception:
                judge.fire()
                raise
            return judge

        self._crew = Crew(self.stage, {place: partial(hire, place, post) for place, post in self._places.items()})
        judged, self.environment = _as_one({place: prepared[place] for place in self._places})
        return judged

    def judge(self, source: str, facts: Facts, key: str) -> Judged:
        """As of every judge."""
        return cast(Judged, self._prepared().call("judge", source, facts, key))

    def certify(self, source: str, key: str) -> Certificate:
        """As of every judge."""
        return cast(Certificate, self._prepared().call("certify", source, key))

    def counters(self, work: Work, case: str) -> Counters:
        """As of every judge."""
        return cast(Counters, self._prepared().call("counters", work, case))

    def _prepared(self) -> Crew:
        if self._crew is None:
            raise EvoError("the judges do not work yet: call prepare() first")
        return self._crew

    def close(self) -> None:
        self._closing.set()
        if self._crew is not None:
            self._crew.close()


def _as_one(prepared: Mapping[str, tuple[Judged, Mapping[str, Any]]]) -> tuple[Judged, Mapping[str, Any]]:
    """What the first of all judges found, and the GPUs of all.  Raises ConfigError unless they are of one model."""
    judged, environment = next(iter(prepared.values()))
    models = {found["gpu"]: place for place, (_, found) in prepared.items() if found}
    if len(models) > 1:
        found = ", ".join(f"{model} ({place})" for model, place in models.items())
        raise ConfigError(f"expected GPUs of one model, since a run compares their times, got {found}; leave some out")
    uuids = {place: found["uuid"] for place, (_, found) in prepared.items() if found}
    return judged, {**environment, "gpus": uuids} if uuids else environment


def _name(index: int, post: Post) -> str:
    return f"number {index} on {post.node.host}"


class ClusterEvaluator(Evaluator):
    """Evaluates as `GpuEvaluator` does on `gpus` GPUs of a cluster, or, with none, as `CpuEvaluator` on its CPUs."""

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        target: Target,
        *,
        gpus: int,
        versions: Callable[[], Mapping[str, str]],
        limits: Limits | None = None,
    ) -> None:
        """`versions`: of what decides results, to be the same on all nodes; `cluster` is closed with the evaluator."""
        self._cluster = cluster
        job = Job.of(task, target, gpus > 0, limits or Limits(), versions)
        recorders, judges = posts(cluster.nodes, gpus)
        super().__init__(task, target, Recorders(recorders, job), Judges(judges, job))

    def close(self) -> None:
        super().close()
        self._cluster.close()

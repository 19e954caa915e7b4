"""Front ends and backends on a real local Ray cluster of two nodes, whose workers and nodes are killed."""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from evo.core.errors import ConfigError, EvoError, TaskError
from evo.core.records import Candidate, Evaluation, Finding, Trial, Verdict, score
from evo.core.settings import RunConfig
from evo.core.versions import versions
from evo.search.engine import Engine
from evo.storage.queries import RunInfo
from evo.storage.store import Store
from fitness.certify import sanitize
from fitness.certify.certify import LIMITS
from fitness.cluster import pool
from fitness.cluster.bundle import TaskBundle, WorkerSettings
from fitness.cluster.pool import Cluster, ClusterEvaluator, ClusterNode, Post, posts
from fitness.cluster.workers import Lost, WorkerPool
from fitness.frontend.stages import Stop
from fitness.frontend.target import get_target
from fitness.gpu import runner
from fitness.profile import ncu
from fitness.sandbox.jobs import Limits
from fitness.tasks.task import load_task
from operators.registry import get_operators
from tests.cluster_support import two_nodes

TASK = "vector_sin"
OTHER = "rms_norm"
TARGET = get_target("sm_90")


# --- without a cluster -----------------------------------------------------------------------------------------------


def test_who_goes_where():
    big, gpu, login = ClusterNode("a", "big", 16, 1), ClusterNode("b", "gpu", 32, 8), ClusterNode("c", "login", 4, 0)
    front_ends, backends = posts([big], 1)
    assert backends == [Post(big, 2, 2, 1)]
    assert front_ends == [Post(big, 7, 7.0), Post(big, 7, 7.0)]
    front_ends, backends = posts([login, gpu], 8)
    assert {post.node for post in backends} == {gpu} and len(backends) == 8
    assert [post.node for post in front_ends] == [login, gpu, gpu], "a node without a GPU records too"
    assert sum(post.cpus for post in front_ends + backends) == 36
    front_ends, backends = posts([login], 0)
    assert front_ends == backends == [Post(login, 4, 2.0)]
    assert len(posts([big, gpu], 3)[1]) == 3
    with pytest.raises(ConfigError, match="the cluster has 8"):
        posts([gpu], 9)
    with pytest.raises(ConfigError, match="no CPUs to record"):
        posts([ClusterNode("d", "bare", 0, 1)], 1)


def test_a_verdict_travels():
    stop = pickle.loads(pickle.dumps(Stop("gate", Verdict.REJECTED, "no", (Finding("import", 3, "no os"),))))
    assert (stop.stage, stop.verdict, stop.message) == ("gate", Verdict.REJECTED, "no")
    assert stop.findings[0].line == 3


def test_a_task_travels_with_its_files_and_is_the_same(tmp_path, monkeypatch):
    here = load_task(TASK)
    folder = shutil.copytree(here.folder, tmp_path / TASK)
    (folder / "values.bin").write_bytes(b"\x00\xff")
    bundle = pickle.loads(pickle.dumps(TaskBundle.of(load_task(folder))))
    task = bundle.load(tmp_path / "there")
    assert (task.folder / "values.bin").read_bytes() == b"\x00\xff"
    assert (task.name, task.hash, task.seed_source) == (TASK, here.hash, here.seed_source)
    assert task.folder.is_relative_to(tmp_path)
    with pytest.raises(TaskError, match="was changed"):
        replace(bundle, hash="another").load(tmp_path / "other")
    monkeypatch.setattr("fitness.cluster.bundle.FILES_BYTES", 1000)
    with pytest.raises(ConfigError, match="move what the task does not need elsewhere"):
        TaskBundle.of(here)


def settings_of(measured: bool = False, **expected: str) -> WorkerSettings:
    return pickle.loads(pickle.dumps(WorkerSettings(TARGET, measured, Limits(), versions, {**versions(), **expected})))


def test_nodes_must_have_the_drivers_versions():
    settings_of(torch=versions()["torch"].partition("+")[0] + "+cu128").check_versions()
    with pytest.raises(ConfigError, match=r"triton .* instead of 0\.1; install the same on all nodes"):
        settings_of(triton="0.1").check_versions()


class Idle:
    """A backend of a GPU that does nothing."""

    def __init__(self, task: Any, *, limits: Limits, gpu: Any) -> None:
        self.gpu, self.closed = gpu, False

    def evaluate(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True


def test_a_task_that_was_closed_is_evaluated_no_more(monkeypatch):
    monkeypatch.setattr(pool, "GpuBackend", Idle)
    actor = pool.Actor()
    assert actor.start("backend", settings_of(measured=True)) is None
    for key, name in enumerate(("softmax", "rotary")):
        assert actor.open(key, TaskBundle.of(load_task(name))) is None
    assert actor._tasks[0].gpu is actor._tasks[1].gpu  # which they share
    actor.forget(1)
    assert str(actor.call(1, "evaluate")) == "the task was closed" and actor.call(0, "evaluate") is None
    actor.close()
    assert not actor._folder.exists()


def test_a_task_is_opened_again_in_the_place_of_what_was_made_before(monkeypatch):
    monkeypatch.setattr(pool, "GpuBackend", Idle)
    actor = pool.Actor()
    assert actor.start("backend", settings_of(measured=True)) is None
    bundle = TaskBundle.of(load_task("softmax"))
    assert "was changed" in str(actor.open(0, replace(bundle, hash="another"))), "its files are there now"
    assert actor.open(0, bundle) is None
    first = actor._tasks[0]
    assert actor.open(0, bundle) is None
    assert first.closed and not actor._tasks[0].closed and actor.call(0, "evaluate") is None
    actor.close()
    assert not actor._folder.exists()


def longest_wait(monkeypatch: pytest.MonkeyPatch, method: str) -> float:
    """Seconds for which a worker waits for the answer to a call."""
    waited = []
    monkeypatch.setattr(pool.Remote, "_get", lambda self, answer, wait_s, over: waited.append(wait_s))
    remote = object.__new__(pool.Remote)
    remote._actor = SimpleNamespace(call=SimpleNamespace(remote=lambda *arguments: None))
    remote._call(pool.Assignment(TaskBundle.of(load_task(TASK))), method)
    return waited[0]


def test_a_call_may_take_as_long_as_its_parts(monkeypatch):
    started_twice = runner.ATTEMPTS * 2 * runner.START_S  # a new process, and the seed on it
    exchange = 2 * runner.EXCHANGE_S + LIMITS.wall_s
    assert longest_wait(monkeypatch, "prepare") >= 2 * (runner.LOCK_S + runner.START_S)
    assert longest_wait(monkeypatch, "look") >= runner.LOCK_S + started_twice
    assert longest_wait(monkeypatch, "evaluate") >= runner.LOCK_S + runner.START_S + exchange
    assert longest_wait(monkeypatch, "certify") >= runner.LOCK_S + 3 * exchange
    sanitizers = sum(tool.wall_s for tool in sanitize.TOOLS.values())
    assert longest_wait(monkeypatch, "certify") >= runner.LOCK_S + sanitizers + 2 * exchange
    assert longest_wait(monkeypatch, "counters") >= pool.BACKEND_LANES * ncu.MOST_S


def test_gpus_of_one_run_are_of_one_model():
    def found(model: str, uuid: str) -> list[Any]:
        return [None, {"gpu": model, "uuid": uuid}]

    same = {"number 0 on a": found("H200", "u1"), "number 1 on b": found("H200", "u2")}
    assert pool._as_one(same)[1]["gpus"] == {"number 0 on a": "u1", "number 1 on b": "u2"}
    with pytest.raises(ConfigError, match=r"H200 \(number 0 on a\), H100 \(number 1 on b\)"):
        pool._as_one({**same, "number 1 on b": found("H100", "u2")})


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fitness.cluster.pool")
    with pytest.raises(ConfigError, match=r'\.venv/bin/pip install -e "\."'):
        importlib.import_module("fitness.cluster.pool")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:10001"])
def test_an_address_without_a_cluster_is_refused(address):
    with pytest.raises(ConfigError, match=rf"--ray-address {address}: expected HOST:PORT .*ray start --head"):
        Cluster(address)


# --- on GPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA GPUs")
def test_two_gpus_measure_and_killed_processes_cost_nothing():
    task = load_task("softmax")
    with ClusterEvaluator(Cluster("local"), task, TARGET, gpus=2, versions=versions) as evaluator:
        first = evaluator.prepare()
        assert score(first).speedup == pytest.approx(1, abs=0.02)
        assert len(set(evaluator.environment["gpus"].values())) == 2, "each backend has a GPU of its own"
        sources = [task.seed_source.replace("BLOCK_SIZE=128", f"BLOCK_SIZE={128 << i}") for i in range(1, 5)]
        pool = evaluator._backend.workers.pool
        with ThreadPoolExecutor(4) as threads:
            running = [
                threads.submit(evaluator.evaluate, Candidate(f"{source}\nVERSION = {i}\n"), seed=i, known={})
                for i in range(4)
                for source in sources
            ]
            wait(running, return_when=FIRST_COMPLETED)

            def kill_while_it_measures(actor: Any) -> None:
                runner = next(iter(actor._tasks.values()))._runner
                while runner._lock.acquire(blocking=False):  # so nobody had it
                    runner._lock.release()
                    time.sleep(0.001)
                runner._process.stop()  # SIGKILL

            def respawns(actor: Any) -> int:
                return next(iter(actor._tasks.values()))._runner.respawns

            second = pool._members[1].worker._actor.__ray_call__
            ray.get(second.remote(kill_while_it_measures))
            os.kill(process_of(pool), signal.SIGKILL)  # the first of the backends
            evaluations = [future.result(300) for future in running]
            respawned = ray.get(second.remote(respawns))
        assert {e.verdict for e in evaluations} == {Verdict.OK}
        assert not any(e.estimated for e in evaluations)
        assert respawned == 1, "the killed runner"
        assert max(score(e).speedup for e in evaluations) > 1
        await_members(pool, 2)
    assert not ray.is_initialized()


# --- on a cluster of two nodes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[SimpleNamespace]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def evaluator(nodes) -> Iterator[ClusterEvaluator]:
    """One front end and one backend on each node, prepared."""
    with ClusterEvaluator(Cluster("auto"), load_task(TASK), TARGET, gpus=0, versions=versions) as evaluator:
        evaluator.prepare()
        yield evaluator
    assert ray.is_initialized(), "a connection that was there before is kept"


@pytest.fixture
def submit(evaluator) -> Iterator[Callable[[int], Future[Evaluation]]]:
    """`submit(block)` evaluates a variant with that block size, several at once."""
    source = evaluator.task.seed_source

    def evaluate(block: int) -> Evaluation:
        candidate = Candidate(source.replace("BLOCK_SIZE = 4", f"BLOCK_SIZE = {block}"))
        return evaluator.evaluate(candidate, seed=block, known={})

    with ThreadPoolExecutor(4) as threads:
        yield lambda block: threads.submit(evaluate, block)


def process_of(pool: WorkerPool) -> int:
    """The process of one of its workers."""
    return ray.get(pool._members[0].worker._actor.__ray_call__.remote(lambda actor: os.getpid()))


def await_members(pool: WorkerPool, count: int) -> None:
    until = time.monotonic() + 120
    while len(pool._members) != count:
        assert time.monotonic() < until, f"expected {count} workers, got {len(pool._members)}"
        time.sleep(0.1)


def test_verdicts_are_those_of_one_process(evaluator, evaluators):
    alone = evaluators(TASK)
    faster = alone.task.seed_source.replace("BLOCK_SIZE = 4", "BLOCK_SIZE = 256")
    for source in (faster, faster.replace("tl.sin(x)", "tl.cos(x)"), faster.replace("import torch", "import os")):
        here, there = (e.evaluate(Candidate(source), seed=1, known={}) for e in (alone, evaluator))
        assert (here.verdict, here.stage, here.message) == (there.verdict, there.stage, there.message)
        assert (here.check, here.timings, here.plan_hash) == (there.check, there.timings, there.plan_hash)
        assert here.builds == there.builds or here.builds[0].sass_hash == there.builds[0].sass_hash
    assert evaluator.screen([faster]) == alone.screen([faster])
    assert evaluator.certify(faster, seed=1) == alone.certify(faster, seed=1)
    assert dict(evaluator.environment) == dict(alone.environment)


@pytest.mark.parametrize("part", ["_front_end", "_backend"])
def test_what_a_killed_worker_held_is_done_by_another(evaluator, submit, part):
    pool = getattr(evaluator, part).workers.pool
    process, first = process_of(pool), 1 << (5 if part == "_front_end" else 8)
    os.kill(process, signal.SIGSTOP)  # it takes calls and answers none
    running = [submit(first << i) for i in range(2)]  # one with each of the two
    done, held = wait(running, return_when=FIRST_COMPLETED)
    assert (len(done), len(held)) == (1, 1)
    os.kill(process, signal.SIGKILL)
    assert [future.result(120).verdict for future in running] == [Verdict.OK] * 2
    await_members(pool, 2)


def tasks_known(pool: WorkerPool) -> list[int]:
    """To each of its workers."""
    return [
        len(ray.get(member.worker._actor.__ray_call__.remote(lambda actor: list(actor._tasks))))
        for member in pool._members
    ]


def test_tasks_share_the_workers_and_one_that_starts_knows_them_all(evaluator, evaluators):
    pools = [part.workers.pool for part in (evaluator._front_end, evaluator._backend)]
    backends = pools[1]
    before = [[member.worker for member in pool._members] for pool in pools]
    sources = {name: load_task(name).seed_source for name in (TASK, OTHER)}
    with closing(evaluator.factory.open(load_task(OTHER))) as other:
        first = other.prepare()
        assert first.timings == evaluators(OTHER).evaluate(Candidate(sources[OTHER]), seed=0, known={}).timings
        assert [[member.worker for member in pool._members] for pool in pools] == before, "no worker is added"
        assert [tasks_known(pool) for pool in pools] == [[2, 2], [2, 2]]
        process = process_of(backends)
        os.kill(process, signal.SIGSTOP)  # what it takes waits
        with ThreadPoolExecutor(4) as threads:
            running = [
                threads.submit(one.evaluate, Candidate(f"{sources[name]}\nVERSION = {i}\n"), seed=i, known={})
                for i in range(2)
                for name, one in ((TASK, evaluator), (OTHER, other))
            ]
            wait(running, return_when=FIRST_COMPLETED)
            os.kill(process, signal.SIGKILL)
            assert {future.result(120).verdict for future in running} == {Verdict.OK}
        await_members(backends, 2)
        assert tasks_known(backends) == [2, 2]
    assert [tasks_known(pool) for pool in pools] == [[1, 1], [1, 1]]
    with pytest.raises(EvoError, match="the evaluator was closed"):
        other._backend.certify(sources[OTHER], "0")
    assert evaluator.evaluate(Candidate(sources[TASK] + "VERSION = 3\n"), seed=3, known={}).verdict is Verdict.OK


ONLY_HERE = """
class Actor:
    def start(self, role, settings): ...
    def close(self): ...

def look(target): ...
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Iterator[Any]:
    """A module that the nodes lack."""
    (tmp_path / "only_here.py").write_text(ONLY_HERE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("only_here")
    del sys.modules["only_here"]


def test_an_error_on_a_node_names_its_cause(nodes, elsewhere, monkeypatch):
    def out_of_order(target: Any) -> None:
        raise ValueError(f"the driver is too old for {target.name}\nsecond line")

    added = nodes.cluster.add_node(num_cpus=0, num_gpus=1, object_store_memory=80 << 20)
    try:
        cluster = Cluster("auto")
        monkeypatch.setattr(pool, "find_gpus", out_of_order)
        with pytest.raises(EvoError, match=r"got: ValueError: the driver is too old for sm_90$"):
            cluster.find_gpus(TARGET)
        monkeypatch.setattr(pool, "measuring", elsewhere.look)
        with pytest.raises(EvoError, match=r"got: ModuleNotFoundError: No module named 'only_here'$"):
            cluster.measuring(TARGET)
        monkeypatch.setattr(pool, "Actor", elsewhere.Actor)
        with pytest.raises(Lost, match=r"^ModuleNotFoundError: No module named 'only_here'$"):
            pool.Remote(Post(cluster.nodes[0], 1, 0.0), "backend", settings_of(), threading.Event())
    finally:
        nodes.cluster.remove_node(added)


def test_a_task_whose_seed_is_wrong_leaves_the_others_their_workers(evaluator, tmp_path):
    folder = shutil.copytree(load_task(TASK).folder, tmp_path / TASK)
    (folder / "kernel.py").write_text((folder / "kernel.py").read_text().replace("tl.sin(x)", "tl.cos(x)"))
    with closing(evaluator.factory.open(load_task(folder))) as wrong, pytest.raises(TaskError, match="found wrong"):
        wrong.prepare()
    pools = [evaluator._front_end.workers.pool, evaluator._backend.workers.pool]
    assert [tasks_known(pool) for pool in pools] == [[1, 1], [1, 1]]
    again = Candidate(evaluator.task.seed_source + "VERSION = 4\n")
    assert evaluator.evaluate(again, seed=4, known={}).verdict is Verdict.OK


class LosesNode:
    """An Observer that takes a node away in the middle of a run."""

    def __init__(self, nodes: SimpleNamespace, after: int) -> None:
        self._nodes, self._after = nodes, after

    def absorbed(self, trial: Trial, *, replayed: bool) -> None:
        if trial.index and self._after:
            self._after -= 1
            if not self._after:
                self._nodes.cluster.remove_node(self._nodes.second, allow_graceful=False)


def test_a_run_goes_on_where_a_node_is_lost(nodes, evaluator, tmp_path):
    """The last test here: there is one node after it."""
    task = evaluator.task
    operators = {operator.name: operator for operator in get_operators(("params", "rewrite"))}
    config = RunConfig(task.name, tuple(operators), budget=16, workers=4, screen_budget=0)
    with Store.create(tmp_path / "run", RunInfo(config, task.hash, versions(), evaluator.environment)) as store:
        observers = [LosesNode(nodes, after=4)]
        first = evaluator.evaluate(Candidate(task.seed_source), seed=0, known={})
        outcome = Engine(store, first, task.seed_source, evaluator, score, operators, observers).run()
        trials = list(store.trials())
        assert (outcome.reason, outcome.spent, len(trials)) == ("budget spent", 16, 17)
        assert not store.pending()
    assert Verdict.INFRASTRUCTURE not in {trial.evaluation.verdict for trial in trials}
    for part, attribute in ((evaluator._front_end, "layers"), (evaluator._backend, "environment")):
        pool, assignment = part.workers.pool, part._task
        # Whoever was idle when the node was lost is missed when it is asked.
        pool.everyone(lambda worker, name=attribute, task=assignment: worker.ask(name, task))
        await_members(pool, 1)

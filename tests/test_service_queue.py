"""evo.service.queue: rounds over tokens and clients."""

from __future__ import annotations

import threading
from collections import Counter

from evo.service.queue import FairQueue
from evo.storage.requests import Caller, Job


def filled(*jobs: tuple[str, str, int]) -> FairQueue:
    """A queue with `count` jobs for each (token, client, count); the id of a job names both."""
    queue = FairQueue()
    for token, client, count in jobs:
        for number in range(count):
            queue.put(Job(f"{token}/{client}/{number}", "task", Caller(token, client)))
    return queue


def taken(queue: FairQueue, count: int) -> list[str]:
    found = [queue.take() for _ in range(count)]
    return [job.id for job in found if job is not None]


def test_a_client_with_many_jobs_does_not_delay_one_with_few():
    queue = filled(("a", "", 1000), ("b", "", 2))
    assert taken(queue, 5) == ["a//0", "b//0", "a//1", "b//1", "a//2"]


def test_more_client_names_gain_a_token_nothing():
    queue = filled(*(("many", f"name-{number}", 10) for number in range(10)), ("one", "", 10))
    share = Counter(each.split("/")[0] for each in taken(queue, 20))
    assert share == {"many": 10, "one": 10}


def test_clients_of_a_token_take_turns_and_each_keeps_its_order():
    queue = filled(("a", "x", 2), ("a", "y", 2))
    assert taken(queue, 4) == ["a/x/0", "a/y/0", "a/x/1", "a/y/1"]


def test_jobs_of_a_task_that_is_not_ready_are_passed_over_and_stay():
    queue = FairQueue()
    for name in ("slow", "quick", "slow"):
        queue.put(Job(f"{name}-{queue.waiting()}", name, Caller("a")))
    job = queue.take(blocked={"slow"})
    assert job is not None and job.id == "quick-1"
    assert taken(queue, 2) == ["slow-0", "slow-2"]


def test_wake_makes_take_look_again():
    queue, blocked, found = filled(("a", "", 1)), {"task"}, []
    thread = threading.Thread(target=lambda: found.append(queue.take(blocked)))
    thread.start()
    blocked.clear()
    queue.wake()
    thread.join(30)
    assert [job.id for job in found] == ["a//0"]


def test_removed_jobs_are_not_handed_out_and_no_longer_counted():
    queue = filled(("a", "", 2), ("b", "", 1))
    assert queue.remove("a//0") and not queue.remove("a//0")
    assert (queue.waiting("a"), queue.waiting("b"), queue.waiting("c"), queue.waiting()) == (1, 1, 0, 2)
    assert sorted(taken(queue, 2)) == ["a//1", "b//0"]


def test_a_closed_queue_hands_out_nothing():
    queue = filled(("a", "", 1))
    queue.close()
    assert queue.take() is None
    assert queue.waiting() == 1

"""evo.storage.requests: what a service accepted, on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from evo.core.errors import StoreError
from evo.storage.requests import CANCELLED, DONE, FAILED, FILE, QUEUED, Caller, Job, RequestStore

META = {"evo": "1", "device": "cpu"}
ANN, BOB = Caller("ann"), Caller("bob", "laptop")


@pytest.fixture
def store(tmp_path: Path):
    opened = RequestStore(tmp_path, META)
    yield opened
    opened.close()


def accept(store: RequestStore, *ids: str, caller: Caller = ANN) -> None:
    store.accept([Job(each, "task", caller) for each in ids], [f"source of {each}" for each in ids], at=1.0)


def test_what_is_accepted_waits_in_its_order_until_it_is_finished(store: RequestStore):
    accept(store, "b", "a", "c", caller=BOB)
    store.finish("a", DONE, verdict="ok", result="{}", started=2.0, ended=3.0)
    store.finish("c", FAILED, error="the task is at fault", started=None, ended=3.0)
    assert store.queued() == [Job("b", "task", BOB)]
    assert store.source("b") == "source of b"
    found = store.find("a")
    assert found is not None
    assert (found.state, found.verdict, found.evaluation, found.started, found.ended) == (DONE, "ok", "{}", 2.0, 3.0)
    assert store.find("nothing") is None


def test_it_is_there_in_another_process(store: RequestStore, tmp_path: Path):
    accept(store, "a")
    store.close()
    again = RequestStore(tmp_path, META)
    assert [job.id for job in again.queued()] == ["a"]
    again.close()


def test_accepted_again_it_is_queued_again_without_its_earlier_end(store: RequestStore):
    accept(store, "a")
    store.finish("a", CANCELLED, started=None, ended=2.0)
    accept(store, "a", caller=BOB)
    found = store.find("a")
    assert found is not None and (found.state, found.ended, found.error) == (QUEUED, None, "")
    assert store.askers("a") == [ANN, BOB]


def test_a_folder_belongs_to_one_process_at_a_time(store: RequestStore, tmp_path: Path):
    with pytest.raises(StoreError, match=r"in use by another process.*--dir"):
        RequestStore(tmp_path, META)


def test_results_of_another_evaluator_are_not_mixed_with_new_ones(store: RequestStore, tmp_path: Path):
    store.close()
    with pytest.raises(StoreError, match=r"device cpu then, gpu now.*name another folder"):
        RequestStore(tmp_path, {**META, "device": "gpu"})
    RequestStore(tmp_path, META).close()  # the lock was given back


@pytest.mark.parametrize("content", [b"this is no database, whatever its name says", None])
def test_a_file_that_is_no_store_is_named(tmp_path: Path, content: bytes | None):
    if content is None:
        with sqlite3.connect(tmp_path / FILE) as db:
            db.execute("PRAGMA user_version = 99")
    else:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(StoreError, match=r"service\.sqlite.*another"):
        RequestStore(tmp_path, META)


def test_nothing_of_a_request_is_stored_if_a_part_cannot_be(store: RequestStore):
    with pytest.raises(ValueError, match="zip"):
        store.accept([Job("a", "task", ANN), Job("b", "task", ANN)], ["one source"], at=1.0)
    assert store.queued() == []


def test_a_disk_that_cannot_be_written_is_an_error_that_says_so(store: RequestStore, tmp_path: Path):
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._db.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(StoreError, match=r"expected to write to .*locked"):
        accept(store, "a")
    other.close()


def test_uploaded_tasks_are_listed_with_their_token(store: RequestStore):
    store.add_task("two", "h2", "bob", 2.0)
    store.add_task("one", "h1", "ann", 1.0)
    store.add_task("one", "h1", "ann", 9.0)
    assert store.tasks() == [("one", "h1", "ann"), ("two", "h2", "bob")]

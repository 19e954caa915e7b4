"""evo.storage.ledger: the limits of a campaign between threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from evo.core.errors import StoreError
from evo.storage import ledger as module
from evo.storage.ledger import CANDIDATES, FILE, TOKENS, USD, Account, Grant, Ledger

ROOT = Path(__file__).parent.parent
SPENDER = """
import sys
from pathlib import Path
from evo.storage.ledger import Grant, Ledger

ledger, run = Ledger(Path(sys.argv[1])), sys.argv[2]
while (answer := ledger.reserve(run, {"tokens": 70}))[0] is not Grant.FULL:
    if answer[0] is Grant.GRANTED:
        ledger.settle(run, {"tokens": 70}, {"tokens": 30})
"""


def test_room_is_what_is_neither_spent_nor_reserved(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.reserve("a", {TOKENS: 1e9}) == (Grant.GRANTED, "")  # no limit
    ledger.settle("a", {TOKENS: 1e9}, {})
    ledger.set_limits({TOKENS: 100, USD: 1.0})
    assert ledger.reserve("a", {TOKENS: 60, USD: 0.5}) == (Grant.GRANTED, "")
    assert ledger.reserve("b", {TOKENS: 60, USD: 0.1}) == (Grant.BUSY, TOKENS)
    assert ledger.reserve("b", {TOKENS: 10, USD: 1.1}) == (Grant.FULL, USD)
    ledger.settle("a", {TOKENS: 60, USD: 0.5}, {TOKENS: 50, USD: 0.5})
    assert ledger.reserve("b", {TOKENS: 60, USD: 0.1}) == (Grant.FULL, TOKENS)  # nothing will come back
    assert ledger.reserve("b", {TOKENS: 50, USD: 0.1}) == (Grant.GRANTED, "")
    assert ledger.spent() == {CANDIDATES: 0, TOKENS: 50, USD: 0.5, "gpu_seconds": 0}
    ledger.set_limits({TOKENS: 200})  # the other limit stays
    assert ledger.limits() == {TOKENS: 200, USD: 1.0}
    assert ledger.reserve("c", {TOKENS: 100}) == (Grant.GRANTED, "")


def test_what_the_store_of_a_run_says_replaces_its_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.reserve("a", {TOKENS: 60})
    ledger.reserve("b", {TOKENS: 60})
    assert ledger.runs() == {"a": True, "b": True}
    ledger.put("a", {TOKENS: 40}, {CANDIDATES: 2})
    ledger.put("b", {TOKENS: 7}, {})
    assert ledger.spent()[TOKENS] == 47 and ledger.runs() == {"a": True, "b": False}
    ledger.forfeit("a")
    assert ledger.spent()[CANDIDATES] == 2 and ledger.runs() == {"a": False, "b": False}
    for number in (1, 2):  # its folder was deleted twice: what it spent was spent
        ledger.retire("b")
        ledger.put("b", {TOKENS: 10 * number}, {})
    assert ledger.spent()[TOKENS] == 40 + 7 + 10 + 20
    assert sorted(ledger.runs()) == ["a", "b", "b#1", "b#2"]


def test_processes_never_spend_more_than_there_is(tmp_path: Path) -> None:
    Ledger(tmp_path).set_limits({TOKENS: 1000})
    command = [sys.executable, "-c", SPENDER, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen([*command, run], env=env) for run in "abc"]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0]
    assert Ledger(tmp_path).spent()[TOKENS] == 960  # 32 times 30: another reservation of 70 would exceed 1000


def test_who_waits_gets_what_others_give_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.set_limits({TOKENS: 100})
    looked = threading.Event()
    account = Account(ledger, "b", lambda: False, looked.set)
    ledger.reserve("a", {TOKENS: 80})
    assert not account.reserve({TOKENS: 80}, wait=False) and not account.full
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(account.reserve({TOKENS: 80}, wait=True)))
    waiting.start()
    assert looked.wait(60) and answers == []
    ledger.settle("a", {TOKENS: 80}, {TOKENS: 20})
    waiting.join(60)
    assert answers == [True] and not account.full
    assert not account.reserve({TOKENS: 81}, wait=True) and account.full == TOKENS
    stopped = Account(ledger, "c", lambda: True, lambda: None)
    assert not stopped.reserve({TOKENS: 1}, wait=True) and not stopped.full


def test_a_damaged_ledger_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database, but long enough to be taken for one " * 20)
    with pytest.raises(StoreError, match=r"expected the ledger of a campaign in .*; if it is damaged, delete it"):
        module.Ledger(tmp_path)

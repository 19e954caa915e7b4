"""How an evaluation stops early."""

from __future__ import annotations

import pickle

from evo.core.records import Finding, Verdict
from evo.core.text import MOST
from fitness.frontend.stages import Stop


def test_what_a_stop_quotes_is_plain_and_travels():
    stop = Stop("gate", Verdict.REJECTED, "\x1b[2K", (Finding("rule", 3, "`\u202e`"),), {"gate": 1.0})
    assert stop.message == str(stop) == "\\x1b[2K" and stop.findings[0].message == "`\\u202e`"
    again = pickle.loads(pickle.dumps(stop))
    assert (again.stage, again.verdict, again.message) == (stop.stage, stop.verdict, stop.message)
    assert (again.findings, again.seconds) == (stop.findings, stop.seconds)


def test_what_a_stop_quotes_is_short():
    stop = Stop("record", Verdict.REJECTED, f"work delegated to {'A' * 20_000_000}", (Finding("rule", 3, "B" * 5000),))
    assert stop.message.startswith("work delegated to AAA") and len(stop.message) <= MOST
    assert stop.message.endswith("characters left out)") and len(stop.findings[0].message) <= MOST
    assert pickle.loads(pickle.dumps(stop)).message == stop.message

"""How an evaluation stops early."""

from __future__ import annotations

import pickle

from evo.records import Finding, Verdict
from fitness.stages import Stop


def test_what_a_stop_quotes_is_plain_and_travels():
    stop = Stop("gate", Verdict.REJECTED, "\x1b[2K", (Finding("rule", 3, "`\u202e`"),), {"gate": 1.0})
    assert stop.message == str(stop) == "\\x1b[2K" and stop.findings[0].message == "`\\u202e`"
    again = pickle.loads(pickle.dumps(stop))
    assert (again.stage, again.verdict, again.message) == (stop.stage, stop.verdict, stop.message)
    assert (again.findings, again.seconds) == (stop.findings, stop.seconds)

"""What judges on one GPU share, with runners that are none: no GPU is needed to take turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fitness.gpu import sharing
from fitness.gpu.sharing import SharedGpu

FACTS = {"uuid": "GPU-1", "capability": (9, 0), "name": "H200"}


class Runner:
    """Knows whether it measured the ceilings."""

    def __init__(self) -> None:
        self.measured, self.told = False, None

    @property
    def facts(self) -> Any:
        self.measured = True
        return FACTS

    def start(self, facts: Any) -> Any:
        self.told = facts
        return facts


def test_the_first_measures_and_others_are_told() -> None:
    gpu = SharedGpu()
    runners = [Runner() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(gpu.start, runners)) == [FACTS] * 6  # type: ignore[arg-type]
    assert [r.measured for r in runners].count(True) == 1
    assert [r.told for r in runners].count(FACTS) == 5


def test_all_certificates_are_run_by_one_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Zygote:
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments)

        def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(sharing, "Zygote", Zygote)
    gpu = SharedGpu()
    gpu.start(Runner())  # type: ignore[arg-type]
    assert gpu.eager() is gpu.eager()
    gpu.close()
    assert made == [("sm_90", ("eager",), "GPU-1"), "closed"]


def test_closing_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "Zygote", lambda *_: pytest.fail("a zygote was started"))
    gpu = SharedGpu()
    gpu.start(Runner())  # type: ignore[arg-type]
    gpu.close()

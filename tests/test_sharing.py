"""What judges on one GPU share, with runners that are none: no GPU is needed to take turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fitness.gpu import sharing
from fitness.gpu.sharing import SharedGpu

FACTS = {"uuid": "GPU-1", "capability": (9, 0), "name": "H200"}


def free(gpu: SharedGpu) -> bool:
    """Whether another thread would get its turn now."""
    got = threading.Event()

    def take() -> None:
        with gpu.turn.shared():
            got.set()

    threading.Thread(target=take, daemon=True).start()
    return got.wait(0.2)


class Runner:
    """Knows whether it measured the ceilings, and whether it was its turn."""

    def __init__(self, gpu: SharedGpu) -> None:
        self.gpu, self.measured_in_turn, self.told = gpu, None, None

    @property
    def facts(self) -> Any:
        self.measured_in_turn = not free(self.gpu)
        return FACTS

    def start(self, facts: Any) -> Any:
        self.told = facts
        return facts


def test_the_first_measures_in_a_turn_and_others_are_told() -> None:
    gpu = SharedGpu()
    runners = [Runner(gpu) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(gpu.start, runners)) == [FACTS] * 6  # type: ignore[arg-type]
    assert [r.measured_in_turn for r in runners].count(True) == 1
    assert [r.told for r in runners].count(FACTS) == 5
    assert free(gpu)


def test_others_start_while_somebody_is_timed() -> None:
    gpu = SharedGpu()
    gpu.start(Runner(gpu))  # type: ignore[arg-type]
    late = Runner(gpu)
    with gpu.turn.alone():
        assert gpu.start(late) is FACTS  # type: ignore[arg-type]
    assert late.told is FACTS


def test_all_certificates_are_run_by_one_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Zygote:
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments)

        def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr(sharing, "Zygote", Zygote)
    gpu = SharedGpu()
    gpu.start(Runner(gpu))  # type: ignore[arg-type]
    assert gpu.eager() is gpu.eager()
    gpu.close()
    assert made == [("sm_90", ("eager",), "GPU-1"), "closed"]


def test_nothing_is_left_to_close_where_nothing_was_started() -> None:
    SharedGpu().close()

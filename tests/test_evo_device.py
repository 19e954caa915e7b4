"""evo.device: which kind of evaluator a run gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evo.device import again, choose
from evo.errors import ConfigError

NONE = SimpleNamespace(count=0, name="", problem="torch sees no CUDA GPU")
ONE = SimpleNamespace(count=1, name="NVIDIA H200", problem="")
FOUR = SimpleNamespace(count=4, name="NVIDIA H200", problem="")


@pytest.mark.parametrize(
    ("wanted", "gpus", "device", "words"),
    [
        (None, NONE, "cpu", "torch sees no CUDA GPU"),
        (None, ONE, "gpu", "GPU 0, NVIDIA H200"),
        (None, FOUR, "gpu", "GPU 0, NVIDIA H200"),
        ("1", FOUR, "gpu", "--gpus 1"),
        ("all", ONE, "gpu", "--gpus all"),
        ("none", ONE, "cpu", "--gpus none"),
    ],
)
def test_the_choice_and_why(wanted, gpus, device, words):
    chosen, line = choose(wanted, lambda: gpus)
    assert chosen == device
    assert words in line


@pytest.mark.parametrize(
    ("wanted", "gpus", "words"),
    [
        ("1", NONE, "torch sees no CUDA GPU; --gpus none estimates"),
        ("all", NONE, "torch sees no CUDA GPU"),
        ("2", FOUR, "drives one GPU, got 2; set --gpus 1"),
        ("all", FOUR, "drives one GPU, got 4"),
        ("0", ONE, "expected a number from 1, all or none, got '0'"),
        ("some", ONE, "got 'some'"),
    ],
)
def test_what_cannot_be_had_is_refused(wanted, gpus, words):
    with pytest.raises(ConfigError) as raised:
        choose(wanted, lambda: gpus)
    assert words in str(raised.value)


def test_a_run_goes_on_as_it_was_started():
    assert "as this run was started" in again("cpu", lambda: ONE)
    assert "measuring" in again("gpu", lambda: ONE)
    with pytest.raises(ConfigError, match="measured on a GPU, but torch sees no CUDA GPU"):
        again("gpu", lambda: NONE)

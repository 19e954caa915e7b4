"""fitness.devices: what measures, or that nothing does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evo.core.errors import ConfigError
from fitness.devices import choose, resolve

NONE = SimpleNamespace(count=0, name="", problem="torch sees no CUDA GPU")
ONE = SimpleNamespace(count=1, name="NVIDIA H200", problem="")
FOUR = SimpleNamespace(count=4, name="NVIDIA H200", problem="")


@pytest.mark.parametrize(
    ("wanted", "gpus", "number", "words"),
    [
        (None, NONE, 0, "torch sees no CUDA GPU"),
        (None, ONE, 1, "GPU 0, NVIDIA H200"),
        (None, FOUR, 1, "GPU 0, NVIDIA H200"),
        ("1", FOUR, 1, "--gpus 1"),
        ("3", FOUR, 3, "3 GPUs, NVIDIA H200 (--gpus 3)"),
        ("all", FOUR, 4, "4 GPUs"),
        ("all", ONE, 1, "--gpus all"),
        ("none", ONE, 0, "--gpus none"),
    ],
)
def test_the_choice_and_why(wanted, gpus, number, words):
    choice = resolve(wanted, lambda: gpus)
    assert choice.gpus == number
    assert choice.device == ("gpu" if number else "cpu")
    assert words in choice.line


@pytest.mark.parametrize(
    ("wanted", "gpus", "words"),
    [
        ("1", NONE, "torch sees no CUDA GPU; --gpus none estimates"),
        ("all", NONE, "torch sees no CUDA GPU"),
        ("5", FOUR, "--gpus 5: expected at most 4"),
        ("0", ONE, "expected a number from 1, all or none, got '0'"),
        ("some", ONE, "got 'some'"),
    ],
)
def test_what_cannot_be_had_is_refused(wanted, gpus, words):
    with pytest.raises(ConfigError) as raised:
        resolve(wanted, lambda: gpus)
    assert words in str(raised.value)


def test_where_the_option_is_not_given_another_number_can_be_meant():
    assert resolve(None, lambda: FOUR, unasked="all").gpus == 4
    assert resolve(None, lambda: NONE, unasked="all").gpus == 0


def test_what_drives_one_gpu_refuses_more():
    assert choose(None, lambda: FOUR)[0] == "gpu"
    assert choose("none", lambda: FOUR)[0] == "cpu"
    with pytest.raises(ConfigError, match="drives one GPU, got 4; set --gpus 1"):
        choose("all", lambda: FOUR)


def test_a_run_keeps_to_what_it_was_started_with():
    assert resolve(None, lambda: ONE, started="cpu").gpus == 0
    assert "as this run was started" in resolve(None, lambda: ONE, started="gpu").line
    with pytest.raises(ConfigError, match="measured on a GPU, but torch sees no CUDA GPU"):
        resolve(None, lambda: NONE, started="gpu")
    with pytest.raises(ConfigError, match="--gpus 1: this run is estimated"):
        resolve("1", lambda: ONE, started="cpu")
    with pytest.raises(ConfigError, match="--gpus none: this run is measured on a GPU"):
        resolve("none", lambda: ONE, started="gpu")


def test_a_run_may_go_on_with_another_number_of_gpus():
    assert resolve(None, lambda: FOUR, unasked="2", started="gpu").gpus == 2
    assert resolve("3", lambda: FOUR, unasked="2", started="gpu").gpus == 3
    with pytest.raises(ConfigError, match="--gpus 2: expected at most 1"):
        resolve(None, lambda: ONE, unasked="2", started="gpu")

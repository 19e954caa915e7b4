"""fitness.validation.draft: the sandbox holds without the rules, and cases that do not go through are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fitness.cpu_backend import CpuEvaluator
from fitness.frontend.target import get_target
from fitness.sandbox.zygote import JOBS, Zygote
from fitness.validation.draft import REHEARSAL, DraftChecker, Refused, weakened
from tests.drafting_support import KERNEL, TASK

# Reads a value of a tensor on the host, which cannot be recorded, at one size only.
PICKY = KERNEL.replace("    y = torch", "    if x.shape[0] == 4096:\n        block = int(x[0].item())\n    y = torch")
BIG = 'Case("big", {"N": 4096}, cpu_axes={"N": 64}),'


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("sm_90", (*JOBS, REHEARSAL)) as warm:
        yield warm


def checker(zygote: Zygote, kernel: str = KERNEL) -> DraftChecker:
    target = get_target("sm_90")
    return DraftChecker(kernel, target, zygote, lambda task: CpuEvaluator(task, target, zygote=zygote))


def refused(zygote: Zygote, source: str, kernel: str = KERNEL) -> str:
    with pytest.raises(Refused) as caught:
        checker(zygote, kernel).check(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('import socket\nsocket.create_connection(("127.0.0.1", 9))', "PermissionError"),
        ('open({victim!r}, "w").write("gone")', "Permission"),
        ("import os\nos.fork()", "PermissionError"),
    ],
)
def test_the_sandbox_holds_where_the_rules_would_not(zygote: Zygote, tmp_path: Path, code: str, words: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(Refused, match=words):
        checker(zygote)._rehearse(TASK + code.format(victim=str(victim)) + "\n", scratch)
    assert victim.read_text() == "here"


def test_the_users_files_cannot_be_read_in_the_sandbox(zygote: Zygote, tmp_path: Path) -> None:
    if "landlock" not in (layers := zygote.layers) or layers["landlock"] != "active":
        pytest.skip(f"Landlock is what keeps files from being read: {layers.get('landlock')}")
    secret = tmp_path / "secret"
    secret.write_text("key")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    hidden = layers.get("view") == "active"  # what cannot be read does not even exist then
    with pytest.raises(Refused, match="FileNotFoundError" if hidden else "PermissionError"):
        checker(zygote)._rehearse(f"{TASK}\nopen({str(secret)!r}).read()\n", scratch)


def test_a_draft_that_reaches_this_process_broke_no_rule(zygote: Zygote) -> None:
    assert "rule import" in refused(zygote, TASK + "\nimport os\nos.environ['EVO_WAS_HERE'] = '1'\n")
    assert "EVO_WAS_HERE" not in os.environ


def test_cases_that_do_not_go_through_are_left_out_and_the_reason_is_told(zygote: Zygote) -> None:
    source = TASK.replace("cases = [", f"cases = [\n    {BIG}")
    accepted = checker(zygote, PICKY).check(source)
    assert [case.name for case in accepted.task.cases] == ["long", "odd"]
    assert accepted.source.endswith("cases = [case for case in cases if case.name in ('long', 'odd')]\n")
    assert list(accepted.left_out) == ["big"] and "unsupported" in accepted.left_out["big"]
    only_bad = TASK.replace('Case("long", {"N": 65536}, cpu_axes={"N": 256}),', BIG)
    assert "unsupported" in refused(zygote, only_bad, PICKY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((', role="holdout"', ""), "expected 2 to 5 cases, at least one with role='holdout'"),
        (('"N": 65536', '"N": 1 << 31'), "expected inputs of at most 4 GiB, got 8192 MiB"),
        (("def reference(x, factor):\n    return x * factor\n", 'reference = "seed"\n'), "reference in plain torch"),
        (('entry = "scale"', 'entry = "scale"\ntolerance = 0.5'), "a tolerance of at most 0.01, got 0.5"),
        (('entry = "scale"', 'entry = "scale"\nlenient = True'), "expected lenient = False"),
        (('entry = "scale"', 'entry = "scale"\neager = True'), "got eager = True, which evo no longer has"),
        (("return x * factor", "return x * undefined"), "reference failed on its own inputs: NameError"),
        (("generator=generator, ", ""), "inputs() gave different values for the same seed"),
    ],
)
def test_what_no_task_may_be_is_refused(zygote: Zygote, change: tuple[str, str], words: str) -> None:
    assert words in refused(zygote, TASK.replace(*change))


def test_settings_that_weaken_checks_are_named(zygote: Zygote) -> None:
    less = TASK.replace('entry = "scale"', 'entry = "scale"\nstress = False\ntolerance = 1e-3')
    assert weakened(checker(zygote).check(less).task) == ["tolerance = 0.001", "stress = False"]


def test_a_draft_that_a_kernel_passes_which_does_nothing_is_refused(zygote: Zygote) -> None:
    """Within its tolerance the product with 1.001 is the vector itself; without one it is not."""
    close = TASK.replace("return x, 2.0", "return x, 1.001")
    reason = refused(zygote, close + "\n\ntolerance = 1e-2\n")
    assert "kernel scale_kernel that copies an input: its error is 0.1 of the budget" in reason
    assert "choose inputs on which a kernel has to do its work" in reason
    assert checker(zygote).check(close).task.tolerance is None

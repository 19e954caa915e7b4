"""fitness.suites.base and registry: the protocol, evo's own suites, and one of a user on the command line."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evo.campaign import suite as command
from evo.cli.main import main
from evo.core import plugins
from evo.core.errors import ConfigError, StoreError
from fitness.frontend.target import get_target
from fitness.suites import registry
from fitness.suites.base import CheckSettings
from fitness.suites.check import SuiteChecker
from fitness.suites.kernelbench.check import KernelBenchChecker
from fitness.suites.kernelbench.suite import KernelBench
from fitness.suites.registry import find_suite
from fitness.suites.tritonbench_t.check import TritonBenchTChecker

OWN = """
    from dataclasses import dataclass

    import evo
    from fitness.suites.check import CheckOutcome

    @dataclass
    class File:
        name: str
        kernels: str

    class Checker:
        def __init__(self, folder, settings):
            self.folder, self.settings = folder, settings

        def check(self, source):
            outcome = CheckOutcome(source.name, ["read"], note=f"most {self.settings.most_bytes}")
            if "bad" in source.kernels:
                outcome.reason = "bad"
            else:
                outcome.stages.append("verified")
            return outcome

    @evo.register_suite
    class Own:
        name, stages, seed_kernel, sized = "own", ("read", "verified"), "", True

        def files(self, checkout):
            return [File(path.stem, path.read_text()) for path in sorted(checkout.glob("*.txt"))]

        def checker(self, folder, target, zygote, verifier, settings):
            assert folder.is_dir() and target.name == "sm_90" and verifier is None and hasattr(zygote, "run")
            return Checker(folder, settings)
"""


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_files", {})
    yield


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("good")
    (tmp_path / "files" / "two.txt").write_text("bad")
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    return tmp_path / "own.py"


def test_evos_suites_have_what_the_protocol_says(tmp_path: Path) -> None:
    kinds = {"tritonbench": SuiteChecker, "tritonbench-t": TritonBenchTChecker, "kernelbench": KernelBenchChecker}
    assert list(registry.built_in()) == list(kinds)
    for name, kind in kinds.items():
        suite = find_suite(name)
        assert suite.name == name and registry.missing(suite) == "" and suite.stages[-1] == "verified"
        with pytest.raises(ConfigError, match=rf"expected a checkout of .*, found none in {tmp_path}"):
            suite.files(tmp_path)
        zygote: Any = SimpleNamespace()
        checker = suite.checker(tmp_path, get_target("sm_90"), zygote, None, CheckSettings())
        assert type(checker) is kind
    assert [bool(find_suite(name).seed_kernel) for name in kinds] == [False, True, True]
    assert [find_suite(name).sized for name in kinds] == [False, False, True]


def test_what_the_user_says_reaches_the_checker(tmp_path: Path) -> None:
    zygote: Any = SimpleNamespace()
    given = CheckSettings(tmp_path, 5)
    checker = KernelBench().checker(tmp_path, get_target("sm_90"), zygote, None, given)
    assert (checker._seeds, checker._most_bytes) == (tmp_path, 5)


def test_an_unknown_suite_is_refused_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "check", "kernelbnch", "--path", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "suite: expected one of tritonbench, tritonbench-t, kernelbench, got 'kernelbnch'" in error
    assert "did you mean kernelbench?" in error


def test_a_suite_without_a_last_stage_is_refused() -> None:
    class Endless(KernelBench):
        name = "endless"
        stages = ("read",)

    with pytest.raises(ConfigError, match="suite 'endless': expected stages with 'verified', got read"):
        plugins.register("suites", Endless())


def test_a_suite_of_the_user_is_checked(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["suite", "check", "own", "--path", str(own.parent / "files"), "--plugin", str(own), "--gpus", "none"]
    assert main([*check, "--gib", "1"]) == 1
    said = capsys.readouterr().out
    assert "verified, 0 calls, most 1073741824" in said and "read, then: bad" in said
    assert "2 files: 2 read, 1 verified" in said
    assert main([*check, "--seeds", str(own.parent)]) == 2
    assert "--seeds: expected a suite that takes it, got own" in capsys.readouterr().err


def test_a_campaign_says_which_suite_it_is_of_without_the_plugin(own: Path, tmp_path: Path) -> None:
    plugins.load_file(own)
    said = command.SuiteSelection("own", tmp_path).settings()
    code = hashlib.sha256(own.read_bytes()).hexdigest()[:16]
    assert said == {
        "suite": "own",
        "gib": None,
        "seeds": None,
        "own_seeds": True,
        "plugin": code,
        "with_pytorch": False,
    }
    plugins._registered.clear()
    file = tmp_path / command.FILE
    file.write_text(json.dumps(said))
    assert command.read_settings(tmp_path) == said
    # As earlier versions wrote it.
    file.write_text(json.dumps({"suite": "kernelbench"}))
    assert command.read_settings(tmp_path)["with_pytorch"] and command.read_settings(tmp_path)["plugin"] is None
    file.write_text(json.dumps({"suite": "own"}))
    with pytest.raises(StoreError, match="is damaged"):
        command.read_settings(tmp_path)

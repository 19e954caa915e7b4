"""evo.core.plugins, and plug-ins as a user has them: files, distributions and instances."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import evo
from analysis.benchmarks.instant import Mutate
from evo.cli.main import main
from evo.core import plugins
from evo.core.errors import ConfigError
from evo.core.models import Model
from evo.core.plugins import PluginRecord
from evo.core.settings import RunConfig
from evo.llm.models import read_models
from evo.llm.providers import open_provider
from evo.search.archive import Archive
from evo.search.strategies import STRATEGIES, HillClimb, Strategy, new_strategy, strategy_of
from evo.storage.store import RunReader
from fitness.frontend.target import TARGETS, from_spec, get_target
from operators.registry import OPERATORS, asks_model, find_operator, get_operators
from tests.cli_support import install

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
HALVE = """
import evo

@evo.register_operator
class Halve:
    name, arity = "halve", 1

    def __call__(self, parents, context):
        from operators.base import Draft
        source = parents[0].source
        at = source.index("GENES=(") + 7
        value, comma, rest = source[at:].partition(",")
        return Draft(f"{source[:at]}{int(value) // 2}{comma}{rest}", "first gene halved")
"""
# Written by a run before there were plug-ins.
OLD = json.loads(RunConfig("softmax", ("params",)).to_json())
del OLD["plugins"]


class Halve:
    name, arity = "halve", 1

    def __init__(self, by: int = 2) -> None:
        self.by = by

    def __call__(self, parents: Any, context: Any) -> None:
        return None


class Best(HillClimb):
    name = "best"

    def __init__(self, width: int = 1) -> None:
        self.width = width


class Echo:
    """A provider of models."""

    name, paid = "echo", False
    parameters: dict[str, Any] = {}  # noqa: RUF012 - as the protocol has it

    def __init__(self, model: Model, environment: Any) -> None:
        self.model = model

    async def ask(self, request: Any) -> Any: ...

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_files", {})
    plugins._entry_points.cache_clear()
    yield
    plugins._entry_points.cache_clear()


@pytest.fixture
def halve(tmp_path: Path) -> Path:
    return written(tmp_path / "halve.py", HALVE)


def written(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def installed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    points: str,
    name: str = "own-parts",
    version: str = "1.2",
) -> None:
    """Installs a distribution with one package into `folder`, as pip would leave it."""
    package = name.replace("-", "_")
    (folder / package).mkdir()
    written(folder / package / "__init__.py", source)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(points))
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    plugins._entry_points.cache_clear()


# --- registering ------------------------------------------------------------------------------------------------------


def test_a_decorator_registers_and_leaves_the_class_alone() -> None:
    assert evo.register_operator(Halve) is Halve
    found = plugins.resolve("operators", "halve")
    assert isinstance(found.value, Halve) and find_operator("halve") is found.value
    assert found.record == PluginRecord("operators", "halve", digest(Path(__file__)), file=str(Path(__file__)))
    assert plugins.names("operators")[-1] == "halve" and plugins.names("operators")[: len(OPERATORS)] == [*OPERATORS]
    assert [o.name for o in get_operators(["halve", "params"])] == ["halve", "params"] and not asks_model("halve")


def test_what_evo_brings_has_no_record() -> None:
    for kind, name in (
        ("operators", "params"),
        ("strategies", "evolve"),
        ("targets", "sm_90"),
        ("suites", "kernelbench"),
    ):
        assert plugins.resolve(kind, name).record is None and plugins.record(kind, name) is None
        assert plugins.resolve(kind, plugins.resolve(kind, name).value).name == name


def test_a_name_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, plugin, name in (
        ("operators", Halve(), "params"),
        ("strategies", Best, "hillclimb"),
        ("targets", dataclasses.replace(TARGETS["sm_90"], clock_hz=1e9), "sm_90"),
        ("providers", Echo, "mailbox"),
    ):
        with pytest.raises(ConfigError, match=rf"{name}': expected a name that nothing has, but it is evo's own"):
            plugins.register(kind, plugin, name)
    plugins.register("operators", Halve())
    with pytest.raises(ConfigError, match=r"operator 'halve': .*test_plugins.py registered it before; choose another"):
        plugins.register("operators", Halve())
    installed(tmp_path, monkeypatch, "", "[evo.strategies]\nbest = own_parts:Best\n")
    with pytest.raises(ConfigError, match=r"strategy 'best': .* distribution own-parts 1.2 brings one"):
        plugins.register("strategies", Best)


class Named:
    name = "named"


class Walk(Strategy):
    name = "walk"


class Settings(Halve):
    def __init__(self, by: int) -> None:
        self.by = by


@pytest.mark.parametrize(
    ("kind", "plugin", "why"),
    [
        ("operators", Named(), "operators.base.Operator has, got an object without arity, __call__"),
        ("operators", Settings, "expected a class that takes no arguments"),
        ("strategies", Named(), "got one without screens, operators, asks"),
        ("strategies", Walk, "expected a method `parents`, got none"),
        ("suites", Named(), "got an object without stages, seed_kernel, sized, files, checker"),
        ("targets", Named(), "expected an instance of Target, got Named"),
        ("providers", Named, "got a class without paid, parameters, ask, close"),
        ("providers", Named(), "expected a class or function of a Model and the environment, got Named"),
        ("operators", object(), "expected an attribute `name` of letters"),
        ("rewrites", Halve(), "expected a kind among operators, strategies, suites, targets, providers"),
    ],
)
def test_what_is_missing_is_said(kind: str, plugin: Any, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plugins.register(kind, plugin)
    assert why in str(raised.value) and plugins._registered == {}


def test_an_operator_takes_one_or_two_parents() -> None:
    operator = Halve()
    operator.arity = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"arity \(number of parents\) from 1 to 2, got 3"):
        plugins.register("operators", operator)


def test_code_that_is_in_no_file_is_refused() -> None:
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("class Halve:\n    name, arity = 'halve', 1\n    def __call__(self, parents, context): ...", space)
    with pytest.raises(ConfigError, match="expected a plug-in that is defined in a file"):
        plugins.register("operators", space["Halve"])


# --- instances --------------------------------------------------------------------------------------------------------


def test_an_instance_is_resolved_and_takes_the_place_of_an_earlier_one() -> None:
    first, second = Halve(), Halve(3)
    assert plugins.resolve("operators", first).name == "halve"
    assert find_operator("halve") is first and plugins.resolve("operators", first).value is first
    assert plugins.resolve("operators", second).value is second and find_operator("halve") is second
    registered = evo.register_operator(Mutate(name="third"))
    assert plugins.resolve("operators", registered).value is registered
    with pytest.raises(ConfigError, match="expected a name that nothing has"):
        plugins.resolve("operators", Mutate(name="third"))


def test_each_run_gets_a_strategy_of_its_own() -> None:
    given = Best(3)
    plugins.resolve("strategies", given)
    plugins.register("strategies", Best, name="class")
    runs = [
        new_strategy(RunConfig("softmax", ("params",), strategy=name), Archive()) for name in ("best", "best", "class")
    ]
    assert [run.width for run in runs] == [3, 3, 1]  # type: ignore[attr-defined]
    assert len({id(run) for run in (*runs, given)}) == 4 and not hasattr(given, "_path")


def test_a_target_is_what_it_says_in_other_processes_too() -> None:
    mine = dataclasses.replace(TARGETS["sm_90"], name="mine", multiprocessors=66)
    assert evo.register_target(mine) is mine and get_target("mine") is mine
    assert plugins.record("targets", "mine") == PluginRecord(
        "targets", "mine", digest(Path(__file__)), file=str(Path(__file__))
    )
    plugins._registered.clear()
    assert from_spec(mine.spec) == mine  # what jobs get


def test_a_model_may_have_a_provider_of_the_user() -> None:
    with pytest.raises(ConfigError, match=r"got endpoint 'echo:loud'"):
        read_models(["m@echo:loud"], None)
    plugins.register("providers", functools.partial(Echo), name="shout")
    evo.register_provider(Echo)
    (model,) = read_models(["m@echo:loud"], None)
    assert (model.provider, model.endpoint, model.costs) == ("echo", "echo:loud", True)
    provider = open_provider(model, {})
    assert isinstance(provider, Echo) and provider.model is model
    assert RunConfig("softmax", ("params",), models=(model,)).plugins[0].name == "echo"
    with pytest.raises(ConfigError, match=r"m: expected .*, got endpoint 'ech:loud'; did you mean echo\?"):
        read_models(["m@ech:loud"], None)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_loaded_once_and_hashed_by_its_bytes(halve: Path) -> None:
    plugins.load_file(halve)
    plugins.load_file(halve)
    assert plugins.record("operators", "halve") == PluginRecord("operators", "halve", digest(halve), file=str(halve))
    halve.write_text(HALVE + "# changed\n")
    with pytest.raises(ConfigError, match=r"operator 'halve': .*halve.py registered it before"):
        plugins.load_file(halve)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", "expected a file that registers a plug-in, got none"),
        ("\n1 / 0\n", "got ZeroDivisionError: division by zero in line 2; correct it"),
        ("def (\n", "got SyntaxError"),
        ("import evo\nevo.register_operator(3)\n", "expected an attribute `name`"),
    ],
)
def test_a_file_that_is_no_plugin_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plugins.load_file(written(tmp_path / "bad.py", text))
    assert why in str(raised.value) and "--plugin" in str(raised.value)


def test_a_file_that_is_missing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "softmax", "--plugin", str(tmp_path / "none.py")]) == 2
    assert "--plugin: expected a Python file at" in capsys.readouterr().err


# --- entry points -----------------------------------------------------------------------------------------------------

PARTS = """
class Third:
    name, arity = "third", 1
    def __call__(self, parents, context): ...
"""


def test_an_entry_point_is_loaded_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, PARTS, "[evo.operators]\nthird = own_parts:Third\n")
    assert "third" in plugins.names("operators") and plugins.loaded("operators", "third") is None
    assert "own_parts" not in sys.modules
    found = plugins.resolve("operators", "third")
    assert found.value.name == "third" and plugins.loaded("operators", "third") is found.value
    assert found.record is not None
    assert (found.record.distribution, found.record.version, found.record.file) == ("own-parts", "1.2", "")
    assert found.record.origin == "distribution own-parts 1.2"
    # The hash is that of all modules of the package.
    plugins._registered.clear()
    (tmp_path / "own_parts" / "helper.py").write_text("")
    again = plugins.resolve("operators", "third").record
    assert again is not None and again.hash != found.record.hash
    sys.modules.pop("own_parts")


@pytest.mark.parametrize(
    ("source", "points", "why"),
    [
        (
            "import no_such_module",
            "third = own_parts:Third",
            "got ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("", "third = own_parts:Third", "got AttributeError"),
        ("Third = 3", "third = own_parts:Third", "operators.base.Operator has, got an object without arity"),
        (PARTS.replace('"third"', '"fourth"'), "third = own_parts:Third", "an object with that name, got 'fourth'"),
    ],
)
def test_a_broken_entry_point_is_named_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, points: str, why: str
) -> None:
    installed(tmp_path, monkeypatch, source, f"[evo.operators]\n{points}\n")
    assert plugins.resolve("operators", "params").record is None
    assert RunConfig("softmax", ("params",)).plugins == ()
    with pytest.raises(ConfigError, match=r"^operator 'third' of distribution own-parts 1.2: ") as raised:
        plugins.resolve("operators", "third")
    assert why in str(raised.value)
    sys.modules.pop("own_parts", None)


def test_two_distributions_with_one_name_and_one_with_a_name_of_evo_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[evo.operators]\nthird = {0}:Third\nparams = {0}:Third\n"
    installed(tmp_path, monkeypatch, PARTS, points.format("own_parts"))
    with pytest.raises(
        ConfigError, match=r"'params': .* it is evo's own, and distribution own-parts 1.2 brings one too"
    ):
        find_operator("params")
    assert plugins.record("operators", "params") is None  # reading a run goes on
    installed(tmp_path, monkeypatch, PARTS, points.format("other"), name="other")
    with pytest.raises(ConfigError, match=r"distribution \S+ 1.2 and distribution \S+ 1.2 bring one each"):
        find_operator("third")


def test_help_needs_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "own_parts-1.2.dist-info").mkdir()
    (tmp_path / "own_parts-1.2.dist-info" / "METADATA").write_text("Name: own-parts\nVersion: 1.2\n")
    (tmp_path / "own_parts-1.2.dist-info" / "entry_points.txt").write_text("[evo.operators]\nx = no_such_module:X\n")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    shown = subprocess.run([sys.executable, "-m", "evo", "--help"], env=environment, capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stderr == ""
    code = "import evo, sys; print([m for m in ('torch', 'libcst', 'importlib.metadata') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout == "[]\n"


# --- what a run stores ------------------------------------------------------------------------------------------------


def test_settings_know_their_plugins_and_are_read_without_them(halve: Path) -> None:
    plugins.load_file(halve)
    plugins.register("strategies", Best)
    config = RunConfig("softmax", ("params", "halve"), strategy="best")
    assert [(p.kind, p.name) for p in config.plugins] == [("operators", "halve"), ("strategies", "best")]
    assert dataclasses.replace(config, operators=("params",), strategy="evolve").plugins == ()
    text = config.to_json()
    plugins._registered.clear()
    read = RunConfig.from_json(text)
    assert read == config and dataclasses.replace(read, workers=2).plugins == config.plugins
    with pytest.raises(ConfigError, match=r"strategy: expected one of evolve, .*, got 'best'"):
        strategy_of(RunConfig("softmax", ("params",), strategy="best"))
    assert RunConfig.from_json(json.dumps(OLD)).plugins == ()
    assert all(RunConfig.from_json(json.dumps(OLD | {"strategy": name})) for name in ("evolve", "random", "hillclimb"))


def test_a_plugin_that_is_missing_or_changed_is_named(halve: Path) -> None:
    then = PluginRecord("operators", "halve", "0" * 16, file="/a/halve.py")
    with pytest.raises(
        ConfigError,
        match=r"cannot go on: expected operator 'halve' with hash 0{16} \(/a/halve.py\), got no such plug-in; "
        r"pass the same file by --plugin FILE",
    ):
        plugins.check_recorded([then], "cannot go on")
    plugins.load_file(halve)
    with pytest.raises(ConfigError, match=rf"got one with hash {digest(halve)} \({halve}\)"):
        plugins.check_recorded([then], "cannot go on")
    plugins.check_recorded([dataclasses.replace(then, hash=digest(halve))], "cannot go on")  # wherever it lies
    brought = PluginRecord("strategies", "best", "0" * 16, distribution="own-parts", version="1.2")
    with pytest.raises(
        ConfigError, match=r"\(distribution own-parts 1.2\), got no such plug-in; install own-parts==1.2"
    ):
        plugins.check_recorded([brought], "cannot go on")


# --- commands, with an instant evaluator ------------------------------------------------------------------------------


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_registered: None) -> None:
    monkeypatch.chdir(tmp_path)
    install(monkeypatch.setattr)


def as_in_a_new_process() -> None:
    """Nothing is registered."""
    plugins._registered.clear()
    plugins._files.clear()


def command(*arguments: str) -> int:
    """Runs a command as a new process would."""
    as_in_a_new_process()
    return main(list(arguments))


RUN = ("run", "task", "--run-dir", "r", "--workers", "1", "--gpus", "none", "--operators", "halve,nudge")


def test_reading_a_run_needs_no_plugin_and_going_on_does(
    instant: None, halve: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = ("--plugin", str(halve))
    assert command(*RUN, "--budget", "4", *plugin) == 0
    assert command(*RUN[:2], "--run-dir", "whole", *RUN[4:], "--budget", "8", *plugin) == 0
    for reading in (
        ("show", "r"), ("show", "r", "1"), ("calls", "r"), ("watch", "r", "--once"),
        ("export", "r", "--out", "out", "--format", "jsonl"), ("compare", "r", "r"),
    ):  # fmt: skip
        assert command(*reading) in (0, 1), reading
        assert "plug-in" not in capsys.readouterr().err
    for going in (("resume", "r", "--budget", "8"), ("replay", "r"), (*RUN, "--propose-only", "1")):
        assert command(*going) == 2
        assert "halve" in capsys.readouterr().err
    changed = written(Path("changed.py"), HALVE + "# changed\n")
    for going in (("resume", "r", "--budget", "8"), ("replay", "r")):
        assert command(*going, "--plugin", str(changed)) == 2
        error = capsys.readouterr().err
        assert f"with hash {digest(halve)}" in error and f"hash {digest(changed)}" in error
    assert command("resume", "r", "--budget", "8", *plugin) == 0
    with RunReader(Path("r")) as went_on, RunReader(Path("whole")) as whole:
        assert [t.proposal for t in went_on.trials()] == [t.proposal for t in whole.trials()]
        assert went_on.info.config.plugins == whole.info.config.plugins
        assert any(t.proposal.operator == "halve" for t in whole.trials())


def test_a_campaign_freezes_its_plugins(instant: None, halve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = 'tasks = ["softmax"]\nseeds = 1\narms = ["full", "own"]\n[budget]\ntrials = 3\n'
    Path("spec.toml").write_text(spec + '[variant.own]\noperators = ["halve"]\n')
    ablate = ("ablate", "spec.toml", "--gpus", "none", "--workers", "1", "--no-figures")
    assert command(*ablate) == 2
    assert "operator: expected one of" in capsys.readouterr().err
    assert command(*ablate, "--plugin", str(halve)) == 0
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    capsys.readouterr()
    assert command(*ablate, "--plugin", str(written(elsewhere / "halve.py", HALVE))) == 0
    assert "2 finished" in capsys.readouterr().out
    assert command("ablate", "runs/spec", "--no-figures") == 0  # its tables need no plug-in
    capsys.readouterr()
    assert command(*ablate, "--plugin", str(written(Path("changed.py"), HALVE + "# changed\n"))) == 2
    error = capsys.readouterr().err
    assert f"operators halve (hash {digest(halve)} then, {digest(Path('changed.py'))} now)" in error


# --- the examples, as a user runs them --------------------------------------------------------------------------------


@pytest.fixture
def evo_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., SimpleNamespace]:
    """Executes a command, or a script, as a new process would; its exit code and what it says."""
    monkeypatch.chdir(tmp_path)

    def executed(*arguments: str, script: Path | None = None) -> SimpleNamespace:
        capsys.readouterr()
        if script is None:
            code = command(*arguments)
        else:
            as_in_a_new_process()
            monkeypatch.setattr(sys, "argv", [str(script), *arguments])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(script), run_name="__main__")
            code = ended.value.code
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return executed


def test_an_example_runs_is_read_without_its_file_and_goes_on_with_it(
    tmp_path: Path, evo_command: Callable[..., SimpleNamespace]
) -> None:
    name, noun = "own_operator.py", "operator 'elements_per_thread'"
    plugin = ("--plugin", str(EXAMPLES / name))
    run = ("run", "vector_sin", "--budget", "3", "--gpus", "none", "--workers", "1", "--run-dir", "r")
    run += ("--screen-budget", "0", "--operators", "elements_per_thread,rewrite")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = [sys.executable, "-m", "evo", *run, *plugin]
    made = subprocess.run(process, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    shown = evo_command("show", "r")
    assert shown.code == 0 and f"plug-in: {noun}, hash {digest(EXAMPLES / name)}" in shown.out
    for reading in (("export", "r", "--out", "out", "--format", "jsonl"), ("report", "r")):
        assert evo_command(*reading).code == 0
    refused = evo_command("resume", "r", "--budget", "5")
    assert refused.code == 2 and f"expected {noun} with hash" in refused.err
    assert "--plugin" in refused.err and "Traceback" not in refused.err
    resumed = evo_command("resume", "r", "--budget", "5", *plugin)
    assert resumed.code == 0, resumed.err
    replayed = evo_command("replay", "r", *plugin)
    assert replayed.code == 0 and "5 proposals made again: all the same" in replayed.out


@pytest.mark.parametrize(
    ("name", "noun"),
    [("own_operator.py", "operator 'elements_per_thread'"), ("own_strategy.py", "strategy 'annealing'")],
)
def test_an_example_is_a_script_too_whose_run_is_read_without_it(
    tmp_path: Path, evo_command: Callable[..., SimpleNamespace], name: str, noun: str
) -> None:
    more = ("--run-dir", "r", "--budget", "2", "--workers", "1", "--screen-budget", "0")
    made = evo_command(*more, script=EXAMPLES / name)
    assert made.code == 0, made.err
    with RunReader(tmp_path / "r") as run:
        assert [(p.file, p.hash) for p in run.info.config.plugins] == [(str(EXAMPLES / name), digest(EXAMPLES / name))]
    refused = evo_command("resume", "r", "--budget", "4")
    assert refused.code == 2 and f"expected {noun} with hash" in refused.err


def test_strategies_of_evo_are_strategies() -> None:
    assert all(issubclass(kind, Strategy) and kind.name == name for name, kind in STRATEGIES.items())

"""Plug-ins: operators, strategies, suites, targets and providers of models that are no part of evo.

A plug-in is an object with a name.  It comes from a Python file (`--plugin FILE.py`), from an installed distribution
(an entry point in the group `evo.operators`, `evo.strategies`, ...), or as an instance in Python.  A run stores the
name, the origin and the hash of the code of each plug-in that it uses (`PluginRecord`): reading a run never needs the
plug-in, going on with it does.

    import evo

    @evo.register_operator
    class Halve:
        name, arity = "halve", 1
        def __call__(self, parents, context): ...

A plug-in is code of the user, trusted as a task.py is.  What each kind has to offer is documented beside its protocol;
`docs/plugins.md` shows all of it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from evo.core.errors import ConfigError, EvoError
from evo.core.text import did_you_mean

if TYPE_CHECKING:
    from importlib import metadata

# The module of each kind has `built_in()`, evo's own by name, and `missing(plugin)`, what a plug-in lacks in words.
# It is named, not imported: reading a run or `--help` pays for none of them.
KINDS = {
    "operators": "operators.registry",
    "strategies": "evo.search.strategies",
    "suites": "fitness.suites.registry",
    "targets": "fitness.frontend.target",
    "providers": "evo.llm.providers",
}
_SINGULAR = {kind: kind.removesuffix("s") for kind in KINDS} | {"strategies": "strategy"}
_MADE = ("operators", "suites")  # kinds whose classes are instantiated, without arguments, when they are registered

_T = TypeVar("_T")


@dataclass(frozen=True)
class PluginRecord:
    """What a run stores of a plug-in that it uses.

    `hash`: 16 hex digits of the bytes of `file`, or of the modules of the package that `distribution` brought.
    """

    kind: str  # one of KINDS
    name: str
    hash: str
    file: str = ""  # absolute path, "" for a distribution
    distribution: str = ""
    version: str = ""  # of the distribution

    @property
    def origin(self) -> str:
        """The file, or the distribution with its version."""
        return self.file or f"distribution {self.distribution} {self.version}"

    @property
    def noun(self) -> str:
        """E.g. "operator 'halve'"."""
        return f"{_SINGULAR[self.kind]} {self.name!r}"


@dataclass(frozen=True)
class Plugin:
    """What a name stands for.  `record` is None for what is evo's own."""

    kind: str
    name: str
    value: Any
    record: PluginRecord | None = None
    passed: bool = False  # as an instance in Python: the next one of the name takes its place


_registered: dict[tuple[str, str], Plugin] = {}  # by kind and name
_files: dict[str, str] = {}  # absolute path of a file that was loaded -> its hash
_loading: tuple[str, str] | None = None  # path and hash of the file that is executed


# --- registering ------------------------------------------------------------------------------------------------------


def register(kind: str, plugin: _T, name: str = "") -> _T:
    """Make `plugin` known by its name and return it as it was given, so that this works as a decorator too.

    kind: one of KINDS.  plugin: an object of the protocol of its kind; classes of operators and suites are instantiated
    without arguments.  name: if the object has no attribute `name`.  Raises ConfigError if the name is in use or the
    object lacks something.
    """
    made = _checked(kind, plugin, name)
    known = _registered.get((kind, made.name))
    if known is not None:
        raise _taken(kind, made.name, f"{known.record.origin if known.record else 'this process'} registered it before")
    if found := _entry_points().get((kind, made.name)):
        raise _taken(kind, made.name, f"{_distributions(found)} brings one")
    _registered[kind, made.name] = made
    return plugin


def register_operator(plugin: _T) -> _T:
    """Register an operator: `operators.base.Operator`, or `operators.llm.base.LlmOperator` if it asks models."""
    return register("operators", plugin)


def register_strategy(plugin: _T) -> _T:
    """Register a strategy: a class, or an instance that every run copies (`evo.search.strategies.Strategy`)."""
    return register("strategies", plugin)


def register_suite(plugin: _T) -> _T:
    """Register a benchmark suite (`fitness.suites.base.Suite`)."""
    return register("suites", plugin)


def register_target(plugin: _T) -> _T:
    """Register a target (an instance of `fitness.frontend.target.Target`)."""
    return register("targets", plugin)


def register_provider(plugin: _T) -> _T:
    """Register a provider of models: called with a Model and the environment, it returns a Provider
    (`evo.llm.providers`)."""
    return register("providers", plugin)


def load_file(path: Path) -> None:
    """Execute the plug-in file at `path`, which registers what it has.  A file that was loaded is not loaded again.

    Raises ConfigError if the file cannot be read, raises, or registers nothing.
    """
    global _loading
    file = path.resolve()
    try:
        code = _digest([file])
    except OSError as error:
        raise ConfigError(f"--plugin: expected a Python file at {path}, got: {error}; check the path") from error
    if _files.get(str(file)) == code:
        return
    before = len(_registered)
    module_name = f"evo_plugin_{code}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--plugin: expected a Python file, got {path}; give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look classes up there
    _loading = str(file), code
    try:
        spec.loader.exec_module(module)
    except EvoError as error:
        raise ConfigError(f"--plugin {path}: {error}") from error
    except Exception as error:  # code of the user
        raise ConfigError(
            f"--plugin {path}: expected a file that can be executed, got {type(error).__name__}: {error}"
            f"{_line_of(error, str(file))}; correct it"
        ) from error
    finally:
        _loading = None
    if len(_registered) == before:
        raise ConfigError(
            f"--plugin {path}: expected a file that registers a plug-in, got none; call evo.register_operator(...) or "
            f"another function of evo.plugins in it"
        )
    _files[str(file)] = code


def _line_of(error: Exception, file: str) -> str:
    """Where in the file an error was raised, in words; "" if nothing says."""
    lines = []
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            lines.append(step.tb_lineno)
        step = step.tb_next
    return f" in line {lines[-1]}" if lines else ""


# --- looking up -------------------------------------------------------------------------------------------------------


def resolve(kind: str, plugin: Any) -> Plugin:
    """Return what a name stands for, or an instance with its name; an instance is registered by that.

    An instance takes the place of an earlier instance of its name.  Raises ConfigError for a name that nothing has, an
    entry point that cannot be loaded, and an instance that lacks something.
    """
    if isinstance(plugin, str):
        return _named(kind, plugin)
    for name, value in _module(kind).built_in().items():
        # Evo's strategies, operators and suites have no settings: one instance is as good as another.
        if plugin in (value, type(value)) or type(plugin) is value or (kind in _MADE and type(plugin) is type(value)):
            return Plugin(kind, name, value)
    known = next((p for p in _registered.values() if p.kind == kind and p.value is plugin), None)
    if known is not None:
        return known
    made = _checked(kind, plugin, "")
    before = _registered.get((kind, made.name))
    if (before is not None and not before.passed) or (kind, made.name) in _entry_points():
        raise _taken(kind, made.name, "a plug-in has it")
    made = Plugin(kind, made.name, made.value, made.record, passed=True)
    _registered[kind, made.name] = made
    return made


def names(kind: str) -> list[str]:
    """The names of all that there is of a kind: evo's own, registered ones, entry points (which are not loaded)."""
    others = [n for k, n in (*_registered, *_entry_points()) if k == kind]
    return list(dict.fromkeys([*_module(kind).built_in(), *others]))


def record(kind: str, name: str) -> PluginRecord | None:
    """What a run stores of the plug-in of that name; None if the name is evo's own, or nothing has it."""
    if (kind, name) in _registered:
        return _registered[kind, name].record
    if (kind, name) not in _entry_points() or name in _module(kind).built_in():
        return None
    return _named(kind, name).record


def loaded(kind: str, name: str) -> Any:
    """What a name stands for, if it is evo's own or a plug-in that is loaded; else None."""
    found = _registered.get((kind, name))
    return found.value if found else _module(kind).built_in().get(name)


def check_recorded(records: Iterable[PluginRecord], doing: str) -> None:
    """Raise ConfigError unless each plug-in is here with the code that it had.

    doing: what needs them, e.g. "cannot go on with runs/a".
    """
    for then in records:
        now = record(then.kind, then.name)
        if now is not None and now.hash == then.hash:
            continue
        got = "no such plug-in" if now is None else f"one with hash {now.hash} ({now.origin})"
        fix = (
            "pass the same file by --plugin FILE"
            if then.file
            else f"install {then.distribution}=={then.version} in this environment"
        )
        raise ConfigError(f"{doing}: expected {then.noun} with hash {then.hash} ({then.origin}), got {got}; {fix}")


def _named(kind: str, name: str) -> Plugin:
    own = _module(kind).built_in()
    points = _entry_points().get((kind, name), [])
    if name in own:
        if points:
            raise _taken(kind, name, f"it is evo's own, and {_distributions(points)} brings one too; uninstall that")
        return Plugin(kind, name, own[name])
    if (kind, name) not in _registered:
        if not points:
            raise ConfigError(unknown(kind, name))
        _registered[kind, name] = _from_entry_point(kind, points)
    return _registered[kind, name]


def unknown(kind: str, name: str) -> str:
    """The message for a name that nothing has."""
    known = names(kind)
    return (
        f"{_SINGULAR[kind]}: expected one of {', '.join(known)}, got {name!r}; a plug-in is given by --plugin FILE"
        f"{did_you_mean(name, known)}"
    )


# --- entry points -----------------------------------------------------------------------------------------------------


@functools.cache
def _entry_points() -> Mapping[tuple[str, str], list[metadata.EntryPoint]]:
    """Those of all kinds, by kind and name; none is loaded.  Reading them takes tens of milliseconds, once."""
    from importlib import metadata

    found: dict[tuple[str, str], list[metadata.EntryPoint]] = {}
    every = metadata.entry_points()
    for kind in KINDS:
        for point in every.select(group=f"evo.{kind}"):
            found.setdefault((kind, point.name), []).append(point)
    return found


def _from_entry_point(kind: str, points: list[metadata.EntryPoint]) -> Plugin:
    if len(points) > 1:
        raise _taken(kind, points[0].name, f"{_distributions(points)} bring one each; uninstall all but one")
    point = points[0]
    noun = f"{_SINGULAR[kind]} {point.name!r} of {_distributions(points)}"
    try:
        value = point.load()
        plugin = _checked(kind, value, "" if hasattr(value, "name") else point.name)
        code = _hash_of_module(point.module)
    except EvoError as error:
        raise ConfigError(f"{noun}: {error}") from error
    except Exception as error:  # code of the distribution
        raise ConfigError(
            f"{noun}: expected that {point.value} can be loaded, got {type(error).__name__}: {error}; correct or "
            f"uninstall the distribution"
        ) from error
    if plugin.name != point.name:
        raise ConfigError(f"{noun}: expected an object with that name, got {plugin.name!r}; correct the entry point")
    distribution, version = _distribution(point)
    made = PluginRecord(kind, point.name, code, distribution=distribution, version=version)
    return Plugin(kind, point.name, plugin.value, made)


def _distributions(points: Iterable[metadata.EntryPoint]) -> str:
    return " and ".join("distribution {} {}".format(*_distribution(point)) for point in points)


def _distribution(point: metadata.EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")


def _hash_of_module(module: str) -> str:
    """The hash of the Python files of the package that a module belongs to; of its own file if it is in none."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):  # namespace packages have no file of their own
        spec = importlib.util.find_spec(".".join(parts[:count]))
        if spec is not None and spec.origin is not None and spec.has_location:
            file = Path(spec.origin)
            package = spec.submodule_search_locations is not None
            return _digest(sorted(file.parent.rglob("*.py")), file.parent) if package else _digest([file])
    raise ConfigError(f"expected Python source of module {module}, found none; install a distribution that has it")


# --- checks -----------------------------------------------------------------------------------------------------------


def _checked(kind: str, plugin: Any, name: str) -> Plugin:
    """The plug-in with its name and record.  Raises ConfigError if evo has that name, or the object lacks something."""
    module, value = _module(kind), plugin
    if isinstance(plugin, type) and kind in _MADE:
        try:
            value = plugin()
        except TypeError as error:
            raise ConfigError(
                f"{_SINGULAR[kind]} {plugin.__name__}: expected a class that takes no arguments, got: {error}; "
                f"register an instance"
            ) from error
    name = name or getattr(value, "name", "")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise ConfigError(
            f"{_SINGULAR[kind]} {plugin!r:.100}: expected an attribute `name` of letters, digits, '_', '.' and '-', "
            f"got {name!r:.100}"
        )
    if name in module.built_in():
        raise _taken(kind, name, "it is evo's own")
    if lacks := module.missing(value):
        raise ConfigError(f"{_SINGULAR[kind]} {name!r}: {lacks}; see docs/plugins.md")
    file, code = _loading or _file_of(kind, name, plugin)
    return Plugin(kind, name, value, PluginRecord(kind, name, code, file=file))


def _file_of(kind: str, name: str, plugin: Any) -> tuple[str, str]:
    """The file that defines the class or function of an object, and its hash.

    A target is no class of the user: the file that registers it is taken.
    """
    while isinstance(plugin, functools.partial):
        plugin = plugin.func
    module = sys.modules.get(getattr(plugin, "__module__", "") or "")
    file = getattr(module, "__file__", None) if kind != "targets" else _caller()
    if not file or not Path(file).is_file():
        raise ConfigError(
            f"{_SINGULAR[kind]} {name!r}: expected a plug-in that is defined in a file, since a run stores the hash of "
            f"its code, got one without; move it to a file and import it"
        )
    path = Path(file).resolve()
    return str(path), _digest([path])


def _caller() -> str | None:
    """The file of the innermost frame that is not in this module."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_code.co_filename if frame is not None else None


def _digest(files: Sequence[Path], root: Path | None = None) -> str:
    """16 hex digits of the bytes of files, and of their names below `root` if there is one."""
    digest = hashlib.sha256()
    for file in files:
        if root is not None:
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _taken(kind: str, name: str, why: str) -> ConfigError:
    return ConfigError(f"{_SINGULAR[kind]} {name!r}: expected a name that nothing has, but {why}; choose another name")


def _module(kind: str) -> ModuleType:
    if kind not in KINDS:
        raise ConfigError(f"plug-in: expected a kind among {', '.join(KINDS)}, got {kind!r}")
    return importlib.import_module(KINDS[kind])

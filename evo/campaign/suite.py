"""The files of a benchmark suite as the tasks of a campaign: chosen, checked beside the searches, timed with PyTorch.

What was found out of a file is a line in the campaign's folder: it is not done again, and other processes see it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.core import plugins
from evo.core.errors import ConfigError, StoreError
from evo.core.locks import try_lock
from evo.core.text import counted

if TYPE_CHECKING:
    from fitness.suites import SuiteFile
    from fitness.suites.base import Suite
    from fitness.suites.check import CheckOutcome
    from fitness.tasks.task import Task

FILE = "suite.json"  # which files at which sizes
CHECKED = "checked.jsonl"  # how far each file came
BASELINES = "baselines.jsonl"  # PyTorch's times beside each seed kernel
TASKS = "tasks"  # folder of those made of files
LOCK = "checking.lock"
LOOK_S = 0.5  # between looks whether to stop, or whether another process is done

Say = Callable[[str], None]


# --- what is chosen ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteSelection:
    """Files of a suite in a checkout.

    only: names, with * for anything, separated by commas; None: all.  seeds: a folder of seed kernels.  gib: the most
    memory of a problem.  own_seeds: whether evo's own seed kernels are used; else tasks are of a reference alone.
    """

    name: str
    path: Path
    only: str | None = None
    seeds: Path | None = None
    gib: float | None = None
    own_seeds: bool = True

    @property
    def suite(self) -> Suite:
        from fitness.suites.registry import find_suite

        return find_suite(self.name)

    def files(self) -> list[SuiteFile]:
        """Returns the chosen files.  Raises ConfigError for options of another suite, too."""
        suite = self.suite
        for option, taken in (("seeds", bool(suite.seed_kernel)), ("gib", suite.sized)):
            if getattr(self, option) is not None and not taken:
                raise ConfigError(f"--{option}: expected a suite that takes it, got {suite.name}; leave it out")
        if not self.own_seeds and not suite.seed_kernel:
            raise ConfigError(f"--no-seeds: expected a suite that has seed kernels, got {suite.name}; leave it out")
        if self.gib is not None and not self.gib > 0:
            raise ConfigError(f"--gib: expected a number above 0, got {self.gib:g}")
        found = suite.files(self.path)
        if self.seeds is not None:
            from fitness.suites.seeded import check_seeds

            check_seeds(self.seeds, found, suite.seed_kernel)
        return _chosen(found, self.only)

    def settings(self) -> dict[str, Any]:
        """Returns which files a campaign is of, as its folder keeps it.

        plugin: the hash of the plug-in that has the suite, None for evo's own; with_pytorch: whether the summary
        compares with PyTorch.
        """
        suite = plugins.resolve("suites", self.name)
        return {
            "suite": self.name,
            "gib": self.gib,
            "seeds": self.seeds and str(self.seeds.resolve()),
            "own_seeds": self.own_seeds,
            "plugin": suite.record.hash if suite.record else None,
            "with_pytorch": bool(suite.value.seed_kernel),
        }

    def check_same(self, folder: Path) -> None:
        """Raises StoreError if the folder has results of another suite, size or seed kernels, which share names."""
        if not (folder / FILE).exists():
            return
        now, then = self.settings(), read_settings(folder)
        if then != now:
            changed = ", ".join(f"{key} was {then[key]}, got {now[key]}" for key in now if then[key] != now[key])
            raise StoreError(f"cannot continue in {folder}: {changed}; restore it, or choose another folder by --out")

    def note(self, folder: Path) -> None:
        """Writes the settings into the campaign's folder, unless they are there."""
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(json.dumps(self.settings()) + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"expected to write to {folder}, got: {error}; choose another folder by --out") from error


def _chosen(sources: Sequence[SuiteFile], only: str | None) -> list[SuiteFile]:
    if only is None:
        return list(sources)
    wanted = [name.removesuffix(".py") for name in only.split(",") if name]
    unknown = sorted(w for w in set(wanted) if not any(fnmatch.fnmatchcase(s.name, w) for s in sources))
    if unknown or not wanted:
        raise ConfigError(f"--only: expected names of files of the suite, got {', '.join(unknown) or 'none'}")
    return [source for source in sources if any(fnmatch.fnmatchcase(source.name, w) for w in wanted)]


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns which files the campaign in `folder` has, from `settings`.  Raises StoreError if it does not say."""
    from fitness.suites.registry import built_in

    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(
            f"expected a folder of evo bench, which has a {FILE}, got {folder} ({error.strerror}); name what evo bench "
            f"was given as --out"
        ) from None
    except ValueError as error:
        raise _damaged(path, f"no JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("suite"), str):
        raise _damaged(path, f"{found!r:.100}")
    known = built_in().get(found["suite"])
    if known is None and "with_pytorch" not in found:  # written by an earlier version, which knew no plug-ins
        raise _damaged(path, f"{found!r:.100}")
    defaults = {"gib": None, "seeds": None, "own_seeds": True, "plugin": None}
    defaults["with_pytorch"] = bool(known and known.seed_kernel)
    return {**defaults, **found}


def _damaged(path: Path, found: str) -> StoreError:
    return StoreError(
        f"{path} is damaged: expected the suite as evo bench wrote it, got {found}; restore it from a "
        f"copy, or delete it and call evo bench as before, which writes it again"
    )


# --- checking ---------------------------------------------------------------------------------------------------------


def outcomes(
    selection: SuiteSelection,
    files: Sequence[SuiteFile],
    folder: Path,
    target: str,
    gpus: int,
    workers: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[CheckOutcome]:
    """Yields outcomes in the order in which files are finished, until all are or `stop` returns True.

    `gpus`: how many verify; with 0 Triton's interpreter does.
    """
    from fitness.frontend.target import get_target
    from fitness.suites.base import CheckSettings
    from fitness.suites.check import gpu_verifier, new_zygote

    compiled_for = get_target(target)
    if gpus:
        from fitness.cuda.gpus import measuring

        compiled_for = measuring(compiled_for)
    with ExitStack() as stack:
        zygote = stack.enter_context(new_zygote(compiled_for))
        verifier = stack.enter_context(gpu_verifier(gpus)) if gpus else None
        most = None if selection.gib is None else int(selection.gib * 2**30)
        settings = CheckSettings(selection.seeds, most, selection.own_seeds)
        checker = selection.suite.checker(folder, compiled_for, zygote, verifier, settings)
        pool = ThreadPoolExecutor(workers)
        try:
            running = {pool.submit(checker.check, source) for source in files}
            while running and not stop():
                done, running = wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def line(outcome: CheckOutcome) -> str:
    """Returns how far a file came, in one line."""
    calls = counted(outcome.calls, "call")
    if outcome.verified:
        why = f"; {outcome.left_out} left out: {outcome.why_left_out}" if outcome.why_left_out else ""
        return f"{outcome.name:30} verified, {calls}{', ' * bool(outcome.note)}{outcome.note}{why}"
    if outcome.alone:
        return f"{outcome.name:30} recorded, {calls}; {outcome.reason}"
    reached = ", ".join([outcome.stages[-1], *([calls] if outcome.calls else [])]) if outcome.stages else "not begun"
    return f"{outcome.name:30} {reached}, then: {outcome.reason}"


class Checking:
    """Checks the chosen files in a thread while it is entered; leaving it by an exception stops it, else waits.

    A search may begin as soon as its file is verified.  The process that checked the files times PyTorch beside their
    seed kernels at last, if a GPU measures and the suite is in PyTorch.
    """

    def __init__(
        self, selection: SuiteSelection, folder: Path, *, target: str, gpus: int, workers: int, models: bool, say: Say
    ) -> None:
        """folder: of the campaign.  gpus, workers: as `outcomes` takes them.  models: whether searches ask models."""
        self._selection, self._chosen, self._folder = selection, selection.files(), folder
        self._target, self._gpus, self._workers, self._say = target, gpus, workers, say
        self._models = models
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checking")
        self._error: BaseException | None = None

    def __enter__(self) -> Checking:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.stop()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        if kind is None:
            self.raise_error()

    def stop(self) -> None:
        self._over.set()

    def raise_error(self) -> None:
        """Raises the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            (self._folder / TASKS).mkdir(parents=True, exist_ok=True)
            while not self._over.is_set():
                with try_lock(self._folder / LOCK) as mine:
                    if mine:
                        self._check()
                        return
                self._over.wait(LOOK_S)  # another process is at it, and may be killed
        except OSError as error:
            self._error = StoreError(f"expected to write to {self._folder}, got: {error}; choose another by --out")
        except BaseException as error:
            self._error = error

    def _check(self) -> None:
        known = read_checked(self._folder)
        new = [source for source in self._chosen if source.name not in known]
        of = (self._target, self._gpus, self._workers, self._over.is_set)
        with adding(self._folder / CHECKED) as add:
            for outcome in outcomes(self._selection, new, self._folder / TASKS, *of) if new else ():
                add(dataclasses.asdict(outcome))
                known[outcome.name] = outcome
                self._say(line(outcome))
        if self._over.is_set():
            return
        found = [known[source.name] for source in self._chosen]
        able = sum(outcome.searchable(models=self._models) for outcome in found)
        self._say(f"{able} of {len(self._chosen)} files can be searched")
        if self._gpus and self._selection.suite.seed_kernel:
            seeded = [outcome.name for outcome in found if outcome.verified]
            measure_baselines(self._folder, seeded, self._target, self._workers, self._say)


def read_checked(folder: Path) -> dict[str, CheckOutcome]:
    """Returns the outcomes of the files checked so far, by name."""
    from fitness.suites.check import CheckOutcome

    known = {field.name for field in dataclasses.fields(CheckOutcome)}
    found = rows(folder / CHECKED, ("name", "stages"))
    return {row["name"]: CheckOutcome(**{k: v for k, v in row.items() if k in known}) for row in found}


def arriving(
    folder: Path, chosen: Sequence[SuiteFile], look: Callable[[], None], *, models: bool, wait: bool = True
) -> Iterator[Task | None]:
    """Yields the tasks of files as it is known that they can be searched; None while no other one is known.

    look: called while waiting for a file; raises if no other file will be checked.  models: whether searches ask
    models, so that tasks without a seed kernel can be searched, too.  wait: False: what is not checked yet is left out.
    """
    from fitness.tasks.task import load_task

    waiting = {source.name for source in chosen}
    while waiting:
        look()
        new = [outcome for name, outcome in read_checked(folder).items() if name in waiting]
        # The file that compiles longest begins: a search is serial, so a long one at the end would run alone.
        outcome = max(new, key=lambda outcome: outcome.seconds.get("compiled", 0.0), default=None)
        if outcome is None and not wait:
            return
        if outcome is None:
            yield None
            continue
        waiting.remove(outcome.name)
        if outcome.searchable(models=models):
            yield load_task(folder / TASKS / outcome.name, tried=True)  # when it was made


# --- PyTorch beside seed kernels --------------------------------------------------------------------------------------


def measure_baselines(folder: Path, names: Sequence[str], target: str, workers: int, say: Say) -> None:
    """Measures PyTorch's times beside the seed kernels, except those that an earlier call measured."""
    from fitness.frontend.target import get_target
    from fitness.suites.baselines import measure
    from fitness.tasks.task import load_task

    known = read_baselines(folder)
    unmeasured = [load_task(folder / TASKS / name, tried=True) for name in names if name not in known]
    with adding(folder / BASELINES) as add:
        kernels = [(task, task.needed_seed) for task in unmeasured]
        for timed in measure(kernels, get_target(target), workers) if unmeasured else ():
            task, found = timed.task, timed.baselines
            add({"kernel": task.name, "hash": task.hash, "baselines": [dataclasses.asdict(b) for b in found]})
            said = (f"{b.name} {b.us:.1f} us, {b.ratio:.2f}x" if not b.error else f"{b.name}: {b.error}" for b in found)
            say(f"{task.name:30} {found[0].seed_us:.1f} us; {'; '.join(said)}")


def read_baselines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the known times of PyTorch, by kernel."""
    return {row["kernel"]: row["baselines"] for row in rows(folder / BASELINES, ("kernel", "baselines"))}


# --- files of lines ---------------------------------------------------------------------------------------------------


def rows(path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Returns the rows that `adding` added.  A line that a kill cut off is left out: its work is done again.

    Raises StoreError for a line that is whole and has not all of `keys`.
    """
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        with suppress(json.JSONDecodeError):
            row = json.loads(text)
            if not isinstance(row, dict) or not set(keys) <= set(row):
                raise StoreError(
                    f"{path}, line {number}: expected {', '.join(keys)} as evo bench wrote them, got {text:.100}; "
                    f"delete the line, and what it was of is done again"
                )
            yield row


@contextmanager
def adding(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that adds a row to the file, at once."""
    with open(path, "a", encoding="utf-8") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):  # cut off by a kill
            file.write("\n")

        def add(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        yield add

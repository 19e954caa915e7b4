"""Checks a folder of measured results against its own data: statistics, figures of its document, champions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from analysis import campaign_report, outcomes, suite, suite_kernels
from analysis.comparison import compare
from evo.campaign.spec import FILE as CAMPAIGN
from evo.campaign.spec import read_plan
from evo.campaign.suite import FILE as SUITE
from evo.campaign.suite import read_settings
from evo.core.errors import EvoError
from evo.storage.best import EVIDENCE, best_source
from evo.storage.folders import FILE as STORE
from evo.storage.queries import RunReader

BEST_KERNEL = "best_kernel.py"  # the winner of a committed run, beside its store


class Agreement(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Reproduced:
    """The check of one thing.  `detail`: what differs, or why it could not be checked."""

    what: str
    outcome: Agreement
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome}: {self.what}" + (f": {self.detail}" if self.detail else "")


def stores(folder: Path) -> list[Path]:
    """Returns the folders of the runs in a folder, itself included."""
    return sorted(path.parent for path in folder.rglob(STORE))


def statistics(folder: Path) -> Iterator[Reproduced]:
    """Yields a check of each table that evo can make again from figures of runs: of variants, and of suites."""
    for path in sorted(folder.rglob(outcomes.FILE)):
        yield from _tables(path.parent)
    for path in sorted(folder.rglob(suite_kernels.FILE)):
        if (path.parent / "summary.md").exists():
            yield _text(path.parent / "summary.md", _summary(path.parent))


def _tables(folder: Path) -> Iterator[Reproduced]:
    try:
        comparison = compare(outcomes.load(folder / outcomes.FILE), tuple(read_plan(folder).variants))
    except (EvoError, ValueError) as error:
        yield Reproduced(str(folder / "tables.md"), Agreement.UNCHECKED, str(error))
        return
    missing = len(read_plan(folder).runs) - len(outcomes.load(folder / outcomes.FILE))
    made = {"tables.md": campaign_report.markdown(comparison), "tables.tex": campaign_report.latex(comparison)}
    for name, text in made.items():
        if (folder / name).exists():
            yield _text(folder / name, text, begins=name == "tables.md" and missing > 0)


def _summary(folder: Path) -> str:
    if (folder / SUITE).exists():
        settings = read_settings(folder)
        beside, of_suite = bool(settings["with_pytorch"]), True
    else:
        beside, of_suite = False, not (folder / CAMPAIGN).exists()
    return suite.summary(suite_kernels.read_kernels(folder / suite_kernels.FILE), with_pytorch=beside, suite=of_suite)


def _text(path: Path, computed: str, *, begins: bool = False) -> Reproduced:
    """Returns whether a file says what was computed; begins: it may say more at its end."""
    stated = path.read_text(encoding="utf-8")
    if stated == computed or (begins and stated.startswith(computed)):
        return Reproduced(str(path), Agreement.SAME)
    lines = zip(stated.splitlines(), computed.splitlines(), strict=False)
    old, new = next((pair for pair in lines if pair[0] != pair[1]), ("another number of lines", ""))
    return Reproduced(str(path), Agreement.DIFFERS, f"it says {old!r}, the data give {new!r}")


def document(folder: Path) -> Reproduced:
    """Returns a check of the figures that the README.md of a folder of `runs/reference` states."""
    from analysis.figures import marks

    path = folder / "README.md"
    if not path.exists() or not marks.count(path):
        return Reproduced(str(path), Agreement.UNCHECKED, "no figure of it is computed from data")
    if path.resolve() not in marks.documents():
        return Reproduced(str(path), Agreement.UNCHECKED, f"not in {marks.ROOT / marks.REFERENCE}")
    found = list(marks.differences(path.resolve()))
    if found:
        return Reproduced(f"figures of {path}", Agreement.DIFFERS, "; ".join(found))
    return Reproduced(f"{marks.count(path)} figures of {path}", Agreement.SAME, "its other numbers are not computed")


def champion(run: Path) -> Iterator[Reproduced]:
    """Yields checks of the files beside a store: the winner is the best trial, and the evidence speaks of it."""
    with RunReader(run) as reader:
        best = reader.best()
    if best is None:
        return
    kernel, evidence = run / BEST_KERNEL, run / EVIDENCE
    if kernel.exists():
        same = kernel.read_text(encoding="utf-8") == best_source(best)
        detail = "" if same else f"it is not the source of trial {best.index}, the best of the store"
        yield Reproduced(str(kernel), Agreement.SAME if same else Agreement.DIFFERS, detail)
    if evidence.exists():
        trial = json.loads(evidence.read_text(encoding="utf-8"))["trial"]
        detail = "" if trial == best.index else f"it speaks of trial {trial}, the best of the store is {best.index}"
        yield Reproduced(str(evidence), Agreement.DIFFERS if detail else Agreement.SAME, detail)

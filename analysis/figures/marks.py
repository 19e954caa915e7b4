"""Finds the figures of documents by their marks, and writes them again from the committed data.

A mark is a comment `figure: FOLDER.NAME`, the figure, and a comment `end`; FOLDER lies in `runs/reference`.  A table
stands between its comments on lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from analysis.figures import baselines, checker, estimate, programs, runner, searches, suites
from analysis.figures.text import Figures
from evo.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
REFERENCE = Path("runs", "reference")

OF_FOLDER: dict[str, Callable[[Path], Figures]] = {
    "tritonbench-g": suites.tritonbench_g,
    "kernelbench-level1": suites.seeds_beside_pytorch,
    "kernelbench-level1-rules": suites.searched,
    "kernelbench-level2-rules": suites.searched,
    "tritonbench-t": suites.searched,
    "kernelbench-claude": suites.kernelbench_claude,
    "tritonbench-claude": suites.tritonbench_claude,
    "checker": checker.checker,
    "programs": programs.programs,
    "h200-runner": runner.runner,
    "h200-estimate": estimate.estimate,
    "h200-baselines": baselines.beside,
    "h200-structural": searches.structural,
    "h200-claude": searches.with_a_model,
    "h200-claude-24": searches.with_a_model,
    "mcp-cross-entropy": searches.through_tools,
    "h200-ablation": searches.campaign,
    "h200-strategies": searches.campaign,
    "h200-surrogate": searches.campaign,
    "cpu-ablation": searches.campaign,
}

_OPENING = "<!-- figure: "
_MARK = re.compile(rf"{_OPENING}([\w-]+)\.([\w.-]+) -->(.*?)<!-- end -->", re.DOTALL)


def documents(root: Path = ROOT) -> list[Path]:
    """Returns the documents that may hold figures."""
    return sorted([root / "README.md", *root.glob("docs/*.md"), *(root / REFERENCE).glob("**/README.md")])


@cache
def figures(folder: Path) -> Figures:
    """Returns the figures of a folder of `runs/reference`.  Raises ConfigError if evo computes none of it."""
    if folder.name not in OF_FOLDER:
        raise ConfigError(f"expected a folder with figures ({', '.join(OF_FOLDER)}), got {folder.name}")
    return OF_FOLDER[folder.name](folder)


def rewritten(document: Path, root: Path = ROOT) -> str:
    """Returns the text of a document with all its figures computed again.

    Raises ConfigError if a mark does not end, or names a figure that does not exist.
    """
    text = document.read_text(encoding="utf-8")
    if text.count(_OPENING) != len(_MARK.findall(text)):
        raise ConfigError(
            f"{document}: expected <!-- figure: FOLDER.NAME -->...<!-- end -->, got a mark without an end"
        )

    def again(mark: re.Match[str]) -> str:
        known = figures(root / REFERENCE / mark[1])
        if mark[2] not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(f"{document}: expected a figure of {mark[1]} ({names}), got {mark[2]}")
        value = known[mark[2]]
        return f"{_OPENING}{mark[1]}.{mark[2]} -->" + (f"\n{value}\n" if "\n" in value else value) + "<!-- end -->"

    return _MARK.sub(again, text)


def count(document: Path) -> int:
    """Returns how many figures a document has."""
    return len(_MARK.findall(document.read_text(encoding="utf-8")))


def differences(document: Path, root: Path = ROOT) -> Iterator[str]:
    """Yields `FOLDER.NAME: got, expected` of each figure of a document that is not what its data say."""
    old = _MARK.findall(document.read_text(encoding="utf-8"))
    new = _MARK.findall(rewritten(document, root))
    for (folder, name, stated), (_, _, computed) in zip(old, new, strict=True):
        if stated != computed:
            yield f"{folder}.{name}: {_first_difference(stated.strip(), computed.strip())}"


def _first_difference(stated: str, computed: str) -> str:
    lines = zip_longest(stated.splitlines(), computed.splitlines(), fillvalue="")
    old, new = next((pair for pair in lines if pair[0] != pair[1]), ("another layout", "one value a mark"))
    return f"the document says {old!r}, the data say {new!r}"


def unmarked(document: Path) -> Iterator[str]:
    """Yields the numbers of a document's prose and tables with `×` or `%` after them that no mark computes.

    95 %, the level of intervals, is left out.
    """
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in re.finditer(r"\d[\d.,]* ?[×%](?<!95 %)(?! \d)", re.sub(r"`[^`\n]*`", "", _MARK.sub("", text))):
        yield found[0]

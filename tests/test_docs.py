"""README.md, ARCHITECTURE.md, CHANGELOG.md, CONTRIBUTING.md and docs/: what they name exists, what they show works.

Conventions: command lines stand in fenced blocks `console`, TOML in blocks `toml`.  Python stands in blocks `python`,
which are compiled, or `python run`, which are executed in a temporary folder with the repository's `runs` in it.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

from evo.cli.main import _parser

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
# Documents beside data and code, whose text is of the time at which something was measured: their links are checked.
LINKED = sorted(
    (*DOCUMENTS, *ROOT.glob("runs/**/README.md"), *ROOT.glob("analysis/**/*.md"), *ROOT.glob("tests/*/*.md"))
)
PACKAGES = ("evo", "operators", "fitness", "analysis")
CHECKED_FOLDERS = tuple(f for f in (*PACKAGES, "tests", "docs", "examples", "runs/reference") if (ROOT / f).is_dir())
# Options of other programs.
FOREIGN_OPTIONS = {"--clock-control", "--cap-add"}
# Groups of entry points, which look like modules.
ENTRY_POINTS = {f"evo.{kind}" for kind in ("operators", "strategies", "targets", "suites", "providers")}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.  `line`: of its first line of text."""

    document: Path
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.document)}:{self.line}"


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def split(document: Path) -> tuple[list[tuple[int, str]], list[Block]]:
    """The numbered lines of prose of a document, and its fenced blocks (which may be indented in a list)."""
    prose: list[tuple[int, str]] = []
    blocks: list[Block] = []
    fence, info, start, inside = "", "", 0, [""]
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        opened = re.match(r"\s*(`{3,}|~{3,})(.*)", line)
        if fence and line.strip() == fence:
            text = "\n".join(part.removeprefix(inside[0]) for part in inside[1:])
            blocks.append(Block(document, start, info, text + "\n"))
            fence = ""
        elif fence:
            inside.append(line)
        elif opened:
            fence, info, start = opened[1], opened[2].strip(), number + 1
            inside = [line[: len(line) - len(line.lstrip())]]
        else:
            prose.append((number, line))
    assert not fence, f"{name(document)}:{start}: the block does not end"
    return prose, blocks


def blocks_of(*infos: str) -> list[Block]:
    return [block for document in DOCUMENTS for block in split(document)[1] if block.info in infos]


def code_spans(document: Path) -> Iterator[tuple[int, str]]:
    """The texts in backticks, with their lines."""
    for number, line in split(document)[0]:
        for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", line):
            yield number, found[1].replace("\\|", "|").strip()


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    found = set()
    for _, line in split(document)[0]:
        if heading := re.match(r"#+\s+(.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return found


# --- links and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", LINKED, ids=name)
def test_every_link_leads_somewhere(document: Path) -> None:
    lost = []
    for number, line in split(document)[0]:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            led = (document.parent / path).resolve() if path else document
            if not led.exists() or (anchor and anchor not in anchors(led)):
                lost.append(f"{name(document)}:{number}: {target}")
    assert not lost


def path_problem(span: str) -> str:
    """What is wrong with a path of this repository in backticks; "" for nothing, and for any other text."""
    if not re.fullmatch(r"[\w.*\-/]+", span) or not span.startswith(tuple(f"{f}/" for f in CHECKED_FOLDERS)):
        return ""
    return "" if any(ROOT.glob(span.rstrip("/"))) else f"no file or folder {span}"


def module_problem(span: str) -> str:
    """The same of a text that is a module, or a name in one: modules are read, not imported."""
    if not re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", span) or span in ENTRY_POINTS:
        return ""
    parts = span.split(".")
    path = ROOT / parts.pop(0)
    while parts and ((path / parts[0]).is_dir() or (path / f"{parts[0]}.py").is_file()):
        path /= parts.pop(0)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not parts:
        return "" if file.is_file() else f"no module {span}"
    if path == ROOT / "evo":
        return ""  # the library: `test_the_library_has_the_names_of_the_documents`
    return "" if parts[0] in defined(file) else f"no {parts[0]} in {name(file)}"


def defined(file: Path) -> set[str]:
    """The names that a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_and_modules_exist(document: Path) -> None:
    problems = [
        f"{name(document)}:{number}: {problem}"
        for number, span in code_spans(document)
        if (problem := path_problem(span) or module_problem(span))
    ]
    assert not problems


def test_a_name_that_does_not_exist_is_found() -> None:
    assert path_problem("fitness/frontend/gate.py") == module_problem("analysis.load") == ""
    assert path_problem("fitness/frontend/gates.py") and path_problem("docs/images/*.gif")
    assert module_problem("analysis.benchmarks.bench_nothing") and module_problem("analysis.unload")


@pytest.mark.skipif(not (ROOT / "evo" / "api.py").exists(), reason="the library is not part of evo yet")
def test_the_library_has_the_names_of_the_documents() -> None:
    import evo

    code = [block.text for block in blocks_of("python", "python run")]
    spans = [span for document in DOCUMENTS for _, span in code_spans(document)]
    used = {found for text in (*code, *spans) for found in re.findall(r"(?<![\w/.])evo\.([A-Za-z_]\w*)", text)}
    modules = {path.stem for path in (ROOT / "evo").iterdir()}
    groups = {group.removeprefix("evo.") for group in ENTRY_POINTS}
    assert not {attribute for attribute in used - modules - groups if not hasattr(evo, attribute)}


def test_documents_that_code_names_exist() -> None:
    files = [
        path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".j2", ".html")
    ]
    named = {found for path in files for found in re.findall(r"\bdocs/[\w\-]+\.md", path.read_text(encoding="utf-8"))}
    assert named and not [path for path in named if not (ROOT / path).is_file()]


# --- command lines ----------------------------------------------------------------------------------------------------


def commands(parser: argparse.ArgumentParser, prefix: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, e.g. "suite check"."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield f"{prefix}{word}", below
                yield from commands(below, f"{prefix}{word} ")


COMMANDS = dict(commands(_parser()))
OPTIONS = {
    command: {o for a in parser._actions if a.help != argparse.SUPPRESS for o in a.option_strings}
    for command, parser in COMMANDS.items()
}
ALL_OPTIONS = set().union(*OPTIONS.values()) | {"--version"}


def command_lines() -> Iterator[tuple[Block, list[str]]]:
    """The words of each command line shown, without those of a virtual environment's folder."""
    for block in blocks_of("console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield block, [words[0].removeprefix(".venv/bin/"), *words[1:]]


def test_every_command_line_parses() -> None:
    parser, wrong, count = _parser(), [], 0
    for block, words in command_lines():
        arguments = words[3:] if words[:3] == ["python", "-m", "evo"] else words[1:] if words[0] == "evo" else None
        if arguments is None:
            continue
        count += 1
        try:
            parser.parse_args(arguments)
        except SystemExit:
            wrong.append(f"{block}: {' '.join(words)}")
    assert not wrong and count > 40


def test_modules_and_targets_of_other_command_lines_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block, words in command_lines():
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), f"{block}: no module {words[2]}"
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets), f"{block}: {words}"


def span_problem(span: str) -> str:
    """What is wrong with a command or an option in backticks; "" for nothing, or if it is neither."""
    words = span.partition(" -- ")[0].split()  # after that stands a program of the user's
    if words[0].startswith("--"):
        option = re.split(r"[=\s]", span)[0]
        return "" if option in ALL_OPTIONS | FOREIGN_OPTIONS else f"no option {option}"
    if words[0] != "evo" or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
        return ""
    command = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
    if command not in COMMANDS:
        return f"no command evo {command}"
    unknown = [word for word in words if word.startswith("--") and word.rstrip(",") not in OPTIONS[command]]
    return f"evo {command} has no {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_and_options_in_the_text_exist(document: Path) -> None:
    problems = [
        f"{name(document)}:{number}: {problem}"
        for number, span in code_spans(document)
        if (problem := span_problem(span))
    ]
    assert not problems


def test_a_command_that_does_not_exist_is_found() -> None:
    assert span_problem("evo run --budget 3") == span_problem("evo suite check") == span_problem("--gpus all") == ""
    assert span_problem("evo walk") and span_problem("evo run --fast") and span_problem("--fast")


def test_every_command_and_option_is_documented() -> None:
    text = "\n".join(span for document in ROOT.glob("docs/*.md") for _, span in code_spans(document))
    missing = [command for command in COMMANDS if f"evo {command}" not in text and command != "suite"]
    missing += [
        o for o in ALL_OPTIONS if o.startswith("--") and o != "--help" and not re.search(rf"{o}(?![\w-])", text)
    ]
    assert not missing


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks_of("python", "python run"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", blocks_of("python run"), ids=str)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").symlink_to(ROOT / "runs")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "document"})


@pytest.mark.parametrize("block", blocks_of("toml"), ids=str)
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


def test_blocks_say_what_they_are() -> None:
    known = ("console", "text", "python", "python run", "toml", "bibtex")
    assert not [str(block) for document in DOCUMENTS for block in split(document)[1] if block.info not in known]


# --- README -----------------------------------------------------------------------------------------------------------


def test_readme_and_architecture_are_short() -> None:
    for document, most in ((ROOT / "README.md", 130), (ROOT / "ARCHITECTURE.md", 150)):
        assert len(document.read_text(encoding="utf-8").splitlines()) <= most, document.name


def test_pictures_are_small() -> None:
    pictures = [path for path in (ROOT / "docs" / "images").iterdir() if path.suffix == ".png"]
    assert pictures and all(path.stat().st_size < 200_000 for path in pictures)

"""What an answer keeps of its parents by name, and what a prompt shows of a source."""

import runpy

import pytest

from evo.core.records import candidate_id
from operators.base import Draft
from operators.llm.base import Unreadable
from operators.llm.keep import fill_in, shown
from operators.registry import LLM_OPERATORS
from tests.llm_support import OTHER, SOURCE, parent, parents_of

A = """import math
import torch
import triton
import triton.language as tl

SCALE = 2
UNUSED = 3


class Config:
    pass


@triton.jit
def helper(v):
    return v * SCALE


@triton.jit
def kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, helper(tl.load(x + i)))


def entry(x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, B=math.prod(x.shape))
    return y


def dead(x):
    return Config()
"""
KERNEL = A[A.index("@triton.jit\ndef kernel") : A.index("\n\ndef entry")].rstrip()
NEW = (
    "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(x, y, B: tl.constexpr):\n"
    "    i = tl.arange(0, B)\n    tl.store(y + i, tl.load(x + i) * 2)\n\n\n# keep: entry\n"
)


def test_a_kept_function_brings_what_it_needs_and_no_more(tmp_path):
    filled = fill_in(NEW, [A])
    assert isinstance(filled, str) and "keep" not in filled
    assert "def entry(x):" in filled and "import math" in filled and "import torch" in filled
    assert filled.count("def kernel") == 1 and "* 2)" in filled  # the answer's own
    assert "helper" not in filled and "Config" not in filled and filled.count("import triton\n") == 1
    (tmp_path / "filled.py").write_text(filled)  # Triton reads the source of kernels from their file
    assert callable(runpy.run_path(str(tmp_path / "filled.py"))["entry"])


def test_several_names_are_kept_where_the_lines_stand():
    filled = fill_in(
        "import torch\nimport triton\n\n# keep: `kernel`, SCALE\n\n\ndef entry(x):\n    return "
        "kernel\n\n# Keep: Config.\n",
        [A],
    )
    assert isinstance(filled, str)
    assert KERNEL in filled and "def helper" in filled and "class Config" in filled
    assert filled.count("SCALE = 2") == 1 and filled.count("import triton.language as tl") == 1
    assert filled.index("SCALE") < filled.index("def kernel") < filled.index("def entry") < filled.index("class Config")


def test_code_that_keeps_nothing_stays_as_it_is():
    for code in ("x = (\n", SOURCE, "def f():\n    # keep: g\n    pass\n", "# I keep: everything simple\n"):
        assert fill_in(code, [A]) == code


@pytest.mark.parametrize(
    ("code", "parents", "reason"),
    [
        ("# keep: no_such\n", [A], "no kernel defines no_such; they define Config, SCALE, UNUSED, dead, entry"),
        ("# keep: entry\ndef entry(x):\n    return x\n", [A], "the answer defines entry too"),
        ("# keep: entry\n", [A, A.replace("return y", "return  y")], "differently; write A.entry or B.entry"),
        ("# keep: C.entry\n", [A], "there is no kernel C"),
        ("# keep: entry\n", [], "no kernel defines entry; they define nothing"),
        ("# keep: entry\n", ["def entry(:"], "no kernel defines entry; they define nothing"),
        ("# keep: entry\nx = (\n", [A], "cannot be parsed"),
        ("# keep: torch\n", [A], "no kernel defines torch"),
    ],
)
def test_what_is_not_clear_is_unreadable(code, parents, reason):
    found = fill_in(code, parents)
    assert isinstance(found, Unreadable) and reason in found.reason


def test_a_sentence_that_begins_with_keep_is_a_comment():
    sentence = "# keep: how many sixteenths of the output stay in the cache."
    code = NEW.replace("# keep: entry\n", f"{sentence}\n# keep: entry\n")
    filled = fill_in(code, [A])
    assert isinstance(filled, str) and sentence in filled and "def entry(x):" in filled
    assert fill_in(NEW.replace("keep: entry", "keep: helper entry"), [A]).count("def ") == 3


def test_of_two_kernels_a_letter_chooses_and_equal_definitions_need_none():
    other = A.replace("return y", "return y * 1")
    assert "return y * 1" in fill_in("# keep: B.entry\n", [A, other])
    assert "return y * 1" not in fill_in("# keep: A.entry\n", [A, other])
    assert KERNEL in fill_in("# keep: kernel\n", [A, other])


def test_imports_come_after_those_of_the_future():
    filled = fill_in('"""Text."""\nfrom __future__ import annotations\n\n# keep: entry\n', [A])
    assert filled.startswith('"""Text."""\nfrom __future__ import annotations\nimport ')


@pytest.mark.parametrize("name", ["mutate", "repair", "explore"])
def test_answers_may_keep_functions_of_the_parent(name):
    code = SOURCE[: SOURCE.index("def double(x)")].replace("v * 2", "v + v") + "# keep: double\n"
    draft = LLM_OPERATORS[name].read(f"Add.\n```python\n{code}```\n", parents_of(name))
    assert isinstance(draft, Draft)
    assert candidate_id(draft.source) == candidate_id(SOURCE.replace("v * 2", "v + v"))


def test_a_crossover_keeps_of_both():
    parents = [parent(3, SOURCE), parent(5, OTHER.replace("v * 2", "v + v"))]
    draft = LLM_OPERATORS["crossover"].read("Both.\n```python\n# keep: A.double, B.double_kernel\n```\n", parents)
    assert isinstance(draft, Draft)
    assert "BLOCK=256" in draft.source and "BLOCK=1024" not in draft.source
    assert draft.source.count("def double_kernel") == 1


def test_a_file_that_keeps_all_is_the_parent_unchanged():
    found = LLM_OPERATORS["mutate"].read("No.\n```python\n# keep: double\n```\n", parents_of("mutate"))
    assert isinstance(found, Unreadable) and "unchanged" in found.reason


def test_what_the_entry_does_not_use_is_not_shown():
    text = shown(A, "entry")
    assert text.endswith("# Left out, because `entry` does not use it: UNUSED, Config, dead\n")
    assert "def dead" not in text and "class Config" not in text and KERNEL in text and "SCALE = 2" in text
    assert [line for line in text.split("\n") if line] != [line for line in A.split("\n") if line]
    assert all(line in A for line in text.split("\n")[:-2])
    assert shown(SOURCE, "double") == SOURCE and shown("def f(:", "f") == "def f(:" and shown(A, "gone") == A

"""Search/replace blocks: applied where there is one place for them, refused with the reason everywhere else."""

import pytest

from operators.llm.base import Unreadable
from operators.llm.edits import Edits, apply_edits, has_edits, read_edits, write_edits

SOURCE = """def f(x):
    a = 1
    if x:
        b = 2
    return a


def g(x):
    a = 1
    return b
"""


def block(search, replace):
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def edited(*blocks, source=SOURCE):
    read = read_edits("Plan.\n" + "".join(blocks))
    assert isinstance(read, Edits), read
    return apply_edits(source, read.edits)


def test_one_place_is_replaced():
    assert edited(block("        b = 2", "        b = 3")) == SOURCE.replace("b = 2", "b = 3")


def test_edits_see_what_those_before_them_did():
    twice = edited(block("        b = 2", "        b = 3"), block("        b = 3\n    return a", "    return b"))
    assert twice == SOURCE.replace("        b = 2\n    return a", "    return b")


def test_lines_are_removed_and_added():
    assert edited(block("    a = 1\n    if x:\n        b = 2", "    a = 2")).count("\n") == SOURCE.count("\n") - 2
    assert edited(block("    return b\n", "")) == SOURCE.replace("    return b\n", "")
    assert "# one\n# two\n" in edited(block("def g(x):", "# one\n# two\ndef g(x):"))


def test_space_at_the_ends_of_lines_does_not_count():
    assert edited(block("    if x:  \n        b = 2\t", "    if x:\n        b = 4")) == SOURCE.replace("b = 2", "b = 4")
    assert edited(
        block("    if x:\n        b = 2", "    b = 4"), source=SOURCE.replace("x:\n        b", "x: \n        b")
    )


def test_another_indentation_is_mended_in_the_replacement_too():
    assert edited(block("if x:\n    b = 2", "if x:\n    b = 5\n    c = 6")) == SOURCE.replace(
        "        b = 2\n", "        b = 5\n        c = 6\n"
    )
    deeper = block("            b = 2\n        return a", "            b = 7\n        return a")
    assert edited(deeper) == SOURCE.replace("b = 2", "b = 7")


def test_marks_are_read_as_models_write_them():
    text = "Plan\n```python\n<<<<<<< SEARCH\r\n    return b\r\n=======\r\n    return a\r\n>>>>>>> REPLACE\r\n```"
    assert has_edits(text)
    read = read_edits(text)
    assert isinstance(read, Edits)
    assert text[slice(*read.span)].startswith("<<<<<<< SEARCH") and text[slice(*read.span)].endswith("REPLACE\r")
    assert apply_edits(SOURCE, read.edits) == SOURCE.replace("return b", "return a")
    assert not has_edits("a << SEARCH\n")


REFUSED = {
    "several places": (block("    a = 1", "    a = 2"), "found at 2 places; add lines"),
    "no place": (block("    c = 1", "    c = 2"), "edit 1: its lines (`c = 1`) are not in the file"),
    "several places, otherwise indented": (block("a = 1", "a = 2"), "otherwise indented, at 2 places"),
    "part of a line": (block("b = ", "c = "), "not in the file"),
    "other indentation within": (block("    if x:\n    b = 2", "    pass"), "not in the file"),
    "nothing": (block("", "    a = 2"), "searches for nothing"),
    "blank lines": (block("\n  \n", "    a = 2"), "searches for nothing"),
    "second edit": (block("        b = 2", "        b = 3") * 2, "edit 2: its lines (`b = 2`) are not in the file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_applied_without_guessing_is_refused(name):
    text, reason = REFUSED[name]
    result = edited(text)
    assert isinstance(result, Unreadable)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<<<<<<< SEARCH\n    a = 1\n", "edit 1 has no line `=======`"),
        ("<<<<<<< SEARCH\n    a = 1\n=======\n    a = 2\n", "edit 1 has no line `>>>>>>> REPLACE`"),
        (block("a", "b") + "<<<<<<< SEARCH\n    a = 1\n=======\n    a", "edit 2 has no line `>>>>>>> REPLACE`"),
        ("<<<<<<< SEARCH\na\n=======\nb\n" + block("c", "d"), "edit 1 is not closed"),
    ],
)
def test_what_was_cut_off_is_refused(text, reason):
    result = read_edits(text)
    assert isinstance(result, Unreadable)
    assert reason in result.reason


def test_written_edits_make_the_result():
    for result in (
        SOURCE.replace("b = 2", "b = 3"),
        SOURCE.replace("a = 1", "a = 7"),  # twice
        SOURCE.replace("return b", "return a"),  # found twice without the lines around it
        SOURCE.replace("    a = 1\n    return b\n", "    return 1\n"),
        "import os\n" + SOURCE,
    ):
        text = write_edits(SOURCE, result)
        assert text is not None and text.startswith("<<<<<<< SEARCH\n") and text.endswith("\n>>>>>>> REPLACE")
        assert edited(text) == result
    assert write_edits(SOURCE, SOURCE.replace("b = 2", "b = 3")).count("SEARCH") == 1


def test_what_edits_cannot_say_is_not_written():
    assert write_edits(SOURCE, SOURCE) is None
    assert write_edits(SOURCE, SOURCE.replace("    a = 1", '    a = """\n>>>>>>> REPLACE\n"""')) is None

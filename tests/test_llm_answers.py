"""Answers as models write them: which block is taken, what is refused and why, and where the parts lie."""

import pytest

from operators.llm.answers import NOTE_CHARACTERS, ParsedAnswer, hint_of, note_of, take_apart
from operators.llm.base import Unreadable

CODE = "import triton\n\n\n@triton.jit\ndef k(x):\n    pass\n"
PLAN = "Load 16 bytes at once."

# How the code is fenced -> the answer around it.
READABLE = {
    "python": f"{PLAN}\n\n```python\n{CODE}```\n",
    "py": f"{PLAN}\n```py\n{CODE}```",
    "capital": f"{PLAN}\n```Python\n{CODE}```",
    "python3": f"{PLAN}\n```python3\n{CODE}```",
    "triton": f"{PLAN}\n```triton\n{CODE}```",
    "no language": f"{PLAN}\n```\n{CODE}```",
    "space before the language": f"{PLAN}\n``` python\n{CODE}```",
    "attributes": f'{PLAN}\n```python title="kernel.py"\n{CODE}```',
    "braces": f"{PLAN}\n```{{.python}}\n{CODE}```",
    "tildes": f"{PLAN}\n~~~python\n{CODE}~~~",
    "long fence": f"{PLAN}\n`````python\n{CODE}`````",
    "Windows line ends": f"{PLAN}\n```python\n{CODE}```\n".replace("\n", "\r\n"),
    "spaces after the fence": f"{PLAN}\n```python  \n{CODE}```  \n",
    "blank lines inside": f"{PLAN}\n```python\n\n\n{CODE}\n\n```\n",
    "in a list": f"{PLAN}\n   ```python\n" + "".join(f"   {r}\n" if r else "\n" for r in CODE.split("\n")) + "   ```\n",
    "text behind": f"{PLAN}\n```python\n{CODE}```\nThis is faster because loads are wide.\n",
    "reasoning before": f"<think>\nMaybe\n```python\nx = 1\n```\nno.\n</think>\n{PLAN}\n```python\n{CODE}```",
    "reasoning without its opening tag": f"Let me see ```a```.\n</think>\n\n{PLAN}\n```python\n{CODE}```",
    "reasoning by another name": f"<reasoning>hm</reasoning>{PLAN}\n```python\n{CODE}```",
    "another language first": f"{PLAN}\n```bash\npip install triton\n```\n```python\n{CODE}```",
    "Markdown around all": f"```markdown\n{PLAN}\n```python\n{CODE}```\n```",
    "inline code in the plan": f"{PLAN}\n```not a fence``` here\n```python\n{CODE}```",
}


@pytest.mark.parametrize("name", READABLE)
def test_the_code_is_found(name):
    answer = READABLE[name]
    found = take_apart(answer)
    assert isinstance(found, ParsedAnswer), found
    assert found.code == CODE
    assert found.plan.startswith(PLAN)
    assert answer[slice(*found.plan_span)] == found.plan
    spanned = answer[slice(*found.code_span)].replace("\r", "").strip("\n")
    assert [row.strip() for row in spanned.split("\n")] == [row.strip() for row in CODE.strip("\n").split("\n")]
    assert found.plan_span[1] <= found.code_span[0]


def test_the_last_block_with_a_kernel_is_taken():
    helper, first = "def helper():\n    return 1\n", CODE.replace("def k", "def draft")
    answer = f"Plan.\n```python\n{first}```\nBetter:\n```python\n{CODE}```\nUse:\n```python\n{helper}```\n"
    found = take_apart(answer)
    assert isinstance(found, ParsedAnswer) and found.code == CODE
    assert found.plan.endswith("Better:")
    without = take_apart(f"```python\n{helper}```\n```python\nx = 1\n```")
    assert isinstance(without, ParsedAnswer) and without.code == "x = 1\n"


def test_code_without_a_fence_is_taken_where_nothing_else_is_there():
    found = take_apart(f"<think>hm</think>\n{CODE}")
    assert isinstance(found, ParsedAnswer) and found.code == CODE and found.plan == ""


UNREADABLE = {
    "": "empty",
    " \n": "empty",
    "<think>I would load": "within its reasoning",
    "<think>all</think>\n  ": "nothing but reasoning",
    "I cannot help with that.": "no block of code",
    f"{PLAN}\n```python\n{CODE}": "never closed",
    f"{PLAN}\n```python\n{CODE}``": "never closed",
    f"{PLAN}\n````python\n{CODE}```\n": "never closed",
    "Use CUDA:\n```cpp\nint main() {}\n```": "languages: cpp",
    "Here:\n```python\n\n```": "no block of Python code",
    "x = 1\n": "no block of code",
}


@pytest.mark.parametrize("answer", UNREADABLE)
def test_what_is_refused_says_why(answer):
    found = take_apart(answer)
    assert isinstance(found, Unreadable)
    assert UNREADABLE[answer] in found.reason


@pytest.mark.parametrize(
    ("plan", "note"),
    [
        ("PLAN: wider loads", "wider loads"),
        ("**Plan:** wider loads\nmore", "wider loads"),
        ("## Plan\n\nwider loads", "wider loads"),
        ("Hint: wider-loads\nwider loads now", "wider loads now"),
        ("- wider loads", "wider loads"),
        ("", ""),
        ("a " * 400, "a " * (NOTE_CHARACTERS // 2 - 2) + "..."),
    ],
)
def test_the_note_is_the_first_line_that_says_something(plan, note):
    assert note_of(plan) == note


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        ("Wider.\nHint: wider-loads", "wider-loads"),
        ("**Hint:** `wider-loads`", "wider-loads"),
        ("hint: [occupancy]", "occupancy"),
        ("The hint that helps is clear", ""),
        ("Hint: none", ""),
    ],
)
def test_the_hint_followed_is_read(plan, hint):
    assert hint_of(plan) == hint

"""Records refuse to be inconsistent; a candidate's name depends on its code alone."""

from pathlib import Path

import pytest

from evo.core import records
from evo.core.records import (
    Candidate,
    Evaluation,
    Hint,
    Profile,
    Proposal,
    Verdict,
    candidate_id,
    profile_from_json,
    profile_to_json,
    surely_faster,
)

SOURCE = 'def f(x):\n    text = """a\n\n  # no comment  \n"""\n    return f"{x!r:>{8}} # {text}"\n'


def test_comments_blank_lines_and_trailing_space_do_not_count():
    noisy = "# head\n\n" + SOURCE.replace("def f(x):\n", "def f(x):  # why\n\n    # and so\n") + "   \n"
    assert candidate_id(noisy) == candidate_id(SOURCE)


@pytest.mark.parametrize(
    "old, new", [("x!r", "x!s"), ("# no", "# a"), ("a\n\n", "a\n"), ("f(x)", "f(y)"), ("comment  ", "comment ")]
)
def test_everything_else_counts(old, new):
    assert old in SOURCE
    assert candidate_id(SOURCE.replace(old, new)) != candidate_id(SOURCE)


def test_the_name_is_the_same_in_every_version_of_python():
    assert candidate_id(SOURCE) == "980c88cc82ad2f02"


PLAIN = (
    '"""Of one line."""\nimport os  # why\n\n\ndef f(x):   \n    """Of\n    several  \n\n    # lines"""  # not this\n'
    '    y = (\'#\', x,   # one\n\n         \'"""\', -float("inf"))\n    return y\n'
)


def test_most_sources_need_no_tokens_to_be_named():
    root = Path(__file__).parent.parent
    files = [path for top in ("fitness", "operators", "tests") for path in sorted((root / top).rglob("*.py"))]
    sources = [PLAIN, *(path.read_text(errors="replace") for path in files)]
    quick = {source: text for source in sources if (text := records._bare_at_a_glance(source)) is not None}
    assert PLAIN in quick and len(quick) > len(sources) / 4
    for source, text in quick.items():
        assert text == records._bare(source), source


@pytest.mark.parametrize("source", ["x = f'{y}#'\n", "x = 1 \\\n# 2\n", "x = 1\r# 2\n", "x = (\n", "x = '''\n"])
def test_where_a_glance_is_not_enough_tokens_are_asked(source):
    assert records._bare_at_a_glance(source) is None


def test_what_is_not_python_is_named_by_its_text():
    assert candidate_id("def (") != candidate_id("def ( ")


def test_a_candidate_cannot_carry_the_name_of_another():
    with pytest.raises(ValueError, match="not that of its source"):
        Candidate("x = 1\n", id="0" * 16)


def test_facts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="earlier proposals"):
        Proposal(1, Candidate("x = 1\n"), "params", parents=(1,))
    with pytest.raises(ValueError, match="needs builds"):
        Evaluation("x", Verdict.OK, "done")
    with pytest.raises(ValueError, match="needs a message"):
        Evaluation("x", Verdict.WRONG, "verify")
    with pytest.raises(ValueError, match="tier must be one of ncu, counters-free, estimate, got 'guess'"):
        Profile("guess", "memory", "because", {})


def test_a_profile_survives_its_json():
    profile = Profile("ncu", "memory", "why", {"DRAM, % of peak": 91.5}, 0.8, hints=(Hint("wider", "load more"),))
    assert profile_from_json(profile_to_json(profile)) == profile


def test_the_numbers_of_a_profile_keep_their_order():
    profile = Profile("ncu", "memory", "why", {"z": 1.0, "a": 2.0})
    assert list(profile_from_json(profile_to_json(profile)).numbers) == ["z", "a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("params", records.OperatorRef("params")),
        ("mutate@gpt", records.OperatorRef("mutate", "gpt")),
        ("mutate@", records.OperatorRef("mutate", "")),
    ],
)
def test_an_operator_survives_its_text(text: str, expected: records.OperatorRef) -> None:
    found = records.OperatorRef.parse(text)
    assert (found, str(found), found.asks) == (expected, text, "@" in text)


def test_the_texts_of_run_folders_say_why_a_run_stopped() -> None:
    # Run folders hold these texts: a change of one would make earlier runs unreadable.
    final = ["budget spent", "search space exhausted", "limit on tokens or dollars reached"]
    left = [
        "interrupted", "no model answers", "proposed", "all of the budget is proposed",
        "nothing new can be made of what is known", "nothing is pending",
    ]  # fmt: skip
    for text in (*final, *left):
        found = records.StopReason.parse(text)
        assert (str(found), found.final) == (text, text in final)
    own = records.StopReason.parse("the arbiter ended the path after 3 rounds")
    assert own is records.StopReason.STRATEGY and own.final


def test_only_a_measured_difference_can_be_insignificant() -> None:
    def timing(estimated: bool, terms: dict[str, float]) -> records.Timing:
        return records.Timing("case", (1.0,), (2.0,), 2.0, (1.9, 2.1), estimated, terms)

    assert not timing(False, {"counts": 0.0}).significant
    assert timing(False, {"counts": 1.0}).significant
    assert timing(False, {}).significant  # runs of before it was stored
    assert timing(True, {"counts": 0.0}).significant


def test_a_speedup_is_surely_above_another_one_beyond_both_intervals() -> None:
    assert surely_faster(1.02, 1.01, 1.0, 1.0) and not surely_faster(1.02, 0.79, 1.0, 1.0)
    assert not surely_faster(1.02, 1.01, 1.0, 1.1)  # the other one may be as fast
    # Half widths of log 1.1 each: the ratio has to exceed 1.1 to the power of the root of 2, which is 1.144.
    assert surely_faster(1.15, 1.15 / 1.1, 1.0, 1.1) and not surely_faster(1.14, 1.14 / 1.1, 1.0, 1.1)
    assert surely_faster(None, 1.0, 1.0, 1.0) is None and surely_faster(2.0, 2.0, None, 1.0) is None
    assert not surely_faster(2.0, 0.0, 1.0, 1.0)

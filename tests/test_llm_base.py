"""Prompts, contexts and their hashes."""

import random

import pytest

from operators.llm.base import LlmContext, Message, Prompt, TaskFacts


def test_the_hash_of_a_prompt_is_that_of_its_messages():
    one = Prompt("mutate", (Message("system", "a"), Message("user", "b")))
    assert one.hash == Prompt("explore", one.messages).hash
    assert len(one.hash) == 64
    others = [(Message("system", "ab"), Message("user", "")), (Message("user", "a"), Message("system", "b"))]
    assert one.hash not in {Prompt("mutate", messages).hash for messages in others}


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="role must be one of system, user, assistant, got 'tool'"):
        Message("tool", "x")
    task = TaskFacts("t", "f")
    with pytest.raises(ValueError, match="guidance must be one of digest, raw, none, got 'all'"):
        LlmContext(random.Random(0), task, {}, (), "3.6.0", guidance="all")
    with pytest.raises(ValueError, match="answer must be one of rewrite, edits, got 'diff'"):
        LlmContext(random.Random(0), task, {}, (), "3.6.0", answer="diff")

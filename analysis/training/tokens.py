"""Computes the advantage of each token for TritonRL's hierarchical GRPO (arXiv 2510.17891).

An answer gets two rewards: r_speed for its plan, r_correct for its code (`evo.core.rewards`).  Each is compared within
the group of answers to one prompt, so an answer has two advantages, and a token has that of its part:

    A_t = ALPHA x A_plan   if the token belongs to the plan,
          A_code           otherwise.

Every token belongs to one of both.  The plan's are those before the end of the plan, reasoning included.  All others
are the code's: its fences, what stands behind it, and the token that ends the answer.  An answer that holds no code has
no plan either; so its missing code costs all of its tokens their full weight.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from evo.core.rewards import advantages

Decode = Callable[[Sequence[int]], str]


def plan_length(decode: Decode, tokens: Sequence[int], text: str, spans: Mapping[str, tuple[int, int]]) -> int:
    """Returns how many tokens of a completion, the first ones, belong to the plan.

    decode: makes a text of tokens.  text: the completion that was rewarded, which the decoded tokens contain.
    spans: the characters of "plan" and "code" in `text`, empty for a text without code (`evo.Reward.spans`).
    The tokens themselves are decoded, for a text may be split into other tokens than those that a model sampled.
    A token that holds the end of the plan and what follows is the code's.  Raises ValueError if `text` is another one.
    """
    if not spans:
        return 0
    start = decode(tokens).rfind(text)
    if start < 0:
        raise ValueError("expected the rewarded text within the decoded tokens, but it is not there")
    end = start + spans["plan"][1]
    return bisect_right(range(len(tokens) + 1), end, key=lambda count: len(decode(tokens[:count]))) - 1


def group_advantages(rewards: Sequence[float], size: int) -> list[float]:
    """Returns the advantages of answers, `size` of them a group; 0 for a reward that is not known (nan).

    Unknown rewards have no part in the mean and the standard deviation of their group, as in TRL's GRPOTrainer.
    """
    found = [0.0] * len(rewards)
    for first in range(0, len(rewards), size):
        known = [i for i in range(first, first + size) if not math.isnan(rewards[i])]
        for i, advantage in zip(known, advantages([rewards[i] for i in known]), strict=True):
            found[i] = advantage
    return found


def token_advantages(plan: float, code: float, plan_tokens: int, length: int, alpha: float) -> list[float]:
    """Returns the advantage of each of `length` tokens, the first `plan_tokens` of which belong to the plan."""
    return [alpha * plan] * plan_tokens + [code] * (length - plan_tokens)

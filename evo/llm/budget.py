"""Enforces hard limits on tokens and dollars.

Each request reserves the most it can cost before it is sent, and its bill replaces the reservation afterwards.  So
bills never exceed the limits, whatever is in flight.  A request whose bill never came (a timeout, a dropped connection,
a killed process) stays charged with its reservation: it may have been paid for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from evo.core.models import Bill, Model
from operators.llm.base import Message

# A token of a byte-level vocabulary is at least one byte of text, so bytes bound tokens.  A chat template adds roles
# and perhaps a default system prompt to the messages: tens of tokens, for which this leaves room.
TEMPLATE_TOKENS = 256


def most(model: Model, messages: Sequence[Message]) -> Bill:
    """Returns the largest possible bill of one request; zero for a mailbox, which is free."""
    if model.provider == "mailbox":
        return Bill(0, 0, 0.0)
    tokens_in = sum(len(m.text.encode("utf-8", "replace")) for m in messages) + TEMPLATE_TOKENS
    return Bill(tokens_in, model.max_tokens, model.usd(tokens_in, model.max_tokens))


class ModelBudget:
    """Counts tokens and dollars that are spent or reserved, for several threads.  None: no limit."""

    def __init__(self, max_tokens: int | None = None, max_usd: float | None = None) -> None:
        self._max_tokens, self._max_usd = max_tokens, max_usd
        self._tokens = 0  # spent and reserved
        self._usd = 0.0
        self._lock = threading.Lock()

    def reserve(self, bill: Bill) -> bool:
        """Reserves the largest possible bill of a request; False if the limits have no room for it."""
        with self._lock:
            tokens = self._tokens + bill.tokens_in + bill.tokens_out
            usd = self._usd + (bill.usd or 0.0)
            if self._max_tokens is not None and tokens > self._max_tokens:
                return False
            if self._max_usd is not None and usd > self._max_usd:
                return False
            self._tokens, self._usd = tokens, usd
            return True

    def settle(self, reserved: Bill, bill: Bill) -> None:
        """Replaces a reservation by the bill."""
        self.charge(Bill(-reserved.tokens_in, -reserved.tokens_out, None if reserved.usd is None else -reserved.usd))
        self.charge(bill)

    def charge(self, bill: Bill) -> None:
        """Adds a bill, whatever the limits are."""
        with self._lock:
            self._tokens += bill.tokens_in + bill.tokens_out
            self._usd += bill.usd or 0.0

    @property
    def tokens(self) -> int:
        """Spent and reserved."""
        return self._tokens

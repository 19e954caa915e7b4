"""Enforces hard limits on tokens and dollars.

Each request reserves the most it can cost before it is sent, and its bill replaces the reservation afterwards.  So
bills never exceed the limits, whatever is in flight.  A request whose bill never came (a timeout, a dropped connection,
a killed process) stays charged with its reservation: it may have been paid for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from evo.core.models import Bill, Model
from evo.storage.ledger import TOKENS, USD, Account
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
    """Counts tokens and dollars that are spent or reserved, for several threads.  None: no limit.

    account: of a run of a campaign, whose limits hold too.
    """

    def __init__(
        self, max_tokens: int | None = None, max_usd: float | None = None, account: Account | None = None
    ) -> None:
        self._max_tokens, self._max_usd, self._account = max_tokens, max_usd, account
        self._tokens = 0  # spent and reserved
        self._usd = 0.0
        self._lock = threading.Lock()

    def reserve(self, bill: Bill, *, wait: bool = False) -> bool:
        """Reserves the largest possible bill of a request; False if the limits have no room for it.

        wait: waits while other runs of the campaign may give room back.
        """
        if not self._reserve(bill):
            return False
        if self._account is None or self._account.reserve(_amounts(bill), wait=wait):
            return True
        self.charge(_negative(bill))
        return False

    def _reserve(self, bill: Bill) -> bool:
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
        self.charge(_negative(reserved))
        self.charge(bill)
        if self._account is not None:
            self._account.settle(_amounts(reserved), _amounts(bill))

    def keep(self, reserved: Bill) -> None:
        """Counts a reservation as spent: its bill will not come."""
        if self._account is not None:
            self._account.settle(_amounts(reserved), _amounts(reserved))

    def charge(self, bill: Bill) -> None:
        """Adds a bill of an earlier process, whatever the limits are; the campaign knows it."""
        with self._lock:
            self._tokens += bill.tokens_in + bill.tokens_out
            self._usd += bill.usd or 0.0

    @property
    def waiting(self) -> bool:
        """Whether the campaign's limits may have room later, for they are not reached."""
        return self._account is not None and not self._account.full

    @property
    def tokens(self) -> int:
        """Spent and reserved."""
        return self._tokens


def _amounts(bill: Bill) -> dict[str, float]:
    return {TOKENS: bill.tokens_in + bill.tokens_out, USD: bill.usd or 0.0}


def _negative(bill: Bill) -> Bill:
    return Bill(-bill.tokens_in, -bill.tokens_out, None if bill.usd is None else -bill.usd)

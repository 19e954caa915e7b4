"""What a test server answers (`analysis.benchmarks.endpoint`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from analysis.benchmarks.endpoint import Reply

KEY = "sk-this-is-the-secret-key"


def in_turn(*replies: Reply) -> Callable[[dict[str, Any], int], Reply]:
    """Each reply once, the last for all further requests."""
    return lambda body, number: replies[min(number, len(replies) - 1)]


def error(status: int, message: str, **more: Any) -> Reply:
    return Reply(status, body=json.dumps({"error": {"message": message, **more}}).encode(), tokens=None)

"""Takes a candidate from source to verdict: gate, record, compile, screen, then estimate or time, and verify.

`from fitness import Case` is the one import a task needs.
"""

from evo.core.records import Case

__all__ = ["Case"]

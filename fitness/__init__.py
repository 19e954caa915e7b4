"""From a candidate's source to a verdict: gate, record, compile, screen, then estimate and verify without a GPU, or
verify and time on one.

`from fitness import Case` is the one import a task needs.
"""

from evo.core.records import Case

__all__ = ["Case"]

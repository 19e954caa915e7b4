"""From a candidate's source to a verdict: gate, record, screen, verify, estimate.

`from fitness import Case` is the one import a task needs.
"""

from evo.records import Case

__all__ = ["Case"]

"""Profiles of candidates, as facts in the run's store: written by the worker that evaluates, beside the search."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from evo.core.records import Profile, profile_to_json
from evo.storage.schema import connect_to_write


class ProfileLog:
    """Writes profiles to the run in `folder`, which this process writes.  A context manager, for one thread."""

    def __init__(self, folder: Path) -> None:
        self._db = connect_to_write(folder)

    def has(self, candidate: str) -> bool:
        """Return whether a profile of the candidate (its id) is stored."""
        query = "SELECT 1 FROM profiles WHERE candidate = ?"
        return self._db.execute(query, (candidate,)).fetchone() is not None

    def add(self, candidate: str, profile: Profile) -> None:
        row = (candidate, profile.tier, profile_to_json(profile), time.time())
        self._db.execute("INSERT INTO profiles VALUES (?, ?, ?, ?)", row)

    def failed(self, candidate: str, error: str) -> None:
        """Store why there is no profile of a candidate."""
        text = f"candidate {candidate}: {error}"
        self._db.execute("INSERT INTO events VALUES (NULL, 'unprofiled', ?, ?)", (text, time.time()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

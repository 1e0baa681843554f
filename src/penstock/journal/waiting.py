"""How long changes wait in a journal: the age of the oldest one after a position."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from pathlib import Path

from penstock.errors import JournalError
from penstock.journal.reader import JournalTail

EVERY = 3.0
"""Seconds between looks at the journal."""
_READ = 64 << 10


class Waiting:
    """The age of what waits for one destination, for who asks often; any thread.

    What comes first after a position never changes once it is there: from then on only the clock is read.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._looked_at = -math.inf
        self._position: int | None = None
        self._since: float | None = None
        self._tail: JournalTail | None = None

    def age(self, position: int) -> float:
        """Seconds since the oldest change after the position became durable; 0 when there is none, or that cannot be told.

        What has moved shows after `EVERY` seconds at the latest.
        """
        with self._lock:
            is_known = self._since is not None and position == self._position
            if not is_known and time.monotonic() - self._looked_at >= EVERY:
                self._look(position)
                self._looked_at = time.monotonic()
            return max(0.0, time.time() - self._since) if self._since is not None else 0.0

    def close(self) -> None:
        """Gives back the file, and looks no more."""
        with self._lock:
            self._looked_at = math.inf
            self._forget()

    def _look(self, position: int) -> None:
        if position != self._position:
            self._forget()
        self._position, self._since = position, None
        # It stays open while nothing waits: the next look reads what is new, not the segment from its beginning.
        self._tail = self._tail or JournalTail(self._journal, position)
        try:
            found = self._tail.read(_READ)
        except (JournalError, OSError):
            self._forget()
            return
        if found:
            self._since = found[0].appended_at / 1e6
            self._forget()

    def _forget(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def age_after(journal: Path, position: int) -> float | None:
    """Seconds since the oldest change after a position became durable; 0 when there is none, None when that cannot be told."""
    with contextlib.closing(JournalTail(journal, position)) as tail:
        try:
            found = tail.read(_READ)
        except (JournalError, OSError):
            return None
    return max(0.0, time.time() - found[0].appended_at / 1e6) if found else 0.0

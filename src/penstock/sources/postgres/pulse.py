"""The pulse: whether the server at the other end of a quiet replication stream is still there."""

from __future__ import annotations

import time

from penstock.errors import SourceUnreachable
from penstock.sources.postgres.conninfo import Where
from penstock.sources.postgres.control import Control

_READER = "SELECT s.active_pid FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %(slot)s"


class Pulse:
    """Notes when something was last heard; a silent server is asked over the other connection before it is given up."""

    def __init__(self, control: Control, slot: str, where: Where, limit: float) -> None:
        self._control, self._slot, self._where, self._limit = control, slot, where, limit
        self._heard_at = self._asked_at = self._checked_at = time.monotonic()
        self._reader = self._active()

    def heard(self) -> None:
        """Something has come."""
        self._heard_at = self._asked_at = self._checked_at = time.monotonic()

    def is_silent_for(self, seconds: float) -> bool:
        """Whether so long has passed since something was heard or this was last true: time to ask for a word."""
        seconds = min(seconds, self._limit / 3)
        if time.monotonic() - self._asked_at < seconds:
            return False
        self._asked_at = time.monotonic()
        return True

    def check(self) -> None:
        """SourceUnreachable when nothing was heard for the limit and the server no longer has our walsender, or no answer."""
        now = time.monotonic()
        if now - self._checked_at < self._limit:
            return
        self._checked_at = now
        # A walsender that works through a large transaction it will not send can be silent for long, and is no reason to go.
        if self._active() != self._reader:
            raise SourceUnreachable(
                f"{self._where.address} has sent nothing for {now - self._heard_at:.0f} s, and has given the stream up.",
                remedy="Nothing to do: the worker connects again. If it repeats, look at the network between the two.",
            )

    def _active(self) -> int | None:
        rows = self._control.rows(_READER, {"slot": self._slot})
        return rows[0]["active_pid"] if rows else None

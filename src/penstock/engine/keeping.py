"""The journal's keeper: trims it, and when it is full and cannot be trimmed does what the flow's rules say."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from penstock.engine.loops import Loops
from penstock.engine.pressure import Relief, Standing, relief
from penstock.engine.supervisor import CaptureSupervisor
from penstock.journal.retention import journal_size, trim

_log = structlog.get_logger()

TRIM_INTERVAL = 10.0
LOOK = 0.2
"""Seconds between looks, however often the worker is woken."""
GLANCE = 1.0
"""The same while there is more room in the journal than a source fills meanwhile."""
ROOM = 1 << 30


class JournalKeeper:
    """Used by one thread, in the rhythm of the worker's own watch."""

    def __init__(self, journal: Path, loops: Loops, supervisor: CaptureSupervisor) -> None:
        self._journal, self._loops, self._supervisor = journal, loops, supervisor
        self._holding = False
        self._trimmed_at = self._looked_at = 0.0
        self._size = 0

    def look(self, *, paused: bool = False) -> None:
        """Trims the journal, from time to time and when it is full; a full one that cannot be trimmed is the policy's.

        While the flow is paused nobody is given up for being behind: the source is not read instead.
        """
        rules = self._loops.flow.config.journal
        if time.monotonic() - self._looked_at < (LOOK if self._holding or self._size + ROOM > rules.max_bytes else GLANCE):
            return
        self._looked_at = time.monotonic()
        self._size = size = journal_size(self._journal)
        full = size > rules.max_bytes
        if full or time.monotonic() - self._trimmed_at >= TRIM_INTERVAL:
            self._trimmed_at = time.monotonic()
            kept = [loop.needed() for loop in self._loops if not loop.is_released()]
            removed = trim(self._journal, min(kept, default=0), rules.retention, rules.max_bytes)
            if removed:
                _log.info("journal trimmed", segments=len(removed))
                size = journal_size(self._journal)
        self._relieve(size, paused)

    def _relieve(self, size: int, paused: bool) -> None:
        standings = [Standing(loop.status.name, loop.status.position, loop.is_idle(), loop.is_released()) for loop in self._loops]
        act = relief(self._loops.flow, size, standings, self._holding)
        if paused and act.give_up is not None:
            act = Relief(True)
        if act.hold != self._holding:
            self._holding = act.hold
            self._supervisor.hold(act.hold)
            if act.hold:
                _log.warning("journal full, the source is not read until destinations have caught up", bytes=size)
            else:
                _log.info("journal has room, the source is read again", bytes=size)
        if act.give_up is not None:
            next(loop for loop in self._loops if loop.status.name == act.give_up.facts["destination"]).give_up(act.give_up)

"""The planner: which slices make the next epoch of a destination."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.journal.reader import JournalTail
from penstock.journal.record import Slice, SliceFlag

_READ_BYTES = 256 << 10
SMALL_BYTES = 1 << 20
"""Epochs below this use one lane: sharing out costs more than it saves."""


@dataclass(frozen=True)
class Limits:
    """When an epoch is full, and how long the first change waits for company."""

    max_rows: int
    max_bytes: int
    max_wait: float
    parallelism: int
    record_empty: bool = False
    """A stretch without changes is an epoch of its own."""
    truncates_alone: bool = False
    """Whether an epoch with a TRUNCATE is for one lane only: no lane could tell when the others have sent what comes before."""


@dataclass(frozen=True)
class Plan:
    """Slices that belong together: whole transactions, at most one schema change, at its beginning."""

    slices: Sequence[Slice]
    mark: int = 0
    """Where it ends when it has no slices: a stretch of the log that holds nothing."""

    @property
    def upto(self) -> int:
        """The position of the last transaction."""
        return self.slices[-1].last if self.slices else self.mark

    @property
    def changes(self) -> int:
        """How many changes it holds."""
        return sum(s.changes for s in self.slices)

    @property
    def brings_schema(self) -> bool:
        """Whether it begins with a new table version."""
        return any(s.flags & SliceFlag.SCHEMA for s in self.slices)

    def buckets(self, parallelism: int, *, truncates_alone: bool = False) -> int:
        """How many lanes share it: one when it is small, or when a row changes its key and may take columns along."""
        alone = SliceFlag.KEY_CHANGE | SliceFlag.TRUNCATE if truncates_alone else SliceFlag.KEY_CHANGE
        if any(s.flags & alone for s in self.slices):
            return 1
        return parallelism if sum(s.size for s in self.slices) >= SMALL_BYTES else 1


class Planner:
    """Follows the journal from a position and cuts it into epochs; a span that was planned before is found again."""

    def __init__(self, directory: Path, after: int, limits: Limits) -> None:
        self._tail = JournalTail(directory, after)
        self._limits = limits
        self._waiting: deque[Slice] = deque()
        self._bytes = self._changes = 0

    @property
    def mark(self) -> int:
        """Up to where the journal is complete."""
        return self._tail.mark

    @property
    def idle_mark(self) -> int:
        """How far the journal is complete, when nothing of it waits here; else 0."""
        return 0 if self._waiting else self._tail.mark

    @property
    def waiting_since(self) -> float | None:
        """When the oldest waiting change became durable (Unix time), None when none waits."""
        return self._waiting[0].appended_at / 1e6 if self._waiting else None

    def read(self) -> None:
        """Takes in what the journal has now, as far as one epoch can use it."""
        while self._bytes < 2 * self._limits.max_bytes and self._changes < 2 * self._limits.max_rows:
            found = self._tail.read(_READ_BYTES)
            if not found:
                return
            self._take(found)

    def _take(self, found: Sequence[Slice]) -> None:
        self._waiting.extend(found)
        self._bytes += sum(s.size for s in found)
        self._changes += sum(s.changes for s in found)

    def _give(self, count: int) -> Plan:
        plan = Plan([self._waiting.popleft() for _ in range(count)])
        self._bytes -= sum(s.size for s in plan.slices)
        self._changes -= plan.changes
        return plan

    def backlog(self) -> int:
        """Bytes that wait now, as far as one epoch can use them."""
        self.read()
        return self._bytes

    def again(self, upto: int) -> Plan | None:
        """The span that ends at `upto`, planned before; None while the journal does not show all of it."""
        while not self._waiting or (self._waiting[-1].last < upto and self._tail.mark < upto):
            found = self._tail.read()
            if not found:
                break
            self._take(found)
        mine = [s for s in self._waiting if s.last <= upto]
        if not mine and self._tail.mark >= upto:
            return Plan((), upto)
        return self._give(len(mine)) if mine and mine[-1].last == upto else None

    def nothing(self, after: int) -> Plan | None:
        """An epoch without changes, where the journal shows that there are none past the position; None when it does not yet."""
        return Plan((), self.idle_mark) if self.idle_mark > after else None

    def next(self) -> Plan | None:
        """The next epoch, if it is full or its first change has waited long enough."""
        self.read()
        count, full = self._cut()
        if not count:
            return None
        if not full and self.seconds_left() > 0:
            return None
        return self._give(count)

    def seconds_left(self) -> float:
        """How long the next epoch may still wait for company; a long time when nothing waits."""
        if not self._waiting:
            return 3600.0
        return self._waiting[0].appended_at / 1e6 + self._limits.max_wait - time.time()

    def close(self) -> None:
        """Gives back the journal's files."""
        self._tail.close()

    def _cut(self) -> tuple[int, bool]:
        """How many slices make an epoch now, and whether more of them could not join it."""
        rows = size = count = 0
        for i, s in enumerate(self._waiting):
            begins = not s.flags & SliceFlag.PIECE or (s.ordinal == 0 and (i == 0 or self._waiting[i - 1].last != s.last))
            if begins:
                if rows >= self._limits.max_rows or size >= self._limits.max_bytes:
                    return count, True
                if count and s.flags & SliceFlag.SCHEMA:
                    return count, True
            rows += s.changes
            size += s.size
            if not s.flags & SliceFlag.PIECE or s.flags & SliceFlag.LAST_PIECE:
                count = i + 1
        return count, rows >= self._limits.max_rows or size >= self._limits.max_bytes

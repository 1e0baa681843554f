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
# Flags of slices as plain numbers: an operation of IntFlag takes 5 µs, and an epoch asks dozens of times.
_PIECE, _LAST_PIECE, _SCHEMA = int(SliceFlag.PIECE), int(SliceFlag.LAST_PIECE), int(SliceFlag.SCHEMA)
_KEY_CHANGE, _TRUNCATE = int(SliceFlag.KEY_CHANGE), int(SliceFlag.TRUNCATE)


@dataclass(frozen=True)
class Limits:
    """When an epoch is full, and how long the first change waits for company."""

    max_rows: int
    max_bytes: int
    max_wait: float
    parallelism: int
    record_empty: bool = False
    """A stretch without changes is an epoch of its own."""
    stages: bool = False
    """Whether what lanes do can be seen by nobody before its commit, so that they need not wait for the plan to be durable."""
    truncates_alone: bool = False
    """Whether an epoch with a TRUNCATE is for one lane only: no lane could tell when the others have sent what comes before."""
    splits: bool = False
    """Whether an epoch may end inside of a transaction, where that has grown past the limits."""


@dataclass(frozen=True)
class Plan:
    """Slices that belong together: whole transactions, at most one schema change, at its beginning; or parts of a big one."""

    slices: Sequence[Slice]
    mark: int = 0
    """Where it ends when it has no slices (a stretch of the log that holds nothing), or ends inside of a transaction."""
    part: int = 0
    """How many changes of the transaction that follows are in it or before it, when it ends inside of that."""
    beyond: tuple[Slice, ...] = ()
    """The last piece of that transaction when lanes need it: it names parts that were rolled back, and holds no changes."""

    @property
    def upto(self) -> int:
        """The position of the last whole transaction."""
        return self.slices[-1].last if self.slices and not self.part else self.mark

    @property
    def changes(self) -> int:
        """How many changes it holds."""
        return sum(s.changes for s in self.slices)

    @property
    def brings_schema(self) -> bool:
        """Whether it begins with a new table version."""
        return any(s.flags & _SCHEMA for s in self.slices)

    def buckets(self, parallelism: int, *, truncates_alone: bool = False) -> int:
        """How many lanes share it: one when it is small, or when a row changes its key and may take columns along."""
        alone = _KEY_CHANGE | _TRUNCATE if truncates_alone else _KEY_CHANGE
        if any(s.flags & alone for s in self.slices):
            return 1
        return parallelism if sum(s.size for s in self.slices) >= SMALL_BYTES else 1


class Planner:
    """Follows the journal from a position and cuts it into epochs; a span that was planned before is found again."""

    def __init__(self, directory: Path, after: int, limits: Limits, part: int = 0) -> None:
        """`part` is how many changes of the transaction that follows `after` are not wanted any more."""
        self._tail = JournalTail(directory, after)
        self._limits = limits
        self._reached, self._part = after, part
        self._waiting: deque[Slice] = deque()
        self._bytes = self._changes = 0
        self._since = 0.0

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
        if self._part:
            # The transaction's pieces stand in one note.
            begun, part = found[0].last, self._part
            last = SliceFlag.LAST_PIECE
            found = [s for s in found if s.last != begun or s.ordinal + s.changes > part or s.flags & last]
            self._part = 0
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.extend(found)
        self._bytes += sum(s.size for s in found)
        self._changes += sum(s.changes for s in found)

    def _give(self, count: int, part: int = 0) -> Plan:
        """The first slices; `part` is where they end inside of a transaction, when that is known."""
        slices = [self._waiting.popleft() for _ in range(count)]
        self._since = time.monotonic()
        self._bytes -= sum(s.size for s in slices)
        self._changes -= sum(s.changes for s in slices)
        last = slices[-1]
        if not last.flags & SliceFlag.PIECE or last.flags & SliceFlag.LAST_PIECE:
            self._reached = last.last
            return Plan(slices)
        reached = last.ordinal + last.changes
        self._reached = max((s.last for s in slices if s.last < last.last), default=self._reached)
        if part and part < reached:
            # A journal that was made anew has other pieces: the next epoch has the rest of this one.
            self._take([last])
            self._waiting.rotate(1)
        beyond = (self._ending(last),) if last.flags & SliceFlag.PARTLY_GONE else ()
        return Plan(slices, self._reached, part or reached, beyond)

    def _ending(self, piece: Slice) -> Slice:
        """The last piece of a transaction, which waits."""
        return next(s for s in self._waiting if s.last == piece.last and s.flags & SliceFlag.LAST_PIECE)

    def backlog(self) -> int:
        """Bytes that wait now, as far as one epoch can use them."""
        self.read()
        return self._bytes

    def again(self, upto: int, part: int = 0) -> Plan | None:
        """The span that ends at `upto`, planned before; None while the journal does not show all of it.

        `part` is how many changes of the transaction that follows belong to it.
        """
        # The transaction that follows may stand behind marks of an idle source.
        end, known = (upto + 1, False) if part else (upto, self._tail.mark >= upto)
        while not self._waiting or (self._waiting[-1].last < end and not known):
            found = self._tail.read()
            if not found:
                break
            self._take(found)
            known = not part and self._tail.mark >= upto
        mine = [s for s in self._waiting if s.last <= upto]
        if part:
            following = next((s.last for s in self._waiting if s.last > upto), 0)
            mine += [s for s in self._waiting if s.last == following and s.ordinal < part]
            if not following:
                return None
            return self._give(len(mine), part) if mine else Plan((), upto, part)
        if not mine and self._tail.mark >= upto:
            return Plan((), upto)
        return self._give(len(mine)) if mine and (mine[-1].last == upto or self._tail.mark >= upto) else None

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
        waited = time.time() - self._waiting[0].appended_at / 1e6
        # The wall clock may jump back; nothing waits longer than it may since it was seen here.
        return self._limits.max_wait - max(waited, time.monotonic() - self._since)

    def close(self) -> None:
        """Gives back the journal's files."""
        self._tail.close()

    def _cut(self) -> tuple[int, bool]:
        """How many slices make an epoch now, and whether more of them could not join it."""
        rows = size = count = 0
        for i, s in enumerate(self._waiting):
            begins = not s.flags & _PIECE or (s.ordinal == 0 and (i == 0 or self._waiting[i - 1].last != s.last))
            full = rows >= self._limits.max_rows or size >= self._limits.max_bytes
            if full and self._limits.splits and not begins and s.changes:
                return i, True
            if begins:
                if full:
                    return count, True
                if count and s.flags & _SCHEMA:
                    return count, True
            rows += s.changes
            size += s.size
            if not s.flags & _PIECE or s.flags & _LAST_PIECE:
                count = i + 1
        return count, rows >= self._limits.max_rows or size >= self._limits.max_bytes

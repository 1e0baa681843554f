"""Moments of the source that loads show: which snapshot, where in the log, and from which position on it may miss something."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.errors import JournalTrimmed, ReadStopped, SourceFailed
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source
from penstock.sources.chunks import ChunkReader

PATIENCE = 120.0
"""Seconds that the journal has to reach a moment of the source."""


@dataclass(frozen=True)
class Moment:
    """A snapshot that readers can be given."""

    name: str
    described: str
    position: int
    low: int
    alive: Callable[[], bool]
    close: Callable[[], None]


@dataclass(frozen=True)
class Mark:
    """How far the journal was complete at some time, and up to where every snapshot of then and later shows all of it."""

    position: int
    settled: int


class Moments:
    """Takes moments and compares them with the journal; used by the loading thread."""

    def __init__(
        self,
        journal: Path,
        chunks: Callable[[], ChunkReader],
        mark: Callable[[], int],
        probe: Callable[[], None],
        first: Moment | None,
    ) -> None:
        """`mark` says how far the journal is complete, `probe` asks for a fresh mark; `first` came with the slot."""
        # Made when a table is first read: what reads chunks needs a compiler, and most starts read none.
        self._journal, self._chunks, self._probe = journal, functools.cache(chunks), probe
        self._mark = mark
        self._settled = 0
        self._first = first
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Nothing is waited for any more."""
        self._stopping.set()

    def first(self, load: Load) -> Moment | None:
        """The moment at which the flow's slot was made, for its first load, while it can be read."""
        found, self._first = (self._first, None) if load.kind == "first" else (None, self._first)
        return found if found is not None and found.alive() else None

    def mark(self) -> Mark:
        """How far things are now, for snapshots that are taken after this."""
        return Mark(self._mark(), self._settled)

    def take(self, source: Source, floor: int) -> Moment:
        """A new moment, and from where on the journal has changes that it may not show."""
        mark = self.mark()
        hold = source.hold_snapshot()
        try:
            low = self._low(mark, hold.described, floor)
        except BaseException:
            hold.close()
            raise
        return Moment(hold.name, hold.described, hold.position, low, hold.alive, hold.close)

    def running(self, moment: Moment) -> list[int]:
        """The transactions that had begun then and are not in it."""
        return self._chunks().running(moment.described)

    def shown(self, load: Load, moment: Moment | None, mark: Mark, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """A reader's receipt as the ledger keeps it, with the moment that the chunk shows; `mark` is that of before it."""
        kept = {"id": receipt["id"], "rows": receipt["rows"], "bytes": receipt["bytes"], "file": receipt["file"]}
        if load.kind == "backfill":
            low = self._low(mark, receipt["described"], load.low)
            return {**kept, "snapshot": receipt["described"], "position": receipt["position"], "low": low}
        position, low = (moment.position, moment.low) if moment is not None else (load.position, load.low)
        return {**kept, "snapshot": receipt["described"], "position": position, "low": low}

    def touched(self, load: Load, table: TableSchema, read: Sequence[LoadChunk], new: Moment) -> list[pa.RecordBatch] | None:
        """The keys touched between the moment that the table's chunks show and a new one; None when it must be read anew."""
        old = min(read, key=lambda c: c.position)
        self._reach(new.position)
        slices = self._span(min(old.low, old.position), new.position)
        keys = []
        journal = SliceReader(self._journal)
        try:
            names = (table.schema, table.name)
            for step in self._chunks().touched(journal, slices, *names, outside=old.snapshot or "", inside=new.described):
                if step.truncated or not step.keys.num_columns:
                    return None
                keys.append(step.keys)
        finally:
            journal.close()
        return keys

    def _low(self, mark: Mark, described: str, floor: int) -> int:
        """Everything up to there is shown by a snapshot that was taken when the journal was complete up to `mark`.

        A commit can be in the journal before other sessions see it, or before a standby has it, so the journal is looked
        through. What one snapshot shows, later ones show: no part of it is looked through for every chunk.
        """
        begin = max(floor, mark.settled) or None
        try:
            missing = self._missing(begin, mark.position, described)
        except JournalTrimmed:
            if floor:
                raise
            # Nothing keeps the journal for a load that is only being planned: what there is still is looked through.
            missing = self._missing(None, mark.position, described)
        low = mark.position if missing is None else min(mark.position, missing - 1)
        self._settled = max(self._settled, low)
        return low

    def _missing(self, after: int | None, upto: int, described: str) -> int | None:
        """Where the first transaction of the journal committed that a snapshot does not show."""
        journal = SliceReader(self._journal)
        try:
            return self._chunks().first_outside(journal, self._span(after, upto), described)
        finally:
            journal.close()

    def _reach(self, position: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._mark() < position:
            if time.monotonic() > deadline:
                raise SourceFailed(f"the journal has not reached {format_lsn(position)} in {PATIENCE:.0f} s")
            self._probe()
            if self._stopping.wait(0.1):
                raise ReadStopped("the flow is being stopped")

    def _span(self, after: int | None, upto: int) -> list[Slice]:
        tail = JournalTail(self._journal, after)
        try:
            found: list[Slice] = []
            while more := tail.read():
                found += more
                if more[-1].last > upto:
                    break
            return [s for s in found if s.first <= upto]
        finally:
            tail.close()

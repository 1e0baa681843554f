"""What one destination takes beside the stream: chunks of loads, and the changes that a table has missed while it was loaded.

Such an epoch stands where the destination stands and does not move it. A table that is being loaded for the first time is left
out of the stream until it is live; a live table that is being backfilled goes on streaming, and of its chunks only rows are
taken that no streamed change has touched since they were read.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.errors import DestinationFailed
from penstock.journal.chunks import chunk_path
from penstock.journal.reader import JournalTail
from penstock.journal.record import Slice, SliceFlag
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Entry, Load, LoadChunk

_log = structlog.get_logger()

ORDINAL_BITS = 40
"""The rows of a chunk are numbered behind its own number, so that no two rows at one position share an ordinal."""
EPOCH_BYTES = 72 << 20
"""Bytes of chunks for one epoch: readers go on while it is delivered, and the next ones are there when it is."""
Table = tuple[str, str]


@dataclass(frozen=True)
class Side:
    """An epoch beside the stream: what the ledger keeps of it, and the slices of the journal that it needs."""

    work: Mapping[str, Any]
    slices: Sequence[Slice]
    tables: Sequence[TableSchema]
    rows: int
    size: int

    @property
    def moves_keys(self) -> bool:
        """Whether a row changes its key in it, or a table is emptied."""
        return any(s.flags & (SliceFlag.KEY_CHANGE | SliceFlag.TRUNCATE) for s in self.slices)


class Intake:
    """Used by the destination's own thread; only `notice` may be called by others."""

    def __init__(self, ledger: Ledger, flow: str, generation: int, destination: str, journal: Path, max_bytes: int) -> None:
        self._ledger, self._flow, self._generation, self._destination = ledger, flow, generation, destination
        self._journal, self._max_bytes = journal, max_bytes
        self._stale = threading.Event()
        self._stale.set()
        self._entries: list[Entry] = []
        self._loads: dict[int, Load] = {}
        self._chunks: dict[int, list[LoadChunk]] = {}
        self._left: dict[int, list[LoadChunk]] = {}
        self.busy = True
        """Whether a load of this destination is not over; for any thread."""
        self.ended: set[int] = set()
        """Loads whose end the destination has been told in this run; for any thread."""
        self.begun: set[int] = set()
        """Loads that it has been told of; for any thread."""
        self._owed: int | None = None
        self._needed: int | None = None

    def notice(self) -> None:
        """Something about loads has changed in the ledger."""
        self._stale.set()

    def refresh(self) -> None:
        """Reads anew what has changed."""
        if not self._stale.is_set():
            return
        self._stale.clear()
        try:
            self._read()
        except BaseException:
            # A ledger that does not answer leaves what was known before, and that it has to be asked again.
            self._stale.set()
            raise
        unfinished = [e for e in self._entries if e.state != "live"]
        running = [n for n, load in self._loads.items() if load.wish == "running"]
        untold = [n for n in running if self._is_untold(self._loads[n])]
        waits = any(e.state == "catching" or e.load in running for e in unfinished)
        self.busy = bool(untold) or waits or any(self._left[n] for n in running)
        self._owed = min((e.cursor_at for e in unfinished if e.cursor_at), default=None)
        lows = [load.low for load in self._loads.values() if load.low]
        self._needed = min([*lows, *([self._owed] if self._owed is not None else [])], default=None)

    def _read(self) -> None:
        """What the ledger has now, taken over all together when all of it is there."""
        loads = self._ledger.loads
        entries, found = self._waiting()
        chunks = {number: loads.chunks(number) for number in found}
        had = {number: loads.delivered(number).get(self._destination, set()) for number in found}
        self._entries, self._loads, self._chunks = entries, found, chunks
        self._left = {number: [c for c in chunks[number] if c.id not in had[number]] for number in found}

    def _waiting(self) -> tuple[list[Entry], dict[int, Load]]:
        """The entries, and the open loads that bring something: no table is left out of the stream for any other.

        One that has ended, or goes on, since the destination was out of the flow brings nothing: its tables are loaded anew.
        """
        loads = self._ledger.loads
        for _ in range(3):
            entries = loads.entries(self._flow, self._destination)
            found = {load.id: load for load in loads.open(self._flow) if load.takes(self._destination)}
            if all(e.state != "loading" or e.load in found for e in entries):
                return entries, found
            # Looked at again in one transaction: a load may have ended between these two questions.
            who = str(Holder.here())
            if tables := self._ledger.partaking.begin_again(self._flow, self._generation, self._destination, who):
                names = ", ".join(".".join(name) for name in tables[:8])
                _log.warning(
                    "tables are loaded anew: their load went on without the destination",
                    destination=self._destination,
                    count=len(tables),
                    tables=names,
                )
        raise DestinationFailed(f"{self._destination}: tables wait for a load that is over", destination=self._destination)

    def _is_untold(self, load: Load) -> bool:
        """Whether the destination has to be told that it begins or ends."""
        begins = load.state != "requested" and load.id not in self.begun
        return begins or (load.state == "delivering" and load.id not in self.ended)

    def told(self, load: Load, *, end: bool) -> None:
        """The destination knows of the load's beginning, or of its end."""
        (self.ended if end else self.begun).add(load.id)
        self._stale.set()

    @property
    def holds_stream(self) -> bool:
        """Whether the stream has to wait: the flow's first load is not over here."""
        self.refresh()
        first = {number for number, load in self._loads.items() if load.kind == "first"}
        return any(e.state == "loading" and e.load in first for e in self._entries)

    def settled(self, position: int) -> int:
        """Up to where every change has been delivered, those of tables that are being loaded included; for any thread."""
        owed = self._owed
        return position if owed is None else min(position, owed)

    def needed(self, position: int) -> int:
        """After which position the journal must still be there; for any thread."""
        needed = self._needed
        return position if needed is None else min(position, needed)

    def filters(self, after: int) -> dict[str, Any]:
        """What an epoch of the stream that begins after a position leaves out; empty when that is nothing."""
        self.refresh()
        without = [[e.schema, e.table] for e in self._entries if e.state != "live"]
        since = [[e.schema, e.table, e.snapshot, e.until] for e in self._entries if e.state == "live" and e.until > after]
        return {name: value for name, value in (("without", without), ("since", since)) if value}

    def next(self, position: int) -> Side | None:
        """The next epoch beside the stream for a destination that stands there, if there is one now."""
        self.refresh()
        for number, load in self._loads.items():
            if load.wish != "running" or load.state == "requested":
                continue
            if (side := self._chunks_of(load, position)) is not None:
                return side
            if load.state == "delivering" and number in self.ended:
                self._settle(load, position)
        return self._catch_up(position)

    def next_chunks(self, position: int, taken: Collection[int]) -> Side | None:
        """The next chunks for a destination that stands there and will have those that are taken; None where other loads wait."""
        self.refresh()
        running = [load for load in self._loads.values() if load.wish == "running"]
        if len(running) != 1 or running[0].state == "requested":
            return None
        return self._chunks_of(running[0], position, taken)

    def _chunks_of(self, load: Load, position: int, taken: Collection[int] = ()) -> Side | None:
        left = [c for c in self._left[load.id] if c.id not in taken]
        due = [c for c in left if self._is_due(load, c, position)]
        # What empties its table comes before all else of it, whichever reader was done first.
        unread = {(c.schema, c.table) for c in left if c.content.get("empties") and c not in due}
        group = self._group(load, [c for c in due if (c.schema, c.table) not in unread])
        return self._chunk_side(load, group, position) if group else None

    def beginning(self) -> Iterator[tuple[Load, str, list[TableSchema]]]:
        """Loads that are planned, and of which the destination has not been told in this run."""
        self.refresh()
        for number, load in self._loads.items():
            if load.state != "requested" and number not in self.begun:
                found = {(c.schema, c.table): c.content["table"] for c in self._chunks[number]}
                yield load, _name(load), [TableSchema.from_data(table) for table in found.values()]

    def ending(self) -> Iterator[tuple[Load, str, list[Table]]]:
        """Loads of which everything is here, and whose end the destination has not been told in this run."""
        self.refresh()
        for number, load in self._loads.items():
            if load.state == "delivering" and not self._left[number] and number not in self.ended:
                yield load, _name(load), self._tables(load)

    def _tables(self, load: Load) -> list[Table]:
        return list(dict.fromkeys((c.schema, c.table) for c in self._chunks[load.id]))

    def keep_for_later(self, side: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> None:
        """Rows of a backfill that must be read once more are asked for, durably, before the rest counts."""
        found = [one for receipt in receipts for one in receipt.get("again", ())]
        if not found:
            return
        tables = {
            (c.schema, c.table): c.content["table"] for n in side["chunks"] if (c := self._ledger.loads.chunk(n)) is not None
        }
        asked = [
            {"schema": schema, "table": table, "rows": 0, "bytes": len(keys)}
            | {"content": {"again": base64.b64encode(keys).decode(), "table": tables[schema, table]}}
            for schema, table, keys in found
        ]
        self._ledger.loads.ask_again(self._flow, self._generation, side["load"], asked)

    def again(self, epoch: Epoch) -> Side:
        """A side that was planned before."""
        self.refresh()
        work = epoch.side
        if "chunks" in work and work["load"] not in self._loads:
            # It brings nothing more, and of what it needed of the journal nobody has kept anything.
            return Side(work, (), (), 0, 0)
        if "chunks" in work:
            chunks = [c for number in work["chunks"] if (c := self._ledger.loads.chunk(number)) is not None]
            return self._side(work, chunks, self._slices(work))
        return Side(work, self._slices(work), (), 0, 0)

    def descriptor(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """What lanes must know of a side."""
        if "chunks" not in work:
            return {"side": {"only": work["only"]}, "since": work["since"]}
        self.refresh()
        found = []
        # The files of a load that was cancelled, or has failed, are gone: an epoch of it that was planned brings nothing more.
        for number in work["chunks"] if work["load"] in self._loads else ():
            chunk = self._ledger.loads.chunk(number)
            assert chunk is not None
            place = str(chunk_path(self._journal, chunk.load, chunk.file))
            about = {"table": chunk.content["table"], "empties": bool(chunk.content.get("empties")), "path": place}
            about["again"] = bool(chunk.content.get("asked"))
            found.append({**about, "position": chunk.position, "ordinal": chunk.id << ORDINAL_BITS, "read_at": chunk.read_at})
        return {"side": {"chunks": found, "touched": work.get("touched")}}

    def _is_due(self, load: Load, chunk: LoadChunk, position: int) -> bool:
        if chunk.state != "read" or (load.kind == "backfill" and chunk.position > position):
            return False
        if chunk.content["table"]["key"] or load.kind == "backfill":
            return True
        # Rows without a key cannot be replaced, should the table have to be read again: they wait until all of it is there.
        same = [c for c in self._chunks[load.id] if (c.schema, c.table) == (chunk.schema, chunk.table)]
        return all(c.state == "read" for c in same)

    def _group(self, load: Load, due: Sequence[LoadChunk]) -> list[LoadChunk]:
        """Chunks for one epoch: a part of what may be read ahead; of a backfill only such as show the same moment."""
        group: list[LoadChunk] = []
        most = min(self._max_bytes, EPOCH_BYTES)
        size = 0
        for chunk in due:
            if group and (size + chunk.bytes > most or (load.kind == "backfill" and chunk.snapshot != group[0].snapshot)):
                break
            group.append(chunk)
            size += chunk.bytes
        return group

    def _chunk_side(self, load: Load, group: Sequence[LoadChunk], position: int) -> Side:
        work: dict[str, Any] = {"load": load.id, "chunks": [c.id for c in group]}
        if load.kind == "backfill":
            work["touched"] = {"after": group[0].low, "upto": position, "snapshot": group[0].snapshot}
        return self._side(work, group, self._slices(work))

    def _side(self, work: Mapping[str, Any], chunks: Sequence[LoadChunk], slices: Sequence[Slice]) -> Side:
        tables = {(c.schema, c.table): TableSchema.from_data(c.content["table"]) for c in chunks}
        return Side(work, slices, tuple(tables.values()), sum(c.rows for c in chunks), sum(c.bytes for c in chunks))

    def _settle(self, load: Load, position: int) -> None:
        """Every chunk is here: the tables are live, or have to catch up with the stream first."""
        moved = []
        for e in self._entries:
            if e.load == load.id and e.state == "loading":
                shown = _last_shown([c for c in self._chunks[load.id] if (c.schema, c.table) == (e.schema, e.table)], load)
                live = load.kind == "first" or shown.low >= position
                about: dict[str, Any] = {"snapshot": shown.snapshot, "until": shown.position, "cursor": shown.low}
                moved.append({"schema": e.schema, "table": e.table, "state": "live" if live else "catching", **about})
        if moved:
            self._ledger.loads.settle(self._flow, self._destination, self._generation, moved)
            self._stale.set()

    def _catch_up(self, position: int) -> Side | None:
        """The changes of tables that have been loaded and are behind the destination's own position."""
        self.refresh()
        behind = [e for e in self._entries if e.state == "catching"]
        if not behind:
            return None
        # Tables of one load stand together, so that one walk over the journal serves them all.
        after = min(e.cursor_at for e in behind)
        mine = [e for e in behind if e.cursor_at == after]
        slices = _whole(_read_span(self._journal, after, position), self._max_bytes)
        rest = _read_span(self._journal, slices[-1].last, position) if slices else []
        upto = slices[-1].last if rest else position
        state = "live" if upto >= position else "catching"
        states: list[dict[str, Any]] = [
            {"schema": e.schema, "table": e.table, "state": state, "snapshot": e.snapshot, "until": e.until, "cursor": upto}
            for e in mine
        ]
        since = [[e.schema, e.table, e.snapshot, e.until] for e in mine if e.until > after]
        only = [[e.schema, e.table] for e in mine]
        work = {"load": mine[0].load, "only": only, "since": since, "after": after, "upto": upto, "moved": states}
        return Side(work, slices, (), sum(s.changes for s in slices), sum(s.size for s in slices))

    def _slices(self, work: Mapping[str, Any]) -> list[Slice]:
        span = work.get("touched") or (work if "only" in work else None)
        return _read_span(self._journal, span["after"], span["upto"]) if span else []


def _name(load: Load) -> str:
    """What no other load is ever called, not even in another ledger."""
    return f"{load.id}-{load.created_at}"


@dataclass(frozen=True)
class _Shown:
    snapshot: str | None
    position: int
    low: int


def _last_shown(chunks: Sequence[LoadChunk], load: Load) -> _Shown:
    """The moment that the table's rows show: that of the snapshot that was read last."""
    if not chunks:
        return _Shown(load.snapshot, load.position, load.low)
    last = max(chunks, key=lambda c: c.position)
    return _Shown(last.snapshot, last.position, last.low)


def _read_span(journal: Path, after: int, upto: int) -> list[Slice]:
    """The slices of (after, upto]."""
    tail = JournalTail(journal, after)
    try:
        found: list[Slice] = []
        while not found or found[-1].last < upto:
            more = tail.read()
            if not more:
                break
            found += more
        return [s for s in found if s.last <= upto]
    finally:
        tail.close()


def _whole(slices: Sequence[Slice], most: int) -> list[Slice]:
    """As many of the slices from the first on as make about so many bytes, and whole transactions."""
    size = 0
    for i, s in enumerate(slices):
        size += s.size
        ends = not s.flags & SliceFlag.PIECE or s.flags & SliceFlag.LAST_PIECE
        if size >= most and ends:
            return list(slices[: i + 1])
    return list(slices)

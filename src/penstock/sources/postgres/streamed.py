"""A streamed transaction: its pieces are in the journal before it commits, and nobody sees them until it does.

The server sends a big transaction in chunks while it runs, each change with the id of its subtransaction. What a rolled-back
subtransaction changed is in the pieces already; at the commit its ids are written with the last piece, ordinals are counted
over what remains, and descriptions of tables are numbered as if they had arrived at the commit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import ProtocolBroken
from penstock.journal.catalog import Entry
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres.relation import Relation, RelationBook

# A frame with a message of two ids: an abort's transaction and subtransaction, or a relation.
_FRAME = struct.Struct(">cIcQQQcII")


class Described(NamedTuple):
    """A RELATION message inside a piece."""

    offset: int
    """Its frame's place in the segment; in the buffer as long as its piece is not written."""
    relation: Relation
    part: int
    """The subtransaction that it came with."""
    arrival: int
    """How many descriptions the stream had brought before it."""


@dataclass
class _Piece:
    record: Slice
    shares: Any
    described: list[Described]


@dataclass
class Streamed:
    """What is known of one open transaction."""

    xid: int
    flags: int = 0
    pieces: list[_Piece] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    """Subtransactions that were rolled back."""

    @property
    def oldest_segment(self) -> int | None:
        """The oldest segment that holds a piece."""
        return self.pieces[0].record.segment if self.pieces else None

    def add(self, record: Slice, shares: Any, described: list[Described], flags: int) -> None:
        """A piece that has been written; `shares` has a line per run of changes: subtransaction and number."""
        self.pieces.append(_Piece(record, shares, described))
        self.flags |= flags

    def outdated(self, latest: Mapping[int, tuple[int, Relation]]) -> list[Relation]:
        """Tables that another transaction has described since this one did, as that has described them.

        The server counts what it has described inside a streamed transaction apart: what follows the commit reads by these.
        """
        newest = {d.relation.oid: d for piece in self.pieces for d in piece.described}
        known = ((latest[oid], d) for oid, d in newest.items() if oid in latest)
        return [relation for (arrival, relation), d in known if arrival > d.arrival and relation != d.relation]

    def last_frames(self, restated: Sequence[Relation], commit: bytes) -> bytes:
        """What the last piece holds: tables described anew, subtransactions that were rolled back, the commit's own frame."""
        frames = [_frame(b"R", 0, relation.oid) for relation in restated]
        frames += [_frame(b"A", self.xid, part) for part in sorted(self.gone)]
        return b"".join(frames) + commit

    def commit(
        self, book: RelationBook, position: int, committed_at: int, last: Slice, restated: Sequence[Relation]
    ) -> tuple[list[Slice], list[Entry]]:
        """The transaction's slices in order, and the table versions that it brings; `last` is the piece of `last_frames`."""
        gone = np.array(sorted(self.gone), np.int64)
        again = [Described(last.start + i * _FRAME.size, relation, 0, 0) for i, relation in enumerate(restated)]
        pieces = [*self.pieces, _Piece(last, np.zeros((0, 2), np.int64), again)]
        entries: list[Entry] = []
        slices: list[Slice] = []
        valid = self.valid(book) | set(again)
        ordinal = 0
        for piece in pieces:
            catalog = book.seq
            entries += [
                book.enter(d.relation, piece.record.segment, d.offset)
                for d in piece.described
                if d in valid and not book.is_known(d.relation)
            ]
            kept = piece.shares[~np.isin(piece.shares[:, 0], gone), 1] if len(gone) else piece.shares[:, 1]
            changes = int(kept.sum(dtype=np.int64))
            slices.append(piece.record._replace(catalog=catalog, ordinal=ordinal, changes=changes))
            ordinal += changes
        flags = self.flags | int(SliceFlag.PIECE | SliceFlag.STREAMED)
        flags |= int(SliceFlag.SCHEMA) if entries else 0
        flags |= int(SliceFlag.PARTLY_GONE) if self.gone else 0
        about = {"first": position, "last": position, "xid": self.xid, "committed_at": committed_at, "transactions": 0}
        slices = [s._replace(flags=flags, **about) for s in slices]
        slices[-1] = slices[-1]._replace(flags=flags | int(SliceFlag.LAST_PIECE), transactions=1)
        return slices, entries

    def valid(self, book: RelationBook) -> set[Described]:
        """Descriptions that count: one from a rolled-back part does not, unless it is all that is known of the table.

        What the part had done to the table is undone, and the server describes it again where it is touched afterwards.
        """
        described = [d for piece in self.pieces for d in piece.described]
        newest = {d.relation.oid: d.arrival for d in described}
        alone = {oid: arrival for oid, arrival in newest.items() if not book.knows(oid)}
        return {d for d in described if d.part not in self.gone or alone.get(d.relation.oid) == d.arrival}


def _frame(kind: bytes, first: int, second: int) -> bytes:
    return _FRAME.pack(b"d", _FRAME.size - 1, b"w", 0, 0, 0, kind, first, second)


class Streams:
    """The streamed transactions that are open, by their ids; one of them may be in the middle of a chunk."""

    def __init__(self, journal: JournalWriter, book: RelationBook) -> None:
        self._journal = journal
        self._book = book
        self._open: dict[int, Streamed] = {}
        self._now: Streamed | None = None
        self._shares: list[Any] = []
        self._waiting: list[Described] = []
        self._latest: dict[int, tuple[int, Relation]] = {}
        self._arrivals = 0

    @property
    def oldest_segment(self) -> int | None:
        """The oldest segment that an open transaction needs."""
        return min((t.oldest_segment for t in self._open.values() if t.oldest_segment is not None), default=None)

    def begin_chunk(self, xid: int) -> None:
        """What follows belongs to this transaction."""
        self._now = self._open.setdefault(xid, Streamed(xid))

    def end_chunk(self) -> None:
        """The chunk's pieces are written."""
        self._now = None

    def heard(self, relation: Relation) -> None:
        """A table described outside of chunks."""
        self._arrivals += 1
        self._latest[relation.oid] = (self._arrivals, relation)

    def described(self, at: int, relation: Relation, part: int) -> None:
        """A table described inside the chunk, at that byte of the buffer."""
        self._arrivals += 1
        self._waiting.append(Described(at, relation, part, self._arrivals))

    def moved(self, distance: int) -> None:
        """The buffer's bytes have moved to its front by that much."""
        self._waiting = [d._replace(offset=d.offset - distance) for d in self._waiting]

    def take(self, shares: Any) -> None:
        """Changes by subtransaction, since the last piece or the last call."""
        self._shares.append(np.array(shares, np.uint32).reshape(-1, 2))

    def hold(self, record: Slice, start: int, flags: int) -> None:
        """A piece of the chunk, from byte `start` of the buffer on, has been written."""
        assert self._now is not None
        described = [d._replace(offset=record.start + d.offset - start) for d in self._waiting]
        shares = np.concatenate(self._shares) if self._shares else np.zeros((0, 2), np.uint32)
        self._now.add(record, shares, described, flags)
        self._waiting, self._shares = [], []

    def abort(self, xid: int, part: int) -> None:
        """The transaction, or a subtransaction of it, was rolled back."""
        if part == xid:
            self._open.pop(xid, None)
        elif xid in self._open:
            self._open[xid].gone.add(part)

    def commit(self, xid: int, position: int, committed_at: int, frame: bytes) -> tuple[list[Slice], list[Entry]]:
        """The transaction's slices and table versions; none when nothing of it remains."""
        if xid not in self._open:
            raise ProtocolBroken("the server commits a streamed transaction that it has not begun")
        transaction = self._open[xid]
        restated = transaction.outdated(self._latest)
        place = self._journal.append(memoryview(transaction.last_frames(restated, frame)))
        del self._open[xid]
        segment, start, end, checksum = place
        last = Slice(segment, start, end, 0, 0, 0, 0, 0, 0, checksum, 0, 0, 0, 0)
        for described in transaction.valid(self._book):
            # From its commit on the server counts it as told, as if it had come outside of chunks.
            oid = described.relation.oid
            if described.arrival > self._latest.get(oid, (0, described.relation))[0]:
                self._latest[oid] = (described.arrival, described.relation)
        slices, entries = transaction.commit(self._book, position, committed_at, last, restated)
        return (slices, entries) if entries or any(s.changes for s in slices) else ([], [])

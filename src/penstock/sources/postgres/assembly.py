"""The assembly: bytes from the socket become slices of the journal, whole transactions first, big ones in pieces.

A small transaction waits in the buffer until it has committed. One that outgrows a slice is written in pieces, which become
visible together with its commit. A row too big for the buffer passes through it in parts. A transaction that the server
streams before it commits is written piece by piece too, between others; it becomes visible at its commit or not at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.errors import ProtocolBroken
from penstock.journal.catalog import Entry
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres import walk as w
from penstock.sources.postgres.inbox import Inbox
from penstock.sources.postgres.relation import Relation, RelationBook, parse_relation
from penstock.sources.postgres.streamed import Streams

BUFFER_BYTES = 32 << 20
SLICE_BYTES = 4 << 20
HUGE_BYTES = 8 << 20
SYNC_BYTES = 16 << 20


@dataclass
class _Pieces:
    """Pieces of the open transaction: written, not yet visible."""

    slices: list[Slice] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


class Assembly:
    """Takes bytes in the order of the stream and publishes slices in the order of the log."""

    def __init__(self, journal: JournalWriter, book: RelationBook) -> None:
        self._journal = journal
        self._book = book
        self._state = w.new_state()
        self._in = Inbox(BUFFER_BYTES)
        self._left = 0
        self._huge = 0
        self._early = False
        self._unsynced = 0
        self._pieces = _Pieces()
        self._slices: list[Slice] = []
        self._entries: list[Entry] = []
        self._relations: list[tuple[int, Relation]] = []
        self._shares = w.new_shares()
        self._streams = Streams(journal, book)
        self._lone: tuple[int, int] | None = None
        self._steps = {
            w.RELATION: self._note_relation,
            w.CUT: self._append_run,
            w.PIECE: self._append_piece,
            w.LAST_PIECE: self._append_last_piece,
            w.STREAM_START: self._begin_chunk,
            w.STREAM_STOP: self._end_chunk,
            w.STREAM_COMMIT: self._commit_streamed,
            w.STREAM_ABORT: self._abort_streamed,
            w.SHARES_FULL: self._take_shares,
        }
        self.other: bytes | None = None
        """A frame that is not part of the copy stream (an error, its end): type byte and payload."""

    @property
    def messages(self) -> int:
        """How many pgoutput messages have been walked."""
        return int(self._state[w.MESSAGES])

    def room(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        self._compact()
        return self._in.room()

    def reply_wanted(self) -> bool:
        """Whether the server has asked for a status since the last call."""
        wanted = bool(self._state[w.REPLY_WANTED])
        self._state[w.REPLY_WANTED] = 0
        return wanted

    def arrived(self, count: int) -> None:
        """Notes that `count` bytes have been put into `room`."""
        self._in.fill += count

    def take(self) -> None:
        """Walks what has arrived and appends every slice that is whole or full."""
        if self._left and not self._pass_through():
            return
        state, inbox = self._state, self._in
        while True:
            inbox.at, reason = w.walk(inbox.array, inbox.at, inbox.fill, state, self._shares, SLICE_BYTES, HUGE_BYTES)
            if reason in self._steps:
                self._steps[reason]()
            elif reason == w.BROKEN:
                raise ProtocolBroken("the server sent bytes that are not the replication protocol")
            elif reason != w.OTHER or not inbox.cut_aside():
                break
        if state[w.RUN_END] > state[w.RUN_START]:
            self._append_run()
        if not state[w.IN_TRANSACTION]:
            # Keepalives between transactions have been heard and need not be kept: an idle table may bring millions of them.
            self._begin_run(inbox.at)
        if reason == w.HUGE:
            self._begin_huge()
        elif reason == w.OTHER:
            self.other = inbox.take_other()

    def publish(self, bare: bool) -> bool:
        """Makes the appended transactions durable and visible; a mere advance of the position only if `bare`."""
        early, self._early = self._early, False
        if self._left:
            # Nothing may be written into the middle of a row that is passing through.
            return early
        mark = max(int(self._state[w.KEEPALIVE]), self._slices[-1].last if self._slices else 0)
        if not self._slices and (not bare or mark <= self._journal.mark or self._pieces.slices):
            return early
        now = time.time_ns() // 1000
        slices, self._slices = self._slices, []
        self._set_floor()
        self._journal.publish([s._replace(appended_at=now) for s in slices], self._entries, mark)
        self._entries, self._unsynced = [], 0
        return True

    def _compact(self) -> None:
        moved = self._in.compact(int(self._state[w.RUN_START]))
        if moved:
            for name in (w.RUN_START, w.RUN_END, w.TRANSACTION_START):
                self._state[name] -= moved
            self._relations = [(at - moved, relation) for at, relation in self._relations]
            self._streams.moved(moved)

    def _note_relation(self) -> None:
        start, state = self._in.at, self._state
        message, self._in.at = self._in.message(), self._in.following
        state[w.MESSAGES] += 1
        if state[w.STREAM]:
            part = int.from_bytes(message[1:5], "big")
            state[w.TRANSACTION_FLAGS] |= int(SliceFlag.RETOLD)
            self._streams.described(start, parse_relation(message[:1] + message[5:]), part)
            return
        relation = parse_relation(message)
        self._streams.heard(relation)
        if not self._is_known(relation):
            if state[w.RUN_END] > state[w.RUN_START]:
                # Epochs end before a schema change, so the transactions before it get a slice of their own.
                self._append_run()
            self._relations.append((start, relation))
            state[w.TRANSACTION_FLAGS] |= int(SliceFlag.SCHEMA)
        else:
            state[w.TRANSACTION_FLAGS] |= int(SliceFlag.RETOLD)

    def _is_known(self, relation: Relation) -> bool:
        waiting = [r for _, r in self._relations if r.oid == relation.oid]
        return waiting[-1] == relation if waiting else self._book.is_known(relation)

    def _append_run(self) -> None:
        """Whole transactions become a slice that the next group makes visible."""
        state = self._state
        start, end = int(state[w.RUN_START]), int(state[w.RUN_END])
        record, entries = self._append(start, end, int(state[w.RUN_CHANGES]), int(state[w.RUN_FLAGS]))
        record = record._replace(
            first=int(state[w.RUN_FIRST]), last=int(state[w.RUN_LAST]), transactions=int(state[w.RUN_TRANSACTIONS])
        )
        self._slices.append(record)
        self._entries += entries
        self._begin_run(end)

    def _begin_run(self, start: int) -> None:
        state = self._state
        state[w.RUN_START] = state[w.RUN_END] = start
        state[w.RUN_CHANGES] = state[w.RUN_TRANSACTIONS] = state[w.RUN_FLAGS] = 0

    def _append_piece(self) -> None:
        """The open transaction's bytes up to the position are written; they become visible with its commit."""
        state, end = self._state, self._in.at
        if state[w.RUN_END] > state[w.RUN_START]:
            self._append_run()
        changes = int(state[w.ORDINAL] - state[w.PIECE_ORDINAL])
        start = int(state[w.RUN_START])
        record, entries = self._append(start, end, changes, 0)
        self._pieces.entries += entries
        self._hold(record, start)
        state[w.RUN_START] = state[w.RUN_END] = state[w.TRANSACTION_START] = end

    def _hold(self, record: Slice, start: int = 0) -> None:
        state = self._state
        if state[w.STREAM]:
            self._take_shares()
            self._streams.hold(record, start, int(state[w.TRANSACTION_FLAGS]))
        else:
            self._pieces.slices.append(record._replace(ordinal=int(state[w.PIECE_ORDINAL])))
            state[w.PIECES] += 1
        state[w.PIECE_ORDINAL] = state[w.ORDINAL]
        self._unsynced += record.size
        if self._unsynced >= SYNC_BYTES:
            # The disk works while the transaction arrives, not all at once at its commit.
            self._journal.sync()
            self._unsynced = 0

    def _append_last_piece(self) -> None:
        """The transaction has committed: all its pieces become slices, in order, with its position."""
        state = self._state
        end = int(state[w.RUN_END])
        record, entries = self._append(int(state[w.RUN_START]), end, int(state[w.RUN_CHANGES]), 0)
        self._hold(record)
        # One set of flags for the whole transaction: an epoch that begins with it must know what to expect.
        flags = int(state[w.TRANSACTION_FLAGS]) | int(SliceFlag.PIECE)
        last = len(self._pieces.slices) - 1
        for i, piece in enumerate(self._pieces.slices):
            ending = int(SliceFlag.LAST_PIECE) if i == last else 0
            position = int(state[w.RUN_LAST])
            self._slices.append(
                piece._replace(
                    first=position,
                    last=position,
                    xid=int(state[w.XID]),
                    committed_at=int(state[w.COMMITTED_AT]),
                    transactions=1 if ending else 0,
                    flags=flags | ending,
                )
            )
        self._entries += self._pieces.entries + entries
        self._pieces = _Pieces()
        state[w.PIECES] = 0
        self._begin_run(end)

    def _begin_huge(self) -> None:
        """A row's frame is larger than the buffer should hold: from here on it goes straight to the journal."""
        state, inbox = self._state, self._in
        if inbox.at > state[w.RUN_START]:
            self._append_piece()
        message = bytearray(inbox.message(16))
        if not state[w.IN_TRANSACTION]:
            # A message outside of transactions is one of its own: where its record ends, and when it was sent.
            self._lone = (int.from_bytes(message[2:10], "big"), w.unix_time(inbox.number(22, 8)))
        if state[w.STREAM]:
            self._take_shares()
            self._streams.take([[int.from_bytes(message[1:5], "big"), 1]])
            del message[1:5]
        if message[0] == ord("U") and message[5] == ord("K"):
            state[w.TRANSACTION_FLAGS] |= w.KEY_CHANGE
        state[w.ORDINAL] += 1
        state[w.MESSAGES] += 1
        # What has committed before need not wait for a row that may take seconds to arrive.
        self._early = self.publish(bare=False)
        self._huge = self._book.seq
        self._left = inbox.following - inbox.at
        self._set_floor()
        self._journal.open_slice()
        self._pass_through()

    def _pass_through(self) -> bool:
        """Hands the buffer's share of a huge row to the journal; true when the row is whole."""
        start, end = self._in.at, min(self._in.at + self._left, self._in.fill)
        self._journal.extend(self._in.view[start:end])
        self._left -= end - start
        self._in.at = end
        for name in (w.RUN_START, w.RUN_END, w.TRANSACTION_START):
            self._state[name] = end
        if self._left:
            return False
        segment, begin, stop, checksum = self._journal.close_slice()
        record = _slice(segment, begin, stop, checksum, 1, 0, self._huge)
        if self._lone is None:
            self._hold(record)
        else:
            (position, at), self._lone = self._lone, None
            flags = int(SliceFlag.PIECE | SliceFlag.LAST_PIECE)
            self._slices.append(record._replace(first=position, last=position, committed_at=at, transactions=1, flags=flags))
        return True

    def _begin_chunk(self) -> None:
        """A chunk of a streamed transaction follows; what has committed before gets slices of its own."""
        state = self._state
        if state[w.RUN_END] > state[w.RUN_START]:
            self._append_run()
        message, start = self._in.message(), self._in.at
        self._begin_run(start)
        state[w.TRANSACTION_START], state[w.IN_TRANSACTION] = start, 1
        state[w.STREAM] = int.from_bytes(message[1:5], "big")
        state[w.ORDINAL] = state[w.PIECE_ORDINAL] = state[w.TRANSACTION_FLAGS] = 0
        self._streams.begin_chunk(int(state[w.STREAM]))
        self._in.at = self._in.following

    def _end_chunk(self) -> None:
        state = self._state
        self._append_piece()
        state[w.STREAM] = state[w.IN_TRANSACTION] = 0
        self._streams.end_chunk()
        self._begin_run(self._in.at)

    def _take_shares(self) -> None:
        self._streams.take(self._shares[: int(self._state[w.SHARES])])
        self._state[w.SHARES] = 0

    def _abort_streamed(self) -> None:
        message = self._drop()
        self._streams.abort(int.from_bytes(message[1:5], "big"), int.from_bytes(message[5:9], "big"))

    def _commit_streamed(self) -> None:
        """The transaction becomes visible, behind everything that has committed before it."""
        frame = self._in.frame()
        message = self._drop()
        position, committed_at = int.from_bytes(message[14:22], "big"), w.unix_time(int.from_bytes(message[22:30], "big"))
        self._set_floor()
        slices, entries = self._streams.commit(int.from_bytes(message[1:5], "big"), position, committed_at, frame)
        self._slices += slices
        self._entries += entries
        if not slices:
            self._state[w.KEEPALIVE] = max(int(self._state[w.KEEPALIVE]), position)

    def _drop(self) -> bytes:
        """Goes on behind the frame at the position, whose bytes do not enter the journal with those around it; its message."""
        if self._state[w.RUN_END] > self._state[w.RUN_START]:
            self._append_run()
        message, self._in.at = self._in.message(), self._in.following
        self._begin_run(self._in.at)
        return message

    def _set_floor(self) -> None:
        """Tells the journal which segments are needed by transactions that are open, or committed and not yet published."""
        needed = [s.segment for s in self._slices]
        needed += [s.segment for s in self._pieces.slices[:1]]
        if self._streams.oldest_segment is not None:
            needed.append(self._streams.oldest_segment)
        self._journal.floor = min(needed, default=0)

    def _append(self, start: int, end: int, changes: int, flags: int) -> tuple[Slice, list[Entry]]:
        """Writes a slice; table versions that begin inside it get their place."""
        catalog = self._book.seq
        self._set_floor()
        segment, begin, stop, checksum = self._journal.append(self._in.view[start:end])
        entries = [self._book.enter(r, segment, begin + at - start) for at, r in self._relations if start <= at < end]
        self._relations = [(at, r) for at, r in self._relations if not start <= at < end]
        return _slice(segment, begin, stop, checksum, changes, flags, catalog), entries


def _slice(segment: int, start: int, end: int, checksum: int, changes: int, flags: int, catalog: int) -> Slice:
    return Slice(segment, start, end, 0, 0, 0, 0, 0, 0, checksum, changes, 0, flags, catalog)

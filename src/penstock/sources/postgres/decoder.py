"""The decoder: slices of the journal to Arrow batches, for one bucket of the keys. Pure: same slices, same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Handle, Odd
from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.errors import DecodeFailed
from penstock.journal.catalog import Entry
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.sources.base import Decoder
from penstock.sources.postgres import columns, locate, logical_messages, scan

STEP_BYTES = 4 << 20
"""What is decoded at once; a slice that is larger by itself."""
_SCHEMA, _PIECE, _STREAMED = int(SliceFlag.SCHEMA), int(SliceFlag.PIECE), int(SliceFlag.STREAMED)


@dataclass(frozen=True)
class _Relations:
    """The table versions that a step may meet, as the scan takes them."""

    entries: list[Entry]
    oids: Any
    values: Any
    keys: Any
    key_counts: Any
    taken: Any
    change_at: Any
    change_oid: Any
    change_entry: Any


class ChangedKeys(NamedTuple):
    """Keys of changes of one table version, in log order."""

    table: TableSchema
    keys: tuple[pa.Array, ...]
    """Per key column the key's text of every change; null for a truncate."""
    ops: Any
    xids: Any


class PostgresDecoder(Decoder):
    """Keeps buffers and catalogue views from call to call, nothing that could change a result."""

    def __init__(self) -> None:
        self._known: tuple[Any, Any, _Relations] | None = None

    def decode(
        self,
        journal: SliceReader,
        slices: Sequence[Slice],
        bucket: int,
        buckets: int,
        takes: Callable[[TableSchema], bool],
    ) -> Iterator[Batch]:
        """The changes of one bucket, a step of the slices at a time, so that memory does not grow with the epoch."""
        for b, rows, entry, group in self._found(journal, slices, bucket, buckets, takes):
            if entry is logical_messages.ENTRY:
                yield logical_messages.batch(b, rows, self.recipe)
            else:
                yield _batch(b, rows, entry, group, self.gives_handles)

    def keys(self, journal: SliceReader, slices: Sequence[Slice], takes: Callable[[TableSchema], bool]) -> Iterator[ChangedKeys]:
        """The keys of all changes, the old and the new one where a key changes; nothing else is decoded."""
        for b, rows, entry, group in self._found(journal, slices, 0, 1, takes):
            if entry is not logical_messages.ENTRY:
                located = _located(b, rows, rows[scan.NEW], rows[scan.OLD], entry.table, group)
                yield ChangedKeys(entry.table, _key_texts(b, located, entry), rows[scan.OPERATION], rows[scan.XID])

    def _found(
        self,
        journal: SliceReader,
        slices: Sequence[Slice],
        bucket: int,
        buckets: int,
        takes: Callable[[TableSchema], bool],
    ) -> Iterator[tuple[Any, Any, Entry, Sequence[Slice]]]:
        gone = _Gone(journal, slices)
        for group in steps(slices):
            b, starts = journal.read(group)
            relations = self._relations(journal, group, starts, takes)
            for rows, entry in self._step(b, group, starts, gone, relations, bucket, buckets):
                yield b, rows, entry, group

    def _relations(
        self, journal: SliceReader, group: list[Slice], starts: list[int], takes: Callable[[TableSchema], bool]
    ) -> _Relations:
        """What `_relations` makes, kept while the same versions are in force: between two schema changes it is the same."""
        if any(s.flags & _SCHEMA for s in group):
            # The scan writes into this one: versions change on its way.
            return _relations(journal, group, starts, takes)
        force = journal.catalog.in_force(group[0].catalog)
        if self._known is None or self._known[0] is not force or self._known[1] != takes:
            self._known = (force, takes, _relations(journal, group, starts, takes))
        return self._known[2]

    def _step(
        self, b: Any, group: Sequence[Slice], starts: list[int], gone: _Gone, relations: _Relations, bucket: int, buckets: int
    ) -> Iterator[tuple[Any, Entry]]:
        table = np.zeros((len(group), scan.INPUTS), np.int64)
        for i, (s, start) in enumerate(zip(group, starts, strict=True)):
            piece = 1 if s.flags & _PIECE else 0
            streamed = 1 if s.flags & _STREAMED else 0
            about = (s.first if piece else 0, s.xid, s.committed_at, s.ordinal)
            table[i] = (start, start + s.size, piece, *about, streamed, *gone.range(s))
        # A key change gives two rows, so twice the changes is room enough.
        out = np.empty((scan.OUTPUTS, 2 * sum(s.changes for s in group) + 1), np.int64)
        r = relations
        changes = (r.change_at, r.change_oid, r.change_entry)
        lookup = (r.oids, r.values, r.keys, r.key_counts, r.taken)
        count, _ = scan.scan(b, table, gone.parts, len(r.entries) - 1, bucket, buckets, *lookup, *changes, out)
        if count < 0:
            raise _undecodable(int(count), group)
        rows = out[:, :count]
        if not count:
            return
        entries = rows[scan.ENTRY]
        numbers = np.unique(entries) if (entries != entries[0]).any() else entries[:1]
        for number in numbers:
            mine = rows if len(numbers) == 1 else np.ascontiguousarray(rows[:, entries == number])
            yield mine, r.entries[int(number)]


class _Gone:
    """The rolled-back parts of streamed transactions, one transaction after the other."""

    def __init__(self, journal: SliceReader, slices: Sequence[Slice]) -> None:
        self.parts = np.zeros(0, np.int64)
        self._ranges: dict[int, tuple[int, int]] = {}
        wanted = int(SliceFlag.PARTLY_GONE | SliceFlag.LAST_PIECE)
        for s in slices:
            if s.flags & wanted == wanted:
                self._take(journal, s)

    def range(self, s: Slice) -> tuple[int, int]:
        """Where the parts that are gone from the slice's transaction stand."""
        return self._ranges.get(s.last, (0, 0))

    def _take(self, journal: SliceReader, last: Slice) -> None:
        b, starts = journal.read([last])
        found = np.zeros(last.size // scan.ABORT_BYTES + 1, np.int64)
        # Frames that are too short to be any could name more than there is room for.
        count = min(scan.rolled_back(b, starts[0], starts[0] + last.size, found), len(found))
        self._ranges[last.last] = (len(self.parts), len(self.parts) + count)
        self.parts = np.concatenate([self.parts, np.sort(found[:count])])


def steps(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """The slices in groups of some megabytes."""
    group: list[Slice] = []
    size = 0
    for s in slices:
        if group and size + s.size > STEP_BYTES:
            yield group
            group, size = [], 0
        group.append(s)
        size += s.size
    if group:
        yield group


def _relations(journal: SliceReader, group: list[Slice], starts: list[int], takes: Callable[[TableSchema], bool]) -> _Relations:
    force = journal.catalog.in_force(group[0].catalog)
    entries = list(force.values())
    oids = {relation: i for i, relation in enumerate(force)}
    changes: list[tuple[int, int, int]] = []
    for s, start in zip(group, starts, strict=True):
        if s.flags & _SCHEMA:
            for entry in journal.catalog.inside(s.segment, s.start, s.end, s.catalog):
                changes.append((start + entry.offset - s.start, entry.relation, len(entries)))
                entries.append(entry)
    entries.append(logical_messages.ENTRY)
    size = len(entries)
    keys, counts = np.zeros((size, scan.MAX_KEY), np.int64), np.zeros(size, np.int64)
    taken = np.zeros(size, np.bool_)
    for i, entry in enumerate(entries):
        indexes = entry.table.key_indexes
        keys[i, : len(indexes)] = indexes
        counts[i] = len(indexes)
        taken[i] = takes(entry.table)
    table, numbers = scan.table_of(oids | dict.fromkeys((c[1] for c in changes), 0))
    for relation, i in oids.items():
        scan.put(table, numbers, relation, i)
    for relation in {c[1] for c in changes} - oids.keys():
        scan.put(table, numbers, relation, -1)
    at, oid, number = (np.array([c[k] for c in changes], np.int64) for k in range(3))
    return _Relations(entries, table, numbers, keys, counts, taken, at, oid, number)


def _batch(b: Any, rows: Any, entry: Entry, group: Sequence[Slice], handle: bool) -> Batch:
    table = entry.table
    n = rows.shape[1]
    kind, offset, length = _located(b, rows, rows[scan.NEW], rows[scan.OLD], table, group)
    arrays, odd = columns.build_all(b, kind, offset, length, table.columns)
    before, before_odd = _before(b, rows, table, group)
    return Batch(
        table=table,
        rows=pa.RecordBatch.from_arrays(arrays, schema=table.arrow) if arrays else columns.no_columns(n),
        op=_meta(rows[scan.OPERATION], pa.uint8()),
        position=_meta(rows[scan.POSITION], pa.int64()),
        ordinal=_meta(rows[scan.ORDINAL], pa.int64()),
        xid=_meta(rows[scan.XID], pa.int64()),
        committed_at=_meta(rows[scan.COMMITTED_AT], pa.timestamp("us", "UTC")),
        unchanged=columns.unchanged_masks(kind),
        image=_meta(rows[scan.IMAGE], pa.uint8()),
        before=before,
        odd=odd,
        before_odd=before_odd,
        handle=_handle(b, (kind, offset, length), entry) if handle else None,
    )


def _handle(b: Any, located: tuple[Any, Any, Any], entry: Entry) -> Handle:
    """The keys as the log has them, from which the server can be asked for the rows."""
    return Handle(_key_texts(b, located, entry), entry.detail)


def _key_texts(b: Any, located: tuple[Any, Any, Any], entry: Entry) -> tuple[pa.Array, ...]:
    kind, offset, length = located
    return tuple(columns.texts(b, kind[i], offset[i], length[i]) for i in entry.table.key_indexes)


def _before(b: Any, rows: Any, table: TableSchema, group: Sequence[Slice]) -> tuple[pa.RecordBatch | None, dict[str, Odd]]:
    """Old rows of updates, where the log has them."""
    old = rows[scan.OLD]
    if not old.any():
        return None, {}
    kind, offset, length = _located(b, rows, old, np.zeros_like(old), table, group)
    arrays, odd = columns.build_all(b, kind, offset, length, table.columns)
    return pa.RecordBatch.from_arrays(arrays, schema=table.arrow), odd


def _located(b: Any, rows: Any, at: Any, old: Any, table: TableSchema, group: Sequence[Slice]) -> tuple[Any, Any, Any]:
    shape = (len(table.columns), len(at))
    kind, offset, length = np.empty(shape, np.uint8), np.empty(shape, np.int64), np.empty(shape, np.int64)
    wrong = locate.locate(b, at, old, rows[scan.IMAGE], rows[scan.LIMIT], shape[0], kind, offset, length)
    if wrong:
        position = int(rows[scan.POSITION, wrong - 1])
        raise DecodeFailed(
            f"a row of {table.qualified} at {format_lsn(position)} does not fit version {table.version} of the table",
            position=position,
        )
    return kind, offset, length


def _meta(numbers: Any, arrow: pa.DataType) -> pa.Array:
    if arrow == pa.uint8():
        return pa.array(numbers.astype(np.uint8))
    return pa.Array.from_buffers(arrow, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _undecodable(code: int, group: Sequence[Slice]) -> DecodeFailed:
    reason = {
        scan.NO_RELATION: "a change of a table that the journal does not describe",
        scan.BAD_FRAME: "bytes that are no frame",
        scan.BAD_TUPLE: "a row that is cut short",
        scan.TOO_MANY: "more changes than its index says",
    }[code]
    first, last = group[0], group[-1]
    return DecodeFailed(
        f"the journal holds {reason} between {format_lsn(first.first)} and {format_lsn(last.last)}",
        segment=first.segment,
        offset=first.start,
    )


def warm() -> None:
    """Loads or compiles the kernels."""
    scan.warm()
    locate.warm()
    logical_messages.warm()
    columns.warm()

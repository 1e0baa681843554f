"""A batch: Arrow rows of one table under one schema version, in log order, with what happened to each.

Three states of a cell are kept apart: a value, NULL, and unchanged (the log did not carry it). A fourth, odd, is a value
that the column's Arrow type cannot hold: NULL in the array, its exact text beside it. A value may also have been read from
the source after the change, because the log did not carry it; such cells are marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import TableSchema


class Op(IntEnum):
    """What happened to a row."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4
    SNAPSHOT = 5
    MESSAGE = 6
    LEAVE = 7
    """The old key's half of a key-changing update: the row leaves that key. Same position and ordinal as its ENTER."""
    ENTER = 8
    """The new key's half: an update whose unchanged columns come from the row that left `before`'s key."""


class Image(IntEnum):
    """How much of the old row the log carried."""

    NONE = 0
    KEY = 1
    FULL = 2


@dataclass(frozen=True)
class Odd:
    """Cells of one column that the Arrow type cannot hold: row numbers in the batch, ascending, and the exact texts.

    Whatever the source, an infinite date or timestamp is `infinity` or `-infinity`, the end of the day as a time `24:00:00`.
    """

    rows: pa.Array
    texts: pa.Array


@dataclass(frozen=True)
class Handle:
    """How a source can be asked for the batch's rows again; made by its decoder for its completer, and for nobody else."""

    keys: tuple[pa.Array, ...]
    """Per key column the key's text of every row, as the log has it."""
    detail: Mapping[str, Any]
    """What the decoder knows of the table version beside its schema."""


@dataclass(frozen=True)
class Batch:
    """Rows of one table under one schema version; every array has `len(rows)` entries, in log order.

    `rows` holds the after image by the table's columns; for DELETE and LEAVE the old image as far as the log has it; for
    TRUNCATE nulls. The decoder yields TRUNCATE into every bucket; whatever logs changes keeps bucket 0's only.
    """

    table: TableSchema
    rows: pa.RecordBatch
    op: pa.Array
    """uint8, values of Op."""
    position: pa.Array
    """int64: the commit position of the row's transaction."""
    ordinal: pa.Array
    """int64: the change's number in its transaction, from 1."""
    xid: pa.Array
    """int64."""
    committed_at: pa.Array
    """timestamp[us, UTC]."""
    unchanged: tuple[pa.Array | None, ...]
    """Per column a boolean array that is true where the log did not carry the value; None when it carried all."""
    image: pa.Array
    """uint8, values of Image: what is known of the old row, in `before` for updates and in `rows` for deletes."""
    before: pa.RecordBatch | None = None
    """Old rows of updates, NULL where nothing is known; None when no update of the batch has one."""
    odd: Mapping[str, Odd] = field(default_factory=dict)
    """By column, what `rows` cannot hold."""
    read_later: tuple[pa.Array | None, ...] = ()
    """Per column a boolean array that is true where the value was read from the source after the change and may be newer than
    it; None or nothing when no value was."""
    handle: Handle | None = None
    before_odd: Mapping[str, Odd] = field(default_factory=dict)
    """By column, what `before` cannot hold."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        """Size of the table's own columns in memory."""
        return int(self.rows.nbytes)

    def filter(self, mask: pa.Array) -> Batch:
        """The rows for which the boolean array is true, in order."""
        return Batch(
            table=self.table,
            rows=self.rows.filter(mask),
            op=self.op.filter(mask),
            position=self.position.filter(mask),
            ordinal=self.ordinal.filter(mask),
            xid=self.xid.filter(mask),
            committed_at=self.committed_at.filter(mask),
            unchanged=tuple(None if flags is None else flags.filter(mask) for flags in self.unchanged),
            image=self.image.filter(mask),
            before=None if self.before is None else self.before.filter(mask),
            odd={name: _renumbered(odd, mask) for name, odd in self.odd.items()},
            read_later=tuple(None if flags is None else flags.filter(mask) for flags in self.read_later),
            handle=None if self.handle is None else Handle(tuple(k.filter(mask) for k in self.handle.keys), self.handle.detail),
            before_odd={name: _renumbered(odd, mask) for name, odd in self.before_odd.items()},
        )

    def slice(self, start: int, count: int) -> Batch:
        """`count` rows from `start` on; shares the memory, but for odd cells."""

        def part(masks: tuple[pa.Array | None, ...]) -> tuple[pa.Array | None, ...]:
            return tuple(None if flags is None else flags.slice(start, count) for flags in masks)

        return Batch(
            table=self.table,
            rows=self.rows.slice(start, count),
            op=self.op.slice(start, count),
            position=self.position.slice(start, count),
            ordinal=self.ordinal.slice(start, count),
            xid=self.xid.slice(start, count),
            committed_at=self.committed_at.slice(start, count),
            unchanged=part(self.unchanged),
            image=self.image.slice(start, count),
            before=None if self.before is None else self.before.slice(start, count),
            odd={name: _shifted(odd, start, count) for name, odd in self.odd.items()},
            read_later=part(self.read_later),
            handle=None
            if self.handle is None
            else Handle(tuple(k.slice(start, count) for k in self.handle.keys), self.handle.detail),
            before_odd={name: _shifted(odd, start, count) for name, odd in self.before_odd.items()},
        )


def _shifted(odd: Odd, start: int, count: int) -> Odd:
    kept = pc.and_(pc.greater_equal(odd.rows, start), pc.less(odd.rows, start + count))
    return Odd(pc.subtract(odd.rows.filter(kept), start).cast(odd.rows.type), odd.texts.filter(kept))


def _renumbered(odd: Odd, mask: pa.Array) -> Odd:
    kept = mask.take(odd.rows)
    places = pc.cumulative_sum(mask.cast(pa.int64())).take(odd.rows.filter(kept))
    return Odd(pc.subtract(places, 1).cast(odd.rows.type), odd.texts.filter(kept))

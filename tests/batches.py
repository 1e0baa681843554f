"""A builder of batches: rows as dicts, with what the log knew of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.batch import Batch, Image, Odd, Op
from penstock.core.schema import Column, TableSchema

EPOCH = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)

NATIVE = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time without time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
}


def table(
    columns: Mapping[str, pa.DataType | tuple[pa.DataType, str]],
    key: Sequence[str] = ("id",),
    *,
    schema: str = "public",
    name: str = "orders",
    version: int = 1,
    identity: str = "",
) -> TableSchema:
    """A table from names and Arrow types; a pair gives the native type too."""
    made = []
    for column, kind in columns.items():
        arrow, native = kind if isinstance(kind, tuple) else (kind, NATIVE.get(kind, str(kind)))
        made.append(Column(column, arrow, native))
    return TableSchema(schema, name, tuple(made), tuple(key), version, identity)


@dataclass(frozen=True)
class Change:
    """One row of a batch: what happened, what the log carried of the new row and of the old one.

    A column missing from `row` was not carried (unchanged). `old` is the old image: all columns make it FULL, fewer KEY.
    """

    op: Op
    row: Mapping[str, Any] = field(default_factory=dict)
    old: Mapping[str, Any] | None = None
    position: int = 100
    ordinal: int = 1
    xid: int = 7
    committed_at: dt.datetime = EPOCH


def batch(schema: TableSchema, changes: Iterable[Change], odd: Mapping[str, Odd] | None = None) -> Batch:
    """The batch of those changes."""
    listed = list(changes)
    names = [c.name for c in schema.columns]
    shown = [_shown(c) for c in listed]
    arrays = [pa.array([row.get(c.name) for row in shown], c.type) for c in schema.columns]
    masks: list[pa.Array | None] = []
    for name in names:
        mask = [c.op in (Op.INSERT, Op.UPDATE, Op.ENTER, Op.SNAPSHOT) and name not in c.row for c in listed]
        masks.append(pa.array(mask, pa.bool_()) if any(mask) else None)
    before = None
    if any(c.old is not None and c.op in (Op.UPDATE, Op.ENTER) for c in listed):
        olds = [(c.old or {}) if c.op in (Op.UPDATE, Op.ENTER) else {} for c in listed]
        before = pa.RecordBatch.from_arrays(
            [pa.array([o.get(c.name) for o in olds], c.type) for c in schema.columns], schema=schema.arrow
        )
    return Batch(
        table=schema,
        rows=pa.RecordBatch.from_arrays(arrays, schema=schema.arrow),
        op=pa.array([int(c.op) for c in listed], pa.uint8()),
        position=pa.array([c.position for c in listed], pa.int64()),
        ordinal=pa.array([c.ordinal for c in listed], pa.int64()),
        xid=pa.array([c.xid for c in listed], pa.int64()),
        committed_at=pa.array([c.committed_at for c in listed], pa.timestamp("us", "UTC")),
        unchanged=tuple(masks),
        image=pa.array([_image(c, len(names)) for c in listed], pa.uint8()),
        before=before,
        odd=odd or {},
    )


def move(old: Mapping[str, Any], row: Mapping[str, Any], **at: Any) -> list[Change]:
    """The two halves of an update that changed the key."""
    return [Change(Op.LEAVE, old=old, **at), Change(Op.ENTER, row, old, **at)]


def insert(row: Mapping[str, Any], **at: Any) -> Change:
    """An insert."""
    return Change(Op.INSERT, row, **at)


def update(row: Mapping[str, Any], old: Mapping[str, Any] | None = None, **at: Any) -> Change:
    """An update; a column missing from `row` is unchanged."""
    return Change(Op.UPDATE, row, old, **at)


def delete(old: Mapping[str, Any], **at: Any) -> Change:
    """A delete by its old image."""
    return Change(Op.DELETE, old=old, **at)


def truncate(**at: Any) -> Change:
    """A truncate."""
    return Change(Op.TRUNCATE, **at)


def _shown(change: Change) -> Mapping[str, Any]:
    return (change.old or {}) if change.op in (Op.DELETE, Op.LEAVE) else change.row


def _image(change: Change, width: int) -> int:
    if change.old is None:
        return Image.NONE
    return Image.FULL if len(change.old) == width else Image.KEY

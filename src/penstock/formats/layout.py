"""The columnar layout of changes: `__op` to `__before`, then the table's own columns, as Arrow record batches.

One row per change, in log order. An update that changed its key is one row whose `__before` holds the old key.
`__unchanged` names the columns of the new row that the log did not carry: NULL there means "not known", elsewhere it means
NULL. `__unknown`, the last field of `__before`, does the same for the old row; it is null when the whole old row is known.
`__read_later` names the columns whose value was read from the source after the change, so that it may be newer.

A table's own column that is called like one of these names, in any case, is written with one more underscore in front,
as many times as it takes to be unique; its own name stands in the field's metadata, and the reader gives it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Image, Op
from penstock.core.cutting import cut
from penstock.core.schema import Column, TableSchema

UNKNOWN = "__unknown"
OP_NAMES = {
    Op.INSERT: "insert",
    Op.UPDATE: "update",
    Op.DELETE: "delete",
    Op.TRUNCATE: "truncate",
    Op.SNAPSHOT: "snapshot",
    Op.MESSAGE: "message",
    Op.ENTER: "update",
}
_META = (
    pa.field("__op", pa.string(), nullable=False),
    pa.field("__position", pa.int64(), nullable=False),
    pa.field("__ordinal", pa.int64(), nullable=False),
    pa.field("__event_id", pa.string(), nullable=False),
    pa.field("__committed_at", pa.timestamp("us", "UTC")),
    pa.field("__xid", pa.int64()),
    pa.field("__schema_version", pa.int32(), nullable=False),
    pa.field("__unchanged", pa.list_(pa.string()), nullable=False),
    pa.field("__read_later", pa.list_(pa.string()), nullable=False),
)
META_NAMES = (*(f.name for f in _META), "__before")
_RESERVED = frozenset((*META_NAMES, UNKNOWN))
_OPS = pa.array([OP_NAMES.get(Op(code)) if code else None for code in range(len(Op) + 1)], pa.string())


@lru_cache(maxsize=1024)
def layout_schema(table: TableSchema) -> pa.Schema:
    """The Arrow schema of a table's changes; its metadata says schema, table, key, version and native types."""
    own = [
        pa.field(written, column.type, metadata={**column.metadata, "name": column.name})
        for written, column in zip(_written_names(table), table.columns, strict=True)
    ]
    before = pa.struct([*own, pa.field(UNKNOWN, pa.list_(pa.string()))])
    metadata = {
        "schema": table.schema,
        "table": table.name,
        "key": json.dumps(table.key),
        "version": str(table.version),
        "identity": table.identity,
        "native": json.dumps({c.name: c.native for c in table.columns}),
    }
    return pa.schema([*_META, pa.field("__before", before), *own], metadata=metadata)


@lru_cache(maxsize=1024)
def _shapes(table: TableSchema) -> tuple[pa.Schema, pa.StructType]:
    schema = layout_schema(table)
    return schema, schema.field("__before").type


def to_layout(batch: Batch, source: str) -> pa.RecordBatch:
    """The batch's changes in the layout, in order, LEAVE rows left out; `source` begins every event id."""
    from penstock.formats.kernels.event_id import event_ids

    batch = without_leaves(batch)
    table, count = batch.table, len(batch)
    schema, kind = _shapes(table)
    op = batch.op.to_numpy(zero_copy_only=False)
    image = batch.image.to_numpy(zero_copy_only=False)
    unchanged = _marked(batch, batch.unchanged, op)
    meta = [
        _names(op),
        batch.position,
        batch.ordinal,
        event_ids(source, batch.position, batch.ordinal),
        batch.committed_at,
        batch.xid,
        cut(_versions, count, table.version),
        name_lists(table, unchanged, count),
        name_lists(table, _marked(batch, batch.read_later, op), count),
    ]
    before = _before(batch, kind, op, image)
    columns = batch.rows.columns
    if unchanged is not None:
        columns = [_blank(column, unchanged, i) for i, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays([*meta, before, *columns], schema=schema)


def table_of(schema: pa.Schema) -> TableSchema:
    """The table that a layout schema describes; ValueError when the schema is not of this layout."""
    metadata = schema.metadata or {}
    if b"version" not in metadata or schema.names[: len(META_NAMES)] != list(META_NAMES):
        raise ValueError("these columns are not in penstock's layout of changes")
    own = list(schema)[len(META_NAMES) :]
    columns = [Column.of_field(field, (field.metadata or {}).get(b"name", b"").decode()) for field in own]
    return TableSchema(
        metadata[b"schema"].decode(),
        metadata[b"table"].decode(),
        tuple(columns),
        tuple(json.loads(metadata[b"key"])),
        int(metadata[b"version"]),
        metadata.get(b"identity", b"").decode(),
    )


def rows_of(changes: pa.RecordBatch) -> pa.RecordBatch:
    """The table's own columns of changes in the layout, under their own names."""
    return pa.RecordBatch.from_arrays(changes.columns[len(META_NAMES) :], schema=table_of(changes.schema).arrow)


def _written_names(table: TableSchema) -> list[str]:
    own = {column.name for column in table.columns}
    written = []
    for column in table.columns:
        name = column.name
        while name.lower() in _RESERVED or (name != column.name and name in own):
            name = f"_{name}"
        written.append(name)
    return written


def without_leaves(batch: Batch) -> Batch:
    """The batch without the LEAVE halves of key changes, which are no changes of their own."""
    leaves = batch.op.to_numpy(zero_copy_only=False) == int(Op.LEAVE)
    return batch.filter(pa.array(~leaves)) if leaves.any() else batch


def _names(op: Any) -> pa.Array:
    """What happened to each row, in a word."""
    if len(op) and (op == op[0]).all():
        return cut(_repeated, len(op), int(op[0]))
    return pc.take(_OPS, pa.array(op))


def _repeated(count: int, op: int) -> pa.Array:
    return pa.repeat(_OPS[op], count)


def _versions(count: int, version: int) -> pa.Array:
    return pa.repeat(pa.scalar(version, pa.int32()), count)


def _no_rows(count: int, kind: pa.StructType) -> pa.Array:
    return pa.nulls(count, kind)


def _marked(batch: Batch, masks: Sequence[pa.Array | None], op: Any) -> Any:
    """Which cells of new rows the masks mark, as a boolean matrix; None when they mark none."""
    if all(mask is None for mask in masks):
        return None
    matrix = np.zeros((len(batch), len(batch.table.columns)), dtype=np.bool_)
    for i, mask in enumerate(masks):
        if mask is not None:
            matrix[:, i] = mask.to_numpy(zero_copy_only=False)
    matrix[(op == Op.DELETE) | (op == Op.TRUNCATE)] = False
    return matrix


def name_lists(table: TableSchema, matrix: Any, count: int) -> pa.Array:
    """Per row the names of the columns that the matrix marks."""
    if matrix is None:
        return cut(_without_names, count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(matrix.sum(axis=1), out=offsets[1:])
    names = pa.array([column.name for column in table.columns], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(matrix)[1])))


def _without_names(count: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, dtype=np.int32)), pa.array([], pa.string()))


def _before(batch: Batch, kind: pa.StructType, op: Any, image: Any) -> pa.Array:
    """The old rows: from `before` for updates, from the row itself for deletes, null where nothing is known."""
    count = len(batch)
    deleted = op == int(Op.DELETE)
    if batch.before is None and not deleted.any():
        return cut(_no_rows, count, kind)
    known = (image != Image.NONE) & (deleted | (op == Op.UPDATE) | (op == Op.ENTER))
    if batch.before is None:
        known &= deleted
    if not known.any():
        return cut(_no_rows, count, kind)
    key_only = known & (image == Image.KEY)
    if batch.before is None:
        children = list(batch.rows.columns)
    elif not deleted.any():
        children = list(batch.before.columns)
    else:
        old = pa.array(deleted)
        children = [pc.if_else(old, row, was) for row, was in zip(batch.rows.columns, batch.before.columns, strict=True)]
    unknown = None
    if key_only.any():
        unknown = np.zeros((count, len(children)), dtype=np.bool_)
        unknown[np.ix_(key_only, [i for i in range(len(children)) if i not in batch.table.key_indexes])] = True
        children = [_blank(child, unknown, i) for i, child in enumerate(children)]
    lists = pc.if_else(pa.array(key_only), name_lists(batch.table, unknown, count), pa.scalar(None, pa.list_(pa.string())))
    absent = pa.array(~known)
    return pa.StructArray.from_arrays([*children, lists], fields=list(kind), mask=absent)


def _blank(column: pa.Array, unknown: Any, index: int) -> pa.Array:
    """The column with NULL where its value is not known, so that what stands there cannot differ between replays."""
    if unknown is None or not unknown[:, index].any():
        return column
    return pc.if_else(pa.array(unknown[:, index]), pa.scalar(None, column.type), column)

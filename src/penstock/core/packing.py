"""Batches as bytes: a whole batch with everything the log knew of it, as one Arrow stream that any later version can read.

The schema's metadata holds the table's description. Columns are named by a letter for their part and the number of the
table's column: `r` rows, `b` old rows, `u` unchanged, `l` read later, `o` and `p` the texts of what `r` and `b` cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Odd
from penstock.core.schema import TableSchema

_META = ("op", "position", "ordinal", "xid", "committed_at", "image")


def pack(batch: Batch) -> bytes:
    """The batch as bytes; its handle, which only the lane that decoded it can use, is left out."""
    columns: dict[str, pa.Array] = {name: getattr(batch, name) for name in _META}
    columns |= {f"r{i}": cells for i, cells in enumerate(batch.rows.columns)}
    columns |= {f"b{i}": cells for i, cells in enumerate(batch.before.columns if batch.before is not None else ())}
    for letter, masks in (("u", batch.unchanged), ("l", batch.read_later)):
        columns |= {f"{letter}{i}": mask for i, mask in enumerate(masks) if mask is not None}
    for letter, odd in (("o", batch.odd), ("p", batch.before_odd)):
        for i, column in enumerate(batch.table.columns):
            strange = odd.get(column.name)
            if strange is not None and len(strange.rows):
                columns[f"{letter}{i}"] = _spread(strange, len(batch))
    metadata = {"table": json.dumps(batch.table.to_data()), "old": "1" if batch.before is not None else ""}
    schema = pa.schema([pa.field(name, cells.type) for name, cells in columns.items()], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpack(content: bytes) -> Batch:
    """The batch that `pack` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
        packed = stream.read_next_batch()
    metadata = packed.schema.metadata
    table = TableSchema.from_data(json.loads(metadata[b"table"]))
    columns = dict(zip(packed.schema.names, packed.columns, strict=True))
    count, width = packed.num_rows, range(len(table.columns))
    later = tuple(columns.get(f"l{i}") for i in width)
    return Batch(
        table=table,
        rows=_rows(table, columns, "r", count),
        **{name: columns[name] for name in _META},
        unchanged=tuple(columns.get(f"u{i}") for i in width),
        before=_rows(table, columns, "b", count) if metadata[b"old"] else None,
        odd=_odd(table, columns, "o"),
        read_later=later if any(mask is not None for mask in later) else (),
        before_odd=_odd(table, columns, "p"),
    )


def _rows(table: TableSchema, columns: Mapping[str, pa.Array], letter: str, count: int) -> pa.RecordBatch:
    if not table.columns:
        # A record batch without columns has no length of its own.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays([columns[f"{letter}{i}"] for i in range(len(table.columns))], schema=table.arrow)


def _spread(odd: Odd, count: int) -> pa.Array:
    """The texts, each in its row."""
    return odd.texts.take(pc.index_in(pa.array(range(count), odd.rows.type), value_set=odd.rows))


def _odd(table: TableSchema, columns: Mapping[str, pa.Array], letter: str) -> dict[str, Odd]:
    found = {}
    for i, column in enumerate(table.columns):
        texts = columns.get(f"{letter}{i}")
        if texts is not None:
            there = texts.is_valid()
            found[column.name] = Odd(pc.indices_nonzero(there).cast(pa.int64()), texts.filter(there))
    return found

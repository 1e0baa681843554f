"""Executor half of the duckdb destination: folds one bucket and stages what the driver is to apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Place, Receipt, Writer
from penstock.destinations.duckdb import types
from penstock.destinations.duckdb.odd import held
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.types import travel, travelling
from penstock.destinations.filesystem import mended
from penstock.destinations.folding import kernel
from penstock.destinations.folding.fold import Fold, Folded, Patches
from penstock.destinations.staging import Staged
from penstock.destinations.unrepresentable import settle
from penstock.errors import TruncateRefused

Chunk = dict[str, Any]
"""Where the parts of a folded chunk are, as plain data."""


class DuckDBWriter(Writer):
    """Stages folded changes as Arrow."""

    options: DuckDBOptions

    def __init__(self, place: Place, options: DuckDBOptions) -> None:
        super().__init__(place, options)

    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Folds and stages one bucket, holding about two chunks of 64 MB in memory."""
        fold = Fold()
        chunks: list[Chunk] = []
        tables: Counter[str] = Counter()
        nulled: Counter[str] = Counter()
        ignored: Counter[str] = Counter()
        with mended(self.place.staging), Staged(self.place.staging, epoch) as staged:
            for batch in self._wanted(batches, ignored):
                batch = held(batch)
                settle(batch, self.options.on_unrepresentable, nulled, before=False)
                for folded in fold.add(batch):
                    _stage(staged, folded, chunks, tables)
            for folded in fold.end():
                _stage(staged, folded, chunks, tables)
            place = staged.end()
        # Every bucket is given each TRUNCATE, and it is one all the same.
        counts = {"unrepresentable": nulled.total(), "truncates_ignored": 0 if bucket else ignored.total()}
        return {
            "rows": sum(tables.values()),
            "tables": dict(tables),
            "counts": {name: n for name, n in counts.items() if n},
            "nulled": dict(nulled),
            "chunks": chunks,
            **place,
        }

    def _wanted(self, batches: Iterator[Batch], ignored: Counter[str]) -> Iterator[Batch]:
        """The batches after the truncate policy; adds to `ignored`, by table, the TRUNCATEs that it leaves out."""
        for batch in batches:
            if self.options.on_truncate != "apply":
                rows = pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))
                if not pc.all(rows, min_count=0).as_py():
                    if self.options.on_truncate == "halt":
                        raise TruncateRefused(f"{batch.table.qualified} was truncated at the source", table=batch.table.qualified)
                    ignored[batch.table.qualified] += len(batch) - int(pc.sum(rows).as_py() or 0)
                    batch = batch.filter(rows)
            if len(batch):
                yield batch


def _stage(staged: Staged, folded: Folded, chunks: list[Chunk], tables: Counter[str]) -> None:
    table = folded.table
    tables[table.qualified] += folded.changes
    if folded.truncated:
        chunks[:] = [chunk for chunk in chunks if (chunk["schema"], chunk["table"]) != (table.schema, table.name)]
    chunk: Chunk = {
        "schema": table.schema,
        "table": table.name,
        "version": table.version,
        "columns": [column.name for column in table.columns],
        "key": list(table.key),
        "truncated": folded.truncated,
        "last": list(folded.last),
        "foreign": folded.patches is not None and folded.patches.foreign > 0,
    }
    if folded.upserts.num_rows:
        chunk["upserts"] = staged.add(_travelled(folded.upserts, table))
    if folded.deletes.num_rows:
        chunk["deletes"] = staged.add(_travelled(folded.deletes, table))
    if folded.patches is not None:
        patches = patch_table(folded.patches, table, None)
        stays = _stays(patches, table)
        for name, rows in (("patches", patches.filter(stays)), ("moved", patches.filter(pc.invert(stays)))):
            if rows.num_rows:
                chunk[name] = staged.add(rows)
    if folded.departures is not None:
        chunk["departures"] = staged.add(patch_table(folded.departures.patches, table, folded.departures.at))
    chunks.append(chunk)


def _stays(patches: pa.Table, table: TableSchema) -> pa.Array:
    """Whether the origin is the destination's row of the same key, so that the row can be changed where it is."""
    stays = pc.is_null(patches.column("from_position"))
    for place, index in enumerate(table.key_indexes):
        own, origin = (_storage(patches.column(name)) for name in (f"r{index}", f"o{place}"))
        stays = pc.and_(stays, pc.fill_null(pc.equal(own, origin), False))
    return stays


def _storage(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The plain values of an extension type, which comparisons do not know."""
    return values.cast(values.type.storage_type) if isinstance(values.type, pa.BaseExtensionType) else values


def patch_table(patches: Patches, table: TableSchema, left: pa.Table | None) -> pa.Table:
    """Patches as one table: `r` and a number for the cells, `m` for the marks of cells to be taken from the origin, `o` for
    the origin's key, `from_…` for another bucket's departure, `left_…` for what kind of departure this is itself."""
    columns: dict[pa.Field, Any] = {}
    for letter, part in (("r", _travelled(patches.rows, table)), ("o", _travelled(patches.origin, table))):
        for number, (field, values) in enumerate(zip(part.schema, part.columns, strict=True)):
            columns[field.with_name(f"{letter}{number}")] = values
    for number, marks in enumerate(patches.unchanged):
        if marks is not None:
            columns[pa.field(f"m{number}", pa.bool_())] = marks
    for prefix, at in (("from", patches.departure), ("left", left)):
        if at is not None:
            for name in ("position", "ordinal"):
                columns[pa.field(f"{prefix}_{name}", pa.int64())] = at.column(name)
    return pa.table(list(columns.values()), schema=pa.schema(list(columns)))


def _travelled(rows: pa.Table, table: TableSchema) -> pa.Table:
    columns = {column.name: column for column in table.columns}
    fields = [travelling(columns[name]) for name in rows.column_names]
    return pa.table([travel(values, field) for values, field in zip(rows.columns, fields, strict=True)], schema=pa.schema(fields))


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    kernel.warm()
    types.warm()

"""Executor half of the duckdb destination: folded changes, staged with types that DuckDB takes as they are."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.destinations.duckdb import uuids
from penstock.destinations.duckdb.odd import meanings
from penstock.destinations.duckdb.types import travel, travelling
from penstock.destinations.folding import writer
from penstock.destinations.folding.writer import FoldingWriter
from penstock.destinations.odd import held


class DuckDBWriter(FoldingWriter):
    """Stages folded changes as Arrow."""

    def hold(self, batch: Batch) -> Batch:
        """Infinite dates and timestamps and the end of the day stand in their place."""
        return held(batch, meanings)

    def travel(self, rows: pa.Table, table: TableSchema) -> pa.Table:
        """The rows as DuckDB takes them."""
        columns = {column.name: column for column in table.columns}
        fields = [travelling(columns[name]) for name in rows.column_names]
        return pa.table(
            [travel(values, field) for values, field in zip(rows.columns, fields, strict=True)], schema=pa.schema(fields)
        )


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    writer.warm()
    uuids.warm()

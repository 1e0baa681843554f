"""Names as DuckDB reads them."""

from __future__ import annotations

from penstock.destinations.sql import quoted


def qualified(catalog: str, schema: str, table: str) -> str:
    """A table's full name; without the catalog a schema called `temp` or like the file would mean something else."""
    return f"{quoted(catalog)}.{quoted(schema)}.{quoted(table)}"

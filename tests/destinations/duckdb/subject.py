"""How the conformance suite makes and reads a DuckDB destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from penstock.core.schema import TableSchema


def options(home: Path) -> dict[str, Any]:
    return {"path": str(home / "target.duckdb")}


def rows(home: Path, table: TableSchema) -> list[dict[str, Any]]:
    schema, name = (part.replace('"', '""') for part in (table.schema, table.name))
    with duckdb.connect(str(home / "target.duckdb"), read_only=True) as connection:
        found: list[dict[str, Any]] = (
            connection.execute(f'SELECT * FROM "target"."{schema}"."{name}"').to_arrow_table().to_pylist()
        )
    return found

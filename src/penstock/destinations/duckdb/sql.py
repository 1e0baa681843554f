"""Names and conditions as DuckDB reads them."""

from __future__ import annotations

from collections.abc import Sequence


def quoted(name: str) -> str:
    """An identifier, whatever it contains."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def qualified(catalog: str, schema: str, table: str) -> str:
    """A table's full name; without the catalog a schema called `temp` or like the file would mean something else."""
    return f"{quoted(catalog)}.{quoted(schema)}.{quoted(table)}"


def equal(left: Sequence[str], right: Sequence[str]) -> str:
    """The condition that two lists of columns are equal, pair by pair."""
    return " AND ".join(f"{a} = {b}" for a, b in zip(left, right, strict=True))

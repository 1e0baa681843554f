"""The refusal of tables whose changes cannot be applied."""

from __future__ import annotations

from penstock.core.schema import TableSchema
from penstock.destinations.sql import quoted
from penstock.errors import TableWithoutKey


def require_key(table: TableSchema) -> None:
    """TableWithoutKey, with the statement that helps, when nothing identifies the table's rows."""
    if not table.key:
        raise TableWithoutKey(
            f"{table.qualified} has no primary key, so changes cannot be applied to it",
            remedy=f"ALTER TABLE {quoted(table.schema)}.{quoted(table.name)} ADD PRIMARY KEY (…); on the source,"
            " or exclude the table from this destination, or send it to a change-log destination such as files.",
            table=table.qualified,
        )

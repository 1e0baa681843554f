"""Tables at the target: created from the source's schema, changed when it changes, never two sources in one."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from penstock.core.schema import TableSchema
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.sql import qualified
from penstock.destinations.duckdb.types import duckdb_type, keeps
from penstock.destinations.folding.keys import require_key
from penstock.destinations.sql import quoted
from penstock.errors import SchemaRefused

BOOKKEEPING = "penstock"
_POSITIONS = "positions"
_TABLES = "tables"


class Tables:
    """The tables of one flow's destination in an open database."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, flow: str, destination: str, options: DuckDBOptions) -> None:
        self._connection, self._owner, self._options = connection, (flow, destination), options
        self.catalog = _one(connection, "SELECT current_database()")

    def bookkeeping(self) -> None:
        """Makes the tables that remember positions and which source table stands where."""
        home = f"{quoted(self.catalog)}.{BOOKKEEPING}"
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {home}")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {home}.{_POSITIONS} (flow VARCHAR, destination VARCHAR, source VARCHAR, position BIGINT,"
            " epoch BIGINT, generation BIGINT, committed_at TIMESTAMP WITH TIME ZONE)"
        )
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {home}.{_TABLES} (flow VARCHAR, destination VARCHAR, source_schema VARCHAR,"
            " source_table VARCHAR, target_schema VARCHAR, target_table VARCHAR, version BIGINT)"
        )

    @property
    def positions(self) -> str:
        """The table of positions."""
        return f"{quoted(self.catalog)}.{BOOKKEEPING}.{_POSITIONS}"

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Makes every table ready, each in a transaction of its own.

        DDL never shares a transaction with rows: DuckDB has lost rows of a table that was created in the same one.
        """
        for table in tables:
            require_key(table)
            _refuse_twin_columns(table)
        for table in tables:
            self._connection.execute("BEGIN")
            self._claim(table)
            self._shape(table)
            self._connection.execute("COMMIT")

    def target(self, table: TableSchema) -> str:
        """The quoted name of the table's target."""
        return qualified(self.catalog, *self._options.target(table))

    def _claim(self, table: TableSchema) -> None:
        """Remembers which source table stands at the target; two that DuckDB cannot tell apart are refused."""
        schema, name = self._options.target(table)
        if schema.lower() == BOOKKEEPING and name.lower() in (_POSITIONS, _TABLES):
            raise SchemaRefused(
                f"{table.qualified} would overwrite {BOOKKEEPING}.{name}, which holds the positions",
                remedy="Exclude the table, or give the destination a schema_template or table_template.",
                table=table.qualified,
            )
        book = f"{quoted(self.catalog)}.{BOOKKEEPING}.{_TABLES}"
        rows = self._connection.execute(
            f"SELECT source_schema, source_table FROM {book} WHERE flow = ? AND destination = ?"
            " AND lower(target_schema) = lower(?) AND lower(target_table) = lower(?)",
            [*self._owner, schema, name],
        ).fetchall()
        for other in rows:
            if other != (table.schema, table.name):
                raise SchemaRefused(
                    f"{table.qualified} and {'.'.join(other)} would both be {schema}.{name}, and DuckDB does not tell case apart",
                    remedy="Exclude one of them, or send them to tables of their own with schema_template or table_template.",
                    table=table.qualified,
                )
        if rows:
            self._connection.execute(
                f"UPDATE {book} SET version = ? WHERE flow = ? AND destination = ? AND source_schema = ? AND source_table = ?",
                [table.version, *self._owner, table.schema, table.name],
            )
        else:
            values = [*self._owner, table.schema, table.name, schema, name, table.version]
            self._connection.execute(f"INSERT INTO {book} VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def _shape(self, table: TableSchema) -> None:
        """Creates the table, or gives it the columns and types it lacks; columns that the source dropped stay."""
        schema, name = self._options.target(table)
        target = self.target(table)
        present = self._columns(schema, name)
        if not present:
            columns = ", ".join(f"{quoted(c.name)} {duckdb_type(c)}" for c in table.columns)
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.catalog)}.{quoted(schema)}")
            self._connection.execute(f"CREATE TABLE {target} ({columns})")
            return
        for column in table.columns:
            wanted = duckdb_type(column)
            there = present.get(column.name.lower())
            if there is None:
                self._connection.execute(f"ALTER TABLE {target} ADD COLUMN {quoted(column.name)} {wanted}")
            elif not keeps(there, wanted):
                self._retype(table, column.name, there, wanted)

    def _retype(self, table: TableSchema, column: str, present: str, wanted: str) -> None:
        """Changes a column's type when every value that is there survives it."""
        name, target = quoted(column), self.target(table)
        # The moment that a wall-clock time means depends on the session that changed the source: no cast can know it.
        zoned = {present, wanted} == {"TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}
        new = f"TRY_CAST({name} AS {wanted})"
        lost = f"{new} IS NULL OR TRY_CAST({new} AS {present}) IS DISTINCT FROM {name}"
        if zoned or _one(self._connection, f"SELECT count(*) FROM {target} WHERE {name} IS NOT NULL AND ({lost})"):
            raise SchemaRefused(
                f"{table.qualified}: column {column} is {present} at the destination and {wanted} at the source,"
                " and rows that are there would lose by the change",
                remedy=f"ALTER TABLE {target} ALTER COLUMN {name} TYPE {wanted} USING …, in DuckDB, then start the flow again.",
                table=table.qualified,
                column=column,
            )
        self._connection.execute(f"ALTER TABLE {target} ALTER COLUMN {name} TYPE {wanted}")

    def _columns(self, schema: str, name: str) -> dict[str, str]:
        rows = self._connection.execute(
            "SELECT column_name, data_type FROM duckdb_columns()"
            " WHERE database_name = ? AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?)",
            [self.catalog, schema, name],
        ).fetchall()
        return {column.lower(): kind for column, kind in rows}


def _refuse_twin_columns(table: TableSchema) -> None:
    seen: dict[str, str] = {}
    for column in table.columns:
        twin = seen.setdefault(column.name.lower(), column.name)
        if twin != column.name:
            raise SchemaRefused(
                f"{table.qualified}: columns {twin} and {column.name} are one column for DuckDB, which does not tell case apart",
                remedy="Rename one of them at the source, or exclude the table from this destination.",
                table=table.qualified,
            )


def _one(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    row = connection.execute(sql).fetchone()
    assert row is not None
    value: str = row[0]
    return value

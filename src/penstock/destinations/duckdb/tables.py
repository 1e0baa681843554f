"""Tables at the target: created from the source's schema, changed when it changes, never two sources in one."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from penstock.core.schema import TableSchema
from penstock.destinations.duckdb.loading import DuckDBStore
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.sql import qualified
from penstock.destinations.duckdb.types import duckdb_type, keeps
from penstock.destinations.folding.keys import require_key
from penstock.destinations.loading import COLUMNS, StagingBook
from penstock.destinations.sql import quoted
from penstock.errors import SchemaRefused

BOOKKEEPING = "penstock"
_POSITIONS = "positions"
_TABLES = "tables"
_STAGING = "staging"


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
            " epoch BIGINT, generation BIGINT, committed_at TIMESTAMP WITH TIME ZONE, part BIGINT)"
        )
        # Earlier versions made it without.
        self._connection.execute(f"ALTER TABLE {home}.{_POSITIONS} ADD COLUMN IF NOT EXISTS part BIGINT")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {home}.{_TABLES} (flow VARCHAR, destination VARCHAR, source_schema VARCHAR,"
            " source_table VARCHAR, target_schema VARCHAR, target_table VARCHAR, version BIGINT)"
        )
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {home}.{_STAGING} ({COLUMNS})")

    @property
    def positions(self) -> str:
        """The table of positions."""
        return f"{quoted(self.catalog)}.{BOOKKEEPING}.{_POSITIONS}"

    @property
    def store(self) -> DuckDBStore:
        """The database, for what is remembered of staging tables."""
        return DuckDBStore(self._connection, self.catalog, f"{quoted(self.catalog)}.{BOOKKEEPING}.{_STAGING}")

    def prepare(self, tables: Sequence[TableSchema], book: StagingBook) -> None:
        """Makes every table ready, each in a transaction of its own.

        DDL never shares a transaction with rows: DuckDB has lost rows of a table that was created in the same one.
        """
        for table in tables:
            require_key(table)
            _refuse_twin_columns(table)
        store = self.store
        # All at once: each look goes through every column of the database, 33 ms each where there are a thousand tables.
        shapes = self._columns([self._options.target(table) for table in tables])
        for table, present in zip(tables, shapes, strict=True):
            self._connection.execute("BEGIN")
            book.refuse_target(store, table, self._options.target(table))
            self._claim(table)
            self._shape(table, present)
            self._prepare_staging(table, book, store)
            self._connection.execute("COMMIT")

    def target(self, table: TableSchema) -> str:
        """The quoted name of the table's target."""
        return qualified(self.catalog, *self._options.target(table))

    def _claim(self, table: TableSchema) -> None:
        """Remembers which source table stands at the target; two that DuckDB cannot tell apart are refused."""
        schema, name = self._options.target(table)
        if schema.lower() == BOOKKEEPING and name.lower() in (_POSITIONS, _TABLES, _STAGING):
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

    def _shape(self, table: TableSchema, present: dict[str, str]) -> None:
        """Creates the table, or gives it the columns and types it lacks; columns that the source dropped stay."""
        schema, target = self._options.target(table)[0], self.target(table)
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

    def _prepare_staging(self, table: TableSchema, book: StagingBook, store: DuckDBStore) -> None:
        """Makes the staging table that a prepared table is to have now, with the target's own types."""
        staging = book.wanted(store, table)
        if staging is None:
            return
        known = book.known(store).get(staging.source)
        name = store.named(staging.place)
        present, types = self._columns([staging.place, self._options.target(table)])
        if present and (known is None or not store.same(known.place, staging.place)):
            raise SchemaRefused(
                f"{table.qualified}: {'.'.join(staging.place)}, its staging table by the options, is there and not penstock's",
                remedy="Set staging_schema, staging_table or staging_suffix on the destination, or drop that table.",
                table=table.qualified,
            )
        if not present:
            columns = ", ".join(f"{quoted(column)} {types[column.lower()]}" for column in staging.columns)
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.catalog)}.{quoted(staging.place[0])}")
            self._connection.execute(f"CREATE TABLE {name} ({columns})")
        for column in staging.columns if present else ():
            wanted, there = types[column.lower()], present.get(column.lower())
            if there is None:
                self._connection.execute(f"ALTER TABLE {name} ADD COLUMN {quoted(column)} {wanted}")
            elif there != wanted:
                self._connection.execute(f"ALTER TABLE {name} ALTER COLUMN {quoted(column)} TYPE {wanted}")
        book.keep(store, staging)

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

    def _columns(self, places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
        """The columns, by lower name, and types of the tables at these places; none where there is no table."""
        rows = self._connection.execute(
            "SELECT w.number, c.column_name, c.data_type FROM duckdb_columns() c"
            " JOIN (SELECT unnest(?) AS schema, unnest(?) AS name, unnest(range(?)) AS number) w"
            " ON lower(c.schema_name) = lower(w.schema) AND lower(c.table_name) = lower(w.name)"
            " WHERE c.database_name = ? ORDER BY w.number, c.column_index",
            [[schema for schema, _ in places], [name for _, name in places], len(places), self.catalog],
        ).fetchall()
        found: list[dict[str, str]] = [{} for _ in places]
        for number, column, kind in rows:
            found[number][column.lower()] = kind
        return found


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

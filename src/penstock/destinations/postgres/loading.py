"""Staging tables in PostgreSQL: made and changed to follow their targets, merged into them without touching what stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.schema import TableSchema
from penstock.destinations.loading import StagingBook, StagingTable
from penstock.destinations.postgres.bookkeeping import HOME, STAGING, TABLES
from penstock.destinations.postgres.session import Connection, execute
from penstock.destinations.postgres.tables import Tables, columns_of, is_unique, make_schema
from penstock.destinations.sql import equal, listed, quoted
from penstock.errors import SchemaRefused

_KEY = """
SELECT c.conname FROM pg_catalog.pg_constraint c
 WHERE c.contype = 'p' AND c.conrelid = pg_catalog.to_regclass($1)
"""


class PostgresStore:
    """One connection, in the caller's transaction."""

    book = f"{HOME}.{STAGING}"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement; how many rows it has written."""
        return execute(self._connection, sql, values).rowcount

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query gives."""
        return execute(self._connection, sql, values).fetchall()

    def same(self, place: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether two names are one table."""
        return place == other

    def empty(self, place: tuple[str, str]) -> None:
        """Removes every row."""
        self.run(f"TRUNCATE {_named(place)}")

    def append(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Adds rows that the target lacks."""
        return self.run(f"{_insert(staging, target)} DO NOTHING"), 0

    def replace(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Makes the target what the staging table is; rows that are already so are not written."""
        own, staged = ([f"{table}.{quoted(k)}" for k in staging.key] for table in ("penstock_target", "penstock_staged"))
        removed = self.run(
            f"DELETE FROM {_named(target)} AS penstock_target WHERE NOT EXISTS"
            f" (SELECT FROM {_named(staging.place)} AS penstock_staged WHERE {equal(own, staged)})"
        )
        assignments = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in staging.columns)
        # By their texts: there are types without equality, and values that are equal and not the same.
        differs = " OR ".join(
            f"penstock_target.{quoted(name)}::text IS DISTINCT FROM EXCLUDED.{quoted(name)}::text" for name in staging.columns
        )
        return self.run(f"{_insert(staging, target)} DO UPDATE SET {assignments} WHERE {differs}"), removed


def _insert(staging: StagingTable, target: tuple[str, str]) -> str:
    names = listed(staging.columns)
    return (
        f"INSERT INTO {_named(target)} AS penstock_target ({names}) OVERRIDING SYSTEM VALUE"
        f" SELECT {names} FROM {_named(staging.place)} ON CONFLICT ({listed(staging.key)})"
    )


def prepare_staging(connection: Connection, book: StagingBook, tables: Tables, table: TableSchema) -> None:
    """Makes the staging table that a prepared table is to have now, with the target's own types."""
    store = PostgresStore(connection)
    staging = book.wanted(store, table)
    if staging is None:
        return
    tables.refuse_long(table, *staging.place)
    known = book.known(store).get(staging.source)
    if known is None or known.place != staging.place:
        _refuse_taken(connection, table, staging.place)
    _follow(connection, staging, tables.options.target(table))
    book.keep(store, staging)
    tables.forget_shape(staging.place)


def _refuse_taken(connection: Connection, table: TableSchema, place: tuple[str, str]) -> None:
    """A table that is there already is somebody's: staging tables are emptied."""
    claimed = execute(
        connection, f"SELECT 1 FROM {HOME}.{TABLES} WHERE target_schema = $1 AND target_table = $2", list(place)
    ).fetchone()
    there = execute(connection, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", [_named(place)]).fetchone()
    if claimed is not None or (there is not None and there[0]):
        raise SchemaRefused(
            f"{table.qualified}: {'.'.join(place)}, its staging table by the options, is there and not penstock's",
            remedy="Set staging_schema, staging_table or staging_suffix on the destination, or drop that table.",
            table=table.qualified,
        )


def _follow(connection: Connection, staging: StagingTable, target: tuple[str, str]) -> None:
    """Creates the staging table, or gives it the columns, types and key that its target has."""
    name = _named(staging.place)
    types = {column: present.type for column, present in columns_of(connection, *target).items()}
    present = columns_of(connection, *staging.place)
    if not present:
        make_schema(connection, staging.place[0])
        columns = ", ".join(f"{quoted(column)} {types[column]}" for column in staging.columns)
        execute(connection, f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({listed(staging.key)}))")
        source = ".".join(staging.source).replace("'", "''")
        execute(connection, f"COMMENT ON TABLE {name} IS 'penstock: rows of a load of {source} wait here'")
        return
    changes = []
    for column in staging.columns:
        if column not in present:
            changes.append(f"ADD COLUMN {quoted(column)} {types[column]}")
        elif present[column].type != types[column]:
            changes.append(f"ALTER COLUMN {quoted(column)} TYPE {types[column]} USING {quoted(column)}::{types[column]}")
    if not is_unique(connection, staging.place, staging.key):
        changes += [f"DROP CONSTRAINT {quoted(row[0])}" for row in execute(connection, _KEY, [name]).fetchall()]
        changes.append(f"ADD PRIMARY KEY ({listed(staging.key)})")
    if changes:
        execute(connection, f"ALTER TABLE {name} {', '.join(changes)}")


def _named(place: tuple[str, str]) -> str:
    return f"{quoted(place[0])}.{quoted(place[1])}"

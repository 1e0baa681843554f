"""Staging tables in DuckDB, merged into their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from penstock.destinations.duckdb.sql import qualified
from penstock.destinations.loading import StagingTable
from penstock.destinations.sql import equal, listed, quoted


class DuckDBStore:
    """One open database, in the caller's transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: str, book: str) -> None:
        self._connection, self._catalog, self.book = connection, catalog, book

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement; how many rows it has written."""
        found = self._connection.execute(sql, list(values)).fetchone()
        return 0 if found is None else int(found[0])

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query gives."""
        return self._connection.execute(sql, list(values)).fetchall()

    def named(self, place: tuple[str, str]) -> str:
        """The quoted name of a table."""
        return qualified(self._catalog, *place)

    def same(self, place: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether two names are one table: DuckDB does not tell case apart."""
        return [part.lower() for part in place] == [part.lower() for part in other]

    def empty(self, place: tuple[str, str]) -> None:
        """Removes every row."""
        self.run(f"DELETE FROM {self.named(place)}")

    def append(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Adds rows that the target lacks."""
        own, staged = ([f"{table}.{quoted(k)}" for k in staging.key] for table in ("penstock_target", "penstock_staged"))
        lacks = f"NOT EXISTS (SELECT 1 FROM {self.named(target)} AS penstock_target WHERE {equal(own, staged)})"
        return self._insert(staging, target, f" AS penstock_staged WHERE {lacks}"), 0

    def replace(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Makes the target what the staging table is."""
        own, staged = ([f"{table}.{quoted(k)}" for k in staging.key] for table in ("penstock_target", "penstock_staged"))
        found = self.rows(
            f"SELECT count(*) FROM {self.named(target)} AS penstock_target WHERE NOT EXISTS"
            f" (SELECT 1 FROM {self.named(staging.place)} AS penstock_staged WHERE {equal(own, staged)})"
        )
        self.empty(target)
        return self._insert(staging, target), int(found[0][0])

    def _insert(self, staging: StagingTable, target: tuple[str, str], which: str = "") -> int:
        names = listed(staging.columns)
        return self.run(f"INSERT INTO {self.named(target)} ({names}) SELECT {names} FROM {self.named(staging.place)}{which}")

"""Rows that changed their key while the log left cells of them out: completed from where they were before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.duckdb.sql import equal, quoted

_MOVED = "temp.penstock_moved"
_LEFT = "temp.penstock_left"
_AT = ("penstock_left_position", "penstock_left_ordinal")


class Departing(Protocol):
    """A chunk, as far as it matters here."""

    columns: list[str]
    key: list[str]

    def part(self, name: str) -> pa.Table | None:
        """One of its tables."""


class Moves:
    """The moves within one table and one epoch; temporary tables hold them, so that big values spill to disk.

    When rows cross buckets, every departure is first completed and kept under its position and ordinal.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, target: str, *, crossing: bool) -> None:
        self._connection, self._target, self._crossing = connection, target, crossing
        self._seen: list[Departing] = []
        self._waiting: list[tuple[pa.Table, list[str]]] = []
        if crossing:
            at = ", ".join(f"0::BIGINT AS {name}" for name in _AT)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE penstock_left AS SELECT {at}, * FROM {target} LIMIT 0")

    def see(self, chunk: Departing) -> None:
        """Keeps what leaves the bucket in a chunk whose predecessors are all applied; a second time does nothing."""
        if any(chunk is seen for seen in self._seen):
            return
        self._seen.append(chunk)
        departures = chunk.part("departures")
        if departures is None:
            return
        local = pc.is_null(departures.column("from_position"))
        self._complete(_LEFT, departures.filter(local), chunk.columns, chunk.key)
        if (foreign := departures.filter(pc.invert(local))).num_rows:
            self._waiting.append((foreign, chunk.columns))

    def settle(self) -> None:
        """Completes departures that themselves came from another bucket, along chains of any length."""
        grown = True
        while grown and self._waiting:
            grown = False
            for foreign, columns in self._waiting:
                grown |= self._follow(_LEFT, foreign, columns) > 0

    def take(self, moved: pa.Table, columns: Sequence[str], key: Sequence[str]) -> pa.Table:
        """Completes moved rows while their origins are there, and returns their new keys."""
        names = ", ".join(quoted(name) for name in columns)
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE penstock_moved AS SELECT {names} FROM {self._target} LIMIT 0")
        local = pc.is_null(moved.column("from_position"))
        self._complete(_MOVED, moved.filter(local), columns, key)
        self._follow(_MOVED, moved.filter(pc.invert(local)), columns)
        return moved.select([f"r{list(columns).index(name)}" for name in key]).rename_columns(list(key))

    def give(self, columns: Sequence[str]) -> None:
        """Adds what `take` completed."""
        names = ", ".join(quoted(name) for name in columns)
        self._connection.execute(f"INSERT INTO {self._target} ({names}) SELECT {names} FROM {_MOVED}")
        self._connection.execute(f"DROP TABLE {_MOVED}")

    def end(self) -> None:
        """Drops what was kept."""
        if self._crossing:
            self._connection.execute(f"DROP TABLE {_LEFT}")

    def _complete(self, into: str, penstock_patch: pa.Table, columns: Sequence[str], key: Sequence[str]) -> None:
        """Rows whose origin is the table's own row of a key."""
        if not penstock_patch.num_rows:
            return
        same = equal([f"penstock_origin.{quoted(k)}" for k in key], [f"penstock_patch.o{i}" for i in range(len(key))])
        names, cells = _cells(penstock_patch, columns, into)
        self._connection.execute(
            f"INSERT INTO {into} ({names}) SELECT {cells} FROM penstock_patch"
            f" LEFT JOIN {self._target} AS penstock_origin ON {same}"
        )

    def _follow(self, into: str, penstock_patch: pa.Table, columns: Sequence[str]) -> int:
        """Rows whose origin is a departure that is already kept; returns how many that are new."""
        if not penstock_patch.num_rows:
            return 0
        names, cells = _cells(penstock_patch, columns, into)
        origin = equal(
            [f"penstock_origin.{name}" for name in _AT], ["penstock_patch.from_position", "penstock_patch.from_ordinal"]
        )
        known = equal([f"penstock_known.{name}" for name in _AT], ["penstock_patch.left_position", "penstock_patch.left_ordinal"])
        fresh = f"WHERE NOT EXISTS (SELECT 1 FROM {_LEFT} AS penstock_known WHERE {known})" if into == _LEFT else ""
        found = self._connection.execute(
            f"INSERT INTO {into} ({names}) SELECT {cells} FROM penstock_patch JOIN {_LEFT} AS penstock_origin ON {origin} {fresh}"
        ).fetchone()
        return 0 if found is None else int(found[0])


def _cells(patch: pa.Table, columns: Sequence[str], into: str) -> tuple[str, str]:
    """Names to insert into, and the cells: from the patch where they are known, from the origin where they are not."""
    names: list[str] = []
    cells: list[str] = []
    if into == _LEFT:
        names += _AT
        cells += ["penstock_patch.left_position", "penstock_patch.left_ordinal"]
    for number, name in enumerate(columns):
        cell = f"penstock_patch.r{number}"
        if f"m{number}" in patch.column_names:
            cell = f"CASE WHEN penstock_patch.m{number} THEN penstock_origin.{quoted(name)} ELSE {cell} END"
        names.append(quoted(name))
        cells.append(cell)
    return ", ".join(names), ", ".join(cells)

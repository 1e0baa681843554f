"""Rows that changed their key while the log left cells of them out: completed from where they were before.

The statements are the same for every SQL destination; its room says how they are run and where the rows wait meanwhile.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.sql import equal, listed, quoted

_AT = ("penstock_left_position", "penstock_left_ordinal")


class Departing(Protocol):
    """A chunk, as far as it matters here."""

    columns: list[str]
    key: list[str]

    def part(self, name: str) -> pa.Table | None:
        """One of its tables."""


class Room(Protocol):
    """The open transaction of a destination, for the rows of one table."""

    target: str
    """The table's quoted name."""
    moved: str
    """The name under which `make` makes its temporary table of moved rows."""
    left: str
    """The same for rows that left their bucket."""

    def make(self, name: str, select: str) -> None:
        """Makes an empty temporary table with the columns of a query, in place of one that is left from before."""

    def drop(self, name: str) -> None:
        """Drops it."""

    def run(self, sql: str, patch: pa.Table, chunk: Departing) -> int:
        """Runs a statement in which `penstock_patch` names the rows of `patch`; returns how many rows it has written."""


class Moves:
    """The moves within one table and one epoch; temporary tables hold them, so that big values spill to disk.

    When rows cross buckets, every departure is first completed and kept under its position and ordinal.
    """

    def __init__(self, room: Room, *, crossing: bool) -> None:
        self._room, self._crossing = room, crossing
        self._seen: list[Departing] = []
        self._waiting: list[tuple[pa.Table, Departing]] = []
        if crossing:
            at = ", ".join(f"CAST(0 AS BIGINT) AS {name}" for name in _AT)
            room.make(room.left, f"SELECT {at}, * FROM {room.target}")

    def see(self, chunk: Departing) -> None:
        """Keeps what leaves the bucket in a chunk whose predecessors are all applied; a second time does nothing."""
        if any(chunk is seen for seen in self._seen):
            return
        self._seen.append(chunk)
        departures = chunk.part("departures")
        if departures is None:
            return
        local = pc.is_null(departures.column("from_position"))
        self._complete(self._room.left, departures.filter(local), chunk)
        if (foreign := departures.filter(pc.invert(local))).num_rows:
            self._waiting.append((foreign, chunk))

    def settle(self) -> None:
        """Completes departures that themselves came from another bucket, along chains of any length."""
        grown = True
        while grown and self._waiting:
            grown = False
            for foreign, chunk in self._waiting:
                grown |= self._follow(self._room.left, foreign, chunk) > 0

    def take(self, moved: pa.Table, chunk: Departing) -> pa.Table:
        """Completes moved rows in the room's temporary table while their origins are there, and returns their new keys."""
        self._room.make(self._room.moved, f"SELECT {listed(chunk.columns)} FROM {self._room.target}")
        local = pc.is_null(moved.column("from_position"))
        self._complete(self._room.moved, moved.filter(local), chunk)
        self._follow(self._room.moved, moved.filter(pc.invert(local)), chunk)
        return moved.select([f"r{chunk.columns.index(name)}" for name in chunk.key]).rename_columns(chunk.key)

    def given(self) -> None:
        """Drops what `take` completed, once it has been added to the table."""
        self._room.drop(self._room.moved)

    def end(self) -> None:
        """Drops what was kept."""
        if self._crossing:
            self._room.drop(self._room.left)

    def _complete(self, into: str, patch: pa.Table, chunk: Departing) -> None:
        """Rows whose origin is the table's own row of a key."""
        if not patch.num_rows:
            return
        key = chunk.key
        same = equal([f"penstock_origin.{quoted(k)}" for k in key], [f"penstock_patch.o{i}" for i in range(len(key))])
        names, cells = self._cells(patch, chunk, into)
        self._room.run(
            f"INSERT INTO {into} ({names}) SELECT {cells} FROM penstock_patch"
            f" LEFT JOIN {self._room.target} AS penstock_origin ON {same}",
            patch,
            chunk,
        )

    def _follow(self, into: str, patch: pa.Table, chunk: Departing) -> int:
        """Rows whose origin is a departure that is already kept; returns how many that are new."""
        if not patch.num_rows:
            return 0
        left = self._room.left
        names, cells = self._cells(patch, chunk, into)
        origin = equal(
            [f"penstock_origin.{name}" for name in _AT], ["penstock_patch.from_position", "penstock_patch.from_ordinal"]
        )
        known = equal([f"penstock_known.{name}" for name in _AT], ["penstock_patch.left_position", "penstock_patch.left_ordinal"])
        fresh = f" WHERE NOT EXISTS (SELECT 1 FROM {left} AS penstock_known WHERE {known})" if into == left else ""
        return self._room.run(
            f"INSERT INTO {into} ({names}) SELECT {cells} FROM penstock_patch JOIN {left} AS penstock_origin ON {origin}{fresh}",
            patch,
            chunk,
        )

    def _cells(self, patch: pa.Table, chunk: Departing, into: str) -> tuple[str, str]:
        """Names to insert into, and the cells: from the patch where they are known, from the origin where they are not."""
        names: list[str] = []
        cells: list[str] = []
        if into == self._room.left:
            names += _AT
            cells += ["penstock_patch.left_position", "penstock_patch.left_ordinal"]
        for number, name in enumerate(chunk.columns):
            cell = f"penstock_patch.r{number}"
            if f"m{number}" in patch.column_names:
                cell = f"CASE WHEN penstock_patch.m{number} THEN penstock_origin.{quoted(name)} ELSE {cell} END"
            names.append(quoted(name))
            cells.append(cell)
        return ", ".join(names), ", ".join(cells)

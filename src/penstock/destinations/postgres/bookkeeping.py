"""What the destination remembers in the target: its position, and which source table stands where."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.epoch import Epoch
from penstock.destinations.base import Place
from penstock.destinations.postgres.session import Connection, execute

HOME = "penstock"
POSITIONS = "positions"
TABLES = "tables"

_MAKE = (
    f"CREATE TABLE IF NOT EXISTS {HOME}.{POSITIONS} (flow text, destination text, source text, position bigint, epoch bigint,"
    " generation bigint NOT NULL DEFAULT 0, committed_at timestamptz, PRIMARY KEY (flow, destination))"
    # Changed by every epoch: room on the page keeps each new version beside the old one.
    " WITH (fillfactor = 50)",
    f"CREATE TABLE IF NOT EXISTS {HOME}.{TABLES} (flow text, destination text, source_schema text, source_table text,"
    " target_schema text NOT NULL, target_table text NOT NULL, version bigint,"
    " PRIMARY KEY (flow, destination, source_schema, source_table))",
)
ADVANCE = (
    f"UPDATE {HOME}.{POSITIONS} SET source = $3, position = $4, epoch = $5, generation = $6, committed_at = now()"
    " WHERE flow = $1 AND destination = $2 AND generation <= $6 AND (position IS NULL OR position < $4)"
)
"""Moves the position and holds its row until the commit; writes nothing when another worker or an earlier try was here."""

_RAISE = f"UPDATE {HOME}.{POSITIONS} SET generation = $3 WHERE flow = $1 AND destination = $2 AND generation <= $3"


@dataclass
class Mark:
    """The row of one flow's destination."""

    position: int | None
    epoch: int | None
    generation: int


def is_ours(schema: str, table: str) -> bool:
    """Whether the name is that of a table that the destination keeps for itself."""
    return schema == HOME and table in (POSITIONS, TABLES)


def is_there(connection: Connection) -> bool:
    """Whether the tables have been made."""
    found = execute(
        connection, f"SELECT to_regclass('{HOME}.{POSITIONS}') IS NOT NULL AND to_regclass('{HOME}.{TABLES}') IS NOT NULL"
    ).fetchone()
    return found is not None and bool(found[0])


def make(connection: Connection, place: Place) -> None:
    """Makes the tables and the row; does nothing when they are there."""
    with connection.transaction():
        execute(connection, "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('penstock tables', 0))")
        if not is_there(connection):
            there = execute(connection, f"SELECT to_regnamespace('{HOME}') IS NOT NULL").fetchone()
            if there is None or not there[0]:
                execute(connection, f"CREATE SCHEMA {HOME}")
            for statement in _MAKE:
                execute(connection, statement)
        execute(
            connection,
            f"INSERT INTO {HOME}.{POSITIONS} (flow, destination) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            [place.flow, place.destination],
        )


def read(connection: Connection, place: Place) -> Mark | None:
    """The row; None when there is none yet."""
    if not is_there(connection):
        return None
    row = execute(
        connection,
        f"SELECT position, epoch, generation FROM {HOME}.{POSITIONS} WHERE flow = $1 AND destination = $2",
        [place.flow, place.destination],
    ).fetchone()
    return None if row is None else Mark(row[0], row[1], int(row[2]))


def raise_generation(connection: Connection, place: Place, generation: int) -> None:
    """Keeps lower generations from moving the position; changes nothing when a higher one has been here."""
    execute(connection, _RAISE, [place.flow, place.destination, generation])


def values(epoch: Epoch, generation: int) -> list[str | int]:
    """What `ADVANCE` is given."""
    return [epoch.flow, epoch.destination, epoch.source, epoch.upto, epoch.number, generation]

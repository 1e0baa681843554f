"""What the destination remembers in the target: its position, and which source table stands where."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.epoch import Epoch
from penstock.destinations.base import Held, Place
from penstock.destinations.loading import COLUMNS
from penstock.destinations.postgres.session import Connection, execute

HOME = "penstock"
POSITIONS = "positions"
TABLES = "tables"
STAGING = "staging"

_MAKE = (
    f"CREATE TABLE IF NOT EXISTS {HOME}.{POSITIONS} (flow text, destination text, source text, position bigint, epoch bigint,"
    " generation bigint NOT NULL DEFAULT 0, committed_at timestamptz, part bigint, PRIMARY KEY (flow, destination))"
    # Changed by every epoch: room on the page keeps each new version beside the old one.
    " WITH (fillfactor = 50)",
    f"CREATE TABLE IF NOT EXISTS {HOME}.{TABLES} (flow text, destination text, source_schema text, source_table text,"
    " target_schema text NOT NULL, target_table text NOT NULL, version bigint,"
    " PRIMARY KEY (flow, destination, source_schema, source_table))",
    f"CREATE TABLE IF NOT EXISTS {HOME}.{STAGING} ({COLUMNS}, PRIMARY KEY (flow, destination, source_schema, source_table))",
    # By this beginning the PostgreSQL source knows tables that no flow takes: the target may be the source of another flow.
    f"COMMENT ON TABLE {HOME}.{POSITIONS} IS 'penstock: how far each flow has come here'",
    f"COMMENT ON TABLE {HOME}.{TABLES} IS 'penstock: which source table stands where'",
    f"COMMENT ON TABLE {HOME}.{STAGING} IS 'penstock: where the rows of loads wait'",
)
ADVANCE = (
    f"UPDATE {HOME}.{POSITIONS} SET source = $3, position = $4, epoch = $5, generation = $6, committed_at = now(), part = $7"
    " WHERE flow = $1 AND destination = $2 AND generation <= $6 AND (epoch IS NULL OR epoch < $5)"
)
"""Moves the position and holds its row until the commit; writes nothing when another worker or an earlier try was here."""

REWIND = (
    f"UPDATE {HOME}.{POSITIONS} SET position = $3, epoch = $4, part = 0, committed_at = now()"
    " WHERE flow = $1 AND destination = $2 AND epoch < $4"
)
"""Moves the position back under a number that no epoch has; nothing when that was done already."""

_RAISE = f"UPDATE {HOME}.{POSITIONS} SET generation = $3 WHERE flow = $1 AND destination = $2 AND generation <= $3"


# Sessions of this very flow and destination that are in a transaction: of a worker that was stopped, or has been replaced.
_END = """
SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a
 WHERE a.application_name = $1 AND a.usename = current_user AND a.datname = pg_catalog.current_database()
   AND a.pid <> pg_catalog.pg_backend_pid() AND a.xact_start IS NOT NULL
"""


@dataclass
class Mark:
    """The row of one flow's destination."""

    position: int | None
    epoch: int | None
    generation: int
    part: int = 0

    @property
    def held(self) -> Held | None:
        """What was committed; None when nothing was."""
        return None if self.position is None else Held(self.position, self.epoch or 0, self.part)


def is_ours(schema: str, table: str) -> bool:
    """Whether the name is that of a table that the destination keeps for itself."""
    return schema == HOME and table in (POSITIONS, TABLES, STAGING)


def is_there(connection: Connection) -> bool:
    """Whether the tables have been made."""
    there = " AND ".join(f"to_regclass('{HOME}.{table}') IS NOT NULL" for table in (POSITIONS, TABLES, STAGING))
    found = execute(connection, f"SELECT {there}").fetchone()
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
        if not _has_parts(connection):
            execute(connection, f"ALTER TABLE {HOME}.{POSITIONS} ADD COLUMN IF NOT EXISTS part bigint")
        if read(connection, place) is None:
            # Only then: where the row is there and held by another session, ON CONFLICT would wait for it.
            execute(
                connection,
                f"INSERT INTO {HOME}.{POSITIONS} (flow, destination) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                [place.flow, place.destination],
            )


def _has_parts(connection: Connection) -> bool:
    """Whether the table of positions has the column that earlier versions made it without."""
    found = execute(
        connection, f"SELECT 1 FROM pg_attribute WHERE attrelid = '{HOME}.{POSITIONS}'::regclass AND attname = 'part'"
    ).fetchone()
    return found is not None


def read(connection: Connection, place: Place) -> Mark | None:
    """The row; None when there is none yet."""
    there = execute(connection, f"SELECT to_regclass('{HOME}.{POSITIONS}') IS NOT NULL").fetchone()
    if there is None or not there[0]:
        return None
    row = execute(
        connection,
        "SELECT position, epoch, generation, coalesce((to_jsonb(p) ->> 'part')::bigint, 0)"
        f" FROM {HOME}.{POSITIONS} p WHERE flow = $1 AND destination = $2",
        [place.flow, place.destination],
    ).fetchone()
    return None if row is None else Mark(row[0], row[1], int(row[2]), int(row[3]))


def take_over(connection: Connection, place: Place, session: str, generation: int) -> None:
    """Ends an older session by that name which holds our row: a worker that was stopped in mid-epoch would hold it for ever.

    If that worker is alive after all, its epoch is undone, and its next commit is fenced or runs again. Nobody is ended by a
    worker that has been replaced itself.
    """
    mark = read(connection, place)
    if mark is None or (generation and mark.generation > generation):
        return
    free = execute(
        connection,
        f"SELECT 1 FROM {HOME}.{POSITIONS} WHERE flow = $1 AND destination = $2 FOR UPDATE SKIP LOCKED",
        [place.flow, place.destination],
    ).fetchone()
    if free is None:
        execute(connection, _END, [session])


def raise_generation(connection: Connection, place: Place, generation: int) -> bool:
    """Keeps lower generations from moving the position; false, and nothing changed, when a higher one has been here."""
    return execute(connection, _RAISE, [place.flow, place.destination, generation]).rowcount == 1


def values(epoch: Epoch, generation: int) -> list[str | int]:
    """What `ADVANCE` is given."""
    return [epoch.flow, epoch.destination, epoch.source, epoch.upto, epoch.number, generation, epoch.upto_part]

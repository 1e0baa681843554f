"""The replication slot: where the server keeps the flow's place in its log."""

from __future__ import annotations

import time
from dataclasses import dataclass

from psycopg.errors import QueryCanceled
from psycopg.sql import SQL, Composable, Identifier, Literal

from penstock.core.position import format_lsn, parse_lsn
from penstock.errors import PenstockError, SlotInUse, SlotLost, SourceFailed, SourceSettings
from penstock.sources.postgres.control import Control

FAILOVER_SINCE = 170000
# A walsender whose client was killed notices at its next write; a restart right after a crash should not have to be repeated.
RELEASE_SECONDS = 5.0


@dataclass(frozen=True)
class Slot:
    """A slot as the server has it now."""

    name: str
    plugin: str | None
    database: str | None
    confirmed: int | None
    active_pid: int | None
    reader: str
    """Who reads from it, as far as our role may know."""
    status: str | None
    """wal_status: reserved, extended, unreserved or lost."""
    reason: str | None
    """Why the server has invalidated it (17+)."""
    two_phase: bool = False
    """Whether it delivers prepared transactions before they commit."""


# to_jsonb: conflicting exists from 16, invalidation_reason from 17; a missing column is NULL here and no error.
_SLOT = """
SELECT s.plugin, s.database, s.confirmed_flush_lsn::text AS confirmed, s.active_pid, s.wal_status,
       CASE WHEN j ->> 'conflicting' = 'true' OR j ->> 'invalidation_reason' IS NOT NULL
            THEN coalesce(j ->> 'invalidation_reason', 'conflict with recovery') END AS reason, s.two_phase,
       r.application_name, r.client_addr::text AS address
  FROM pg_catalog.pg_replication_slots s
  CROSS JOIN LATERAL pg_catalog.to_jsonb(s) j
  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
 WHERE s.slot_name = %(name)s
"""
_STANDBY = "SELECT pg_catalog.pg_is_in_recovery() AS standby"
_BLOCKERS = """
SELECT a.pid, pg_catalog.date_trunc('second', pg_catalog.now() - a.xact_start)::text AS age
  FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
 ORDER BY a.xact_start LIMIT 1
"""


def find(control: Control, name: str) -> Slot | None:
    """The slot of that name, if there is one."""
    rows = control.rows(_SLOT, {"name": name})
    if not rows:
        return None
    row = rows[0]
    who = [row["application_name"], f"from {row['address']}" if row["address"] else ""]
    return Slot(
        name=name,
        plugin=row["plugin"],
        database=row["database"],
        confirmed=parse_lsn(row["confirmed"]) if row["confirmed"] else None,
        active_pid=row["active_pid"],
        reader=" ".join(filter(None, who)),
        status=row["wal_status"],
        reason=row["reason"],
        two_phase=row["two_phase"],
    )


def released(control: Control, slot: Slot) -> Slot | None:
    """The slot after its reader has had a moment to go."""
    deadline = time.monotonic() + RELEASE_SECONDS
    found: Slot | None = slot
    while found is not None and found.active_pid is not None and time.monotonic() < deadline:
        time.sleep(0.05)
        found = find(control, slot.name)
    return found


def trouble(slot: Slot, database: str) -> PenstockError | None:
    """What keeps the slot from being read by this flow, if anything."""
    name, drop = slot.name, f"SELECT pg_drop_replication_slot({Literal(slot.name).as_string(None)});"
    if slot.plugin is None or slot.plugin != "pgoutput":
        kind = "is a physical slot" if slot.plugin is None else f"uses the plugin {slot.plugin} and not pgoutput"
        return SourceSettings(f"The slot {name} {kind}.", remedy="Set another `slot` in the source's options.", slot=name)
    if slot.database != database:
        return SourceSettings(
            f"The slot {name} belongs to database {slot.database!r}, but the dsn names {database!r}.",
            remedy="Set another `slot` in the source's options, or correct the database in the dsn.",
            slot=name,
        )
    if slot.two_phase:
        return SourceSettings(
            f"The slot {name} was made for two-phase decoding: it delivers prepared transactions that may still be rolled back.",
            remedy=f"Make it without: {drop} {creation(name)} Or set another `slot`: penstock takes them when they commit.",
            slot=name,
        )
    if slot.status == "lost" or slot.reason:
        return SlotLost(
            f"The slot {name} is lost: the server has given it up ({slot.reason or 'its WAL was removed'}).",
            remedy=f"{drop} Then raise max_slot_wal_keep_size, and begin anew: `penstock flow cleanup FILE --remove-state`.",
            slot=name,
        )
    if slot.active_pid is not None:
        reader = f" ({slot.reader})" if slot.reader else ""
        return SlotInUse(
            f"The slot {name} is being read by process {slot.active_pid}{reader}.",
            remedy=f"Stop that reader (SELECT pg_terminate_backend({slot.active_pid});), or set another `slot` for this flow.",
            slot=name,
            pid=slot.active_pid,
        )
    return None


def create(control: Control, name: str, *, failover: bool) -> None:
    """Makes the slot; it begins at the next moment when no older transaction is open."""
    arguments: list[Composable] = [Literal(name), SQL("'pgoutput'"), SQL("false"), SQL("false")]
    if failover and may_fail_over(control):
        arguments.append(SQL("true"))
    function = Identifier("pg_catalog", "pg_create_logical_replication_slot")
    try:
        control.execute(SQL("SELECT {}({})").format(function, SQL(", ").join(arguments)))
    except SourceFailed as error:
        blocker = blocked(control, name) if isinstance(error.__cause__, QueryCanceled) else None
        if blocker is None:
            raise
        raise blocker from error


def may_fail_over(control: Control) -> bool:
    """Whether the server takes a slot that is meant to be synchronised to standbys; a standby itself refuses one."""
    return control.version >= FAILOVER_SINCE and not control.row(_STANDBY)["standby"]


def blocked(control: Control, name: str) -> SourceFailed | None:
    """Why a slot could not be made in time: the transaction that it waits for, if that is still there."""
    blockers = control.rows(_BLOCKERS)
    if not blockers:
        return None
    pid, age = blockers[0]["pid"], blockers[0]["age"]
    return SourceFailed(
        f"The slot {name} could not be made in 60 s: process {pid} has had a transaction open for {age}.",
        remedy=f"Let that transaction end, or end it: SELECT pg_terminate_backend({pid});",
        slot=name,
    )


def skip(control: Control, name: str) -> None:
    """Moves the slot to the server's present end; what lies before is never delivered."""
    function, here = Identifier("pg_catalog", "pg_replication_slot_advance"), Identifier("pg_catalog", "pg_current_wal_flush_lsn")
    control.execute(SQL("SELECT {}({}, {}())").format(function, Literal(name), here))


def creation(name: str) -> str:
    """The statement by which an operator makes the slot by hand."""
    return f"SELECT pg_create_logical_replication_slot({Literal(name).as_string(None)}, 'pgoutput');"


def place(slot: Slot) -> str:
    """Where the slot stands, for people."""
    return format_lsn(slot.confirmed) if slot.confirmed is not None else "nowhere yet"

"""Slots as an operator handles them: all that the server says about each, and the way to drop one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.sql import SQL, Literal

from penstock.core.position import parse_lsn
from penstock.errors import SlotMissing
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions, default_name
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.refusals import slot_busy
from penstock.sources.postgres.state import StateTable

# to_jsonb: conflicting exists from 16, failover, synced, inactive_since and invalidation_reason from 17; a missing column is
# NULL here and no error.
_SLOTS = """
SELECT s.slot_name AS name, s.slot_type AS kind, s.plugin, s.database, s.temporary, s.active, s.active_pid AS pid,
       r.application_name, r.client_addr::text AS address, r.usename, s.confirmed_flush_lsn::text AS confirmed,
       s.restart_lsn::text AS restart, pg_catalog.pg_wal_lsn_diff(h.head, s.confirmed_flush_lsn)::bigint AS lag_bytes,
       pg_catalog.pg_wal_lsn_diff(h.head, s.restart_lsn)::bigint AS retained_bytes, s.safe_wal_size, s.wal_status AS status,
       s.two_phase, (j ->> 'failover')::bool AS failover, (j ->> 'synced')::bool AS synced, j ->> 'inactive_since' AS idle_since,
       coalesce(j ->> 'invalidation_reason',
                CASE WHEN j ->> 'conflicting' = 'true' THEN 'conflict with recovery' END) AS reason
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN LATERAL pg_catalog.to_jsonb(s) j
 CROSS JOIN (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                         ELSE pg_catalog.pg_current_wal_lsn() END AS head) h
  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
 ORDER BY s.slot_name
"""


@dataclass(frozen=True)
class SlotFigures:
    """One slot as pg_replication_slots has it now."""

    name: str
    own: bool
    """Whether it is the flow's."""
    kind: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    pid: int | None
    reader: str
    """Who reads from it, as far as our role may know."""
    confirmed: int | None
    """Up to where the reader has confirmed."""
    restart: int | None
    """From where the server keeps its log for the slot."""
    lag_bytes: int | None
    """Bytes of log after `confirmed`."""
    retained_bytes: int | None
    """Bytes of log after `restart`, which cannot be removed."""
    safe_wal_size: int | None
    """Bytes that may still be written before the slot is in danger; None when there is no limit, or it is lost."""
    status: str | None
    two_phase: bool
    failover: bool | None
    """None before PostgreSQL 17."""
    synced: bool | None
    idle_since: str | None
    reason: str | None
    """Why the server has invalidated it."""


class Slots:
    """Commands on slots, first of all on the flow's own."""

    def __init__(self, flow: str, options: PostgresOptions) -> None:
        self.own = options.slot or default_name(flow)
        self._control = Control(options.dsn, flow, iam=RdsIam.of(options))
        self._state = StateTable(self._control, flow, options)

    def close(self) -> None:
        """Gives back the connection."""
        self._control.close()

    def all(self) -> list[SlotFigures]:
        """Every slot of the server, in name order."""
        return [_figures(row, self.own) for row in self._control.rows(_SLOTS)]

    def show(self, name: str | None = None) -> SlotFigures:
        """One slot, the flow's unless another is named; SlotMissing when there is none."""
        wanted = name or self.own
        found = next((s for s in self.all() if s.name == wanted), None)
        if found is None:
            raise SlotMissing(
                f"The server has no slot {wanted}.",
                remedy="`penstock slot list --flow FILE` lists the slots there are.",
                slot=wanted,
            )
        return found

    def free(self, name: str | None = None) -> SlotFigures:
        """The same, which nobody reads from; SlotInUse names who does."""
        found = self.show(name)
        if found.active:
            raise slot_busy(found.name, found.pid, found.reader)
        return found

    def drop(self, name: str) -> None:
        """Drops a slot; the server itself refuses while somebody reads from it."""
        self._control.execute(SQL("SELECT pg_catalog.pg_drop_replication_slot({})").format(Literal(name)))
        self._state.forget_attempt("slot", name)


def _figures(row: dict[str, Any], own: str) -> SlotFigures:
    place = f"from {row['address']}" if row["address"] else ""
    role = f"as {row['usename']}" if row["usename"] else ""
    return SlotFigures(
        name=row["name"],
        own=row["name"] == own,
        kind=row["kind"],
        plugin=row["plugin"],
        database=row["database"],
        temporary=row["temporary"],
        active=row["active"],
        pid=row["pid"],
        reader=" ".join(filter(None, (row["application_name"], role, place))),
        confirmed=parse_lsn(row["confirmed"]) if row["confirmed"] else None,
        restart=parse_lsn(row["restart"]) if row["restart"] else None,
        lag_bytes=row["lag_bytes"],
        retained_bytes=row["retained_bytes"],
        safe_wal_size=row["safe_wal_size"],
        status=row["status"],
        two_phase=row["two_phase"],
        failover=row["failover"],
        synced=row["synced"],
        idle_since=row["idle_since"],
        reason=row["reason"],
    )

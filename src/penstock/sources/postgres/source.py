"""The driver half of the PostgreSQL source: looks, prepares publication and slot, and asks where the log stands."""

from __future__ import annotations

import hashlib
from typing import Any

from penstock.core.finding import Finding
from penstock.core.position import format_lsn, parse_lsn
from penstock.core.schema import TableSchema
from penstock.errors import (
    PenstockError,
    PublicationMissing,
    SlotMissing,
    SourceDatabaseMissing,
    SourceFailed,
    SourceGap,
    SourceRefused,
    from_data,
)
from penstock.sources.base import Prepared, Source
from penstock.sources.postgres import catalog, logical_messages, publication, slot
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions, default_name
from penstock.sources.postgres.preflight import Preflight, bad, no_tables, slot_absent
from penstock.sources.postgres.publication import Plan

_HEAD = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn() END::text AS head
"""
_IDENTITY = """
SELECT s.system_identifier::text AS system, d.oid::text AS database
  FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""


class PostgresSource(Source):
    """A PostgreSQL database as a source; every error it raises is one of ours."""

    def __init__(self, flow: str, options: PostgresOptions) -> None:
        super().__init__(flow, options)
        self.options: PostgresOptions = options
        self.slot = options.slot or default_name(flow)
        self.publication = options.publication or default_name(flow)
        self._control = Control(options.dsn, flow)

    def check(self) -> list[Finding]:
        """Everything that stands in the way, at once, each with the SQL that mends it; changes nothing."""
        try:
            where = f"{self._control.user}@{self._control.database}"
        except PenstockError as error:
            return _not_connected(error)
        findings = [Finding("server", True, "answers"), Finding("login", True, where)]
        try:
            preflight = self._preflight()
            findings += preflight.server()
            plan = self._plan()
            findings += [*preflight.tables(plan), *preflight.publishing(plan), preflight.slot()]
        except PenstockError as error:
            findings.append(bad("catalogue", error))
        return findings

    def discover(self) -> list[TableSchema]:
        """The tables that the flow takes, with their keys, as the catalogue has them now."""
        plan = self._plan()
        sends = plan.found.sends if plan.found else {}
        found = catalog.describe(self._control, plan.takes, {oid: names for oid, names in sends.items() if names is not None})
        return [*found, logical_messages.TABLE] if self.options.emit_messages else found

    def prepare(self, journal_end: int | None) -> Prepared:
        """Publication and slot ready for a journal that ends there (None: a new one); idempotent."""
        found = slot.find(self._control, self.slot)
        if found is None and journal_end is not None:
            raise SlotMissing(
                f"The slot {self.slot} is gone, and what came after the journal's end {format_lsn(journal_end)} with it.",
                slot=self.slot,
            )
        plan = self._plan()
        if plan.found is None and journal_end is not None:
            raise PublicationMissing(
                f"The publication {self.publication} is gone, and the slot does not deliver what changed without it.",
                remedy="Recreate it by hand to go on without them, or give the flow a new name and a new slot.",
                publication=self.publication,
            )
        if self.options.validate_replication:
            self._refuse_problems(plan)
        self._prepare_publication(plan)
        position = self._prepare_slot(found)
        if journal_end is not None and position > journal_end:
            raise SourceGap(
                f"The slot {self.slot} stands at {format_lsn(position)}, beyond the journal's end {format_lsn(journal_end)}.",
                slot=self.slot,
            )
        return Prepared(self._identity(), position)

    def head(self) -> int:
        """The position up to which the server's log is durable now (on a standby: replayed)."""
        return parse_lsn(self._control.row(_HEAD)["head"])

    def confirmed(self) -> int:
        """The position that the server holds as confirmed for this flow."""
        found = slot.find(self._control, self.slot)
        if found is None or found.confirmed is None:
            raise SlotMissing(f"The slot {self.slot} is gone.", slot=self.slot)
        return found.confirmed

    def recipe(self) -> dict[str, Any]:
        """Plain data from which the capture process makes its `Capture`; it holds the dsn, so it is never logged."""
        return {
            "dsn": self.options.dsn,
            "slot": self.slot,
            "publication": self.publication,
            "status_interval": self.options.status_interval,
            "heartbeat_interval": self.options.heartbeat_interval,
            "server_version": self._control.version,
            "streaming": self.options.streaming,
            "emit_messages": self.options.emit_messages,
            "origin": self.options.origin,
            "flow": self.flow,
        }

    def completion(self) -> dict[str, Any] | None:
        """How lanes fill unchanged TOASTed columns; it holds the dsn, so it is never logged."""
        if self.options.toast_fetch == "off":
            return None
        return {
            "dsn": self.options.dsn,
            "flow": self.flow,
            "mode": self.options.toast_fetch,
            "cache_size": self.options.toast_cache_size,
        }

    def close(self) -> None:
        """Gives back the control connection."""
        self._control.close()

    def _plan(self) -> Plan:
        return publication.plan(self._control, self.options, self.publication, self.flow)

    def _preflight(self) -> Preflight:
        return Preflight(self._control, self.flow, self.options, self.slot, self.publication)

    def _refuse_problems(self, plan: Plan) -> None:
        preflight = self._preflight()
        findings = [*preflight.server(), *preflight.tables(plan), *preflight.publishing(plan)]
        # A table that others have published without an identity is their decision; doctor shows it.
        published = {f"table {t.qualified}" for t in plan.takes if plan.found and t.oid in plan.found.sends}
        problems = [f for f in findings if not f.ok and f.subject not in published]
        if not problems:
            return
        first, others = problems[0], len(problems) - 1
        message = first.detail
        if others:
            noun = "problem stands" if others == 1 else "problems stand"
            message += f" {others} more {noun} in the way: `penstock doctor --flow FILE` lists all."
        raise from_data({"code": first.code, "message": message, "remedy": first.remedy})

    def _prepare_publication(self, plan: Plan) -> None:
        if not plan.takes:
            raise no_tables()
        if not self.options.ensure_publication or not plan.missing:
            return
        if plan.found is not None:
            self._control.execute(publication.addition(self.publication, plan.missing))
        else:
            self._control.execute(publication.creation(self.publication, self.flow, plan.missing))

    def _prepare_slot(self, found: slot.Slot | None) -> int:
        if found is None:
            if not self.options.create_slot:
                raise slot_absent(self.slot)
            slot.create(self._control, self.slot, failover=self.options.failover)
            found = slot.find(self._control, self.slot)
        elif found.active_pid is not None:
            found = slot.released(self._control, found)
        trouble = slot.trouble(found, self._control.database) if found is not None else None
        if trouble is not None:
            raise trouble
        if found is None or found.confirmed is None:
            raise SlotMissing(f"The slot {self.slot} vanished while the flow was being prepared.", slot=self.slot)
        return found.confirmed

    def _identity(self) -> str:
        row = self._control.row(_IDENTITY)
        return hashlib.sha256(f"{row['system']}/{row['database']}".encode()).hexdigest()[:8]


def _not_connected(error: PenstockError) -> list[Finding]:
    if isinstance(error, SourceDatabaseMissing):
        return [Finding("server", True, "answers"), Finding("login", True), bad("database", error)]
    if isinstance(error, SourceRefused):
        return [Finding("server", True, "answers"), bad("login", error)]
    subject = "server" if not isinstance(error, SourceFailed) else "session"
    return [bad(subject, error)]

"""The preflight: all that stands in a flow's way on the server, in rights, tables and slot, each with the SQL that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg.sql import Identifier

from penstock.core.finding import Finding
from penstock.errors import (
    PenstockError,
    PublicationMissing,
    SlotInUse,
    SourceRights,
    SourceSettings,
    TablesMissing,
)
from penstock.sources.postgres import catalog, publication, slot
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control, application_name
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.publication import Plan
from penstock.sources.postgres.refusals import (
    bad,
    count,
    identity_missing,
    names,
    no_tables,
    not_owner,
    publication_gone,
    slot_absent,
    slot_ahead,
    slot_gone,
)
from penstock.sources.postgres.state import StateTable
from penstock.sources.postgres.toast.rights import unreadable

OLDEST = 140000
STANDBY_SINCE = 160000
"""Logical slots on a standby."""
ORIGIN_SINCE = 160000
"""The filter by origin."""

_SERVER = """
SELECT pg_catalog.current_setting('wal_level') AS wal_level, pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.current_setting('max_replication_slots')::int AS slots,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots) AS slots_used,
       pg_catalog.current_setting('max_wal_senders')::int AS senders,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) AS senders_used,
       r.rolsuper OR r.rolreplication OR coalesce((
           SELECT pg_catalog.pg_has_role(m.oid, 'MEMBER') FROM pg_catalog.pg_roles m WHERE m.rolname = 'rds_replication'), false)
           AS replicates,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS creates
  FROM pg_catalog.pg_roles r WHERE r.rolname = current_user
"""


class Preflight:
    """One look at the server on behalf of a flow; it changes nothing."""

    def __init__(self, control: Control, flow: str, options: PostgresOptions, slot_name: str, publication_name: str) -> None:
        self._control, self._flow, self._options = control, flow, options
        self._slot, self._publication = slot_name, publication_name
        self._server = control.row(_SERVER)
        self._role = Identifier(control.user).as_string(None)

    def server(self) -> Iterator[Finding]:
        """Version, settings, capacity and the right to replicate."""
        version = self._control.version
        major, minor = divmod(version, 10000)
        if version < OLDEST:
            yield bad(
                "version", SourceSettings(f"The server is PostgreSQL {major}.{minor}.", remedy="Upgrade it to 14 or newer.")
            )
            return
        yield Finding("version", True, f"PostgreSQL {major}.{minor}")
        yield self._wal_level()
        if self._server["standby"] and version < STANDBY_SINCE:
            yield bad(
                "standby",
                SourceSettings(
                    f"The server is a standby, and PostgreSQL {major} has logical slots on the primary only.",
                    remedy="Point the dsn at the primary.",
                ),
            )
        if self._options.origin != "any" and version < ORIGIN_SINCE:
            yield bad(
                "origin",
                SourceSettings(
                    f"PostgreSQL {major} cannot leave out what replication brought here.",
                    remedy="Take `origin` out of the source's options, or upgrade the server to 16 or newer.",
                ),
            )
        yield self._right_to_replicate()
        yield from self._capacity()

    def tables(self, plan: Plan) -> Iterator[Finding]:
        """Tables that were found, patterns that fit none, and replica identities."""
        unmatched = catalog.unmatched(self._control, self._options, plan.asked)
        for option, pattern, reason in unmatched:
            why = f": {reason}" if reason else ""
            message = f"No table fits {pattern!r} in {option}{why}."
            yield bad("tables", TablesMissing(message, remedy=f"Correct the pattern in {option}, or create the table first."))
        if not plan.takes and not unmatched:
            yield bad("tables", no_tables())
        if plan.takes:
            yield Finding("tables", True, f"{count(plan.takes)}: {names(plan.takes)}")
        if plan.found is not None and not plan.found.sends_updates:
            return
        silent = [t for t in plan.takes if t.silent]
        yield from (bad(f"table {t.qualified}", identity_missing(t, plan)) for t in silent)
        if plan.takes and not silent:
            yield Finding("replica identity", True, f"every row of {count(plan.takes)} can be identified")
        if self._options.toast_fetch in ("source", "full"):
            yield from (bad(f"reading {t.qualified}", error) for t, error in unreadable(self._control, plan.takes))

    def publishing(self, plan: Plan, journal_end: int | None = None) -> Iterator[Finding]:
        """Whether the publication is there, or can be made or completed; a flow with a journal cannot do without it."""
        subject = f"publication {self._publication}"
        problems = list(self._publishing_problems(plan))
        yield from (bad(subject, problem) for problem in problems)
        if problems:
            return
        if plan.found is None and plan.missing and journal_end is not None:
            yield bad(subject, publication_gone(self._publication))
        elif plan.found is None and plan.missing:
            yield Finding(subject, True, f"will be created for {count(plan.missing)}")
        elif plan.found is None:
            return
        elif plan.missing or plan.surplus:
            more = [f"get {count(plan.missing)} more: {names(plan.missing)}"] if plan.missing else []
            less = [f"lose {count(plan.surplus)}: {names(plan.surplus)}"] if plan.surplus else []
            yield Finding(subject, True, f"exists, and will {' and will '.join([*more, *less])}")
        else:
            yield Finding(subject, True, f"publishes {count(plan.takes)}{self._beyond(plan)}")

    def slot(self, journal_end: int | None = None) -> Finding:
        """Whether the slot is there and free, and continues the journal, or can be made when there is no journal yet."""
        subject, found = f"slot {self._slot}", slot.find(self._control, self._slot)
        if found is None and journal_end is not None:
            return bad(subject, slot_gone(self._slot, journal_end))
        if found is None:
            if self._options.create_slot:
                return Finding(subject, True, "will be created")
            return bad(subject, slot_absent(self._slot))
        trouble = slot.trouble(found, self._control.database)
        if isinstance(trouble, SlotInUse) and found.reader.startswith(application_name(self._flow)):
            return Finding(subject, True, f"is being read by a worker of this flow (process {found.active_pid})")
        if trouble is not None:
            return bad(subject, trouble)
        if journal_end is not None and found.confirmed is not None and found.confirmed > journal_end:
            return bad(subject, slot_ahead(self._slot, found.confirmed, journal_end))
        return Finding(subject, True, f"stands at {slot.place(found)}")

    def state(self) -> Iterator[Finding]:
        """Whether what the flow makes can be recorded; it runs without the record, so that this is advice."""
        if not self._options.ensure_state:
            return
        table = StateTable(self._control, self._flow, self._options)
        if trouble := table.trouble():
            yield Finding("state table", True, trouble.message, trouble.remedy, trouble.code)
        else:
            yield Finding("state table", True, table.qualified)

    def _beyond(self, plan: Plan) -> str:
        """What was taken out by command, or what a synchronised publication sends and cannot be made to leave out."""
        if plan.left_out:
            return f"; taken out by command: {names(plan.left_out)}"
        if plan.found is None or not self._options.sync_publication or self._options.sync_publication_mode != "sync":
            return ""
        if plan.found.everything:
            return "; it is FOR ALL TABLES, which patterns cannot narrow"
        asked = {t.oid for t in plan.asked}
        kept = [t for t in plan.takes if t.oid not in asked]
        return f"; by whole schemas also {names(kept)}" if kept else ""

    def _wal_level(self) -> Finding:
        level = self._server["wal_level"]
        if level == "logical":
            return Finding("wal_level", True, "logical")
        return bad(
            "wal_level",
            SourceSettings(
                f"wal_level is {level}, and logical replication needs logical.",
                remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart the server (RDS: set rds.logical_replication = 1).",
                setting="wal_level",
            ),
        )

    def _right_to_replicate(self) -> Finding:
        if self._server["replicates"]:
            return Finding("replication right", True, f"role {self._control.user} may replicate")
        return bad(
            "replication right",
            SourceRights(
                f"The role {self._control.user} may not replicate.",
                remedy=f"ALTER ROLE {self._role} REPLICATION; (on RDS: GRANT rds_replication TO {self._role};)",
            ),
        )

    def _capacity(self) -> Iterator[Finding]:
        found, facts = slot.find(self._control, self._slot), self._server
        needs = {
            "replication slots": ("max_replication_slots", facts["slots"], facts["slots_used"], found is not None),
            "walsenders": ("max_wal_senders", facts["senders"], facts["senders_used"], found is not None and found.active_pid),
        }
        for subject, (setting, limit, used, ours) in needs.items():
            if used < limit or ours:
                yield Finding(subject, True, f"{used} of {limit} in use")
                continue
            error = SourceSettings(
                f"All {limit} {subject} are in use.",
                remedy=f"ALTER SYSTEM SET {setting} = {limit + 10}; then restart the server, or drop what is no longer used.",
                setting=setting,
            )
            yield bad(subject, error)

    def _publishing_problems(self, plan: Plan) -> Iterator[PenstockError]:
        name, missing = self._publication, plan.missing
        if not missing and not plan.surplus:
            return
        statements = publication.changes(name, plan)
        if plan.found is None:
            statements = [publication.creation(name, self._flow, missing)]
        statement = publication.text(*statements)
        lacks = f"lacks {names(missing)}" if plan.found else "does not exist"
        if not missing:
            lacks = f"names {names(plan.surplus)}, which the patterns do not"
        may = self._options.ensure_publication or (plan.found is not None and self._options.sync_publication)
        if not may or self._server["standby"]:
            why = "on the primary of this standby" if self._server["standby"] else "or set `ensure_publication: true`"
            yield PublicationMissing(f"The publication {name} {lacks}.", remedy=f"{statement} {why}", publication=name)
            return
        if plan.found is None and not self._server["creates"]:
            database = Identifier(self._control.database).as_string(None)
            yield SourceRights(
                f"The role {self._control.user} may not create a publication in database {self._control.database!r}.",
                remedy=f"GRANT CREATE ON DATABASE {database} TO {self._role};",
            )
        if plan.found is not None and not plan.found.owned:
            yield not_owner(plan.found, f"{lacks}, and it", statement, self._role)
        yield from self.not_owned(missing, statement)

    def not_owned(self, missing: Sequence[Table], statement: str) -> Iterator[SourceRights]:
        """Why tables cannot be published by our role, owner by owner."""
        for owner in sorted({t.owner for t in missing if not t.owned}):
            theirs = [t for t in missing if t.owner == owner]
            remedy = f"GRANT {Identifier(owner).as_string(None)} TO {self._role};"
            if theirs[0].of_superuser:
                remedy = f"As {owner}: {statement}"
            yield SourceRights(f"Only the owner {owner} may publish {names(theirs)}.", remedy=remedy)

"""The preflight: all that stands in a flow's way on the server, in rights, tables and slot, each with the SQL that mends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg.sql import SQL, Identifier

from penstock.core.finding import Finding
from penstock.errors import (
    IdentityMissing,
    PenstockError,
    PublicationMissing,
    SlotInUse,
    SlotMissing,
    SourceRights,
    SourceSettings,
    TablesMissing,
)
from penstock.sources.postgres import catalog, publication, slot
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control, application_name
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.publication import Plan

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
            yield Finding("tables", True, f"{_count(plan.takes)}: {_names(plan.takes)}")
        if plan.found is not None and not plan.found.sends_updates:
            return
        silent = [t for t in plan.takes if t.silent]
        yield from (bad(f"table {t.qualified}", identity_missing(t, plan)) for t in silent)
        if plan.takes and not silent:
            yield Finding("replica identity", True, f"every row of {_count(plan.takes)} can be identified")

    def publishing(self, plan: Plan) -> Iterator[Finding]:
        """Whether the publication is there, or can be made or completed."""
        subject = f"publication {self._publication}"
        problems = list(self._publishing_problems(plan))
        yield from (bad(subject, problem) for problem in problems)
        if problems:
            return
        if plan.found is None and plan.missing:
            yield Finding(subject, True, f"will be created for {_count(plan.missing)}")
        elif plan.found is None:
            return
        elif plan.missing:
            yield Finding(subject, True, f"exists, and will get {_count(plan.missing)} more: {_names(plan.missing)}")
        else:
            yield Finding(subject, True, f"publishes {_count(plan.takes)}")

    def slot(self) -> Finding:
        """Whether the slot is there and free, or can be made."""
        subject, found = f"slot {self._slot}", slot.find(self._control, self._slot)
        if found is None:
            if self._options.create_slot:
                return Finding(subject, True, "will be created")
            return bad(subject, slot_absent(self._slot))
        trouble = slot.trouble(found, self._control.database)
        if isinstance(trouble, SlotInUse) and found.reader.startswith(application_name(self._flow)):
            return Finding(subject, True, f"is being read by a worker of this flow (process {found.active_pid})")
        if trouble is not None:
            return bad(subject, trouble)
        return Finding(subject, True, f"stands at {slot.place(found)}")

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
        if not missing:
            return
        statement = publication.addition(name, missing)
        if plan.found is None:
            statement = publication.creation(name, self._flow, missing)
        lacks = f"lacks {_names(missing)}" if plan.found else "does not exist"
        if not self._options.ensure_publication or self._server["standby"]:
            why = "on the primary of this standby" if self._server["standby"] else "or set `ensure_publication: true`"
            yield PublicationMissing(
                f"The publication {name} {lacks}.", remedy=f"{publication.text(statement)} {why}", publication=name
            )
            return
        if plan.found is None and not self._server["creates"]:
            database = Identifier(self._control.database).as_string(None)
            yield SourceRights(
                f"The role {self._control.user} may not create a publication in database {self._control.database!r}.",
                remedy=f"GRANT CREATE ON DATABASE {database} TO {self._role};",
            )
        if plan.found is not None and not plan.found.owned:
            yield SourceRights(
                f"The publication {name} {lacks}, and it belongs to {plan.found.owner}.",
                remedy=f"{publication.text(statement)} as {plan.found.owner}, or "
                f"GRANT {Identifier(plan.found.owner).as_string(None)} TO {self._role};",
            )
        for owner in sorted({t.owner for t in missing if not t.owned}):
            theirs = [t for t in missing if t.owner == owner]
            remedy = f"GRANT {Identifier(owner).as_string(None)} TO {self._role};"
            if theirs[0].of_superuser:
                remedy = f"As {owner}: {publication.text(statement)}"
            yield SourceRights(f"Only the owner {owner} may publish {_names(theirs)}.", remedy=remedy)


def bad(subject: str, error: PenstockError) -> Finding:
    """The finding that an error would be."""
    return Finding(subject, False, error.message, error.remedy, error.code)


def no_tables() -> TablesMissing:
    """The refusal of a database in which there is nothing to take."""
    return TablesMissing("The database has no table that the flow could take.", remedy="Create the tables first.")


def slot_absent(name: str) -> SlotMissing:
    """The refusal of a slot that is not there and may not be made."""
    return SlotMissing(
        f"The slot {name} does not exist, and `create_slot` is false.",
        remedy=f"{slot.creation(name)} or set `create_slot: true`",
        slot=name,
    )


def identity_missing(table: Table, plan: Plan) -> IdentityMissing:
    """Why the table cannot be published as it is, and the statements that mend it."""
    already = plan.found is not None and table.oid in plan.found.sends
    when = "it is published, so" if already else "once it is published,"
    names = [SQL("{}").format(Identifier(*pair)) for pair in table.silent]
    whole = table.silent == ((table.schema, table.name),)
    noun = "partition" if len(names) == 1 else "partitions"
    subject = "no primary key and no replica identity" if whole else f"{len(names)} {noun} without a replica identity"
    # With identity NOTHING an existing primary key is not used.
    if whole and table.identity == "n" and table.key:
        fix = [SQL("ALTER TABLE {} REPLICA IDENTITY DEFAULT").format(table.quoted)]
    elif whole and table.unique_index:
        fix = [SQL("ALTER TABLE {} REPLICA IDENTITY USING INDEX {}").format(table.quoted, Identifier(table.unique_index))]
    else:
        fix = [SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name) for name in names[:20]]
    key = f" Or give it a key: ALTER TABLE {table.quoted.as_string(None)} ADD PRIMARY KEY (…);" if not table.key else ""
    return IdentityMissing(
        f"The table {table.qualified} has {subject}: {when} the application's own UPDATE and DELETE fail.",
        remedy=publication.text(*fix) + key,
        table=table.qualified,
    )


def _count(tables: Sequence[Table]) -> str:
    return f"{len(tables)} table" if len(tables) == 1 else f"{len(tables)} tables"


def _names(tables: Sequence[Table]) -> str:
    shown = ", ".join(t.qualified for t in tables[:8])
    return shown if len(tables) <= 8 else f"{shown} and {len(tables) - 8} more"

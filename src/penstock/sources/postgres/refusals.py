"""Refusals: what can be wrong with slot, publication and tables, each said once and with what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from psycopg.sql import SQL, Identifier

from penstock.core.finding import Finding
from penstock.core.position import format_lsn
from penstock.errors import (
    IdentityMissing,
    PenstockError,
    PublicationMissing,
    SlotInUse,
    SlotMissing,
    SlotTaken,
    SourceGap,
    SourceRights,
    TablesMissing,
    from_data,
)
from penstock.sources.postgres import publication, slot
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.publication import Plan


def bad(subject: str, error: PenstockError) -> Finding:
    """The finding that an error would be."""
    return Finding(subject, False, error.message, error.remedy, error.code)


def no_tables() -> TablesMissing:
    """The refusal of a database in which there is nothing to take."""
    return TablesMissing("The database has no table that the flow could take.", remedy="Create the tables first.")


def not_owner(found: publication.Publication, what: str, statement: str, role: str) -> SourceRights:
    """The refusal of a change to somebody else's publication."""
    remedy = f"{statement} as {found.owner}"
    if not found.of_superuser:
        remedy += f", or GRANT {Identifier(found.owner).as_string(None)} TO {role};"
    elif not found.everything and not found.schemas:
        # To be a superuser's member is to be one; of these two kinds only a superuser may be the owner.
        remedy += f", or ALTER PUBLICATION {Identifier(found.name).as_string(None)} OWNER TO {role};"
    return SourceRights(f"The publication {found.name} {what} belongs to {found.owner}.", remedy=remedy)


def slot_busy(name: str, pid: int | None, reader: str) -> SlotInUse:
    """The refusal to remove a slot that somebody reads from."""
    return SlotInUse(
        f"The slot {name} is being read by process {pid}{f' ({reader})' if reader else ''}.",
        remedy="Stop the worker that reads it first: SIGTERM or Ctrl-C ends it in order.",
        slot=name,
        pid=pid or 0,
    )


def slot_gone(name: str, journal_end: int, timeline: int = 1) -> SlotMissing:
    """The refusal to begin anew in silence where a journal says that the flow has read from its slot."""
    promoted = (
        " On a server that was promoted, slots are only those that were synchronised to it: `failover: true` on the flow, and"
        " sync_replication_slots = on on the standby (PostgreSQL 17 and newer)."
    )
    message = f"The slot {name} is gone, and what came after the journal's end {format_lsn(journal_end)} with it."
    return SlotMissing(message + (promoted if timeline > 1 else ""), slot=name)


def slot_ahead(name: str, position: int, journal_end: int) -> SourceGap:
    """The refusal of a slot that has moved past what the journal holds."""
    return SourceGap(
        f"The slot {name} stands at {format_lsn(position)}, beyond the journal's end {format_lsn(journal_end)}.", slot=name
    )


def publication_gone(name: str) -> PublicationMissing:
    """The refusal to make a publication anew in silence under a flow that has already read by it."""
    return PublicationMissing(
        f"The publication {name} is gone, and the slot does not deliver what changed without it.",
        remedy="`penstock publication sync --flow FILE` makes it again, to go on without those changes; "
        "`penstock flow cleanup FILE --remove-state` makes the flow begin anew.",
        publication=name,
    )


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
        remedy=f"{publication.text(*fix)}{key} Or leave it out: `{leaving_out(table.schema, table.name)}`.",
        table=table.qualified,
    )


def leaving_out(schema: str, table: str) -> str:
    """The command by which the flow does without a table that its patterns name."""
    return f"penstock publication remove --flow FILE {shlex.quote(f'{schema}.{table}')}"


def identities_missing(tables: Sequence[Table], plan: Plan) -> IdentityMissing:
    """The refusal of all tables that cannot be published as they are, with the statements for every one of them."""
    found = [identity_missing(t, plan) for t in tables]
    if len(found) == 1:
        return found[0]
    message = f"{len(found)} tables would lose their own UPDATE and DELETE: {names(tables)} have no replica identity."
    return IdentityMissing(message, remedy=" ".join(f.remedy.partition(" Or give")[0] for f in found))


def refuse(findings: Sequence[Finding], plan: Plan) -> None:
    """Raises the first bad finding, saying how many more there are; nothing when all are good."""
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


def count(tables: Sequence[Table]) -> str:
    """How many tables, for people."""
    return f"{len(tables)} table" if len(tables) == 1 else f"{len(tables)} tables"


def names(tables: Sequence[Table]) -> str:
    """The first of the tables, for people."""
    shown = ", ".join(t.qualified for t in tables[:8])
    return shown if len(tables) <= 8 else f"{shown} and {len(tables) - 8} more"


def slot_taken(name: str, flow: str, home: str, here: str) -> SlotTaken:
    """The slot of a namesake whose state lies elsewhere."""
    return SlotTaken(
        f"The slot {name} belongs to a flow named {flow} whose state lies in {home}, not in {here}.",
        remedy="Give this flow another name, or another `slot` and `publication`; if that state is gone for good,"
        f" `penstock slot drop --flow FILE` drops the slot {name}, and the flow begins anew.",
        slot=name,
    )

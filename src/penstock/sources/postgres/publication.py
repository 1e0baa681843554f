"""The publication: what the server sends, and what the flow may change about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from penstock.sources.postgres import catalog
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.state import StateTable

SCHEMAS_SINCE = 150000
"""Publications of whole schemas, and column lists."""


@dataclass(frozen=True)
class Publication:
    """A publication as the server has it now."""

    name: str
    owner: str
    owned: bool
    """Whether our role may act as the owner."""
    of_superuser: bool
    """Whether the owner is a superuser, whose rights nobody should be given."""
    made_here: bool
    """Whether this flow has made it: only then does it follow the database without being asked table by table."""
    sends_updates: bool
    """Whether it sends updates or deletes, for which every table needs a replica identity."""
    everything: bool
    """Whether it is FOR ALL TABLES."""
    operations: tuple[str, ...]
    """What it sends: insert, update, delete, truncate."""
    via_root: bool
    """Whether changes of partitions are sent as those of their root table."""
    listed: frozenset[int]
    """Oids of tables that it names one by one."""
    schemas: tuple[str, ...]
    """Schemas that it sends whole (15+)."""
    named: frozenset[int]
    """Oids of tables that it names, itself or by schema."""
    sends: dict[int, frozenset[str] | None]
    """Oids of tables as the stream names them, each with its columns where the server can say (15+)."""


@dataclass(frozen=True)
class Plan:
    """What the flow takes, and what has to be added to the publication before it does."""

    found: Publication | None
    asked: list[Table]
    """What the options ask for."""
    takes: list[Table]
    """What the stream will have once `missing` is added and `surplus` dropped."""
    missing: list[Table]
    surplus: list[Table] = field(default_factory=list)
    """What the publication names and the options no longer do; only where they ask for that to be dropped."""
    left_out: list[Table] = field(default_factory=list)
    """What the options ask for and an operator has taken out of the publication: the flow does not add it again."""


_PUBLICATION = """
SELECT p.oid::bigint AS oid, p.puballtables AS everything, p.pubupdate OR p.pubdelete AS sends_updates, p.pubviaroot AS via_root,
       ARRAY[CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
             CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END] AS operations,
       pg_catalog.pg_get_userbyid(p.pubowner) AS owner, pg_catalog.pg_has_role(p.pubowner, 'USAGE') AS owned,
       coalesce((SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = p.pubowner), true) AS of_superuser,
       pg_catalog.obj_description(p.oid, 'pg_publication') AS comment
  FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""
_NAMED = "SELECT r.prrelid::bigint AS oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = %(oid)s"
_NAMED_BY_SCHEMA = """
SELECT n.nspname AS schema, c.oid::bigint AS oid FROM pg_catalog.pg_publication_namespace p
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid WHERE p.pnpubid = %(oid)s
"""
# to_jsonb: attnames exists from 15; a missing column is NULL here and no error.
_SENDS = """
SELECT c.oid::bigint AS oid, pg_catalog.to_jsonb(t) -> 'attnames' AS columns
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %(name)s
"""


def find(control: Control, name: str, flow: str) -> Publication | None:
    """The publication of that name, if there is one."""
    found = control.rows(_PUBLICATION, {"name": name})
    if not found:
        return None
    row = found[0]
    listed = frozenset(n["oid"] for n in control.rows(_NAMED, {"oid": row["oid"]}))
    by_schema = control.rows(_NAMED_BY_SCHEMA, {"oid": row["oid"]}) if control.version >= SCHEMAS_SINCE else []
    return Publication(
        name=name,
        owner=row["owner"],
        owned=row["owned"],
        of_superuser=row["of_superuser"],
        made_here=row["comment"] == catalog.flow_mark(flow),
        sends_updates=row["sends_updates"],
        everything=row["everything"],
        operations=tuple(o for o in row["operations"] if o),
        via_root=row["via_root"],
        listed=listed,
        schemas=tuple(sorted({n["schema"] for n in by_schema})),
        named=listed | {n["oid"] for n in by_schema},
        sends={s["oid"]: frozenset(s["columns"]) if s["columns"] else None for s in control.rows(_SENDS, {"name": name})},
    )


def plan(control: Control, options: PostgresOptions, name: str, flow: str) -> Plan:
    """What the options ask for against what the server has; changes nothing."""
    tables = catalog.tables(control)
    asked = catalog.wanted(options, tables)
    found = find(control, name, flow)
    left_out = StateTable(control, flow, options).left_out()
    if found is None:
        missing = [t for t in asked if t.oid not in left_out]
        return Plan(None, asked, missing, missing, left_out=[t for t in asked if t.oid in left_out])
    # Somebody else's publication is taken as it is, unless the options name tables that belong in it.
    follows = found.made_here or bool(options.publication_tables or options.publication_schemas) or options.sync_publication
    drops = options.sync_publication and options.sync_publication_mode == "sync"
    return compare(found, tables, asked, adds=follows, drops=drops, left_out=left_out)


def compare(
    found: Publication,
    tables: Sequence[Table],
    asked: list[Table],
    *,
    adds: bool,
    drops: bool,
    left_out: frozenset[int] = frozenset(),
) -> Plan:
    """What would have to be added and dropped for the publication to be what is asked for."""
    absent = [t for t in asked if not found.everything and t.oid not in found.named and t.oid not in found.sends]
    missing = [t for t in absent if adds and t.oid not in left_out]
    wanted = {t.oid for t in asked}
    surplus = [t for t in tables if drops and t.oid in found.listed and t.oid not in wanted]
    added = {t.oid for t in missing}
    # A table that its schema brings along stays, whatever happens to its own mention.
    gone = {t.oid for t in surplus if t.schema not in found.schemas}
    takes = [t for t in tables if (t.oid in found.sends or t.oid in added) and t.oid not in gone]
    return Plan(found, asked, takes, missing, surplus, [t for t in absent if t.oid in left_out])


def creation(name: str, flow: str, tables: Sequence[Table]) -> Composed:
    """The statements, one transaction when sent together, that make the publication and mark it as the flow's own."""
    return SQL(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true); COMMENT ON PUBLICATION {} IS {}"
    ).format(Identifier(name), SQL(", ").join(t.quoted for t in tables), Identifier(name), Literal(catalog.flow_mark(flow)))


def addition(name: str, tables: Sequence[Table]) -> Composed:
    """The statement that adds tables."""
    return SQL("ALTER PUBLICATION {} ADD TABLE {}").format(Identifier(name), SQL(", ").join(t.quoted for t in tables))


def removal(name: str, tables: Sequence[Table]) -> Composed:
    """The statement that drops tables from the publication; the tables themselves are not touched."""
    return SQL("ALTER PUBLICATION {} DROP TABLE {}").format(Identifier(name), SQL(", ").join(t.quoted for t in tables))


def changes(name: str, plan: Plan) -> list[Composed]:
    """The statements that bring an existing publication in line, additions first."""
    found = [addition(name, plan.missing)] if plan.missing else []
    return [*found, removal(name, plan.surplus)] if plan.surplus else found


def text(*statements: Composable) -> str:
    """Statements as an operator runs them."""
    return " ".join(f"{statement.as_string(None)};" for statement in statements)

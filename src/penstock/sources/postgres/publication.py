"""The publication: what the server sends, and what the flow may change about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from penstock.sources.postgres import catalog
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions

SCHEMAS_SINCE = 150000
"""Publications of whole schemas, and column lists."""


@dataclass(frozen=True)
class Publication:
    """A publication as the server has it now."""

    name: str
    owner: str
    owned: bool
    """Whether our role may act as the owner."""
    made_here: bool
    """Whether this flow has made it: only then does it follow the database without being asked table by table."""
    sends_updates: bool
    """Whether it sends updates or deletes, for which every table needs a replica identity."""
    everything: bool
    """Whether it is FOR ALL TABLES."""
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
    """What the stream will have once `missing` is added."""
    missing: list[Table]


_PUBLICATION = """
SELECT p.oid::bigint AS oid, p.puballtables AS everything, p.pubupdate OR p.pubdelete AS sends_updates,
       pg_catalog.pg_get_userbyid(p.pubowner) AS owner, pg_catalog.pg_has_role(p.pubowner, 'USAGE') AS owned,
       pg_catalog.obj_description(p.oid, 'pg_publication') AS comment
  FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""
_NAMED = "SELECT r.prrelid::bigint AS oid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = %(oid)s"
_NAMED_BY_SCHEMA = """
SELECT c.oid::bigint AS oid FROM pg_catalog.pg_publication_namespace p
  JOIN pg_catalog.pg_class c ON c.relnamespace = p.pnnspid WHERE p.pnpubid = %(oid)s
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
    named = control.rows(_NAMED, {"oid": row["oid"]})
    if control.version >= SCHEMAS_SINCE:
        named += control.rows(_NAMED_BY_SCHEMA, {"oid": row["oid"]})
    return Publication(
        name=name,
        owner=row["owner"],
        owned=row["owned"],
        made_here=row["comment"] == _mark(flow),
        sends_updates=row["sends_updates"],
        everything=row["everything"],
        named=frozenset(n["oid"] for n in named),
        sends={s["oid"]: frozenset(s["columns"]) if s["columns"] else None for s in control.rows(_SENDS, {"name": name})},
    )


def plan(control: Control, options: PostgresOptions, name: str, flow: str) -> Plan:
    """What the options ask for against what the server has; changes nothing."""
    tables = catalog.tables(control)
    asked = catalog.wanted(options, tables)
    found = find(control, name, flow)
    if found is None:
        return Plan(None, asked, asked, asked)
    # Somebody else's publication is taken as it is, unless the options name tables that belong in it.
    follows = found.made_here or bool(options.publication_tables or options.publication_schemas)
    missing = [t for t in asked if follows and not found.everything and t.oid not in found.named and t.oid not in found.sends]
    added = {t.oid for t in missing}
    return Plan(found, asked, [t for t in tables if t.oid in found.sends or t.oid in added], missing)


def creation(name: str, flow: str, tables: Sequence[Table]) -> Composed:
    """The statements, one transaction when sent together, that make the publication and mark it as the flow's own."""
    return SQL(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true); COMMENT ON PUBLICATION {} IS {}"
    ).format(Identifier(name), SQL(", ").join(t.quoted for t in tables), Identifier(name), Literal(_mark(flow)))


def addition(name: str, tables: Sequence[Table]) -> Composed:
    """The statement that adds tables."""
    return SQL("ALTER PUBLICATION {} ADD TABLE {}").format(Identifier(name), SQL(", ").join(t.quoted for t in tables))


def text(*statements: Composable) -> str:
    """Statements as an operator runs them."""
    return " ".join(f"{statement.as_string(None)};" for statement in statements)


def _mark(flow: str) -> str:
    return f"penstock flow {flow}"

"""The rights that a re-select needs, checked before the first gap is met."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.sql import SQL, Identifier

from penstock.errors import SourceRights
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control

_UNREADABLE = """
SELECT o.oid::bigint AS oid FROM unnest(%(oids)s::oid[]) AS o(oid)
  JOIN pg_catalog.pg_class c ON c.oid = o.oid
 WHERE NOT (pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'))
"""


def unreadable(control: Control, tables: Sequence[Table]) -> list[tuple[Table, SourceRights]]:
    """The tables that our role may not read, each with the grants that mend it; one whose old rows are logged is never read."""
    asked = {t.oid: t for t in tables if t.identity != "f"}
    role = Identifier(control.user)
    problems = []
    for row in control.rows(_UNREADABLE, {"oids": list(asked)}):
        table = asked[int(row["oid"])]
        grants = SQL("GRANT USAGE ON SCHEMA {} TO {role}; GRANT SELECT ON {} TO {role};").format(
            Identifier(table.schema), table.quoted, role=role
        )
        error = SourceRights(
            f"The role {control.user} may not read {table.qualified}, which `toast_fetch` needs.",
            remedy=grants.as_string(None),
            table=table.qualified,
        )
        problems.append((table, error))
    return problems

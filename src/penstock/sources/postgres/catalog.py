"""The server's catalogue: tables that can be published, their columns, keys and replica identities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from psycopg.sql import SQL, Composed, Identifier

from penstock.core.options import matches
from penstock.core.schema import Column, TableSchema
from penstock.sources.postgres.control import Control, Row
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.typebook import TypeBook

STATE_MARK = "penstock: what each flow owns on this server"
"""The comment on a state table, and on its schema, that penstock itself has made."""
OWN_MARK = "penstock: "
"""How comments begin on tables that penstock keeps for itself, those of its postgres destination included."""


def flow_mark(flow: str) -> str:
    """The comment on what the flow has made."""
    return f"penstock flow {flow}"


@dataclass(frozen=True)
class Table:
    """A published or publishable table, as the catalogue has it now."""

    oid: int
    schema: str
    name: str
    owner: str
    owned: bool
    """Whether our role may act as the owner."""
    of_superuser: bool
    """Whether the owner is a superuser, whose rights nobody should be given."""
    from_extension: bool
    is_root: bool
    """Whether it is nobody's partition."""
    identity: str
    """relreplident: d, i, f or n."""
    key: tuple[str, ...]
    """Columns that identify a row in the stream; empty when nothing does."""
    silent: tuple[tuple[str, str], ...]
    """The table itself, or those of its partitions, that have no usable replica identity."""
    unique_index: str | None
    """An index that could become the replica identity."""
    is_state: bool
    """Whether it is a table that penstock keeps for itself, which no flow takes."""

    @property
    def qualified(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> Composed:
        """The name as SQL takes it."""
        return SQL("{}").format(Identifier(self.schema, self.name))


_TABLES = """
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relreplident::text AS identity,
       pg_catalog.pg_get_userbyid(c.relowner) AS owner, pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
       (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = c.relowner) AS of_superuser,
       EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
               AND d.objid = c.oid AND d.deptype = 'e') AS from_extension, NOT c.relispartition AS is_root,
       coalesce(pg_catalog.obj_description(c.oid, 'pg_class') LIKE %(own)s, false) AS is_state,
       i.primary_columns, i.identity_columns, i.unique_index,
       (SELECT pg_catalog.array_agg(ARRAY[pn.nspname, p.relname]::text[] ORDER BY pn.nspname, p.relname)
          FROM (SELECT c.oid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE c.relkind = 'p') part (oid)
          JOIN pg_catalog.pg_class p ON p.oid = part.oid
          JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
         WHERE p.relkind = 'r' AND p.relreplident <> 'f' AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = p.oid AND x.indisvalid AND x.indimmediate
                  AND (p.relreplident = 'd' AND x.indisprimary OR p.relreplident = 'i' AND x.indisreplident))) AS silent
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
       SELECT pg_catalog.max(columns) FILTER (WHERE x.indisprimary) AS primary_columns,
              pg_catalog.max(columns) FILTER (WHERE x.indisreplident) AS identity_columns,
              pg_catalog.min(xc.relname::text) FILTER (WHERE required AND x.indimmediate AND x.indpred IS NULL
                                                         AND x.indexprs IS NULL) AS unique_index
         FROM pg_catalog.pg_index x
         JOIN pg_catalog.pg_class xc ON xc.oid = x.indexrelid
         CROSS JOIN LATERAL (
              SELECT pg_catalog.array_agg(a.attname::text ORDER BY k.place) AS columns,
                     pg_catalog.bool_and(a.attnotnull) AS required
                FROM pg_catalog.unnest(x.indkey) WITH ORDINALITY k (number, place)
                JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
               WHERE k.place <= x.indnkeyatts) named
        WHERE x.indrelid = c.oid AND x.indisvalid AND x.indisunique) i ON true
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
 ORDER BY n.nspname, c.relname
"""

GENERATED_SINCE = 180000
"""Publications with generated columns; before, pg_publication_tables names them and the stream leaves them out (15.18)."""

_COLUMNS = """
SELECT a.attrelid::bigint AS oid, a.attname AS name, a.atttypid::bigint AS type, a.atttypmod AS modifier,
       a.attgenerated = '' AS stored_by_user
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%(oids)s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""

_UNPUBLISHABLE = """
SELECT n.nspname AS schema, c.relname AS name,
       CASE WHEN c.relispartition THEN 'a partition: name its root table'
            WHEN c.relpersistence <> 'p' THEN 'unlogged or temporary: the server does not replicate it'
            WHEN c.relkind IN ('v', 'm') THEN 'a view: name its tables'
            ELSE 'a foreign table: the server does not replicate it' END AS reason
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE (c.relispartition OR c.relpersistence <> 'p' OR c.relkind IN ('v', 'm', 'f')) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND n.nspname NOT IN ('pg_catalog', 'information_schema')
 ORDER BY c.relispartition DESC, n.nspname, c.relname
"""


def tables(control: Control) -> list[Table]:
    """Every permanent table of the database, partitions included, ordered by name."""
    return [_table(row) for row in control.rows(_TABLES, {"own": f"{OWN_MARK}%"})]


def wanted(options: PostgresOptions, found: Iterable[Table]) -> list[Table]:
    """The root tables that the options ask for; without patterns all that do not come with an extension."""
    names, schemas = options.publication_tables, options.publication_schemas
    state = (options.state_schema, options.state_table)
    found = [t for t in found if not t.is_state and (t.schema, t.name) != state]
    if not names and not schemas:
        return [t for t in found if t.is_root and not t.from_extension]
    return [t for t in found if t.is_root and _asked(names, schemas, t.schema, t.name)]


def unmatched(control: Control, options: PostgresOptions, found: Sequence[Table]) -> list[tuple[str, str, str]]:
    """Patterns that fit no table: the option, the pattern, and why where a relation of that name exists."""
    missing = [
        ("publication_tables", p) for p in options.publication_tables if not any(matches((p,), t.schema, t.name) for t in found)
    ]
    missing += [
        ("publication_schemas", p) for p in options.publication_schemas if not any(fnmatchcase(t.schema, p) for t in found)
    ]
    if not missing:
        return []
    others = control.rows(_UNPUBLISHABLE)
    return [(option, pattern, _reason(option, pattern, others)) for option, pattern in missing]


def reasons(control: Control, words: Sequence[str]) -> dict[str, str]:
    """Why each name or pattern fits no table, where a relation of that name exists that cannot be published."""
    others = control.rows(_UNPUBLISHABLE)
    return {word: _reason("publication_tables", word, others) for word in words}


def describe(
    control: Control, types: TypeBook, found: Sequence[Table], published: dict[int, frozenset[str]]
) -> list[TableSchema]:
    """Schemas of the tables with the columns the stream has: those `published` names, else all that are not generated."""
    sent_rows: dict[int, list[Row]] = {}
    may_be_generated = control.version >= GENERATED_SINCE
    for row in control.rows(_COLUMNS, {"oids": [t.oid for t in found]}):
        chosen = published.get(row["oid"])
        if chosen is None or not may_be_generated:
            sent = row["stored_by_user"] and (chosen is None or row["name"] in chosen)
        else:
            sent = row["name"] in chosen
        if sent:
            sent_rows.setdefault(row["oid"], []).append(row)
    known = types.resolve((row["type"], row["modifier"]) for rows in sent_rows.values() for row in rows)
    columns = {
        oid: tuple(known[row["type"], row["modifier"]].column(row["name"]) for row in rows) for oid, rows in sent_rows.items()
    }
    return [_schema(t, columns.get(t.oid, ())) for t in found]


def _schema(table: Table, columns: tuple[Column, ...]) -> TableSchema:
    # A publication's column list may leave out a part of the key, as long as it sends inserts only.
    key = key_of(table.key, [c.name for c in columns])
    return TableSchema(table.schema, table.name, columns, key, 1, str(table.oid))


def key_of(key: Collection[str], columns: Sequence[str]) -> tuple[str, ...]:
    """The key's columns in the table's order, which is all that the stream tells; none when one of them is not sent.

    An index may have another order. Rows of a load and of the stream are told apart by the places of their keys' values.
    """
    return tuple(name for name in columns if name in key) if set(columns).issuperset(key) else ()


def _asked(names: Sequence[str], schemas: Sequence[str], schema: str, table: str) -> bool:
    return matches(names, schema, table) or any(fnmatchcase(schema, p) for p in schemas)


def _reason(option: str, pattern: str, others: Sequence[dict[str, Any]]) -> str:
    for row in others:
        if option == "publication_tables" and matches((pattern,), row["schema"], row["name"]):
            return f"{row['schema']}.{row['name']} is {row['reason']}"
    return ""


def _table(row: dict[str, Any]) -> Table:
    # An index as identity is all that deletes carry then, so it is the key even beside a primary key.
    key = row["identity_columns"] if row["identity"] == "i" else row["primary_columns"]
    return Table(
        oid=row["oid"],
        schema=row["schema"],
        name=row["name"],
        owner=row["owner"],
        owned=row["owned"],
        of_superuser=bool(row["of_superuser"]),
        from_extension=row["from_extension"],
        is_root=row["is_root"],
        identity=row["identity"],
        key=tuple(key or ()),
        silent=tuple((schema, name) for schema, name in row["silent"] or ()),
        unique_index=row["unique_index"],
        is_state=row["is_state"],
    )

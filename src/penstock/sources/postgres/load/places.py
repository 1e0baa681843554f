"""Places: the relations in which a table's rows stand, as the catalogue has them now; a few queries for any number of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from psycopg.sql import Identifier

from penstock.core.schema import TableSchema
from penstock.errors import TableGone
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.load.session import digest
from penstock.sources.postgres.typebook import TypeBook

# Leaves that the stream does not have are left out: foreign and unlogged ones.
_PLACES = """
SELECT a.oid::bigint AS root, c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind = 'p' AS partitioned,
       coalesce(m.amname, '') AS method, pg_catalog.pg_relation_filenode(c.oid)::bigint AS filenode, c.reltuples::bigint AS rows,
       pg_catalog.pg_relation_size(c.oid) AS main, pg_catalog.pg_table_size(c.oid) AS size,
       pg_catalog.has_table_privilege(c.oid, 'SELECT') OR pg_catalog.has_any_column_privilege(c.oid, 'SELECT') AS readable
  FROM pg_catalog.unnest(%(oids)s::pg_catalog.oid[]) a (oid)
  JOIN pg_catalog.pg_class r ON r.oid = a.oid
 CROSS JOIN LATERAL (
       SELECT a.oid AS relid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(a.oid) t WHERE t.isleaf AND r.relkind = 'p') t
  JOIN pg_catalog.pg_class c ON c.oid = t.relid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
 ORDER BY a.oid, n.nspname, c.relname
"""
_COLUMNS = """
SELECT a.attrelid::bigint AS oid, a.attname AS name, a.atttypid::bigint AS type, a.atttypmod AS modifier, a.attlen AS size
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%(oids)s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""
# Operators by their schema: with an empty search path those of an extension's type are not found by name.
_INDEXES = """
SELECT x.indrelid::bigint AS oid, k.columns, k.types, k.schemas, k.least, k.below, k.same, k.usual
  FROM pg_catalog.pg_index x
 CROSS JOIN LATERAL (
       SELECT pg_catalog.array_agg(a.attname::text ORDER BY u.place) AS columns,
              pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY u.place) AS types,
              pg_catalog.array_agg(s.nspname::text ORDER BY u.place) AS schemas,
              pg_catalog.array_agg(o.least ORDER BY u.place) AS least, pg_catalog.array_agg(o.below ORDER BY u.place) AS below,
              pg_catalog.array_agg(o.same ORDER BY u.place) AS same, pg_catalog.bool_and(c.opcdefault) AS usual
         FROM unnest(x.indkey::int2[], x.indclass::pg_catalog.oid[]) WITH ORDINALITY u (number, opclass, place)
         JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = u.number
         JOIN pg_catalog.pg_opclass c ON c.oid = u.opclass
         JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
        CROSS JOIN LATERAL (
              SELECT pg_catalog.max(p.oprname) FILTER (WHERE f.amopstrategy = 4)::text AS least,
                     pg_catalog.max(p.oprname) FILTER (WHERE f.amopstrategy = 1)::text AS below,
                     pg_catalog.max(p.oprname) FILTER (WHERE f.amopstrategy = 3)::text AS same,
                     pg_catalog.max(p.oprnamespace) AS home
                FROM pg_catalog.pg_amop f JOIN pg_catalog.pg_operator p ON p.oid = f.amopopr
               WHERE f.amopfamily = c.opcfamily AND f.amoplefttype = c.opcintype AND f.amoprighttype = c.opcintype) o
         JOIN pg_catalog.pg_namespace s ON s.oid = o.home
        WHERE u.place <= x.indnkeyatts) k
 WHERE x.indrelid = ANY (%(oids)s::pg_catalog.oid[]) AND x.indisunique AND x.indisvalid AND x.indpred IS NULL
   AND x.indexprs IS NULL AND pg_catalog.cardinality(k.columns) = x.indnkeyatts
 ORDER BY x.indisreplident DESC, x.indisprimary DESC, x.indexrelid
"""
_HEADER_BYTES = 28
_VARIABLE_BYTES = 32


@dataclass(frozen=True)
class Index:
    """A unique index over the key, in the index's own order of columns, with the operators that compare them."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    schemas: tuple[str, ...]
    least: tuple[str, ...]
    below: tuple[str, ...]
    same: tuple[str, ...]
    usual: bool
    """Whether it orders as ORDER BY does."""

    @property
    def is_plain(self) -> bool:
        """Whether all operators are the server's own, so that rows of columns can be compared."""
        return set(self.schemas) <= {"pg_catalog"}


@dataclass(frozen=True)
class Place:
    """A relation that holds rows of a table: the table itself, or a leaf of a partitioned one."""

    oid: int
    quoted: str
    """Its name as SQL writes it."""
    only: bool
    heap: bool
    filenode: int
    main: int
    """Bytes of the rows themselves."""
    size: int
    """Bytes with TOAST."""
    rows: int
    """The planner's estimate, or ours where the table was never analysed."""
    readable: bool
    """Whether our role may read it by its own name."""


@dataclass
class Places:
    """All relations of some tables."""

    tables: dict[int, list[Place]]
    digests: dict[int, str]
    """By table, what its columns are."""
    names: dict[int, frozenset[str]] = field(default_factory=dict)
    """By table, all its columns, also those that are not published."""
    roots: dict[int, Place] = field(default_factory=dict)
    """By table, the relation that has its name; a partitioned one has no pages of its own."""


def find(control: Control, tables: Sequence[TableSchema]) -> Places:
    """Where the tables' rows stand; TableGone when one is not there."""
    oids = [int(t.identity) for t in tables]
    columns: dict[int, dict[str, tuple[int, int]]] = {}
    widths: dict[int, int] = {}
    for row in control.rows(_COLUMNS, {"oids": oids}):
        columns.setdefault(row["oid"], {})[row["name"]] = (row["type"], row["modifier"])
        width = row["size"] if row["size"] > 0 else _VARIABLE_BYTES
        widths[row["oid"]] = widths.get(row["oid"], _HEADER_BYTES) + width
    # Below domains, as the server itself describes a query's columns.
    types = TypeBook(control, True).resolve(t for each in columns.values() for t in each.values())
    found = Places({}, {}, {oid: frozenset(names) for oid, names in columns.items()})
    for row in control.rows(_PLACES, {"oids": oids}):
        width = widths.get(row["root"], _HEADER_BYTES)
        place = Place(
            oid=row["oid"],
            quoted=Identifier(row["schema"], row["name"]).as_string(None),
            only=not row["partitioned"],
            # From 17 on a partitioned table may name the method that its partitions get.
            heap=row["method"] == "heap" and not row["partitioned"],
            filenode=row["filenode"] or 0,
            main=row["main"] or 0,
            size=row["size"] or 0,
            rows=row["rows"] if row["rows"] >= 0 else (row["main"] or 0) // width,
            readable=row["readable"],
        )
        found.tables.setdefault(row["root"], []).append(place)
        if row["oid"] == row["root"]:
            found.roots[row["oid"]] = place
    for table in tables:
        oid = int(table.identity)
        if oid not in found.tables:
            raise TableGone(f"The table {table.qualified} does not exist any more.", table=table.qualified)
        found.tables[oid] = _read_by(oid, found.tables[oid])
        known = [(c.name, *columns.get(oid, {}).get(c.name, (0, 0))) for c in table.columns]
        below = [(name, types[t, m].oid, types[t, m].typmod) if t else (name, 0, 0) for name, t, m in known]
        found.digests[oid] = digest(below)
    return found


def _read_by(root: int, places: list[Place]) -> list[Place]:
    """The relations by whose names the rows are read: the leaves, or the root where a right on a leaf is missing."""
    (top,) = [p for p in places if p.oid == root]
    leaves = [p for p in places if p.oid != root]
    if top.only:
        return [top]
    if leaves and all(p.readable for p in leaves):
        return leaves
    sums = {name: sum(getattr(p, name) for p in leaves) for name in ("main", "size", "rows")}
    return [replace(top, **sums)]


def indexes(control: Control, wanted: Iterable[tuple[int, tuple[str, ...]]]) -> dict[int, Index]:
    """By relation, the best index over exactly its key's columns, where there is one."""
    keys = {oid: frozenset(key) for oid, key in wanted if key}
    found: dict[int, Index] = {}
    for row in control.rows(_INDEXES, {"oids": list(keys)}) if keys else ():
        if row["oid"] not in found and frozenset(row["columns"]) == keys[row["oid"]]:
            columns, types, schemas, least, below, same = (
                tuple(row[name]) for name in ("columns", "types", "schemas", "least", "below", "same")
            )
            found[row["oid"]] = Index(columns, types, schemas, least, below, same, bool(row["usual"]))
    return found

"""The inventory: what a publication sends and which partitions stand behind it, as the catalogue has it at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.sources.postgres.control import Control, Row

ATTEMPTS = 20
OPERATIONS = ("insert", "update", "delete", "truncate")


class Rule(NamedTuple):
    """A table's entry in the publication: a new entry means that the table was taken out in between."""

    entry: int
    columns: str
    filter: str


class Partition(NamedTuple):
    """A partition whose changes are sent as those of its root."""

    root: int
    name: str
    file: int
    touched: str
    """The transaction that wrote its catalogue row."""
    is_empty: bool
    """Whether it looks as a TRUNCATE leaves it; a rewrite of the table leaves its statistics."""
    is_attached: bool
    """Whether it was a table before it became a partition."""
    is_leaf: bool


@dataclass(frozen=True)
class Inventory:
    """What is sent, and as what."""

    publication: int
    operations: tuple[str, ...]
    via_root: bool
    sent: Mapping[int, str]
    """Tables as the stream names them: oid and name, the latter as SQL takes it."""
    rules: Mapping[int, Rule]
    partitions: Mapping[int, Partition]
    existing: Mapping[int, str]
    """Every table of the database, sent or not; empty when the inventory was remembered."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for the ledger."""
        return {
            "publication": self.publication,
            "operations": self.operations,
            "via_root": self.via_root,
            "sent": {str(oid): name for oid, name in self.sent.items()},
            "rules": {str(oid): rule for oid, rule in self.rules.items()},
            "partitions": {str(oid): partition for oid, partition in self.partitions.items()},
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Inventory:
        """What `to_data` gave."""
        return cls(
            publication=int(data["publication"]),
            operations=tuple(data["operations"]),
            via_root=bool(data["via_root"]),
            sent={int(oid): str(name) for oid, name in data["sent"].items()},
            rules={int(oid): Rule(*rule) for oid, rule in data["rules"].items()},
            partitions={int(oid): Partition(*partition) for oid, partition in data["partitions"].items()},
            existing={},
        )


_PUBLICATION = """
SELECT p.oid::bigint AS oid, p.pubinsert AS "insert", p.pubupdate AS "update", p.pubdelete AS "delete",
       p.pubtruncate AS "truncate", p.pubviaroot AS via_root
  FROM pg_catalog.pg_publication p WHERE p.pubname = %(name)s
"""
# to_jsonb: prattrs and prqual exist from 15; a missing column is NULL here and no error.
_RULES = """
SELECT r.prrelid::bigint AS oid, r.oid::bigint AS entry, coalesce(pg_catalog.to_jsonb(r) ->> 'prattrs', '') AS columns,
       coalesce(pg_catalog.md5(pg_catalog.to_jsonb(r) ->> 'prqual'), '') AS filter
  FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = %(publication)s
"""
_SENT = """
SELECT c.oid::bigint AS oid FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %(name)s
"""
# The ctid column's row (attnum -1) is written once, by the CREATE TABLE; ATTACH comes in a later transaction.
_TABLES = """
SELECT c.oid::bigint AS oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, i.inhparent::bigint AS parent,
       c.relfilenode::bigint AS file,
       c.xmin::text AS touched, c.relpages = 0 AND c.reltuples <= 0 AS is_empty, c.relkind = 'r' AS is_leaf,
       coalesce(i.xmin <> a.xmin, false) AS is_attached
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_inherits i ON c.relispartition AND i.inhrelid = c.oid
  LEFT JOIN pg_catalog.pg_attribute a ON c.relispartition AND a.attrelid = c.oid AND a.attnum = -1
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
   AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
"""


def take(control: Control, name: str) -> Inventory | None:
    """The publication's inventory now; None when there is no such publication."""
    found = control.rows(_PUBLICATION, {"name": name})
    if not found:
        return None
    publication = found[0]
    tables, sent = _at_one_moment(control, name)
    rules = control.rows(_RULES, {"publication": publication["oid"]})
    return Inventory(
        publication=publication["oid"],
        operations=tuple(o for o in OPERATIONS if publication[o]),
        via_root=publication["via_root"],
        sent={oid: tables[oid]["name"] for oid in sent if oid in tables},
        rules={r["oid"]: Rule(r["entry"], r["columns"], r["filter"]) for r in rules},
        partitions=dict(_partitions(tables, frozenset(sent))),
        existing={oid: row["name"] for oid, row in tables.items()},
    )


def _at_one_moment(control: Control, name: str) -> tuple[dict[int, Row], list[int]]:
    """The tables, and those that are sent: one dropped between the two questions would look as if it was taken out."""
    tables = {row["oid"]: row for row in control.rows(_TABLES)}
    for _ in range(ATTEMPTS):
        sent = [row["oid"] for row in control.rows(_SENT, {"name": name})]
        before, tables = tables, {row["oid"]: row for row in control.rows(_TABLES)}
        if before.keys() == tables.keys():
            break
    return tables, sent


def _partitions(tables: Mapping[int, Row], sent: frozenset[int]) -> Iterable[tuple[int, Partition]]:
    for oid, row in tables.items():
        if oid in sent or row["parent"] is None:
            continue
        above: int | None = row["parent"]
        while above is not None and above not in sent:
            above = tables[above]["parent"] if above in tables else None
        if above is not None:
            yield (
                oid,
                Partition(above, row["name"], row["file"], row["touched"], row["is_empty"], row["is_attached"], row["is_leaf"]),
            )

"""The planning of chunks: which rows stand in which, so that all of them together hold every row once.

| kind  | cut by                         | needs                                                                |
|-------|--------------------------------|----------------------------------------------------------------------|
| whole | nothing                        | any snapshot                                                         |
| ctid  | pages of a heap (14+)          | one snapshot for all: an update moves a row to another page          |
| key   | ranges of the key              | any snapshot, as long as keys do not change                          |
| hash  | the hash of a column           | one snapshot for all, unless the column is part of the key           |
| keys  | a list of keys                 | any snapshot                                                         |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Identifier, Literal

from penstock.core.schema import TableSchema
from penstock.errors import SourceError, SourceSettings
from penstock.sources.chunks import Chunk, LoadRules
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.load import places, ranges, statements
from penstock.sources.postgres.load.places import Index, Place, Places

KEYS_PER_CHUNK: Final = 5000
_PAGE: Final = 8192
_LEAST_BYTES: Final = 32 << 20
"""A chunk costs a Spark job, a transaction and two fsyncs, whatever its size."""
_ENOUGH: Final = 48
"""So many chunks of a table keep readers and lanes busy side by side."""

# to_jsonb: rowfilter exists from 15; a missing column is NULL here and no error.
_FILTERS = """
SELECT c.oid::bigint AS oid, pg_catalog.to_jsonb(t) ->> 'rowfilter' AS filter
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %(name)s AND pg_catalog.to_jsonb(t) ->> 'rowfilter' IS NOT NULL
"""


@dataclass(frozen=True)
class _Cut:
    """One chunk before it has a number."""

    kind: str
    place: Place
    condition: str = ""
    filenode: int = 0
    share: float = 1.0


class Planning:
    """Plans over one connection."""

    def __init__(self, control: Control, publication: str) -> None:
        self._control, self._publication = control, publication

    def plan(self, tables: Sequence[TableSchema], rules: LoadRules) -> list[Chunk]:
        """Chunks of the tables, table by table; a handful of queries, and one or two for each table that is cut by key."""
        if not tables:
            return []
        of = {t: rules.tables.get(t.qualified, rules) for t in tables}
        found = places.find(self._control, tables)
        _check_columns(rules, of, found)
        filters = self._filters()
        self._check_conditions(of, found)
        cut_by_key = [
            (place.oid, table.key)
            for table in tables
            for place in found.tables[int(table.identity)]
            if place.size > _target(place, of[table]) and not (of[table].common_snapshot and place.heap)
        ]
        known = places.indexes(self._control, cut_by_key)
        chunks: list[Chunk] = []
        for table in tables:
            chunks += self._table(table, of[table], found, filters.get(int(table.identity), ""), known)
        return chunks

    def keys(self, table: TableSchema, keys: pa.RecordBatch) -> list[Chunk]:
        """Chunks that read a list of keys."""
        if not table.key or not keys.num_rows:
            return []
        found = places.find(self._control, [table])
        oid = int(table.identity)
        place = found.roots[oid]
        index = self._index(table, place)
        columns = [index.columns.index(name) for name in table.key]
        about = [[index.columns[i], index.types[i], index.schemas[i], index.same[i]] for i in columns]
        bounds = {**_bounds(place, found.digests[oid]), "filter": self._filters().get(oid, ""), "key": about}
        names = list(table.key)
        unique = pa.Table.from_batches([keys.select(names)]).group_by(names).aggregate([]).combine_chunks()
        made = []
        for number, start in enumerate(range(0, unique.num_rows, KEYS_PER_CHUNK), 1):
            part = unique.slice(start, KEYS_PER_CHUNK)
            texts = [pc.cast(part.column(name), pa.string()).to_pylist() for name in names]
            count = part.num_rows
            size = count * (sum(p.size for p in found.tables[oid]) // max(1, sum(p.rows for p in found.tables[oid])) or 1)
            made.append(Chunk(table.schema, table.name, number, "keys", {**bounds, "keys": texts}, False, count, size))
        return made

    def _table(
        self, table: TableSchema, rules: LoadRules, found: Places, published: str, indexes: Mapping[int, Index]
    ) -> list[Chunk]:
        oid = int(table.identity)
        condition = statements.joined([published, rules.where])
        made: list[Chunk] = []
        for cut in self._cuts(table, rules, found, indexes):
            bounds: dict[str, Any] = _bounds(cut.place, found.digests[oid])
            bounds |= {"condition": cut.condition, "filter": condition, "filenode": cut.filenode}
            common = cut.kind == "ctid" or (cut.kind == "hash" and rules.partition_column not in table.key)
            rows, size = int(cut.place.rows * cut.share), int(cut.place.size * cut.share)
            made.append(Chunk(table.schema, table.name, len(made) + 1, cut.kind, bounds, common, rows, size))
        return made

    def _cuts(self, table: TableSchema, rules: LoadRules, found: Places, indexes: Mapping[int, Index]) -> list[_Cut]:
        oid = int(table.identity)
        column = rules.partition_column
        cuts: list[_Cut] = []
        # Without a key nothing shows that a row has moved to another partition: they stand alone only together.
        apart = rules.common_snapshot or bool(table.key)
        for place in found.tables[oid] if apart else [found.roots[oid]]:
            if column is not None and column in found.names[oid] and rules.partition_count > 1:
                cuts += _by_hash(place, column, rules.partition_count)
                continue
            count = math.ceil(place.size / _target(place, rules))
            if count < 2:
                cuts.append(_Cut("whole", place))
            elif rules.common_snapshot and place.heap:
                cuts += _by_page(place, count)
            elif place.oid in indexes:
                conditions = ranges.conditions(indexes[place.oid], ranges.bounds(self._control, place, indexes[place.oid], count))
                share = 1 / len(conditions)
                cuts += [_Cut("key" if condition else "whole", place, condition, share=share) for condition in conditions]
            else:
                cuts.append(_Cut("whole", place))
        return cuts

    def _index(self, table: TableSchema, place: Place) -> Index:
        found = places.indexes(self._control, [(place.oid, table.key)])
        if place.oid not in found:
            raise SourceSettings(
                f"{table.qualified} no longer has a unique index over its key, so that rows cannot be read by it.",
                remedy="Create the index again, or load the whole table again.",
                table=table.qualified,
            )
        return found[place.oid]

    def _filters(self) -> dict[int, str]:
        return {row["oid"]: row["filter"] for row in self._control.rows(_FILTERS, {"name": self._publication})}

    def _check_conditions(self, rules: Mapping[TableSchema, LoadRules], found: Places) -> None:
        """Refuses a condition that the server does not understand, before any chunk is read."""
        for table, mine in rules.items():
            if not mine.where:
                continue
            place = found.tables[int(table.identity)][0]
            # Also without parentheses: one that closes them itself would be another condition than it looks.
            forms = (statements.joined([mine.where]), f"{mine.where}\n")
            origin = SQL(place.quoted)
            try:
                for form in forms:
                    self._control.rows(SQL("SELECT FROM {} WHERE {} LIMIT 0").format(origin, SQL(form)))
            except SourceError as error:
                raise SourceSettings(
                    f"The condition for {table.qualified} is refused: {error.message}",
                    remedy="Correct the condition; names of columns need no table, functions and types outside of pg_catalog"
                    " their schema.",
                    table=table.qualified,
                ) from error


def _target(place: Place, rules: LoadRules) -> int:
    """How large a chunk of the relation is to be: no destination has anything to do before the first one is read."""
    return min(rules.target_bytes, max(_LEAST_BYTES, place.size // _ENOUGH))


def _bounds(place: Place, columns: str) -> dict[str, Any]:
    return {"oid": place.oid, "name": place.quoted, "only": place.only, "digest": columns}


def _by_page(place: Place, count: int) -> list[_Cut]:
    """Ranges of pages; the last has no end, so that rows on pages that are added after planning are in it."""
    pages = max(1, place.main // _PAGE)
    count = min(count, pages)
    starts = [pages * i // count for i in range(count)]
    cuts = []
    for i, start in enumerate(starts):
        parts = [f"ctid >= '({start},0)'::pg_catalog.tid"] if i else []
        if i + 1 < count:
            parts.append(f"ctid < '({starts[i + 1]},0)'::pg_catalog.tid")
        cuts.append(_Cut("ctid", place, " AND ".join(parts), place.filenode, 1 / count))
    return cuts


def _by_hash(place: Place, column: str, count: int) -> list[_Cut]:
    # By its text, because every type has one and not every type a hash of its own; NULL is in the first.
    value = SQL('pg_catalog.hashtextextended({}::pg_catalog.text COLLATE pg_catalog."C", 0)').format(Identifier(column))
    cuts = []
    for i in range(count):
        condition = SQL("coalesce(({value} % {count} + {count}) % {count}, 0) = {i}").format(
            value=value, count=Literal(count), i=Literal(i)
        )
        cuts.append(_Cut("hash", place, condition.as_string(None), share=1 / count))
    return cuts


def _check_columns(rules: LoadRules, of: Mapping[TableSchema, LoadRules], found: Places) -> None:
    for each in {rules.partition_column, *(r.partition_column for r in of.values())} - {None}:
        mine = [t for t, r in of.items() if r.partition_column == each]
        if mine and not any(each in found.names.get(int(t.identity), ()) for t in mine):
            raise SourceSettings(
                f"No table that is to be loaded has the column {each!r}.",
                remedy="Correct `partition_column`, or take it out: tables are then cut by page or key.",
            )

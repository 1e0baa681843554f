"""RELATION messages: how pgoutput describes a table, and how that becomes a catalogue entry."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from penstock.core.schema import TableSchema
from penstock.errors import ProtocolBroken
from penstock.journal.catalog import Entry
from penstock.sources.postgres.catalog import key_of
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.typebook import TypeBook

IDENTITY_FULL = "f"

_KEY = """
select a.attname as name
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey) with ordinality as k(attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = %(oid)s and i.indisprimary and k.place <= i.indnkeyatts
order by k.place
"""


@dataclass(frozen=True)
class RelationColumn:
    """A column as RELATION gives it; `flagged` says that it is part of the replica identity."""

    name: str
    oid: int
    typmod: int
    flagged: bool


@dataclass(frozen=True)
class Relation:
    """A table as RELATION gives it."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    def fingerprint(self) -> list[Any]:
        """What two descriptions of one version have in common; kept in the entry's detail."""
        columns = [[c.name, c.oid, c.typmod, int(c.flagged)] for c in self.columns]
        return [self.oid, self.schema, self.name, self.identity, columns]


def parse_relation(message: bytes) -> Relation:
    """The relation that a pgoutput message (from its `R` on) describes."""
    try:
        (oid,) = struct.unpack_from(">I", message, 1)
        schema, at = _text(message, 5)
        name, at = _text(message, at)
        identity = chr(message[at])
        (count,) = struct.unpack_from(">H", message, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            flags = message[at]
            column, at = _text(message, at + 1)
            type_oid, typmod = struct.unpack_from(">Ii", message, at)
            at += 8
            columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolBroken("the server sent a RELATION message that cannot be read") from error
    # An empty schema name stands for pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


class RelationBook:
    """Turns relations into catalogue entries with a version each; a repeated description makes none."""

    def __init__(
        self,
        control: Control,
        types: TypeBook,
        entries: dict[int, Entry],
        versions: dict[tuple[str, str], int],
        seq: int,
    ) -> None:
        self._control = control
        self._types = types
        self._current = dict(entries)
        self._versions = dict(versions)
        self.seq = seq

    def knows(self, oid: int) -> bool:
        """Whether the table has ever been described."""
        return oid in self._current

    def is_known(self, relation: Relation) -> bool:
        """Whether this very description is the one in force."""
        entry = self._current.get(relation.oid)
        return entry is not None and entry.detail["relation"] == relation.fingerprint()

    def enter(self, relation: Relation, segment: int, offset: int) -> Entry:
        """A new version that comes into force at that byte."""
        name = (relation.schema, relation.name)
        self.seq += 1
        self._versions[name] = self._versions.get(name, 0) + 1
        known = self._types.resolve((c.oid, c.typmod) for c in relation.columns)
        columns = tuple(known[c.oid, c.typmod].column(c.name) for c in relation.columns)
        table = TableSchema(relation.schema, relation.name, columns, self._key(relation), self._versions[name], str(relation.oid))
        detail = {"relation": relation.fingerprint()}
        entry = Entry(self.seq, relation.oid, segment, offset, table, detail)
        self._current[relation.oid] = entry
        return entry

    def _key(self, relation: Relation) -> tuple[str, ...]:
        if relation.identity != IDENTITY_FULL:
            return tuple(c.name for c in relation.columns if c.flagged)
        # REPLICA IDENTITY FULL flags every column: what identifies a row is the primary key, which only the catalogue has.
        names = [c.name for c in relation.columns]
        if key := key_of([row["name"] for row in self._control.rows(_KEY, {"oid": relation.oid})], names):
            return key
        before = self._current.get(relation.oid)
        return key_of(before.table.key, names) if before is not None else ()

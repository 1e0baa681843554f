"""The journal's catalogue: every table version with the byte at which it comes into force."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.schema import TableSchema
from penstock.journal.record import pack_frame, unpack_frames


@dataclass(frozen=True)
class Entry:
    """One table version: the `relation` (the source's id of the table) reads by it from (segment, offset) on."""

    seq: int
    relation: int
    segment: int
    offset: int
    table: TableSchema
    detail: dict[str, Any]
    """What the source's decoder needs beside the schema."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for a note."""
        return {
            "seq": self.seq,
            "relation": self.relation,
            "segment": self.segment,
            "offset": self.offset,
            "table": self.table.to_data(),
            "detail": self.detail,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Entry:
        """The entry that `to_data` described."""
        return cls(
            data["seq"], data["relation"], data["segment"], data["offset"], TableSchema.from_data(data["table"]), data["detail"]
        )


def pack_entry(entry: dict[str, Any]) -> bytes:
    """A record of the catalogue file."""
    return pack_frame(json.dumps(entry, separators=(",", ":")).encode(), entry["seq"])


def read_catalog(path: Path, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole records from byte `start` of the catalogue file on, and the byte after the last of them."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            frames, valid = unpack_frames(file.read())
    except FileNotFoundError:
        return [], start
    return [json.loads(payload) for payload, _ in frames], start + valid


class Catalog:
    """A reader's view of the catalogue file, grown on demand; entries are numbered from 1 without gaps at their end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._inode = 0
        self._force: tuple[int, dict[int, Entry]] = (0, {})
        self.entries: dict[int, Entry] = {}

    def reach(self, count: int) -> None:
        """Reads on until entry number `count` is there."""
        if count not in self.entries and count != 0:
            self._read()

    def _read(self) -> None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return
        if status.st_ino != self._inode or status.st_size < self._at:
            self._at, self._inode = 0, status.st_ino
        found, self._at = read_catalog(self._path, self._at)
        for data in found:
            if data["seq"] not in self.entries:
                self.entries[data["seq"]] = Entry.from_data(data)

    def names(self) -> set[str]:
        """The tables that have appeared so far, as schema.table."""
        self._read()
        return {e.table.qualified for e in self.entries.values()}

    def in_force(self, count: int) -> dict[int, Entry]:
        """By relation, the entry in force when the first `count` entries exist."""
        self.reach(count)
        known, force = self._force
        if count == known:
            return force
        force = dict(force) if count > known else {}
        for seq in sorted(self.entries):
            if seq <= count and (seq > known or count < known):
                force[self.entries[seq].relation] = self.entries[seq]
        self._force = (count, force)
        return force

    def inside(self, segment: int, start: int, end: int, after: int) -> list[Entry]:
        """Entries numbered above `after` that come into force within those bytes, in order."""
        self._read()
        return [e for seq, e in sorted(self.entries.items()) if seq > after and e.segment == segment and start <= e.offset < end]

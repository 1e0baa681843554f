"""Table versions by position: since when the journal reads each table as it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.core.schema import TableSchema
from penstock.journal.catalog import Entry, read_catalog
from penstock.journal.reader import read_notes
from penstock.journal.segment import catalog_path, segment_numbers


@dataclass(frozen=True)
class Version:
    """A table as it was from a position on."""

    table: TableSchema
    since: int | None
    """Position of the first transaction that has it; None when that is older than the journal."""


def table_versions(directory: Path) -> list[Version]:
    """Every version of every table that the journal knows, in log order; empty where there is no journal."""
    found, _ = read_catalog(catalog_path(directory))
    entries = sorted((Entry.from_data(data) for data in found), key=lambda entry: entry.seq)
    there, seen = segment_numbers(directory), set[tuple[str, str, str, int]]()
    firsts = dict(_firsts(directory, entries, set(there)))
    versions: list[Version] = []
    for entry in entries:
        table = entry.table
        known = (table.schema, table.name, table.identity, table.version)
        # One that no visible slice has is of a transaction that has not committed.
        visible = entry.seq in firsts or not there or entry.segment < there[0]
        if visible and known not in seen:
            seen.add(known)
            versions.append(Version(table, firsts.get(entry.seq)))
    return versions


def as_of(versions: list[Version], position: int) -> list[Version]:
    """The version of each table that is in force at a position."""
    force = {v.table.qualified: v for v in versions if v.since is None or v.since <= position}
    return list(force.values())


def _firsts(directory: Path, entries: list[Entry], there: set[int]) -> Iterator[tuple[int, int]]:
    """By the number of each entry, the position of the first transaction that reads by it."""
    wanted: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.segment in there:
            wanted[entry.segment].append(entry)
    for number, some in wanted.items():
        for note in read_notes(directory, number):
            for one in note.slices:
                # A new version begins a slice.
                yield from ((e.seq, one.first) for e in some if one.segment == number and one.start <= e.offset < one.end)

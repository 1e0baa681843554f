"""Which tables a destination must be told of before an epoch: new ones, and those in a new version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination
from penstock.engine.planner import Plan
from penstock.journal.catalog import Catalog, Entry
from penstock.journal.record import SliceFlag
from penstock.journal.segment import catalog_path


class Preparing:
    """Knows what one destination has been told; used by its loop's thread."""

    def __init__(self, journal: Path, destination: Destination, discovered: Sequence[TableSchema]) -> None:
        """`discovered` are the source's tables as its catalogue has them now."""
        self._catalog = Catalog(catalog_path(journal))
        self._destination, self._discovered = destination, discovered
        self._prepared: dict[str, int] = {}

    def prepare(self, plan: Plan) -> None:
        """Tables that this epoch brings for the first time, or in a new version."""
        if not plan.slices or (self._prepared and not plan.brings_schema):
            return
        tables = dict(self._catalog.in_force(plan.slices[0].catalog))
        for s in plan.slices:
            if s.flags & SliceFlag.SCHEMA:
                tables.update((e.relation, e) for e in self._catalog.inside(s.segment, s.start, s.end, s.catalog))
        # A table that was dropped and made again has another relation: the newest of a name is the one that stands.
        newest: dict[str, Entry] = {}
        for entry in sorted(tables.values(), key=lambda e: e.seq):
            newest[entry.table.qualified] = entry
        self._tell([e.table for name, e in newest.items() if self._prepared.get(name) != e.seq])
        self._prepared.update((name, e.seq) for name, e in newest.items())

    def prepare_discovered(self) -> None:
        """Tables that no change has touched yet are there, and empty, from the start.

        One that the journal knows is left to its epochs: they may still bring an older version than the catalogue has now.
        """
        known = self._catalog.names()
        self._tell([t for t in self._discovered if t.qualified not in known])
        self._discovered = ()

    def forget(self) -> None:
        """The destination may have lost what it was told: it is told again."""
        self._prepared.clear()

    def _tell(self, tables: Sequence[TableSchema]) -> None:
        takes = self._destination.options.takes
        wanted = [table for table in tables if takes(table.schema, table.name)]
        if wanted:
            self._destination.prepare(wanted)

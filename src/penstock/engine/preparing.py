"""Which tables a destination must be told of before an epoch: new ones, and those in a new version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination
from penstock.engine.planner import Plan
from penstock.journal.catalog import Catalog, Entry
from penstock.journal.record import SliceFlag
from penstock.journal.segment import catalog_path


class Preparing:
    """Knows what one destination has been told; used by its loop's thread."""

    def __init__(
        self,
        journal: Path,
        destination: Destination,
        discovered: Sequence[TableSchema],
        passes_over: Callable[[TableSchema], bool] = lambda table: False,
    ) -> None:
        """`discovered` are the source's tables as its catalogue has them now."""
        self._catalog = Catalog(catalog_path(journal))
        self._destination, self._discovered, self._passes_over = destination, discovered, passes_over
        self._known = discovered
        self._prepared: dict[str, int] = {}
        self._loaded: dict[str, TableSchema] = {}

    def has_to(self, plan: Plan) -> bool:
        """Whether the epoch may bring something that the destination has not been told."""
        return bool(plan.slices) and (not self._prepared or plan.brings_schema)

    def prepare(self, plan: Plan, only: tuple[str, str] | None = None) -> None:
        """Tables that this epoch brings for the first time, or in a new version; or the only one that it is about."""
        if not plan.slices or (only is None and not self.has_to(plan)):
            return
        tables = dict(self._catalog.in_force(plan.slices[0].catalog))
        for s in plan.slices:
            if s.flags & SliceFlag.SCHEMA:
                tables.update((e.relation, e) for e in self._catalog.inside(s.segment, s.start, s.end, s.catalog))
        # A table that was dropped and made again has another relation: the newest of a name is the one that stands.
        newest: dict[str, Entry] = {}
        for entry in sorted(tables.values(), key=lambda e: e.seq):
            newest[entry.table.qualified] = entry
        if only is not None:
            self._destination.prepare([e.table for e in newest.values() if (e.table.schema, e.table.name) == only])
            return
        self._tell([e.table for name, e in newest.items() if self._prepared.get(name) != e.seq])
        self._prepared.update((name, e.seq) for name, e in newest.items())

    def prepare_discovered(self) -> None:
        """Tables that no change has touched yet are there, and empty, from the start.

        One that the journal knows is left to its epochs: they may still bring an older version than the catalogue has now.
        """
        known = self._catalog.names()
        self._tell([t for t in self._discovered if t.qualified not in known])
        self._discovered = ()

    def named(self, name: str) -> TableSchema | None:
        """The source's table that goes by that name there or at the destination; None when it is not one."""
        self._catalog.names()
        target = getattr(self._destination.options, "target", None)
        found = {}
        for table in (*self._known, *(e.table for e in self._catalog.entries.values())):
            if name in (table.qualified, ".".join(target(table)) if target is not None else None):
                found[table.schema, table.name] = table
        return next(iter(found.values())) if len(found) == 1 else None

    def tell(self, tables: Sequence[TableSchema]) -> None:
        """Tables that come by a load; those that the destination knows so already are not told again."""
        fresh = [t for t in tables if self._loaded.get(t.qualified) != t]
        self._tell(fresh)
        self._loaded.update((t.qualified, t) for t in fresh)

    def forget(self) -> None:
        """The destination may have lost what it was told: it is told again."""
        self._prepared.clear()
        self._loaded.clear()

    def _tell(self, tables: Sequence[TableSchema]) -> None:
        takes = self._destination.options.takes
        wanted = [table for table in tables if takes(table.schema, table.name) and not self._passes_over(table)]
        if wanted:
            self._destination.prepare(wanted)

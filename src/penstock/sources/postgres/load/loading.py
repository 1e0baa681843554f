"""The driver half of loading: what the PostgreSQL source plans, and the snapshots that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.core.schema import TableSchema
from penstock.sources.base import Source
from penstock.sources.chunks import Chunk, LoadRules, SnapshotHold
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.load import hold
from penstock.sources.postgres.load.hold import Hold, Login
from penstock.sources.postgres.load.planning import Planning
from penstock.sources.postgres.options import PostgresOptions

_SYSTEM = "SELECT system_identifier::text AS system FROM pg_catalog.pg_control_system()"


class Loading(Source):
    """What a source with connections of its own can do about its tables' rows."""

    options: PostgresOptions
    publication: str
    _control: Control
    _eye: Control
    _exported: Hold | None = None

    def let_snapshot_go(self) -> None:
        """Ends the snapshot of the slot's creation."""
        if self._exported is not None:
            self._exported.close()
            self._exported = None

    def snapshot_alive(self) -> bool:
        """Whether the session that has made the slot is still there."""
        return self._exported is not None and self._exported.alive()

    def plan_chunks(self, tables: Sequence[TableSchema], rules: LoadRules) -> list[Chunk]:
        """Chunks that hold every published row of the tables exactly once."""
        return Planning(self._control, self.publication).plan(tables, rules)

    def key_chunks(self, table: TableSchema, keys: pa.RecordBatch) -> list[Chunk]:
        """Chunks that read these keys."""
        return Planning(self._control, self.publication).keys(table, keys)

    def hold_snapshot(self) -> SnapshotHold:
        """The primary's state of now."""
        return hold.hold(self._login(), self._eye)

    def reading(self, rate: int | None = None) -> dict[str, Any]:
        """How executors reach the server; it holds the dsn, so it is never logged."""
        replica = self.options.snapshot_dsn
        return {
            "dsn": self.options.dsn,
            "iam": self._control.iam.to_data() if self._control.iam else None,
            "flow": self.flow,
            "rate": rate,
            "format": self.options.snapshot_format,
            "replica": replica,
            "system": self._control.row(_SYSTEM)["system"] if replica else "",
        }

    def _login(self) -> Login:
        return Login(self.options.dsn, self.flow, self._control.iam)

"""The quarantined tables of one destination, as its loop sees them: what failed for good, is passed over, is released."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from penstock.core.epoch import Epoch
from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.engine.planner import Limits, Plan, Planner
from penstock.engine.status import DestinationStatus
from penstock.errors import DestinationError, DestinationFailed, JournalTrimmed, PenstockError, TableGap
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.ledger.quarantines import Quarantined

_log = structlog.get_logger()

LOOK_INTERVAL = 1.0
"""Seconds between looks at what commands have asked for; only while tables are quarantined."""


class Quarantine:
    """Used by the destination's own thread; the ledger tells the others."""

    def __init__(
        self, ledger: Ledger, flow: str, generation: int, journal: Path, status: DestinationStatus, *, enabled: bool
    ) -> None:
        """`enabled` says whether a table that fails is quarantined; those that are stay so either way."""
        self._ledger, self._flow, self._generation = ledger, flow, generation
        self._journal, self._status, self._enabled = journal, status, enabled
        self._rows: dict[tuple[str, str], Quarantined] = {}
        self._looked_at = 0.0
        self.needs = sys.maxsize
        """The position after which the journal is needed for tables that are being released; for any thread."""

    def load(self) -> None:
        """Reads the tables anew."""
        self._rows = {row.name: row for row in self._ledger.quarantines.all(self._flow, self._status.name)}
        self._looked_at = time.monotonic()
        self.needs = min((row.position for row in self._rows.values() if row.state != "quarantined"), default=sys.maxsize)

    def recover(self, reached: Checkpoint, planned: Sequence[Epoch]) -> None:
        """Ends what a closed epoch has caught up, and takes back what was noted and never planned."""
        self.load()
        numbers = {epoch.number for epoch in planned}
        for row in list(self._rows.values()):
            if row.epoch is None or row.epoch in numbers:
                continue
            if row.epoch <= reached.epoch:
                self._end(row)
            else:
                self._ledger.quarantines.ask_again(row, self._generation)
                self.load()

    def refresh(self) -> bool:
        """Sees, once a second while tables are quarantined, what commands have done; whether a table is live again."""
        if not self._rows or time.monotonic() - self._looked_at < LOOK_INTERVAL:
            return False
        before = set(self._rows)
        self.load()
        return before != set(self._rows)

    def passes_over(self, table: TableSchema) -> bool:
        """Whether the table is not the destination's for now."""
        return (table.schema, table.name) in self._rows

    def holds(self, schema: str, table: str) -> bool:
        """Whether the table is quarantined."""
        return (schema, table) in self._rows

    def admit(self, error: PenstockError, reached: Checkpoint, named: Callable[[str], TableSchema | None]) -> bool:
        """After an error that would end the destination: quarantines the table that it is about, if it is about one."""
        caught_up = next((row for row in self._rows.values() if row.state == "catching_up"), None)
        if isinstance(error, JournalTrimmed) and caught_up is not None:
            error = _gap(caught_up, error)
        if error.retry == "timed" or not isinstance(error, DestinationError) or not error.facts.get("table"):
            return False
        table = named(str(error.facts["table"]))
        found = self._rows.get((table.schema, table.name)) if table is not None else None
        if table is None or (found is None and not self._enabled) or (found is not None and found is not caught_up):
            # One that is passed over already: the error comes from elsewhere.
            return False
        name = (table.schema, table.name)
        row = Quarantined(
            self._flow,
            self._status.name,
            *name,
            code=error.code,
            reason=error.message,
            remedy=error.remedy,
            position=reached.position,
            part=reached.part,
        )
        self._ledger.quarantines.admit(row, self._generation)
        self.load()
        self._status.attempts = 0
        self._note("quarantined" if found is None else "release failed", row, f"{error.code}: {error.message}")
        _log.error(
            "table quarantined, the destination goes on without it",
            destination=self._status.name,
            table=row.qualified,
            code=error.code,
            reason=error.message,
            remedy=f"{error.remedy} {row.release_command}",
        )
        return True

    def descriptor(self, epoch: Epoch) -> dict[str, Any]:
        """What the epoch's lanes must know: the tables that they pass over, or the only one that they take, and its span."""
        if not self._rows:
            return {}
        row = self._catching_up(epoch)
        if row is not None:
            return {"side": {"only": [list(row.name)]}, "parts": [row.part, row.upto_part or 0]}
        return {"quarantined": [list(name) for name in self._rows]}

    def take(self, epoch: Epoch, receipts: Sequence[dict[str, Any]]) -> None:
        """Counts what an epoch has passed over, durably and before its commit, so that nothing is passed silently."""
        passed: Counter[tuple[str, str]] = Counter()
        for schema, table, count in [p for receipt in receipts for p in receipt.pop("passed", ())]:
            passed[schema, table] += count
        if passed:
            names = (self._flow, self._status.name, self._generation)
            # What a load brings is in no journal: a release could not bring it.
            self._ledger.quarantines.count(*names, epoch.number, passed, loads=epoch.is_side)
            counts = self._status.counts
            counts["quarantined"] = counts.get("quarantined", 0) + passed.total()

    def due(self) -> Quarantined | None:
        """A table whose release was asked for."""
        return next((row for row in self._rows.values() if row.state == "asked"), None)

    def begin(self, row: Quarantined, reached: Checkpoint, limits: Limits) -> Plan:
        """What the table has missed up to the checkpoint, noted as the next epoch's."""
        self._ledger.quarantines.catch_up(row, self._generation, reached.epoch + 1, reached.position, reached.part)
        self.load()
        return self._missed(self._rows[row.name], limits)

    def again(self, epoch: Epoch, limits: Limits) -> Plan | None:
        """The same once more, for an epoch that was planned before; None for one that catches nothing up."""
        row = self._catching_up(epoch)
        return self._missed(row, limits) if row is not None else None

    def caught_up_by(self, epoch: Epoch) -> tuple[str, str] | None:
        """The table that the epoch catches up; None for any other epoch."""
        row = self._catching_up(epoch)
        return row.name if row is not None else None

    def _missed(self, row: Quarantined, limits: Limits) -> Plan:
        planner = Planner(self._journal, row.position, limits, row.part)
        try:
            plan = planner.again(row.upto or 0, row.upto_part or 0)
        finally:
            planner.close()
        if plan is None:
            raise DestinationFailed(f"the journal does not show yet what {row.qualified} has missed")
        return plan

    def _catching_up(self, epoch: Epoch) -> Quarantined | None:
        return next((row for row in self._rows.values() if row.epoch == epoch.number), None)

    def _end(self, row: Quarantined) -> None:
        self._ledger.quarantines.end(row, self._generation)
        self.load()
        self._note("released", row, f"caught up from {format_lsn(row.position)}, {row.passed} changes had been passed over")
        _log.info("table released", destination=self._status.name, table=row.qualified, changes=row.passed)

    def _note(self, event: str, row: Quarantined, why: str) -> None:
        about = f"{row.destination}: {row.qualified}: {why}"
        self._ledger.lifecycle.record(self._flow, self._generation, event, about, "worker")


def _gap(row: Quarantined, error: JournalTrimmed) -> TableGap:
    return TableGap(
        f"{row.qualified} at {row.destination} has missed changes since {format_lsn(row.position)}, and the journal has them no"
        f" longer: {error.message}",
        table=row.qualified,
    )

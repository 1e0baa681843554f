"""Releasing a quarantined table: it is brought what it has missed, from the journal, and is live again."""

from __future__ import annotations

from pathlib import Path

from penstock.control.lifecycle import existing_ledger, operator
from penstock.control.overview import Overview
from penstock.core.position import format_lsn
from penstock.errors import FlowUnknown, TableGap, TransitionRefused
from penstock.ledger.ledger import Ledger
from penstock.ledger.quarantines import Quarantined


def release(
    flow: str, state: Path, destination: str, table: str, *, skip_missed: bool = False, who: str | None = None
) -> Quarantined:
    """Asks for a table's release, which a worker carries out; `skip_missed` ends the quarantine at once, without catching up.

    FlowUnknown, TableGap when the journal no longer has what the table has missed, TransitionRefused while it is being caught up.
    """
    path = existing_ledger(flow, state)
    with Overview(state, flow) as overview:
        oldest = overview.view(flow, events=0).journal.oldest
    ledger = Ledger(path)
    try:
        row = _find(ledger, flow, destination, table)
        if not skip_missed and (oldest is None or row.position < oldest):
            begins = f"it begins at {format_lsn(oldest)}" if oldest is not None else "there is none"
            raise TableGap(
                f"{table} at {destination} has missed changes since {format_lsn(row.position)}, and the journal has them"
                f" no longer: {begins}",
                table=table,
            )
        if not (ledger.quarantines.skip(row) if skip_missed else row.state == "asked" or ledger.quarantines.ask(row)):
            raise TransitionRefused(
                f"{table} at {destination} is being caught up", remedy="`penstock flow show` says how it ends."
            )
        known = ledger.lifecycle.flow(flow)
        event, missed = ("released", f", {row.passed} changes are missing there") if skip_missed else ("release", "")
        if known is not None:
            ledger.lifecycle.record(flow, known.generation, event, f"{destination}: {table}{missed}", who or operator())
        return row
    finally:
        ledger.close()


def _find(ledger: Ledger, flow: str, destination: str, table: str) -> Quarantined:
    rows = ledger.quarantines.all(flow)
    found = next((row for row in rows if row.destination == destination and row.qualified == table), None)
    if found is None:
        names = ", ".join(f"{row.qualified} at {row.destination}" for row in rows)
        raise FlowUnknown(
            f"flow {flow} has no quarantined table {table} at a destination {destination}",
            remedy=f"It has {names}." if names else "It has none.",
        )
    return found

"""Rewinding: a destination is sent again, from the journal, what it has had since a position."""

from __future__ import annotations

from pathlib import Path

from penstock.control.lifecycle import existing_ledger, operator
from penstock.control.overview import Overview
from penstock.core.connectors import find
from penstock.core.position import format_lsn, parse_lsn
from penstock.engine.lease import holding
from penstock.errors import FlowUnknown, JournalTrimmed, RewindRefused
from penstock.ledger.ledger import Ledger


def rewind(flow: str, state: Path, destination: str, to: str) -> tuple[int, int]:
    """Moves the destination's checkpoint back; where it was, and where it is now.

    FlowRunning, FlowUnknown, JournalTrimmed, or RewindRefused when it would not do what it says.
    """
    path = existing_ledger(flow, state)
    wanted = None if to == "oldest" else _position(to)
    with holding(path, flow, "flow rewind") as lease, Overview(state, flow) as overview:
        view = overview.view(flow)
        found = next((d for d in view.destinations if d.name == destination), None)
        if found is None or found.position is None:
            names = ", ".join(d.name for d in view.destinations)
            raise FlowUnknown(f"flow {flow} has no destination {destination} that has begun", remedy=f"It has {names}.")
        _refuse_holder(destination, found.type)
        oldest = view.journal.oldest
        target = oldest if wanted is None else wanted
        if oldest is None or target is None or target < oldest:
            begins = f"it begins at {format_lsn(oldest)}" if oldest is not None else "there is none"
            raise JournalTrimmed(
                f"the journal of flow {flow} has not what comes after {to}: {begins}", remedy="Rewind to oldest."
            )
        if target > found.position:
            raise RewindRefused(
                f"{destination} has only reached {format_lsn(found.position)}", remedy="Rewinding goes back; nothing is skipped."
            )
        ledger = Ledger(path)
        try:
            ledger.rewind(flow, destination, target, lease.generation)
            moved = f"{destination} from {format_lsn(found.position)} to {format_lsn(target)}"
            ledger.lifecycle.record(flow, lease.generation, "rewound", moved, operator())
        finally:
            ledger.close()
        return found.position, target


def _position(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise RewindRefused(str(error), remedy="Give a position such as 0/16B6C50, or oldest.") from error


def _refuse_holder(destination: str, kind: str) -> None:
    if find("destination", kind).capabilities.get("holds_position"):
        raise RewindRefused(
            f"{destination} ({kind}) keeps its position with its data and would pass over everything it already has",
            remedy="Add a destination with a new name and place to the flow, with `start` at the position; then remove this one.",
        )

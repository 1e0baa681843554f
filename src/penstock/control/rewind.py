"""Rewinding: a destination is sent again, from the journal, what it has had since a position."""

from __future__ import annotations

from pathlib import Path

from penstock.control.lifecycle import existing_ledger, operator
from penstock.control.overview import Overview
from penstock.core.position import parse_lsn
from penstock.engine import replaying
from penstock.engine.lease import holding
from penstock.engine.replaying import Reached
from penstock.errors import RewindRefused
from penstock.ledger.ledger import Ledger


def rewind(flow: str, state: Path, destination: str, to: str, who: str | None = None) -> tuple[int, int]:
    """Moves the destination's checkpoint back; where it was, and where it is now.

    FlowRunning, FlowUnknown, JournalTrimmed, or RewindRefused when it would not do what it says.
    """
    path = existing_ledger(flow, state)
    wanted = None if to == "oldest" else _position(to)
    with holding(path, flow, "flow rewind") as lease, Overview(state, flow) as overview:
        view = overview.view(flow)
        begun = [Reached(d.name, d.type, d.position) for d in view.destinations if d.position is not None]
        (one,) = replaying.chosen(flow, begun, destination)
        target = wanted if wanted is not None else view.journal.oldest or 0
        replaying.check(flow, one, target, view.journal.directory, view.journal.oldest)
        ledger = Ledger(path)
        try:
            moved = replaying.rewind(ledger, flow, lease.generation, one, target)
            ledger.lifecycle.record(flow, lease.generation, "rewound", moved, who or operator())
        finally:
            ledger.close()
        return one.position, target


def _position(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise RewindRefused(str(error), remedy="Give a position such as 0/16B6C50, or oldest.") from error

"""Replay: destinations are sent again, from the journal, what they have had since a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.connectors import find
from penstock.core.flow import Flow
from penstock.core.position import format_lsn
from penstock.errors import FlowUnknown, JournalTrimmed, RewindRefused
from penstock.journal.reader import JournalTail, journal_mark
from penstock.journal.record import SliceFlag
from penstock.journal.retention import oldest_position
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger

_ELSEWHERE = "Add a destination with a new name and place to the flow, with `start` at the position; then remove this one."


@dataclass(frozen=True)
class Replay:
    """From which position on, and to which destination; None is all of them."""

    position: int
    destination: str | None = None


@dataclass(frozen=True)
class Reached:
    """A destination of the flow, and how far it has come."""

    name: str
    type: str
    position: int


def chosen(flow: str, destinations: Sequence[Reached], name: str | None) -> list[Reached]:
    """The destinations that are meant; FlowUnknown when there is no such one that has begun."""
    found = [one for one in destinations if name in (None, one.name)]
    if not found:
        raise FlowUnknown(
            f"flow {flow} has no destination {name} that has begun",
            remedy=f"It has {', '.join(one.name for one in destinations)}.",
        )
    return found


def check(flow: str, one: Reached, to: int, journal: Path, oldest: int | None, *, told: int | None = None) -> None:
    """JournalTrimmed or RewindRefused when a replay would not do what it says; `told` is what the source may have forgotten."""
    _refuse_log(one)
    if oldest is None or to < oldest:
        raise JournalTrimmed(
            f"nobody has what comes after {format_lsn(to)} any more: {_whereabouts(flow, oldest, to, told)}",
            remedy="Load the tables again (`penstock backfill`)"
            + (f", or go back to {format_lsn(oldest)} at most." if oldest is not None else "."),
        )
    if to > one.position:
        raise RewindRefused(
            f"{one.name} has only reached {format_lsn(one.position)}", remedy="Rewinding goes back; nothing is skipped."
        )
    if find("destination", one.type).capabilities["shape"] == "table":
        _refuse_moves(one, to, journal)


def rewind(ledger: Ledger, flow: str, generation: int, one: Reached, to: int) -> str:
    """Moves the destination's checkpoint back; what has moved, in words. The destination follows when its loop begins."""
    ledger.rewind(flow, one.name, to, generation)
    return f"{one.name} from {format_lsn(one.position)} to {format_lsn(to)}"


def source_options(replay: Replay, flow: Flow, journal: Path) -> dict[str, str]:
    """What a replay says to the source of a flow that has no journal yet; nothing when it has one."""
    if journal_mark(journal) is not None:
        return {}
    if replay.destination is not None or "start_lsn" not in find("source", flow.source.type).options.model_fields:
        raise RewindRefused(
            f"flow {flow.name} has no journal yet: it begins where its source does, for all destinations",
            remedy="Start it without --destination; the source's options say whether it can begin at a position.",
        )
    return {"start_lsn": format_lsn(replay.position)}


def send_again(replay: Replay, flow: Flow, ledger: Ledger, generation: int, journal: Path, told: int) -> None:
    """Moves checkpoints back as the replay says, all of them or none."""
    reached = ledger.checkpoints(flow.name)
    begun = [Reached(use.name, use.type, reached[use.name]) for use in flow.destinations if use.name in reached]
    found = chosen(flow.name, begun, replay.destination)
    for one in found:
        check(flow.name, one, replay.position, journal, oldest_position(journal), told=told)
    for one in found:
        moved = rewind(ledger, flow.name, generation, one, replay.position)
        ledger.lifecycle.record(flow.name, generation, "rewound", moved, str(Holder.here()))


def _whereabouts(flow: str, oldest: int | None, to: int, told: int | None) -> str:
    """Why neither journal nor source can give it."""
    begins = f"the journal of flow {flow} begins at {format_lsn(oldest)}" if oldest is not None else f"flow {flow} has no journal"
    if told is None:
        return f"{begins}, and the source sends nothing again that it was told is safe"
    if told <= to:
        return f"{begins}, and although the source stands at {format_lsn(told)}, a journal is not filled backwards"
    return f"{begins}, and the source was told that everything up to {format_lsn(told)} is safe: its place cannot go back"


def _refuse_log(one: Reached) -> None:
    capabilities = find("destination", one.type).capabilities
    if capabilities["shape"] == "log" and capabilities["holds_position"]:
        raise RewindRefused(
            f"{one.name} ({one.type}) keeps every change once, and sent again it would have them twice", remedy=_ELSEWHERE
        )


def _refuse_moves(one: Reached, to: int, journal: Path) -> None:
    """A row that changes its key may take values along which the log leaves out: they are no longer under the old key."""
    tail = JournalTail(journal, to)
    try:
        while slices := tail.read():
            for s in slices:
                if s.last > one.position:
                    return
                if s.flags & SliceFlag.KEY_CHANGE:
                    raise RewindRefused(
                        f"rows have changed their keys after {format_lsn(to)}, at or before {format_lsn(s.last)}, and"
                        f" {one.name} ({one.type}) could not complete them from where they no longer are",
                        remedy=f"Load the tables again (`penstock backfill`). {_ELSEWHERE}",
                    )
    finally:
        tail.close()

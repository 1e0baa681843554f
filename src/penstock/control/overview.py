"""A flow as an operator sees it: what runs, how far each destination is, what the source was told, and why not more.

The ledger and the journal say what is durable; the picture of a running worker says what moves. Without a worker the same is
shown from ledger and journal alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.control.backfills import LoadDesk
from penstock.control.lifecycle import existing_ledger
from penstock.core.flow import Flow
from penstock.core.position import format_lsn
from penstock.engine import picture
from penstock.engine.acknowledgement import Verdict, explain
from penstock.engine.places import journal_directory
from penstock.errors import FlowUnknown
from penstock.journal.reader import journal_mark
from penstock.journal.retention import journal_size, oldest_position
from penstock.journal.segment import segment_numbers
from penstock.journal.waiting import age_after
from penstock.ledger.flows import KnownFlow
from penstock.ledger.leases import Lease, Leases
from penstock.ledger.ledger import Ledger
from penstock.ledger.lifecycle import Event, Wish
from penstock.ledger.quarantines import Quarantined


@dataclass(frozen=True)
class DestinationView:
    """One destination."""

    name: str
    type: str
    state: str
    """starting, ok, retrying, failed, paused, stopped; idle when no worker runs."""
    position: int | None
    lag_bytes: int | None
    """How much of the journal it has not taken."""
    lag_seconds: float | None
    """Age of the oldest change that it has not taken; 0 when it has taken all that the journal has."""
    rows_per_second: float | None = None
    rows: int | None = None
    since: float | None = None
    next_try: float | None = None
    attempts: int = 0
    error: dict[str, Any] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()
    """Tables that it passes over."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for an answer."""
        return {**asdict(self), "position": _lsn(self.position), "quarantined": [_quarantined(row) for row in self.quarantined]}


@dataclass(frozen=True)
class JournalView:
    """The journal."""

    directory: Path
    bytes: int
    mark: int | None
    """Up to where it is complete; None when there is none yet."""
    oldest: int | None
    """The oldest position from which it can be read."""


@dataclass(frozen=True)
class FlowView:
    """A moment of a flow."""

    name: str
    state: str
    """created, running, paused, stopped, failed; new when nobody has created it nor run it, starting while a worker begins;
    silent when its worker gives no sign of life, gone when it ended without a word; deleting until all of it is gone."""
    reason: str | None
    wish: Wish
    lease: Lease | None
    """Of whoever acts for the flow now; None when nobody does."""
    journal: JournalView
    told: int | None
    """What the source was told last, as far as is known here."""
    verdict: Verdict | None
    """What it may be told, and why not more."""
    destinations: tuple[DestinationView, ...]
    removed: dict[str, int]
    """Destinations that the flow had, and how far they had come."""
    source: dict[str, Any] | None
    """What the worker's last look at the source saw."""
    source_trouble: str | None
    events: tuple[Event, ...]
    loads: tuple[dict[str, Any], ...] = ()
    """Those that are not over, as `penstock backfill list` has them."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for an answer."""
        lease, verdict = self.lease, self.verdict
        source = {**self.source, **{k: _lsn(self.source[k]) for k in ("head", "confirmed")}} if self.source else None
        return {
            "flow": self.name,
            "state": self.state,
            "reason": self.reason,
            "wish": asdict(self.wish),
            "lease": _lease(lease) if lease is not None else None,
            "journal": {
                "directory": str(self.journal.directory),
                "bytes": self.journal.bytes,
                "mark": _lsn(self.journal.mark),
                "oldest": _lsn(self.journal.oldest),
            },
            "acknowledgement": {
                "told": _lsn(self.told),
                "allowed": _lsn(verdict.allowed) if verdict is not None else None,
                "held_by": list(verdict.held_by) if verdict is not None else [],
                "reason": verdict.reason if verdict is not None else None,
            },
            "destinations": [d.to_data() for d in self.destinations],
            "removed": {name: _lsn(position) for name, position in self.removed.items()},
            "source": source,
            "source_trouble": self.source_trouble,
            "events": [asdict(event) for event in self.events],
            "loads": list(self.loads),
        }


class Overview:
    """The flows of a state directory; looks, and changes nothing."""

    def __init__(self, state: Path, flow: str = "of any name", opened: tuple[Ledger, Leases] | None = None) -> None:
        """FlowUnknown, naming `flow`, where there is no ledger; one that is `opened` already is its owner's to close."""
        self._state = state
        self._owned = opened is None
        self._where = existing_ledger(flow, state)
        self._ledger, self._leases = opened or (Ledger(self._where), Leases(self._where))

    def __enter__(self) -> Overview:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._ledger.close()
            self._leases.close()

    def names(self) -> list[str]:
        """Every flow that was created here or that a worker has run."""
        return [flow.name for flow in self._ledger.lifecycle.flows()]

    def view(self, name: str, definition: Flow | None = None, events: int = 8) -> FlowView:
        """The flow now; `definition` is its file's, if there is one. FlowUnknown."""
        known = self._ledger.lifecycle.flow(name)
        if known is None and definition is None:
            raise FlowUnknown(f"there is no flow named {name} in {self._where}", flow=name)
        flow = definition or _flow(known)
        lease = self._leases.find(name)
        alive = lease is not None and not lease.looks_over()
        now = picture.read(self._state / "run" / name)
        if now is not None and (known is None or now["generation"] != known.generation):
            now = None
        journal = self._journal(name, flow)
        checkpoints, removed = self._ledger.checkpoints(name), self._ledger.removed(name)
        names = {d.name: d.type for d in flow.destinations} if flow is not None else dict.fromkeys(checkpoints, "")
        there = {d["name"]: d for d in now["destinations"]} if now is not None else {}
        if not alive:
            # What failed stays so until a worker tries again; everything else is over.
            there = {name: d for name, d in there.items() if d["state"] == "failed"}
        views = tuple(_destination(n, t, there.get(n), checkpoints.get(n), journal) for n, t in names.items())
        rows = self._ledger.quarantines.all(name)
        views = tuple(replace(v, quarantined=tuple(row for row in rows if row.destination == v.name)) for v in views)
        return FlowView(
            name=name,
            state=state_of(known.state, lease, known.deleting) if known is not None else state_of(None, lease),
            reason=reason_of(known.reason, known.deleting) if known is not None else None,
            wish=self._ledger.lifecycle.wish(name),
            lease=lease if alive else None,
            journal=journal,
            told=now["told"] or None if now is not None else None,
            verdict=_verdict(flow, views, journal, now),
            destinations=views,
            removed=removed,
            source=now["source"] if now is not None and alive else None,
            source_trouble=now["source_trouble"] if now is not None and alive else None,
            events=tuple(self._ledger.lifecycle.events(name, events)),
            loads=self._loads(name),
        )

    def _loads(self, name: str) -> tuple[dict[str, Any], ...]:
        found = self._ledger.loads.open(name)
        return tuple(LoadDesk(name, self._state, self._ledger).summaries(found)) if found else ()

    def _journal(self, name: str, flow: Flow | None) -> JournalView:
        directory = journal_directory(flow, self._state) if flow is not None else self._state / "journal" / name
        if not segment_numbers(directory):
            return JournalView(directory, 0, None, None)
        return JournalView(directory, journal_size(directory), journal_mark(directory), oldest_position(directory))


def _destination(
    name: str, kind: str, there: dict[str, Any] | None, checkpoint: int | None, journal: JournalView
) -> DestinationView:
    # The ledger may be ahead of the picture, never behind what was durable when it was drawn.
    position = max(checkpoint or 0, there["position"] if there is not None else 0) or None
    behind = max(0, journal.mark - position) if journal.mark is not None and position is not None else None
    if there is None:
        return DestinationView(name, kind, "idle" if position else "new", position, behind, _age(journal.directory, position))
    keys = ("rows_per_second", "rows", "since", "next_try", "attempts", "error", "counts")
    # The picture's lag is the last epoch's at its delivery, which says nothing of now when nothing waits.
    lag = 0.0 if behind == 0 else there["lag_seconds"]
    return DestinationView(name, kind, there["state"], position, behind, lag, **{k: there[k] for k in keys})


def current(now: dict[str, Any]) -> list[dict[str, Any]]:
    """The destinations of a worker's picture, each with the lag that it has now: none when nothing in the journal waits."""
    mark = now["journal_mark"]
    return [{**d, "lag_seconds": 0.0 if mark and d["position"] >= mark else d["lag_seconds"]} for d in now["destinations"]]


def _age(journal: Path, position: int | None) -> float | None:
    return age_after(journal, position) if position is not None else None


def _verdict(
    flow: Flow | None, views: tuple[DestinationView, ...], journal: JournalView, now: dict[str, Any] | None
) -> Verdict | None:
    if flow is None or journal.mark is None or any(v.position is None for v in views):
        return None
    told = now["told"] if now is not None else None
    return explain(flow, {v.name: v.position or 0 for v in views}, journal.mark, told)


def state_of(recorded: str | None, lease: Lease | None, deleting: str | None = None) -> str:
    """The flow's state, from what its worker recorded last, from who acts for it now, and from who deletes it."""
    if deleting is not None:
        return "deleting"
    alive = lease is not None and not lease.looks_over()
    if recorded is None:
        return "starting" if alive else "new"
    if recorded in ("running", "paused") and not alive:
        # Nobody has said that it ended: it was killed, or stands still.
        return "silent" if lease is not None and not lease.is_given_up and not lease.holder.is_gone() else "gone"
    if alive and lease is not None and lease.purpose == "worker" and recorded in ("created", "stopped", "failed"):
        return "starting"
    return recorded


def reason_of(recorded: str | None, deleting: str | None) -> str | None:
    """Why it is in that state."""
    if deleting is None:
        return recorded
    return f"{deleting} deletes it; if that was cut short, `penstock flow delete` goes on with it"


def _flow(known: KnownFlow | None) -> Flow | None:
    """The flow as far as the ledger keeps its definition; None for one that an older version has written."""
    try:
        return Flow.model_validate(known.definition) if known is not None else None
    except ValidationError:
        return None


def _lease(lease: Lease) -> dict[str, Any]:
    about = {"host": lease.holder.host, "pid": lease.holder.pid, "generation": lease.generation, "purpose": lease.purpose}
    return {**about, "taken_at": lease.taken_at / 1e6, "expires_at": lease.expires_at / 1e6}


def _quarantined(row: Quarantined) -> dict[str, Any]:
    error = {"code": row.code, "message": row.reason, "remedy": row.remedy}
    about = {"schema": row.schema, "table": row.table, "state": row.state, "passed": row.passed, "error": error}
    return {**about, "position": _lsn(row.position), "since": row.since / 1e6}


def _lsn(position: int | None) -> str | None:
    return format_lsn(position) if position is not None else None

"""What a server answers about flows, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.connection import control_plane
from penstock.core.options import format_duration, format_size

if TYPE_CHECKING:
    from penstock.cli.screen import Screen
    from penstock.control.answers import FlowAnswer, FlowSummary


def show_flow(screen: Screen, server: str, name: str, as_json: bool) -> None:
    """One flow."""
    with control_plane(server, None) as plane:
        flow = plane.flow(name)
    if as_json:
        screen.data(flow.model_dump(mode="json"))
        return
    screen.line(f"flow {flow.name}", "bold")
    for label, value in _lines(flow):
        screen.line(f"  {label:<9} {value}")
    rows = [
        [d.name, d.type, d.state, d.position or "not begun", _size(d.lag_bytes), _seconds(d.lag_seconds)]
        for d in flow.destinations
    ]
    screen.table(["destination", "type", "state", "position", "behind", "lag"], rows)
    for one in flow.destinations:
        if one.error is not None:
            screen.line(f"  {one.name}: {one.error['code']}: {one.error['message']}", "red")
            screen.line(f"      → {one.error['remedy']}", "yellow")
    for event in flow.events:
        why = f": {event.why}" if event.why else ""
        screen.line(f"  {event.at:%Y-%m-%d %H:%M:%SZ} {event.event} by {event.who}{why}")


def list_flows(screen: Screen, server: str, labels: str, states: list[str], as_json: bool) -> None:
    """Every flow, page after page."""
    found: list[FlowSummary] = []
    with control_plane(server, None) as plane:
        page = plane.flows(labels=labels, states=states, limit=500)
        found += page.flows
        while page.next is not None:
            page = plane.flows(after=page.next, labels=labels, states=states, limit=500)
            found += page.flows
    if as_json:
        screen.data([flow.model_dump(mode="json") for flow in found])
        return
    rows = [
        [
            f.name,
            f.state,
            f.health or "—",
            f.worker or "—",
            _seconds(f.lag_seconds),
            ",".join(f"{k}={v}" for k, v in f.labels.items()),
        ]
        for f in found
    ]
    screen.table(["flow", "state", "health", "run by", "lag", "labels"], rows)


def _lines(flow: FlowAnswer) -> list[tuple[str, str]]:
    reason = f" ({flow.reason})" if flow.reason else ""
    lines = [("state", f"{flow.state}{reason}")]
    lines += [("health", flow.health)] if flow.health else []
    lines += [("run by", flow.worker)] if flow.worker else []
    if flow.wished != "running" and flow.wished_by:
        lines.append(("wished", f"{flow.wished}, by {flow.wished_by}"))
    if flow.revision is not None:
        lines.append(("revision", f"{flow.revision}, by {flow.updated_by} at {flow.updated_at:%Y-%m-%d %H:%M:%SZ}"))
    journal = flow.journal
    there = f"complete up to {journal.mark}, from {journal.oldest} on, {format_size(journal.bytes)}"
    lines.append(("journal", there if journal.mark else "none yet"))
    lines += [("load", load_words(**one.model_dump())) for one in flow.loads]
    told = flow.acknowledgement
    lines.append(("told", f"{told.told or 'not known'}{f'; {told.reason}' if told.reason else ''}"))
    return lines


def load_words(**about: Any) -> str:
    """A load that is not over, in a line."""
    many = about["table_count"]
    tables = f" of {many:,} table{'s' if many != 1 else ''}" if many else ""
    left = f", {format_duration(float(round(about['seconds_left'])))} left" if about["seconds_left"] else ""
    pace = f", {about['percent']} % read, {about['rows_per_second']:,} rows/s{left}" if many else ""
    reason = f" ({about['reason']})" if about["reason"] else ""
    return f"{about['id']}, {about['kind']}{tables}: {about['state']}{reason}{pace}"


def _size(count: int | None) -> str:
    return format_size(count) if count is not None else "—"


def _seconds(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"

"""`penstock flow show|list`: what flows do now, how far they are, and what holds the source back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption
from penstock.cli.files import JsonOption, StateOption, state_directory
from penstock.cli.screen import Screen
from penstock.cli.shown import list_flows as list_remote
from penstock.cli.shown import load_words, show_flow
from penstock.cli.steer import FlowArgument, name_of
from penstock.core.options import format_size
from penstock.core.position import format_lsn

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.control.overview import DestinationView, FlowView
    from penstock.core.flow import Flow

STYLES = {
    "running": "green",
    "ok": "green",
    "starting": "cyan",
    "paused": "cyan",
    "retrying": "yellow",
    "deleting": "yellow",
    "failed": "bold red",
    "silent": "bold red",
    "gone": "bold red",
}
LIMIT = 500


def add_to(app: typer.Typer) -> None:
    """The commands, as part of `penstock flow`."""
    app.command("show")(show)
    app.command("list")(list_flows)


def show(flow: FlowArgument, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Show a flow: each destination's position, lag and state, what the source was told, and why not more.

    Asks the ledger, the journal and the running worker's picture; neither source nor destinations are touched.
    """
    from penstock.control.overview import Overview

    name, file = name_of(flow)
    if server:
        show_flow(Screen(), server, name, as_json)
        return
    with Overview(state_directory(state), name) as overview:
        view = overview.view(name, _definition(file) if file is not None else None)
    screen = Screen()
    if as_json:
        screen.data(view.to_data())
        return
    _show(screen, view)


def list_flows(
    state: StateOption = None,
    labels: Annotated[
        str, typer.Option("--labels", metavar="SELECTOR", help="From a server: team=shop,env!=test,tier,!old")
    ] = "",
    states: Annotated[
        list[str] | None, typer.Option("--in-state", metavar="STATE", help="From a server: only these; may be repeated.")
    ] = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the flows of the state directory, or of a server."""
    from penstock.control.overview import Overview
    from penstock.engine.places import ledger_address

    if server:
        list_remote(Screen(), server, labels, states or [], as_json)
        return
    views: list[FlowView] = []
    # Before the first flow there is no ledger, and to look is no reason to make one.
    if ledger_address(state_directory(state)).exists():
        with Overview(state_directory(state)) as overview:
            views = [overview.view(name, events=0) for name in overview.names()[:LIMIT]]
    screen = Screen()
    if as_json:
        screen.data([view.to_data() for view in views])
        return
    rows = [
        [v.name, v.state, str(v.lease.holder) if v.lease else "—", _lag(_worst(v)), format_size(v.journal.bytes), _health(v)]
        for v in views
    ]
    styles = [["bold", STYLES.get(v.state, ""), "", "", "", STYLES.get(_health(v).partition(" ")[0], "")] for v in views]
    screen.table(["flow", "state", "run by", "lag", "journal", "destinations"], rows, styles)


def _show(screen: Screen, view: FlowView) -> None:
    screen.line(f"{view.name}: {_state(view)}", f"bold {STYLES.get(view.state, '')}".strip())
    for label, value in _lines(view):
        screen.line(f"  {label:<9} {value}")
    for sentence in view.verdict.sentences if view.verdict is not None else ():
        screen.line(f"            {sentence}", "yellow" if view.verdict is not None and view.verdict.held_by else "dim")
    screen.line()
    headings = ["destination", "type", "state", "position", "behind", "lag", "rows/s"]
    rows = [_row(d) for d in view.destinations]
    styles = [["bold", "", STYLES.get(d.state, ""), "", "", "", ""] for d in view.destinations]
    screen.table(headings, rows, styles, right="behind lag rows/s")
    for one in view.destinations:
        _trouble(screen, one)
    for name, position in view.removed.items():
        screen.line(f"  {name} was removed at {format_lsn(position)}; it holds nothing back")
    if view.events:
        screen.line()
        screen.table(
            ["when", "what", "by", "why"],
            [[_moment(e.at / 1e6), e.event, e.who, e.why or ""] for e in view.events],
        )


def _lines(view: FlowView) -> list[tuple[str, str]]:
    lines = []
    if view.lease is not None:
        lease, until = view.lease, time.strftime("%H:%M:%SZ", time.gmtime(view.lease.expires_at / 1e6))
        lines.append((lease.purpose, f"{lease.holder}, generation {lease.generation}, lease until {until}"))
    else:
        lines.append(("worker", "none runs; what follows is from ledger and journal"))
    if view.wish.state != "running":
        why = f": {view.wish.why}" if view.wish.why else ""
        lines.append(("wished", f"{view.wish.state}, by {view.wish.who} {_ago(view.wish.at / 1e6)}{why}"))
    if view.source is not None:
        s = view.source
        lag = f"{format_size(s['lag_bytes'])}, {s['lag_seconds']} s behind"
        lines.append(("source", f"at {format_lsn(s['head'])}, {lag}; {format_size(s['retained_bytes'])} of log retained"))
    if view.source_trouble:
        lines.append(("source", view.source_trouble))
    journal = view.journal
    if journal.mark is None or journal.oldest is None:
        lines.append(("journal", f"none yet, in {journal.directory}"))
    else:
        span = f"complete up to {format_lsn(journal.mark)}, from {format_lsn(journal.oldest)} on"
        lines.append(("journal", f"{span}, {format_size(journal.bytes)}"))
    lines += [("load", load_words(**one)) for one in view.loads]
    told = format_lsn(view.told) if view.told else "not known here"
    allowed = f"; may be told {format_lsn(view.verdict.allowed)}" if view.verdict is not None else ""
    lines.append(("told", f"{told}{allowed}"))
    return lines


def _state(view: FlowView) -> str:
    words = {
        "new": "never run",
        "silent": "its worker gives no sign of life",
        "gone": "its worker ended without a word",
    }
    reason = f" ({view.reason})" if view.reason else ""
    return f"{words.get(view.state, view.state)}{reason}"


def _row(view: DestinationView) -> list[str]:
    position = format_lsn(view.position) if view.position is not None else "not begun"
    behind = format_size(view.lag_bytes) if view.lag_bytes is not None else "—"
    rate = f"{view.rows_per_second:,.0f}" if view.rows_per_second is not None else "—"
    return [view.name, view.type or "—", view.state, position, behind, _lag(view.lag_seconds), rate]


def _trouble(screen: Screen, view: DestinationView) -> None:
    """Why a destination, or a table of it, does not go on, since when, and what comes next."""
    for row in view.quarantined:
        words = {"asked": "its release is asked for", "catching_up": "is being caught up"}
        doing = words.get(row.state, "quarantined")
        missed = f"{row.passed:,} changes passed over since {format_lsn(row.position)}, {_ago(row.since / 1e6)}"
        screen.line(f"  {view.name}: {row.qualified} {doing}: {row.code}: {row.reason}; {missed}", "yellow")
        screen.line(f"      → {row.remedy} {row.release_command}", "yellow")
    if view.error is None:
        return
    since = f", for {_span(max(0.0, time.time() - view.since))}" if view.since else ""
    tries = ""
    if view.state == "retrying":
        wait = max(0.0, (view.next_try or 0) - time.time())
        tries = f", try {view.attempts + 1} in {wait:.0f} s" if view.next_try else f", try {view.attempts}"
    screen.line(f"  {view.name}: {view.error['code']}: {view.error['message']}{since}{tries}", STYLES.get(view.state, ""))
    screen.line(f"      → {view.error['remedy']}", "yellow")


def _worst(view: FlowView) -> float | None:
    return max((d.lag_seconds for d in view.destinations if d.lag_seconds is not None), default=None)


def _health(view: FlowView) -> str:
    bad = [f"{d.state} {d.name}" for d in view.destinations if d.state in ("retrying", "failed")]
    bad += [f"{len(d.quarantined)} quarantined {d.name}" for d in view.destinations if d.quarantined]
    return ", ".join(sorted(bad)) or f"{len(view.destinations)}"


def _lag(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return _span(seconds)


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _ago(at: float) -> str:
    return f"{_span(max(0.0, time.time() - at))} ago"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _definition(file: Path) -> Flow | None:
    """The file's flow; None when it has problems, which are no reason not to show what runs."""
    from penstock.control.files import load
    from penstock.control.validate import validate

    found: tuple[Any, ...] = validate(load(file).raw, strict=False)
    return found[0] if found[0] is not None else None

"""`penstock backfill`: tables loaded again, or for the first time, while the flow streams."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption
from penstock.cli.screen import Screen
from penstock.cli.steer import FlowArgument, name_of
from penstock.core.naming import listed
from penstock.core.options import format_duration, format_size

if TYPE_CHECKING:
    from penstock.client.plane import ControlPlane
    from penstock.control.backfill_service import BackfillCommand
    from penstock.control.source_answers import BackfillAnswer, BackfillSummary

NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", help="Which load.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Show its progress until it is over.")]
PATIENCE = 10.0
"""Seconds after which a load that nobody has taken up is worth a line, and one of a flow that has failed is not waited for."""
ENDED = ("done", "cancelled", "failed")


class _StartsByDefault(TyperGroup):
    """`penstock backfill FLOW …` is `penstock backfill start FLOW …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Load tables while the flow streams: penstock backfill FLOW --tables public.orders",
    cls=_StartsByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("start")
def start(
    flow: FlowArgument,
    tables: Annotated[str, typer.Option("--tables", metavar="A,B", help="Tables or patterns: public.orders,public.*")],
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows that fulfil this.", show_default=False)
    ] = None,
    destinations: Annotated[
        str | None, typer.Option("--destinations", metavar="A,B", help="Only for these.", show_default=False)
    ] = None,
    wait: WaitOption = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read tables again, chunk by chunk, while they go on streaming: a newer change always wins.

    The flow's worker does it, at once or when it next runs. Exit codes: 0 asked (with --wait: done), 1 refused or failed.
    """
    if not listed(tables):
        raise typer.BadParameter("names no table", param_hint="--tables")
    if where is not None and not where.strip():
        raise typer.BadParameter("says nothing; leave it out to load all rows", param_hint="--where")
    name, _ = name_of(flow)
    with control_plane(server, state) as plane:
        asked = plane.start_backfill(name, listed(tables), where=where, destinations=listed(destinations))
        _answer(plane, name, asked.id, wait, as_json)


@app.command("list")
def list_loads(
    flow: FlowArgument,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=500, help="How many.")] = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="NUMBER", min=1, help="Older ones.", show_default=False)
    ] = None,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the flow's loads, the newest first, its first load included."""
    with control_plane(server, state) as plane:
        page = plane.backfills(name_of(flow)[0], before=before, limit=limit)
    found = page.backfills
    screen = Screen()
    if as_json:
        screen.data([one.model_dump(mode="json") for one in found])
    elif found:
        headings = ["load", "kind", "state", "tables", "read", "rows", "size", "rows/s", "left"]
        screen.table(headings, [_row(one) for one in found], right="load read rows size rows/s left")
        if page.next is not None:
            screen.line(f"older ones: --before {page.next}")
    else:
        screen.line("no loads")


@app.command("show")
def show(
    flow: FlowArgument,
    number: NumberArgument,
    wait: WaitOption = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one load: each table's progress, and what every destination has of it."""
    with control_plane(server, state) as plane:
        _answer(plane, name_of(flow)[0], number, wait, as_json, shown=True)


def _wishing(command: BackfillCommand, about: str) -> None:
    """Adds a command that changes what is wanted of a load."""

    def wish(
        flow: FlowArgument,
        number: NumberArgument,
        state: StateOption = None,
        server: ServerOption = None,
        as_json: JsonOption = False,
    ) -> None:
        _wish(command, flow, number, state, server, as_json)

    app.command(command, help=about)(wish)


_wishing("pause", "Read and deliver no more of a load for now; its tables that are not loaded yet wait.")
_wishing("resume", "Go on with a load that was paused, at its unfinished chunks.")
_wishing("cancel", "End a load for good: rows that were delivered stay, the others do not come. Its tables go on streaming.")


_DONE: dict[BackfillCommand, str] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}


def _wish(command: BackfillCommand, flow: str, number: int, state: Path | None, server: str | None, as_json: bool) -> None:
    with control_plane(server, state) as plane:
        load = plane.steer_backfill(command, name_of(flow)[0], number)
    screen, wish = Screen(), _DONE[command]
    if as_json:
        screen.data({"load": load.id, "wish": wish})
    else:
        screen.line(f"load {number}: {wish}; the flow's worker follows within seconds, or when it next runs", "green")


def _answer(plane: ControlPlane, flow: str, number: int, wait: bool, as_json: bool, *, shown: bool = False) -> None:
    screen = Screen()
    about = _watch(plane, flow, number, screen, quiet=as_json) if wait else plane.backfill(flow, number)
    if as_json:
        screen.data(about.model_dump(mode="json"))
    elif shown or wait:
        _show(screen, about)
    else:
        screen.line(f"load {number} asked for; `penstock backfill show {flow} {number}` shows its progress", "green")
    if wait and about.state != "done":
        raise typer.Exit(1)


def _watch(plane: ControlPlane, flow: str, number: int, screen: Screen, *, quiet: bool) -> BackfillAnswer:
    """Follows a load to its end, or until its flow has failed for good; says once that nobody has begun it."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=screen.console, refresh_per_second=4, transient=True, auto_refresh=screen.is_terminal) as live:
        patience = time.monotonic() + PATIENCE
        failed_since = math.inf
        while True:
            about = plane.backfill(flow, number)
            if about.state == "requested" and time.monotonic() > patience:
                patience = math.inf
                Screen(sys.stderr).line(
                    f"load {number} waits for a worker; `penstock flow show {flow}` says whether one runs", "yellow"
                )
            if screen.is_terminal and not quiet:
                live.update(Text("\n".join(_bars(about))))
            if about.state in ENDED:
                return about
            now = plane.flow(flow)
            failed_since = min(failed_since, time.monotonic()) if now.state == "failed" else math.inf
            if time.monotonic() - failed_since >= PATIENCE:
                # A server starts a worker again sooner, where that is any use.
                Screen(sys.stderr).line(f"flow {flow} has failed, and load {number} waits: {now.reason}", "red")
                return about
            time.sleep(0.5)


def _bars(about: BackfillAnswer) -> list[str]:
    """A line per table, and one for all."""
    lines = []
    for one in about.tables[:20]:
        filled = int(one.percent / 5)
        lines.append(f"{one.table:<40} {'█' * filled}{'░' * (20 - filled)} {one.percent:5.1f} %  {one.rows:,} rows")
    if len(about.tables) > 20:
        lines.append(f"… and {len(about.tables) - 20} tables more")
    left = about.seconds_left
    rest = f", {format_duration(float(round(left)))} left" if left else ""
    pace = f"{about.rows_per_second:,} rows/s, {format_size(about.bytes_per_second)}/s"
    return [*lines, f"load {about.id} {about.state}: {about.percent} % read, {pace}{rest}"]


def _show(screen: Screen, about: BackfillAnswer) -> None:
    for line in _bars(about):
        screen.line(line)
    for name, count in about.delivered.items():
        screen.line(f"  {name}: {count} of {about.chunks} chunks delivered")
    if about.reason:
        screen.line(f"  {about.reason}", "yellow")


def _row(about: BackfillSummary) -> list[str]:
    left = about.seconds_left
    return [
        str(about.id),
        about.kind,
        about.state,
        str(about.table_count),
        f"{about.percent} %",
        f"{about.rows:,}",
        format_size(about.bytes),
        f"{about.rows_per_second:,}",
        format_duration(float(round(left))) if left else "",
    ]

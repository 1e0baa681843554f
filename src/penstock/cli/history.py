"""`penstock flow checkpoints|schemas`: how far a flow has come, and how its tables were."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption
from penstock.cli.screen import Screen
from penstock.cli.steer import FlowArgument, name_of


def add_to(app: typer.Typer) -> None:
    """The commands, as part of `penstock flow`."""
    for command in (checkpoints, schemas):
        app.command()(command)


def checkpoints(
    flow: FlowArgument,
    destination: Annotated[
        str | None, typer.Option("--destination", metavar="NAME", help="Only of this destination.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, max=1000, help="How many epochs.")] = 20,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far each destination has come, and the newest epochs that brought it there."""
    name, _ = name_of(flow)
    with control_plane(server, state) as plane:
        found = plane.checkpoints(name, destination=destination, limit=limit)
    screen = Screen()
    if as_json:
        screen.data(found.model_dump(mode="json"))
        return
    for one in found.checkpoints:
        screen.line(f"{one.destination}: {one.position}{', removed' if one.removed else ''}")
    if not found.checkpoints:
        screen.line(f"{name}: no destination has begun")
    rows = [
        [f"{e.closed_at:%Y-%m-%d %H:%M:%SZ}", e.destination, str(e.epoch), e.after, e.position, f"{e.changes:,}"]
        for e in found.history
    ]
    if rows:
        screen.table(["closed", "destination", "epoch", "after", "position", "changes"], rows)


def schemas(
    flow: FlowArgument,
    table: Annotated[
        str | None, typer.Option("--table", metavar="PATTERN", help="Only tables that fit.", show_default=False)
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="LSN", help="Those in force there.", show_default=False)] = None,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every version of the flow's tables that its journal knows, with the position since when."""
    name, _ = name_of(flow)
    with control_plane(server, state) as plane:
        found = plane.schemas(name, table=table, at=at).schemas
    screen = Screen()
    if as_json:
        screen.data([one.model_dump(mode="json") for one in found])
        return
    if not found:
        screen.line(f"{name}: no table yet")
        return
    rows = [
        [
            f"{one.table_schema}.{one.table}",
            str(one.version),
            one.since or "before the journal",
            ", ".join(f"{c.name} {c.type}{' key' if c.name in one.key else ''}" for c in one.columns),
        ]
        for one in found
    ]
    screen.table(["table", "version", "since", "columns"], rows)

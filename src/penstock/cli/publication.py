"""`penstock publication`: what the flow's publication sends, and what it should."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption
from penstock.cli.files import JsonOption, StateOption
from penstock.cli.of_file import FlowOption, source_plane
from penstock.cli.screen import Screen
from penstock.core.options import format_size

if TYPE_CHECKING:
    from penstock.control.source_answers import CandidateAnswer, PublicationChange, PublishedTableAnswer

app = typer.Typer(help="The flow's publication on the server.", no_args_is_help=True, rich_markup_mode=None)

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="schema.table, a pattern ('sales.*'), or quoted as in SQL.", show_default=False),
]


class Mode(StrEnum):
    """What bringing in line means."""

    add = "add"
    sync = "sync"


@app.command("list")
def list_tables(flow: FlowOption, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the tables that the publication sends, with column lists and row filters."""
    with source_plane(flow, state, server) as (plane, name):
        found = plane.publication(name)
    screen = Screen()
    if as_json:
        tables = [{**_data(t), "columns": t.columns or None} for t in found.tables]
        screen.data({**found.model_dump(mode="json"), "tables": tables})
        return
    whose = "made by this flow" if found.made_by_flow else f"made by others, owner {found.owner}"
    screen.line(f"publication {found.name} ({whose}) sends {', '.join(found.operations) or 'nothing'}", "bold")
    rows = [
        [f"{t.table_schema}.{t.table}", t.by, ", ".join(t.columns) or "all", t.filter or "", "yes" if t.asked else "no"]
        for t in found.tables
    ]
    if rows:
        screen.table(["table", "sent by", "columns", "rows where", "in patterns"], rows)
    else:
        screen.line("  no table")


@app.command("discover")
def discover(
    flow: FlowOption,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[PATTERN...]", help="Only tables that fit.", show_default=False)
    ] = None,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tables that could be published: key, identity, estimated size, and whether they are published."""
    with source_plane(flow, state, server) as (plane, name):
        answer = plane.candidates(name, tables or ())
    found = answer.tables
    screen = Screen()
    if as_json:
        screen.data({**answer.model_dump(mode="json"), "tables": [_data(t) for t in found]})
        return
    headings = ["table", "key", "identity", "rows", "size", "published", "in patterns"]
    if found:
        screen.table(headings, [_row(t) for t in found])
    else:
        screen.line("the database has no table that could be published")
    for table in found:
        if table.problem and (tables or table.asked or table.published):
            screen.line(f"  ✗ {table.problem}", "red")
            screen.line(f"      → {table.remedy}", "yellow")
    for note in answer.notes:
        screen.line(f"  note: {note}")


@app.command("add")
def add(
    flow: FlowOption,
    tables: Tables,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Load their rows first, while the flow goes on.")] = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add tables to the publication; nothing is changed when one of them cannot be.

    Without --snapshot only what is written from then on is delivered. With it the flow's worker loads the rows that are there,
    at once or when it next runs, and the tables go over to streaming without gap or overlap.
    """
    with source_plane(flow, state, server) as (plane, name):
        change = plane.add_tables(name, tables, snapshot=snapshot)
    _show(change, as_json)
    if change.backfill is not None and not as_json:
        shows = f"`penstock backfill show {flow} {change.backfill}` shows its progress"
        Screen().line(f"load {change.backfill} asked for; {shows}", "green")


@app.command("remove")
def remove(
    flow: FlowOption, tables: Tables, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Take tables out of the publication; the tables themselves are not touched."""
    with source_plane(flow, state, server) as (plane, name):
        _show(plane.remove_tables(name, tables), as_json)


@app.command("sync")
def sync(
    flow: FlowOption,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="add, or sync, which also drops; the flow's own setting if not given.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the publication in line with the flow's patterns; makes it if there is none."""
    with source_plane(flow, state, server) as (plane, name):
        _show(plane.sync_publication(name, mode.value if mode else None, dry_run=dry_run), as_json)


def _row(table: CandidateAnswer) -> list[str]:
    name = f"{table.table_schema}.{table.table}" + (" (partitioned)" if table.partitioned else "")
    rows = f"~{table.rows:,}" if table.rows is not None else "unknown"
    published, asked = ("yes" if flag else "no" for flag in (table.published, table.asked))
    return [name, ", ".join(table.key) or "none", table.identity, rows, format_size(table.bytes), published, asked]


def _data(table: CandidateAnswer | PublishedTableAnswer) -> dict[str, Any]:
    data = table.model_dump(mode="json")
    return {"schema": data.pop("table_schema"), "name": data.pop("table"), **data}


def _show(change: PublicationChange, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        screen.data(change.model_dump(mode="json"))
        return
    would, name = "would be " if change.dry_run else "", change.publication
    if change.created:
        screen.line(f"publication {name} {would}created", "green")
    for table in change.added:
        screen.line(f"  + {table} {would}added", "green")
    for table in change.dropped:
        screen.line(f"  - {table} {would}removed", "yellow")
    if not change.added and not change.dropped:
        screen.line(f"publication {name}: nothing to change ({len(change.unchanged)} as asked)")
    for note in change.notes:
        screen.line(f"  note: {note}")

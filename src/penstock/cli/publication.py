"""`penstock publication`: what the flow's publication sends, and what it should."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.files import FlowOption, JsonOption, running_flow
from penstock.cli.screen import Screen
from penstock.core.options import format_size

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sources.postgres.publishing import Candidate, Change, Publishing

app = typer.Typer(help="The flow's publication on the server.", no_args_is_help=True, rich_markup_mode=None)

Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="schema.table, a pattern ('sales.*'), or quoted as in SQL.", show_default=False),
]


class Mode(StrEnum):
    """What bringing in line means."""

    add = "add"
    sync = "sync"


@contextmanager
def _opened(file: Path) -> Iterator[Publishing]:
    from penstock.control.objects import source_part

    with source_part(running_flow(file), "publication") as found:
        yield found


@app.command("list")
def list_tables(flow: FlowOption, as_json: JsonOption = False) -> None:
    """List the tables that the publication sends, with column lists and row filters."""
    with _opened(flow) as publishing:
        found, tables = publishing.published()
    screen = Screen()
    if as_json:
        facts = {"name": found.name, "owner": found.owner, "made_by_flow": found.made_here, "all_tables": found.everything}
        facts |= {"schemas": list(found.schemas), "operations": list(found.operations), "via_root": found.via_root}
        screen.data({**facts, "tables": [asdict(t) for t in tables]})
        return
    whose = "made by this flow" if found.made_here else f"made by others, owner {found.owner}"
    screen.line(f"publication {found.name} ({whose}) sends {', '.join(found.operations) or 'nothing'}", "bold")
    rows = [
        [f"{t.schema}.{t.name}", t.by, ", ".join(t.columns) if t.columns else "all", t.filter or "", "yes" if t.asked else "no"]
        for t in tables
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
    as_json: JsonOption = False,
) -> None:
    """List the tables that could be published: key, identity, estimated size, and whether they are published."""
    with _opened(flow) as publishing:
        found, notes = publishing.discover(tables or ())
        name = publishing.name
    screen = Screen()
    if as_json:
        screen.data({"publication": name, "tables": [asdict(t) for t in found], "notes": notes})
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
    for note in notes:
        screen.line(f"  note: {note}")


@app.command("add")
def add(flow: FlowOption, tables: Tables, as_json: JsonOption = False) -> None:
    """Add tables to the publication; nothing is changed when one of them cannot be."""
    with _opened(flow) as publishing:
        _show(publishing.name, publishing.add(tables), as_json)


@app.command("remove")
def remove(flow: FlowOption, tables: Tables, as_json: JsonOption = False) -> None:
    """Take tables out of the publication; the tables themselves are not touched."""
    with _opened(flow) as publishing:
        _show(publishing.name, publishing.remove(tables), as_json)


@app.command("sync")
def sync(
    flow: FlowOption,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="add, or sync, which also drops; the flow's own setting if not given.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the publication in line with the flow's patterns; makes it if there is none."""
    with _opened(flow) as publishing:
        change = publishing.sync(mode.value if mode else None, dry=dry_run)
        _show(publishing.name, change, as_json, dry=dry_run)


def _row(table: Candidate) -> list[str]:
    name = f"{table.schema}.{table.name}" + (" (partitioned)" if table.partitioned else "")
    rows = f"~{table.rows:,}" if table.rows is not None else "unknown"
    published, asked = ("yes" if flag else "no" for flag in (table.published, table.asked))
    return [name, ", ".join(table.key) or "none", table.identity, rows, format_size(table.bytes), published, asked]


def _show(name: str, change: Change, as_json: bool, *, dry: bool = False) -> None:
    screen = Screen()
    if as_json:
        screen.data({"publication": name, "dry_run": dry, **asdict(change)})
        return
    would = "would be " if dry else ""
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

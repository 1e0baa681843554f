"""`penstock slot`: where the server keeps the flow's place in its log, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import ServerOption
from penstock.cli.files import JsonOption, StateOption, YesOption, confirm
from penstock.cli.of_file import FlowOption, source_plane
from penstock.cli.screen import Screen
from penstock.core.options import format_size

if TYPE_CHECKING:
    from penstock.control.source_answers import SlotAnswer

app = typer.Typer(help="Replication slots on the server.", no_args_is_help=True, rich_markup_mode=None)

NameOption = Annotated[
    str | None, typer.Option("--name", metavar="SLOT", help="Another slot than the flow's.", show_default=False)
]


@app.command("list")
def list_slots(flow: FlowOption, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List every slot of the server; the flow's own is marked."""
    with source_plane(flow, state, server) as (plane, name):
        answer = plane.slots(name)
    found, own = answer.slots, answer.own
    screen = Screen()
    if as_json:
        screen.data([slot.model_dump(mode="json") for slot in found])
        return
    rows = [_row(s) for s in found]
    if rows:
        screen.table(["", "slot", "database", "active", "lag", "WAL retained", "status"], rows)
    if not any(s.own for s in found):
        screen.line(f"the flow's slot {own} does not exist")


@app.command("show")
def show(
    flow: FlowOption,
    name: NameOption = None,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that the server says about the flow's slot."""
    with source_plane(flow, state, server) as (plane, who):
        found = plane.slot(who, name)
    screen = Screen()
    if as_json:
        screen.data(found.model_dump(mode="json"))
        return
    screen.line(f"slot {found.name}", "bold")
    for label, value in _lines(found):
        screen.line(f"  {label:<15} {value}")


@app.command("drop")
def drop(
    flow: FlowOption,
    name: NameOption = None,
    yes: YesOption = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop the flow's slot: what it has not delivered is lost. Refused while somebody reads from it."""
    from penstock.control.source_objects import loss

    with source_plane(flow, state, server) as (plane, who):
        if not yes:
            found = plane.slot(who, name)
            # One that somebody reads from is refused by whoever is asked to drop it, with who that is: no need for a question.
            if not found.active:
                Screen(sys.stderr).line(f"slot {found.name}: {loss(found)}", "yellow")
                confirm(f"Drop slot {found.name}?")
        done = plane.drop_slot(who, name)
    screen = Screen()
    if as_json:
        screen.data({"dropped": done.slot.name, "lost": done.lost, **done.slot.model_dump(mode="json")})
    else:
        screen.line(f"slot {done.slot.name} dropped: {done.lost}", "green")


def _row(slot: SlotAnswer) -> list[str]:
    lag, retained = _size(slot.lag_bytes), _size(slot.retained_bytes)
    return ["*" if slot.own else "", slot.name, slot.database or slot.kind, _active(slot), lag, retained, slot.status or "none"]


def _lines(slot: SlotAnswer) -> Iterator[tuple[str, str]]:
    yield "kind", f"{slot.kind}, {slot.plugin}" if slot.plugin else slot.kind
    if slot.database:
        yield "database", slot.database
    yield "active", _active(slot) + (f", {slot.reader}" if slot.active and slot.reader else "")
    if slot.idle_since and not slot.active:
        yield "inactive since", slot.idle_since
    yield "confirmed", slot.confirmed or "nowhere yet"
    yield "restart", slot.restart or "nowhere"
    yield "lag", _size(slot.lag_bytes)
    yield "WAL retained", _size(slot.retained_bytes)
    unlimited = "none: it is lost" if slot.status == "lost" or slot.reason else "no limit is set"
    yield "safe_wal_size", _size(slot.safe_wal_size) if slot.safe_wal_size is not None else unlimited
    yield "wal_status", slot.status or "none"
    yield "failover", "unknown before PostgreSQL 17" if slot.failover is None else _yes(slot.failover)
    if slot.synced:
        yield "synced", "yes, from the primary"
    yield "two_phase", _yes(slot.two_phase)
    yield "temporary", _yes(slot.temporary)
    yield "invalidated", slot.reason or "no"


def _active(slot: SlotAnswer) -> str:
    return f"yes, by process {slot.pid}" if slot.active else "no"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _size(count: int | None) -> str:
    return format_size(count) if count is not None else "unknown"

"""`penstock slot`: where the server keeps the flow's place in its log, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.files import FlowOption, JsonOption, YesOption, confirm, running_flow
from penstock.cli.screen import Screen
from penstock.core.options import format_size
from penstock.core.position import format_lsn

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sources.postgres.slots import SlotFigures, Slots

app = typer.Typer(help="Replication slots on the server.", no_args_is_help=True, rich_markup_mode=None)

NameOption = Annotated[
    str | None, typer.Option("--name", metavar="SLOT", help="Another slot than the flow's.", show_default=False)
]


@contextmanager
def _opened(file: Path) -> Iterator[Slots]:
    from penstock.control.objects import source_part

    with source_part(running_flow(file), "slots") as found:
        yield found


@app.command("list")
def list_slots(flow: FlowOption, as_json: JsonOption = False) -> None:
    """List every slot of the server; the flow's own is marked."""
    with _opened(flow) as slots:
        found, own = slots.all(), slots.own
    screen = Screen()
    if as_json:
        screen.data([_data(s) for s in found])
        return
    rows = [_row(s) for s in found]
    if rows:
        screen.table(["", "slot", "database", "active", "lag", "WAL retained", "status"], rows)
    if not any(s.own for s in found):
        screen.line(f"the flow's slot {own} does not exist")


@app.command("show")
def show(flow: FlowOption, name: NameOption = None, as_json: JsonOption = False) -> None:
    """Show all that the server says about the flow's slot."""
    with _opened(flow) as slots:
        found = slots.show(name)
    screen = Screen()
    if as_json:
        screen.data(_data(found))
        return
    screen.line(f"slot {found.name}", "bold")
    for label, value in _lines(found):
        screen.line(f"  {label:<15} {value}")


@app.command("drop")
def drop(flow: FlowOption, name: NameOption = None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Drop the flow's slot: what it has not delivered is lost. Refused while somebody reads from it."""
    with _opened(flow) as slots:
        found = slots.free(name)
        warning = _loss(found)
        if not yes:
            Screen(sys.stderr).line(f"slot {found.name}: {warning}", "yellow")
            confirm(f"Drop slot {found.name}?")
        slots.drop(found.name)
    screen = Screen()
    if as_json:
        screen.data({"dropped": found.name, "lost": warning, **_data(found)})
    else:
        screen.line(f"slot {found.name} dropped: {warning}", "green")


def _row(slot: SlotFigures) -> list[str]:
    lag, retained = _size(slot.lag_bytes), _size(slot.retained_bytes)
    return ["*" if slot.own else "", slot.name, slot.database or slot.kind, _active(slot), lag, retained, slot.status or "none"]


def _loss(slot: SlotFigures) -> str:
    after = "whoever reads by it has to begin anew"
    if slot.confirmed is not None:
        after = f"changes after {format_lsn(slot.confirmed)} can no longer be had ({_size(slot.lag_bytes)} of log)"
    freed = f"; {_size(slot.retained_bytes)} of WAL may go" if slot.retained_bytes is not None else ""
    begin = "; a flow with a journal cannot go on without it" if slot.own else ""
    return f"{after}{freed}{begin}"


def _lines(slot: SlotFigures) -> Iterator[tuple[str, str]]:
    yield "kind", f"{slot.kind}, {slot.plugin}" if slot.plugin else slot.kind
    if slot.database:
        yield "database", slot.database
    yield "active", _active(slot) + (f", {slot.reader}" if slot.active and slot.reader else "")
    if slot.idle_since and not slot.active:
        yield "inactive since", slot.idle_since
    yield "confirmed", format_lsn(slot.confirmed) if slot.confirmed is not None else "nowhere yet"
    yield "restart", format_lsn(slot.restart) if slot.restart is not None else "nowhere"
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


def _active(slot: SlotFigures) -> str:
    return f"yes, by process {slot.pid}" if slot.active else "no"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _size(count: int | None) -> str:
    return format_size(count) if count is not None else "unknown"


def _data(slot: SlotFigures) -> dict[str, Any]:
    data = asdict(slot)
    for key in ("confirmed", "restart"):
        data[key] = format_lsn(data[key]) if data[key] is not None else None
    return data

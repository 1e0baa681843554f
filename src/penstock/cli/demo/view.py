"""What the demo shows: the path as a picture, the live table, and a plain line where nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.core.options import format_size

if TYPE_CHECKING:
    from penstock.engine.status import DestinationStatus, WorkerStatus


STARTING = "Spark is starting; what happens meanwhile is kept in the journal"


def picture(server: str, warehouse: str, changes: str) -> list[str]:
    """The path of a change through the demo."""
    return [
        "",
        "  load ──▶ PostgreSQL ──log──▶ capture ──▶ journal ─┬─▶ lanes on Spark ──▶ DuckDB   the shop as it is now",
        "           a small shop        own process  fsynced └─▶ lanes on Spark ──▶ Parquet  every change that was made",
        "",
        f"  PostgreSQL  {server}",
        f"  DuckDB      {warehouse}",
        f"  Parquet     {changes}",
        "",
    ]


def live(status: WorkerStatus, load: Mapping[str, int], rate: float, seconds: float, hint: str) -> Group:
    """The state of things as a table: what each destination has of each table, how far behind it is, how fast it goes."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("changes delivered")
    for destination in status.destinations:
        table.add_column(f"{destination.name} ({destination.type})", justify="right")
    names = sorted({name for destination in status.destinations for name in destination.rows})
    for name in names:
        table.add_row(name, *(f"{d.rows.get(name, 0):,}" for d in status.destinations))
    table.add_section()
    table.add_row("lag", *(Text(_lag(d.lag_seconds), style="bold") for d in status.destinations))
    table.add_row("epochs/s", *(f"{d.epochs_per_second:.1f}" for d in status.destinations))
    table.add_row("state", *(Text(_state(d), style="red" if d.error else "green") for d in status.destinations))
    head = (
        f"{seconds:5.0f} s   source: {rate:,.0f} commits/s, {load.get('commits', 0):,} commits, "
        f"{load.get('rollbacks', 0):,} rolled back   journal: {format_size(status.journal_bytes)}"
    )
    if _is_starting(status):
        return Group(Text(head, style="cyan"), Text(""), Text(f"  {STARTING}", style="yellow"), Text(""), Text(hint, style="dim"))
    return Group(Text(head, style="cyan"), Text(""), table, Text(""), Text(hint, style="dim"))


def line(status: WorkerStatus, load: Mapping[str, int], rate: float, seconds: float) -> str:
    """The same in one line."""
    if _is_starting(status):
        return f"{seconds:4.0f}s source {load.get('commits', 0)} commits ({rate:.0f}/s) | {STARTING}"
    parts = [
        f"{seconds:4.0f}s source {load.get('commits', 0)} commits ({rate:.0f}/s)",
        f"journal {format_size(status.journal_bytes)}",
    ]
    for d in status.destinations:
        rows = sum(d.rows.values())
        trouble = f", {_state(d)}" if d.error else ""
        parts.append(f"{d.name} {rows} rows, lag {_lag(d.lag_seconds)}, {d.epochs_per_second:.1f} epochs/s{trouble}")
    return " | ".join(parts)


def _lag(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _is_starting(status: WorkerStatus) -> bool:
    return all(d.state == "starting" for d in status.destinations)


def _state(destination: DestinationStatus) -> str:
    return f"{destination.state}: {destination.error.get('code')}" if destination.error else destination.state

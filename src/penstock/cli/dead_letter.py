"""`penstock dead-letter`: changes that a destination refused for good, and what becomes of them."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.files import JsonOption, StateOption, YesOption, confirm, state_directory
from penstock.cli.screen import Screen
from penstock.core.options import format_duration
from penstock.core.position import format_lsn

if TYPE_CHECKING:
    from penstock.control.letters import Chosen, LetterDesk
    from penstock.ledger.letters import Letter

app = typer.Typer(help="Changes that were set aside.", no_args_is_help=True, rich_markup_mode=None)

FlowOption = Annotated[str, typer.Option("--flow", metavar="FILE|NAME", help="The flow file, or its name.", show_default=False)]
DestinationOption = Annotated[str | None, typer.Option("--destination", metavar="NAME", help="Of this one.", show_default=False)]
TableOption = Annotated[
    str | None,
    typer.Option("--table", metavar="PATTERN", help="Of these tables: public.orders, orders, public.*", show_default=False),
]
IdOption = Annotated[
    list[int] | None, typer.Option("--id", metavar="N", help="This letter; may be repeated.", show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="All letters of the flow.")]


@app.command("list")
def list_letters(
    flow: FlowOption,
    state: StateOption = None,
    destination: DestinationOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the changes that are set aside, in log order per destination."""
    from penstock.control.letters import Chosen, describe

    with _desk(flow, state) as desk:
        found = desk.find(Chosen(destination=destination, table=table))
    screen = Screen()
    if as_json:
        screen.data([describe(letter) for letter in found])
    elif found:
        screen.table(["id", "destination", "table", "key", "op", "state", "refused", "age", "code"], [_row(x) for x in found])
    else:
        screen.line("no dead letters")


@app.command("show")
def show(
    flow: FlowOption,
    number: Annotated[int, typer.Option("--id", metavar="N", help="Which letter.", show_default=False)],
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter: why it was refused, what to do, and the change itself, values included."""
    from penstock.control.letters import Chosen, describe

    with _desk(flow, state) as desk:
        letter = desk.find(Chosen(ids=[number]))[0]
        change = desk.change(letter)
    screen = Screen()
    data = describe(letter)
    if as_json:
        screen.data({**data, **change})
        return
    screen.line(f"dead letter {letter.id}", "bold")
    for label, value in (
        ("destination", letter.destination),
        ("table", letter.qualified),
        ("key", letter.key or "none"),
        ("operation", letter.op),
        ("position", f"{format_lsn(letter.position)}, change {letter.ordinal}"),
        ("state", f"{data['state']}, refused {_times(letter.attempts)}, set aside {_age(letter)} ago"),
        ("reason", f"{letter.code}: {letter.reason}"),
    ):
        screen.line(f"  {label:<12} {value}")
    screen.line(f"  → {data['remedy']}", "yellow")
    for column, text in change.get("unrepresentable", {}).items():
        screen.line(f"  does not fit: {column} = {text}")
    screen.line(json.dumps(change.get("change"), ensure_ascii=False))


@app.command("replay")
def replay(
    flow: FlowOption,
    state: StateOption = None,
    ids: IdOption = None,
    everything: AllOption = False,
    destination: DestinationOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver letters again, with the worker's next epoch, before its own changes; a key's letters go together, in order.

    One that is refused again stays, and says why. Exit codes: 0 marked, 1 a letter is not there, 2 none was named.
    """
    with _desk(flow, state) as desk:
        found = desk.find(_chosen(ids, everything, destination, table))
        done = desk.replay(found)
    screen = Screen()
    if as_json:
        screen.data({"marked": [x.id for x in done], "already": [x.id for x in found if x not in done]})
    elif done:
        screen.line(f"{_count(done)} marked: the worker delivers them within seconds, or when it next runs", "green")
    else:
        screen.line("nothing to do")


@app.command("discard")
def discard(
    flow: FlowOption,
    state: StateOption = None,
    ids: IdOption = None,
    everything: AllOption = False,
    destination: DestinationOption = None,
    table: TableOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove letters for good: their changes never reach the destination. What waited behind them is then delivered.

    Exit codes: 0 removed, 1 refused or not there, 2 none was named.
    """
    with _desk(flow, state) as desk:
        found = desk.find(_chosen(ids, everything, destination, table))
        if found and not yes:
            Screen(sys.stderr).line(f"{_count(found)}: these changes will never reach the destination", "yellow")
            confirm(f"Discard {_count(found)}?")
        done = desk.discard(found)
    screen = Screen()
    busy = [x.id for x in found if x not in done]
    if as_json:
        screen.data({"discarded": [x.id for x in done], "in_delivery": busy})
    else:
        screen.line(f"{_count(done)} discarded" if done else "nothing to do", "green" if done else "")
        if busy:
            screen.line(f"in delivery now, and left alone: {', '.join(map(str, busy))}")


def _desk(flow: str, state: Path | None) -> LetterDesk:
    from penstock.control.letters import LetterDesk

    return LetterDesk(_name(flow), state_directory(state))


def _name(flow: str) -> str:
    """The flow's name: what was given, or what the file of that name says."""
    path = Path(flow)
    if not path.exists() and re.fullmatch(r"[A-Za-z0-9_-]{1,63}", flow):
        return flow
    from penstock.control.files import load

    name = load(path).raw.get("name")
    return name if isinstance(name, str) else flow


def _chosen(ids: list[int] | None, everything: bool, destination: str | None, table: str | None) -> Chosen:
    from penstock.control.letters import Chosen

    if not ids and not everything and destination is None and table is None:
        raise typer.BadParameter("name letters with --id, --table, --destination or --all")
    return Chosen(tuple(ids or ()), destination, table)


def _row(letter: Letter) -> list[str]:
    from penstock.control.letters import describe

    data = describe(letter)
    about = [letter.op, data["state"], _times(letter.attempts), _age(letter), letter.code]
    return [str(letter.id), letter.destination, letter.qualified, letter.key or "none", *about]


def _age(letter: Letter) -> str:
    seconds = max(0, int(dt.datetime.now(dt.UTC).timestamp() - letter.created_at / 1e6))
    for step in (86400, 3600, 60):
        if seconds >= step:
            return format_duration(float(seconds // step * step))
    return f"{seconds}s"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _count(letters: list[Letter]) -> str:
    return f"{len(letters)} letter{'s' if len(letters) != 1 else ''}"

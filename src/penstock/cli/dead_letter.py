"""`penstock dead-letter`: changes that a destination refused for good, and what becomes of them."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, YesOption, confirm, is_there
from penstock.cli.screen import Screen
from penstock.core.options import format_duration

if TYPE_CHECKING:
    from penstock.client.plane import ControlPlane
    from penstock.control.answers import LetterAnswer
    from penstock.control.requests import LetterChoice

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
    server: ServerOption = None,
    destination: DestinationOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the changes that are set aside, by number."""
    with control_plane(server, state) as plane:
        found = list(_letters(plane, _name(flow), destination, table))
    screen = Screen()
    if as_json:
        screen.data([_data(letter) for letter in found])
    elif found:
        screen.table(["id", "destination", "table", "key", "op", "state", "refused", "age", "code"], [_row(x) for x in found])
    else:
        screen.line("no dead letters")


@app.command("show")
def show(
    flow: FlowOption,
    number: Annotated[int, typer.Option("--id", metavar="N", help="Which letter.", show_default=False)],
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter: why it was refused, what to do, and the change itself, values included."""
    with control_plane(server, state) as plane:
        letter = plane.letter(_name(flow), number)
    screen = Screen()
    if as_json:
        screen.data({**_data(letter), "change": letter.change, "unrepresentable": letter.unrepresentable})
        return
    screen.line(f"dead letter {letter.id}", "bold")
    for label, value in (
        ("destination", letter.destination),
        ("table", f"{letter.table_schema}.{letter.table}"),
        ("key", _key(letter)),
        ("operation", letter.op),
        ("position", f"{letter.position}, change {letter.ordinal}"),
        ("state", f"{letter.state}, refused {_times(letter.attempts)}, set aside {_age(letter)} ago"),
        ("reason", f"{letter.code}: {letter.reason}"),
    ):
        screen.line(f"  {label:<12} {value}")
    screen.line(f"  → {letter.remedy}", "yellow")
    for column, text in letter.unrepresentable.items():
        screen.line(f"  does not fit: {column} = {text}")
    screen.line(json.dumps(letter.change, ensure_ascii=False))


@app.command("replay")
def replay(
    flow: FlowOption,
    state: StateOption = None,
    server: ServerOption = None,
    ids: IdOption = None,
    everything: AllOption = False,
    destination: DestinationOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver letters again, with the worker's next epoch, before its own changes; a key's letters go together, in order.

    One that is refused again stays, and says why. Exit codes: 0 marked, 1 a letter is not there, 2 none was named.
    """
    choice = _chosen(ids, everything, destination, table)
    with control_plane(server, state) as plane:
        answer = plane.replay(_name(flow), choice)
    screen = Screen()
    if as_json:
        screen.data({"marked": answer.done, "already": answer.left})
    elif answer.done:
        screen.line(f"{_count(answer.done)} marked: the worker delivers them within seconds, or when it next runs", "green")
    else:
        screen.line("nothing to do")


@app.command("discard")
def discard(
    flow: FlowOption,
    state: StateOption = None,
    server: ServerOption = None,
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
    choice = _chosen(ids, everything, destination, table)
    with control_plane(server, state) as plane:
        name = _name(flow)
        if not yes:
            found = [x for x in _letters(plane, name, destination, table) if not ids or x.id in ids]
            if found:
                Screen(sys.stderr).line(f"{_count(found)}: these changes will never reach the destination", "yellow")
                confirm(f"Discard {_count(found)}?")
                # What came meanwhile was not asked about.
                choice = choice.model_copy(update={"ids": [x.id for x in found]}) if not ids else choice
        answer = plane.discard(name, choice)
    screen = Screen()
    done, busy = answer.done, answer.left
    if as_json:
        screen.data({"discarded": done, "in_delivery": busy})
    else:
        screen.line(f"{_count(done)} discarded" if done else "nothing to do", "green" if done else "")
        if busy:
            screen.line(f"in delivery now, and left alone: {', '.join(map(str, busy))}")


def _letters(plane: ControlPlane, flow: str, destination: str | None, table: str | None) -> Iterator[LetterAnswer]:
    after: int | None = 0
    while after is not None:
        page = plane.letters(flow, destination=destination, table=table, after=after, limit=500)
        yield from page.letters
        after = page.next


def _name(flow: str) -> str:
    """The flow's name: what was given, or what the file of that name says."""
    path = Path(flow)
    if not is_there(flow) and re.fullmatch(r"[A-Za-z0-9_-]{1,63}", flow):
        return flow
    from penstock.control.files import load

    name = load(path).raw.get("name")
    return name if isinstance(name, str) else flow


def _chosen(ids: list[int] | None, everything: bool, destination: str | None, table: str | None) -> LetterChoice:
    from penstock.control.requests import LetterChoice

    if not ids and not everything and destination is None and table is None:
        raise typer.BadParameter("name letters with --id, --table, --destination or --all")
    return LetterChoice(ids=ids or [], destination=destination, table=table, all=everything)


def _row(letter: LetterAnswer) -> list[str]:
    about = [letter.op, letter.state, _times(letter.attempts), _age(letter), letter.code]
    return [str(letter.id), letter.destination, f"{letter.table_schema}.{letter.table}", _key(letter), *about]


def _key(letter: LetterAnswer) -> str:
    return json.dumps(letter.key, ensure_ascii=False, separators=(",", ":")) if letter.key is not None else "none"


def _data(letter: LetterAnswer) -> dict[str, Any]:
    data = letter.model_dump(mode="json", exclude={"change", "unrepresentable"})
    return {**data, "schema": data.pop("table_schema")}


def _age(letter: LetterAnswer) -> str:
    seconds = max(0, int((dt.datetime.now(dt.UTC) - letter.set_aside_at).total_seconds()))
    for step in (86400, 3600, 60):
        if seconds >= step:
            return format_duration(float(seconds // step * step))
    return f"{seconds}s"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _count(letters: Sequence[object]) -> str:
    return f"{len(letters)} letter{'s' if len(letters) != 1 else ''}"

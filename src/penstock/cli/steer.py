"""`penstock flow pause|resume|stop|start`: what a flow is to do, whoever runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.files import JsonOption, StateOption, state_directory
from penstock.cli.screen import Screen
from penstock.core.position import format_lsn
from penstock.errors import FlowInvalid, Problem

if TYPE_CHECKING:
    from penstock.control.lifecycle import Answer, Command

FlowArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help="The flow's name, or its file.")]
WhyOption = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for the record.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """The commands, as part of `penstock flow`."""
    for command in (pause, resume, stop, start, reload, rewind):
        app.command()(command)


def name_of(given: str) -> tuple[str, Path | None]:
    """The flow's name, and its file if one was given."""
    from penstock.control.files import load

    path = Path(given)
    if path.suffix.lower() not in (".yaml", ".yml", ".json") and not path.is_file():
        return given, None
    name = load(path).raw.get("name")
    if not isinstance(name, str):
        raise FlowInvalid.of(given, [Problem("name", "is missing", "Give the flow a name.")])
    return name, path


def pause(flow: FlowArgument, state: StateOption = None, why: WhyOption = None, as_json: JsonOption = False) -> None:
    """Deliver nothing for the time being; the source is still captured, so that nothing is lost.

    A running epoch is finished if it is quick, else abandoned and run again later. A worker started meanwhile stays paused.
    """
    _ask("pause", flow, state, why, as_json)


def resume(flow: FlowArgument, state: StateOption = None, why: WhyOption = None, as_json: JsonOption = False) -> None:
    """Deliver again after a pause, from where each destination stood."""
    _ask("resume", flow, state, why, as_json)


def stop(flow: FlowArgument, state: StateOption = None, why: WhyOption = None, as_json: JsonOption = False) -> None:
    """End the flow's worker in order; none may be started before `penstock flow start`."""
    _ask("stop", flow, state, why, as_json)


def start(flow: FlowArgument, state: StateOption = None, why: WhyOption = None, as_json: JsonOption = False) -> None:
    """Let a stopped flow run again; `penstock worker` runs it."""
    _ask("start", flow, state, why, as_json)


def reload(flow: FlowArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Have the flow's worker read its file again: destinations that are new begin, that are gone end, others go on.

    A file with problems, or with another source, changes nothing. SIGHUP to the worker does the same.
    """
    from penstock.control.lifecycle import reload as ask

    name, _ = name_of(flow)
    event = ask(name, state_directory(state))
    done = event is not None and event.event == "reloaded"
    screen = Screen()
    if as_json:
        screen.data({"flow": name, "reloaded": done, "answer": event.why if event is not None else None})
    elif event is None:
        screen.line(f"{name}: asked; the worker has not answered yet", "yellow")
    else:
        screen.line(f"{name}: {event.event}: {event.why}", "green" if done else "red")
    if not done:
        raise typer.Exit(1)


def rewind(
    flow: FlowArgument,
    destination: Annotated[str, typer.Option("--destination", metavar="NAME", help="Which of the flow's destinations.")],
    to: Annotated[str, typer.Option("--to", metavar="LSN|oldest", help="After which position it is sent everything again.")],
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a destination again what it has had since a position, from the journal; the events have the same ids.

    Refused while a worker runs the flow, when the journal no longer has the position, and for a destination that keeps its
    position with its data and would pass over everything it has: give it a new name and place, and set `start` there.
    """
    from penstock.control.rewind import rewind as move

    name, _ = name_of(flow)
    before, after = move(name, state_directory(state), destination, to)
    screen = Screen()
    if as_json:
        screen.data({"flow": name, "destination": destination, "from": format_lsn(before), "to": format_lsn(after)})
    else:
        screen.line(f"{name}: {destination} goes on after {format_lsn(after)}; it had reached {format_lsn(before)}", "green")


def _ask(command: Command, given: str, state: Path | None, why: str | None, as_json: bool) -> None:
    from penstock.control.lifecycle import ask

    name, file = name_of(given)
    answer = ask(command, name, state_directory(state), why=why, known=file is not None)
    screen = Screen()
    if as_json:
        screen.data(answer.to_data())
    else:
        screen.line(f"{name}: {_words(command, answer)}", "green" if answer.settled else "yellow")
    if not answer.settled:
        raise typer.Exit(1)


def _words(command: Command, answer: Answer) -> str:
    """What became of the command, in a sentence."""
    done = {"pause": "paused", "resume": "running", "stop": "stopped", "start": "may run"}[command]
    already = "" if answer.changed else "already "
    if not answer.settled:
        return f"asked; {answer.holder} has not answered yet"
    if command == "start":
        return f"{already}{done}; `penstock worker` runs it" if answer.holder is None else f"{already}runs in {answer.holder}"
    if answer.holder is None:
        then = {
            "pause": "; no worker runs it now, and one that is started stays paused",
            "resume": "; no worker runs it now: `penstock worker` does",
            "stop": "; no worker runs it",
        }
        return f"{already}{done}{then[command]}"
    return f"{already}{done}, in {answer.holder}"

"""`penstock flow pause|resume|stop|start|reload|rewind|release|resolve-staging`: what a flow is to do, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, is_there, state_directory
from penstock.cli.screen import Screen
from penstock.errors import FlowInvalid, Problem, retry_of

if TYPE_CHECKING:
    from penstock.client.plane import ControlPlane
    from penstock.control.lifecycle import Answer, Command

FlowArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help="The flow's name, or its file.")]
WhyOption = Annotated[str | None, typer.Option("--why", metavar="TEXT", help="The reason, for the record.", show_default=False)]


PATIENCE = 20.0
"""Seconds that a command waits until it has come true; a cold worker takes ten."""


def add_to(app: typer.Typer) -> None:
    """The commands, as part of `penstock flow`."""
    for command in (pause, resume, stop, start, reload, rewind, release):
        app.command()(command)
    app.command("resolve-staging")(resolve_staging)


def name_of(given: str) -> tuple[str, Path | None]:
    """The flow's name, and its file if one was given."""
    from penstock.control.files import load

    path = Path(given)
    if path.suffix.lower() not in (".yaml", ".yml", ".json") and not is_there(given):
        return given, None
    name = load(path).raw.get("name")
    if not isinstance(name, str):
        raise FlowInvalid.of(given, [Problem("name", "is missing", "Give the flow a name.")])
    return name, path


def pause(
    flow: FlowArgument, state: StateOption = None, why: WhyOption = None, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Deliver nothing for the time being; the source is still captured, so that nothing is lost.

    A running epoch is finished if it is quick, else abandoned and run again later. A worker started meanwhile stays paused.
    """
    _ask("pause", flow, state, why, server, as_json)


def resume(
    flow: FlowArgument, state: StateOption = None, why: WhyOption = None, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Deliver again after a pause, from where each destination stood."""
    _ask("resume", flow, state, why, server, as_json)


def stop(
    flow: FlowArgument, state: StateOption = None, why: WhyOption = None, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """End the flow's worker in order; none may be started before `penstock flow start`."""
    _ask("stop", flow, state, why, server, as_json)


def start(
    flow: FlowArgument, state: StateOption = None, why: WhyOption = None, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Let a created, stopped or failed flow run; a server runs it, or `penstock worker`."""
    _ask("start", flow, state, why, server, as_json)


def reload(flow: FlowArgument, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Have the flow's worker read its file again: destinations that are new begin, that are gone end, that failed begin again.

    A file with problems, or with another source, changes nothing. SIGHUP to the worker does the same.
    """
    name, _ = name_of(flow)
    with _upkeep(name, state, server) as plane:
        found = plane.reload(name)
    screen = Screen()
    if as_json:
        screen.data(found.model_dump(mode="json"))
    elif found.answer is None and not found.reloaded:
        screen.line(f"{name}: asked; the worker has not answered yet", "yellow")
    else:
        words = "reloaded" if found.reloaded else "reload refused"
        screen.line(f"{name}: {words}: {found.answer}", "green" if found.reloaded else "red")
    if not found.reloaded:
        raise typer.Exit(1)


def rewind(
    flow: FlowArgument,
    destination: Annotated[str, typer.Option("--destination", metavar="NAME", help="Which of the flow's destinations.")],
    to: Annotated[str, typer.Option("--to", metavar="LSN|oldest", help="After which position it is sent everything again.")],
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a destination again what it has had since a position, from the journal; the events have the same ids.

    Refused while a worker runs the flow, when the journal no longer has the position, for a change log (files), which would have
    every change twice, and for tables if rows have changed their keys since. Tables end as they are now, and show older rows
    until then.
    """
    name, _ = name_of(flow)
    with _upkeep(name, state, server) as plane:
        found = plane.rewind(name, destination, to)
    screen = Screen()
    if as_json:
        screen.data({"flow": name, "destination": destination, "from": found.before, "to": found.after})
    else:
        screen.line(f"{name}: {destination} goes on after {found.after}; it had reached {found.before}", "green")


def release(
    flow: FlowArgument,
    destination: Annotated[str, typer.Option("--destination", metavar="NAME", help="Which of the flow's destinations.")],
    table: Annotated[str, typer.Option("--table", metavar="SCHEMA.TABLE", help="Which of its quarantined tables.")],
    skip_missed: Annotated[
        bool, typer.Option("--skip-missed", help="Go on with changes from now on; what the table has missed stays missing.")
    ] = False,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a quarantined table, once what was wrong with it is mended.

    The worker first brings it everything that it has missed since it was quarantined, from the journal, in one epoch; the
    destination's other tables wait meanwhile. If that fails, the table is quarantined again. Refused when the journal no longer
    has what was missed: release it with --skip-missed, and load it anew.
    """
    name, _ = name_of(flow)
    with _upkeep(name, state, server) as plane:
        found = plane.release(name, destination, table, skip_missed=skip_missed)
    screen = Screen()
    missed = f"{found.missed} changes since {found.since}"
    if as_json:
        screen.data(found.model_dump(mode="json"))
    elif skip_missed:
        screen.line(f"{name}: {table} at {destination} goes on from now; {missed} are missing there", "yellow")
    else:
        screen.line(f"{name}: {table} at {destination} is brought {missed}, then it is live again", "green")


def resolve_staging(
    flow: FlowArgument,
    destination: Annotated[
        str | None, typer.Option("--destination", metavar="NAME", help="Only this destination.", show_default=False)
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Only these tables, such as public.orders; may be repeated."),
    ] = None,
    state: StateOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge staging tables whose loads have ended into their tables, as `batch_resolution` says, and empty them.

    Each in one transaction; a second call has nothing to do. The flow's worker does it if one runs; else the flow's file is
    needed. Tables whose load still runs are left for its end.
    """
    name, file = name_of(flow)
    found = _resolved(name, file, destination, tables or [], state, server)
    screen = Screen()
    if as_json:
        screen.data({"flow": name, "tables": found})
    elif found is None:
        screen.line(f"{name}: asked; the worker has not answered yet", "yellow")
    elif not found:
        screen.line(f"{name}: nothing is staged")
    else:
        headings = ["destination", "table", "outcome", "rows", "removed"]
        rows = [
            [f["destination"], f"{f['schema']}.{f['table']}", f["outcome"], f"{f['rows']:,}", f"{f['removed']:,}"] for f in found
        ]
        screen.table(headings, rows, right="rows removed")
    if found is None:
        raise typer.Exit(1)


def _resolved(
    name: str, file: Path | None, destination: str | None, tables: list[str], state: Path | None, server: str | None
) -> list[dict[str, Any]] | None:
    """What became of staging tables; None when the worker has not answered in time."""
    if file is not None and not server:
        from penstock.cli.files import running_flow
        from penstock.control.resolving import resolve

        return resolve(name, running_flow(file), state_directory(state), destination, tables)
    with _upkeep(name, state, server) as plane:
        found = plane.resolve_staging(name, destination, tables)
    if not found.answered:
        return None
    return [{**one.model_dump(exclude={"table_schema"}), "schema": one.table_schema} for one in found.tables]


@contextmanager
def _upkeep(name: str, state: Path | None, server: str | None) -> Iterator[ControlPlane]:
    """Who does it: the server that was named, else this process, where asking makes no ledger."""
    if not server:
        from penstock.control.lifecycle import existing_ledger

        existing_ledger(name, state_directory(state))
    with control_plane(server, state) as plane:
        yield plane


def _ask(command: Command, given: str, state: Path | None, why: str | None, server: str | None, as_json: bool) -> None:
    from penstock.control.lifecycle import ask

    name, file = name_of(given)
    if server:
        _ask_server(command, name, why, server, as_json)
        return
    answer = ask(command, name, state_directory(state), why=why, known=file is not None, patience=PATIENCE)
    screen = Screen()
    if as_json:
        screen.data(answer.to_data())
    else:
        screen.line(f"{name}: {_words(command, answer)}", "green" if answer.settled else "yellow")
    if not answer.settled:
        raise typer.Exit(1)


def _ask_server(command: Command, name: str, why: str | None, server: str, as_json: bool) -> None:
    with control_plane(server, None) as plane:
        answer = plane.command(command, name, why=why, wait=PATIENCE)
    screen = Screen()
    if as_json:
        screen.data(answer.model_dump(mode="json"))
    else:
        already = "" if answer.changed else "already wished so; "
        reason = f": {answer.reason}" if answer.reason and answer.state == "failed" else ""
        where = f", in {answer.worker}" if answer.worker else ""
        words = f"{answer.state}{where}{reason}" if answer.settled else f"asked; now {answer.state}{reason}"
        screen.line(f"{name}: {already}{words}", "green" if answer.settled else "yellow")
    if not answer.settled:
        raise typer.Exit(1)


def _words(command: Command, answer: Answer) -> str:
    """What became of the command, in a sentence."""
    done = {"pause": "paused", "resume": "running", "stop": "stopped", "start": "may run"}[command]
    already = "" if answer.changed else "already "
    if answer.failure is not None:
        again = " and is tried again" if retry_of(answer.failure.partition(":")[0]) == "timed" else ""
        return f"asked; it has failed{again}: {answer.failure}"
    if not answer.settled:
        return f"asked; {answer.holder or 'the server that runs flows'} has not answered yet"
    if command == "start":
        return (
            f"{already}{done}; a server or `penstock worker` runs it"
            if answer.holder is None
            else f"{already}runs in {answer.holder}"
        )
    if answer.holder is None:
        then = {
            "pause": "; no worker runs it now, and one that is started stays paused",
            "resume": "; no worker runs it now: a server or `penstock worker` does",
            "stop": "; no worker runs it",
        }
        return f"{already}{done}{then[command]}"
    return f"{already}{done}, in {answer.holder}"

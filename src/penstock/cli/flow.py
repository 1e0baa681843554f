"""`penstock flow validate|cleanup`: flow files, and the end of a flow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, YesOption, confirm, running_flow, state_directory
from penstock.cli.of_file import is_file
from penstock.cli.screen import Screen
from penstock.core.options import format_size
from penstock.errors import FlowInvalid

if TYPE_CHECKING:
    from penstock.control.cleanup import LocalState
    from penstock.sources.base import Belonging

app = typer.Typer(help="Flow files, and what flows do.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def flows() -> None:
    """Flow files, and what flows do."""


@app.command("validate")
def validate_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The flow file, YAML or JSON.")], as_json: JsonOption = False
) -> None:
    """Show every problem of a flow file at once, each with its path and a remedy.

    Exit codes: 0 no problem, 2 at least one.
    """
    from penstock.control.files import load
    from penstock.control.validate import validate

    try:
        loaded = load(file)
        name = loaded.raw.get("name")
        _, problems, notes = validate(loaded.raw, strict=False)
        problems = [*loaded.problems, *problems]
    except FlowInvalid as error:
        name, problems, notes = None, list(error.problems), []
    screen = Screen()
    if as_json:
        answer = {"file": str(file), "flow": name if isinstance(name, str) else None, "valid": not problems}
        screen.data({**answer, "problems": [p.to_data() for p in problems], "notes": [n.to_data() for n in notes]})
    else:
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        screen.line(f"{file}: {count if problems else 'valid'}", "red" if problems else "green")
        for problem in problems:
            screen.problem(problem)
        for note in notes:
            screen.line(f"  note: {note.path}: {note.message}")
    if problems:
        raise typer.Exit(2)


@app.command("cleanup")
def cleanup(
    given: Annotated[str, typer.Argument(metavar="FILE|NAME", help="The flow file, or a created flow's name.")],
    state: StateOption = None,
    remove_state: Annotated[
        bool, typer.Option("--remove-state", help="Also remove the flow's journal, ledger rows and staged files here.")
    ] = False,
    yes: YesOption = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove what the flow has made on the server (slot, publication, its record) and nothing else.

    Refused while a worker runs the flow, and of a created flow unless it is stopped; its definition stays. What others have made
    stays. Destinations are not touched.
    """
    if is_file(given):
        _clean_up_file(Path(given), state, remove_state, yes, as_json)
    else:
        _clean_up_created(given, state, remove_state, yes, server, as_json)


def _clean_up_created(name: str, state: Path | None, remove_state: bool, yes: bool, server: str | None, as_json: bool) -> None:
    with control_plane(server, state) as plane:
        found = plane.flow(name)
        if not yes:
            too = ", and its journal and checkpoints here" if remove_state else ""
            words = f"flow {name}, {found.state}: what it has made on its server goes{too}"
            Screen(sys.stderr).line(f"{words}; what the slot has not delivered yet is lost with it", "yellow")
            confirm(f"Remove what flow {name} has made?")
        done = plane.clean_up_flow(name, remove_state=remove_state)
    screen = Screen()
    if as_json:
        screen.data(done.model_dump(mode="json"))
        return
    for one in done.removed:
        screen.line(f"{one.kind} {one.name} removed", "green")
    if not done.removed:
        screen.line(f"{name}: nothing to do on the server")
    for one in done.stays:
        screen.line(f"  {one.kind} {one.name} stays: {one.why}")
    if done.state_removed:
        screen.line("  journal and checkpoints removed; the next start is the first", "green")


def _clean_up_file(file: Path, state: Path | None, remove_state: bool, yes: bool, as_json: bool) -> None:
    from penstock.control.cleanup import Cleanup

    flow = running_flow(file)
    with Cleanup(flow, state_directory(state)) as work:
        found, local = work.look()
        going, staying = [one for one in found if one.made], [one for one in found if not one.made]
        something = bool(going) or (remove_state and bool(local))
        if something and not yes:
            _announce(Screen(sys.stderr), flow.name, going, staying, local, remove_state)
            confirm(f"Remove what flow {flow.name} has made?")
        removed = work.run(remove_state=remove_state) if something else []
    screen = Screen()
    if as_json:
        kept = [{"kind": one.kind, "name": one.name, "why": one.note} for one in staying]
        answer = {"flow": flow.name, "removed": [{"kind": one.kind, "name": one.name} for one in removed], "stays": kept}
        screen.data({**answer, "local_state": {**_local_data(local), "removed": remove_state and bool(local)}})
        return
    for one in removed:
        screen.line(f"{one.kind} {one.name} removed", "green")
    if not something:
        screen.line(f"{flow.name}: nothing to do on the server")
    _remaining(screen, staying, local, remove_state)


def _announce(
    screen: Screen, name: str, going: Sequence[Belonging], staying: Sequence[Belonging], local: LocalState, remove_state: bool
) -> None:
    screen.line(f"flow {name}", "bold")
    for one in going:
        screen.line(f"  - {one.kind} {one.name}", "yellow")
    if any(one.kind == "slot" for one in going):
        screen.line("  what the slot has not delivered yet is lost with it")
    _remaining(screen, staying, local, remove_state, future=True)


def _remaining(
    screen: Screen, staying: Sequence[Belonging], local: LocalState, remove_state: bool, *, future: bool = False
) -> None:
    for one in staying:
        screen.line(f"  {one.kind} {one.name} stays: {one.note}")
    if remove_state and local.elsewhere is not None:
        screen.line(f"  journal {local.elsewhere} stays: it is not here; remove it there")
    if not local:
        return
    if remove_state:
        screen.line(
            f"  local state {'will be ' if future else ''}removed: {_local_words(local)}", "yellow" if future else "green"
        )
    else:
        screen.line(f"  local state stays (--remove-state removes it): {_local_words(local)}")


def _local_words(local: LocalState) -> str:
    words = [f"journal {local.journal}, {format_size(local.journal_bytes)}"] if local.journal else []
    words += [f"rows of {local.ledger}"] if local.ledger else []
    return "; ".join([*words, *map(str, local.directories)])


def _local_data(local: LocalState) -> dict[str, Any]:
    return {
        "journal": str(local.journal) if local.journal else None,
        "journal_bytes": local.journal_bytes,
        "ledger": str(local.ledger) if local.ledger else None,
        "directories": [str(path) for path in local.directories],
        "journal_elsewhere": local.elsewhere,
    }

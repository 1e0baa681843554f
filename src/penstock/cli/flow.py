"""`penstock flow`: flow files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.files import JsonOption
from penstock.cli.screen import Screen
from penstock.errors import FlowInvalid

app = typer.Typer(help="Flow files.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def flows() -> None:
    """Flow files."""


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

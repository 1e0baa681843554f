"""`penstock plan|apply|export`: flows as a directory of files says them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, YesOption, confirm
from penstock.cli.screen import Screen
from penstock.cli.steer import WhyOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.desired import Step

PlaceOption = Annotated[Path, typer.Option("--file", "-f", metavar="DIR|FILE", help="Flow files.", show_default=False)]
PruneOption = Annotated[bool, typer.Option("--prune", help="Stop and delete created flows that no file has.")]
LabelsOption = Annotated[str, typer.Option("--labels", metavar="SELECTOR", help="Only flows that fit: team=shop,env!=test")]
_SIGNS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red")}


def add_to(app: typer.Typer) -> None:
    """The commands."""
    app.command("plan", short_help="Show what `apply` would change.")(plan)
    app.command("apply", short_help="Bring created flows to what files say.")(apply)
    app.command("export", short_help="Write created flows to files.")(export)


def plan(
    place: PlaceOption,
    prune: PruneOption = False,
    labels: LabelsOption = "",
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the created flows differ from the files of a directory; changes nothing. `--labels` bounds `--prune`.

    Exit codes: 0 compared, 2 files with problems.
    """
    from penstock.client.desired import plan as compare
    from penstock.client.desired import read_definitions

    wanted = read_definitions(place)
    with control_plane(server, state) as plane:
        steps = compare(plane, wanted, prune=prune, labels=labels)
    screen = Screen()
    if as_json:
        screen.data([step.to_data() for step in steps])
    else:
        _show(screen, steps)


def apply(
    place: PlaceOption,
    prune: PruneOption = False,
    labels: LabelsOption = "",
    start: Annotated[bool, typer.Option("--start", help="Let flows run that are created.")] = False,
    why: WhyOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create, update and, with `--prune`, delete flows until they are what the files say; twice is once.

    Exit codes: 0 done, 1 a step was refused (the others are done), 2 files with problems.
    """
    from penstock.client.desired import apply as bring_about
    from penstock.client.desired import plan as compare
    from penstock.client.desired import read_definitions

    wanted = read_definitions(place)
    screen = Screen()
    with control_plane(server, state) as plane:
        steps = compare(plane, wanted, prune=prune, labels=labels)
        changing = [step for step in steps if step.kind != "keep"]
        if changing and not yes:
            _show(Screen(sys.stderr), steps)
            confirm("Apply?")
        done = []
        for one in bring_about(plane, changing, start=start, why=why):
            done.append(one)
            if not as_json:
                screen.line(f"{one.step.flow}: {one.words}", "red" if one.error is not None else "green")
                if one.error is not None:
                    screen.line(f"  → {one.error.remedy}", "yellow")
    if as_json:
        screen.data([{**one.step.to_data(), "done": one.error is None, "answer": one.words} for one in done])
    elif not done:
        screen.line("nothing to do: every flow is what its file says", "green")
    if any(one.error is not None for one in done):
        raise typer.Exit(1)


def export(
    place: Annotated[Path, typer.Option("--file", "-f", metavar="DIR", help="Where the files go.", show_default=False)],
    labels: LabelsOption = "",
    server: ServerOption = None,
    state: StateOption = None,
) -> None:
    """Write every created flow to DIR/NAME.yaml, references as they stand; `plan` then finds no difference."""
    from penstock.client.desired import export as write

    with control_plane(server, state) as plane:
        files = write(plane, place, labels)
    Screen().line(f"{len(files)} flow{'s' if len(files) != 1 else ''} written to {place}", "green")


def _show(screen: Screen, steps: Sequence[Step]) -> None:
    for step in steps:
        if step.kind == "keep":
            continue
        sign, style = _SIGNS[step.kind]
        screen.line(f"{sign} {step.kind} {step.flow}", style)
        for difference in step.differences:
            screen.line(f"    {difference}")
    counts = {kind: sum(step.kind == kind for step in steps) for kind in ("create", "update", "delete", "keep")}
    create, update, delete, keep = counts.values()
    screen.line(f"{create} to create, {update} to update, {delete} to delete, {keep} as they are")

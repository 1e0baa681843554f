"""`penstock flow create|update|delete|run|watch|events|revisions`: flows that are kept in the ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, YesOption, confirm
from penstock.cli.screen import Screen
from penstock.cli.steer import FlowArgument, WhyOption, name_of
from penstock.errors import FlowChanged, FlowInvalid

if TYPE_CHECKING:
    from penstock.control.answers import EventAnswer, FlowAnswer

FileOption = Annotated[
    Path, typer.Option("--file", "-f", metavar="FILE", help="The flow file, YAML or JSON.", show_default=False)
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The flow's name, which must be the file's.", show_default=False)
]
StartOption = Annotated[bool, typer.Option("--start", help="Let it run at once.")]


def add_to(app: typer.Typer) -> None:
    """The commands, as part of `penstock flow`."""
    for command in (create, update, reconfigure, delete, run, watch, events, revisions):
        app.command()(command)


def create(
    file: FileOption,
    start: StartOption = False,
    why: WhyOption = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="Repeated with it, it is one creation.", show_default=False)
    ] = None,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a flow in the ledger, from a file; `penstock up` or `penstock server` runs it.

    References to secrets are kept as they stand; a password in plain text is refused. Exit codes: 0 kept, 1 refused, 2 problems.
    """
    definition = _definition(file)
    with control_plane(server, state) as plane:
        made = plane.create_flow(definition, start=start, why=why, key=key)
    _answer(made, f"created, revision {made.revision}; {_next(made)}", as_json)


EtagOption = Annotated[
    str | None, typer.Option("--etag", metavar="TEXT", help="Only if this is still the revision.", show_default=False)
]


def update(
    file: FileOption,
    name: NameArgument = None,
    why: WhyOption = None,
    etag: EtagOption = None,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a created flow's definition; its state and checkpoints stay, and a running worker takes over what it can."""
    definition = _definition(file, name)
    with control_plane(server, state) as plane:
        done = plane.update_flow(str(definition.get("name")), definition, etag=etag, why=why)
    _answer(done, f"revision {done.revision}: {done.applied}", as_json)
    if (done.applied or "").startswith("reload refused"):
        # Kept, and not what runs: a script must not take it for done.
        remedy = f"`penstock flow reconfigure {done.name} -f {file}` restarts the worker for it; until then it runs what it had."
        Screen(sys.stderr).line(f"  → {remedy}", "yellow")
        raise typer.Exit(1)


def reconfigure(
    file: FileOption,
    name: NameArgument = None,
    why: WhyOption = None,
    etag: EtagOption = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, max=60, help="How long to wait for the worker.")
    ] = 60.0,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a created flow, replace its definition, and resume it; what cannot change while it runs, it is restarted for.

    A file with problems pauses and changes nothing. A flow that was paused stays so, one that is stopped is changed for its next
    start. If this is cut short, the flow may be left paused: `penstock flow resume` lets it go on.
    """
    definition = _definition(file, name)
    with control_plane(server, state) as plane:
        done = plane.reconfigure_flow(str(definition.get("name")), definition, etag=etag, why=why, wait=wait)
    _answer(done, f"revision {done.revision}: {done.applied}; now {done.state}", as_json)


def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The flow's name.")],
    cleanup: Annotated[bool, typer.Option("--cleanup/--no-cleanup", help="Also remove its slot and publication.")] = True,
    why: WhyOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a stopped flow: definition, journal, checkpoints and, on the server of its source, slot and publication.

    Destinations are not touched.
    """
    with control_plane(server, state) as plane:
        found = plane.flow(name)
        if not yes:
            Screen(sys.stderr).line(f"flow {name}, {found.state}: its journal and checkpoints go with it", "yellow")
            confirm(f"Delete flow {name}?")
        plane.delete_flow(name, etag=found.etag, why=why, cleanup=cleanup)
    screen = Screen()
    if as_json:
        screen.data({"flow": name, "deleted": True})
    else:
        screen.line(f"{name}: deleted", "green")


def run(
    flow: FlowArgument, why: WhyOption = None, server: ServerOption = None, state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Have a stopped flow run until nothing is left; then it is stopped again. A server has to be there to run it."""
    name, _ = name_of(flow)
    with control_plane(server, state) as plane:
        answer = plane.command("run", name, why=why)
    screen = Screen()
    if as_json:
        screen.data(answer.model_dump(mode="json"))
    else:
        words = "runs once now" if answer.state == "running" else "asked to run once; `penstock flow watch` shows it"
        screen.line(f"{name}: {words}", "green")


def watch(
    flow: FlowArgument,
    seconds: Annotated[float, typer.Option("--seconds", metavar="N", min=0.1, help="How long.")] = 86400.0,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happens to a flow while it happens: events, state, health and lag; Ctrl-C ends it."""
    from penstock.control.answers import EventAnswer

    name, _ = name_of(flow)
    screen = Screen()
    with control_plane(server, state) as plane:
        try:
            before = ""
            for item in plane.watch(name, seconds=seconds):
                if as_json:
                    kind = "event" if isinstance(item, EventAnswer) else "flow"
                    print(json.dumps({kind: item.model_dump(mode="json")}), flush=True)
                elif isinstance(item, EventAnswer):
                    screen.line(_event_line(item))
                elif (now := _progress(item)) != before:
                    screen.line(f"{name}: {now}", "cyan")
                    before = now
        except KeyboardInterrupt:
            return


def events(
    flow: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of this flow; of all without it.")] = None,
    after: Annotated[int, typer.Option("--after", metavar="ID", min=0, help="Those after this one.")] = 0,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=500, help="How many.")] = 100,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to flows: who, when and why."""
    with control_plane(server, state) as plane:
        page = plane.events(flow=flow, after=after, limit=limit)
    screen = Screen()
    if as_json:
        screen.data(page.model_dump(mode="json"))
        return
    rows = [[str(e.id), f"{e.at:%Y-%m-%d %H:%M:%SZ}", e.flow, e.event, e.who, e.why or ""] for e in page.events]
    screen.table(["id", "at", "flow", "event", "who", "why"], rows)


def revisions(flow: FlowArgument, server: ServerOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show a created flow's definitions, the newest first: who changed it, when and why."""
    name, _ = name_of(flow)
    with control_plane(server, state) as plane:
        found = plane.revisions(name).revisions
    screen = Screen()
    if as_json:
        screen.data([r.model_dump(mode="json") for r in found])
    else:
        rows = [[str(r.revision), f"{r.at:%Y-%m-%d %H:%M:%SZ}", r.who, r.why or ""] for r in found]
        screen.table(["revision", "at", "who", "why"], rows)


def _definition(file: Path, name: str | None = None) -> dict[str, Any]:
    """What the file says; FlowInvalid, FlowChanged when it is of another flow than the one that was named."""
    from penstock.control.files import load

    loaded = load(file)
    if loaded.problems:
        raise FlowInvalid.of(str(file), list(loaded.problems))
    if name is not None and loaded.raw.get("name") != name:
        raise FlowChanged(
            f"{file} is of a flow named {loaded.raw.get('name')}, not {name}",
            remedy="Name the flow that the file is of, or none: the file says which it is.",
        )
    return loaded.raw


def _answer(flow: FlowAnswer, words: str, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        screen.data(flow.model_dump(mode="json"))
    else:
        screen.line(f"{flow.name}: {words}", "green")


def _next(flow: FlowAnswer) -> str:
    return "it is to run" if flow.wished == "running" else f"`penstock flow start {flow.name}` lets it run"


def _event_line(event: EventAnswer) -> str:
    why = f": {event.why}" if event.why else ""
    return f"{event.at:%H:%M:%S} {event.flow}: {event.event} by {event.who}{why}"


def _progress(flow: FlowAnswer) -> str:
    words = [flow.state, *([f"health {flow.health}"] if flow.health else [])]
    for one in flow.destinations:
        lag = f", {one.lag_seconds:.1f} s behind" if one.lag_seconds and one.lag_seconds >= 1 else ""
        words.append(f"{one.name} {one.state} at {one.position or 'nothing yet'}{lag}")
    return "; ".join(words)

"""The command line's frame: commands, exit codes, and how failures are shown."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    backfill,
    connectors,
    created,
    dead_letter,
    desired,
    doctor,
    flow,
    history,
    publication,
    server,
    settings,
    show,
    slot,
    steer,
    token,
    worker,
)
from penstock.cli.connection import profile_on_line
from penstock.cli.demo import command as demo
from penstock.cli.screen import Screen
from penstock.core.secret import mask
from penstock.embedded.cache import home_directory
from penstock.errors import ConnectorUnknown, FlowInvalid, PenstockError

FAILED, BAD_INPUT = 1, 2
PROFILE, SERVER = "PENSTOCK_PROFILE", "PENSTOCK_SERVER"
CODES = "Exit codes: 0 done, 1 failed, 2 bad input or usage."

app = typer.Typer(
    name="penstock",
    help=f"Change data capture on Apache Spark.\n\n{CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", short_help="Show changes moving, and prove that all arrived.")(demo.demo)
app.command("up", short_help="Run everything on this machine: API, ledger and flows.")(server.up)
app.command("server", short_help="Serve the API, and run each flow in its own process.")(server.server)
app.command("worker", short_help="Run one flow from a file, or a created one.")(worker.worker)
app.command("doctor", short_help="Check what a flow needs, with remedies.")(doctor.doctor)
app.command("connectors", short_help="List connectors and their options.")(connectors.connectors)
app.command("config", short_help="Show every setting, and where it comes from.")(settings.config)
desired.add_to(app)
created.add_to(flow.app)
history.add_to(flow.app)
steer.add_to(flow.app)
show.add_to(flow.app)
app.add_typer(
    flow.app,
    name="flow",
    short_help="Flows: create, update, start, pause, resume, stop, run, show, list, watch, delete, validate, …",
)
app.add_typer(publication.app, name="publication", short_help="The flow's publication: list, add, remove, sync, discover.")
app.add_typer(dead_letter.app, name="dead-letter", short_help="Changes that were set aside: list, show, replay, discard.")
app.add_typer(token.app, name="token", short_help="Tokens for a server's API: create, list, revoke.")
app.command("audit", short_help="Who asked for what, and what became of it.")(token.audit)
app.add_typer(backfill.app, name="backfill", short_help="Load tables while the flow streams: list, show, pause, resume, cancel.")
app.add_typer(slot.app, name="slot", short_help="Replication slots: list, show, drop.")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def frame(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", envvar="PENSTOCK_DEBUG", help="Show tracebacks.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            envvar="PENSTOCK_PROFILE",
            help="The server of that name in config.yaml of PENSTOCK_HOME.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Options that stand before the command; they are read where a failure is shown."""


def run(arguments: Sequence[str]) -> int:
    """Runs a command line to its exit code; no failure that is expected shows a traceback."""
    debug = "--debug" in arguments or os.environ.get("PENSTOCK_DEBUG", "") not in ("", "0", "false")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # --debug may stand anywhere: who adds it does so at the end of a line that has just failed.
    words, profile = _without_profile([word for word in arguments if word != "--debug"])
    try:
        try:
            with settings.from_file(), _chosen(profile):
                app(args=words, prog_name="penstock")
        finally:
            # Now, while somebody can answer: at the interpreter's end a closed pipe would be complained about.
            sys.stdout.flush()
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else FAILED if ended.code else 0
    except BrokenPipeError:
        # The reader of our output has gone; what Python flushes at its end must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except PenstockError as error:
        if debug:
            traceback.print_exc()
        Screen(sys.stderr).error(error)
        return BAD_INPUT if isinstance(error, FlowInvalid | ConnectorUnknown) else FAILED
    except Exception as error:
        _show_unexpected(error, debug)
        return FAILED


def _without_profile(words: list[str]) -> tuple[list[str], str | None]:
    """The line without --profile, which may stand anywhere, and what it names."""
    for place, word in enumerate(words):
        if word == "--":
            break
        if word == "--profile" and place + 1 < len(words):
            return [*words[:place], *words[place + 2 :]], words[place + 1]
        if word.startswith("--profile="):
            return [*words[:place], *words[place + 1 :]], word.partition("=")[2]
    return words, None


@contextmanager
def _chosen(profile: str | None) -> Iterator[None]:
    """Has commands use the profile as if the environment named it, and neither server nor token of another."""
    before = {name: os.environ.get(name) for name in (PROFILE, SERVER)}
    if profile is not None:
        os.environ[PROFILE] = profile
        os.environ.pop(SERVER, None)
    on_line = profile_on_line.set(profile is not None)
    try:
        yield
    finally:
        profile_on_line.reset(on_line)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _show_unexpected(error: Exception, debug: bool) -> None:
    screen = Screen(sys.stderr)
    if debug:
        traceback.print_exc()
        return
    kept = _keep_trace(error)
    where = f"the traceback is in {kept}" if kept else "--debug shows the traceback"
    screen.line(f"unexpected: {type(error).__name__}: {error} ({where})", "red")


def _keep_trace(error: Exception) -> Path | None:
    path = home_directory() / "logs" / "penstock.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(mask("".join(traceback.format_exception(error))) + "\n")
    except OSError:
        return None
    return path

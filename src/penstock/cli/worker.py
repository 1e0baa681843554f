"""`penstock worker`: one flow in its own process."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.files import StateOption, named_flow, state_directory
from penstock.cli.screen import Screen
from penstock.cli.settings import MasterOption, PropertyOption, WireEnforceOption, WireFormatOption, heed
from penstock.cli.stopping import Running, stopping
from penstock.core.position import parse_lsn
from penstock.core.secret import has_reference
from penstock.errors import LedgerUnusable


class Level(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Mode(StrEnum):
    """What a run does."""

    cdc = "cdc"
    backfill = "backfill"


def worker(
    context: typer.Context,
    flow: Annotated[
        str,
        typer.Option("--flow", metavar="FILE|NAME", help="The flow file, or the name of a created flow.", show_default=False),
    ],
    state: StateOption = None,
    max_empty_reads: Annotated[
        int | None,
        typer.Option(
            "--max-empty-reads", metavar="N", min=1, help="End with 0 after N looks that found nothing left.", show_default=False
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Refuse at once when another worker runs the flow, instead of waiting for its turn.")
    ] = False,
    start_lsn: Annotated[
        str | None,
        typer.Option(
            "--start-lsn",
            metavar="LSN",
            help="Deliver again from the journal what came after a position; a flow that has no journal yet begins there.",
            show_default=False,
        ),
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option("--destination", metavar="NAME", help="With --start-lsn: only to this destination.", show_default=False),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="cdc runs the flow; backfill only finishes its loads, the first one included, and ends."),
    ] = Mode.cdc,
    resolve_staging: Annotated[
        bool,
        typer.Option("--resolve-staging", help="Once no load is open, merge staging tables as `flow resolve-staging` does."),
    ] = False,
    spark_master: MasterOption = None,
    spark_conf: PropertyOption = None,
    wire_format: WireFormatOption = None,
    wire_enforce: WireEnforceOption = False,
    level: Annotated[Level, typer.Option("--log-level", help="How much is logged.")] = Level.info,
) -> None:
    """Run one flow from a file, or one that was created, until SIGTERM or Ctrl-C; SIGHUP reads its definition again.

    While another worker runs the flow this one waits, and carries on when that has ended or stands still.

    --start-lsn is for one run: a worker that is started with it again delivers again. It is refused, with the reason, when
    neither journal nor server has the position any more.

    --mode backfill loads a new flow's tables, whatever `snapshot` says, or finishes the loads that are open; the flow streams
    meanwhile, and goes on from there with its next start. `penstock backfill` asks for loads.

    Exit codes: 0 stopped or nothing left, 1 failed, 2 the flow file has problems.
    """
    from penstock.engine.replaying import Replay
    from penstock.observe import log

    if destination is not None and start_lsn is None:
        raise typer.BadParameter("goes with --start-lsn", param_hint="--destination")
    heed(context, spark_master, spark_conf, wire_format, wire_enforce)
    replay = Replay(_position(start_lsn), destination) if start_lsn is not None else None
    home = state_directory(state)
    found = named_flow(flow, home)
    definition = found.read()
    path = home / "logs" / ("worker.log" if found.file is not None else f"worker-{definition.name}.log")
    try:
        log.configure(level.value, path)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        remedy = "Mend its rights, or choose another directory with --state."
        raise LedgerUnusable(f"The state directory {home} cannot be written: {reason}.", remedy=remedy) from error
    # Only now: a flow file with problems is answered without waiting for Spark's libraries.
    from penstock.engine.worker import Worker

    # A secret behind a reference may be changed while the flow runs.
    refers = found.file is None or has_reference(found.file.read_text(errors="replace"))
    asked = {"replay": replay, "loads_only": mode is Mode.backfill, "resolves": resolve_staging}
    run = Worker(definition, home, reload=found.read, refers=refers, **asked)  # type: ignore[arg-type]
    on_terminal = os.isatty(0)

    def hear(*_: object) -> None:
        """A daemon's habit is to read its file again; a terminal that is closed under us wants the end."""
        (run.stop if on_terminal and not os.isatty(0) else run.reload)()

    signal.signal(signal.SIGHUP, hear)

    def stop() -> None:
        Screen(sys.stderr).line("stopping: the running epochs are finished first; a second signal ends at once")
        run.stop()

    with stopping(stop):
        Running("worker", lambda: run.run(max_empty_reads, wait=not no_wait)).wait()


def _position(text: str) -> int:
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--start-lsn") from error

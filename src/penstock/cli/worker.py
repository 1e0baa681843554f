"""`penstock worker`: one flow in its own process."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.files import FlowOption, StateOption, running_flow, state_directory
from penstock.cli.screen import Screen
from penstock.cli.stopping import Running, stopping
from penstock.core.secret import has_reference
from penstock.errors import LedgerUnusable


class Level(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def worker(
    flow: FlowOption,
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
    level: Annotated[Level, typer.Option("--log-level", help="How much is logged.")] = Level.info,
) -> None:
    """Run one flow from a file, with a SQLite ledger, until SIGTERM or Ctrl-C; SIGHUP reads the file again.

    While another worker runs the flow this one waits, and carries on when that has ended or stands still.

    Exit codes: 0 stopped or nothing left, 1 failed, 2 the flow file has problems.
    """
    from penstock.observe import log

    definition = running_flow(flow)
    home = state_directory(state)
    path = home / "logs" / "worker.log"
    try:
        log.configure(level.value, path)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        remedy = "Mend its rights, or choose another directory with --state."
        raise LedgerUnusable(f"The state directory {home} cannot be written: {reason}.", remedy=remedy) from error
    # Only now: a flow file with problems is answered without waiting for Spark's libraries.
    from penstock.engine.worker import Worker

    # A secret behind a reference may be changed while the flow runs.
    refers = has_reference(flow.read_text(errors="replace"))
    run = Worker(definition, home, reload=lambda: running_flow(flow), refers=refers)
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

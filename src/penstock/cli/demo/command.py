"""`penstock demo`: shows changes moving from a private PostgreSQL to DuckDB and Parquet, and proves that all arrived."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.screen import Screen
from penstock.cli.stopping import stopping
from penstock.errors import DestinationUnwritable

DEFAULT_SECONDS = 30


def demo(
    seconds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"End after N seconds; at a terminal until Ctrl-C, else {DEFAULT_SECONDS}.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float, typer.Option(metavar="R", min=1, max=5000, help="Transactions per second of the load.")] = 200,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep everything in this new directory: data, journal, ledger, logs.", show_default=False
        ),
    ] = None,
) -> None:
    """Show changes moving: a private PostgreSQL with a small shop and a load on it, to DuckDB and Parquet.

    At the end source and DuckDB are compared row by row. Exit codes: 0 equal, 1 not equal or failed.
    """
    screen = Screen()
    if seconds is None and not screen.is_terminal:
        seconds = DEFAULT_SECONDS
    # Only now: the rest of the command line starts without a server's and Spark's libraries.
    from penstock.cli.demo.tour import Tour
    from penstock.observe import log

    asked = threading.Event()
    with stopping(asked.set), _directory(keep) as directory:
        log.configure("info", directory / "logs" / "demo.log", console=False)
        equal = Tour(screen, directory, asked).run(seconds, rate)
    if not equal:
        raise typer.Exit(1)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """The demo's directory; without `keep` only the results stay in it."""
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    else:
        directory = keep.expanduser().absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            occupied = any(directory.iterdir())
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise DestinationUnwritable(
                f"{directory} cannot be used: {reason}.", remedy="Choose another directory for --keep."
            ) from error
        if occupied:
            raise DestinationUnwritable(f"{directory} is not empty.", remedy="Name a directory that is new or empty.")
    yield directory
    if keep is None:
        shutil.rmtree(directory / "state", ignore_errors=True)

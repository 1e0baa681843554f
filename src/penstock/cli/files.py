"""Arguments that several commands share, and the flow file behind them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.embedded.cache import home_directory
from penstock.errors import FlowInvalid

if TYPE_CHECKING:
    from penstock.core.flow import Flow

FlowOption = Annotated[Path, typer.Option("--flow", metavar="FILE", help="The flow file, YAML or JSON.", show_default=False)]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        # Before the server's, which is told apart by it.
        is_eager=True,
        help="Ledger (unless PENSTOCK_DATABASE_URL), journals and logs; PENSTOCK_HOME, else ~/.penstock.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with JSON for programs.")]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str) -> None:
    """Goes on only after a yes; without anybody to answer the command ends with 1 and nothing done."""
    # On stderr: stdout may be read by a program.
    typer.confirm(question, abort=True, err=True)


def state_directory(given: Path | None) -> Path:
    """The state directory: the option, else PENSTOCK_HOME, else ~/.penstock."""
    return (given or home_directory()).expanduser().absolute()


def running_flow(file: Path) -> Flow:
    """The file's flow as it runs here, references resolved; FlowInvalid with every problem at once."""
    from penstock.control.files import load
    from penstock.control.validate import validate

    loaded = load(file)
    flow, problems, _ = validate(loaded.raw, strict=True)
    problems = [*loaded.problems, *problems]
    if flow is None or problems:
        raise FlowInvalid.of(os.fspath(file), problems)
    return flow


@dataclass(frozen=True)
class NamedFlow:
    """A flow that was given by its file, or by its name in the ledger."""

    file: Path | None
    read: Callable[[], Flow]
    """The flow as it runs here, from its definition as that is now; FlowInvalid, FlowUnknown."""


def is_there(given: str) -> bool:
    """Whether there is a file of that path; what no file system could hold is none."""
    try:
        return Path(given).is_file()
    except (OSError, ValueError):
        return False


def named_flow(given: str, home: Path) -> NamedFlow:
    """The flow of that file or, where there is none of that name, the one that was created under it."""
    path = Path(given)
    if is_there(given) or not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", given):
        return NamedFlow(path, lambda: running_flow(path))
    return NamedFlow(None, lambda: _created(given, home))


def _created(name: str, home: Path) -> Flow:
    from penstock.control.lifecycle import existing_ledger
    from penstock.control.stored import stored_flow
    from penstock.ledger.ledger import Ledger

    ledger = Ledger(existing_ledger(name, home))
    try:
        return stored_flow(ledger, name)
    finally:
        ledger.close()

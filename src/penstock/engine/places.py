"""Where a flow's local state lies, and the lock by which one process at a time acts on it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.core.flow import Flow
from penstock.errors import FlowRunning, LedgerUnusable


def journal_directory(flow: Flow, state: Path) -> Path:
    """The flow's journal."""
    return Path(flow.config.journal.url) if flow.config.journal.url else state / "journal" / flow.name


def ledger_path(state: Path) -> Path:
    """The ledger of every flow of the state directory."""
    return state / "ledger.db"


def run_directory(flow: Flow, state: Path) -> Path:
    """What a run of the flow keeps only while it lasts."""
    return state / "run" / flow.name


def staging_directory(flow: Flow, state: Path) -> Path:
    """Where the flow's destinations lay out what is not committed yet."""
    return state / "staging" / flow.name


def hold(state: Path, flow: str) -> int:
    """Makes this process the only one that acts on the flow from this state directory, until the file is closed."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(state / f"{flow}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LedgerUnusable(f"the state directory {state} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 32).decode(errors="replace").strip()
        os.close(file)
        raise FlowRunning(f"flow {flow} is already run by process {holder or '?'} from {state}", flow=flow) from None
    os.truncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file

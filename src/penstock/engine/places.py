"""Where a flow's state lies."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from penstock.core.flow import Flow
from penstock.ledger.address import SETTING, LedgerAddress


def journal_directory(flow: Flow, state: Path) -> Path:
    """The flow's journal."""
    return Path(flow.config.journal.url) if flow.config.journal.url else state / "journal" / flow.name


def ledger_address(state: Path, url: str | None = None) -> LedgerAddress:
    """The ledger: what `url` or else PENSTOCK_DATABASE_URL names, else the state directory's own. LedgerUnusable."""
    given = url or os.environ.get(SETTING)
    return LedgerAddress.parse(given) if given else LedgerAddress(state / "ledger.db")


def home(state: Path) -> str:
    """What tells this state from that of any other installation, for people: a ledger that all share, or a machine's file."""
    address = ledger_address(state)
    return str(address) if address.path is None else f"{socket.gethostname()}:{address.path.absolute()}"


def run_directory(flow: Flow, state: Path) -> Path:
    """What a run of the flow keeps only while it lasts."""
    return state / "run" / flow.name


def staging_directory(flow: Flow, state: Path) -> Path:
    """Where the flow's destinations lay out what is not committed yet."""
    return state / "staging" / flow.name

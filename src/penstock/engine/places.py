"""Where a flow's state lies."""

from __future__ import annotations

import os
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


def run_directory(flow: Flow, state: Path) -> Path:
    """What a run of the flow keeps only while it lasts."""
    return state / "run" / flow.name


def staging_directory(flow: Flow, state: Path) -> Path:
    """Where the flow's destinations lay out what is not committed yet."""
    return state / "staging" / flow.name

"""Where a flow's local state lies."""

from __future__ import annotations

from pathlib import Path

from penstock.core.flow import Flow


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

"""Answers about the upkeep of flows: definitions read again, servers cleaned up, places moved back, tables released."""

from __future__ import annotations

from penstock.control.answers import Answer


class ReloadAnswer(Answer):
    """What the flow's worker made of its definition."""

    flow: str
    reloaded: bool
    """False when it was refused, and the flow goes on as before, or when the worker has not answered yet."""
    answer: str | None
    """What has changed, or why not; null when the worker has not answered yet."""


class ServerObject(Answer):
    """Something on the source's server."""

    kind: str
    name: str
    why: str | None
    """Why it stays, if it does."""


class CleanupAnswer(Answer):
    """What became of what a flow has made."""

    flow: str
    removed: list[ServerObject]
    stays: list[ServerObject]
    state_removed: bool
    """Whether there were journal or checkpoints, which are gone."""


class RewindAnswer(Answer):
    """A destination that is sent again what it has had."""

    flow: str
    destination: str
    before: str
    """Where it was."""
    after: str
    """After which position it goes on."""


class ReleaseAnswer(Answer):
    """A table that leaves its quarantine."""

    flow: str
    destination: str
    table: str
    since: str
    """From which position on it has missed changes."""
    missed: int
    skipped: bool
    """Whether what it has missed stays missing."""


class ResolvedTable(Answer):
    """What became of one staging table."""

    destination: str
    table_schema: str
    table: str
    outcome: str
    """appended, replaced, left for its owner, or loading, which is not resolved yet."""
    rows: int
    removed: int


class ResolutionAnswer(Answer):
    """What became of a flow's staging tables."""

    flow: str
    answered: bool
    """False when the worker is still at it."""
    tables: list[ResolvedTable]

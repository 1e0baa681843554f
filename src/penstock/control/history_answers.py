"""What histories of flows are answered with."""

from __future__ import annotations

import datetime as dt

from penstock.control.answers import Answer


class CheckpointAnswer(Answer):
    """How far a destination has come."""

    destination: str
    position: str
    removed: bool
    """Whether the flow has this destination no longer."""


class EpochAnswer(Answer):
    """What moved a destination's checkpoint."""

    destination: str
    epoch: int
    after: str
    """Where the checkpoint was."""
    position: str
    """Where it has been since."""
    changes: int
    generation: int
    planned_at: dt.datetime
    closed_at: dt.datetime


class CheckpointList(Answer):
    """The checkpoints of a flow."""

    checkpoints: list[CheckpointAnswer]
    history: list[EpochAnswer]
    """What moved them, the newest first, as many as were asked for."""


class ColumnAnswer(Answer):
    """A column of a table."""

    name: str
    type: str
    """In the source's own words."""
    arrow: str
    """The Arrow type that its values have."""


class SchemaAnswer(Answer):
    """One version of a table."""

    table_schema: str
    table: str
    version: int
    since: str | None
    """The position of the first transaction that has it; null when that is older than the journal."""
    key: list[str]
    columns: list[ColumnAnswer]


class SchemaList(Answer):
    """Versions of tables, in the order of the log."""

    schemas: list[SchemaAnswer]

"""Answers about what a flow has its source do: backfills, the publication, slots."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.control.answers import Answer


class Progress(Answer):
    """How far something has been loaded."""

    chunks: int
    read: int
    """Chunks that were read."""
    rows: int
    bytes: int
    percent: float
    delivered: dict[str, int]
    """By destination, how many chunks it has."""


class TableProgress(Progress):
    """One table of a backfill."""

    table: str
    state: dict[str, str]
    """By destination."""


class BackfillSummary(Progress):
    """A backfill in a list, the flow's first load included."""

    id: int
    kind: str
    state: str
    """requested, reading, delivering, done, cancelled or failed; paused when that is wished."""
    reason: str | None
    asked_by: str
    asked_at: dt.datetime
    spec: dict[str, Any]
    """What was asked for: tables, where, destinations."""
    seconds: float
    rows_per_second: int
    bytes_per_second: int
    seconds_left: float | None
    table_count: int


class BackfillAnswer(BackfillSummary):
    """A backfill with each of its tables."""

    tables: list[TableProgress]


class BackfillList(Answer):
    """Some of a flow's backfills, the newest first."""

    backfills: list[BackfillSummary]
    next: int | None = None
    """What to send as `before` for older ones; null on the last page."""


class PublishedTableAnswer(Answer):
    """A table that the publication sends."""

    table_schema: str
    table: str
    by: str
    """Why it is sent: named, schema, or all."""
    columns: list[str]
    """The columns of a column list; empty when every column is sent."""
    filter: str | None
    asked: bool
    """Whether the flow's patterns name it."""


class PublicationAnswer(Answer):
    """A flow's publication."""

    name: str
    owner: str
    made_by_flow: bool
    all_tables: bool
    schemas: list[str]
    operations: list[str]
    via_root: bool
    tables: list[PublishedTableAnswer]


class CandidateAnswer(Answer):
    """A table that is or could be published."""

    table_schema: str
    table: str
    partitioned: bool
    key: list[str]
    identity: str
    rows: int | None
    """The planner's estimate; null where the table was never analysed."""
    bytes: int
    published: bool
    asked: bool
    problem: str
    """Why it cannot be published; empty when it can."""
    remedy: str


class CandidateList(Answer):
    """Tables that are or could be published."""

    publication: str
    tables: list[CandidateAnswer]
    notes: list[str]


class PublicationChange(Answer):
    """What a command has changed in a publication, and what it had no need to."""

    publication: str
    dry_run: bool
    created: bool
    added: list[str]
    dropped: list[str]
    unchanged: list[str]
    notes: list[str]
    backfill: int | None = None
    """The number of the backfill that loads the new tables' rows."""


class SlotAnswer(Answer):
    """A replication slot as the server has it now."""

    name: str
    own: bool
    """Whether it is the flow's."""
    kind: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    pid: int | None
    reader: str
    """Who reads from it, as far as the flow's role may know."""
    confirmed: str | None
    """Up to where the reader has confirmed."""
    restart: str | None
    """From where the server keeps its log for the slot."""
    lag_bytes: int | None
    retained_bytes: int | None
    safe_wal_size: int | None
    """Bytes that may still be written before the slot is in danger; null when there is no limit, or it is lost."""
    status: str | None
    two_phase: bool
    failover: bool | None
    """Null before PostgreSQL 17."""
    synced: bool | None
    idle_since: str | None
    reason: str | None
    """Why the server has invalidated it."""


class SlotList(Answer):
    """Every slot of the source's server."""

    own: str
    """The name of the flow's own, whether it is there or not."""
    slots: list[SlotAnswer]


class SlotDropped(Answer):
    """A slot that is gone."""

    slot: SlotAnswer
    """As it was."""
    lost: str
    """What is lost with it."""

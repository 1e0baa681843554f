"""Answers: the shapes in which the control plane speaks, the same through the API, the client and the command line."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["viewer", "operator", "admin"]
Health = Literal["ok", "lagging", "degraded", "stalled"]


class Answer(BaseModel):
    """The base of every answer; a field that a newer server adds is no error."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="ignore")


class ProblemAnswer(Answer):
    """One thing wrong in a definition."""

    path: str
    message: str
    remedy: str


class Failure(Answer):
    """Why a request failed, as RFC 9457 has it, with the code and the remedy of the error tree."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    """The stable name of the error."""
    remedy: str
    """What to do about it."""
    retry: Literal["timed", "manual", "never"]
    """Whether trying again helps: after a while, after somebody has done something, or never."""
    problems: list[ProblemAnswer] = []


class EventAnswer(Answer):
    """Something that happened to a flow."""

    id: int
    flow: str
    at: dt.datetime
    event: str
    who: str
    why: str | None
    generation: int | None


class FlowSummary(Answer):
    """A flow in a list."""

    name: str
    state: str
    """created, starting, running, paused, stopped or failed; silent when its worker gives no sign of life, gone when it ended
    without a word; deleting until all of it is gone."""
    health: Health | None
    """How it goes; null while it is not meant to run."""
    reason: str | None
    """Why it is in that state."""
    wished: str
    """What operators want of it: running, paused, stopped, once."""
    wished_by: str | None
    wished_at: dt.datetime | None
    worker: str | None
    """Who runs it now."""
    labels: dict[str, str]
    etag: str | None
    """Names the definition's revision; null for a flow that runs from a file."""
    lag_seconds: float | None
    """The greatest of its destinations'."""


class DestinationAnswer(Answer):
    """One destination of a flow."""

    name: str
    type: str
    state: str
    position: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    rows_per_second: float | None
    rows: int | None
    attempts: int
    error: dict[str, Any] | None
    counts: dict[str, int]


class JournalAnswer(Answer):
    """A flow's journal."""

    bytes: int
    mark: str | None
    """Up to where it is complete."""
    oldest: str | None
    """From where it can still be read."""


class AcknowledgementAnswer(Answer):
    """What the source was told, what it may be told, and why not more."""

    told: str | None
    allowed: str | None
    held_by: list[str]
    reason: str | None


class OpenLoad(Answer):
    """A load that is not over: the flow's first, of tables that join, or a backfill."""

    id: int
    kind: str
    state: str
    reason: str | None
    table_count: int
    percent: float
    """How much of what it expects is read."""
    rows: int
    rows_per_second: int
    seconds_left: float | None


class FlowAnswer(FlowSummary):
    """A flow whole."""

    definition: dict[str, Any] | None
    """As it was sent, references unresolved; null for a flow that runs from a file."""
    revision: int | None
    created_at: dt.datetime | None
    created_by: str | None
    updated_at: dt.datetime | None
    updated_by: str | None
    destinations: list[DestinationAnswer]
    journal: JournalAnswer
    acknowledgement: AcknowledgementAnswer
    source: dict[str, Any] | None
    """What the worker's last look at the source saw."""
    events: list[EventAnswer]
    loads: list[OpenLoad] = []
    """Those that are not over."""
    applied: str | None = None
    """After an update: what the running worker made of it."""


class FlowPage(Answer):
    """Some of the flows, in name order."""

    flows: list[FlowSummary]
    next: str | None
    """What to send as `after` for the next page; null on the last one."""


class RevisionAnswer(Answer):
    """A definition as it once was."""

    revision: int
    at: dt.datetime
    who: str
    why: str | None
    definition: dict[str, Any]


class RevisionList(Answer):
    """The newest revisions of a flow, the newest first."""

    revisions: list[RevisionAnswer]


class EventPage(Answer):
    """Events, the newest last."""

    events: list[EventAnswer]
    last: int
    """What to send as `after` for those that come next."""


class CommandAnswer(Answer):
    """What a command has done."""

    flow: str
    wished: str
    by: str | None
    why: str | None
    changed: bool
    """False when the flow was already wished so."""
    state: str
    reason: str | None
    worker: str | None
    settled: bool
    """Whether it has come true; if not, it is under way, or nobody is there to do it."""


class LetterAnswer(Answer):
    """A change that was set aside."""

    id: int
    destination: str
    table_schema: str
    table: str
    key: dict[str, Any] | None
    """None where there is none, and for who may only look at flows."""
    op: str
    position: str
    ordinal: int
    state: str
    code: str
    reason: str
    remedy: str
    attempts: int
    set_aside_at: dt.datetime


class LetterWhole(LetterAnswer):
    """A letter with its change."""

    change: dict[str, Any] | None
    unrepresentable: dict[str, str | None]
    """By column, what its type cannot hold."""


class LetterPage(Answer):
    """Some of a flow's letters, by number."""

    letters: list[LetterAnswer]
    next: int | None


class LettersDone(Answer):
    """Which letters a command has reached."""

    done: list[int]
    left: list[int]
    """Those that were asked for already, or are being delivered now."""


class ConnectorSummary(Answer):
    """A connector."""

    kind: Literal["source", "transform", "format", "destination"]
    name: str
    summary: str
    extra: str | None
    capabilities: dict[str, Any]


class ConnectorAnswer(ConnectorSummary):
    """A connector with its options."""

    options: dict[str, Any]
    """JSON Schema of the options."""


class ConnectorList(Answer):
    """Every installed connector."""

    connectors: list[ConnectorSummary]


class ValidationAnswer(Answer):
    """What is wrong with a definition, all at once."""

    valid: bool
    problems: list[ProblemAnswer]
    notes: list[ProblemAnswer]


class FindingAnswer(Answer):
    """One line of an examination."""

    subject: str
    ok: bool
    detail: str
    remedy: str
    code: str


class FindingGroup(Answer):
    """The findings about one part of a flow."""

    title: str
    ok: bool
    findings: list[FindingAnswer]


class ExaminationAnswer(Answer):
    """What stands in the way of a flow where it runs."""

    flow: str
    ok: bool
    groups: list[FindingGroup]


class TokenAnswer(Answer):
    """A token without its secret."""

    id: str
    name: str
    role: Role
    created_at: dt.datetime
    created_by: str
    revoked_at: dt.datetime | None


class TokenMade(TokenAnswer):
    """A new token; its text is shown this once."""

    token: str


class TokenList(Answer):
    """Every token."""

    tokens: list[TokenAnswer]


class AuditAnswer(Answer):
    """One thing that somebody asked for."""

    id: int
    at: dt.datetime
    who: str
    role: str
    action: str
    flow: str | None
    outcome: str
    detail: str | None


class AuditPage(Answer):
    """Records, the newest first."""

    records: list[AuditAnswer]
    next: int | None


class ServerAnswer(Answer):
    """The server itself."""

    version: str
    runner: str | None
    """Who starts and watches workers on this ledger; null when nobody does."""
    launcher: str | None
    """How this server runs flows, if it does: process, or embedded."""
    spark: str | None
    """With the embedded launcher: waiting, starting, running or failed."""
    flows: dict[str, int]
    """How many flows are in which state."""


class HealthAnswer(Answer):
    """Whether the server lives, or is ready."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None

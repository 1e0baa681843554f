"""What may be asked over gRPC: each message's fields, held to the limits that REST has for them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from penstock.control.flows import MOST
from penstock.control.histories import MOST as MOST_EPOCHS
from penstock.control.requests import (
    BackfillStart,
    CleanupRequest,
    FlowCreation,
    FlowUpdate,
    LetterChoice,
    Number,
    PublicationSync,
    Request,
    Rewinding,
    SlotChoice,
    StagingResolution,
    TableAddition,
    TableChoice,
    TableRelease,
    Why,
    Word,
)
from penstock.control.service import MOST_EVENTS

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
State = Literal["created", "starting", "running", "paused", "stopped", "failed", "silent", "gone", "deleting"]
Place = Annotated[int, Field(ge=0, le=2**53)]
Limit = Annotated[int, Field(ge=1, le=MOST)]
Etag = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Nothing(Request):
    """Nothing needs to be said."""


class FlowNamed(Request):
    """A flow."""

    name: Name


class FlowCreated(FlowCreation):
    """A flow to be created, with the key that makes repetitions one."""

    key: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,255}$")] | None = None


class FlowUpdated(FlowUpdate):
    """Another definition of a flow."""

    name: Name
    etag: Etag | None = None


class FlowReconfigured(FlowUpdated):
    """Another definition of a flow, which is paused meanwhile."""

    wait: Annotated[float, Field(ge=0, le=60)] = 60


class FlowCleaned(CleanupRequest):
    """What a flow has made, to be removed."""

    name: Name


class FlowDeleted(FlowNamed):
    """A flow to be deleted."""

    etag: Etag | None = None
    why: Why | None = None
    cleanup: bool = True


class FlowsListed(Request):
    """Which flows."""

    after: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,63}$")] = ""
    limit: Limit = 100
    labels: Annotated[str, StringConstraints(max_length=1000)] = ""
    states: list[State] = Field(default=[])


class Steering(FlowNamed):
    """A command for a flow."""

    why: Why | None = None
    wait: Annotated[float, Field(ge=0, le=60)] = 0


class Reloaded(FlowNamed):
    """A definition to be read again."""

    wait: Annotated[float, Field(ge=0, le=60)] = 60


class Rewound(Rewinding):
    """A destination of a flow to be sent again what it has had."""

    name: Name


class TableReleased(TableRelease):
    """A quarantined table of a flow to be released."""

    name: Name


class StagingResolved(StagingResolution):
    """Staging tables of a flow to be merged."""

    name: Name
    wait: Annotated[float, Field(ge=0, le=60)] = 60


class RevisionsListed(FlowNamed):
    """Which revisions."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20


class CheckpointsListed(FlowNamed):
    """Which checkpoints, and how much of their history."""

    destination: Name | None = None
    limit: Annotated[int, Field(ge=0, le=MOST_EPOCHS)] = 0


class SchemasListed(FlowNamed):
    """Which versions of tables."""

    table: Annotated[str, StringConstraints(max_length=255)] | None = None
    at: Annotated[str, StringConstraints(max_length=32)] | None = None


class EventsListed(Request):
    """Which events."""

    flow: Name | None = None
    after: Place = 0
    limit: Annotated[int, Field(ge=1, le=MOST_EVENTS)] = 100


class Watching(Request):
    """What to watch."""

    flow: Name | None = None
    after: Place | None = None
    seconds: Annotated[float, Field(gt=0, le=86400)] = 3600


class LettersListed(Request):
    """Which letters."""

    flow: Name
    destination: Word | None = None
    table: Word | None = None
    after: Place = 0
    limit: Limit = 100


class Numbered(Request):
    """A letter or a backfill of a flow."""

    flow: Name
    number: Number


class LettersChosen(LetterChoice):
    """Which letters of a flow."""

    flow: Name


class BackfillStarted(BackfillStart):
    """Tables of a flow to be read again."""

    flow: Name


class BackfillsListed(FlowNamed):
    """Which backfills of a flow."""

    before: Number | None = None
    limit: Limit = 100


class FlowTables(Request):
    """Tables of a flow; any when none is named."""

    flow: Name
    tables: list[Word] = Field(default=[], max_length=100)


class TablesChosen(TableChoice):
    """Tables of a flow's publication."""

    flow: Name


class TablesAdded(TableAddition):
    """Tables to be added to a flow's publication."""

    flow: Name


class PublicationSynced(PublicationSync):
    """A flow's publication to be brought in line."""

    flow: Name


class SlotChosen(SlotChoice):
    """A slot of a flow's server."""

    flow: Name


class ConnectorNamed(Request):
    """A connector."""

    kind: Literal["source", "transform", "format", "destination"]
    name: Annotated[str, StringConstraints(max_length=63)]


class TokenNamed(Request):
    """A token."""

    number: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]


class AuditListed(Request):
    """Which records."""

    before: Number | None = None
    limit: Limit = 100
    flow: Name | None = None

"""The control plane as its users see it, wherever it is: through a server, or in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from penstock.control.answers import (
    AuditPage,
    CommandAnswer,
    ConnectorAnswer,
    ConnectorList,
    EventAnswer,
    EventPage,
    ExaminationAnswer,
    FlowAnswer,
    FlowPage,
    LetterPage,
    LettersDone,
    LetterWhole,
    RevisionList,
    Role,
    ServerAnswer,
    TokenList,
    TokenMade,
    ValidationAnswer,
)
from penstock.control.backfill_service import BackfillCommand
from penstock.control.history_answers import CheckpointList, SchemaList
from penstock.control.lifecycle import Command
from penstock.control.requests import LetterChoice
from penstock.control.source_answers import (
    BackfillAnswer,
    BackfillList,
    CandidateList,
    PublicationAnswer,
    PublicationChange,
    SlotAnswer,
    SlotDropped,
    SlotList,
)
from penstock.control.upkeep_answers import CleanupAnswer, ReleaseAnswer, ReloadAnswer, ResolutionAnswer, RewindAnswer


class ControlPlane(Protocol):
    """Everything that may be asked; each method raises the error of the tree that says why not."""

    def create_flow(
        self, definition: Mapping[str, Any], *, start: bool = False, why: str | None = None, key: str | None = None
    ) -> FlowAnswer:
        """Keeps a new flow; repeated with the same key it is one creation."""

    def update_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None
    ) -> FlowAnswer:
        """Replaces the definition; RevisionStale when `etag` is another revision's."""

    def reconfigure_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None, wait: float = 60.0
    ) -> FlowAnswer:
        """Pauses the flow, replaces the definition, and resumes it, waiting for the worker as long as that."""

    def clean_up_flow(self, name: str, *, remove_state: bool = False) -> CleanupAnswer:
        """Removes what a stopped flow has made on its server; the definition stays."""

    def delete_flow(self, name: str, *, etag: str | None = None, why: str | None = None, cleanup: bool = True) -> None:
        """Removes a stopped flow and, by `cleanup`, what it made on its server."""

    def flow(self, name: str) -> FlowAnswer:
        """A flow whole."""

    def flows(self, *, after: str = "", limit: int = 100, labels: str = "", states: Sequence[str] = ()) -> FlowPage:
        """A page of flows in name order."""

    def command(self, command: Command, name: str, *, why: str | None = None, wait: float = 0.0) -> CommandAnswer:
        """start, pause, resume, stop or run; waits until it has come true, as long as that."""

    def reload(self, name: str, *, wait: float = 60.0) -> ReloadAnswer:
        """Has the flow's worker read its definition again."""

    def rewind(self, name: str, destination: str, to: str) -> RewindAnswer:
        """Has a destination sent again what it has had since a position."""

    def release(self, name: str, destination: str, table: str, *, skip_missed: bool = False) -> ReleaseAnswer:
        """Ends a table's quarantine."""

    def resolve_staging(
        self, name: str, destination: str | None = None, tables: Sequence[str] = (), *, wait: float = 60.0
    ) -> ResolutionAnswer:
        """Merges staging tables whose loads have ended."""

    def revisions(self, name: str, limit: int = 20) -> RevisionList:
        """The flow's definitions, the newest first."""

    def checkpoints(self, name: str, *, destination: str | None = None, limit: int = 0) -> CheckpointList:
        """How far each destination has come, and the newest epochs that brought it there."""

    def schemas(self, name: str, *, table: str | None = None, at: str | None = None) -> SchemaList:
        """Versions of the flow's tables, or those in force at a position."""

    def doctor(self, name: str) -> ExaminationAnswer:
        """What stands in the way of the flow."""

    def validate(self, definition: Mapping[str, Any]) -> ValidationAnswer:
        """Every problem of a definition."""

    def events(self, *, flow: str | None = None, after: int = 0, limit: int = 100) -> EventPage:
        """What happened after an event."""

    def watch(
        self, flow: str | None = None, *, after: int | None = None, seconds: float = 3600.0
    ) -> Iterator[EventAnswer | FlowAnswer]:
        """What happens from now on, or after an event; with a flow also its state and progress whenever they change."""

    def letters(
        self, flow: str, *, destination: str | None = None, table: str | None = None, after: int = 0, limit: int = 100
    ) -> LetterPage:
        """A page of dead letters."""

    def letter(self, flow: str, number: int) -> LetterWhole:
        """One letter with its change."""

    def replay(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Has letters delivered again."""

    def discard(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Removes letters for good."""

    def start_backfill(
        self, flow: str, tables: Sequence[str], *, where: str | None = None, destinations: Sequence[str] = ()
    ) -> BackfillAnswer:
        """Asks for tables to be read again while the flow streams."""

    def backfills(self, flow: str, *, before: int | None = None, limit: int = 100) -> BackfillList:
        """A page of the flow's backfills, the newest first."""

    def backfill(self, flow: str, number: int) -> BackfillAnswer:
        """One backfill with each of its tables."""

    def steer_backfill(self, command: BackfillCommand, flow: str, number: int) -> BackfillAnswer:
        """pause, resume or cancel."""

    def publication(self, flow: str) -> PublicationAnswer:
        """What the flow's publication sends."""

    def candidates(self, flow: str, patterns: Sequence[str] = ()) -> CandidateList:
        """Tables that are or could be published."""

    def add_tables(self, flow: str, tables: Sequence[str], *, snapshot: bool = False) -> PublicationChange:
        """Adds tables to the publication; with `snapshot` their rows are loaded first."""

    def remove_tables(self, flow: str, tables: Sequence[str]) -> PublicationChange:
        """Takes tables out of the publication."""

    def sync_publication(
        self, flow: str, mode: Literal["add", "sync"] | None = None, *, dry_run: bool = False
    ) -> PublicationChange:
        """Brings the publication in line with the flow's patterns."""

    def slots(self, flow: str) -> SlotList:
        """Every slot of the source's server."""

    def slot(self, flow: str, name: str | None = None) -> SlotAnswer:
        """One slot, the flow's own unless another is named."""

    def drop_slot(self, flow: str, name: str | None = None) -> SlotDropped:
        """Drops a slot that nobody reads from."""

    def connectors(self) -> ConnectorList:
        """Every connector that is installed there."""

    def connector(self, kind: str, name: str) -> ConnectorAnswer:
        """One connector with its options as JSON Schema."""

    def server(self) -> ServerAnswer:
        """What runs there."""

    def create_token(self, name: str, role: Role) -> TokenMade:
        """A new token."""

    def tokens(self) -> TokenList:
        """Every token, without its text."""

    def revoke_token(self, number: str) -> None:
        """Makes a token worthless."""

    def audit(self, *, before: int | None = None, limit: int = 100, flow: str | None = None) -> AuditPage:
        """Who asked for what."""

    def close(self) -> None:
        """Gives back connections."""

"""The control plane in this process, on a state directory: what a command uses when no server is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

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
from penstock.control.caller import Caller
from penstock.control.history_answers import CheckpointList, SchemaList
from penstock.control.lifecycle import Command, operator
from penstock.control.requests import (
    BackfillStart,
    CleanupRequest,
    FlowCreation,
    FlowUpdate,
    LetterChoice,
    PublicationSync,
    Rewinding,
    SlotChoice,
    TableAddition,
    TableChoice,
    TableRelease,
    TokenCreation,
)
from penstock.control.service import Service
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
from penstock.control.watching import watch


class LocalPlane:
    """The service layer for whoever may write the state directory, and so may do everything."""

    def __init__(self, state: Path, secret_files: Sequence[Path] = ()) -> None:
        self._service = Service(state, secret_files)
        self._caller = Caller(operator(), "admin")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the ledger."""
        self._service.close()

    def create_flow(
        self, definition: Mapping[str, Any], *, start: bool = False, why: str | None = None, key: str | None = None
    ) -> FlowAnswer:
        """Keeps a new flow; repeated with the same key it is one creation."""
        creation = FlowCreation(definition=dict(definition), start=start, why=why)
        return self._service.flows.create(self._caller, creation, key)[0]

    def update_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None
    ) -> FlowAnswer:
        """Replaces the definition; RevisionStale when `etag` is another revision's."""
        return self._service.flows.update(self._caller, name, FlowUpdate(definition=dict(definition), why=why), etag)

    def reconfigure_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None, wait: float = 60.0
    ) -> FlowAnswer:
        """Pauses the flow, replaces the definition, and resumes it, waiting for the worker as long as that."""
        return self._service.flows.reconfigure(self._caller, name, FlowUpdate(definition=dict(definition), why=why), etag, wait)

    def clean_up_flow(self, name: str, *, remove_state: bool = False) -> CleanupAnswer:
        """Removes what a stopped flow has made on its server; the definition stays."""
        return self._service.flows.cleanup(self._caller, name, CleanupRequest(remove_state=remove_state))

    def delete_flow(self, name: str, *, etag: str | None = None, why: str | None = None, cleanup: bool = True) -> None:
        """Removes a stopped flow and, by `cleanup`, what it made on its server."""
        self._service.flows.delete(self._caller, name, etag=etag, why=why, cleanup=cleanup)

    def flow(self, name: str) -> FlowAnswer:
        """A flow whole."""
        return self._service.flows.find(self._caller, name)

    def flows(self, *, after: str = "", limit: int = 100, labels: str = "", states: Sequence[str] = ()) -> FlowPage:
        """A page of flows in name order."""
        return self._service.flows.page(self._caller, after=after, limit=limit, labels=labels, states=states)

    def command(self, command: Command, name: str, *, why: str | None = None, wait: float = 0.0) -> CommandAnswer:
        """start, pause, resume, stop or run; waits until it has come true, as long as that."""
        return self._service.commands.give(self._caller, command, name, why=why, patience=wait)

    def reload(self, name: str, *, wait: float = 60.0) -> ReloadAnswer:
        """Has the flow's worker read its definition again."""
        return self._service.upkeep.reload(self._caller, name, patience=wait)

    def rewind(self, name: str, destination: str, to: str) -> RewindAnswer:
        """Has a destination sent again what it has had since a position."""
        return self._service.upkeep.rewind(self._caller, name, Rewinding(destination=destination, to=to))

    def release(self, name: str, destination: str, table: str, *, skip_missed: bool = False) -> ReleaseAnswer:
        """Ends a table's quarantine."""
        asked = TableRelease(destination=destination, table=table, skip_missed=skip_missed)
        return self._service.upkeep.release(self._caller, name, asked)

    def resolve_staging(
        self, name: str, destination: str | None = None, tables: Sequence[str] = (), *, wait: float = 60.0
    ) -> ResolutionAnswer:
        """Merges staging tables whose loads have ended."""
        return self._service.upkeep.resolve(self._caller, name, destination, list(tables), patience=wait)

    def revisions(self, name: str, limit: int = 20) -> RevisionList:
        """The flow's definitions, the newest first."""
        return self._service.flows.revisions(self._caller, name, limit)

    def checkpoints(self, name: str, *, destination: str | None = None, limit: int = 0) -> CheckpointList:
        """How far each destination has come, and the newest epochs that brought it there."""
        return self._service.histories.checkpoints(self._caller, name, destination=destination, limit=limit)

    def schemas(self, name: str, *, table: str | None = None, at: str | None = None) -> SchemaList:
        """Versions of the flow's tables, or those in force at a position."""
        return self._service.histories.schemas(self._caller, name, table=table, at=at)

    def doctor(self, name: str) -> ExaminationAnswer:
        """What stands in the way of the flow."""
        return self._service.catalog.doctor(self._caller, name)

    def validate(self, definition: Mapping[str, Any]) -> ValidationAnswer:
        """Every problem of a definition."""
        return self._service.catalog.validate(self._caller, definition)

    def events(self, *, flow: str | None = None, after: int = 0, limit: int = 100) -> EventPage:
        """What happened after an event."""
        return self._service.events(self._caller, flow=flow, after=after, limit=limit)

    def watch(
        self, flow: str | None = None, *, after: int | None = None, seconds: float = 3600.0
    ) -> Iterator[EventAnswer | FlowAnswer]:
        """What happens from now on, or after an event; with a flow also its state and progress whenever they change."""
        return watch(self._service, self._caller, flow, after, seconds)

    def letters(
        self, flow: str, *, destination: str | None = None, table: str | None = None, after: int = 0, limit: int = 100
    ) -> LetterPage:
        """A page of dead letters."""
        return self._service.letters.page(self._caller, flow, destination=destination, table=table, after=after, limit=limit)

    def letter(self, flow: str, number: int) -> LetterWhole:
        """One letter with its change."""
        return self._service.letters.find(self._caller, flow, number)

    def replay(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Has letters delivered again."""
        return self._service.letters.replay(self._caller, flow, choice)

    def discard(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Removes letters for good."""
        return self._service.letters.discard(self._caller, flow, choice)

    def start_backfill(
        self, flow: str, tables: Sequence[str], *, where: str | None = None, destinations: Sequence[str] = ()
    ) -> BackfillAnswer:
        """Asks for tables to be read again while the flow streams."""
        asked = BackfillStart(tables=list(tables), where=where, destinations=list(destinations))
        return self._service.backfills.start(self._caller, flow, asked)

    def backfills(self, flow: str, *, before: int | None = None, limit: int = 100) -> BackfillList:
        """A page of the flow's backfills, the newest first."""
        return self._service.backfills.page(self._caller, flow, before=before, limit=limit)

    def backfill(self, flow: str, number: int) -> BackfillAnswer:
        """One backfill with each of its tables."""
        return self._service.backfills.find(self._caller, flow, number)

    def steer_backfill(self, command: BackfillCommand, flow: str, number: int) -> BackfillAnswer:
        """pause, resume or cancel."""
        return self._service.backfills.wish(self._caller, command, flow, number)

    def publication(self, flow: str) -> PublicationAnswer:
        """What the flow's publication sends."""
        return self._service.sources.publication(self._caller, flow)

    def candidates(self, flow: str, patterns: Sequence[str] = ()) -> CandidateList:
        """Tables that are or could be published."""
        return self._service.sources.candidates(self._caller, flow, patterns)

    def add_tables(self, flow: str, tables: Sequence[str], *, snapshot: bool = False) -> PublicationChange:
        """Adds tables to the publication; with `snapshot` their rows are loaded first."""
        return self._service.sources.add(self._caller, flow, TableAddition(tables=list(tables), snapshot=snapshot))

    def remove_tables(self, flow: str, tables: Sequence[str]) -> PublicationChange:
        """Takes tables out of the publication."""
        return self._service.sources.remove(self._caller, flow, TableChoice(tables=list(tables)))

    def sync_publication(
        self, flow: str, mode: Literal["add", "sync"] | None = None, *, dry_run: bool = False
    ) -> PublicationChange:
        """Brings the publication in line with the flow's patterns."""
        return self._service.sources.sync(self._caller, flow, PublicationSync(mode=mode, dry_run=dry_run))

    def slots(self, flow: str) -> SlotList:
        """Every slot of the source's server."""
        return self._service.sources.slots(self._caller, flow)

    def slot(self, flow: str, name: str | None = None) -> SlotAnswer:
        """One slot, the flow's own unless another is named."""
        return self._service.sources.slot(self._caller, flow, SlotChoice(slot=name))

    def drop_slot(self, flow: str, name: str | None = None) -> SlotDropped:
        """Drops a slot that nobody reads from."""
        return self._service.sources.drop_slot(self._caller, flow, SlotChoice(slot=name))

    def connectors(self) -> ConnectorList:
        """Every connector that is installed here."""
        return self._service.catalog.connectors(self._caller)

    def connector(self, kind: str, name: str) -> ConnectorAnswer:
        """One connector with its options as JSON Schema."""
        return self._service.catalog.connector(self._caller, kind, name)

    def server(self) -> ServerAnswer:
        """What runs on this ledger."""
        return self._service.server(self._caller)

    def create_token(self, name: str, role: Role) -> TokenMade:
        """A new token."""
        return self._service.people.create(self._caller, TokenCreation(name=name, role=role))

    def tokens(self) -> TokenList:
        """Every token, without its text."""
        return self._service.people.all(self._caller)

    def revoke_token(self, number: str) -> None:
        """Makes a token worthless."""
        self._service.people.revoke(self._caller, number)

    def audit(self, *, before: int | None = None, limit: int = 100, flow: str | None = None) -> AuditPage:
        """Who asked for what."""
        return self._service.people.audit(self._caller, before=before, limit=limit, flow=flow)

"""The control plane through a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from penstock.client.transport import transport_to
from penstock.control.answers import (
    Answer,
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
from penstock.errors import from_data

A = TypeVar("A", bound=Answer)


class Client:
    """A penstock server, over REST or gRPC; used by one thread at a time.

    `with Client("http://127.0.0.1:8466") as plane: plane.command("start", "shop")`; `grpc://127.0.0.1:8467` does the same.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 90.0, ca_file: str | None = None) -> None:
        self._transport = transport_to(url, token, timeout, ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the connection."""
        self._transport.close()

    def create_flow(
        self, definition: Mapping[str, Any], *, start: bool = False, why: str | None = None, key: str | None = None
    ) -> FlowAnswer:
        """Keeps a new flow; repeated with the same key it is one creation."""
        return self._ask(FlowAnswer, "Flows.Create", definition=definition, start=start, why=why, key=key or None)

    def update_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None
    ) -> FlowAnswer:
        """Replaces the definition; RevisionStale when `etag` is another revision's."""
        return self._ask(FlowAnswer, "Flows.Update", name=name, definition=definition, etag=etag, why=why)

    def reconfigure_flow(
        self, name: str, definition: Mapping[str, Any], *, etag: str | None = None, why: str | None = None, wait: float = 60.0
    ) -> FlowAnswer:
        """Pauses the flow, replaces the definition, and resumes it, waiting for the worker as long as that."""
        return self._ask(FlowAnswer, "Flows.Reconfigure", name=name, definition=definition, etag=etag, why=why, wait=wait)

    def clean_up_flow(self, name: str, *, remove_state: bool = False) -> CleanupAnswer:
        """Removes what a stopped flow has made on its server; the definition stays."""
        return self._ask(CleanupAnswer, "Flows.Cleanup", name=name, remove_state=remove_state)

    def delete_flow(self, name: str, *, etag: str | None = None, why: str | None = None, cleanup: bool = True) -> None:
        """Removes a stopped flow and, by `cleanup`, what it made on its server."""
        self._transport.ask("Flows.Delete", name=name, etag=etag, why=why, cleanup=cleanup)

    def flow(self, name: str) -> FlowAnswer:
        """A flow whole."""
        return self._ask(FlowAnswer, "Flows.Get", name=name)

    def flows(self, *, after: str = "", limit: int = 100, labels: str = "", states: Sequence[str] = ()) -> FlowPage:
        """A page of flows in name order."""
        return self._ask(FlowPage, "Flows.List", after=after, limit=limit, labels=labels, states=tuple(states))

    def command(self, command: Command, name: str, *, why: str | None = None, wait: float = 0.0) -> CommandAnswer:
        """start, pause, resume, stop or run; waits until it has come true, as long as that."""
        return self._ask(CommandAnswer, f"Flows.{command.capitalize()}", name=name, why=why, wait=wait)

    def reload(self, name: str, *, wait: float = 60.0) -> ReloadAnswer:
        """Has the flow's worker read its definition again."""
        return self._ask(ReloadAnswer, "Flows.Reload", name=name, wait=wait)

    def rewind(self, name: str, destination: str, to: str) -> RewindAnswer:
        """Has a destination sent again what it has had since a position."""
        return self._ask(RewindAnswer, "Flows.Rewind", name=name, destination=destination, to=to)

    def release(self, name: str, destination: str, table: str, *, skip_missed: bool = False) -> ReleaseAnswer:
        """Ends a table's quarantine."""
        chosen = {"destination": destination, "table": table, "skip_missed": skip_missed}
        return self._ask(ReleaseAnswer, "Flows.Release", name=name, **chosen)

    def resolve_staging(
        self, name: str, destination: str | None = None, tables: Sequence[str] = (), *, wait: float = 60.0
    ) -> ResolutionAnswer:
        """Merges staging tables whose loads have ended."""
        chosen = {"destination": destination, "tables": list(tables)}
        return self._ask(ResolutionAnswer, "Flows.ResolveStaging", name=name, **chosen, wait=wait)

    def revisions(self, name: str, limit: int = 20) -> RevisionList:
        """The flow's definitions, the newest first."""
        return self._ask(RevisionList, "Flows.ListRevisions", name=name, limit=limit)

    def checkpoints(self, name: str, *, destination: str | None = None, limit: int = 0) -> CheckpointList:
        """How far each destination has come, and the newest epochs that brought it there."""
        return self._ask(CheckpointList, "Flows.ListCheckpoints", name=name, destination=destination, limit=limit)

    def schemas(self, name: str, *, table: str | None = None, at: str | None = None) -> SchemaList:
        """Versions of the flow's tables, or those in force at a position."""
        return self._ask(SchemaList, "Flows.ListSchemas", name=name, table=table, at=at)

    def doctor(self, name: str) -> ExaminationAnswer:
        """What stands in the way of the flow."""
        return self._ask(ExaminationAnswer, "Flows.Examine", name=name)

    def validate(self, definition: Mapping[str, Any]) -> ValidationAnswer:
        """Every problem of a definition."""
        return self._ask(ValidationAnswer, "Connectors.Validate", definition=definition)

    def connectors(self) -> ConnectorList:
        """Every connector that is installed there."""
        return self._ask(ConnectorList, "Connectors.List")

    def connector(self, kind: str, name: str) -> ConnectorAnswer:
        """One connector with its options as JSON Schema."""
        return self._ask(ConnectorAnswer, "Connectors.Get", kind=kind, name=name)

    def events(self, *, flow: str | None = None, after: int = 0, limit: int = 100) -> EventPage:
        """What happened after an event."""
        return self._ask(EventPage, "Events.List", flow=flow, after=after, limit=limit)

    def watch(
        self, flow: str | None = None, *, after: int | None = None, seconds: float = 3600.0
    ) -> Iterator[EventAnswer | FlowAnswer]:
        """What happens from now on, or after an event; with a flow also its state and progress whenever they change."""
        for name, data in self._transport.stream("Events.Watch", flow=flow, after=after, seconds=seconds):
            if name == "event":
                yield EventAnswer.model_validate(data)
            elif name == "flow":
                yield FlowAnswer.model_validate({"definition": None, "events": [], **data})
            elif name == "error":
                raise from_data(data)

    def letters(
        self, flow: str, *, destination: str | None = None, table: str | None = None, after: int = 0, limit: int = 100
    ) -> LetterPage:
        """A page of dead letters."""
        chosen = {"destination": destination, "table": table}
        return self._ask(LetterPage, "DeadLetters.List", flow=flow, **chosen, after=after, limit=limit)

    def letter(self, flow: str, number: int) -> LetterWhole:
        """One letter with its change."""
        return self._ask(LetterWhole, "DeadLetters.Get", flow=flow, number=number)

    def replay(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Has letters delivered again."""
        return self._ask(LettersDone, "DeadLetters.Replay", flow=flow, **choice.model_dump())

    def discard(self, flow: str, choice: LetterChoice) -> LettersDone:
        """Removes letters for good."""
        return self._ask(LettersDone, "DeadLetters.Discard", flow=flow, **choice.model_dump())

    def start_backfill(
        self, flow: str, tables: Sequence[str], *, where: str | None = None, destinations: Sequence[str] = ()
    ) -> BackfillAnswer:
        """Asks for tables to be read again while the flow streams."""
        chosen = {"tables": list(tables), "where": where, "destinations": list(destinations)}
        return self._ask(BackfillAnswer, "Backfills.Start", flow=flow, **chosen)

    def backfills(self, flow: str, *, before: int | None = None, limit: int = 100) -> BackfillList:
        """A page of the flow's backfills, the newest first."""
        return self._ask(BackfillList, "Backfills.List", name=flow, before=before, limit=limit)

    def backfill(self, flow: str, number: int) -> BackfillAnswer:
        """One backfill with each of its tables."""
        return self._ask(BackfillAnswer, "Backfills.Get", flow=flow, number=number)

    def steer_backfill(self, command: BackfillCommand, flow: str, number: int) -> BackfillAnswer:
        """pause, resume or cancel."""
        return self._ask(BackfillAnswer, f"Backfills.{command.capitalize()}", flow=flow, number=number)

    def publication(self, flow: str) -> PublicationAnswer:
        """What the flow's publication sends."""
        return self._ask(PublicationAnswer, "Publications.Get", name=flow)

    def candidates(self, flow: str, patterns: Sequence[str] = ()) -> CandidateList:
        """Tables that are or could be published."""
        return self._ask(CandidateList, "Publications.Discover", flow=flow, tables=list(patterns))

    def add_tables(self, flow: str, tables: Sequence[str], *, snapshot: bool = False) -> PublicationChange:
        """Adds tables to the publication; with `snapshot` their rows are loaded first."""
        return self._ask(PublicationChange, "Publications.Add", flow=flow, tables=list(tables), snapshot=snapshot)

    def remove_tables(self, flow: str, tables: Sequence[str]) -> PublicationChange:
        """Takes tables out of the publication."""
        return self._ask(PublicationChange, "Publications.Remove", flow=flow, tables=list(tables))

    def sync_publication(
        self, flow: str, mode: Literal["add", "sync"] | None = None, *, dry_run: bool = False
    ) -> PublicationChange:
        """Brings the publication in line with the flow's patterns."""
        return self._ask(PublicationChange, "Publications.Sync", flow=flow, mode=mode, dry_run=dry_run)

    def slots(self, flow: str) -> SlotList:
        """Every slot of the source's server."""
        return self._ask(SlotList, "Slots.List", name=flow)

    def slot(self, flow: str, name: str | None = None) -> SlotAnswer:
        """One slot, the flow's own unless another is named."""
        return self._ask(SlotAnswer, "Slots.Get", flow=flow, slot=name)

    def drop_slot(self, flow: str, name: str | None = None) -> SlotDropped:
        """Drops a slot that nobody reads from."""
        return self._ask(SlotDropped, "Slots.Drop", flow=flow, slot=name)

    def server(self) -> ServerAnswer:
        """What runs there."""
        return self._ask(ServerAnswer, "Server.Get")

    def create_token(self, name: str, role: Role) -> TokenMade:
        """A new token."""
        return self._ask(TokenMade, "People.CreateToken", name=name, role=role)

    def tokens(self) -> TokenList:
        """Every token, without its text."""
        return self._ask(TokenList, "People.ListTokens")

    def revoke_token(self, number: str) -> None:
        """Makes a token worthless."""
        self._transport.ask("People.RevokeToken", number=number)

    def audit(self, *, before: int | None = None, limit: int = 100, flow: str | None = None) -> AuditPage:
        """Who asked for what."""
        return self._ask(AuditPage, "People.ListAudit", before=before, limit=limit, flow=flow)

    def _ask(self, answer: type[A], operation: str, /, **asked: Any) -> A:
        return answer.model_validate(self._transport.ask(operation, **asked))

"""Every operation of `control.proto`, as what it asks of the service layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from penstock.api.app import Runs
from penstock.api.grpc import requests as asked
from penstock.control.answers import Answer
from penstock.control.backfill_service import BackfillCommand
from penstock.control.caller import Caller
from penstock.control.lifecycle import Command
from penstock.control.requests import (
    BackfillStart,
    CleanupRequest,
    DefinitionRequest,
    FlowCreation,
    FlowUpdate,
    LetterChoice,
    PublicationSync,
    Request,
    Rewinding,
    SlotChoice,
    TableAddition,
    TableChoice,
    TableRelease,
    TokenCreation,
)
from penstock.control.service import Service

R = TypeVar("R", bound=Request)
Act = Callable[[Service, Caller, Any], Answer | None]


@dataclass(frozen=True)
class Operation:
    """One method: what may be sent, and what is then done."""

    request: type[Request]
    act: Act


def operations(runs: Runs) -> Mapping[str, Operation]:
    """Every method that answers once, by its name: `Flows.Create`."""
    return {
        **_FLOWS,
        **{f"Flows.{c.capitalize()}": Operation(asked.Steering, _steering(c)) for c in _COMMANDS},
        **_UPKEEP,
        **_LETTERS,
        **_BACKFILLS,
        **{f"Backfills.{c.capitalize()}": Operation(asked.Numbered, _wishing(c)) for c in _WISHES},
        **_SOURCES,
        **_PEOPLE,
        "Server.Get": Operation(asked.Nothing, lambda s, c, r: s.server(c, *runs())),
    }


_COMMANDS: tuple[Command, ...] = ("start", "pause", "resume", "stop", "run")
_WISHES: tuple[BackfillCommand, ...] = ("pause", "resume", "cancel")


def _steering(command: Command) -> Act:
    return lambda s, c, r: s.commands.give(c, command, r.name, why=r.why, patience=r.wait)


def _wishing(command: BackfillCommand) -> Act:
    return lambda s, c, r: s.backfills.wish(c, command, r.flow, r.number)


def _create(service: Service, caller: Caller, sent: asked.FlowCreated) -> Answer:
    return service.flows.create(caller, _as(FlowCreation, sent), sent.key)[0]


def _delete(service: Service, caller: Caller, sent: asked.FlowDeleted) -> None:
    service.flows.delete(caller, sent.name, etag=sent.etag, why=sent.why, cleanup=sent.cleanup)


def _as(kind: type[R], sent: Request) -> R:
    """The part of a message that is a request of the service layer's own."""
    return cast(R, kind.model_construct(**{name: getattr(sent, name) for name in kind.model_fields}))


_FLOWS = {
    "Flows.Create": Operation(asked.FlowCreated, _create),
    "Flows.Get": Operation(asked.FlowNamed, lambda s, c, r: s.flows.find(c, r.name)),
    "Flows.List": Operation(
        asked.FlowsListed, lambda s, c, r: s.flows.page(c, after=r.after, limit=r.limit, labels=r.labels, states=r.states)
    ),
    "Flows.Update": Operation(asked.FlowUpdated, lambda s, c, r: s.flows.update(c, r.name, _as(FlowUpdate, r), r.etag)),
    "Flows.Reconfigure": Operation(
        asked.FlowReconfigured, lambda s, c, r: s.flows.reconfigure(c, r.name, _as(FlowUpdate, r), r.etag, r.wait)
    ),
    "Flows.Cleanup": Operation(asked.FlowCleaned, lambda s, c, r: s.flows.cleanup(c, r.name, _as(CleanupRequest, r))),
    "Flows.Delete": Operation(asked.FlowDeleted, _delete),
    "Flows.ListRevisions": Operation(asked.RevisionsListed, lambda s, c, r: s.flows.revisions(c, r.name, r.limit)),
    "Flows.ListCheckpoints": Operation(
        asked.CheckpointsListed,
        lambda s, c, r: s.histories.checkpoints(c, r.name, destination=r.destination, limit=r.limit),
    ),
    "Flows.ListSchemas": Operation(asked.SchemasListed, lambda s, c, r: s.histories.schemas(c, r.name, table=r.table, at=r.at)),
    "Flows.Examine": Operation(asked.FlowNamed, lambda s, c, r: s.catalog.doctor(c, r.name)),
    "Events.List": Operation(asked.EventsListed, lambda s, c, r: s.events(c, flow=r.flow, after=r.after, limit=r.limit)),
}
_UPKEEP = {
    "Flows.Reload": Operation(asked.Reloaded, lambda s, c, r: s.upkeep.reload(c, r.name, patience=r.wait)),
    "Flows.Rewind": Operation(asked.Rewound, lambda s, c, r: s.upkeep.rewind(c, r.name, _as(Rewinding, r))),
    "Flows.Release": Operation(asked.TableReleased, lambda s, c, r: s.upkeep.release(c, r.name, _as(TableRelease, r))),
    "Flows.ResolveStaging": Operation(
        asked.StagingResolved, lambda s, c, r: s.upkeep.resolve(c, r.name, r.destination, r.tables, patience=r.wait)
    ),
}
_LETTERS = {
    "DeadLetters.List": Operation(
        asked.LettersListed,
        lambda s, c, r: s.letters.page(c, r.flow, destination=r.destination, table=r.table, after=r.after, limit=r.limit),
    ),
    "DeadLetters.Get": Operation(asked.Numbered, lambda s, c, r: s.letters.find(c, r.flow, r.number)),
    "DeadLetters.Replay": Operation(asked.LettersChosen, lambda s, c, r: s.letters.replay(c, r.flow, _as(LetterChoice, r))),
    "DeadLetters.Discard": Operation(asked.LettersChosen, lambda s, c, r: s.letters.discard(c, r.flow, _as(LetterChoice, r))),
}
_BACKFILLS = {
    "Backfills.Start": Operation(asked.BackfillStarted, lambda s, c, r: s.backfills.start(c, r.flow, _as(BackfillStart, r))),
    "Backfills.List": Operation(
        asked.BackfillsListed, lambda s, c, r: s.backfills.page(c, r.name, before=r.before, limit=r.limit)
    ),
    "Backfills.Get": Operation(asked.Numbered, lambda s, c, r: s.backfills.find(c, r.flow, r.number)),
}
_SOURCES = {
    "Publications.Get": Operation(asked.FlowNamed, lambda s, c, r: s.sources.publication(c, r.name)),
    "Publications.Discover": Operation(asked.FlowTables, lambda s, c, r: s.sources.candidates(c, r.flow, r.tables)),
    "Publications.Add": Operation(asked.TablesAdded, lambda s, c, r: s.sources.add(c, r.flow, _as(TableAddition, r))),
    "Publications.Remove": Operation(asked.TablesChosen, lambda s, c, r: s.sources.remove(c, r.flow, _as(TableChoice, r))),
    "Publications.Sync": Operation(asked.PublicationSynced, lambda s, c, r: s.sources.sync(c, r.flow, _as(PublicationSync, r))),
    "Slots.List": Operation(asked.FlowNamed, lambda s, c, r: s.sources.slots(c, r.name)),
    "Slots.Get": Operation(asked.SlotChosen, lambda s, c, r: s.sources.slot(c, r.flow, _as(SlotChoice, r))),
    "Slots.Drop": Operation(asked.SlotChosen, lambda s, c, r: s.sources.drop_slot(c, r.flow, _as(SlotChoice, r))),
}
_PEOPLE = {
    "Connectors.List": Operation(asked.Nothing, lambda s, c, r: s.catalog.connectors(c)),
    "Connectors.Get": Operation(asked.ConnectorNamed, lambda s, c, r: s.catalog.connector(c, r.kind, r.name)),
    "Connectors.Validate": Operation(DefinitionRequest, lambda s, c, r: s.catalog.validate(c, r.definition)),
    "People.CreateToken": Operation(TokenCreation, lambda s, c, r: s.people.create(c, r)),
    "People.ListTokens": Operation(asked.Nothing, lambda s, c, r: s.people.all(c)),
    "People.RevokeToken": Operation(asked.TokenNamed, lambda s, c, r: s.people.revoke(c, r.number)),
    "People.ListAudit": Operation(
        asked.AuditListed, lambda s, c, r: s.people.audit(c, before=r.before, limit=r.limit, flow=r.flow)
    ),
}
_LONG = ("Update", "Reconfigure", "Delete", "Cleanup", "Examine", "Reload", "Rewind", "ResolveStaging")
SLOW = {*(f"Flows.{name}" for name in _LONG), *_SOURCES}
"""What asks a source, scans a journal or waits for a worker, besides what waits only when it is told to."""

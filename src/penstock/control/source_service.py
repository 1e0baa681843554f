"""The service of what flows have on their sources' servers: publications and slots of created flows."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.control import source_objects
from penstock.control.caller import Caller
from penstock.control.premises import Premises
from penstock.control.requests import PublicationSync, SlotChoice, TableAddition, TableChoice
from penstock.control.source_answers import CandidateList, PublicationAnswer, PublicationChange, SlotAnswer, SlotDropped, SlotList
from penstock.control.stored import stored_flow
from penstock.core.flow import Flow
from penstock.errors import FlowUnknown, TransitionRefused


class Sources:
    """Looks take an operator, who may see what the source says; what a flow reads is an admin's to change."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def publication(self, caller: Caller, flow: str) -> PublicationAnswer:
        """The flow's publication. FlowUnknown, PublicationMissing."""
        caller.require("operator")
        return source_objects.publication(self._flow(flow))

    def candidates(self, caller: Caller, flow: str, patterns: Sequence[str] = ()) -> CandidateList:
        """Tables that are or could be published. FlowUnknown, TablesMissing."""
        caller.require("operator")
        return source_objects.candidates(self._flow(flow), patterns)

    def add(self, caller: Caller, flow: str, asked: TableAddition) -> PublicationChange:
        """Adds tables to the publication. FlowUnknown, TablesMissing."""
        with self._premises.door(caller, "publication.add", flow, "admin") as detail:
            detail.text = ", ".join(asked.tables)
            found, state, ledger = self._flow(flow), self._premises.state, self._premises.ledger
            return source_objects.add_tables(found, state, asked.tables, snapshot=asked.snapshot, opened=ledger, who=caller.name)

    def remove(self, caller: Caller, flow: str, asked: TableChoice) -> PublicationChange:
        """Takes tables out of the publication. FlowUnknown, TablesMissing."""
        with self._premises.door(caller, "publication.remove", flow, "admin") as detail:
            detail.text = ", ".join(asked.tables)
            return source_objects.remove_tables(self._flow(flow), asked.tables)

    def sync(self, caller: Caller, flow: str, asked: PublicationSync) -> PublicationChange:
        """Brings the publication in line with the flow's patterns. FlowUnknown."""
        with self._premises.door(caller, "publication.sync", flow, "admin"):
            return source_objects.sync_publication(self._flow(flow), asked.mode, dry_run=asked.dry_run)

    def slots(self, caller: Caller, flow: str) -> SlotList:
        """Every slot of the source's server. FlowUnknown."""
        caller.require("operator")
        return source_objects.slots(self._flow(flow))

    def slot(self, caller: Caller, flow: str, choice: SlotChoice) -> SlotAnswer:
        """One slot. FlowUnknown, SlotMissing."""
        caller.require("operator")
        return source_objects.slot(self._flow(flow), choice.slot)

    def drop_slot(self, caller: Caller, flow: str, choice: SlotChoice) -> SlotDropped:
        """Drops a slot that nobody reads from. FlowUnknown, SlotMissing, SlotInUse."""
        with self._premises.door(caller, "slot.drop", flow, "admin") as detail:
            done = source_objects.drop_slot(self._flow(flow), choice.slot)
            detail.text = f"{done.slot.name}: {done.lost}"
            return done

    def _flow(self, name: str) -> Flow:
        ledger = self._premises.ledger
        if ledger.definitions.find(name) is None:
            if ledger.register.find(name) is None:
                raise FlowUnknown(f"there is no flow named {name}", flow=name)
            raise TransitionRefused(
                f"flow {name} runs from a file, and nobody here knows what is in it",
                remedy="Name the file instead: --flow FILE.",
                flow=name,
            )
        return stored_flow(ledger, name)

"""The service of backfills: asked for, listed, shown, paused, resumed, cancelled."""

from __future__ import annotations

from typing import Literal

from penstock.control.backfills import LoadDesk
from penstock.control.caller import Caller
from penstock.control.flows import moment
from penstock.control.premises import Premises
from penstock.control.requests import BackfillStart
from penstock.control.source_answers import BackfillAnswer, BackfillList, BackfillSummary
from penstock.errors import FlowUnknown
from penstock.ledger.loads import Load

BackfillCommand = Literal["pause", "resume", "cancel"]

_WISHES: dict[BackfillCommand, str] = {"pause": "paused", "resume": "running", "cancel": "cancelled"}


class Backfills:
    """The loads of every flow of a ledger; the flow's worker follows, at once or when it next runs."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def start(self, caller: Caller, flow: str, asked: BackfillStart) -> BackfillAnswer:
        """Asks for tables to be read again. FlowUnknown, LoadMissing."""
        # A condition is SQL that the source runs with the flow's rights, like what a definition says.
        with self._premises.door(caller, "backfill.start", flow, "admin" if asked.where else "operator") as detail:
            desk = self._desk(flow, caller)
            number = desk.ask(asked.tables, where=asked.where, destinations=asked.destinations)
            detail.text = f"load {number} of {', '.join(asked.tables)}"
        return self._answer(desk, desk.find(number)[0])

    def all(self, caller: Caller, flow: str) -> BackfillList:
        """The flow's loads, the newest first. FlowUnknown."""
        caller.require("viewer")
        if not self._has_run(flow):
            return BackfillList(backfills=[])
        desk = self._desk(flow, caller)
        found = [self._answer(desk, load).model_dump(exclude={"tables"}) for load in desk.find()]
        return BackfillList(backfills=[BackfillSummary.model_validate(one) for one in found])

    def find(self, caller: Caller, flow: str, number: int) -> BackfillAnswer:
        """One load with each of its tables. FlowUnknown, LoadMissing."""
        caller.require("viewer")
        desk = self._desk(flow, caller)
        return self._answer(desk, desk.find(number)[0])

    def wish(self, caller: Caller, command: BackfillCommand, flow: str, number: int) -> BackfillAnswer:
        """Pauses, resumes or cancels a load. FlowUnknown, LoadMissing."""
        with self._premises.door(caller, f"backfill.{command}", flow, "operator") as detail:
            detail.text = f"load {number}"
            desk = self._desk(flow, caller)
            load = desk.wish(number, _WISHES[command])
        return self._answer(desk, load)

    def _desk(self, flow: str, caller: Caller) -> LoadDesk:
        self._has_run(flow)
        return LoadDesk(flow, self._premises.state, self._premises.ledger, caller.name)

    def _has_run(self, flow: str) -> bool:
        """Whether a worker ever ran the flow. FlowUnknown."""
        ledger = self._premises.ledger
        if ledger.register.find(flow) is None:
            raise FlowUnknown(f"there is no flow named {flow}", flow=flow)
        return ledger.identity(flow) is not None

    def _answer(self, desk: LoadDesk, load: Load) -> BackfillAnswer:
        return BackfillAnswer.model_validate({**desk.describe(load), "asked_at": moment(load.created_at)})

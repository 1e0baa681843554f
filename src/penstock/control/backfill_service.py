"""The service of backfills: asked for, listed, shown, paused, resumed, cancelled."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from penstock.control.backfills import LoadDesk
from penstock.control.caller import Caller
from penstock.control.premises import Premises
from penstock.control.requests import BackfillStart
from penstock.control.source_answers import BackfillAnswer, BackfillList, BackfillSummary
from penstock.errors import FlowUnknown
from penstock.ledger.loads import Load

MOST = 500
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
        return self._answer(desk, desk.find(number))

    def page(self, caller: Caller, flow: str, *, before: int | None = None, limit: int = 100) -> BackfillList:
        """The flow's newest loads with numbers below that one, the newest first. FlowUnknown."""
        caller.require("viewer")
        if not self._has_run(flow):
            return BackfillList(backfills=[])
        limit = max(1, min(limit, MOST))
        desk = self._desk(flow, caller)
        found = desk.page(before, limit + 1)
        shown = [_timed(one) for one in desk.summaries(found[:limit])]
        following = found[limit - 1].id if len(found) > limit else None
        return BackfillList(backfills=[BackfillSummary.model_validate(one) for one in shown], next=following)

    def find(self, caller: Caller, flow: str, number: int) -> BackfillAnswer:
        """One load with each of its tables. FlowUnknown, LoadMissing."""
        caller.require("viewer")
        desk = self._desk(flow, caller)
        return self._answer(desk, desk.find(number))

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
        return BackfillAnswer.model_validate(_timed(desk.describe(load)))


def _timed(about: dict[str, Any]) -> dict[str, Any]:
    return {**about, "asked_at": dt.datetime.fromtimestamp(about["asked_at"], dt.UTC)}

"""The service of upkeep: what operators do to a flow besides steering it."""

from __future__ import annotations

from penstock.control.caller import Caller
from penstock.control.lifecycle import reload_worker
from penstock.control.premises import Premises
from penstock.control.release import release
from penstock.control.requests import Rewinding, TableRelease
from penstock.control.resolving import resolve
from penstock.control.rewind import rewind
from penstock.control.stored import stored_flow
from penstock.control.upkeep_answers import ReleaseAnswer, ReloadAnswer, ResolutionAnswer, ResolvedTable, RewindAnswer
from penstock.core.position import format_lsn
from penstock.core.secret import mask
from penstock.errors import FlowUnknown

MOST_PATIENCE = 60.0


class Upkeep:
    """Every flow of a ledger; what is done is recorded with who and when."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def reload(self, caller: Caller, name: str, *, patience: float = MOST_PATIENCE) -> ReloadAnswer:
        """Has the flow's worker read definition and secrets again. FlowUnknown, TransitionRefused when no worker runs it."""
        with self._premises.door(caller, "flow.reload", name, "operator") as detail:
            self._check(name)
            event = reload_worker(self._premises.ledger, self._premises.leases, name, caller.name, min(patience, MOST_PATIENCE))
            said = mask(event.why) if event is not None and event.why else None
            detail.text = said
        return ReloadAnswer(flow=name, reloaded=event is not None and event.event == "reloaded", answer=said)

    def rewind(self, caller: Caller, name: str, asked: Rewinding) -> RewindAnswer:
        """Has a destination of a flow that nobody runs sent again what it has had since a position.

        FlowUnknown, FlowRunning, JournalTrimmed, RewindRefused.
        """
        with self._premises.door(caller, "flow.rewind", name, "operator") as detail:
            self._check(name)
            places = rewind(name, self._premises.state, asked.destination, asked.to, caller.name)
            before, after = map(format_lsn, places)
            detail.text = f"{asked.destination} from {before} to {after}"
        return RewindAnswer(flow=name, destination=asked.destination, before=before, after=after)

    def release(self, caller: Caller, name: str, asked: TableRelease) -> ReleaseAnswer:
        """Ends a table's quarantine; to leave out what it has missed takes an admin. FlowUnknown, TableGap, TransitionRefused."""
        with self._premises.door(caller, "flow.release", name, "admin" if asked.skip_missed else "operator") as detail:
            self._check(name)
            place = (name, self._premises.state, asked.destination, asked.table)
            row = release(*place, skip_missed=asked.skip_missed, who=caller.name)
            detail.text = f"{asked.table} at {asked.destination}"
        about = {"since": format_lsn(row.position), "missed": row.passed, "skipped": asked.skip_missed}
        return ReleaseAnswer.model_validate({"flow": name, "destination": asked.destination, "table": asked.table, **about})

    def resolve(
        self,
        caller: Caller,
        name: str,
        destination: str | None = None,
        tables: list[str] | None = None,
        *,
        patience: float = MOST_PATIENCE,
    ) -> ResolutionAnswer:
        """Merges staging tables whose loads have ended: by the worker, or here when none runs. Errors are the destination's."""
        with self._premises.door(caller, "flow.resolve_staging", name, "operator"):
            self._check(name)
            ledger = self._premises.ledger
            flow = stored_flow(ledger, name) if ledger.definitions.find(name) is not None else None
            patience = min(patience, MOST_PATIENCE)
            found = resolve(name, flow, self._premises.state, destination, tables or (), patience, who=caller.name)
        resolved = [ResolvedTable.model_validate({**one, "table_schema": one["schema"]}) for one in found or ()]
        return ResolutionAnswer(flow=name, answered=found is not None, tables=resolved)

    def _check(self, name: str) -> None:
        if self._premises.ledger.register.find(name) is None:
            raise FlowUnknown(f"there is no flow named {name}", flow=name)

"""The service of commands: start, pause, resume, stop and run once, each a checked transition that is recorded and waited for."""

from __future__ import annotations

from penstock.control.answers import CommandAnswer
from penstock.control.caller import Caller
from penstock.control.lifecycle import Command, ask_worker
from penstock.control.overview import state_of
from penstock.control.premises import Premises
from penstock.core.secret import mask
from penstock.errors import TransitionRefused

MOST_PATIENCE = 60.0


class Commands:
    """What operators want of flows."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def give(
        self, caller: Caller, command: Command, name: str, *, why: str | None = None, patience: float = 0.0
    ) -> CommandAnswer:
        """Records what is wanted and waits for it as long as that. FlowUnknown, TransitionRefused."""
        ledger, leases = self._premises.ledger, self._premises.leases
        with self._premises.door(caller, f"flow.{command}", name, "operator") as detail:
            detail.text = why
            if command == "run" and ledger.definitions.find(name) is None and ledger.register.find(name) is not None:
                raise TransitionRefused(
                    f"flow {name} runs from a file, and nobody here knows it",
                    remedy="`penstock worker --flow FILE --max-empty-reads 2` runs it until nothing is left.",
                )
            patience = max(0.0, min(patience, MOST_PATIENCE))
            answer = ask_worker(ledger, leases, command, name, who=caller.name, why=why, patience=patience)
        entry = ledger.register.find(name)
        return CommandAnswer(
            flow=name,
            wished=answer.wish.state,
            by=answer.wish.who or None,
            why=answer.wish.why,
            changed=answer.changed,
            state=state_of(entry.state, entry.lease, entry.deleting) if entry is not None else "new",
            reason=mask(entry.reason) if entry is not None and entry.reason else None,
            worker=answer.holder,
            settled=answer.settled,
        )

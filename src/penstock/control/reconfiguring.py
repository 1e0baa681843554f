"""Another definition for a flow that runs: it is paused, the worker takes the definition over, and it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.control.lifecycle import Command, ask_worker, reload_worker, runner_of, worker_of
from penstock.control.premises import Premises
from penstock.core.secret import mask
from penstock.errors import TransitionRefused


@dataclass(frozen=True)
class Reconfiguring:
    """One change of one flow, for somebody; what it has begun it ends, also when the change is refused."""

    premises: Premises
    flow: str
    who: str
    why: str | None
    deadline: float
    """By `time.monotonic`, for all the waiting together."""

    def run(self, change: Callable[[], bool]) -> str:
        """Makes the change while nothing is delivered, if that is wanted now; what became of it, in words.

        `change` says whether there was one. TransitionRefused when the worker does not pause in time; then nothing has changed.
        A flow that was paused stays so, and one that nobody runs has its definition from its next start.
        """
        if worker_of(self.premises.leases, self.flow) is None:
            return "counts from the next start" if change() else "nothing has changed"
        if self.premises.ledger.lifecycle.wish(self.flow).state != "running":
            return self._taken_over(paused=True) if change() else "nothing has changed"
        self._pause()
        try:
            applied = self._taken_over(paused=False) if change() else "nothing has changed"
        except BaseException:
            self._resume(0.0)
            raise
        return f"{applied}{self._resume(self._left())}"

    def _pause(self) -> None:
        if not self._ask("pause", self._left()):
            self._resume(0.0)
            raise TransitionRefused(
                f"the worker of flow {self.flow} has not paused in time, and nothing was changed",
                remedy="`penstock flow show` says what holds it; `penstock flow update` changes it without a pause.",
                flow=self.flow,
            )

    def _resume(self, patience: float) -> str:
        """Lets it deliver again; what there is to say of that. Who has stopped it meanwhile has the last word."""
        try:
            return "" if self._ask("resume", patience) else "; it is to run, and does not deliver yet"
        except TransitionRefused:
            return "; it was stopped meanwhile"

    def _taken_over(self, *, paused: bool) -> str:
        """What the worker makes of the new definition, by a restart if it cannot be changed while it runs."""
        premises = self.premises
        event = reload_worker(premises.ledger, premises.leases, self.flow, self.who, max(self._left(), 1.0))
        if event is None:
            return "the worker has not answered yet"
        said = mask(event.why) if event.why else ""
        if event.event == "reloaded":
            return f"reloaded: {said}"
        if runner_of(premises.leases) is None:
            # Nobody would start another worker.
            return f"counts from the worker's next start: {said}"
        return self._restarted(paused=paused)

    def _restarted(self, *, paused: bool) -> str:
        """Ends the worker, so that the runner starts another with the new definition."""
        ended = self._ask("stop", self._left())
        # Also when it has not ended yet: the runner starts the next one when it has.
        self._ask("start", 0.0)
        if paused:
            self._ask("pause", 0.0)
        return "restarted" if ended else "to be restarted; the worker has not ended yet"

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _ask(self, command: Command, patience: float) -> bool:
        """Whether the command has come true."""
        ledger, leases = self.premises.ledger, self.premises.leases
        why = f"reconfigured: {self.why}" if self.why else "reconfigured"
        return ask_worker(ledger, leases, command, self.flow, who=self.who, why=why, patience=patience).settled

"""Another definition for a flow that runs: it is paused, the worker takes the definition over, and it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.control.lifecycle import Command, reload_worker, runner_of, wait_for, worker_of
from penstock.control.premises import Premises
from penstock.core.secret import mask
from penstock.errors import TransitionRefused
from penstock.ledger.lifecycle import State, Wish

UNCHANGED = "nothing has changed"
"""What a worker says that runs this very definition, and what is said of one that nobody runs."""


@dataclass(frozen=True)
class Reconfiguring:
    """One change of one flow, for somebody; what it has begun it ends, also when the change is refused.

    Each wish that it writes says what is to follow, so that a runner goes on where a server was killed, and each takes the
    place of the one before: who wishes something else meanwhile has the last word.
    """

    premises: Premises
    flow: str
    who: str
    why: str | None
    deadline: float
    """By `time.monotonic`, for all the waiting together."""

    def run(self, change: Callable[[], bool]) -> str:
        """Makes the change while nothing is delivered, if that is wanted now; what became of it, in words.

        `change` says whether there was one. TransitionRefused when the worker does not pause in time; then nothing has changed.
        A flow that was paused stays so, one that runs once goes on with that, and one that nobody runs, or that is to end, has
        its definition from its next start.
        """
        while True:
            wish = self._lasting_wish()
            if wish.state == "stopped" or worker_of(self.premises.leases, self.flow) is None:
                return "counts from the next start" if change() else UNCHANGED
            if wish.state != "running":
                return self._applied(wish, wish.state, change)
            mine = self._step("pause", wish, then="running")
            if mine is not None:
                return self._paused(mine, change)

    def _paused(self, mine: Wish, change: Callable[[], bool]) -> str:
        if not self._comes_true("pause", mine, self._left()):
            self._step("resume", mine)
            raise TransitionRefused(
                f"the worker of flow {self.flow} has not paused in time, and nothing was changed",
                remedy="`penstock flow show` says what holds it; `penstock flow update` changes it without a pause.",
                flow=self.flow,
            )
        try:
            applied = self._applied(mine, "running", change)
        except BaseException:
            self._step("resume", mine)
            raise
        resumed = self._step("resume", mine)
        return f"{applied}{self._going(resumed) if resumed is not None else self._meanwhile()}"

    def _going(self, wish: Wish) -> str:
        return "" if self._comes_true("resume", wish, self._left()) else "; it is to run, and does not deliver yet"

    def _lasting_wish(self) -> Wish:
        """What is wanted of the flow when nobody else reconfigures it; that is waited for. TransitionRefused."""
        while (wish := self.premises.ledger.lifecycle.wish(self.flow)).then is not None:
            if not self._left():
                raise TransitionRefused(
                    f"flow {self.flow} is being reconfigured by somebody else", remedy="Try again in a minute.", flow=self.flow
                )
            time.sleep(0.05)
        return wish

    def _meanwhile(self) -> str:
        """What there is to say of a wish that is somebody else's."""
        state = self.premises.ledger.lifecycle.wish(self.flow).state
        return f"; it was {state} meanwhile" if state in ("paused", "stopped") else ""

    def _applied(self, mine: Wish, then: State, change: Callable[[], bool]) -> str:
        """The worker is asked also when the definition is as it was: it may have refused that one, and run another."""
        change()
        said = self._taken_over(mine, then)
        return UNCHANGED if said == f"reloaded: {UNCHANGED}" else said

    def _taken_over(self, mine: Wish, then: State) -> str:
        """What the worker makes of the new definition, by a restart if it cannot be changed while it runs."""
        premises = self.premises
        try:
            event = reload_worker(premises.ledger, premises.leases, self.flow, self.who, max(self._left(), 1.0))
        except TransitionRefused:
            # It has ended since.
            return "counts from the next start"
        if event is None:
            return "the worker has not answered yet"
        said = mask(event.why) if event.why else ""
        if event.event == "reloaded":
            return f"reloaded: {said}"
        if runner_of(premises.leases) is None:
            # Nobody would start another worker.
            return f"counts from the worker's next start: {said}"
        return self._restarted(mine, then)

    def _restarted(self, mine: Wish, then: State) -> str:
        """Ends the worker, so that the runner starts another with the new definition, which is wanted as this one was."""
        stopped = self._step("stop", mine, then=then)
        if stopped is None:
            return "counts from the worker's next start"
        # At least long enough for the worker to have seen that it is to end.
        ended = self._comes_true("stop", stopped, max(self._left(), 1.0))
        # Also when it has not ended yet: the runner starts the next one when it has.
        words = "restarted" if ended else "to be restarted; the worker has not ended yet"
        if then == "paused":
            # The pause is still that of who asked for it.
            self.premises.ledger.lifecycle.step("pause", self.flow, mine.who, mine.why, after=stopped, by=self.who)
        elif then == "once":
            self._step("run", stopped)
        elif started := self._step("start", stopped):
            return f"{words}{self._going(started)}"
        return words

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _step(self, command: Command, after: Wish, then: State | None = None) -> Wish | None:
        """The wish in the place of that one; None when there is another by now."""
        why = f"reconfigured: {self.why}" if self.why else "reconfigured"
        return self.premises.ledger.lifecycle.step(command, self.flow, self.who, why, after=after, then=then)

    def _comes_true(self, command: Command, wish: Wish, patience: float) -> bool:
        return wait_for(self.premises.ledger, self.premises.leases, command, self.flow, wish, patience)[0]

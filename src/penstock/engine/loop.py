"""A destination's loop: the thread that delivers, and after an error decides whether to go on."""

from __future__ import annotations

import threading
import time

import structlog

from penstock.core.flow import RetryRules
from penstock.engine.delivering import Assignment, Delivering
from penstock.engine.errands import Errands
from penstock.engine.retrying import pause_before
from penstock.engine.signals import Signals
from penstock.errors import (
    ChangesRefused,
    DestinationFailed,
    JournalFull,
    JournalTrimmed,
    LedgerFenced,
    LedgerUnreachable,
    PenstockError,
    from_data,
)
from penstock.journal.waiting import Waiting

_log = structlog.get_logger()

LEDGER_WAIT = 0.5
"""Seconds between tries to reach a ledger that does not answer."""
STANDING = frozenset({"failed", "paused", "retrying"})
"""States in which a destination takes nothing: what waits for it grows older, and its own reader does not see it."""
GRACE = 1.0
"""Seconds that lanes have to finish an epoch when the flow is paused."""


class DestinationLoop(threading.Thread):
    """Delivers the journal to one destination; its failures are its own."""

    def __init__(self, given: Assignment, *, retry: RetryRules, give_up: bool) -> None:
        super().__init__(name=f"destination {given.status.name}", daemon=True)
        self._flow, self._retry, self._give_up = given.flow, retry, give_up
        self._lanes, self._intake, self._letters, self._quarantine = given.lanes, given.intake, given.letters, given.quarantine
        self._destination, self._moved = given.destination, given.moved
        self._signals = Signals()
        self.errands = Errands(self._signals.notice)
        """What others want of the destination."""
        self._delivering = Delivering(given, self._signals, self.errands)
        self._waiting = Waiting(given.journal)
        self._quiet = threading.Event()
        self._resting = threading.Event()
        """Set while nothing is delivered: after an error, or while it is paused."""
        self.status = given.status
        self.error: PenstockError | None = None
        self._given_up: PenstockError | None = None
        self.beginning = given.beginning
        """After which position it begins while it has no checkpoint."""

    def notice(self) -> None:
        """The journal has grown."""
        self._signals.notice()

    def notice_loads(self) -> None:
        """Something about loads has changed."""
        self._intake.notice()
        self._signals.notice()

    def settled(self) -> int:
        """Up to where every change is durable here, those of tables that are being loaded included."""
        return self._intake.settled(self.status.position)

    def needed(self) -> int:
        """After which position the journal must still be there."""
        return min(self._intake.needed(self.status.position), self._quarantine.needs)

    def has_begun(self, load: int) -> bool:
        """Whether rows of a load may be read, as far as this destination is concerned."""
        # One that is down keeps no load from the others: before it delivers anything again, it begins what was planned meanwhile.
        stages = getattr(self._destination.options, "batch_mode", "target") == "staging"
        return not stages or load in self._intake.begun or self._resting.is_set()

    def has_ended(self, load: int) -> bool:
        """Whether the destination knows that it has all of a load."""
        return load in self._intake.ended

    def stop(self) -> None:
        """Ends after the running epoch; one that has not been committed is run again at the next start."""
        self._signals.stop()
        self._lanes.interrupt()

    def pause(self) -> None:
        """Delivers nothing from soon on: an epoch that lanes do not finish within a second is abandoned, and run again later."""
        self._lanes.interrupt(after=GRACE)
        self._signals.pause()

    def resume(self) -> None:
        """Goes on where it was paused."""
        self._lanes.resume()
        self._signals.resume()

    def is_quiet(self) -> bool:
        """Whether it is paused, or has ended, and nothing more comes from it."""
        return self._quiet.is_set() or not self.is_alive()

    def run(self) -> None:
        """The thread's body: deliver, and after an error decide whether to go on."""
        # A server's log has the lines of many flows.
        structlog.contextvars.bind_contextvars(flow=self._flow)
        while not self._signals.stopped:
            try:
                if self._signals.paused:
                    self._wait_paused()
                    continue
                self._delivering.run()
            except LedgerFenced as error:
                # It is no failure of the destination's, and the worker says it once for all.
                self.error = error
                self.status.become("stopped")
                self._moved()
                return
            except LedgerUnreachable as error:
                self._wait_for_ledger(error)
            except ChangesRefused:
                # The epoch is run again at once, and leaves them out.
                continue
            except PenstockError as error:
                if self._signals.interrupted:
                    continue
                if not self._try_again(error) and not self._delivering.passes_over_after(error):
                    self._fail(error)
                    return
            except Exception as error:
                _log.exception("destination loop", destination=self.status.name)
                if not self._try_again(DestinationFailed(f"{self.status.name}: {type(error).__name__}: {error}")):
                    self._fail(DestinationFailed(f"{self.status.name}: {type(error).__name__}: {error}"))
                    return
        if self._given_up is not None:
            self._fail(self._given_up)
            return
        self.status.become("stopped")

    def give_up(self, error: PenstockError) -> None:
        """Ends the loop for good, for a reason that lies outside of it."""
        self._given_up = error
        self.stop()
        if not self.is_alive():
            # It had failed before, of something that would have let it go on from where it stands.
            self._fail(error)

    def end_of_all(self) -> PenstockError | None:
        """The error as a worker ends with it that has no other destination: nobody reloads it then."""
        if self.error is None or self.error.retry != "timed" or self.status.state != "failed":
            return self.error
        remedy = f"{self._after_tries(self.error)} The flow has ended with it: a server starts it again, else start the worker."
        return from_data({**self.error.to_data(), "remedy": remedy})

    def _after_tries(self, error: PenstockError) -> str:
        remedy = f"{error.remedy.rstrip(' .')}."
        return f"{remedy} It was given up after {self.status.attempts} tries." if error.retry == "timed" else remedy

    def is_released(self) -> bool:
        """Whether the journal keeps nothing for it any more: it cannot go on from where it stands."""
        return isinstance(self.error, JournalFull | JournalTrimmed)

    def is_idle(self) -> bool:
        """Whether everything that the journal shows has been delivered."""
        return self._delivering.is_idle()

    def owes(self) -> bool:
        """Whether dead letters wait for the next epoch, to be delivered with it."""
        return self._letters.owes

    def lag(self, now: float) -> float:
        """Age in seconds of the oldest change that waits, else of the last epoch's at its delivery."""
        lag = self._delivering.lag(now)
        return max(lag, self._waiting.age(self.status.position)) if self.status.state in STANDING else lag

    def close(self) -> None:
        """Gives back lanes and files; after the thread has ended."""
        self._waiting.close()
        self._delivering.close()

    def is_ready(self) -> bool:
        """Whether its lanes stand."""
        return self._lanes.are_ready()

    def epochs_per_second(self) -> float:
        """Epochs closed per second, lately."""
        return self._delivering.epochs_per_second()

    def _try_again(self, error: PenstockError) -> bool:
        """Waits as the retry rules say; false when they are used up or the error will not go away."""
        status = self.status
        status.attempts += 1
        if error.retry != "timed" or (self._give_up and status.attempts >= self._retry.max_attempts):
            return False
        pause = pause_before(self._retry, status.attempts, error)
        status.become("retrying", error.to_data(), time.time() + pause)
        _log.warning(
            "destination failed, trying again",
            destination=status.name,
            code=error.code,
            reason=error.message,
            remedy=error.remedy,
            attempt=status.attempts,
            seconds=round(pause, 1),
        )
        self._delivering.forget()
        self._rest(pause)
        return True

    def _rest(self, seconds: float) -> None:
        self._resting.set()
        self._moved()
        self._signals.wait_undisturbed(seconds)
        self._resting.clear()

    def _wait_for_ledger(self, error: LedgerUnreachable) -> None:
        """No failure of the destination's, and none that uses its tries up. Whether the last write counts is read again."""
        if self._signals.interrupted:
            return
        if self.status.state != "retrying":
            _log.warning("waiting for the ledger", destination=self.status.name, reason=error.message, remedy=error.remedy)
        self.status.become("retrying", error.to_data(), time.time() + LEDGER_WAIT)
        self._rest(LEDGER_WAIT)

    def _wait_paused(self) -> None:
        """Until it may go on; what was on its way is left to `_recover`."""
        self._lanes.abandon()
        self.status.become("paused")
        self._quiet.set()
        self._resting.set()
        self._moved()
        while self._signals.paused and not self._signals.stopped:
            self.errands.run()
            self._signals.wait()
        self._quiet.clear()
        self._resting.clear()
        self.status.become("starting")

    def _fail(self, error: PenstockError) -> None:
        self.error = error
        self._resting.set()
        about, remedy = error.to_data(), error.remedy
        if not self.is_released():
            again = f"While the flow runs, `penstock flow reload {self._flow}` has it tried again."
            remedy = about["remedy"] = f"{self._after_tries(error)} {again}"
        self.status.become("failed", about)
        _log.error("destination failed", destination=self.status.name, code=error.code, reason=error.message, remedy=remedy)
        self._moved()

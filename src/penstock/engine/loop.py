"""A destination's loop: plan an epoch, record it, hand it to the lanes, commit, record the checkpoint."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from penstock.core.epoch import Epoch
from penstock.core.flow import RetryRules
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination
from penstock.engine.lanes import Lanes
from penstock.engine.lease import HeldLease
from penstock.engine.letters import Letters
from penstock.engine.planner import SMALL_BYTES, Limits, Plan, Planner
from penstock.engine.preparing import Preparing
from penstock.engine.retrying import pause_before
from penstock.engine.status import DestinationStatus, Rate
from penstock.errors import ChangesRefused, DestinationFailed, LedgerFenced, PenstockError
from penstock.journal.record import pack_slices
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.observe.failpoints import reach

_log = structlog.get_logger()

IDLE_WAIT = 1.0
GRACE = 1.0
"""Seconds that lanes have to finish an epoch when the flow is paused."""


@dataclass(frozen=True)
class _Flight:
    """An epoch that the lanes have; `began` is when its first change became durable here."""

    epoch: Epoch
    began: float


class DestinationLoop(threading.Thread):
    """Delivers the journal to one destination; its failures are its own."""

    def __init__(
        self,
        *,
        flow: str,
        source: str,
        generation: int,
        journal: Path,
        destination: Destination,
        lanes: Lanes,
        ledger: Ledger,
        letters: Letters,
        beginning: int,
        limits: Limits,
        retry: RetryRules,
        give_up: bool,
        status: DestinationStatus,
        discovered: Sequence[TableSchema],
        moved: Callable[[], None],
        lease: HeldLease,
    ) -> None:
        super().__init__(name=f"destination {status.name}", daemon=True)
        self._flow, self._source, self._generation = flow, source, generation
        self._journal = journal
        self._destination, self._lanes, self._ledger = destination, lanes, ledger
        self._letters = letters
        self._limits, self._retry, self._give_up = limits, retry, give_up
        self._beginning = beginning
        self._checkpoint = Checkpoint(0, 0)
        self._moved = moved
        self._news = threading.Event()
        self._lease = lease
        self._halt = threading.Event()
        self._paused = False
        self._interrupted = threading.Event()
        self._quiet = threading.Event()
        self._preparing = Preparing(journal, destination, discovered)
        self._warned: set[str] = set()
        self._rate = Rate()
        self._planned: list[Epoch] = []
        self._flight: _Flight | None = None
        self._planner: Planner | None = None
        self.status = status
        self.error: PenstockError | None = None
        self._given_up: PenstockError | None = None

    def notice(self) -> None:
        """The journal has grown."""
        self._news.set()

    def stop(self) -> None:
        """Ends after the running epoch; one that has not been committed is run again at the next start."""
        self._halt.set()
        self._interrupted.set()
        self._news.set()
        self._lanes.interrupt()

    def pause(self) -> None:
        """Delivers nothing from soon on: an epoch that lanes do not finish within a second is abandoned, and run again later."""
        self._paused = True
        self._lanes.interrupt(after=GRACE)
        self._interrupted.set()
        self._news.set()

    def resume(self) -> None:
        """Goes on where it was paused."""
        self._paused = False
        self._lanes.resume()
        if not self._halt.is_set():
            self._interrupted.clear()
        self._news.set()

    def is_quiet(self) -> bool:
        """Whether it is paused, or has ended, and nothing more comes from it."""
        return self._quiet.is_set() or not self.is_alive()

    def run(self) -> None:
        """The thread's body: deliver, and after an error decide whether to go on."""
        while not self._halt.is_set():
            try:
                if self._paused:
                    self._wait_paused()
                    continue
                self._lease.check()
                self._lanes.begin()
                self._recover()
                self._preparing.prepare_discovered()
                self._deliver()
            except LedgerFenced as error:
                # It is no failure of the destination's, and the worker says it once for all.
                self.error = error
                self.status.become("stopped")
                self._moved()
                return
            except ChangesRefused:
                # The epoch is run again at once, and leaves them out.
                continue
            except PenstockError as error:
                if self._interrupted.is_set():
                    continue
                if not self._try_again(error) and not self._letters.give_back(error):
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

    def is_idle(self) -> bool:
        """Whether everything that the journal shows has been delivered."""
        planner = self._planner
        busy = self._planned or self._flight is not None
        return not busy and planner is not None and 0 < planner.idle_mark <= self.status.position

    def owes(self) -> bool:
        """Whether dead letters wait for the next epoch, to be delivered with it."""
        return self._letters.owes

    def lag(self, now: float) -> float:
        """Age in seconds of the oldest change that waits, else of the last epoch's at its delivery."""
        planner = self._planner
        since = planner.waiting_since if planner is not None else None
        return max(self.status.lag_seconds, now - since) if since is not None else self.status.lag_seconds

    def close(self) -> None:
        """Gives back lanes and files; after the thread has ended."""
        self._lanes.close()
        if self._planner is not None:
            self._planner.close()

    def is_ready(self) -> bool:
        """Whether its lanes stand."""
        return self._lanes.are_ready()

    def epochs_per_second(self) -> float:
        """Epochs closed per second, lately."""
        return self._rate.per_second(time.monotonic())

    def _recover(self) -> None:
        """Asks the destination about epochs that were planned and not closed, and starts reading behind the checkpoint."""
        if self._planner is not None:
            self._planner.close()
        self._flight = None
        self._destination.fence(self._generation)
        self._checkpoint = self._begin()
        self.status.position = self._checkpoint.position
        self._planner = Planner(self._journal, self._checkpoint.position, self._limits)
        self._planned = self._ledger.planned(self._flow, self.status.name)
        self._letters.load()
        held = self._destination.committed() if self._planned else None
        while self._planned and held is not None and held >= self._planned[0].upto:
            self._planner.again(self._planned[0].upto)
            self._close(self._planned.pop(0), {}, time.time())
        for epoch in self._planned:
            self._destination.abort(epoch)

    def _begin(self) -> Checkpoint:
        found = self._ledger.checkpoint(self._flow, self.status.name)
        if found is not None:
            return found
        # A lost ledger must not make a destination that holds its position take everything again.
        position = max(self._beginning, self._destination.committed() or 0)
        return self._ledger.begin(self._flow, self.status.name, position, self._generation)

    def _deliver(self) -> None:
        while self._planned and not self._interrupted.is_set():
            # The same span and the same buckets as before the crash, one after the other.
            self._flight = self._launch(self._planned[0], self._again(self._planned[0]))
            self._planned.pop(0)
            self._land(self._flight, ahead=False)
        while not self._interrupted.is_set():
            if self._flight is None:
                self._letters.refresh()
                plan, letters = self._next(), self._letters.due()
                if plan is None and letters and self._planner is not None:
                    plan = self._planner.nothing(self._checkpoint.position)
                if plan is None:
                    self._rest()
                    continue
                self._flight = self._launch(self._plan(plan, self._checkpoint, letters), plan)
            self._land(self._flight, ahead=True)

    def _again(self, planned: Epoch) -> Plan:
        assert self._planner is not None
        while True:
            plan = self._planner.again(planned.upto)
            if plan is not None:
                return plan
            # After a crash of the machine the index may trail its segments until capture has mended it.
            self._news.wait(IDLE_WAIT)
            self._news.clear()
            if self._interrupted.is_set():
                raise DestinationFailed("stopped")

    def _next(self) -> Plan | None:
        assert self._planner is not None
        return None if self._interrupted.is_set() else self._planner.next()

    def _is_behind(self) -> bool:
        """Whether there is enough for lanes to do meanwhile; a small epoch is sooner there when its turn is waited for."""
        return self._planner is not None and self._planner.backlog() >= SMALL_BYTES

    def _plan(self, plan: Plan, after: Checkpoint, letters: Sequence[int] = ()) -> Epoch:
        """The plan, durable before any of it runs, with the dead letters that are delivered first."""
        epoch = self._epoch(plan, after, whole=bool(letters))
        reach("engine.before_plan")
        self._ledger.plan(epoch, plan.changes, letters)
        reach("engine.after_plan")
        if letters:
            self._letters.load()
        return epoch

    def _epoch(self, plan: Plan, after: Checkpoint, *, whole: bool = False) -> Epoch:
        """`whole` keeps it in one bucket, where the order of all its changes holds."""
        buckets = plan.buckets(self._limits.parallelism, truncates_alone=self._limits.truncates_alone)
        buckets = 1 if whole else buckets
        names = (self._flow, self.status.name, self._source)
        return Epoch(*names, after.epoch + 1, after.position, plan.upto, buckets, self._generation)

    def _launch(self, epoch: Epoch, plan: Plan) -> _Flight:
        """Hands an epoch to the lanes and does not wait for it."""
        self._lease.check()
        self._preparing.prepare(plan)
        reach("engine.after_prepare")
        packed = pack_slices(plan.slices)
        work = {"epoch": epoch.to_data(), "slices": packed, **self._letters.descriptor(epoch)}
        self._lanes.ask([{**work, "bucket": b} for b in range(epoch.buckets)])
        return _Flight(epoch, min((s.appended_at / 1e6 for s in plan.slices), default=time.time()))

    def _land(self, flight: _Flight, *, ahead: bool) -> None:
        """Commits an epoch; with `ahead` the lanes work on the next one meanwhile, staged but not yet to be seen."""
        receipts = self._lanes.gather()
        self._flight = None
        self._letters.take(flight.epoch, receipts)
        self._letters.refresh()
        # Replayed letters go with an epoch for which nothing of theirs is still undecided.
        ahead = ahead and not self._letters.due()
        reached = Checkpoint(flight.epoch.upto, flight.epoch.number)
        following = self._next() if ahead and self._is_behind() else None
        if following is not None and not following.brings_schema:
            self._flight, following = self._launch(self._plan(following, reached), following), None
        reach("engine.before_commit")
        self._lease.check()
        self._commit(flight.epoch, receipts)
        reach("engine.after_commit")
        if self._flight is None and following is None and ahead:
            following = self._next()
        planned = self._epoch(following, reached) if following is not None else None
        if following is not None and planned is not None:
            reach("engine.before_plan")
            self._close(flight.epoch, _summed(receipts), flight.began, planned, following.changes)
            reach("engine.after_plan")
            self._flight = self._launch(planned, following)
        else:
            self._close(flight.epoch, _summed(receipts), flight.began)

    def _commit(self, epoch: Epoch, receipts: Sequence[dict[str, Any]]) -> None:
        try:
            self._destination.commit(epoch, receipts)
        except ChangesRefused as refusal:
            self._letters.condemn(epoch, refusal)
            raise

    def _close(
        self, epoch: Epoch, summed: dict[str, Counter[str]], began: float, following: Epoch | None = None, changes: int = 0
    ) -> None:
        """The checkpoint, durable, together with the plan of the epoch that follows; then everybody may know."""
        letters = self._letters.concerns(epoch)
        self._ledger.close_epoch(epoch, self._generation, following, changes, letters=letters)
        reach("engine.after_checkpoint")
        self._letters.closed(epoch)
        self._checkpoint = Checkpoint(epoch.upto, epoch.number)
        status = self.status
        for name, amount in summed.get("tables", {}).items():
            status.rows[name] = status.rows.get(name, 0) + amount
        for name, amount in summed.get("counts", {}).items():
            status.counts[name] = status.counts.get(name, 0) + amount
        self._warn_of(summed.get("nulled", Counter()))
        status.position, status.epochs = epoch.upto, status.epochs + 1
        status.lag_seconds = time.time() - began
        status.attempts = 0
        status.become("ok")
        self._rate.count(time.monotonic())
        self._moved()

    def _warn_of(self, nulled: Counter[str]) -> None:
        """Says once per table that values are not what the source has; `counts` says how often."""
        for table in nulled.keys() - self._warned:
            self._warned.add(table)
            _log.warning(
                "values written as NULL",
                destination=self.status.name,
                table=table,
                count=nulled[table],
                reason="their type at the destination cannot hold them, and on_unrepresentable is null",
                remedy="Further ones are counted only; on_unrepresentable: fail stops at the first.",
            )

    def _rest(self) -> None:
        """Nothing to deliver now: follow an idle source's position, and wait."""
        assert self._planner is not None
        mark = self._planner.idle_mark
        if mark > self._checkpoint.position:
            number = self._checkpoint.epoch
            if self._limits.record_empty:
                number += 1
                names = (self._flow, self.status.name, self._source)
                empty = Epoch(*names, number, self._checkpoint.position, mark, 1, self._generation)
                # The destination counts along: an epoch that it has not seen would look like one that it has lost.
                self._lease.check()
                self._destination.commit(empty, [])
                self._ledger.record_empty(empty)
            else:
                self._ledger.advance(self._flow, self.status.name, mark, self._generation)
            self._checkpoint = Checkpoint(mark, number)
            self.status.position = mark
            self._moved()
        if self.status.state in ("starting", "retrying") and mark:
            self.status.become("ok")
        self._news.wait(min(IDLE_WAIT, max(0.0, self._planner.seconds_left())))
        self._news.clear()

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
        self._preparing.forget()
        self._interrupted.wait(pause)
        return True

    def _wait_paused(self) -> None:
        """Until it may go on; what was on its way is left to `_recover`."""
        self._lanes.abandon()
        self.status.become("paused")
        self._quiet.set()
        self._moved()
        while self._paused and not self._halt.is_set():
            self._news.wait(IDLE_WAIT)
            self._news.clear()
        self._quiet.clear()
        self.status.become("starting")

    def _fail(self, error: PenstockError) -> None:
        self.error = error
        self.status.become("failed", error.to_data())
        _log.error("destination failed", destination=self.status.name, code=error.code, reason=error.message, remedy=error.remedy)
        self._moved()


def _summed(receipts: Sequence[dict[str, Any]]) -> dict[str, Counter[str]]:
    total: dict[str, Counter[str]] = {"tables": Counter(), "counts": Counter(), "nulled": Counter()}
    for receipt in receipts:
        for kind, counter in total.items():
            counter.update(receipt.get(kind) or {})
    return total

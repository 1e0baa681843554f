"""The epochs of one destination: planned and recorded, handed to the lanes, committed, the checkpoint recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination
from penstock.engine.errands import Errands
from penstock.engine.intake import Intake, Side
from penstock.engine.lanes import Lanes
from penstock.engine.lease import HeldLease
from penstock.engine.letters import Letters
from penstock.engine.planner import SMALL_BYTES, Limits, Plan, Planner
from penstock.engine.preparing import Preparing
from penstock.engine.quarantine import Quarantine
from penstock.engine.resuming import Resuming
from penstock.engine.signals import IDLE_WAIT, Signals
from penstock.engine.status import DestinationStatus, Rate
from penstock.engine.tally import Sums, Tally, summed
from penstock.errors import ChangesRefused, DestinationFailed, PenstockError
from penstock.journal.record import pack_slices
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.ledger.quarantines import Quarantined
from penstock.observe.failpoints import reach

_log = structlog.get_logger()


@dataclass(frozen=True)
class _Flight:
    """An epoch that the lanes have; `began` is when its first change became durable here."""

    epoch: Epoch
    began: float


@dataclass(frozen=True)
class Assignment:
    """What one destination is delivered from and with, and where its epochs are noted."""

    flow: str
    source: str
    generation: int
    journal: Path
    destination: Destination
    lanes: Lanes
    ledger: Ledger
    letters: Letters
    quarantine: Quarantine
    intake: Intake
    beginning: int
    """Where a destination that has nothing yet starts."""
    limits: Limits
    status: DestinationStatus
    discovered: Sequence[TableSchema]
    moved: Callable[[], None]
    """Called when the destination's position or state has changed."""
    lease: HeldLease


class Delivering:
    """Used by the loop's own thread; what says so may be asked by any."""

    def __init__(self, given: Assignment, signals: Signals, errands: Errands) -> None:
        self._flow, self._source, self._generation = given.flow, given.source, given.generation
        self._journal, self._limits = given.journal, given.limits
        self._destination, self._lanes, self._ledger = given.destination, given.lanes, given.ledger
        self._letters, self._intake, self._quarantine = given.letters, given.intake, given.quarantine
        self._letters.passes_over = self._quarantine.holds
        self._status, self._moved, self._lease = given.status, given.moved, given.lease
        self._signals, self._errands = signals, errands
        self._preparing = Preparing(given.journal, given.destination, given.discovered, given.quarantine.passes_over)
        self._checkpoint = Checkpoint(0, 0)
        self._planned: list[Epoch] = []
        self._flight: _Flight | None = None
        self._planner: Planner | None = None
        self._rate = Rate()
        self._tally = Tally(given.status)
        self._resuming = Resuming(given.flow, given.status.name, given.destination, given.ledger, given.lease, given.beginning)

    def run(self) -> None:
        """Delivers until it is interrupted or something fails; begins with what was planned and not closed."""
        self._lease.check()
        self._lanes.begin()
        self._recover()
        self._preparing.prepare_discovered()
        self._deliver()

    def is_idle(self) -> bool:
        """Whether everything that the journal shows has been delivered; for any thread."""
        planner = self._planner
        busy = self._planned or self._flight is not None
        if busy or self._intake.busy or self._quarantine.due() is not None or planner is None:
            return False
        return 0 < planner.idle_mark <= self._status.position

    def lag(self, now: float) -> float:
        """Age in seconds of the oldest change that waits, else of the last epoch's at its delivery; for any thread."""
        planner = self._planner
        since = planner.waiting_since if planner is not None else None
        return max(self._status.lag_seconds, now - since) if since is not None else self._status.lag_seconds

    def epochs_per_second(self) -> float:
        """Epochs closed per second, lately; for any thread."""
        return self._rate.per_second(time.monotonic())

    def close(self) -> None:
        """Gives back lanes and files; after the thread has ended."""
        self._lanes.close()
        if self._planner is not None:
            self._planner.close()

    def passes_over_after(self, error: PenstockError) -> bool:
        """Whether the error can be lived with: without the dead letters that were replayed, or without one table."""
        return self._letters.give_back(error) or self._quarantine.admit(error, self._checkpoint, self._preparing.named)

    def forget(self) -> None:
        """Tables are prepared anew: nobody knows what a failure has left of them."""
        self._preparing.forget()

    def _recover(self) -> None:
        """Asks the destination about epochs that were planned and not closed, and starts reading behind the checkpoint."""
        if self._planner is not None:
            self._planner.close()
        self._flight = None
        self._destination.fence(self._generation)
        held = self._destination.committed()
        self._checkpoint = self._resuming.checkpoint(held)
        self._planned = self._ledger.planned(self._flow, self._status.name)
        self._quarantine.load()
        self._letters.load()
        while self._planned and held is not None and held.has(self._planned[0]) and held.position >= self._planned[0].upto:
            self._close(self._planned.pop(0), {}, time.time())
        for epoch in self._planned:
            self._destination.abort(epoch)
        if held is not None and held.epoch > self._checkpoint.epoch:
            self._checkpoint, self._planned = self._resuming.follow(held, self._checkpoint), []
            self._letters.load()
        self._quarantine.recover(self._checkpoint, self._planned)
        self._status.position = self._checkpoint.position
        self._planner = Planner(self._journal, self._checkpoint.position, self._limits, self._checkpoint.part)

    def _deliver(self) -> None:
        self._begin_loads()
        while self._planned and not self._signals.interrupted:
            # The same span and the same buckets as before the crash, one after the other.
            first = self._planned[0]
            again = self._beside(self._intake.again(first)) if first.is_side else self._again(first)
            self._flight = self._launch(first, again)
            self._planned.pop(0)
            self._land(self._flight, ahead=False)
            self._quarantine.recover(self._checkpoint, self._planned)
        while not self._signals.interrupted:
            self._errands.run()
            if self._flight is None:
                self._look()
                if (row := self._quarantine.due()) is not None:
                    self._catch_up(row)
                    continue
                self._begin_loads()
                self._end_loads()
                # Inside of a transaction there is no moment that a load could stand at.
                side = None if self._checkpoint.part else self._intake.next(self._checkpoint.position)
                if side is not None:
                    # One beside the stream, then one of the stream: neither keeps the other waiting for long.
                    self._flight = self._plan_side(side, self._checkpoint)
                    self._land(self._flight, ahead=True)
                    if self._flight is not None:
                        continue
                if self._intake.holds_stream:
                    if side is None:
                        self._signals.wait()
                    continue
                plan, letters = self._next(), self._letters.due()
                if plan is None and letters and self._planner is not None:
                    plan = self._planner.nothing(self._checkpoint.position)
                if plan is None:
                    if side is None:
                        self._rest()
                    continue
                self._flight = self._plan(plan, self._checkpoint, letters)
            self._land(self._flight, ahead=True)

    def _look(self) -> None:
        """Sees what commands have done to dead letters and quarantined tables."""
        self._letters.refresh()
        if self._quarantine.refresh():
            self._preparing.forget()
            self._letters.load()

    def _catch_up(self, row: Quarantined) -> None:
        """Brings a quarantined table what it has missed up to the checkpoint, in an epoch that does not move it."""
        reached = self._checkpoint
        plan = self._quarantine.begin(row, reached, self._limits)
        epoch = replace(self._epoch(plan, reached), upto=reached.position, upto_part=reached.part)
        reach("engine.before_plan")
        self._ledger.plan(epoch, plan.changes)
        reach("engine.after_plan")
        self._flight = self._launch(epoch, plan)
        self._land(self._flight, ahead=False)
        self._quarantine.recover(self._checkpoint, ())
        self._preparing.forget()
        self._letters.load()

    def _again(self, planned: Epoch) -> Plan:
        assert self._planner is not None
        missed = self._quarantine.again(planned, self._limits)
        if missed is not None:
            return missed
        while True:
            plan = self._planner.again(planned.upto, planned.upto_part)
            if plan is not None:
                return plan
            # After a crash of the machine the index may trail its segments until capture has mended it.
            self._signals.wait()
            if self._signals.interrupted:
                raise DestinationFailed("stopped")

    def _next(self) -> Plan | None:
        assert self._planner is not None
        return None if self._signals.interrupted else self._planner.next()

    def _is_behind(self) -> bool:
        """Whether there is enough for lanes to do meanwhile; a small epoch is sooner there when its turn is waited for."""
        return self._planner is not None and self._planner.backlog() >= SMALL_BYTES

    def _plan(self, plan: Plan, after: Checkpoint, letters: Sequence[int] = ()) -> _Flight:
        """An epoch on its way, its plan durable, with the dead letters that are delivered first."""
        epoch = self._epoch(plan, after, whole=bool(letters))

        def record() -> None:
            self._ledger.plan(epoch, plan.changes, letters)
            if letters:
                self._letters.load()

        return self._set_off(epoch, plan, record, early=not letters)

    def _set_off(self, epoch: Epoch, plan: Plan, record: Callable[[], None], *, early: bool) -> _Flight:
        """Hands an epoch to the lanes and makes its plan durable by `record`.

        Lanes that only stage begin meanwhile, when they need nothing that `record` brings: should the plan never become
        durable, what they stage is cleared away with the epoch that gets its number.
        """
        early = early and self._limits.stages and not self._preparing.has_to(plan)
        flight = self._launch(epoch, plan) if early else None
        reach("engine.before_plan")
        record()
        reach("engine.after_plan")
        return flight or self._launch(epoch, plan)

    def _epoch(self, plan: Plan, after: Checkpoint, *, whole: bool = False) -> Epoch:
        """`whole` keeps it in one bucket, where the order of all its changes holds."""
        buckets = plan.buckets(self._limits.parallelism, truncates_alone=self._limits.truncates_alone)
        buckets = 1 if whole else buckets
        names = (self._flow, self._status.name, self._source)
        filters = self._intake.filters(after.position)
        work = json.dumps(filters) if filters else None
        parts = (after.part, plan.part)
        return Epoch(*names, after.epoch + 1, after.position, plan.upto, buckets, self._generation, *parts, work)

    def _begin_loads(self) -> None:
        """Tells the destination of loads before any of their rows are read: from then on it may have to keep changes apart."""
        for load, name, tables in self._intake.beginning():
            takes = self._destination.options.takes
            mine = [t for t in tables if takes(t.schema, t.name)]
            self._lease.check()
            self._preparing.tell(mine)
            self._destination.begin_load(name, [(t.schema, t.name) for t in mine])
            self._intake.told(load, end=False)
            self._moved()

    def _end_loads(self) -> None:
        """Tells the destination of loads that it has all of; it may have waited for that to show them."""
        for load, name, tables in self._intake.ending():
            self._lease.check()
            for one in self._destination.end_load(name, tables):
                about = {"table": f"{one.schema}.{one.table}", "rows": one.rows, "removed": one.removed}
                _log.info(f"staging table {one.outcome}", destination=self._status.name, load=load.id, **about)
            self._intake.told(load, end=True)
            self._moved()

    def _plan_side(self, side: Side, at: Checkpoint) -> _Flight:
        """An epoch beside the stream on its way, its plan durable: it stands where the destination stands."""
        names = (self._flow, self._status.name, self._source)
        shared = side.size >= SMALL_BYTES and not side.moves_keys
        buckets = self._limits.parallelism if shared else 1
        place = (at.epoch + 1, at.position, at.position)
        epoch = Epoch(*names, *place, buckets, self._generation, work=json.dumps({"side": side.work}))
        return self._set_off(epoch, self._beside(side), partial(self._ledger.plan, epoch, side.rows), early=True)

    def _side_after(self, epoch: Epoch) -> Side | None:
        """Chunks that lanes may begin with while an epoch of chunks before them is committed."""
        waits = self._letters.due() or self._quarantine.due() is not None or self._signals.interrupted
        if waits or not self._limits.stages or "chunks" not in epoch.side or self._planner is None:
            return None
        if not self._intake.holds_stream and self._planner.backlog():
            # The stream's turn.
            return None
        return self._intake.next_chunks(epoch.upto, taken=epoch.side["chunks"])

    def _beside(self, side: Side) -> Plan:
        """What a side needs of the journal; its tables are made known to the destination."""
        self._preparing.tell(side.tables)
        return Plan(side.slices, self._checkpoint.position)

    def _launch(self, epoch: Epoch, plan: Plan) -> _Flight:
        """Hands an epoch to the lanes and does not wait for it."""
        self._lease.check()
        self._preparing.prepare(plan, self._quarantine.caught_up_by(epoch))
        reach("engine.after_prepare")
        packed = pack_slices([*plan.slices, *plan.beyond])
        work = {
            "epoch": epoch.to_data(),
            "slices": packed,
            **self._letters.descriptor(epoch),
            **self._quarantine.descriptor(epoch),
            **self._apart(epoch),
        }
        self._lanes.ask([{**work, "bucket": b} for b in range(epoch.buckets)])
        began = time.time() if epoch.is_side else min((s.appended_at / 1e6 for s in plan.slices), default=time.time())
        return _Flight(epoch, began)

    def _apart(self, epoch: Epoch) -> dict[str, Any]:
        """What lanes must know of loads."""
        if epoch.work is None:
            return {}
        work: dict[str, Any] = json.loads(epoch.work)
        return self._intake.descriptor(work["side"]) if "side" in work else work

    def _land(self, flight: _Flight, *, ahead: bool) -> None:
        """Commits an epoch; with `ahead` the lanes work on the next one meanwhile, staged but not yet to be seen."""
        receipts = self._lanes.gather()
        self._flight = None
        self._letters.take(flight.epoch, receipts)
        self._quarantine.take(flight.epoch, receipts)
        self._look()
        # Replayed letters go with an epoch for which nothing of theirs is still undecided; loads and releases want their turn.
        beside = flight.epoch.is_side
        reached = Checkpoint.after(flight.epoch)
        if beside:
            self._intake.keep_for_later(flight.epoch.side, receipts)
            if ahead and (side := self._side_after(flight.epoch)) is not None:
                self._flight = self._plan_side(side, reached)
        ahead = ahead and not beside and not self._letters.due() and not self._intake.busy and self._quarantine.due() is None
        following = self._next() if ahead and self._is_behind() else None
        if following is not None and not following.brings_schema:
            self._flight, following = self._plan(following, reached), None
        reach("engine.before_commit")
        self._lease.check()
        self._commit(flight.epoch, receipts)
        reach("engine.after_commit")
        if self._flight is None and following is None and ahead:
            following = self._next()
        if following is None:
            self._close(flight.epoch, summed(receipts), flight.began)
            return
        planned = self._epoch(following, reached)
        close = partial(self._close, flight.epoch, summed(receipts), flight.began, planned, following.changes)
        self._flight = self._set_off(planned, following, close, early=not self._letters.concerns(flight.epoch))

    def _commit(self, epoch: Epoch, receipts: Sequence[dict[str, Any]]) -> None:
        try:
            self._destination.commit(epoch, receipts)
        except ChangesRefused as refusal:
            self._letters.condemn(epoch, refusal)
            raise

    def _close(self, epoch: Epoch, sums: Sums, began: float, following: Epoch | None = None, changes: int = 0) -> None:
        """The checkpoint, durable, together with the plan of the epoch that follows; then everybody may know."""
        letters = self._letters.concerns(epoch)
        side = epoch.side if epoch.is_side else None
        self._ledger.close_epoch(epoch, self._generation, following, changes, letters=letters, side=side)
        if side is not None:
            self._intake.notice()
        reach("engine.after_checkpoint")
        self._letters.closed(epoch)
        self._checkpoint = Checkpoint.after(epoch)
        status = self._status
        self._tally.add(sums)
        status.position, status.epochs = epoch.upto, status.epochs + 1
        status.lag_seconds = time.time() - began
        status.attempts = 0
        status.become("ok")
        self._rate.count(time.monotonic())
        self._moved()

    def _rest(self) -> None:
        """Nothing to deliver now: follow an idle source's position, and wait."""
        assert self._planner is not None
        mark = self._planner.idle_mark
        if mark > self._checkpoint.position:
            number = self._checkpoint.epoch
            if self._limits.record_empty:
                number += 1
                names = (self._flow, self._status.name, self._source)
                empty = Epoch(*names, number, self._checkpoint.position, mark, 1, self._generation)
                # The destination counts along: an epoch that it has not seen would look like one that it has lost.
                self._lease.check()
                self._destination.commit(empty, [])
                self._ledger.record_empty(empty)
            else:
                self._ledger.advance(self._flow, self._status.name, mark, self._generation)
            self._checkpoint = Checkpoint(mark, number)
            self._status.position = mark
            self._moved()
        if self._status.state in ("starting", "retrying") and mark:
            self._status.become("ok")
        self._signals.wait(min(IDLE_WAIT, max(0.0, self._planner.seconds_left())))

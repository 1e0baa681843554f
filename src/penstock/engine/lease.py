"""The lease as its holder has it: renewed by a thread that does nothing else, asked in memory before anything is written."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from penstock.core.clock import clock
from penstock.engine.deadline import DeadlinePage
from penstock.errors import FlowRunning, LeaseLost, LedgerError, LedgerUnreachable, PenstockError
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import SLACK, TTL, Holder, Lease, Leases

_log = structlog.get_logger()

POLL = 0.25
"""Seconds between looks at a lease that is waited for."""
RENEWALS = 3.3
"""How often a lease is renewed in the time that it lasts."""
REMINDER = 60.0
"""Seconds between two lines in the log about it."""


class HeldLease(threading.Thread):
    """A lease that this process holds until it gives it up, or another has taken it because it was not renewed in time."""

    def __init__(self, leases: Leases, lease: Lease, former: Lease | None, lost: Callable[[], None]) -> None:
        super().__init__(name="lease", daemon=True)
        self.flow, self.generation = lease.flow, lease.generation
        self.took_over = former is not None and not former.is_given_up
        """Whether the lease was taken from somebody who had not given it up, and may still be about to end."""
        self._leases, self._on_lost, self._ttl = leases, lost, leases.ttl
        self.page = DeadlinePage(lease.deadline)
        """The deadline, for child processes."""
        self._trouble: LedgerError | None = None
        self._ended = False
        self._wake = threading.Event()
        self._turn = threading.Condition()
        self.error: LeaseLost | None = None
        """Why the lease is no longer ours."""

    @property
    def deadline(self) -> float:
        """Until when this process may write, by `clock`."""
        return self.page.at

    def valid(self) -> bool:
        """Whether the lease holds now; costs a microsecond."""
        return self.error is None and clock() < self.deadline

    def check(self, patience: float = math.inf) -> None:
        """Returns when the lease holds; one that ran out is renewed first. LeaseLost when another has it.

        A ledger that does not answer is waited for, `patience` seconds at most: nothing may be written meanwhile anyway.
        """
        if self.valid():
            return
        deadline = time.monotonic() + patience
        with self._turn:
            while not self.valid():
                if self.error is not None:
                    raise self.error
                if self._ended:
                    raise LeaseLost(f"flow {self.flow}: this worker has given its lease up", flow=self.flow)
                if time.monotonic() > deadline:
                    return
                if self._trouble is None:
                    # Else it is tried twice a second anyway; who waits here must not make that a thousand times.
                    self._wake.set()
                self._turn.wait(0.5)

    def run(self) -> None:
        """The thread's body: renews."""
        while not self._ended and self.error is None:
            self._wake.wait(self._ttl / RENEWALS if self._trouble is None else 0.5)
            self._wake.clear()
            if not self._ended:
                self._renew()
                with self._turn:
                    self._turn.notify_all()
        if self.error is not None:
            self._on_lost()

    def give_up(self) -> None:
        """Ends the lease, so that another may take it at once; nothing may be written afterwards."""
        self._ended = True
        self._wake.set()
        if self.is_alive():
            self.join(5)
        try:
            if self.error is None:
                self._leases.give_up(self.flow, self.generation)
        except LedgerError as error:
            _log.warning("the lease was not given up; it runs out by itself", reason=error.message)
        self._leases.close()
        self.page.close()

    def _renew(self) -> None:
        began = clock()
        try:
            if self._leases.renew(self.flow, self.generation, began):
                self.page.set(began + self._ttl)
            else:
                self.error = self._lost()
                return
        except LedgerError as error:
            if self._trouble is None:
                _log.warning("the lease could not be renewed, trying again", code=error.code, reason=error.message)
            self._trouble = error
        else:
            self._trouble = None

    def _lost(self) -> LeaseLost:
        try:
            successor = self._leases.find(self.flow)
        except LedgerError:
            successor = None
        whom = f"by {successor.holder}, generation {successor.generation}" if successor is not None else "and forgotten"
        return LeaseLost(
            f"flow {self.flow} was taken over {whom}, because this worker, generation {self.generation}, did not renew its"
            f" lease for {self._ttl:.0f} s; it writes nothing more",
            flow=self.flow,
        )


def take(
    where: LedgerAddress | Path,
    flow: str,
    purpose: str,
    *,
    wait: Callable[[], bool] | None = None,
    lost: Callable[[], None] = lambda: None,
    ttl: float = TTL,
) -> HeldLease | None:
    """The flow's lease, renewed from now on.

    While another holds it, FlowRunning without `wait`; else it is waited for as long as `wait()` says true, then None. One of
    another machine that looks over is watched for its time first, since only that is certain.
    """
    leases = Leases(where, ttl)
    try:
        found = _taken(leases, flow, purpose, wait)
    except BaseException:
        leases.close()
        raise
    if found is None:
        leases.close()
        return None
    held = HeldLease(leases, *found, lost)
    held.start()
    return held


@contextmanager
def holding(where: LedgerAddress | Path, flow: str, purpose: str) -> Iterator[HeldLease]:
    """The flow's lease for the block, for a command that must not meet a worker; FlowRunning while there is one."""
    held = take(where, flow, purpose)
    assert held is not None
    try:
        yield held
    finally:
        held.give_up()


def _taken(leases: Leases, flow: str, purpose: str, wait: Callable[[], bool] | None) -> tuple[Lease, Lease | None] | None:
    me, watch, answered = Holder.here(), _Watch((1 + SLACK) * leases.ttl), False
    there: Lease | None = None
    while True:
        began = clock()
        try:
            there = leases.find(flow)
            answered = True
            if there is None or there.is_free(watch.stale(began)):
                found = leases.take(flow, me, purpose, began, watch.stale(began))
                if found is None:
                    continue
                if there is not None and not there.is_given_up:
                    _log.info("lease taken over", flow=flow, generation=found.generation, former=str(there.holder))
                return found, there
        except LedgerUnreachable as error:
            if wait is None or not answered:
                raise
            if leases.in_a_file and there is not None and there.is_free() and there.holder.end():
                # It was stopped within a transaction, whose lock only its end gives back; its lease is over anyway.
                _log.warning("ended a process that stood still and kept the ledger", flow=flow, former=str(there.holder))
            watch.interrupt(error)
        else:
            if wait is None and not there.looks_over():
                raise running(there)
            watch.see(there, began)
        if wait is not None and not wait():
            return None
        time.sleep(POLL)


class _Watch:
    """What a process that waits for a lease has seen of it, by its own clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: Lease | None = None
        self._since = 0.0
        self._said = -math.inf

    def stale(self, now: float) -> Lease | None:
        """The lease as it has been for so long that its holder has lost it; None when it is not."""
        return self._seen if self._seen is not None and now - self._since > self._seconds else None

    def see(self, lease: Lease, now: float) -> None:
        """The lease as it is now; it is said from time to time whom this process waits for."""
        if self._seen is None or (self._seen.generation, self._seen.renewals) != (lease.generation, lease.renewals):
            self._seen, self._since = lease, now
        if self._is_time():
            _log.info(
                "waiting: another process runs the flow",
                flow=lease.flow,
                holder=str(lease.holder),
                purpose=lease.purpose,
                generation=lease.generation,
                until=time.strftime("%H:%M:%SZ, if it is not renewed", time.gmtime(lease.expires_at / 1e6)),
            )

    def interrupt(self, error: LedgerUnreachable) -> None:
        """The ledger does not answer; its holder cannot renew the lease either, and gets its time anew."""
        self._seen = None
        if self._is_time():
            _log.warning("waiting for the ledger", reason=error.message, remedy=error.remedy)

    def _is_time(self) -> bool:
        due = time.monotonic() - self._said >= REMINDER
        self._said = time.monotonic() if due else self._said
        return due


def running(lease: Lease) -> PenstockError:
    """The refusal that names who holds the lease."""
    verb = "is already run by" if lease.purpose == "worker" else f"is held for `{lease.purpose}` by"
    return FlowRunning(f"flow {lease.flow} {verb} {lease.holder}", flow=lease.flow, pid=lease.holder.pid)

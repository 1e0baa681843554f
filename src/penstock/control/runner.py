"""The runner: starts a worker for every flow that is to run and has none, and starts it again when it is gone.

What is to run, and who runs it, is the ledger's to say; the runner keeps nothing that must survive it. Of several servers on one
ledger one has the runner's lease, and another takes it over when that one is gone.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import structlog

from penstock.control.launching import Launcher, Run
from penstock.control.lifecycle import RUNNER
from penstock.control.premises import Premises
from penstock.control.stored import stored_flow
from penstock.core.flow import FlowRules, RetryRules
from penstock.core.secret import mask
from penstock.engine import lease as leasing
from penstock.engine.ending import DRAINED, LOADED
from penstock.errors import FlowInvalid, FlowRunning, LedgerError, PenstockError, WorkerDied, retry_of
from penstock.ledger.leases import TTL, Holder, Lease
from penstock.ledger.lifecycle import Wish
from penstock.ledger.register import Entry

_log = structlog.get_logger()

LOOK = 0.5
"""Seconds between looks at the ledger: a worker that died is noticed within two of them."""
STARTING = 4
"""How many workers may be at their beginning at once: each takes a core for some seconds."""
STEADY = 60.0
"""Seconds after which a run that ended does not count as one that failed at once."""
STRANDED = 90.0
"""Seconds after which a step of a reconfiguration was left over: none takes more than the minute that may be waited for."""
GRACE = 40.0
"""Seconds that workers have to end in order when the server does."""


@dataclass
class _Watched:
    """What the runner remembers of a flow, for as long as it lives."""

    run: Run | None = None
    launched_at: float = 0.0
    attempts: int = 0
    next_try: float = 0.0
    given_up: int = -1
    """The time of the wish under which it was given up; another wish begins anew."""
    lease: Lease | None = None
    lease_since: float = 0.0
    rules: FlowRules = field(default_factory=FlowRules)


class Runner(threading.Thread):
    """Runs flows from `start` until `close`."""

    def __init__(self, premises: Premises, launcher: Launcher) -> None:
        super().__init__(name="runner", daemon=True)
        self._premises, self._launcher = premises, launcher
        self._flows: dict[str, _Watched] = {}
        self._steps: dict[str, tuple[Wish, float]] = {}
        self._next_steps = 0.0
        self._stopping = threading.Event()
        self._who = str(Holder.here())

    def run(self) -> None:
        """The thread's loop: waits for the lease, then looks after flows."""
        while not self._stopping.is_set():
            try:
                lease = leasing.take(self._premises.path, RUNNER, "runner", wait=lambda: not self._stopping.is_set())
            except LedgerError as error:
                _log.warning("the runner waits for the ledger", reason=error.message)
                self._stopping.wait(1.0)
                continue
            if lease is None:
                return
            _log.info("this server runs flows", launcher=self._launcher.name)
            try:
                while not self._stopping.is_set() and lease.error is None:
                    if lease.valid():
                        self._look_safely()
                    self._stopping.wait(LOOK)
            finally:
                lease.give_up()

    def close(self) -> None:
        """Ends every worker that was launched here, in order; then the thread."""
        self._stopping.set()
        if self.is_alive():
            self.join(10)
        runs = [watched.run for watched in self._flows.values() if watched.run is not None]
        for run in runs:
            run.stop()
        deadline = time.monotonic() + GRACE
        while any(not run.is_over for run in runs) and time.monotonic() < deadline:
            time.sleep(0.05)
        for run in runs:
            if not run.is_over:
                run.kill()
        self._launcher.close()

    def _look_safely(self) -> None:
        try:
            self._look()
        except LedgerError as error:
            _log.warning("the ledger could not be asked which flows are to run", reason=error.message)
        except Exception:
            # One surprise must not end the watch over every flow.
            _log.exception("the runner's look failed")

    def _look(self) -> None:
        self._finish_steps()
        wanted = {entry.name: entry for entry in self._premises.ledger.register.wanted()}
        for name in [n for n, w in self._flows.items() if n not in wanted and (w.run is None or w.run.is_over)]:
            del self._flows[name]
        under_way = sum(w.run is not None and not w.run.is_over and not self._runs(n, wanted) for n, w in self._flows.items())
        for name, entry in wanted.items():
            watched = self._flows.setdefault(name, _Watched())
            if self._is_held(entry, watched) or (watched.run is not None and not watched.run.is_over):
                continue
            if watched.run is not None:
                self._ended(entry, watched)
            if under_way < STARTING and self._may_start(entry, watched):
                under_way += 1
                self._launch(entry, watched)

    def _finish_steps(self) -> None:
        """Goes on where a reconfiguration was left because its server is gone; by the clock of who has watched it."""
        lifecycle, now = self._premises.ledger.lifecycle, time.monotonic()
        if now < self._next_steps:
            return
        self._next_steps = now + STRANDED / 20
        before, self._steps = self._steps, {}
        for flow, wish in lifecycle.steps():
            seen, since = before.get(flow, (wish, now))
            self._steps[flow] = (wish, since if seen.at == wish.at else now)
            if now - self._steps[flow][1] > STRANDED and lifecycle.go_on(flow, wish, self._who) is not None:
                _log.warning("a reconfiguration was cut short; the flow goes on as it was", flow=flow, then=wish.then)

    def _runs(self, name: str, wanted: dict[str, Entry]) -> bool:
        return name in wanted and wanted[name].state in ("running", "paused")

    def _is_held(self, entry: Entry, watched: _Watched) -> bool:
        """Whether somebody acts for the flow now; who is on another machine is watched for as long as a lease lasts."""
        lease, now = entry.lease, time.monotonic()
        if lease is None:
            return False
        before = watched.lease
        if before is None or (before.generation, before.renewals) != (lease.generation, lease.renewals):
            watched.lease, watched.lease_since = lease, now
            before = None
        return not lease.is_free(before if now - watched.lease_since > TTL + 1.0 else None)

    def _ended(self, entry: Entry, watched: _Watched) -> None:
        """Counts a run that is over, and says when the next may begin."""
        assert watched.run is not None
        outcome, watched.run = watched.run.outcome, None
        if _why_done(entry) is not None:
            return
        if time.monotonic() - watched.launched_at > STEADY:
            watched.attempts = 0
        watched.attempts += 1
        rules: RetryRules = watched.rules.retry
        wait = min(rules.max, rules.base * rules.factor ** (watched.attempts - 1))
        watched.next_try = time.monotonic() + wait
        _log.warning("the worker is gone", flow=entry.name, how=outcome, attempts=watched.attempts, next_try_in=f"{wait:.1f} s")
        if watched.attempts >= rules.max_attempts and watched.rules.give_up_policy != "never":
            watched.given_up = entry.wish.at
            if entry.state != "failed":
                died = WorkerDied(f"the worker {outcome}, {watched.attempts} times in a row", flow=entry.name)
                self._mark(entry.name, died)

    def _may_start(self, entry: Entry, watched: _Watched) -> bool:
        if (why := _why_done(entry)) is not None:
            self._premises.ledger.lifecycle.ask("stop", entry.name, self._who, why)
            return False
        if watched.given_up != -1:
            if watched.given_up == entry.wish.at:
                return False
            watched.given_up, watched.attempts, watched.next_try = -1, 0, 0.0
        if _has_failed_for_good(entry):
            return False
        return time.monotonic() >= watched.next_try

    def _launch(self, entry: Entry, watched: _Watched) -> None:
        try:
            watched.rules = stored_flow(self._premises.ledger, entry.name).config
        except FlowInvalid as error:
            self._mark(entry.name, error)
            return
        _log.info("starting a worker", flow=entry.name, launcher=self._launcher.name, attempt=watched.attempts + 1)
        watched.launched_at = time.monotonic()
        watched.run = self._launcher.launch(entry.name, once=entry.wish.state == "once")

    def _mark(self, flow: str, error: PenstockError) -> None:
        """Records that the flow has failed, where no worker could."""
        problems = "; ".join(f"{p.path}: {p.message}" for p in error.problems) if isinstance(error, FlowInvalid) else ""
        why = f"{error.code}: {error.message}{f': {problems}' if problems else ''} → {error.remedy}"
        _log.error("the flow cannot run", flow=flow, code=error.code, reason=error.message, problems=problems)
        try:
            with leasing.holding(self._premises.path, flow, "runner") as lease:
                self._premises.ledger.lifecycle.record(flow, lease.generation, "failed", mask(why), self._who, "failed")
        except FlowRunning:
            _log.info("somebody else runs the flow", flow=flow)


def _why_done(entry: Entry) -> str | None:
    """Why the flow is not to run any more; a run that was cut short by a signal, or a server's end, is not done.

    That nothing was left ends a flow that is to run once, and no other: somebody may have drained it by hand. That its tables are
    loaded is the end of what its definition asks for, whoever ran it.
    """
    if entry.state != "stopped" or entry.updated_at <= entry.wish.at:
        return None
    if entry.reason == LOADED and entry.updated_at > (entry.defined_at or 0):
        return "its tables are loaded"
    return "it has run once" if entry.reason in (DRAINED, LOADED) and entry.wish.state == "once" else None


def _has_failed_for_good(entry: Entry) -> bool:
    """Whether the flow failed in a way that time does not mend, and nobody has wished or changed anything since."""
    newest = max(entry.wish.at, entry.defined_at or 0)
    if entry.state != "failed" or entry.updated_at < newest:
        return False
    return retry_of((entry.reason or "").partition(":")[0]) != "timed"

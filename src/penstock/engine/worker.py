"""The worker: one flow in one process, from the source's log to every destination's checkpoint."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from penstock.core import connectors
from penstock.core.flow import Flow
from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.embedded.cache import kernel_directory
from penstock.embedded.memory import give_back
from penstock.engine import lease as leasing
from penstock.engine import replaying
from penstock.engine.acknowledgement import allowed
from penstock.engine.drain import Drain
from penstock.engine.ending import Ending
from penstock.engine.joining import Joining
from penstock.engine.keeping import JournalKeeper
from penstock.engine.lease import HeldLease
from penstock.engine.load_plans import enter
from penstock.engine.loading import Loading, source_of
from penstock.engine.loops import Beginning, Loops, Surroundings
from penstock.engine.moments import Moment, Moments
from penstock.engine.picture import Picture
from penstock.engine.places import home, journal_directory, ledger_address, run_directory
from penstock.engine.reading import Readers
from penstock.engine.reloading import Changes, compare, kept, past_refusing
from penstock.engine.replaying import Replay
from penstock.engine.resolving import Resolving
from penstock.engine.session import SparkHost
from penstock.engine.status import WorkerStatus
from penstock.engine.steering import Asked, Steering, asked, refuse_stopped, said
from penstock.engine.supervisor import CaptureSupervisor, give_up_place
from penstock.engine.watching import SourceWatch
from penstock.engine.whereabouts import Whereabouts
from penstock.errors import (
    FlowChanged,
    JournalLocked,
    LedgerError,
    LedgerFenced,
    LedgerUnreachable,
    PenstockError,
    SlotInUse,
    SourceError,
    WorkerFailed,
)
from penstock.journal.retention import journal_size, oldest_position
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Prepared, Source

_log = structlog.get_logger()

TICK = 0.1
LOOK = 0.4
SETTLING = 60.0
"""Seconds in which a flow's lanes stand, or something is wrong that is said elsewhere."""
PATIENCE = 90.0
"""Seconds that a successor waits for the slot of a worker that stands still: longer than a server keeps a silent reader."""


class Worker:
    """Runs a flow until it is stopped, is drained, or cannot go on; SIGKILL at any moment loses nothing."""

    def __init__(
        self,
        flow: Flow,
        state: Path,
        *,
        master: str | None = None,
        reload: Callable[[], Flow] | None = None,
        refers: bool = True,
        host: SparkHost | None = None,
        replay: Replay | None = None,
        loads_only: bool = False,
        resolves: bool = False,
    ) -> None:
        """`reload` reads the flow's definition again; where it `refers` to secrets, also after a login was refused.

        A `host` is shared with other workers of this process, and its owner's to stop. `replay` is done once, when the flow
        starts; a flow that has no journal yet begins there. `loads_only` ends when no load is open, whatever `snapshot` says;
        `resolves` has staging tables merged as soon as none is.
        """
        self._loads_only, self._resolves = loads_only, resolves
        self._replay = replay
        self._reload = reload
        self._fresh = self._fresh_options if reload is not None and refers else None
        self._source_watch: SourceWatch | None = None
        self.state = state
        self._owns_host = host is None
        self._host = host or SparkHost(run_directory(flow, state), master)
        self._stopping = threading.Event()
        self._asked_to_reload = False
        self._news = threading.Event()
        self._loops: Loops | None = None
        self._supervisor: CaptureSupervisor | None = None
        self._ledger: Ledger | None = None
        self._lease: HeldLease | None = None
        self._whereabouts: Whereabouts | None = None
        self._asked = Asked(0, 0)
        self._steering: Steering | None = None
        self._resolving: Resolving | None = None
        self._keeper: JournalKeeper | None = None
        self._picture: Picture | None = None
        self._loading: Loading | None = None
        self._failed = False
        self._identity = ""
        self._adopt(flow)

    def _adopt(self, flow: Flow) -> None:
        """Makes the definition the one that this worker runs; nothing of it has begun."""
        self._flow, self._journal = flow, journal_directory(flow, self.state)
        self._source_card = connectors.find("source", flow.source.type)
        beginning = replaying.source_options(self._replay, flow, self._journal) if self._replay is not None else {}
        options = self._source_card.options.model_validate({**flow.source.options, **beginning})
        self._source: Source = self._source_card.load("source")(flow.name, options)
        self._source.home = home(self.state)

    @property
    def flow(self) -> Flow:
        """The flow as it runs now."""
        return self._loops.flow if self._loops is not None else self._flow

    def run(self, max_empty_reads: int | None = None, *, wait: bool = False) -> None:
        """Runs the flow; with `max_empty_reads` it returns after so many looks at a source that had nothing new.

        While another worker runs it, FlowRunning, or with `wait` its end or its silence is waited for. Raises the error that
        ended the flow or, after everything else is done, that of a destination that failed.
        """
        outcome: tuple[str, str | None] = ("stopped", None)
        structlog.contextvars.bind_contextvars(flow=self._flow.name)
        try:
            if not self._take_lease(wait):
                return
            self._start(wait)
            outcome = ("stopped", self._watch(max_empty_reads))
        except PenstockError as error:
            outcome = ("failed", f"{error.code}: {error.message} → {error.remedy}")
            self._failed = self._has_failed() and not isinstance(error, LedgerError)
            raise
        except Exception as error:
            # Its text may hold anything; the worker's own output has it.
            found = WorkerFailed(type(error).__name__)
            outcome = ("failed", f"{found.code}: {found.message} → {found.remedy}")
            raise
        finally:
            try:
                self._shut_down(outcome)
            finally:
                if self._lease is not None:
                    self._lease.give_up()

    def stop(self) -> None:
        """Ends `run` soon and in order; from any thread or a signal handler."""
        self._stopping.set()
        self._news.set()

    def reload(self) -> None:
        """Has the flow's definition read again soon; from any thread or a signal handler."""
        self._asked_to_reload = True
        self._news.set()

    def status(self) -> WorkerStatus:
        """A moment of the flow."""
        told = self._supervisor.told if self._supervisor is not None else 0
        mark = self._supervisor.journal_mark if self._supervisor is not None else 0
        watch = self._source_watch
        health, trouble = (watch.health, watch.trouble) if watch is not None else (None, None)
        destinations = self._loops.statuses() if self._loops is not None else []
        return WorkerStatus(self.flow.name, journal_size(self._journal), mark, told, destinations, health, trouble)

    def is_ready(self) -> bool:
        """Whether every destination's lanes stand, so that a change waits for nothing but its turn."""
        loops = tuple(self._loops or ())
        return bool(loops) and all(loop.is_ready() for loop in loops)

    @property
    def process_ids(self) -> dict[str, int]:
        """The processes that belong to this worker, for people and for tests: `capture` and `jvm`."""
        capture = self._supervisor.process_id if self._supervisor is not None else 0
        return {"capture": capture, "jvm": self._host.process_id}

    def _take_lease(self, wait: bool) -> bool:
        """Makes this worker the one that runs the flow; false when it was stopped while it waited."""
        name = self._flow.name
        address = ledger_address(self.state)
        self._ledger = ledger = Ledger(address)
        wish, self._asked = asked(ledger, name)
        refuse_stopped(name, wish)
        self._whereabouts = Whereabouts(ledger, name, self._journal)
        self._whereabouts.refuse_elsewhere()

        def go_on() -> bool:
            with contextlib.suppress(LedgerUnreachable):
                wish, self._asked = asked(ledger, name)
                return not self._stopping.is_set() and wish.state != "stopped"
            return not self._stopping.is_set()

        self._lease = leasing.take(address, name, "worker", wait=go_on if wait else None, lost=self._news.set)
        if self._lease is not None:
            # Who changes the flow from now on asks this worker; until now it may have been changed, and another worker may have
            # begun it, and its journal.
            if self._reload is not None:
                self._take_change(self._reload())
            self._whereabouts.refuse_elsewhere()
        return self._lease is not None

    def _take_change(self, new: Flow) -> None:
        """Runs the flow as it is defined now, not as it was when this worker began to wait."""
        if new == self._flow:
            return
        if new.name != self._flow.name:
            compare(self._flow, new)
        assert self._ledger is not None
        self._source.close()
        self._adopt(new)
        self._whereabouts = Whereabouts(self._ledger, new.name, self._journal)

    def _start(self, wait: bool) -> None:
        assert self._ledger is not None and self._lease is not None
        os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_directory()))
        around = Surroundings(self.state, self._source, self._host, self._ledger, self._lease, self._moved)
        self._loops = loops = Loops(self._flow, around)
        loops.check()
        kind = self._flow.source.type
        supervisor = CaptureSupervisor(self._source, kind, self._journal, self._appended, self._fresh, self._lease)
        self._supervisor = supervisor
        # What cannot work is refused before anything is made on the server, and before anybody waits for a JVM.
        self._source.recall(self._ledger.memory(self._flow.name))
        discovered = self._source.discover()
        loops.check_keys(discovered)
        told: dict[str, Any] = {"mode": self._source.loading().mode, "takes": loops.takes, "notice": self._load_asked}
        self._source.joining = joining = Joining(self._flow, self._ledger, self._lease.generation, **told)
        loads_first = (self._loads_only or self._source.loading().mode != "never") and not self._ledger.loads.all(self._flow.name)
        prepared, new, mark = self._prepare(supervisor, wait, export=loads_first)
        threading.Thread(target=self._warm_up, name="spark", daemon=True).start()
        generation = self._lease.generation
        self._ledger.take_over(self._flow.name, prepared.identity, kept(self._flow), generation)
        self._remember(self._source.remember())
        if loads_first and new and not self._ledger.checkpoints(self._flow.name):
            self._loading_begins(discovered)
        if replay := None if new else self._replay:
            replaying.send_again(replay, self._flow, self._ledger, generation, self._journal, self._source.confirmed())
        beginning = prepared.start if new else oldest_position(self._journal)
        self._keeper = JournalKeeper(self._journal, loops, supervisor)
        self._picture = Picture(run_directory(self._flow, self.state), generation, self.status)
        self._steering = Steering(self._ledger, self._flow.name, generation, self._reloaded, self._asked.reloads)
        self._resolving = Resolving(self._ledger, self._flow.name, self._steering.record, self._asked.event)
        self._identity = prepared.identity
        for load in self._ledger.loads.open(self._flow.name):
            if load.kind == "table" and load.state == "requested":
                enter(load, self._ledger, generation, loops.takes())
        joining.delivers = True
        loops.start(Beginning(prepared.identity, beginning, discovered), paused=self._steering.is_paused)
        self._steering.record("started", None, "running")
        self._loading = loading = self._load(prepared, prepared.start if new else mark)
        supervisor.begin(prepared)
        loading.start()
        self._source_watch = SourceWatch(self._source, self._remember, self._news.set, let_go=supervisor.let_go)
        self._source_watch.start()
        _log.info(
            "flow started",
            flow=self._flow.name,
            generation=generation,
            source=kind,
            **prepared.facts,
            journal=str(self._journal),
            journal_end="new" if new else format_lsn(mark),
            destinations=", ".join(loops.places()),
        )

    def _loading_begins(self, discovered: Sequence[TableSchema]) -> None:
        """The flow's first load is recorded before anything is delivered, so that whoever runs the flow finishes it."""
        assert self._ledger is not None and self._lease is not None and self._loops is not None
        name, generation, who = self._flow.name, self._lease.generation, str(Holder.here())
        tables = [t for t in discovered if t.identity]
        if self._source.loading().consistent:
            entries = {
                d: [(t.schema, t.name) for t in tables if takes(t.schema, t.name)] for d, takes in self._loops.takes().items()
            }
            self._ledger.loads.begin(name, generation, "first", {}, who, entries)
        else:
            self._ledger.loads.request(name, "backfill", {"first": True}, who)

    def _load(self, prepared: Prepared, mark: int) -> Loading:
        """What reads tables, now or whenever somebody asks for it."""
        assert self._ledger is not None and self._lease is not None and self._loops is not None and self._supervisor is not None
        source, supervisor = source_of(self._flow), self._supervisor
        first = None
        if prepared.snapshot is not None:
            hold = (self._source.snapshot_alive, self._source.let_snapshot_go)
            first = Moment(prepared.snapshot, prepared.described, prepared.start, prepared.start, *hold)
        card = self._source_card
        moments = Moments(
            self._journal, lambda: card.load("chunks")({}), lambda: max(mark, supervisor.journal_mark), supervisor.probe, first
        )
        readers = Readers(self._host, self._loops.board, source, self._flow.source.type, self._journal, source.loading().rate)
        around, loops = (self._ledger, self._lease, self._journal), self._loops
        asked: dict[str, Any] = {"takes": loops.takes, "begun": loops.has_begun, "ended": loops.has_ended}
        return Loading(self._flow, source, readers, moments, *around, notice=self._loads_moved, **asked)

    def _loads_moved(self) -> None:
        """Something about loads has changed."""
        if self._loops is not None:
            self._loops.notice_loads()
        if self._loading is not None and self._loading.error is not None:
            self._news.set()

    def _load_asked(self) -> None:
        """Tables join, and wait for their load."""
        self._loads_moved()
        if self._loading is not None:
            self._loading.look_soon()

    def _prepare(self, supervisor: CaptureSupervisor, wait: bool, *, export: bool) -> tuple[Prepared, bool, int]:
        """Source and journal ready; the capture of a worker that was taken over gets time to end by itself."""
        assert self._lease is not None
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return supervisor.prepare(export=export)
            except (JournalLocked, SlotInUse) as error:
                former = self._lease.took_over and f"penstock {self._flow.name}" in error.message
                patient = former if isinstance(error, SlotInUse) else self._lease.took_over or wait
                if not patient or self._stopping.is_set() or (time.monotonic() > deadline and not wait):
                    raise
                _log.warning("waiting for the former worker's capture to end", code=error.code, reason=error.message)
                self._stopping.wait(1.0)

    def _record_end(self, ledger: Ledger, generation: int, state: str, why: str | None) -> None:
        try:
            ledger.lifecycle.record(self._flow.name, generation, state, why, str(Holder.here()), state)
        except LedgerUnreachable as error:
            _log.warning("how this run ended was not recorded", state=state, why=why or "", reason=error.message)

    def _remember(self, memory: dict[str, Any]) -> None:
        assert self._ledger is not None and self._lease is not None
        if self._lease.error is not None:
            return
        try:
            self._ledger.remember(self._flow.name, self._lease.generation, memory)
        except PenstockError as error:
            _log.warning("what is known of the source was not recorded", code=error.code, reason=error.message)

    def _reloaded(self) -> str:
        """Takes the definition over as it is now; what has changed, in words."""
        assert self._loops is not None and self._ledger is not None and self._lease is not None and self._steering is not None
        if self._reload is None:
            raise FlowChanged(
                f"the worker of flow {self._flow.name} was started without a file",
                remedy="Start a worker with the new definition.",
            )
        new = self._reload()
        changes = compare(self._loops.flow, new)
        failed: Sequence[str] = self._loops.failed()
        discovered: Sequence[TableSchema] = ()
        try:
            discovered = self._source.discover() if changes.added or changes.restarted or failed else ()
        except SourceError:
            if changes.added or changes.restarted or changes == Changes():
                raise
            # Rules that have changed need no source.
            failed = ()
        beginning = Beginning(self._identity, oldest_position(self._journal), discovered)
        changes = self._loops.change(new, beginning, failed=failed, paused=self._steering.is_paused)
        with past_refusing(new.name):
            self._ledger.redefine(new.name, kept(new), self._lease.generation)
        return str(changes)

    def _fresh_options(self) -> Any | None:
        """The source's options with references resolved anew; None when the definition cannot be read now."""
        assert self._reload is not None
        try:
            return self._source_card.options.model_validate(self._reload().source.options)
        except (PenstockError, ValueError) as error:
            _log.warning("the flow's definition could not be read again", reason=str(error))
            return None

    def _warm_up(self) -> None:
        try:
            self._host.context()
        except PenstockError as error:
            _log.warning("spark did not start", code=error.code, reason=error.message)
        # What is there now stays: looked through again and again, it would hold every epoch up for tens of milliseconds.
        gc.collect()
        gc.freeze()
        deadline = time.monotonic() + SETTLING
        while not self.is_ready() and time.monotonic() < deadline:
            if self._stopping.wait(0.5):
                return
        self._host.tidy()
        give_back()

    def _appended(self) -> None:
        """Capture has made something visible, or has ended."""
        if self._loops is not None:
            self._loops.notice()
            if self._loops.flow.config.ack_policy == "journal":
                self._moved()
        if self._supervisor is not None and self._supervisor.error is not None:
            self._news.set()

    def _moved(self) -> None:
        """A checkpoint has moved: the source may be told what the policy allows."""
        assert self._supervisor is not None and self._loops is not None
        assert self._whereabouts is not None and self._lease is not None
        flow, checkpoints = self._loops.checkpoints()
        if checkpoints and self._whereabouts.record(self._lease.generation):
            self._supervisor.confirm(allowed(flow, checkpoints, self._supervisor.journal_mark))
        if self._loading is not None and self._loading.open:
            self._loading.look_soon()
        if any(loop.error is not None or loop.is_quiet() for loop in self._loops):
            self._news.set()

    def _watch(self, max_empty_reads: int | None) -> str | None:
        """Until something ends the flow: looks after lease, wishes, capture, failed destinations, retention, the drain.

        Returns why the flow ends when somebody has asked for it, or nothing is left.
        """
        assert self._keeper is not None and self._steering is not None and self._loops is not None
        assert self._picture is not None and self._supervisor is not None and self._resolving is not None
        assert self._loading is not None
        drain = Drain(self._source, self._loops, self._supervisor, self._loading)
        ending = Ending(
            self._loops,
            self._loading,
            self._resolving,
            drain,
            max_empty_reads=max_empty_reads,
            loads_only=self._loads_only,
            only_loads=self._source.loading().mode == "only",
            resolves=self._resolves,
        )
        while not self._stopping.is_set():
            self._news.wait(TICK if max_empty_reads is not None else LOOK)
            self._news.clear()
            self._raise_errors()
            if self._asked_to_reload:
                self._asked_to_reload = False
                self._steering.reload()
            self._resolving.look(self._loops)
            wish = self._steering.look(self._loops)
            if wish is not None:
                _log.info("stopping", flow=self.flow.name, by=wish.who, why=wish.why or "")
                return said(wish)
            if self._lease is not None and self._lease.valid():
                self._keeper.look(paused=self._steering.is_paused)
                self._picture.look()
            if (why := ending.look()) is not None:
                self._raise_failed()
                return why
        self._raise_failed()
        return None

    def _raise_errors(self) -> None:
        assert self._supervisor is not None and self._loops is not None and self._lease is not None
        if self._lease.error is not None:
            raise self._lease.error
        if self._supervisor.error is not None:
            raise self._supervisor.error
        if self._source_watch is not None and self._source_watch.error is not None:
            raise self._source_watch.error
        if self._loading is not None and self._loading.error is not None:
            raise self._loading.error
        if self._has_failed():
            self._raise_failed()

    def _raise_failed(self) -> None:
        for loop in self._loops or ():
            if isinstance(loop.error, LedgerFenced) and self._lease is not None:
                # The ledger knows of the take-over; the lease knows by whom.
                self._lease.check(patience=5.0)
            if (error := loop.end_of_all()) is not None:
                raise error

    def _has_failed(self) -> bool:
        """Whether nothing of the flow can go on: no destination, no source, or a first load that cannot be finished.

        A surprise is none of these: loads bear their own, and the worker's own says nothing of the source.
        """
        parts = (self._supervisor, self._source_watch, self._loading)
        lost = any(part is not None and part.error is not None for part in parts)
        loops = tuple(self._loops or ())
        return lost or (bool(loops) and all(loop.error is not None for loop in loops))

    def _give_up_slot(self) -> None:
        """The flow has failed for good, and its rules may say that the server is not to keep anything for it."""
        holds = self._lease is not None and self._lease.valid()
        if self._failed and holds and self.flow.config.failure_mode == "drop_slot":
            give_up_place(self._source)

    def _shut_down(self, outcome: tuple[str, str | None]) -> None:
        """Ends everything, in the order in which it depends on each other; one part's trouble does not keep the next one up."""
        state, why = outcome
        with contextlib.ExitStack() as stack:
            if self._ledger is not None:
                stack.callback(self._ledger.close)
                if self._lease is not None:
                    stack.callback(self._record_end, self._ledger, self._lease.generation, state, why)
            if self._steering is not None:
                stack.callback(self._remember, self._source.remember())
            if self._picture is not None and self._lease is not None and self._lease.valid():
                self._picture.look(at_once=True)
            stack.callback(self._source.close)
            stack.callback(self._give_up_slot)
            if self._source_watch is not None:
                self._source_watch.stop()
            if self._owns_host:
                stack.callback(self._host.stop)
            if self._supervisor is not None:
                stack.callback(self._supervisor.stop)
            if self._loading is not None:
                stack.callback(self._loading.close)
                self._loading.stop()
            if self._loops is not None:
                stack.callback(self._loops.close)

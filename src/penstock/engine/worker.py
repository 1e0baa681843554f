"""The worker: one flow in one process, from the source's log to every destination's checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from penstock.core import connectors
from penstock.core.flow import DestinationUse, Flow
from penstock.core.position import format_lsn
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Place
from penstock.engine.acknowledgement import allowed
from penstock.engine.lanes import Lanes
from penstock.engine.letters import Letters
from penstock.engine.loop import DestinationLoop
from penstock.engine.places import hold, journal_directory, ledger_path, run_directory, staging_directory
from penstock.engine.planner import Limits
from penstock.engine.pressure import Standing, relief
from penstock.engine.session import SparkHost
from penstock.engine.status import DestinationStatus, WorkerStatus
from penstock.engine.supervisor import CaptureSupervisor
from penstock.engine.switchboard import Switchboard
from penstock.engine.watching import SourceWatch
from penstock.errors import JournalFull, LedgerError, PenstockError, SourceError, TableWithoutKey, from_data
from penstock.journal.retention import journal_size, oldest_position, trim
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Source

_log = structlog.get_logger()

TRIM_INTERVAL = 10.0
TICK = 0.1
MAX_ROWS = 100_000


class Worker:
    """Runs a flow until it is stopped, is drained, or cannot go on; SIGKILL at any moment loses nothing."""

    def __init__(self, flow: Flow, state: Path, *, master: str | None = None, reload: Callable[[], Flow] | None = None) -> None:
        """`reload` reads the flow's definition again, for secrets that have changed where it refers to them."""
        self.flow = flow
        self._reload = reload
        self._source_watch: SourceWatch | None = None
        self.state = state
        self._journal = journal_directory(flow, state)
        self._host = SparkHost(run_directory(flow, state), master)
        self._stopping = threading.Event()
        self._news = threading.Event()
        self._loops: list[DestinationLoop] = []
        self._destinations: list[tuple[DestinationUse, Destination]] = []
        self._supervisor: CaptureSupervisor | None = None
        self._board: Switchboard | None = None
        self._ledger: Ledger | None = None
        self._generation = 0
        self._failed = False
        self._holding = False
        self._trimmed_at = 0.0
        self._source_card = connectors.find("source", flow.source.type)
        self._source: Source = self._source_card.load("source")(
            flow.name, self._source_card.options.model_validate(flow.source.options)
        )

    def run(self, max_empty_reads: int | None = None) -> None:
        """Runs the flow; with `max_empty_reads` it returns after so many looks at a source that had nothing new.

        Raises the error that ended the flow or, after everything else is done, that of a destination that failed.
        """
        lock = hold(self.state, self.flow.name)
        outcome: tuple[str, str | None] = ("stopped", None)
        try:
            self._start()
            self._watch(max_empty_reads)
        except PenstockError as error:
            outcome = ("failed", f"{error.code}: {error.message}")
            self._failed = self._has_failed() and not isinstance(error, LedgerError)
            raise
        finally:
            self._shut_down(outcome)
            os.close(lock)

    def stop(self) -> None:
        """Ends `run` soon and in order; from any thread or a signal handler."""
        self._stopping.set()
        self._news.set()

    def status(self) -> WorkerStatus:
        """A moment of the flow."""
        now = time.time()
        destinations = []
        for loop in self._loops:
            s = loop.status
            lag, rate = loop.lag(now), loop.epochs_per_second()
            destinations.append(
                dataclasses.replace(s, rows=dict(s.rows), counts=dict(s.counts), lag_seconds=lag, epochs_per_second=rate)
            )
        told = self._supervisor.told if self._supervisor is not None else 0
        mark = self._supervisor.journal_mark if self._supervisor is not None else 0
        watch = self._source_watch
        health, trouble = (watch.health, watch.trouble) if watch is not None else (None, None)
        return WorkerStatus(self.flow.name, journal_size(self._journal), mark, told, destinations, health, trouble)

    def is_ready(self) -> bool:
        """Whether every destination's lanes stand, so that a change waits for nothing but its turn."""
        return bool(self._loops) and all(loop.is_ready() for loop in self._loops)

    @property
    def process_ids(self) -> dict[str, int]:
        """The processes that belong to this worker, for people and for tests: `capture` and `jvm`."""
        capture = self._supervisor.process_id if self._supervisor is not None else 0
        return {"capture": capture, "jvm": self._host.process_id}

    def _start(self) -> None:
        os.environ.setdefault("NUMBA_CACHE_DIR", str(_numba_cache()))
        self._ledger = Ledger(ledger_path(self.state))
        self._destinations = [(use, self._destination(use)) for use in self.flow.destinations]
        self._check_destinations()
        fresh = self._fresh_options if self._reload is not None else None
        supervisor = CaptureSupervisor(self._source, self.flow.source.type, self._journal, self._appended, fresh)
        self._supervisor = supervisor
        # What cannot work is refused before anything is made on the server, and before anybody waits for a JVM.
        self._source.recall(self._ledger.memory(self.flow.name))
        discovered = self._source.discover()
        self._check_keys(discovered)
        prepared, new, mark = supervisor.prepare()
        threading.Thread(target=self._warm_up, name="spark", daemon=True).start()
        definition = self.flow.model_dump_json(include={"name"})
        self._generation = self._ledger.take_over(self.flow.name, prepared.identity, definition)
        self._remember(self._source.remember())
        beginning = prepared.start if new else oldest_position(self._journal)
        self._board = Switchboard()
        for use, destination in self._destinations:
            self._loops.append(self._loop(use, destination, prepared.identity, beginning, discovered))
        for loop in self._loops:
            loop.start()
        supervisor.begin(prepared)
        self._source_watch = SourceWatch(self._source, self._remember, self._news.set, let_go=supervisor.let_go)
        self._source_watch.start()
        _log.info(
            "flow started",
            flow=self.flow.name,
            generation=self._generation,
            source=self.flow.source.type,
            **prepared.facts,
            journal=str(self._journal),
            journal_end="new" if new else format_lsn(mark),
            destinations=", ".join(f"{use.name} at {self._place_of(use, beginning)}" for use in self.flow.destinations),
        )

    def _place_of(self, use: DestinationUse, beginning: int) -> str:
        assert self._ledger is not None
        found = self._ledger.checkpoint(self.flow.name, use.name)
        return format_lsn(found.position if found is not None else beginning)

    def _remember(self, memory: dict[str, Any]) -> None:
        assert self._ledger is not None
        try:
            self._ledger.remember(self.flow.name, self._generation, memory)
        except PenstockError as error:
            _log.warning("what is known of the source was not recorded", code=error.code, reason=error.message)

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

    def _destination(self, use: DestinationUse) -> Destination:
        card = connectors.find("destination", use.type)
        found: Destination = card.load("destination")(self._place(use), card.options.model_validate(use.options))
        return found

    def _place(self, use: DestinationUse) -> Place:
        return Place(self.flow.name, use.name, staging_directory(self.flow, self.state) / use.name)

    def _check_destinations(self) -> None:
        """Refuses to start when a destination cannot work as it is set up, or none can at all."""
        problems: list[PenstockError] = []
        for use, destination in self._destinations:
            findings = [f for f in destination.check() if not f.ok]
            if findings:
                first = findings[0]
                message = f"destination {use.name}: {first.detail or first.subject}"
                data = {"code": first.code or "destination_failed", "message": message, "remedy": first.remedy}
                problems.append(from_data(data))
        final = [p for p in problems if p.retry != "timed"]
        if final or (problems and len(problems) == len(self._destinations)):
            raise (final or problems)[0]

    def _check_keys(self, tables: Sequence[TableSchema]) -> None:
        for use, destination in self._destinations:
            if not connectors.find("destination", use.type).capabilities.get("needs_key"):
                continue
            for table in tables:
                if not table.key and destination.options.takes(table.schema, table.name):
                    raise TableWithoutKey(
                        f"destination {use.name}: table {table.qualified} has no key to apply changes by",
                        remedy=f"ALTER TABLE {_quoted(table.schema)}.{_quoted(table.name)} ADD PRIMARY KEY (…); or exclude it:"
                        f" destinations[{use.name}].options.exclude: [{table.qualified}]",
                    )

    def _loop(
        self, use: DestinationUse, destination: Destination, identity: str, beginning: int, discovered: Sequence[TableSchema]
    ) -> DestinationLoop:
        assert self._ledger is not None and self._board is not None
        card = connectors.find("destination", use.type)
        aside, status = self.flow.config.dead_letter, DestinationStatus(use.name, use.type)
        destination.sets_aside = aside.enabled
        setup: dict[str, Any] = {
            "flow": self.flow.name,
            "name": use.name,
            "destination": use.type,
            "options": use.options,
            "source": self.flow.source.type,
            "completion": self._source.completion(),
            "decoding": self._source.decoding(),
            "staging": str(self._place(use).staging),
            "journal": str(self._journal),
            "dead_letter": {"enabled": aside.enabled, "later": aside.later},
        }
        rules, retry = (use.batch, self.flow.config.batch), use.retry or self.flow.config.retry
        capabilities = card.capabilities
        said = self._source.batching()
        limits = Limits(
            max_rows=_first(rules[0].max_rows, rules[1].max_rows, said.rows, MAX_ROWS),
            max_bytes=_first(rules[0].max_bytes, rules[1].max_bytes, int(capabilities.get("max_bytes", 64 << 20))),
            max_wait=_first(rules[0].max_wait, rules[1].max_wait, said.wait, float(capabilities.get("max_wait", 0.0))),
            parallelism=self.flow.parallelism,
            record_empty=said.empty,
            truncates_alone=bool(capabilities.get("sends")),
        )
        return DestinationLoop(
            flow=self.flow.name,
            source=identity,
            generation=self._generation,
            journal=self._journal,
            destination=destination,
            lanes=Lanes(self._host, self._board, f"{self.flow.name}/{use.name}", setup, self.flow.parallelism),
            ledger=self._ledger,
            letters=Letters(self._ledger, self.flow.name, self._generation, aside, status),
            beginning=beginning,
            limits=limits,
            retry=retry,
            give_up=self.flow.config.give_up_policy == "on_retry_exhaustion",
            status=status,
            discovered=discovered,
            moved=self._moved,
        )

    def _appended(self) -> None:
        """Capture has made something visible, or has ended."""
        for loop in self._loops:
            loop.notice()
        if self._loops and self.flow.config.ack_policy == "journal":
            self._moved()
        if self._supervisor is not None and self._supervisor.error is not None:
            self._news.set()

    def _moved(self) -> None:
        """A checkpoint has moved: the source may be told what the policy allows."""
        assert self._supervisor is not None
        checkpoints = {loop.status.name: loop.status.position for loop in self._loops}
        self._supervisor.confirm(allowed(self.flow, checkpoints, self._supervisor.journal_mark))
        if any(loop.error is not None for loop in self._loops):
            self._news.set()

    def _watch(self, max_empty_reads: int | None) -> None:
        """Until something ends the flow: looks after capture, failed destinations, retention and, if asked, the drain."""
        assert self._supervisor is not None
        empty, delivered = 0, -1
        while not self._stopping.is_set():
            self._news.wait(TICK if max_empty_reads is not None else 1.0)
            self._news.clear()
            if self._supervisor.error is not None:
                raise self._supervisor.error
            if self._source_watch is not None and self._source_watch.error is not None:
                raise self._source_watch.error
            self._check_loops()
            self._keep_journal()
            if max_empty_reads is None:
                continue
            count = sum(loop.status.epochs for loop in self._loops)
            empty = empty + 1 if count == delivered else 0
            delivered = count
            if not self._is_drained():
                empty = 0
            if empty >= max_empty_reads:
                break
        self._raise_failed()

    def _is_drained(self) -> bool:
        """Whether everything that the source has now has reached every destination that works; asks for a fresh mark if not."""
        assert self._supervisor is not None
        try:
            head = self._source.head()
        except SourceError:
            # Whether it will answer again is for capture's supervisor to say.
            return False
        working = [loop for loop in self._loops if loop.error is None]
        if all(loop.status.position >= head and loop.is_idle() and not loop.owes() for loop in working):
            return True
        if all(loop.is_idle() for loop in working):
            self._supervisor.probe()
        return False

    def _check_loops(self) -> None:
        if self._has_failed():
            self._raise_failed()

    def _has_failed(self) -> bool:
        """Whether nothing of the flow can go on: no destination, or no source."""
        lost = self._supervisor is not None and self._supervisor.error is not None
        return lost or (bool(self._loops) and all(loop.error is not None for loop in self._loops))

    def _raise_failed(self) -> None:
        for loop in self._loops:
            if loop.error is not None:
                raise loop.error

    def _keep_journal(self) -> None:
        """Trims the journal, from time to time and when it is full; a full one that cannot be trimmed is the policy's."""
        rules, size = self.flow.config.journal, journal_size(self._journal)
        full = size > rules.max_bytes
        if full or time.monotonic() - self._trimmed_at >= TRIM_INTERVAL:
            self._trimmed_at = time.monotonic()
            kept = [loop.status.position for loop in self._loops if not isinstance(loop.error, JournalFull)]
            removed = trim(self._journal, min(kept, default=0), rules.retention, rules.max_bytes)
            if removed:
                _log.info("journal trimmed", segments=len(removed))
                size = journal_size(self._journal)
        self._relieve(size)

    def _relieve(self, size: int) -> None:
        assert self._supervisor is not None
        standings = [
            Standing(loop.status.name, loop.status.position, loop.is_idle(), isinstance(loop.error, JournalFull))
            for loop in self._loops
        ]
        act = relief(self.flow, size, standings, self._holding)
        if act.hold != self._holding:
            self._holding = act.hold
            self._supervisor.hold(act.hold)
            if act.hold:
                _log.warning("journal full, the source is not read until destinations have caught up", bytes=size)
            else:
                _log.info("journal has room, the source is read again", bytes=size)
        if act.give_up is not None:
            next(loop for loop in self._loops if loop.status.name == act.give_up.facts["destination"]).give_up(act.give_up)

    def _give_up_slot(self) -> None:
        """The flow has failed for good, and its rules say that the server is not to keep anything for it."""
        if not self._failed or self.flow.config.failure_mode != "drop_slot":
            return
        try:
            gone = self._source.release()
        except PenstockError as error:
            _log.error("the flow's place in the source's log could not be given up", code=error.code, reason=error.message)
            return
        if gone is not None:
            _log.error(
                "the flow's place in the source's log was given up",
                gone=gone,
                reason="failure_mode: drop_slot",
                remedy="What committed since is not in the journal: begin the flow anew (`penstock flow cleanup --local`).",
            )

    def _shut_down(self, outcome: tuple[str, str | None]) -> None:
        """Ends everything, in the order in which it depends on each other; one part's trouble does not keep the next one up."""
        with contextlib.ExitStack() as stack:
            if self._ledger is not None:
                stack.callback(self._ledger.close)
                if self._generation:
                    stack.callback(self._ledger.leave, self.flow.name, self._generation, *outcome)
                    stack.callback(self._remember, self._source.remember())
            stack.callback(self._source.close)
            stack.callback(self._give_up_slot)
            if self._source_watch is not None:
                self._source_watch.stop()
            stack.callback(self._host.stop)
            if self._board is not None:
                stack.callback(self._board.close)
            for _, destination in self._destinations:
                stack.callback(destination.close)
            for loop in self._loops:
                stack.callback(loop.close)
            if self._supervisor is not None:
                stack.callback(self._supervisor.stop)
            for loop in self._loops:
                loop.stop()
            for loop in self._loops:
                if loop.is_alive():
                    loop.join(10)


def _first(*choices: Any) -> Any:
    return next(c for c in choices if c is not None)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _numba_cache() -> Path:
    from penstock.embedded.cache import kernel_directory

    return kernel_directory()

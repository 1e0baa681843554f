"""Loading: reads tables in chunks, on Spark, into the journal, and looks after loads until every destination has them.

A load whose tables join (a flow's first, or tables added later) reads all chunks in one snapshot that is held open. When that is
lost, the rest is read in a new one, and the keys that were touched in between are read again, so that the table shows the new
moment as a whole. A backfill of live tables reads every chunk in a short transaction of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from penstock.core import connectors
from penstock.core.flow import Flow
from penstock.engine.lease import HeldLease
from penstock.engine.load_plans import Drive, Flight, LoadPlans
from penstock.engine.moments import Moments
from penstock.engine.reading import Readers
from penstock.errors import (
    LedgerError,
    LedgerFenced,
    LoadInterrupted,
    LoadTooLarge,
    PenstockError,
    SnapshotLost,
    TableChanged,
    TableGone,
)
from penstock.journal.chunks import remove_chunk, remove_loads
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source

_log = structlog.get_logger()

LOOK = 0.5
IDLE = 2.0
"""Seconds between looks while no load is open."""
KEPT = 3600.0
"""Seconds for which the ledger keeps the chunks of a load that is over; then it has their sums."""
BREATH = 0.1
"""Seconds between looks that nobody waits for."""
SIP = 0.01
"""The same where readers are idle until something is delivered, or only deliveries are left; a look's own time if more."""
PAUSE = 2.0
"""Seconds before a read that failed is tried again."""
GROUP_BYTES = 16 << 20
GROUP_CHUNKS = 64
"""Small chunks share a task up to here: a connection and a Spark job each would cost more than their rows."""
MOST_WAITING = 4 << 30
"""Bytes of chunks that may lie in the journal and not be delivered, or a quarter of `journal.max_bytes` if that is less."""
AHEAD = 224 << 20
"""Bytes of chunks that may be read, or lie there, and be delivered nowhere: more would only fill the memory with files.

Two epochs of chunks, one in the lanes and one that waits for them, and two chunks that readers have meanwhile. When what is being
read did not count, readers and lanes took turns: 300 MB were read at once, and then nothing until the half of it was delivered.
"""
SPARE_BYTES = 8 << 20
"""Files from here on are written over: a new one, and giving the old one's pages back, costs 9 ms of CPU for 35 MB, this 4."""
SAY = 10.0


class Loading(threading.Thread):
    """Drives every open load of a flow; its thread is the only one that plans."""

    def __init__(
        self,
        flow: Flow,
        source: Source,
        readers: Readers,
        moments: Moments,
        ledger: Ledger,
        lease: HeldLease,
        journal: Path,
        *,
        notice: Callable[[], None],
        takes: Callable[[], Mapping[str, Callable[[str, str], bool]]],
        begun: Callable[[str, int], bool],
        ended: Callable[[str, int], bool],
    ) -> None:
        """`source` is for this thread alone; `takes` says by destination which tables it has; `notice` tells the loops; `begun`
        and `ended` say whether a destination is ready for a load's rows, and knows that it has all of them."""
        super().__init__(name="loading", daemon=True)
        self._flow, self._source, self._readers, self._moments = flow, source, readers, moments
        self._ledger, self._lease, self._journal = ledger, lease, journal
        self._notice, self._begun, self._ended = notice, begun, ended
        self._settings = source.loading()
        common = (flow, source, moments, ledger, lease, journal)
        self._plans = LoadPlans(*common, notice=notice, look_now=self.look_now, takes=takes)
        self._pool = ThreadPoolExecutor(self._settings.workers, "chunks")
        self._drives: dict[int, Drive] = {}
        self._halt = threading.Event()
        self._news = threading.Event()
        self._urgent = threading.Event()
        self._removed: set[int] = set()
        self._starves = False
        self._next_shrink = 0.0
        self.error: PenstockError | None = None
        """Why the flow cannot go on: its first load cannot be finished."""
        self.open = 0
        """How many loads are not over."""
        self.has_looked = False
        """Whether that is known."""

    def look_soon(self) -> None:
        """Something may have changed: a command, a delivery."""
        self._news.set()

    def look_now(self) -> None:
        """Somebody waits for the next look: a reader that has nothing to do, a load that can go on."""
        self._urgent.set()
        self._news.set()

    def stop(self) -> None:
        """Reads no more; what is being read is given up, and read again when the flow runs."""
        self._halt.set()
        self.look_now()
        self._moments.stop()
        self._readers.stop()

    def close(self) -> None:
        """Gives back snapshots and connections, after `stop`."""
        if self.is_alive():
            self.join(10)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for drive in self._drives.values():
            if drive.moment is not None:
                drive.moment.close()
        self._source.close()

    def run(self) -> None:
        """The thread's body."""
        structlog.contextvars.bind_contextvars(flow=self._flow.name)
        self._clear_away()
        while not self._halt.is_set():
            looked = time.monotonic()
            self._starves = False
            try:
                loads = self._ledger.loads.open(self._flow.name)
                self.open, self.has_looked = len(loads), True
                for load in loads:
                    if not self._halt.is_set():
                        self._look(load)
                if not any(load.wish == "running" and load.state in ("requested", "reading") for load in loads):
                    self._readers.rest()
                self._shrink()
            except LedgerFenced:
                # Another worker drives them now; this one's lease says so.
                return
            except LedgerError as error:
                _log.warning("loads wait for the ledger", code=error.code, reason=error.message)
            except Exception:
                # No load's own, which would bear it: nothing is lost by another look.
                _log.exception("loading")
                self._halt.wait(PAUSE)
            took = 2 * (time.monotonic() - looked)
            self._news.wait(LOOK if self.open else IDLE)
            # Every epoch of every destination is news; the first after a while is looked at at once.
            breath = min(BREATH, max(SIP, took)) if self._starves else BREATH
            self._urgent.wait(max(0.0, looked + breath - time.monotonic()))
            self._urgent.clear()
            self._news.clear()

    def _shrink(self) -> None:
        """Gives up, step by step, what nobody needs any more of loads that are over."""
        if time.monotonic() < self._next_shrink:
            return
        before = time.time_ns() // 1000 - int(KEPT * 1e6)
        if not self._ledger.load_sums.shrink(self._flow.name, self._generation, before):
            self._next_shrink = time.monotonic() + KEPT / 4

    def _look(self, load: Load) -> None:
        if self._lease.error is not None:
            return
        drive = self._drives.get(load.id) or self._drives.setdefault(load.id, self._taken_up(load))
        try:
            self._collect(load, drive)
            if load.wish == "cancelled":
                self._end(load, drive, "cancelled", "an operator has cancelled it")
            elif load.takers == []:
                self._end(load, drive, "cancelled", "the destinations that took part have left the flow")
            elif load.wish == "running" and time.monotonic() >= drive.pause_until:
                self._advance(load, drive)
        except LedgerError:
            raise
        except PenstockError as error:
            if not self._halt.is_set():
                self._meet(load, drive, error)
        except Exception as error:
            # A surprise is this load's alone, and no verdict on it. Its text may hold anything: the log has it, the ledger not.
            found = LoadInterrupted(f"{type(error).__name__} in the worker")
            if load.reason != _why(found):
                _log.exception("loading", load=load.id)
            self._meet(load, drive, found)

    def _taken_up(self, load: Load) -> Drive:
        """What drives a load that this worker meets for the first time."""
        drive = Drive()
        if not self._settings.resumes and load.state != "requested":
            drive.replan = frozenset((c.schema, c.table) for c in self._ledger.loads.chunks(load.id))
            _log.info("load begins anew: nothing was to be kept of the run before", load=load.id, tables=len(drive.replan))
        return drive

    def _advance(self, load: Load, drive: Drive) -> None:
        if load.state == "requested":
            self._plans.plan(load, drive)
            return
        chunks = self._ledger.loads.chunks(load.id)
        if asked := [c for c in chunks if "again" in c.content]:
            self._plans.read_again(load, asked)
            return
        if load.kind == "backfill" and drive.replan:
            self._plans.replan(load, drive)
            return
        flying = {c.id for flight in drive.flying.values() for c in flight.chunks}
        left = [c for c in chunks if c.state == "planned"]
        if (
            load.kind != "backfill"
            and (left or drive.replan)
            and not flying
            and (drive.moment is None or not drive.moment.alive())
        ):
            self._plans.renew(load, drive, chunks)
            return
        had, waiting, ahead = self._undelivered(load, chunks)
        most = min(MOST_WAITING, self._flow.config.journal.max_bytes // 4)
        if left and waiting < most and all(self._begun(name, load.id) for name in self._plans.takers(load)):
            ahead += sum(c.bytes for c in left if c.id in flying and c.content["table"]["key"])
            self._hand_out(load, drive, [c for c in left if c.id not in flying], AHEAD - ahead)
        if not left:
            self._starves = True
            if drive.moment is not None:
                drive.moment.close()
                drive.moment = None
            if load.state == "reading":
                self._become(load, "delivering")
            elif self._is_delivered(load, chunks):
                self._end(load, drive, "done", None)
        self._give_back(load, drive, [c for c in chunks if c.id in had], most - waiting if len(left) > len(flying) else 0)
        self._say(load, drive, chunks)

    def _hand_out(self, load: Load, drive: Drive, left: Sequence[LoadChunk], room: int) -> None:
        """Gives waiting chunks to readers that have nothing to do, until there is no room for more of their bytes."""
        snapshot = drive.moment.name if drive.moment is not None else None
        busy = sum(len(d.flying) for d in self._drives.values())
        # As many again wait in line, so that no reader waits for the next look.
        most = max(0, 2 * self._settings.workers - busy)
        for group in _groups(left, min(GROUP_BYTES, self._plans.rules(load).target_bytes))[:most]:
            if room <= 0 and not any(c.content.get("empties") for c in group):
                self._starves |= len(drive.flying) < self._settings.workers
                break
            room -= sum(c.bytes for c in group if c.content["table"]["key"])
            mark = self._moments.mark()
            spares = [drive.spares.pop()[0] for chunk in group if chunk.bytes >= SPARE_BYTES and drive.spares]
            job = self._pool.submit(self._readers.read, load, group, snapshot, self._settings.workers, spares)
            job.add_done_callback(lambda _: self.look_now())
            drive.flying[job] = Flight(group, mark, spares)

    def _collect(self, load: Load, drive: Drive) -> None:
        """Records what readers have brought; the first error is raised when everything else is safe."""
        problem: PenstockError | None = None
        for job in [j for j in drive.flying if j.done()]:
            flight = drive.flying.pop(job)
            try:
                receipts, error = job.result()
            except PenstockError as failure:
                receipts, error = [], failure
            if receipts:
                shown = [self._moments.shown(load, drive.moment, flight.mark, receipt) for receipt in receipts]
                self._ledger.loads.record_read(load, self._generation, shown)
                if load.reason is not None:
                    self._ledger.loads.become(load, self._generation, load.state)
                self._notice()
            if error is not None:
                self._remove(load, flight.spares)
            if error is not None and (problem is None or not isinstance(problem, TableChanged | TableGone)):
                if isinstance(error, TableChanged | TableGone):
                    failed = next((c for c in flight.chunks if c.id == error.facts.get("load_chunk")), flight.chunks[0])
                    drive.replan |= {(failed.schema, failed.table)}
                problem = error
        if problem is not None:
            raise problem

    def _meet(self, load: Load, drive: Drive, error: PenstockError) -> None:
        """What an error means for a load."""
        drive.pause_until = time.monotonic() + PAUSE
        if load.state == "requested" and drive.moment is not None:
            # It was not planned: the next try takes a moment of its own.
            drive.moment.close()
            drive.moment = None
        if isinstance(error, SnapshotLost | TableChanged | TableGone):
            _log.warning("load", load=load.id, code=error.code, reason=error.message)
            drive.pause_until = 0.0
            # A backfill is planned anew at the next look, where the server's refusal is an error like any other.
            if load.kind != "backfill" and drive.moment is not None:
                drive.moment.close()
                drive.moment = None
            self.look_soon()
            return
        if error.retry == "timed":
            _log.warning("load waits", load=load.id, code=error.code, reason=error.message, remedy=error.remedy, seconds=PAUSE)
            if load.reason != (why := _why(error)):
                self._ledger.loads.become(load, self._generation, load.state, why)
            return
        _log.error("load failed", load=load.id, code=error.code, reason=error.message, remedy=error.remedy)
        if load.kind == "first":
            self.error = error
            self._halt.set()
            self._notice()
            return
        self._end(load, drive, "failed", _why(error))

    def _end(self, load: Load, drive: Drive, state: str, reason: str | None) -> None:
        self._drives.pop(load.id, None)
        for job in drive.flying:
            job.cancel()
        if drive.moment is not None:
            drive.moment.close()
        if state != "done":
            self._ledger.loads.forget_entries(load, self._generation)
        self._become(load, state, reason)
        self._clear_away()
        say = _log.info if state == "done" else _log.warning
        rows = self._ledger.load_sums.of([load.id])[load.id].rows
        say("load is over", load=load.id, state=state, reason=reason or "", rows=rows)

    def _clear_away(self) -> None:
        """What loads have left that are over; it takes room and does no harm until the next one ends."""
        try:
            remove_loads(self._journal, [load.id for load in self._ledger.loads.open(self._flow.name)])
        except (PenstockError, OSError) as error:
            _log.warning("what loads have left could not be removed", reason=str(error))

    def _become(self, load: Load, state: str, reason: str | None = None) -> None:
        self._ledger.loads.become(load, self._generation, state, reason)
        self._notice()
        self.look_now()

    def _is_delivered(self, load: Load, chunks: Sequence[LoadChunk]) -> bool:
        """Whether every destination that takes part has all of it, and its tables are live."""
        names = self._plans.takers(load)
        delivered = self._ledger.loads.delivered(load.id)
        if any(
            e.load == load.id and e.state != "live" and e.destination in names
            for e in self._ledger.loads.entries(self._flow.name)
        ):
            return False
        return all({c.id for c in chunks} <= delivered.get(name, set()) and self._ended(name, load.id) for name in names)

    def _undelivered(self, load: Load, chunks: Sequence[LoadChunk]) -> tuple[set[int], int, int]:
        """The chunks that everybody has, the bytes of the others that somebody may take now, and of those that nobody has."""
        names = self._plans.takers(load)
        delivered = self._ledger.loads.delivered(load.id)
        had = set.intersection(*(delivered.get(name, set()) for name in names)) if names else set()
        any_has = set().union(*delivered.values())
        read = [c for c in chunks if c.state == "read" and c.id not in had]
        # A destination is no reason to wait for a load that it takes no part in, nor are rows that have to come all together.
        ahead = sum(c.bytes for c in read if c.id not in any_has and c.content["table"]["key"])
        return had, sum(c.bytes for c in read) - self._gathered(load, chunks), ahead

    def _give_back(self, load: Load, drive: Drive, chunks: Sequence[LoadChunk], room: int) -> None:
        """Gives back the files of chunks, after readers have got theirs; some are kept to be written over, as bytes allow."""
        kept: list[tuple[str, int]] = []
        for file, size in drive.spares + [(c.file, c.bytes) for c in chunks if c.id not in self._removed]:
            if SPARE_BYTES <= size <= room and len(kept) < 2 * self._settings.workers:
                kept.append((file, size))
                room -= size
            else:
                self._remove(load, [file])
        self._removed.update(c.id for c in chunks)
        drive.spares = kept

    def _remove(self, load: Load, files: Sequence[str]) -> None:
        for file in files:
            try:
                remove_chunk(self._journal, load.id, file)
            except OSError as error:
                _log.warning("a chunk could not be removed, its load's end will try again", load=load.id, reason=str(error))

    def _gathered(self, load: Load, chunks: Sequence[LoadChunk]) -> int:
        """Bytes of tables without a key, which nobody can take before more is read; LoadTooLarge when they fill the journal."""
        if load.kind == "backfill":
            return 0
        unread = {(c.schema, c.table) for c in chunks if c.state == "planned" and not c.content["table"]["key"]}
        gathered = sum(c.bytes for c in chunks if c.state == "read" and (c.schema, c.table) in unread)
        if gathered > self._flow.config.journal.max_bytes:
            names = ", ".join(".".join(name) for name in sorted(unread))
            raise LoadTooLarge(f"{names}: {gathered} bytes are read, and there are more", load=load.id)
        return gathered

    @property
    def _generation(self) -> int:
        return self._lease.generation

    def _say(self, load: Load, drive: Drive, chunks: Sequence[LoadChunk]) -> None:
        now = time.monotonic()
        if now - drive.said_at < SAY or not chunks:
            drive.said_at = drive.said_at or now
            return
        drive.said_at = now
        read = [c for c in chunks if c.state == "read"]
        _log.info(
            "loading",
            load=load.id,
            chunks=f"{len(read)} of {len(chunks)}",
            rows=sum(c.rows for c in read),
            bytes=sum(c.bytes for c in read),
        )


def _why(error: PenstockError) -> str:
    return f"{error.code}: {error.message} → {error.remedy}"


def _groups(chunks: Sequence[LoadChunk], most: int) -> list[list[LoadChunk]]:
    """Chunks that are read one after the other by one task: what is lost with it is no more than was asked for as a chunk."""
    groups: list[list[LoadChunk]] = []
    size = 0
    for chunk in chunks:
        if not groups or size + chunk.bytes > most or len(groups[-1]) >= GROUP_CHUNKS:
            groups.append([])
            size = 0
        groups[-1].append(chunk)
        size += chunk.bytes
    return groups


def source_of(flow: Flow) -> Source:
    """A driver half for the loading thread alone, with connections of its own."""
    card = connectors.find("source", flow.source.type)
    made: Source = card.load("source")(flow.name, card.options.model_validate(flow.source.options))
    return made

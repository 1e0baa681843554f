"""Loading: reads tables in chunks, on Spark, into the journal, and looks after loads until every destination has them.

A load whose tables join (a flow's first, or tables added later) reads all chunks in one snapshot that is held open. When that is
lost, the rest is read in a new one, and the keys that were touched in between are read again, so that the table shows the new
moment as a whole. A backfill of live tables reads every chunk in a short transaction of its own.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.core import connectors
from penstock.core.flow import Flow
from penstock.core.naming import fits
from penstock.core.schema import TableSchema
from penstock.engine.lease import HeldLease
from penstock.engine.moments import Mark, Moment, Moments
from penstock.engine.reading import Readers
from penstock.engine.taking import unpack_keys
from penstock.errors import (
    LedgerError,
    LedgerFenced,
    LoadInterrupted,
    LoadTooLarge,
    PenstockError,
    SnapshotLost,
    TableChanged,
    TableGone,
    TablesMissing,
)
from penstock.journal.catalog import Catalog
from penstock.journal.chunks import remove_chunk, remove_loads
from penstock.journal.segment import catalog_path
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source
from penstock.sources.chunks import Chunk, LoadRules

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
SAY = 10.0
PUBLISHING = 120.0
"""Seconds that a table has to be published after its load was asked for."""
Table = tuple[str, str]


@dataclass(frozen=True)
class _Flight:
    """Chunks that are being read, and how far the journal was complete before."""

    chunks: Sequence[LoadChunk]
    mark: Mark


@dataclass
class _Drive:
    """What a load needs while a worker drives it; lost with the worker, and found again from the ledger."""

    moment: Moment | None = None
    flying: dict[Future[Any], _Flight] = field(default_factory=dict)
    pause_until: float = 0.0
    replan: frozenset[Table] = frozenset()
    older: set[int] | None = None
    said_at: float = 0.0


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
        self._notice, self._takes, self._begun, self._ended = notice, takes, begun, ended
        self._settings = source.loading()
        self._pool = ThreadPoolExecutor(self._settings.workers, "chunks")
        self._drives: dict[int, _Drive] = {}
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

    def _taken_up(self, load: Load) -> _Drive:
        """What drives a load that this worker meets for the first time."""
        drive = _Drive()
        if not self._settings.resumes and load.state != "requested":
            drive.replan = frozenset((c.schema, c.table) for c in self._ledger.loads.chunks(load.id))
            _log.info("load begins anew: nothing was to be kept of the run before", load=load.id, tables=len(drive.replan))
        return drive

    def _advance(self, load: Load, drive: _Drive) -> None:
        if load.state == "requested":
            self._plan(load, drive)
            return
        chunks = self._ledger.loads.chunks(load.id)
        if asked := [c for c in chunks if "again" in c.content]:
            self._read_again(load, asked)
            return
        if load.kind == "backfill" and drive.replan:
            self._replan_backfill(load, drive)
            return
        flying = {c.id for flight in drive.flying.values() for c in flight.chunks}
        left = [c for c in chunks if c.state == "planned"]
        if (
            load.kind != "backfill"
            and (left or drive.replan)
            and not flying
            and (drive.moment is None or not drive.moment.alive())
        ):
            self._renew(load, drive, chunks)
            return
        had, waiting, ahead = self._undelivered(load, chunks)
        most = min(MOST_WAITING, self._flow.config.journal.max_bytes // 4)
        if left and waiting < most and all(self._begun(name, load.id) for name in self._names(load)):
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
        self._remove(load, [c for c in chunks if c.id in had])
        self._say(load, drive, chunks)

    def _plan(self, load: Load, drive: _Drive) -> None:
        """Which chunks there are, the moment at which they are read, and who takes part."""
        takers = self._names(load)
        if load.kind == "table":
            enter(load, self._ledger, self._generation, self._takes())
            self._notice()
        tables = self._tables(load)
        missing = set(named(load)) - {(t.schema, t.name) for t in tables}
        if missing and load.spec.get("joined"):
            _log.warning("tables that joined are gone; the rest is loaded", tables=", ".join(".".join(n) for n in missing))
            self._ledger.loads.forget_entries(load, self._generation, missing)
            missing = set()
        if load.kind == "table":
            missing |= {(t.schema, t.name) for t in self._source.unsent(tables)}
        if missing:
            self._miss(load, drive, missing)
            return
        if load.kind == "backfill":
            self._refuse_unknown(load, tables)
        rules = self._rules(load)
        if load.kind == "backfill":
            chunks = self._source.plan_chunks(tables, replace(rules, common_snapshot=False))
            moment = self._moments.take(self._source, 0)
            moment.close()
            planned = self._contents(chunks, tables)
            self._ledger.loads.plan(load, self._generation, planned, snapshot=None, position=0, low=moment.low, takers=takers)
        else:
            known = self._known(load) if load.kind == "table" else set()
            if load.kind == "table" and not named(load):
                enter(load, self._ledger, self._generation, self._takes(), [(t.schema, t.name) for t in tables])
                self._notice()
            moment = self._moments.first(load) or self._moments.take(self._source, load.low)
            drive.moment = moment
            if named(load) and not self._is_clear(drive, moment):
                return
            chunks = self._source.plan_chunks(tables, rules)
            self._ledger.loads.plan(
                load,
                self._generation,
                _emptying(self._contents(chunks, tables), known),
                snapshot=moment.described,
                position=moment.position,
                low=moment.low,
                takers=takers,
            )
        _log.info(
            "load planned",
            load=load.id,
            kind=load.kind,
            tables=len(tables),
            chunks=len(chunks),
            rows=sum(c.rows for c in chunks),
            bytes=sum(c.bytes for c in chunks),
        )
        self._notice()
        self.look_now()

    def _is_clear(self, drive: _Drive, moment: Moment) -> bool:
        """Whether every transaction has ended that ran when the tables were published: what it wrote before is nowhere else."""
        running = set(self._moments.running(moment))
        if drive.older is None:
            drive.older = running
        drive.older &= running
        if drive.older:
            moment.close()
            drive.moment, drive.pause_until = None, time.monotonic() + LOOK
            if not drive.said_at:
                drive.said_at = time.monotonic()
                _log.info(
                    "load waits for transactions that began before its tables were published", transactions=len(drive.older)
                )
        return not drive.older

    def _known(self, load: Load) -> set[Table]:
        """Tables that the flow has had before: what a destination holds of them may be gone from the source by now."""
        names = Catalog(catalog_path(self._journal)).names()
        loaded = {(e.schema, e.table) for e in self._ledger.loads.entries(self._flow.name) if e.state == "live"}
        earlier = self._ledger.load_sums.tables(self._flow.name, load.id)
        return loaded | earlier | {(s, t) for s, _, t in (name.partition(".") for name in names)}

    def _refuse_unknown(self, load: Load, tables: Sequence[TableSchema]) -> None:
        """A name or pattern that fits nothing is a slip of the pen, and nothing is read for the others either."""
        words: Iterable[str] = load.spec.get("tables") or ()
        unknown = [word for word in words if not any(fits(word, t.schema, t.name) for t in tables)]
        if unknown:
            raise TablesMissing(
                f"the flow takes no table that fits {', '.join(unknown)}",
                remedy="Correct the names: `penstock publication list --flow FLOW` shows what the flow takes. Nothing was read.",
            )

    def _miss(self, load: Load, drive: _Drive, missing: Iterable[Table]) -> None:
        """Tables that are asked for by name and that the flow does not take; one that is being published is waited for."""
        names = ", ".join(sorted(".".join(name) for name in missing))
        if load.kind == "table" and time.time() - load.created_at / 1e6 < PUBLISHING:
            drive.pause_until = time.monotonic() + LOOK
            return
        raise TablesMissing(
            f"the flow does not take {names}",
            remedy="Correct the names, or publish the tables: `penstock publication add --flow FILE TABLE --snapshot`.",
        )

    def _renew(self, load: Load, drive: _Drive, chunks: Sequence[LoadChunk]) -> None:
        """The snapshot is lost, or a table has changed: a new moment, in which also that is read which was touched meanwhile."""
        if drive.moment is not None:
            drive.moment.close()
            drive.moment = None
        moment = self._moments.take(self._source, load.low)
        try:
            self._plan_rest(load, drive, chunks, moment)
        except BaseException:
            # Nothing is read in a snapshot of which the ledger does not know what it shows besides.
            moment.close()
            raise
        drive.moment, drive.replan = moment, frozenset()
        self._notice()
        self.look_now()

    def _plan_rest(self, load: Load, drive: _Drive, chunks: Sequence[LoadChunk], moment: Moment) -> None:
        """What is left to be read in a new moment, and what has to be read again in it."""
        tables = {(t.schema, t.name): t for t in self._tables(load)}
        more: list[dict[str, Any]] = []
        replaced: list[int] = []
        for name in dict.fromkeys((c.schema, c.table) for c in chunks):
            mine = [c for c in chunks if (c.schema, c.table) == name]
            planned = [c for c in mine if c.state == "planned"]
            if name not in tables:
                self._lose(load, name, mine)
                continue
            if not planned and name not in drive.replan:
                continue
            read = [c for c in mine if c.state == "read"]
            keys = self._moments.touched(load, tables[name], read, moment) if read and name not in drive.replan else None
            if name not in drive.replan and keys is not None and tables[name].key:
                more += self._contents([c for k in keys for c in self._source.key_chunks(tables[name], k)], [tables[name]])
                continue
            if not read and name not in drive.replan:
                continue
            fresh = self._contents(self._source.plan_chunks([tables[name]], self._rules(load)), [tables[name]])
            if fresh and read:
                # Also where no destination has closed an epoch of these chunks: one may be on its way.
                fresh[0]["content"]["empties"] = True
            more += fresh
            replaced += [c.id for c in mine]
        self._ledger.loads.plan(
            load,
            self._generation,
            more,
            snapshot=moment.described,
            position=moment.position,
            low=moment.low,
            replaced=replaced,
        )
        _log.warning(
            "load goes on in a new snapshot",
            load=load.id,
            again=sum(c["rows"] for c in more),
            tables_anew=", ".join(".".join(name) for name in drive.replan),
        )

    def _read_again(self, load: Load, asked: Sequence[LoadChunk]) -> None:
        """Keys that a destination has asked for become chunks."""
        more = []
        for one in asked:
            table = TableSchema.from_data(one.content["table"])
            for keys in unpack_keys(base64.b64decode(one.content["again"])):
                more += self._contents(self._source.key_chunks(table, keys), [table])
        for made in more:
            made["content"]["asked"] = True
        at: dict[str, Any] = {"snapshot": load.snapshot, "position": load.position, "low": load.low}
        self._ledger.loads.plan(load, self._generation, more, **at, replaced=[c.id for c in asked])
        self._notice()
        self.look_now()

    def _hand_out(self, load: Load, drive: _Drive, left: Sequence[LoadChunk], room: int) -> None:
        """Gives waiting chunks to readers that have nothing to do, until there is no room for more of their bytes."""
        snapshot = drive.moment.name if drive.moment is not None else None
        busy = sum(len(d.flying) for d in self._drives.values())
        # As many again wait in line, so that no reader waits for the next look.
        for group in _groups(left, min(GROUP_BYTES, self._rules(load).target_bytes))[: max(0, 2 * self._settings.workers - busy)]:
            if room <= 0 and not any(c.content.get("empties") for c in group):
                self._starves |= len(drive.flying) < self._settings.workers
                break
            room -= sum(c.bytes for c in group if c.content["table"]["key"])
            mark = self._moments.mark()
            job = self._pool.submit(self._readers.read, load, group, snapshot, self._settings.workers)
            job.add_done_callback(lambda _: self.look_now())
            drive.flying[job] = _Flight(group, mark)

    def _collect(self, load: Load, drive: _Drive) -> None:
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
            if error is not None and (problem is None or not isinstance(problem, TableChanged | TableGone)):
                if isinstance(error, TableChanged | TableGone):
                    failed = next((c for c in flight.chunks if c.id == error.facts.get("load_chunk")), flight.chunks[0])
                    drive.replan |= {(failed.schema, failed.table)}
                problem = error
        if problem is not None:
            raise problem

    def _meet(self, load: Load, drive: _Drive, error: PenstockError) -> None:
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

    def _replan_backfill(self, load: Load, drive: _Drive) -> None:
        """Tables that are not what they were are cut anew, as they are now; those that are gone are left."""
        tables = {(t.schema, t.name): t for t in self._tables(load)}
        chunks = self._ledger.loads.chunks(load.id)
        more: list[dict[str, Any]] = []
        replaced: list[int] = []
        for name in drive.replan:
            mine = [c for c in chunks if (c.schema, c.table) == name and (c.state == "planned" or not self._settings.resumes)]
            if name not in tables:
                self._lose(load, name, mine)
                continue
            rules = replace(self._rules(load), common_snapshot=False)
            more += self._contents(self._source.plan_chunks([tables[name]], rules), [tables[name]])
            replaced += [c.id for c in mine]
        drive.replan = frozenset()
        self._ledger.loads.plan(load, self._generation, more, snapshot=None, position=0, low=load.low, replaced=replaced)

    def _lose(self, load: Load, name: Table, chunks: Sequence[LoadChunk]) -> None:
        _log.warning("a table that was to be loaded is gone; the rest is loaded", load=load.id, table=".".join(name))
        self._ledger.loads.give_up_chunks(load, self._generation, [c.id for c in chunks if c.state == "planned"])

    def _end(self, load: Load, drive: _Drive, state: str, reason: str | None) -> None:
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
        names = self._names(load)
        delivered = self._ledger.loads.delivered(load.id)
        if any(
            e.load == load.id and e.state != "live" and e.destination in names
            for e in self._ledger.loads.entries(self._flow.name)
        ):
            return False
        return all({c.id for c in chunks} <= delivered.get(name, set()) and self._ended(name, load.id) for name in names)

    def _undelivered(self, load: Load, chunks: Sequence[LoadChunk]) -> tuple[set[int], int, int]:
        """The chunks that everybody has, the bytes of the others that somebody may take now, and of those that nobody has."""
        names = self._names(load)
        delivered = self._ledger.loads.delivered(load.id)
        had = set.intersection(*(delivered.get(name, set()) for name in names)) if names else set()
        any_has = set().union(*delivered.values())
        read = [c for c in chunks if c.state == "read" and c.id not in had]
        # A destination is no reason to wait for a load that it takes no part in, nor are rows that have to come all together.
        ahead = sum(c.bytes for c in read if c.id not in any_has and c.content["table"]["key"])
        return had, sum(c.bytes for c in read) - self._gathered(load, chunks), ahead

    def _remove(self, load: Load, chunks: Sequence[LoadChunk]) -> None:
        """Gives back the files of chunks, after readers have got theirs: the pages of a big file take 10 ms to give back."""
        for chunk in chunks:
            if chunk.id not in self._removed:
                self._removed.add(chunk.id)
                try:
                    remove_chunk(self._journal, load.id, chunk.file)
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

    def _names(self, load: Load) -> list[str]:
        """The destinations that take part and are still there."""
        return [name for name in self._takes() if load.takes(name)]

    @property
    def _generation(self) -> int:
        return self._lease.generation

    def _tables(self, load: Load) -> list[TableSchema]:
        """What the load is of, as the source's catalogue and the journal have it now."""
        patterns: Iterable[str] = load.spec.get("tables") or ()
        exactly = set(named(load)) if "names" in load.spec else None
        takes = [take for name, take in self._takes().items() if load.takes(name)]
        known = _versions(Catalog(catalog_path(self._journal)))
        found = []
        for table in self._source.discover():
            name = (table.schema, table.name)
            wanted = name in exactly if exactly is not None else not patterns or any(fits(word, *name) for word in patterns)
            if wanted and table.identity and any(take(table.schema, table.name) for take in takes):
                found.append(known.get((table.identity, table.columns, table.key)) or replace(table, version=0))
        return found

    def _rules(self, load: Load) -> LoadRules:
        spec = load.spec
        chosen = {k: spec[k] for k in ("where", "partition_column", "partition_count", "target_bytes") if spec.get(k)}
        return replace(self._settings.rules, **chosen)

    def _contents(self, chunks: Sequence[Chunk], tables: Sequence[TableSchema]) -> list[dict[str, Any]]:
        described = {(t.schema, t.name): t.to_data() for t in tables}
        return [
            {"schema": c.schema, "table": c.name, "rows": c.rows, "bytes": c.bytes}
            | {"content": {"chunk": c.to_data(), "table": described[c.schema, c.name]}}
            for c in chunks
        ]

    def _say(self, load: Load, drive: _Drive, chunks: Sequence[LoadChunk]) -> None:
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


def _emptying(contents: list[dict[str, Any]], known: set[Table]) -> list[dict[str, Any]]:
    """The same chunks; the first of each table that is known empties it before."""
    seen: set[Table] = set()
    for one in contents:
        name = (one["schema"], one["table"])
        if name in known and name not in seen:
            one["content"]["empties"] = True
        seen.add(name)
    return contents


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


def _versions(catalog: Catalog) -> dict[tuple[Any, ...], TableSchema]:
    """The newest version of each shape of a table that the journal knows."""
    catalog.names()
    found = {}
    for _, entry in sorted(catalog.entries.items()):
        found[entry.table.identity, entry.table.columns, entry.table.key] = entry.table
    return found


def named(load: Load) -> list[Table]:
    """The tables that a load asks for by their whole names, as (schema, table)."""
    if "names" in load.spec:
        return [(str(schema), str(table)) for schema, table in load.spec["names"]]
    if load.kind == "backfill":
        return []
    whole = [str(name) for name in load.spec.get("tables") or () if not set("*?[") & set(str(name)) and str(name).count(".") == 1]
    return [(schema, table) for schema, _, table in (name.partition(".") for name in whole)]


def enter(
    load: Load,
    ledger: Ledger,
    generation: int,
    takes: Mapping[str, Callable[[str, str], bool]],
    tables: Sequence[Table] | None = None,
) -> None:
    """From now on the tables, or those that the load names, wait for it wherever they are taken."""
    positions = ledger.checkpoints(load.flow)
    for name, takes_table in takes.items():
        if load.takes(name):
            mine = [one for one in (tables if tables is not None else named(load)) if takes_table(*one)]
            ledger.loads.enter(load.flow, generation, load.id, {name: mine}, positions.get(name, 0))


def source_of(flow: Flow) -> Source:
    """A driver half for the loading thread alone, with connections of its own."""
    card = connectors.find("source", flow.source.type)
    made: Source = card.load("source")(flow.name, card.options.model_validate(flow.source.options))
    return made

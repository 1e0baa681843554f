"""Which chunks a load has: those it begins with, and those that a lost snapshot, a changed table or a destination asks for.

Nothing here reads a row of a table: plans go to the ledger, and `loading` has them read.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.core.flow import Flow
from penstock.core.naming import fits
from penstock.core.schema import TableSchema
from penstock.engine.lease import HeldLease
from penstock.engine.moments import Mark, Moment, Moments
from penstock.engine.taking import unpack_keys
from penstock.errors import TablesMissing
from penstock.journal.catalog import Catalog
from penstock.journal.segment import catalog_path
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source
from penstock.sources.chunks import Chunk, LoadRules

_log = structlog.get_logger()

AGAIN = 0.5
"""Seconds before it is looked again for what a plan waits for: a table that is being published, a transaction that is to end."""
PUBLISHING = 120.0
"""Seconds that a table has to be published after its load was asked for."""
Table = tuple[str, str]


@dataclass(frozen=True)
class Flight:
    """Chunks that are being read, and how far the journal was complete before."""

    chunks: Sequence[LoadChunk]
    mark: Mark
    spares: Sequence[str]
    """Files of delivered chunks that the readers may have written over."""


@dataclass
class Drive:
    """What a load needs while a worker drives it; lost with the worker, and found again from the ledger."""

    moment: Moment | None = None
    flying: dict[Future[Any], Flight] = field(default_factory=dict)
    pause_until: float = 0.0
    replan: frozenset[Table] = frozenset()
    """Tables that are not what they were when they were planned."""
    older: set[int] | None = None
    """Transactions that a load waits for: they ran when its tables were published."""
    said_at: float = 0.0
    spares: list[tuple[str, int]] = field(default_factory=list)
    """Files of delivered chunks that wait to be written over, and their bytes."""


class LoadPlans:
    """Plans the loads of a flow; for the thread that drives them alone."""

    def __init__(
        self,
        flow: Flow,
        source: Source,
        moments: Moments,
        ledger: Ledger,
        lease: HeldLease,
        journal: Path,
        *,
        notice: Callable[[], None],
        look_now: Callable[[], None],
        takes: Callable[[], Mapping[str, Callable[[str, str], bool]]],
    ) -> None:
        """`notice` tells the loops that something has changed, `look_now` the thread itself; `takes` says by destination which
        tables it has."""
        self._flow, self._source, self._moments = flow, source, moments
        self._ledger, self._lease, self._journal = ledger, lease, journal
        self._notice, self._look_now, self._takes = notice, look_now, takes
        self._settings = source.loading()

    def plan(self, load: Load, drive: Drive) -> None:
        """Which chunks there are, the moment at which they are read, and who takes part."""
        takers = self.takers(load)
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
        rules = self.rules(load)
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
        self._look_now()

    def renew(self, load: Load, drive: Drive, chunks: Sequence[LoadChunk]) -> None:
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
        self._look_now()

    def read_again(self, load: Load, asked: Sequence[LoadChunk]) -> None:
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
        self._look_now()

    def replan(self, load: Load, drive: Drive) -> None:
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
            rules = replace(self.rules(load), common_snapshot=False)
            more += self._contents(self._source.plan_chunks([tables[name]], rules), [tables[name]])
            replaced += [c.id for c in mine]
        drive.replan = frozenset()
        self._ledger.loads.plan(load, self._generation, more, snapshot=None, position=0, low=load.low, replaced=replaced)

    def takers(self, load: Load) -> list[str]:
        """The destinations that take part and are still there."""
        return [name for name in self._takes() if load.takes(name)]

    def rules(self, load: Load) -> LoadRules:
        """How its tables are cut into chunks."""
        spec = load.spec
        chosen = {k: spec[k] for k in ("where", "partition_column", "partition_count", "target_bytes") if spec.get(k)}
        return replace(self._settings.rules, **chosen)

    def _is_clear(self, drive: Drive, moment: Moment) -> bool:
        """Whether every transaction has ended that ran when the tables were published: what it wrote before is nowhere else."""
        running = set(self._moments.running(moment))
        if drive.older is None:
            drive.older = running
        drive.older &= running
        if drive.older:
            moment.close()
            drive.moment, drive.pause_until = None, time.monotonic() + AGAIN
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

    def _miss(self, load: Load, drive: Drive, missing: Iterable[Table]) -> None:
        """Tables that are asked for by name and that the flow does not take; one that is being published is waited for."""
        names = ", ".join(sorted(".".join(name) for name in missing))
        if load.kind == "table" and time.time() - load.created_at / 1e6 < PUBLISHING:
            drive.pause_until = time.monotonic() + AGAIN
            return
        raise TablesMissing(
            f"the flow does not take {names}",
            remedy="Correct the names, or publish the tables: `penstock publication add --flow FILE TABLE --snapshot`.",
        )

    def _plan_rest(self, load: Load, drive: Drive, chunks: Sequence[LoadChunk], moment: Moment) -> None:
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
            fresh = self._contents(self._source.plan_chunks([tables[name]], self.rules(load)), [tables[name]])
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

    def _lose(self, load: Load, name: Table, chunks: Sequence[LoadChunk]) -> None:
        _log.warning("a table that was to be loaded is gone; the rest is loaded", load=load.id, table=".".join(name))
        self._ledger.loads.give_up_chunks(load, self._generation, [c.id for c in chunks if c.state == "planned"])

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

    def _contents(self, chunks: Sequence[Chunk], tables: Sequence[TableSchema]) -> list[dict[str, Any]]:
        described = {(t.schema, t.name): t.to_data() for t in tables}
        return [
            {"schema": c.schema, "table": c.name, "rows": c.rows, "bytes": c.bytes}
            | {"content": {"chunk": c.to_data(), "table": described[c.schema, c.name]}}
            for c in chunks
        ]


def _emptying(contents: list[dict[str, Any]], known: set[Table]) -> list[dict[str, Any]]:
    """The same chunks; the first of each table that is known empties it before."""
    seen: set[Table] = set()
    for one in contents:
        name = (one["schema"], one["table"])
        if name in known and name not in seen:
            one["content"]["empties"] = True
        seen.add(name)
    return contents


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

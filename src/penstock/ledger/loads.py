"""Loads in the ledger: which tables are read, in which chunks, what each destination has of them, and where each table stands.

A load's state: `requested`, `reading` once its chunks are planned, `delivering` when all of them are read, then `done`,
`cancelled` or `failed`. What an operator wants of it (`running`, `paused`, `cancelled`) stands beside it. An entry is a table at
a destination that takes it by a load: `loading` while chunks are missing, `catching` while the stream's changes of that time are
delivered, then `live`. A table without an entry is simply live.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.core.epoch import Epoch
from penstock.ledger.database import LedgerDatabase

Fenced = Callable[[str, int], AbstractContextManager[sa.Connection]]

ENDED = ("done", "cancelled", "failed")
_LOAD = "id, flow, kind, spec, state, wish, reason, snapshot, position, low, who, created_at, updated_at"
_CHUNK = (
    'id, load_id as "load", schema_name as "schema", table_name as "table", content, state, chunk_rows as "rows",'
    ' chunk_bytes as "bytes", snapshot, position, low, read_at, file'
)
_ENTRY = 'destination, schema_name as "schema", table_name as "table", load_id as "load", state, snapshot, until, cursor_at'


@dataclass(frozen=True)
class Load:
    """One load as the ledger has it."""

    id: int
    flow: str
    kind: str
    """`first` with the flow's first start, `table` for tables that join, `backfill` for tables that are live."""
    spec: Mapping[str, Any]
    """What was asked for: tables, destinations, where, rules; and who takes part, and who has left it."""
    state: str
    wish: str
    reason: str | None
    snapshot: str | None
    """Describes the common snapshot in which its chunks are read; None when each has its own."""
    position: int
    """Everything that the snapshot shows committed at or before this position."""
    low: int
    """Everything that committed at or before this position is in the snapshot."""
    who: str
    created_at: int
    updated_at: int

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ENDED

    @property
    def takers(self) -> list[str] | None:
        """The destinations that take part, from when it is planned; None before."""
        found: list[str] | None = self.spec.get("takers")
        return found

    def takes(self, destination: str) -> bool:
        """Whether a destination takes part; before it is planned everybody does who is asked for."""
        if self.takers is not None:
            return destination in self.takers
        wanted = self.spec.get("destinations")
        return not wanted or destination in wanted


@dataclass(frozen=True)
class LoadChunk:
    """One chunk of a load; `content` is the source's own description of it."""

    id: int
    load: int
    schema: str
    table: str
    content: Mapping[str, Any]
    state: str
    """`planned`, `read` when its file is durable, `gone` when nobody needs it any more."""
    rows: int
    bytes: int
    """Estimates until it is read."""
    snapshot: str | None
    position: int
    low: int
    read_at: int
    file: str
    """Its name among the load's files, once it is read."""


@dataclass(frozen=True)
class Entry:
    """A table at a destination that takes it by a load."""

    destination: str
    schema: str
    table: str
    load: int
    state: str
    snapshot: str | None
    until: int
    """Changes up to this position may be in the snapshot already; later ones are not."""
    cursor_at: int
    """How far the table has been caught up; it matters while it is not live."""


class Loads:
    """The loads of every flow; what a worker writes carries its generation."""

    def __init__(self, database: LedgerDatabase, fenced: Fenced) -> None:
        self._database, self._fenced = database, fenced
        self._tables: dict[int, dict[str, Any]] = {}
        self._numbers: dict[tuple[int, str], int] = {}

    def request(self, flow: str, kind: str, spec: Mapping[str, Any], who: str) -> int:
        """Asks for a load; a worker of the flow takes it up. Returns its number."""
        with self._database.transaction() as c:
            return self.insert(c, flow, kind, spec, who)

    def insert(self, c: sa.Connection, flow: str, kind: str, spec: Mapping[str, Any], who: str) -> int:
        """Part of a transaction: a load is asked for."""
        found = c.execute(
            sa.text(
                "insert into loads (flow, kind, spec, state, wish, position, low, who, created_at, updated_at)"
                " values (:f, :k, :s, 'requested', 'running', 0, 0, :w, :t, :t) returning id"
            ),
            {"f": flow, "k": kind, "s": json.dumps(spec), "w": who, "t": _now()},
        )
        return int(found.scalar_one())

    def begin(
        self,
        flow: str,
        generation: int,
        kind: str,
        spec: Mapping[str, Any],
        who: str,
        entries: Mapping[str, Iterable[Any]],
        cursor: int = 0,
    ) -> int:
        """Asks for a load, and from the same moment on its tables wait for it: `entries` are (schema, table) by destination.

        `cursor` is the position after which their changes will be missing until they have caught up; 0 where none come meanwhile.
        """
        with self._fenced(flow, generation) as c:
            load = self.insert(c, flow, kind, spec, who)
            self.add_entries(c, flow, load, entries, cursor)
            return load

    def enter(self, flow: str, generation: int, load: int, entries: Mapping[str, Iterable[Any]], cursor: int = 0) -> None:
        """From now on these tables wait for the load, at these destinations."""
        with self._fenced(flow, generation) as c:
            self.add_entries(c, flow, load, entries, cursor)

    def add_entries(self, c: sa.Connection, flow: str, load: int, entries: Mapping[str, Iterable[Any]], cursor: int = 0) -> None:
        """Part of a transaction: tables wait for the load, whatever they waited for before."""
        for destination, tables in entries.items():
            for schema, table in tables:
                c.execute(
                    sa.text(
                        "insert into load_entries (flow, destination, schema_name, table_name, load_id, state, until, cursor_at)"
                        " values (:f, :d, :s, :n, :l, 'loading', 0, :c) on conflict (flow, destination, schema_name, table_name)"
                        " do update set load_id = excluded.load_id, state = 'loading', snapshot = null, until = 0,"
                        " cursor_at = excluded.cursor_at"
                    ),
                    {"f": flow, "d": destination, "s": schema, "n": table, "l": load, "c": cursor},
                )

    def plan(
        self,
        load: Load,
        generation: int,
        chunks: Sequence[Mapping[str, Any]],
        *,
        snapshot: str | None,
        position: int,
        low: int,
        replaced: Sequence[int] = (),
        takers: Sequence[str] | None = None,
    ) -> None:
        """Records chunks of a load, more of them at times, and the snapshot they are read in, if they have one in common.

        `chunks` have schema, table, content, rows and bytes; the chunks in `replaced` are given up. `takers` take part from now
        on, and nobody else, unless that has been said before.
        """
        with self._fenced(load.flow, generation) as c:
            now = self._current(c, load)
            if takers is not None and now.takers is None:
                spec = json.dumps({**now.spec, "takers": list(takers)})
                c.execute(sa.text("update loads set spec = :s where id = :i"), {"s": spec, "i": load.id})
            for number in replaced:
                c.execute(sa.text("update load_chunks set state = 'gone' where id = :i"), {"i": number})
            for chunk in chunks:
                self._add(c, load.id, chunk)
            c.execute(
                sa.text(
                    "update loads set state = 'reading', snapshot = :s, position = :p, low = :w, updated_at = :t where id = :i"
                ),
                {"s": snapshot, "p": position, "w": low, "t": _now(), "i": load.id},
            )

    def _table(self, c: sa.Connection, load: int, definition: str) -> int:
        """The number under which a load keeps a table's definition, once for its thousands of chunks."""
        if (load, definition) not in self._numbers:
            values = {"l": load, "d": definition}
            found = c.scalar(sa.text("select id from load_tables where load_id = :l and definition = :d"), values)
            if found is None:
                sql = "insert into load_tables (load_id, definition) values (:l, :d) returning id"
                # Not remembered: the transaction may still be undone.
                return int(c.execute(sa.text(sql), values).scalar_one())
            self._numbers[load, definition] = int(found)
        return self._numbers[load, definition]

    def _chunk(self, c: sa.Connection, row: sa.Row[Any]) -> LoadChunk:
        content = json.loads(row._mapping["content"])
        number = content["table"]
        if number not in self._tables:
            definition = c.scalar(sa.text("select definition from load_tables where id = :i"), {"i": number})
            self._tables[number] = json.loads(str(definition))
        return LoadChunk(**{**row._mapping, "content": {**content, "table": self._tables[number]}})

    def _add(self, c: sa.Connection, load: int, chunk: Mapping[str, Any]) -> None:
        content = {**chunk["content"], "table": self._table(c, load, json.dumps(chunk["content"]["table"]))}
        c.execute(
            sa.text(
                "insert into load_chunks (load_id, schema_name, table_name, content, state, chunk_rows, chunk_bytes, position,"
                " low, read_at, file) values (:l, :s, :n, :c, 'planned', :r, :b, 0, 0, 0, '')"
            ),
            {
                "l": load,
                "s": chunk["schema"],
                "n": chunk["table"],
                "c": json.dumps(content),
                "r": chunk["rows"],
                "b": chunk["bytes"],
            },
        )

    def ask_again(self, flow: str, generation: int, load: int, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Adds chunks that a destination has found to be missing; asking twice reads them twice, and no more."""
        with self._fenced(flow, generation) as c:
            for chunk in chunks:
                self._add(c, load, chunk)

    def record_read(self, load: Load, generation: int, receipts: Sequence[Mapping[str, Any]]) -> None:
        """Chunks whose files are durable: id, rows, bytes, snapshot, position, low, file."""
        with self._fenced(load.flow, generation) as c:
            for receipt in receipts:
                c.execute(
                    sa.text(
                        "update load_chunks set state = 'read', chunk_rows = :r, chunk_bytes = :b, snapshot = :s, position = :p,"
                        " low = :w, read_at = :t, file = :f where id = :i and state = 'planned'"
                    ),
                    {
                        "i": receipt["id"],
                        "r": receipt["rows"],
                        "b": receipt["bytes"],
                        "s": receipt["snapshot"],
                        "p": receipt["position"],
                        "w": receipt["low"],
                        "t": _now(),
                        "f": receipt["file"],
                    },
                )

    def become(self, load: Load, generation: int, state: str, reason: str | None = None) -> None:
        """Moves a load to another state; of one that is over no chunk is needed any more."""
        with self._fenced(load.flow, generation) as c:
            c.execute(
                sa.text("update loads set state = :s, reason = :r, updated_at = :t where id = :i"),
                {"s": state, "r": reason, "t": _now(), "i": load.id},
            )
            if state in ENDED:
                c.execute(sa.text("update load_chunks set state = 'gone' where load_id = :i"), {"i": load.id})

    def forget_entries(self, load: Load, generation: int, tables: Iterable[tuple[str, str]] | None = None) -> None:
        """The load's tables, or these of them, are live as if they had never waited; not where it goes on without them."""
        with self._fenced(load.flow, generation) as c:
            sql, keys = "delete from load_entries where flow = :f and load_id = :l", {"f": load.flow, "l": load.id}
            takers = self._current(c, load).takers
            here: list[sa.BindParameter[Any]] = [] if takers is None else [sa.bindparam("d", takers, expanding=True)]
            sql += " and destination in :d" if here else ""
            if tables is None:
                c.execute(sa.text(sql).bindparams(*here), keys)
                return
            for schema, table in tables:
                one = sa.text(f"{sql} and schema_name = :s and table_name = :n").bindparams(*here)
                c.execute(one, {**keys, "s": schema, "n": table})

    def give_up_chunks(self, load: Load, generation: int, chunks: Iterable[int]) -> None:
        """Nobody needs these chunks any more: their table is gone."""
        with self._fenced(load.flow, generation) as c:
            for chunk in chunks:
                c.execute(sa.text("update load_chunks set state = 'gone' where id = :i"), {"i": chunk})

    def wish(self, flow: str, load: int, wish: str) -> bool:
        """What an operator wants of a load that is not over, nor to be cancelled; whether there is such a load."""
        with self._database.transaction() as c:
            done = c.execute(
                sa.text(
                    "update loads set wish = :w, updated_at = :t where id = :i and flow = :f"
                    " and state not in ('done', 'cancelled', 'failed') and (wish <> 'cancelled' or :w = 'cancelled')"
                ),
                {"w": wish, "t": _now(), "i": load, "f": flow},
            )
            return bool(done.rowcount)

    def all(self, flow: str) -> list[Load]:
        """Every load of the flow, the newest last."""
        return self._found("flow = :f order by id", f=flow)

    def listed(self, c: sa.Connection, flow: str) -> list[Load]:
        """The same as part of a transaction."""
        return _rows(c, "flow = :f order by id", f=flow)

    def _found(self, which: str, **values: Any) -> list[Load]:
        with self._database.reading() as c:
            return _rows(c, which, **values)

    def _current(self, c: sa.Connection, load: Load) -> Load:
        """The load as the transaction has it: a destination may have left it since it was read."""
        return _rows(c, "id = :i", i=load.id)[0]

    def open(self, flow: str) -> list[Load]:
        """The loads that are not over, the newest last."""
        return self._found("flow = :f and state not in ('done', 'cancelled', 'failed') order by id", f=flow)

    def page(self, flow: str, before: int | None, limit: int) -> list[Load]:
        """The newest loads, the newest first, with numbers below that one."""
        return self._found("flow = :f and id < :b order by id desc limit :n", f=flow, b=before or 1 << 62, n=limit)

    def find(self, flow: str, load: int) -> Load | None:
        """One load of the flow."""
        return next(iter(self._found("flow = :f and id = :i", f=flow, i=load)), None)

    def chunks(self, load: int, *, over: bool = False) -> list[LoadChunk]:
        """The chunks of a load in the order in which they are read; those that are gone only of a load that is `over`."""
        which = "read_at > 0" if over else "state <> 'gone'"
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(f"select {_CHUNK} from load_chunks where load_id = :l and {which} order by id"), {"l": load}
            ).all()
            return [self._chunk(c, row) for row in rows]

    def chunk(self, chunk: int) -> LoadChunk | None:
        """One chunk, whatever its state."""
        with self._database.reading() as c:
            row = c.execute(sa.text(f"select {_CHUNK} from load_chunks where id = :i"), {"i": chunk}).one_or_none()
            return None if row is None else self._chunk(c, row)

    def delivered(self, load: int) -> dict[str, set[int]]:
        """The chunks that each destination has."""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    "select d.destination, d.chunk_id from load_deliveries d join load_chunks k on k.id = d.chunk_id"
                    " where k.load_id = :l"
                ),
                {"l": load},
            ).all()
        found: dict[str, set[int]] = {}
        for destination, chunk in rows:
            found.setdefault(destination, set()).add(int(chunk))
        return found

    def entries(self, flow: str, destination: str | None = None) -> list[Entry]:
        """Tables that came, or are coming, by a load."""
        where = "" if destination is None else " and destination = :d"
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    f"select {_ENTRY} from load_entries where flow = :f{where} order by destination, schema_name, table_name"
                ),
                {"f": flow, "d": destination} if destination is not None else {"f": flow},
            ).all()
        return [Entry(**row._mapping) for row in rows]

    def close(self, c: sa.Connection, epoch: Epoch, work: Mapping[str, Any]) -> None:
        """Part of the transaction that closes an epoch of a load: what it has delivered, and where its tables stand now."""
        keys = {"f": epoch.flow, "d": epoch.destination}
        for chunk in work.get("chunks", ()):
            c.execute(
                sa.text(
                    # The chunks of a load that was cancelled may be gone before an epoch of it is closed.
                    "insert into load_deliveries (chunk_id, destination, epoch)"
                    " select id, :d, :n from load_chunks where id = :c"
                    " on conflict (chunk_id, destination) do nothing"
                ),
                {"c": chunk, "d": epoch.destination, "n": epoch.number},
            )
        for moved in work.get("moved", ()):
            c.execute(
                sa.text(
                    "update load_entries set state = :x, snapshot = :p, until = :u, cursor_at = :c"
                    " where flow = :f and destination = :d and schema_name = :s and table_name = :n"
                ),
                {
                    **keys,
                    "s": moved["schema"],
                    "n": moved["table"],
                    "x": moved["state"],
                    "p": moved.get("snapshot"),
                    "u": moved.get("until", 0),
                    "c": moved.get("cursor", 0),
                },
            )

    def settle(self, flow: str, destination: str, generation: int, moved: Sequence[Mapping[str, Any]]) -> None:
        """Moves entries on without an epoch: there was nothing to deliver."""
        with self._fenced(flow, generation) as c:
            self.close(c, Epoch(flow, destination, "", 0, 0, 0, 0, generation), {"moved": moved})

    def forget(self, c: sa.Connection, flow: str) -> None:
        """Removes every row of the flow."""
        chunks = "select k.id from load_chunks k join loads l on l.id = k.load_id where l.flow = :f"
        for statement in (
            f"delete from load_deliveries where chunk_id in ({chunks})",
            "delete from load_tables where load_id in (select id from loads where flow = :f)",
            "delete from load_chunks where load_id in (select id from loads where flow = :f)",
            "delete from load_sums where load_id in (select id from loads where flow = :f)",
            "delete from load_entries where flow = :f",
            "delete from loads where flow = :f",
        ):
            c.execute(sa.text(statement), {"f": flow})


def _now() -> int:
    return time.time_ns() // 1000


def _rows(c: sa.Connection, which: str, **values: Any) -> list[Load]:
    rows = c.execute(sa.text(f"select {_LOAD} from loads where {which}"), values).all()
    return [Load(**{**row._mapping, "spec": json.loads(row._mapping["spec"])}) for row in rows]

"""Sums over the chunks of loads: how far each has come, counted by the database, and what is kept of those that are over.

A chunk is a row, and a large table has thousands: a load that has been over for a while keeps, for each table, what was read and
how many chunks each destination has had, and its chunks go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase

Fenced = Callable[[str, int], AbstractContextManager[sa.Connection]]

STEP = 2_000
"""How many chunks go in one transaction, for which every other one of the process waits."""

_OVER = "('done', 'cancelled', 'failed')"
# Of a load that is over what was read counts, else what is to be read; where sums are kept, chunks may still be on their way out.
_COUNTS = (
    f"case when l.state in {_OVER} then k.read_at > 0 else k.state <> 'gone' end"
    " and not exists (select 1 from load_sums s where s.load_id = k.load_id)"
)
_READ = (
    "select k.load_id, k.schema_name, k.table_name, count(*) as chunks,"
    " sum(case when k.state = 'planned' then 0 else 1 end) as chunks_read,"
    " sum(case when k.state = 'planned' then 0 else k.chunk_rows end) as rows_read,"
    " sum(case when k.state = 'planned' then 0 else k.chunk_bytes end) as bytes_read, sum(k.chunk_bytes) as bytes_all,"
    " max(case when k.state = 'planned' then 0 else k.read_at end) as read_at"
    f" from load_chunks k join loads l on l.id = k.load_id where k.load_id in :loads and {_COUNTS}"
    " group by k.load_id, k.schema_name, k.table_name"
    " union all select load_id, schema_name, table_name, chunks, chunks, chunk_rows, chunk_bytes, chunk_bytes, read_at"
    " from load_sums where load_id in :loads and destination = ''"
)
_DELIVERED = (
    "select k.load_id, k.schema_name, k.table_name, d.destination, count(*) as chunks from load_deliveries d"
    f" join load_chunks k on k.id = d.chunk_id join loads l on l.id = k.load_id where k.load_id in :loads and {_COUNTS}"
    " group by k.load_id, k.schema_name, k.table_name, d.destination"
    " union all select load_id, schema_name, table_name, destination, chunks from load_sums"
    " where load_id in :loads and destination <> ''"
)
_TOGETHER = "sum(chunks) as chunks, sum(chunks_read) as chunks_read, sum(rows_read) as rows_read, sum(bytes_read) as bytes_read"
_TOGETHER = f"{_TOGETHER}, sum(bytes_all) as bytes_all, max(read_at) as read_at, count(*) as tables"

_KEEP = (
    "insert into load_sums (load_id, schema_name, table_name, destination, chunks, chunk_rows, chunk_bytes, read_at)"
    " select k.load_id, k.schema_name, k.table_name, '', count(*), sum(k.chunk_rows), sum(k.chunk_bytes), max(k.read_at)"
    " from load_chunks k where k.load_id = :l and k.read_at > 0 group by k.load_id, k.schema_name, k.table_name"
    " union all select k.load_id, k.schema_name, k.table_name, d.destination, count(*), 0, 0, 0"
    " from load_deliveries d join load_chunks k on k.id = d.chunk_id where k.load_id = :l and k.read_at > 0"
    " group by k.load_id, k.schema_name, k.table_name, d.destination"
)
_SOME = "select id from load_chunks where load_id = :l order by id limit :n"


@dataclass(frozen=True)
class Sums:
    """What is to be read of a load, or of one of its tables, what was read, and what destinations have of it."""

    chunks: int = 0
    read: int = 0
    rows: int = 0
    """Of what was read, like `bytes`."""
    bytes: int = 0
    expected: int = 0
    """Bytes of all chunks; of those that were not read an estimate."""
    read_at: int = 0
    """When the last one was read."""
    tables: int = 0
    delivered: tuple[tuple[str, int], ...] = ()
    """How many chunks each destination has."""


class LoadSums:
    """Of the loads of every flow."""

    def __init__(self, database: LedgerDatabase, fenced: Fenced) -> None:
        self._database, self._fenced = database, fenced

    def of(self, loads: Sequence[int]) -> dict[int, Sums]:
        """How far each of the loads has come; one row of each, and one of each destination, whatever its size."""
        if not loads:
            return {}
        read = f"select load_id, {_TOGETHER} from ({_READ}) found group by load_id"
        had = f"select load_id, destination, sum(chunks) as chunks from ({_DELIVERED}) found group by load_id, destination"
        with self._database.reading() as c:
            delivered = c.execute(_among(f"{had} order by load_id, destination"), {"loads": list(loads)}).all()
            rows = c.execute(_among(read), {"loads": list(loads)}).all()
        found = {int(row.load_id): row for row in rows}
        names = {load: tuple((d.destination, int(d.chunks)) for d in delivered if d.load_id == load) for load in loads}
        return {load: _sums(found[load], names[load]) if load in found else Sums() for load in loads}

    def by_table(self, load: int) -> dict[tuple[str, str], Sums]:
        """How far each table of a load has come, in the order of their names."""
        with self._database.reading() as c:
            rows = c.execute(_among(f"select *, 1 as tables from ({_READ}) found order by schema_name, table_name"), _one(load))
            found = {(row.schema_name, row.table_name): row for row in rows.all()}
            delivered = c.execute(_among(f"select * from ({_DELIVERED}) found order by destination"), _one(load)).all()
        names: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {}
        for row in delivered:
            table = (row.schema_name, row.table_name)
            names[table] = (*names.get(table, ()), (row.destination, int(row.chunks)))
        return {table: _sums(row, names.get(table, ())) for table, row in found.items()}

    def tables(self, flow: str, before: int) -> set[tuple[str, str]]:
        """Every table of which a load of the flow with a smaller number has read something."""
        sql = (
            "select distinct t.schema_name, t.table_name from {} t join loads l on l.id = t.load_id"
            " where l.flow = :f and l.id < :b and t.read_at > 0"
        )
        with self._database.reading() as c:
            rows = c.execute(sa.text(f"{sql.format('load_chunks')} union {sql.format('load_sums')}"), {"f": flow, "b": before})
            return {(row.schema_name, row.table_name) for row in rows.all()}

    def shrink(self, flow: str, generation: int, before: int, most: int = STEP) -> bool:
        """Gives up some chunks of a load that was over before then (µs since 1970), keeping their sums; whether there were any.

        May run twice, and may be cut short between two calls: sums are kept before the first chunk goes.
        """
        over = (
            f"select id from loads where flow = :f and state in {_OVER} and updated_at < :t"
            " and exists (select 1 from load_chunks k where k.load_id = loads.id) order by id limit 1"
        )
        with self._database.reading() as c:
            # Asked for first without the flow's lock: nearly always there is nothing to do.
            load = c.scalar(sa.text(over), {"f": flow, "t": before})
        if load is None:
            return False
        with self._fenced(flow, generation) as c:
            if c.scalar(sa.text("select 1 from load_sums where load_id = :l limit 1"), {"l": load}) is None:
                c.execute(sa.text(_KEEP), {"l": load})
            values = {"l": load, "n": most}
            c.execute(sa.text(f"delete from load_deliveries where chunk_id in ({_SOME})"), values)
            c.execute(sa.text(f"delete from load_chunks where id in ({_SOME})"), values)
            if c.scalar(sa.text("select 1 from load_chunks where load_id = :l limit 1"), {"l": load}) is None:
                c.execute(sa.text("delete from load_tables where load_id = :l"), {"l": load})
            return True


def _sums(row: Any, delivered: tuple[tuple[str, int], ...]) -> Sums:
    # PostgreSQL's sums of whole numbers are decimals.
    return Sums(
        chunks=int(row.chunks),
        read=int(row.chunks_read),
        rows=int(row.rows_read),
        bytes=int(row.bytes_read),
        expected=int(row.bytes_all),
        read_at=int(row.read_at),
        tables=int(row.tables),
        delivered=delivered,
    )


def _among(sql: str) -> sa.TextClause:
    return sa.text(sql).bindparams(sa.bindparam("loads", expanding=True))


def _one(load: int) -> dict[str, list[int]]:
    return {"loads": [load]}

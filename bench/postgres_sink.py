"""The postgres destination: epochs of inserts, of updates, and tiny ones, beside a plain COPY of the same rows.

Both write the same table, and wait for the disk (synchronous_commit = on).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from bench.workload import make_server
from penstock.core.batch import Batch, Image, Op
from penstock.core.epoch import Epoch
from penstock.core.schema import Column, TableSchema
from penstock.destinations.base import Place
from penstock.destinations.postgres.destination import PostgresDestination
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.writer import PostgresWriter

TABLE = TableSchema(
    "public",
    "work",
    (
        Column("id", pa.int64(), "bigint"),
        Column("a", pa.int32(), "integer"),
        Column("t", pa.string(), "text"),
        Column("num", pa.decimal128(12, 2), "numeric(12,2)"),
        Column("b", pa.int32(), "integer"),
        Column("f", pa.float64(), "double precision"),
        Column("t2", pa.string(), "text"),
        Column("ts", pa.timestamp("us", "UTC"), "timestamp with time zone"),
        Column("ok", pa.bool_(), "boolean"),
        Column("u", pa.string(), "uuid"),
    ),
    ("id",),
    1,
)


def make_batch(ids: Any, op: Op, step: int) -> Batch:
    """Rows of those ids, ten mixed columns as in the other benchmarks."""
    numbers = pa.array(ids, pa.int64())
    words = numbers.cast(pa.string())
    count = len(ids)
    columns = [
        numbers,
        pa.array((ids + step) % 1000, pa.int32()),
        pc.binary_join_element_wise("customer name ", words, ""),
        pa.Array.from_buffers(pa.decimal128(12, 2), count, [None, pa.py_buffer(np.stack((ids, ids * 0), 1).astype(np.int64))]),
        pa.array(ids * 7 % 100_000, pa.int32()),
        pa.array(ids * 1.5 + 0.25),
        pc.binary_join_element_wise("some longer description text for row ", words, " padpadpadpad", ""),
        pa.array(1_700_000_000_000_000 + ids, pa.timestamp("us", "UTC")),
        pa.array(ids % 2 == 0),
        pc.binary_join_element_wise("a0eebc99-9c0b-4ef8-bb6d-", pc.utf8_lpad(words, 12, "0"), ""),
    ]
    return Batch(
        table=TABLE,
        rows=pa.RecordBatch.from_arrays(columns, schema=TABLE.arrow),
        op=pa.array(np.full(count, int(op), np.uint8)),
        position=pa.array(np.full(count, 1, np.int64)),
        ordinal=pa.array(np.arange(1, count + 1, dtype=np.int64)),
        xid=pa.array(np.full(count, 7, np.int64)),
        committed_at=pa.array(np.zeros(count, np.int64)).view(pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(TABLE.columns),
        image=pa.array(np.full(count, int(Image.NONE), np.uint8)),
    )


class Sink:
    """The destination and its writer, driven as a worker and a lane do."""

    def __init__(self, dsn: str, home: Path) -> None:
        place, options = Place("bench", "sink", home), PostgresOptions(dsn=dsn)
        self.destination, self.writer, self.number = PostgresDestination(place, options), PostgresWriter(place, options), 0
        self.destination.prepare([TABLE])

    def deliver(self, batch: Batch) -> tuple[float, float, float]:
        """One epoch; seconds that its lane took, that its commit took, and this process's CPU for the commit."""
        self.number += 1
        epoch = Epoch("bench", "sink", "src", self.number, self.number - 1, self.number, 1, 1)
        began = time.perf_counter()
        receipt = self.writer.write(epoch, 0, iter([batch]))
        staged, cpu = time.perf_counter(), time.process_time()
        self.destination.commit(epoch, [receipt])
        return staged - began, time.perf_counter() - staged, time.process_time() - cpu


def copied(connection: psycopg.Connection[Any], data: bytes) -> float:
    """Seconds of a transaction that does nothing but COPY the rows into the table."""
    began = time.perf_counter()
    with connection.transaction(), connection.cursor().copy("COPY public.work FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(data)
    return time.perf_counter() - began


def rows_of(connection: psycopg.Connection[Any], query: str) -> bytes:
    """The rows in the form in which COPY takes them back."""
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)".encode()) as copy:
        return b"".join(bytes(part) for part in copy)


def big(sink: Sink, connection: psycopg.Connection[Any], rows: int, times: int) -> None:
    """Epochs of many rows."""
    ids = np.arange(1, rows + 1)
    chance = np.random.default_rng(1)
    floors: list[float] = []
    spent: dict[str, list[tuple[float, float, float]]] = {"inserts": [], "updates": []}
    for turn in range(times):
        connection.execute("TRUNCATE public.work")
        spent["inserts"].append(sink.deliver(make_batch(ids, Op.INSERT, turn)))
        spent["updates"].append(sink.deliver(make_batch(chance.permutation(ids), Op.UPDATE, turn + 1)))
        data = rows_of(connection, "SELECT * FROM public.work ORDER BY id")
        connection.execute("TRUNCATE public.work")
        floors.append(copied(connection, data))
    floor = median(floors)
    print(f"floor: {rows:,} rows by plain COPY {rows / floor:,.0f} rows/s ({floor:.2f} s)")
    for kind, runs in spent.items():
        lane, commit, cpu = (median(run[part] for run in runs) for part in range(3))
        print(
            f"{kind}: {rows / commit:,.0f} rows/s in the commit ({commit:.2f} s, {commit / floor:.2f} of the floor),"
            f" lane {lane:.2f} s, CPU of the commit in our process {cpu:.2f} s",
            flush=True,
        )


def tiny(sink: Sink, connection: psycopg.Connection[Any], rows: int, times: int) -> None:
    """Epochs of few rows, in turn with plain COPYs of as many."""
    connection.execute("TRUNCATE public.work")
    sink.deliver(make_batch(np.arange(1, rows * times + 1), Op.INSERT, 0))
    pieces = [
        rows_of(connection, f"SELECT * FROM public.work WHERE id > {turn * rows} AND id <= {turn * rows + rows}")
        for turn in range(times)
    ]
    connection.execute("TRUNCATE public.work")
    connection.execute("CHECKPOINT")
    spent, floors, cpus = [], [], []
    for turn, piece in enumerate(pieces, 1):
        spent.append(sink.deliver(make_batch(np.arange(1, rows + 1) + 10**6 + turn * rows, Op.INSERT, turn)))
        began = time.process_time()
        floors.append(copied(connection, piece))
        cpus.append(time.process_time() - began)
    wall, cpu, floor = median(run[1] for run in spent), median(run[2] for run in spent), median(floors)
    print(
        f"epochs of {rows} row(s): commit {wall * 1e3:.2f} ms, CPU in our process {cpu * 1e3:.2f} ms |"
        f" plain COPY {floor * 1e3:.2f} ms, CPU {median(cpus) * 1e3:.2f} ms | ratio {wall / floor:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--tiny", type=int, default=200)
    given = parser.parse_args()
    with (
        make_server() as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
        psycopg.connect(server.dsn(), autocommit=True, options="-c synchronous_commit=on") as connection,
    ):
        sink = Sink(server.dsn(), Path(directory))
        sink.deliver(make_batch(np.arange(1, 1001), Op.INSERT, 0))
        for rows in (1, 100):
            tiny(sink, connection, rows, given.tiny)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        big(sink, connection, given.rows, given.times)
        print(
            f"peak memory of this process: {before // 1024} MB before the big epochs, "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB after"
        )
        sink.destination.close()


if __name__ == "__main__":
    main()

"""Decoding: rows per CPU second and type family, from journal bytes and from COPY text, beside floors on the same bytes.

A journal is captured once from a real server; decoding it is repeated, and the best round counts, since nothing is waited
for. One floor sums the same bytes in numpy (reading memory once), another has Arrow's own CSV reader parse the same values.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from bench.workload import INSERT, TABLE, make_server
from penstock.core.schema import TableSchema
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice
from penstock.journal.writer import JournalWriter
from penstock.sources.base import Link
from penstock.sources.postgres import copytext, decoder, snapshot
from penstock.sources.postgres.capture import PostgresCapture
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.snapshot import Snapshot, select
from penstock.sources.postgres.source import PostgresSource

FAMILIES = {
    "int4": "g::int4",
    "int8": "g::int8 * 123456789",
    "numeric_10_2": "(g / 100.0)::numeric(10,2)",
    "numeric_38_10": "(g * 1234567.0123456789)::numeric(38,10)",
    "numeric": "(g / 7.0)::numeric",
    "float8": "g * 1.5 + 0.25",
    "bool": "g % 2 = 0",
    "text_20": "'customer name ' || g",
    "text_200": "repeat('some text ', 20)",
    "bytea_16": "decode(md5(g::text), 'hex')",
    "uuid": "md5(g::text)::uuid",
    "date": "date '2000-01-01' + g % 9999",
    "timestamptz": "timestamptz '2024-01-01' + g * interval '1.000001 s'",
    "jsonb": "jsonb_build_object('id', g, 'name', 'row ' || g)",
    "int4_array": "array[g, g + 1, g + 2]",
}
WORK = "work"
FLUSHED = "set synchronous_commit = on"
"""So that the position which is durable now covers it."""


class Forever(Link):
    """A worker that confirms nothing and stops when told."""

    def __init__(self) -> None:
        self.ended = False
        self.asked = 0

    @property
    def confirmed(self) -> int:
        return 0

    @property
    def stopping(self) -> bool:
        return self.ended

    @property
    def probes(self) -> int:
        return self.asked

    def on_confirmed(self, call: Callable[[], None]) -> None:
        return

    def appended(self, mark: int) -> None:
        return

    def told(self, position: int) -> None:
        return


def make_journal(server: EmbeddedPostgres, directory: Path, rows: int) -> list[Slice]:
    """A journal of one insert of so many rows into every table."""
    server.run(TABLE)
    for name, value in FAMILIES.items():
        server.run(f"create table {name} as select g as id, {value} as v from generate_series(1, 0) g")
        server.run(f"alter table {name} add primary key (id)")
    source = PostgresSource("bench", PostgresOptions(dsn=server.dsn("postgres")))
    writer = JournalWriter(directory)
    writer.begin(source.prepare(None).start)
    link = Forever()
    thread = threading.Thread(target=PostgresCapture(source.recipe()).run, args=(writer, link))
    thread.start()
    server.run(f"{FLUSHED}; {INSERT.format(rows=rows)}")
    for name, value in FAMILIES.items():
        server.run(f"{FLUSHED}; insert into {name} select g, {value} from generate_series(1, {rows}) g")
    slices, tail, head = list[Slice](), JournalTail(directory, None), source.head()
    while tail.mark < head:
        slices += tail.read()
        link.asked += 1
        time.sleep(0.05)
    link.ended = True
    thread.join()
    source.close()
    writer.close()
    return slices


def best(work: Callable[[], Any], rounds: int) -> float:
    """CPU seconds of the quickest round."""
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def decoding(journal: SliceReader, slices: list[Slice], name: str) -> tuple[TableSchema, int]:
    """Decodes the rows of one table; its schema, and how many there are."""
    batches = list(PostgresDecoder().decode(journal, slices, 0, 1, lambda table: table.name == name))
    return batches[0].table, sum(len(batch) for batch in batches)


def copied(server: EmbeddedPostgres, table: TableSchema) -> bytes:
    """The table's rows as COPY writes them, each in its frame."""
    from penstock.sources.postgres.wire import ReplicationConnection

    with Snapshot(server.dsn("postgres"), "bench") as session:
        connection: ReplicationConnection = session._connection
        connection.start_copy(f"COPY ({select(table)}) TO STDOUT")
        stream, part = io.BytesIO(), memoryview(bytearray(1 << 20))
        while bytes(stream.getbuffer()[-6:-1]) != b"Z\0\0\0\5":
            stream.write(part[: connection.receive_into(part)])
        return stream.getvalue()


def reading(table: TableSchema, data: Any) -> None:
    """COPY text to a batch."""
    b, width = data.copy(), len(table.columns)
    lines = (width, len(b) // (5 + width) + 1)
    kind, offset, length = np.empty(lines, np.uint8), np.empty(lines, np.int64), np.empty(lines, np.int64)
    count, _, _ = copytext.split(b, 0, len(b), 0, width, kind, offset, length)
    snapshot._batch(table, (kind[:, :count], offset[:, :count], length[:, :count], b), 1, 0, 1)


def csv_text(data: bytes) -> bytes:
    """The rows without their frames, as a file that a CSV reader takes."""
    rows, at = [], 0
    while data[at : at + 1] == b"d":
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        rows.append(data[at + 5 : end])
        at = end
    return b"".join(rows)


def csv_reading(table: TableSchema, text: bytes) -> None:
    """The same values by Arrow's CSV reader, on one core; what it cannot read as such stays text."""
    kinds = {c.name: pa.string() if pa.types.is_binary(c.type) else c.type for c in table.columns}
    kinds = {n: pa.string() if pa.types.is_boolean(k) or pa.types.is_timestamp(k) else k for n, k in kinds.items()}
    csv.read_csv(
        pa.py_buffer(text),
        csv.ReadOptions(use_threads=False, column_names=[c.name for c in table.columns]),
        csv.ParseOptions(delimiter="\t", quote_char=False),
        csv.ConvertOptions(column_types=kinds, null_values=["\\N"], strings_can_be_null=True),
    )


def report(server: EmbeddedPostgres, journal: SliceReader, slices: list[Slice], name: str, rounds: int) -> None:
    """One line: stream and snapshot, beside Arrow's CSV reader and one pass over the bytes."""
    table, rows = decoding(journal, slices, name)
    mine = [s for s in slices if _has(journal, s, name)]
    size = sum(s.size for s in mine)
    seconds = best(lambda: decoding(journal, mine, name), rounds)
    raw = np.concatenate([journal.read([s])[0] for s in mine])
    floor = best(lambda: int(raw.view(np.uint8).sum(dtype=np.uint64)), rounds)
    data = copied(server, table)
    array, text = np.frombuffer(data, np.uint8), csv_text(data)
    snap = best(lambda: reading(table, array), rounds)
    arrow = best(lambda: csv_reading(table, text), rounds)
    print(
        f"{name:>14}: stream {rows / seconds:>10,.0f} rows/s ({size / seconds / 1e6:5.0f} MB/s), snapshot {rows / snap:>10,.0f}; "
        f"Arrow's CSV {rows / arrow:>10,.0f}: stream takes {seconds / arrow:4.2f} of its time, snapshot {snap / arrow:4.2f}; "
        f"{seconds / floor:5.1f} times one pass over the bytes",
        flush=True,
    )


def _has(journal: SliceReader, s: Slice, name: str) -> bool:
    return any(b.table.name == name for b in PostgresDecoder().decode(journal, [s], 0, 1, lambda table: table.name == name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    decoder.warm()
    snapshot.warm()
    with make_server() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        slices = make_journal(server, Path(directory), given.rows)
        journal = SliceReader(Path(directory))
        for name in (WORK, *FAMILIES):
            report(server, journal, slices, name, given.rounds)
        journal.close()


if __name__ == "__main__":
    main()

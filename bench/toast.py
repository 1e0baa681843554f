"""`toast_fetch`: decoding and completing one journal in every mode, beside `off` in the same run: rows/s and ratio.

Two kinds of epochs: updates that leave a TOASTed column out, and updates of small rows, which have no gap to fill.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.processes import wait_until
from bench.workload import PUBLICATION, make_server
from penstock.core.epoch import Epoch
from penstock.core.position import parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.supervisor import CaptureSupervisor
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice
from penstock.sources.postgres import decoder as decoding
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.toast import completer as completing
from penstock.sources.postgres.toast.completer import PostgresCompleter

MODES = ("off", "cache", "source", "full")
EPOCH_BYTES = 4 << 20
TABLES = """
create table documents (id int primary key, v int, title text, body text);
alter table documents alter body set storage external;
create table small (id int primary key, v int, title text, body text)
"""
UPDATES = """
do $$ begin
  for i in 1..{rounds} loop
    update {table} set v = v + 1 where id % 20 = i % 20;
    commit;
  end loop;
end $$
"""


def make_work(server: EmbeddedPostgres, rows: int, rounds: int) -> int:
    """Inserts and updates, both published; returns the position where the last commit ends."""
    for table, length in (("documents", 4000), ("small", 20)):
        server.run(f"insert into {table} select n, 0, 'title ' || n, repeat('x', {length}) from generate_series(1, {rows}) n")
        server.run(UPDATES.format(table=table, rounds=rounds))
    server.run("set synchronous_commit = on; update small set v = 0 where id = 1")
    return parse_lsn(str(server.run("select pg_current_wal_flush_lsn()::text")[0][0])) - 256


def captured(source: PostgresSource, directory: Path, end: int) -> list[Slice]:
    """The journal's slices once it has everything."""
    supervisor = CaptureSupervisor(source, "postgres", directory, lambda: None)
    prepared, _, _ = supervisor.prepare()
    supervisor.begin(prepared)
    tail = JournalTail(directory, None)
    slices: list[Slice] = []

    def arrived() -> bool:
        slices.extend(tail.read())
        return tail.mark >= end

    wait_until(arrived, 300, "capture did not reach the end")
    supervisor.stop()
    tail.close()
    return slices


def epochs(slices: list[Slice]) -> list[list[Slice]]:
    """Groups of slices of about the size of an epoch."""
    groups: list[list[Slice]] = [[]]
    for s in slices:
        if sum(one.size for one in groups[-1]) >= EPOCH_BYTES:
            groups.append([])
        groups[-1].append(s)
    return groups


def run(dsn: str, directory: Path, groups: list[list[Slice]], mode: str, table: str) -> tuple[float, int, Counter[str]]:
    """Seconds, changes and counts of one mode over all epochs, for one table."""
    decoder, reader, counts = PostgresDecoder(), SliceReader(directory), Counter[str]()
    completer = None
    if mode != "off":
        decoder.gives_handles = True
        completer = PostgresCompleter({"dsn": dsn, "flow": "bench", "mode": mode, "cache_size": 100_000})
    rows = 0
    began = time.perf_counter()
    for number, group in enumerate(groups, 1):
        batches = decoder.decode(reader, group, 0, 1, lambda t: t.name == table)
        if completer is not None:
            batches = completer.complete(Epoch("bench", "d", "s", number, 0, 1, 1, 1), 0, reader, group, batches)
        rows += sum(len(batch) for batch in batches)
        counts.update(completer.counts if completer is not None else {})
    seconds = time.perf_counter() - began
    if completer is not None:
        completer.close()
    reader.close()
    return seconds, rows, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    decoding.warm()
    completing.warm()
    with make_server() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        server.run(TABLES)
        server.run(f"create publication {PUBLICATION} for table documents, small")
        options = PostgresOptions(dsn=server.dsn("postgres"), slot="toast", publication=PUBLICATION, ensure_publication=False)
        source = PostgresSource("bench", options)
        source.prepare(None)
        end = make_work(server, given.rows, given.rounds)
        directory = Path(temporary) / "journal"
        groups = epochs(captured(source, directory, end))
        source.close()
        for table in ("documents", "small"):
            run(options.dsn, directory, groups, "cache", table)
            base = 0.0
            for mode in MODES:
                seconds, rows, counts = min(
                    (run(options.dsn, directory, groups, mode, table) for _ in range(3)), key=lambda one: one[0]
                )
                base = base or seconds
                print(
                    f"{table}: {mode:6} {rows / seconds:10,.0f} rows/s, {base / seconds:.2f} of off | "
                    f"{rows:,} rows in {len(groups)} epochs | {dict(counts)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""A table of many rows loaded into Parquet and into DuckDB while the flow runs, beside COPY of the same table to nowhere.

The floor is `COPY … TO STDOUT` by psql with as many connections, each over its own range of the table, in the same run. A load is
timed from the moment it is asked for until every row is durable at the destination and the load is closed; Spark stands already.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from bench.chunk_read import server_cpu
from bench.processes import Meter, wait_until
from penstock.core.flow import Flow
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.worker import Worker

TABLE = """
create table big (
  id bigint primary key, a int4, t text, num numeric(12,2), b int4, f float8, t2 text, ts timestamptz, ok bool, u uuid
);
insert into big select i, i % 1000, 'customer ' || i, (i % 100000) / 100.0, i % 77, i / 3.0,
  'some longer description text padpadpadpad', now() - i * interval '1 second', i % 2 = 0, md5(i::text)::uuid
  from generate_series(1, {rows}) i;
analyze big
"""


def copy_to_nowhere(server: EmbeddedPostgres, connections: int) -> tuple[float, dict[str, float]]:
    """Seconds for COPY of the whole table by so many connections side by side, and CPU seconds by process."""
    blocks = int(str(server.run("select pg_relation_size('big') / current_setting('block_size')::int")[0][0]))
    step = -(-blocks // connections)
    before = server_cpu(server)
    with Meter(2.0) as meter:
        # The meter's own first look is not part of it.
        began = time.monotonic()
        children = [
            subprocess.Popen(
                [
                    str(server.binary("psql")),
                    "-qX",
                    "-c",
                    f"copy (select * from big where ctid >= '({i * step},0)' and ctid < '({(i + 1) * step},0)') to stdout",
                    server.dsn("postgres"),
                ],
                stdout=subprocess.DEVNULL,
            )
            for i in range(connections)
        ]
        for child in children:
            if child.wait() != 0:
                raise RuntimeError("psql failed")
        seconds = time.monotonic() - began
    return seconds, meter.cpu() | {"server": round(server_cpu(server) - before, 2)}


class Connections(threading.Thread):
    """Counts the connections to the server beside its own, a few times a second, while its block lasts."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        super().__init__(daemon=True)
        self._dsn, self._done = server.dsn("postgres"), threading.Event()
        self.peak = 0

    def run(self) -> None:
        """The thread's body."""
        with psycopg.connect(self._dsn, autocommit=True) as own:
            while not self._done.wait(0.25):
                (found,) = own.execute(
                    "select count(*) from pg_stat_activity where backend_type in ('client backend', 'walsender')"
                )
                self.peak = max(self.peak, found[0] - 1)

    def __enter__(self) -> Connections:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


class Loaded(NamedTuple):
    """What a load took."""

    seconds: float
    cpu: dict[str, float]
    peak: dict[str, float]
    copied: int
    """Bytes that readers got from the server."""
    chunks: int
    connections: int


def load(server: EmbeddedPostgres, kind: str, form: str, connections: int, parallelism: int) -> Loaded:
    """Loads the table into a destination."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        path = Path(directory)
        place = str(path / ("log" if kind == "files" else "bench.duckdb"))
        flow = Flow.model_validate(
            {
                "name": f"backfill_{kind}_{form}_{time.time_ns() % 10**9}",
                "parallelism": parallelism,
                "source": {
                    "type": "postgres",
                    "options": {
                        "dsn": server.dsn("postgres"),
                        "snapshot": "never",
                        "snapshot_workers": connections,
                        "snapshot_format": form,
                    },
                },
                "destinations": [{"name": kind, "type": kind, "options": {"path": place}}],
            }
        )
        worker = Worker(flow, path / "state")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_until(worker.is_ready, 120, "lanes do not stand")
            ledger: Any = worker._ledger
            # Looking at the memory of a JVM costs the driver tens of milliseconds, and asking the ledger half of one.
            with Meter(5.0) as meter, Connections(server) as counted:
                number = ledger.loads.request(flow.name, "table", {"tables": ["public.big"]}, "bench")
                assert worker._loading is not None
                worker._loading.look_soon()
                wait_until(lambda: not ledger.loads.open(flow.name), 900, "the load does not end", every=0.1)
            over = ledger.loads.find(flow.name, number)
            seconds = (over.updated_at - over.created_at) / 1e6
            chunks = ledger.loads.chunks(number, over=True)
            copied = sum(c.bytes for c in chunks)
            return Loaded(seconds, meter.cpu(), dict(meter.peak), copied, len(chunks), counted.peak)
        finally:
            worker.stop()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--destinations", default="files,duckdb")
    parser.add_argument("--formats", default="text,binary")
    parser.add_argument("--parallelism", type=int, default=1)
    given = parser.parse_args()
    with EmbeddedPostgres(settings={"fsync": "off", "shared_buffers": "1GB", "max_wal_size": "8GB"}) as server:
        server.run(TABLE.format(rows=given.rows))
        copy_to_nowhere(server, given.connections)
        floor, cpu = copy_to_nowhere(server, given.connections)
        print(f"COPY to nowhere, {given.connections} connections: {given.rows / floor:,.0f} rows/s; CPU s {cpu}", flush=True)
        for kind, form in itertools.product(given.destinations.split(","), given.formats.split(",")):
            before = server.run("select blks_read + blks_hit, tup_returned from pg_stat_database where datname = 'postgres'")[0]
            spent = server_cpu(server)
            found = load(server, kind, form, given.connections, given.parallelism)
            seconds, cpu = found.seconds, found.cpu
            cpu["server"] = round(server_cpu(server) - spent, 2)
            after = server.run("select blks_read + blks_hit, tup_returned from pg_stat_database where datname = 'postgres'")[0]
            again, _ = copy_to_nowhere(server, given.connections)
            pages, rows = (int(str(a)) - int(str(b)) for a, b in zip(after, before, strict=True))
            print(
                f"{kind}, chunks as {form}: {given.rows / seconds:,.0f} rows/s,"
                f" {(floor + again) / 2 / seconds:.2f} of COPY's; CPU s {cpu};"
                f" peak MB {found.peak}; server: {found.copied / 1e6:,.0f} MB sent in {found.chunks} chunks,"
                f" {pages * 8 / 1024:,.0f} MB of pages and {rows:,} rows read, {found.connections} connections at most"
                " (readers, the snapshot's holder, control, log)",
                flush=True,
            )


if __name__ == "__main__":
    main()

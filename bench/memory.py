"""Peak memory of every process for a transaction of 3,000,000 rows and for a row with a 200 MB value, to Parquet and DuckDB."""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path

from bench.processes import Meter, wait_until
from penstock.core.flow import Flow
from penstock.core.position import parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.worker import Worker

CASES = {
    "transaction of {rows:,} rows": "insert into big select g, 'customer name ' || g, (g % 100000) / 100.0, repeat('x', 80),"
    " now() from generate_series(1, {rows}) g",
    "row with a {size:,} byte value": "insert into big (id, t2) values (0, repeat('y', {size}))",
    "update of that row's neighbour": "update big set t = 'changed' where id = 1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=200_000_000)
    given = parser.parse_args()
    settings = {"max_wal_size": "8GB"}
    with EmbeddedPostgres(settings=settings) as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        server.run("create table big (id int8 primary key, t text, num numeric(12,2), t2 text, ts timestamptz)")
        path = Path(directory)
        flow = Flow.model_validate(
            {
                "name": "memory",
                "source": {"type": "postgres", "options": {"dsn": server.dsn("postgres"), "snapshot": "never"}},
                "destinations": [
                    {"name": "files", "type": "files", "options": {"path": str(path / "log")}, "batch": {"max_wait": "0ms"}},
                    {"name": "duckdb", "type": "duckdb", "options": {"path": str(path / "d.duckdb")}},
                ],
                "parallelism": 2,
            }
        )
        worker = Worker(flow, path / "state")
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(worker.is_ready, 120, "no start")
        for name, sql in CASES.items():
            with Meter() as meter:
                server.run(sql.format(rows=given.rows, size=given.size))
                head = parse_lsn(str(server.run("select pg_current_wal_insert_lsn()::text")[0][0])) - 256
                wait_until(
                    lambda head=head: not thread.is_alive() or all(d.position >= head for d in worker.status().destinations),
                    600,
                    f"{name}: {worker.status()}",
                )
            own = {kind: peak for kind, peak in meter.peak.items() if kind in ("driver", "capture", "lanes", "jvm")}
            print(f"{name.format(rows=given.rows, size=given.size)}: peak MB per process {own}", flush=True)
        worker.stop()
        thread.join()


if __name__ == "__main__":
    main()

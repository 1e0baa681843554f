"""A first load of many small tables beside one of a single table with as many rows: what a table costs besides its rows.

Each load is a flow's first start on a server of its own, timed from when the worker stands until every table is live.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.chunk_read import server_cpu
from bench.processes import Meter, wait_until
from penstock.core.flow import Flow
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.prepare import prepare
from penstock.engine.worker import Worker

COLUMNS = "id bigint primary key, name text, price numeric(12,2), at timestamptz, ok bool"
ROWS = "select i, 'name ' || i, i / 100.0, now() - i * interval '1 second', i % 2 = 0 from generate_series(1, {rows}) i"


def fill(server: EmbeddedPostgres, tables: int, rows: int) -> None:
    """So many tables that have so many rows together."""
    for first in range(0, tables, 100):
        made = (
            f"create table t{i} ({COLUMNS}); insert into t{i} {ROWS.format(rows=rows // tables)}"
            for i in range(first, min(tables, first + 100))
        )
        server.run("; ".join(made))
    server.run("analyze")


def first_load(server: EmbeddedPostgres, kind: str) -> tuple[float, float, dict[str, float]]:
    """Seconds from the flow's start and from its slot until its tables are live, and CPU seconds by process."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        path = Path(directory)
        place = str(path / ("log" if kind == "files" else "bench.duckdb"))
        flow = Flow.model_validate(
            {
                "name": f"many_{kind}",
                "source": {"type": "postgres", "options": {"dsn": server.dsn("postgres"), "snapshot": "initial"}},
                "destinations": [{"name": kind, "type": kind, "options": {"path": place}}],
            }
        )
        worker = Worker(flow, path / "state")
        thread = threading.Thread(target=worker.run)
        spent, began = server_cpu(server), time.monotonic()
        with Meter(2.0) as meter:
            thread.start()
            try:
                wait_until(worker.is_ready, 300, "lanes do not stand")
                ready = time.monotonic()
                ledger: Any = worker._ledger
                wait_until(lambda: _is_loaded(ledger, flow.name), 900, "the load does not end", every=0.1)
                ended = time.monotonic()
            finally:
                cpu = meter.cpu()
                worker.stop()
                thread.join()
        return ended - began, ended - ready, cpu | {"server": round(server_cpu(server) - spent, 2)}


def _is_loaded(ledger: Any, flow: str) -> bool:
    found = ledger.loads.all(flow)
    if any(load.state in ("failed", "cancelled") for load in found):
        raise RuntimeError(f"the load has ended badly: {found}")
    return bool(found) and all(load.is_over for load in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--destinations", default="files,duckdb")
    given = parser.parse_args()
    # The first load of all would wait for kernels to be compiled.
    prepare()
    taken: dict[tuple[str, int], float] = {}
    for tables in (1, given.tables):
        with EmbeddedPostgres(settings={"fsync": "off", "shared_buffers": "512MB", "max_wal_size": "8GB"}) as server:
            fill(server, tables, given.rows)
            for kind in given.destinations.split(","):
                whole, loading, cpu = first_load(server, kind)
                taken[kind, tables] = whole
                print(
                    f"{kind}, {given.rows:,} rows in {tables:,} tables: {whole:.1f} s, {loading:.1f} s of it after lanes stood;"
                    f" CPU s {cpu}",
                    flush=True,
                )
    for kind in given.destinations.split(","):
        more = taken[kind, given.tables] - taken[kind, 1]
        print(f"{kind}: {given.tables:,} tables take {more:.1f} s more than one of the same size", flush=True)


if __name__ == "__main__":
    main()

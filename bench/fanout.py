"""Many destinations on one slot: what each added one costs, in capture's speed, in memory, in rows/s and in latency."""

from __future__ import annotations

import argparse

from bench import latency
from bench.path import drain
from bench.workload import PUBLICATION, make_backlog, make_server, make_table
from penstock.embedded.postgres import EmbeddedPostgres


def throughput(counts: list[int], rows: int, updates: int) -> None:
    """Drains one backlog to each number of Parquet logs; ratios are against the first number."""
    with make_server() as server:
        make_table(server)
        for count in counts:
            server.run(f"select pg_create_logical_replication_slot('fan{count}', 'pgoutput')")
        end = make_backlog(server, rows, updates)
        first: float | None = None
        for count in counts:
            done = drain(server, f"fan{count}", ["files"] * count, end, 1)
            first = first or done.capture
            driver, lane = done.meter.peak["driver"], done.meter.peak["lanes"]
            print(
                f"{count} destination(s): capture {(rows + updates) / done.capture:,.0f} messages/s,"
                f" {done.capture / first:.2f} of the first's time | each {(rows + updates) / done.last:,.0f} rows/s |"
                f" driver {driver:.0f} MB, a lane {lane:.0f} MB at most | CPU s {done.meter.cpu()}",
                flush=True,
            )


def delays(counts: list[int], rate: int, seconds: float) -> None:
    """Latency of each destination at a steady rate."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        server.run(latency.TABLE)
        server.run(f"create publication {PUBLICATION} for table lat")
        for count in counts:
            latency.measure(server, ["files"] * count, [rate], seconds, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--destinations", default="1,2,4,8")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    counts = [int(count) for count in given.destinations.split(",")]
    throughput(counts, given.rows, given.updates)
    delays(counts, given.rate, given.seconds)


if __name__ == "__main__":
    main()

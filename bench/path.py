"""The whole path: drains one backlog to Parquet and to DuckDB, beside capture alone on the same backlog in the same run."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from bench.capture import run_capture
from bench.processes import Meter, wait_until
from bench.workload import PUBLICATION, make_backlog, make_server, make_table
from penstock.core.flow import Flow
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.status import WorkerStatus
from penstock.engine.supervisor import CaptureSupervisor
from penstock.engine.worker import Worker
from penstock.sources.base import Prepared


def flow_to(server: EmbeddedPostgres, slot: str, kinds: list[str], directory: Path, parallelism: int) -> Flow:
    """A flow from the bench's slot to destinations of these kinds."""
    source = {
        "dsn": server.dsn("postgres"),
        "slot": slot,
        "publication": PUBLICATION,
        "ensure_publication": False,
        "snapshot": "never",
    }
    destinations = []
    for i, kind in enumerate(kinds):
        options = {"path": str(directory / (f"log{i}" if kind == "files" else f"bench{i}.duckdb"))}
        destinations.append({"name": f"{kind}{i}", "type": kind, "options": options, "batch": {"max_wait": "0ms"}})
    return Flow.model_validate(
        {
            "name": f"bench_{slot}",
            "source": {"type": "postgres", "options": source},
            "destinations": destinations,
            "parallelism": parallelism,
        }
    )


@dataclass(frozen=True)
class Drained:
    """How long the backlog took, from the moment capture may begin, lanes standing."""

    capture: float
    """Seconds until the journal had it."""
    last: float
    """Seconds until every destination had it."""
    meter: Meter


def drain(server: EmbeddedPostgres, slot: str, kinds: list[str], end: int, parallelism: int) -> Drained:
    """Drains the slot to destinations of these kinds side by side."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        path = Path(directory)
        worker = Worker(flow_to(server, slot, kinds, path, parallelism), path / "state")
        ready, go = threading.Event(), threading.Event()
        begin = CaptureSupervisor.begin

        def begin_when_ready(supervisor: CaptureSupervisor, prepared: Prepared) -> None:
            wait_until(worker.is_ready, 120, "lanes do not stand")
            ready.set()
            go.wait()
            begin(supervisor, prepared)

        def reached(status: WorkerStatus) -> bool:
            return all(d.position >= end for d in status.destinations)

        thread = threading.Thread(target=worker.run)
        with mock.patch.object(CaptureSupervisor, "begin", begin_when_ready):
            thread.start()
            ready.wait()
            with Meter() as meter:
                started = time.perf_counter()
                go.set()
                wait_until(lambda: not thread.is_alive() or worker.status().journal_mark >= end, 600, "no end of the journal")
                capture = time.perf_counter() - started
                wait_until(lambda: not thread.is_alive() or reached(worker.status()), 600, "no end")
                seconds = time.perf_counter() - started
        worker.stop()
        thread.join()
        return Drained(capture, seconds, meter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--parallelism", type=int, default=2)
    given = parser.parse_args()
    kinds = ("files", "duckdb")
    with make_server() as server:
        make_table(server)
        for slot in ("alone", *kinds):
            server.run(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        end = make_backlog(server, given.rows, given.updates)
        rows = given.rows + given.updates
        floor, _, _, _ = run_capture(server, "alone", end)
        print(f"capture alone: {rows / floor:,.0f} rows/s ({floor:.1f} s)", flush=True)
        for kind in kinds:
            done = drain(server, kind, [kind], end, given.parallelism)
            print(
                f"{kind}: {rows / done.last:,.0f} rows/s ({done.last:.1f} s), {done.last / floor:.2f} of capture alone | "
                f"CPU s {done.meter.cpu()} | peak MB {dict(done.meter.peak)}",
                flush=True,
            )


if __name__ == "__main__":
    main()

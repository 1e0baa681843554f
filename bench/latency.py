"""Latency from a row's commit to its durable place at the destination, at a steady rate of single-row commits, after warm-up.

The log carries the server's commit time of each row; the return of the destination's commit gives the other end. One
machine, one clock. The server runs with fsync off: it would fight with the destination for the one disk of this machine, and
what it does before a commit is not part of the figure. Journal, destination and ledger are synced, as always.

At the end the last rate is repeated with each of `--waits`: how much CPU of ours which `max_wait` saves, for what latency.

The figures are those of the machine as well: a fixed piece of work is timed before and after each rate, and its time printed
beside them. Where it varies between runs, compare only runs in which it was the same.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import Meter, wait_until
from bench.workload import PUBLICATION
from penstock.core.epoch import Epoch
from penstock.core.flow import DestinationUse, Flow
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.worker import Worker

TABLE = """
create table lat (
  id bigserial primary key, a int4, t text, num numeric(12,2), b int4, f float8, t2 text, ts timestamptz, ok bool, u uuid
)
"""
INSERT = """
insert into lat (a, t, num, b, f, t2, ts, ok, u) values
(:client_id, 'customer name', 12.34, 5, 1.5, 'some longer description text padpadpadpad', now(), true, gen_random_uuid())
"""


NUMBERS = itertools.count(1)
"""Each run is a flow of its own: a slot remembers whose it is."""
OURS = ("capture", "driver", "jvm", "lanes")
"""Whose CPU `max_wait` can save."""


class Clock:
    """Notes when each epoch of a destination was durable, by wrapping its commit."""

    def __init__(self, worker: Worker) -> None:
        self.moments: dict[str, list[tuple[int, float]]] = {}
        assert worker._loops is not None
        for name, destination in worker._loops.destinations.items():
            self._wrap(name, destination)

    def _wrap(self, name: str, destination: Any) -> None:
        commit, moments = destination.commit, self.moments.setdefault(name, [])

        def timed(epoch: Epoch, receipts: Any) -> None:
            commit(epoch, receipts)
            moments.append((epoch.upto, time.time()))

        destination.commit = timed


def probe() -> float:
    """Milliseconds that a fixed piece of single-core work takes now, the median of five."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        sum(range(1_000_000))
        taken.append((time.perf_counter() - began) * 1e3)
    return sorted(taken)[2]


def press(server: EmbeddedPostgres, rate: float, seconds: float) -> None:
    """Single-row commits at a steady rate, by pgbench: a load in Python would want a core of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(INSERT)
        script.flush()
        command = [str(server.binary("pgbench")), "-n", "-f", script.name, "-R", str(rate), "-c", "4", "-j", "1"]
        command += ["-T", str(round(seconds)), server.dsn("postgres")]
        subprocess.run(command, check=True, capture_output=True)


def measure(
    server: EmbeddedPostgres, kinds: list[str], rates: list[int], seconds: float, warm: float, max_wait: str = "0ms"
) -> str:
    """Runs one flow with these destinations and prints the percentiles at each rate.

    Returns the last one as a point of the curve on which `max_wait` trades latency for CPU.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        path = Path(directory)
        destinations = []
        for i, kind in enumerate(kinds):
            place = str(path / (f"log{i}" if kind == "files" else f"bench{i}.duckdb"))
            destinations.append({"name": f"{kind}{i}", "type": kind, "options": {"path": place}, "batch": {"max_wait": max_wait}})
        name = f"latency{next(NUMBERS)}"
        flow = Flow.model_validate(
            {
                "name": name,
                "source": {
                    "type": "postgres",
                    "options": {
                        "dsn": server.dsn("postgres"),
                        "publication": PUBLICATION,
                        "ensure_publication": False,
                        "snapshot": "never",
                    },
                },
                "destinations": destinations,
            }
        )
        worker = Worker(flow, path / "state")
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(
            lambda: all(d.state == "ok" for d in worker.status().destinations) and worker.status().destinations, 60, "start"
        )
        wait_until(worker.is_ready, 120, "lanes do not stand")
        clock = Clock(worker)
        press(server, rates[0], warm)
        for rate in rates:
            before = probe()
            began = time.time()
            with Meter(interval=2.0) as meter:
                press(server, rate, seconds)
            ended = time.time()
            time.sleep(1.0)
            _print(path, flow, clock, rate, began, ended, meter)
            p50, _, p99, _, _, epochs = lags(path, flow.destinations[0], clock, began, ended)
            share = sum(cpu for kind, cpu in meter.cpu().items() if kind in OURS) / (ended - began)
            print(f"  the probe took {before:.1f} ms before and {probe():.1f} ms after", flush=True)
        worker.stop()
        thread.join()
        server.run(f"select pg_drop_replication_slot('penstock_{name}')")
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, {epochs} epochs/s, {100 * share:.0f}% of a core"


def _print(path: Path, flow: Flow, clock: Clock, rate: int, began: float, ended: float, meter: Meter) -> None:
    for use in flow.destinations:
        p50, p95, p99, most, count, epochs = lags(path, use, clock, began, ended)
        print(
            f"{len(flow.destinations)} destination(s), {use.name} at {rate}/s: p50 {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f}, "
            f"max {most:.1f} ({count:,} rows of {rate * (ended - began - 1.5):,.0f}, {epochs} epochs/s)",
            flush=True,
        )
    share = {kind: f"{100 * cpu / (ended - began):.0f}%" for kind, cpu in meter.cpu().items()}
    print(f"  CPU, share of a core: {share}; peak MB {dict(meter.peak)}", flush=True)


def lags(
    path: Path, use: DestinationUse, clock: Clock, began: float, ended: float
) -> tuple[float, float, float, float, int, int]:
    """p50, p95, p99 and the most in ms, over how many rows, and epochs a second."""
    written, positions = _rows(path, use.type, str(use.options["path"]))
    commits = clock.moments[use.name]
    ends = np.array([upto for upto, _ in commits])
    times = np.array([moment for _, moment in commits])
    chosen = (written >= began + 1) & (written <= ended - 0.5)
    lag = (times[np.searchsorted(ends, positions[chosen])] - written[chosen]) * 1e3
    p50, p95, p99 = (float(p) for p in np.percentile(lag, (50, 95, 99)))
    epochs = int(((times >= began) & (times <= ended)).sum() / (ended - began))
    return p50, p95, p99, float(lag.max()), len(lag), epochs


def _rows(path: Path, kind: str, place: str) -> tuple[Any, Any]:
    """When each row was committed at the source, and its position. DuckDB keeps no positions: they come from a log beside it."""
    import pyarrow as pa

    from penstock.destinations.files.reader import read_changes

    logs = [place] if kind == "files" else [str(p) for p in sorted(path.glob("log*"))]
    table = pa.Table.from_batches(list(read_changes(Path(logs[0]), "public", "lat"))).select(["__committed_at", "__position"])
    return table["__committed_at"].cast(pa.int64()).to_numpy() / 1e6, table["__position"].to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="500,2000")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--warm", type=float, default=8)
    parser.add_argument("--destinations", default="files;files,duckdb", help="flows to run, each a list of destination types")
    parser.add_argument("--waits", default="0ms,10ms,50ms,200ms", help="each `max_wait` of the curve; empty draws none")
    given = parser.parse_args()
    rates = [int(r) for r in given.rates.split(",")]
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        server.run(TABLE)
        server.run(f"create publication {PUBLICATION} for table lat")
        for kinds in given.destinations.split(";"):
            measure(server, kinds.split(","), rates, given.seconds, given.warm)
        curve = []
        for wait in filter(None, given.waits.split(",")):
            point = measure(server, [given.destinations.split(";")[0].split(",")[0]], rates[-1:], given.seconds, given.warm, wait)
            curve.append(f"  {wait:>6}: {point}")
        if curve:
            print(f"max_wait trades latency for CPU; one destination at {rates[-1]}/s:", *curve, sep="\n", flush=True)


if __name__ == "__main__":
    main()

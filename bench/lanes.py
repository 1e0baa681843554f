"""A descriptor and its receipt over a standing Spark task, beside a Spark job for the same nothing, in one run."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import psutil

from bench.processes import wait_until
from penstock.engine.messages import receive, send
from penstock.engine.session import SparkHost
from penstock.engine.switchboard import Switchboard

LANES = 2
ROUNDS = 2000
JOBS = 100


def echo(address: str, secret: bytes, indexes: Iterable[int]) -> Iterator[int]:
    """A lane that answers at once."""
    index = next(iter(indexes))
    with Client(address, "AF_UNIX", authkey=secret) as connection:
        send(connection, {"job": "echo", "lane": index})
        try:
            while True:
                send(connection, receive(connection))
        except (EOFError, ConnectionError):
            pass
    yield index


def cpu_of(process: int) -> float:
    """CPU seconds of a process so far."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def percentiles(seconds: list[float]) -> str:
    """p50 / p99 in ms."""
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, SparkHost(Path(directory)) as host:
        context = host.context()
        jvm = host.process_id
        for _ in range(20):
            context.parallelize(range(LANES), LANES).map(str).collect()
        jobs = []
        before = cpu_of(jvm)
        for _ in range(JOBS):
            began = time.perf_counter()
            context.parallelize(range(LANES), LANES).map(str).collect()
            jobs.append(time.perf_counter() - began)
        print(f"a Spark job: {percentiles(jobs)}; JVM {1e3 * (cpu_of(jvm) - before) / JOBS:.1f} CPU ms each", flush=True)
        board = Switchboard()
        lanes: dict[int, Connection] = {}

        def called(lane: int, connection: Connection, hello: dict[str, Any]) -> None:
            lanes[lane] = connection

        board.expect("echo", called)
        task = partial(echo, board.address, board.secret)
        job = threading.Thread(target=lambda: context.parallelize(range(LANES), LANES).mapPartitions(task).collect())
        job.start()
        wait_until(lambda: len(lanes) == LANES, 30, "no lanes")
        trips = []
        before = cpu_of(jvm)
        for number in range(ROUNDS):
            began = time.perf_counter()
            for connection in lanes.values():
                send(connection, {"ask": number, "slices": b"x" * 1000})
            for connection in lanes.values():
                receive(connection)
            trips.append(time.perf_counter() - began)
            time.sleep(0.001)
        print(
            f"{LANES} standing lanes: {percentiles(trips)}; JVM {1e3 * (cpu_of(jvm) - before) / ROUNDS:.2f} CPU ms each",
            flush=True,
        )
        print(f"lanes / jobs: {statistics.median(trips) / statistics.median(jobs):.4f} of the time")
        for connection in lanes.values():
            connection.close()
        job.join()
        board.close()


if __name__ == "__main__":
    main()

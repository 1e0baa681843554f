"""Chunks read into files, checksummed and fsynced, beside psql's `COPY … TO STDOUT` of the same chunks to /dev/null, in turns.

Both use as many connections, each in a process of its own; what is compared is time, CPU of the readers, CPU of the server.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.workload import make_server
from penstock.core.schema import TableSchema
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.sources.chunks import Chunk, LoadRules
from penstock.sources.postgres.load import reader, statements
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource


class Cost(NamedTuple):
    """Seconds of one run."""

    time: float
    readers: float
    server: float


def server_cpu(server: EmbeddedPostgres) -> float:
    """CPU seconds of the server's processes, ended ones included."""
    postmaster = psutil.Process(server.postmaster)
    times = postmaster.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in postmaster.children():
        try:
            mine = child.cpu_times()
        except psutil.Error:
            continue
        total += mine.user + mine.system
    return total


def run_psql(server: EmbeddedPostgres, shares: Sequence[Sequence[str]]) -> Cost:
    """One psql a connection, each with its share of the statements."""
    before, children = server_cpu(server), resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    started = []
    for share in shares:
        command = [str(server.binary("psql")), "-X", "-q", server.dsn("postgres")]
        for one in share:
            command += ["-c", one]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"LD_LIBRARY_PATH": ""}))
    assert [p.wait() for p in started] == [0] * len(started)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    readers = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return Cost(seconds, readers, server_cpu(server) - before)


def read_share(recipe: Any, table: Any, share: Any, directory: str, gate: Barrier, told: Queue[float]) -> None:
    """One reader in its own process; it tells its CPU seconds from the common start on."""
    reader.warm()
    one = reader.PostgresChunkReader(recipe)
    schema = TableSchema.from_data(table)
    gate.wait()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for data in share:
        chunk = Chunk.from_data(data)
        one.read(chunk, schema, None, Path(directory) / f"{chunk.number}")
    one.close()
    after = resource.getrusage(resource.RUSAGE_SELF)
    told.put(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def run_readers(server: EmbeddedPostgres, recipe: Any, table: TableSchema, shares: Sequence[Sequence[Chunk]]) -> Cost:
    """One reader a connection."""
    made = multiprocessing.get_context("spawn")
    gate, told = made.Barrier(len(shares) + 1), made.Queue()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        processes = [
            made.Process(target=read_share, args=(recipe, table.to_data(), [c.to_data() for c in share], directory, gate, told))
            for share in shares
        ]
        for process in processes:
            process.start()
        gate.wait()
        before = server_cpu(server)
        began = time.perf_counter()
        readers = sum(told.get() for _ in processes)
        seconds = time.perf_counter() - began
        for process in processes:
            process.join()
        return Cost(seconds, readers, server_cpu(server) - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with make_server() as server:
        server.run("create table big (id bigint primary key, name text, price numeric(10, 2), at timestamptz, note text)")
        fill = "insert into big select g, 'name ' || g, g / 7.0, now(), repeat('n', 40 + (g % 60)::int) from generate_series"
        server.run(f"{fill}(1, {given.rows}) g")
        server.run("vacuum (freeze, analyze) big")
        source = PostgresSource("bench", PostgresOptions(dsn=server.dsn("postgres"), publication_tables=("public.big",)))
        (table,) = source.discover()
        chunks = source.plan_chunks([table], LoadRules(target_bytes=16 << 20))
        shares = [chunks[i :: given.connections] for i in range(given.connections)]
        texts = [[statements.copy(c, table, c.bounds["name"]) for c in share] for share in shares]
        size = sum(c.bytes for c in chunks)
        print(f"{given.rows:,} rows, {size / 1e6:,.0f} MB in {len(chunks)} chunks, {given.connections} connections", flush=True)
        run_psql(server, texts)
        ratios = []
        for i in range(given.rounds):
            peer, ours = run_psql(server, texts), run_readers(server, source.reading(), table, shares)
            ratios.append([a / b for a, b in zip(ours, peer, strict=True)])
            print(
                f"round {i + 1}: psql {peer.time:5.2f} s, {peer.readers:5.2f} CPU s, server {peer.server:5.2f} | "
                f"readers {ours.time:5.2f} s, {ours.readers:5.2f} CPU s, server {ours.server:5.2f} | "
                f"{size / 1e6 / ours.time:,.0f} MB/s, {given.rows / ours.time:,.0f} rows/s",
                flush=True,
            )
        middle = [statistics.median(column) for column in zip(*ratios, strict=True)]
        print("readers / psql: time {:.2f}, CPU of readers {:.2f}, CPU of the server {:.2f}".format(*middle))
        source.close()


if __name__ == "__main__":
    main()
